"""%hetero_profile in a real IPython shell."""

import signal

import numpy as np
import openvino as ov
import pytest

import hetero_lab as hl
from hetero_lab.measure import bench

SETUP = """
import hetero_lab as hl
model = hl.load("digits_inception")
acc = hl.emulate("MAGICACC", unsupported={"Softmax", "Sigmoid"})
fixed = hl.Affinity.automatic(model, "HETERO:MAGICACC,CPU").fix(patterns={"^head_": "CPU"})
number = 3
digits_inception = 4
"""


@pytest.fixture(scope="module", autouse=True)
def variables(shell):
    shell.run_cell(SETUP).raise_error()


@pytest.fixture
def run(shell, capsys):
    """Run a cell; return its result, stdout and stderr."""

    def run(cell):
        result = shell.run_cell(cell)
        out, err = capsys.readouterr()
        return result, out, err

    return run


FEW = "-n 10 -w 0 --no-counters"


def test_shows_the_result_and_returns_nothing(run, shell, monkeypatch):
    result, out, err = run(f"%hetero_profile model -d CPU {FEW}")
    assert result.success, err
    assert result.result is None
    assert out.startswith("digits_inception takes ")
    assert out.count("Latency:    median") == 1
    assert "Placement:  92 ops on CPU" in out
    assert "Performance counts" not in out
    shown = []
    monkeypatch.setattr("hetero_lab.cli.magics.display", shown.append)
    shell.run_cell(f"%hetero_profile model -d CPU {FEW}").raise_error()
    (profile,) = shown
    assert isinstance(profile, hl.types.Profile)
    assert "<table" in profile._repr_html_()
    result, out, _ = run("%hetero_profile -h")
    assert result.success
    assert "--property DEVICE.KEY=VALUE" in out


def test_returns_the_profile_with_o(run, shell):
    # A variable with the name of a sample does not hide it, unless it may be a model.
    result, out, _ = run(
        f"p = %hetero_profile digits_inception -d HETERO:MAGICACC,CPU --fix '^head_=CPU' -o {FEW}"
    )
    assert result.success
    profile = shell.user_ns["p"]
    assert profile.affinity == shell.user_ns["fixed"]
    assert profile.label == "HETERO:MAGICACC,CPU with ^head_=CPU"
    assert len(profile.latency) == 10
    assert "MAGICACC (emulated on CPU)" in out


def test_an_affinity_is_a_variable_or_in_a_file(run, shell, tmp_path):
    shell.user_ns["fixed"].to_csv(tmp_path / "fixed.csv")
    for name in ("fixed", tmp_path / "fixed.csv"):
        result, _, err = run(f"%hetero_profile model --affinity {name} -q -v kept {FEW}")
        assert result.success, err
        assert shell.user_ns.pop("kept").affinity == shell.user_ns["fixed"]


def test_properties_shape_input_and_files_quietly_into_a_variable(run, shell, tmp_path):
    np.savez(tmp_path / "in.npz", image=np.ones((1, 1, 8, 8), np.float32))
    result, out, err = run(
        f"%hetero_profile model -d CPU -q -v kept {FEW} --shape image=1,1,8,8"
        f" --property CPU.INFERENCE_PRECISION_HINT=f32 --input {tmp_path}/in.npz"
        f" --csv {tmp_path}/row.csv --export {tmp_path}/all/of/it"
    )
    assert result.success, err
    assert out == err == ""
    kept = shell.user_ns["kept"]
    assert {a.precision for a in kept.agreement} == {"f32"}
    assert (tmp_path / "row.csv").read_text().count("\n") == 2
    assert hl.read_profile(tmp_path / "all/of/it").latency == kept.latency


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("model -d CPU --fix zzz=CPU", "matches no op"),
        ("model -d CPU -v 1x", "name of a variable"),
        ("number -d CPU", "not int"),
        ("modle -d CPU", "not a variable, a sample or a file. Did you mean 'model'?"),
        ("model --affinity number", "not an Affinity"),
        ("model --affinity missing.json", "missing.json"),
        ("model --affinity x.txt", ".json or .csv"),
        ("model -d CPU --affinity fixed", "MAGICACC"),
        ("model -d CPU --property CPU.BOGUS=1", "'BOGUS' is not a property"),
        ("model -d CPU --property MAGICACC.NUM_STREAMS=1", "would change nothing"),
        ("model -d CPU --input missing.npz", "missing.npz"),
        ("model -d 'CPU", "quote"),
    ],
)
def test_error_is_one_paragraph_without_traceback(run, shell, line, fact, monkeypatch):
    monkeypatch.setattr(bench, "open_runner", pytest.fail)  # nothing may be run
    result, out, err = run(f"%hetero_profile {line}")
    assert not result.success
    assert err.startswith("UsageError: ")
    assert fact in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) == 1


def test_interrupted_after_the_timing_keeps_the_latency(run, shell, monkeypatch):
    compare = bench.Bench.compare

    def interrupted(self, **arguments):
        signal.raise_signal(signal.SIGINT)
        return compare(self, **arguments)

    monkeypatch.setattr(bench.Bench, "compare", interrupted)
    result, out, err = run("%hetero_profile model -d CPU -v kept -n 10 -w 0\nwent_on = True")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "went_on" not in shell.user_ns
    assert "was interrupted" in out
    assert shell.user_ns["kept"].interrupted
    assert len(shell.user_ns["kept"].latency) == 10
    assert "Note: Interrupted after the timing" in err


def test_a_variable_may_hold_a_path_and_a_device_is_emulated(run, shell, tmp_path):
    ov.save_model(shell.user_ns["model"], tmp_path / "m.xml", compress_to_fp16=False)
    shell.user_ns["where"] = tmp_path / "m.xml"
    result, out, err = run(
        f"%hetero_profile where -d HETERO:LINEACC,CPU --emulate LINEACC:unsupported=Softmax {FEW}"
        " -v emulated"
    )
    assert result.success, err
    assert "digits_inception" in out
    assert shell.user_ns["emulated"].partition.n_subgraphs == 2
    assert "LINEACC" in set(hl.devices()["device"])
