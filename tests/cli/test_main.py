"""hetero-lab on the command line."""

import signal
import subprocess
import sys

import pandas as pd
import pytest
from html_outline import Outline
from other_process import run_python

import hetero_lab as hl
from hetero_lab.cli import main as cli
from hetero_lab.measure import bench

EMULATE = "CLIACC:unsupported=Softmax,Sigmoid"


def test_emulated_device_that_is_faster_sets_its_base_apart(monkeypatch, capsys):
    asked = {}

    def profile(model, placement, **more):
        """Stop before anything is run."""
        asked.update(placement.device_properties)
        raise hl.HeteroLabError("enough")

    monkeypatch.setattr(hl, "profile", profile)
    arguments = ["profile", "digits_inception", "-d", "HETERO:CLIACC,CPU", "--emulate"]
    assert cli.main([*arguments, f"{EMULATE}:faster_by=threads"]) == 2
    assert asked["CPU"]["INFERENCE_NUM_THREADS"] == 1
    cli.main(
        [*arguments, f"{EMULATE}:faster_by=threads", "--property", "CPU.INFERENCE_NUM_THREADS=2"]
    )
    assert asked["CPU"]["INFERENCE_NUM_THREADS"] == 2


def test_interrupted_before_the_first_turn(capsys, monkeypatch):
    monkeypatch.setattr(bench, "open_runner", lambda *_, **__: signal.raise_signal(2))
    assert cli.main(["profile", "digits_inception", "-d", "CPU"]) == 130
    assert capsys.readouterr().err == "hetero-lab: Interrupted.\n"


@pytest.mark.usefixtures("ctrl_c_in_the_fourth_turn")
def test_ctrl_c_keeps_what_was_measured(capsys, tmp_path):
    command = ["profile", "digits_inception", "-d", "CPU", "-w", "0", "-n", "100000"]
    assert cli.main([*command, "--no-counters", "--csv", f"{tmp_path}/row.csv"]) == 130
    out, err = capsys.readouterr()
    assert "was interrupted" in out
    assert "Traceback" not in err
    assert pd.read_csv(tmp_path / "row.csv").loc[0, "status"] == "interrupted"


def test_a_pipe_that_is_closed_on_windows_is_no_error():
    code = """
import io, sys
from hetero_lab.cli import main
class Gone(io.TextIOWrapper):
    def write(self, text):
        raise OSError(22, "Invalid argument")
sys.stdout = Gone(sys.stdout.buffer)
sys.exit(main.main(["samples"]) != 141)
"""
    assert run_python(code).stderr == ""


def test_devices_and_samples_are_listed(said):
    lines = said("devices", "--emulate", EMULATE).splitlines()
    assert lines[0].split()[0] == "DEVICE"
    rows = {line.split()[0]: line for line in lines[1:]}
    assert "EMULATED ON" in lines[0]
    assert {"CPU", "GPU", "NPU"} <= {name.partition(".")[0] for name in rows}
    missing = set(rows) - set(hl.devices().query("available")["device"])
    assert all(rows[name].split()[1] == "no" for name in missing)
    heading, *samples = said("samples").splitlines()
    assert [line.split()[0] for line in samples] == list(hl.samples()["name"])
    assert "BUNDLED" in heading


def test_help_needs_no_runtime():
    code = "import sys; from hetero_lab.cli import main; main.parser(); print(*sys.modules)"
    assert "openvino" not in run_python(code).stdout.split()


@pytest.mark.slow
def test_demo(tmp_path):
    (tmp_path / "hetero_lab_demo").mkdir()  # an existing directory is fine
    command = [sys.executable, "-m", "hetero_lab", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    out = done.stdout
    assert "Traceback" not in done.stderr
    for expected in ("ACC is emulated", "8 subgraphs", "3 subgraphs", "hetero-lab devices"):
        assert expected in out
    made = tmp_path / "hetero_lab_demo"
    table = pd.read_csv(made / "candidates.csv").set_index("label")
    # "CPU (f32)" is a candidate of its own only where the CPU computes in bf16 by default.
    assert {"CPU", "HETERO:ACC,CPU", "HETERO:ACC,CPU simplified"} <= set(table.index)
    (best,) = table.loc[table["judgement"] == "best", "configuration"]
    assert f"Deploy {best}: " in out
    assert set(table["verdict"].dropna()) <= {"equal", "rounding"}
    simplified = hl.Affinity.from_json(made / "simplified.json")
    assert simplified["scale"] == simplified["head_parity/matmul"] == "CPU"
    assert hl.verify(made / "deploy", turns=3, tolerance=1e6).ok
    page = (made / "index.html").read_text("utf-8")
    assert not [link for link in Outline(page).loads if not link.startswith(("data:", "#"))]
    splits = ["HETERO:ACC,CPU", "HETERO:ACC,CPU simplified"]  # a busy machine may not get to both
    n_measured = table.loc[splits, "median_us"].notna().sum()
    assert page.count("plotly-graph-div") >= 1 + n_measured
    for told in (out, page):
        assert "candidate 1 (recorded, f32)" in told
        assert "GPU is NVIDIA H200" in told


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_what_cannot_be_written_is_an_error_and_costs_itself_only(capsys, tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "hetero_lab", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == cli.ERROR
    assert "Error: The standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    arguments = ["support", "digits_inception", "--csv", "/dev/full", "--html", f"{tmp_path}/a"]
    assert cli.main(arguments) == cli.ERROR
    said = capsys.readouterr()
    assert "CPU can run all 92 ops." in said.out
    assert "'/dev/full' cannot be written" in said.err
    assert (tmp_path / "a").read_text().startswith("<!doctype html>")


def test_a_fault_of_the_lab_is_no_verdict(monkeypatch, capsys):
    monkeypatch.setattr(hl, "samples", lambda: [].pop())
    assert cli.main(["samples"]) == cli.ERROR
    assert "Error in hetero-lab itself" in capsys.readouterr().err
