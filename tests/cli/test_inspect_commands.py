"""support, lint, explain, freeze, optimize, --html and --version on the command line."""

import html

import numpy as np
import openvino as ov
import pandas as pd
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.cli.texts import unused
from hetero_lab.deploy.contract import read_contract

MODEL = "digits_inception"
EMULATE = ["--emulate", "ASKACC:unsupported=Concat,Softmax"]
SPLIT = ["-d", "HETERO:ASKACC,CPU", *EMULATE]


def test_version(said):
    ours, runtime = said("--version").rstrip().split(", OpenVINO ")
    assert ours == f"hetero-lab {hl.__version__}"
    assert ov.get_version().startswith(runtime)


def check_page(page, first):
    """Check that the page of a table begins with the sentence that the command printed."""
    text = html.unescape(page.read_text("utf-8"))
    assert 0 < text.index(first) < text.index("<table")
    assert " rows</h2>" in text


def test_support_counts_what_a_device_cannot_run(said, tmp_path):
    file, page = str(tmp_path / "support.csv"), tmp_path / "support.html"
    written = ["--csv", file, "--html", str(page)]
    lines = said("support", MODEL, "-d", "ASKACC,CPU", *EMULATE, *written).splitlines()
    check_page(page, lines[0])
    table = pd.read_csv(file)
    refused = table.loc[~table["ASKACC"], "op_type"].value_counts()
    counts = ", ".join(f"{n} {op_type}" for op_type, n in refused.items())
    able = len(table) - refused.sum()
    assert lines == [
        f"ASKACC can run {able} of {len(table)} ops; not: {counts}.",
        f"CPU can run all {len(table)} ops.",
    ]


def test_lint_groups_findings_by_cause(said, tmp_path):
    file, page = str(tmp_path / "lint.csv"), tmp_path / "lint.html"
    lines = said("lint", MODEL, *SPLIT, "--csv", file, "--html", str(page)).splitlines()
    check_page(page, lines[0])
    findings = pd.read_csv(file)
    whole, *others = findings["cause"]
    assert whole == "ASKACC does not support Concat (4 ops)"
    assert set(others) == {"ASKACC cannot run Concat, Softmax"}
    assert len(lines) == 4
    assert lines[0] == " ".join([findings["finding"][0], findings["advice"][0]])
    assert lines[1] == "The change above may remove the findings below."
    assert lines[2].startswith(f"{len(others)} findings (")
    assert lines[3] == f"Next:       hetero-lab simplify {MODEL} {' '.join(SPLIT)}"
    table = said("lint", MODEL, *SPLIT, "--table").splitlines()
    assert len(table) == len(lines) + 2 + len(findings)


def test_explain_takes_devices_and_files_and_writes_a_page(said, tmp_path):
    hl.emulate("ASKACC", unsupported={"Concat", "Softmax"})
    hl.Affinity.automatic(MODEL, "HETERO:ASKACC,CPU").to_json(tmp_path / "split.json")
    page = tmp_path / "page.html"
    text = said(
        "explain", MODEL, "CPU", str(tmp_path / "split.json"), "--html", str(page), *EMULATE
    )
    assert "87 of 92 ops move" in text
    assert "plotly-graph-div" in page.read_text("utf-8")


def test_freeze_writes_what_apply_reads_and_a_file_wholly_on_the_cpu_as_the_cpu(said, tmp_path):
    frozen, cpu, file = (str(tmp_path / name) for name in ("frozen", "cpu", "best.json"))
    lines = said("freeze", MODEL, frozen, *SPLIT, "--tolerance", "none").splitlines()
    assert set(hl.read_placement(frozen).devices) == {"ASKACC", "CPU"}
    assert [line.split()[0::2] for line in lines[1:]] == [
        ["Next:", f"{frozen}/run.py"],
        ["Next:", "verify"],
    ]
    hl.Affinity.uniform(MODEL, "CPU").to_json(file)
    said("freeze", MODEL, cpu, "--affinity", file, "--tolerance", "none")
    assert read_contract(cpu).label == "CPU"
    assert hl.read_placement(cpu).direct


def test_the_answer_comes_first_and_is_short(said, tmp_path):
    page = tmp_path / "page.html"
    few = ["-n", "10", "-w", "0"]
    answer = said("profile", MODEL, *SPLIT, *few, "--html", str(page)).splitlines()
    assert answer[0].startswith(f"{MODEL} takes ")
    assert len(answer) <= 15
    assert answer[-1] == (
        "Next:       hetero-lab simplify digits_inception -d HETERO:ASKACC,CPU --emulate "
        "ASKACC:unsupported=Concat,Softmax"
    )
    assert sum("ASKACC does not support Concat" in line for line in answer) == 1
    assert "plotly-graph-div" in page.read_text("utf-8")
    long = said("profile", MODEL, *SPLIT, *few, "-pc", "--table")
    assert "SUBGRAPH  DEVICE  OPS" in long
    assert "TENSOR " in long
    assert "ASKACC (emulated on CPU)" in long
    assert "subgraph0: " in long
    assert "Total time: " in long


def test_the_next_command_keeps_the_order_of_the_devices_and_names_a_new_directory(
    said, tmp_path, monkeypatch
):
    split = ["--emulate", "ORDACC:unsupported=Multiply", "-n", "2", "-w", "0", "--no-reference"]
    answer = said("profile", MODEL, "-d", "HETERO: ORDACC, CPU", *split)
    assert "Next:       hetero-lab optimize digits_inception -d ORDACC,CPU" in answer
    monkeypatch.chdir(tmp_path)
    assert unused("deploy") == "deploy"
    for name in ("deploy", "deploy-2"):
        (tmp_path / name).mkdir()
    assert unused("deploy") == "deploy-3"


@pytest.mark.slow
def test_optimize_writes_what_freeze_takes(said, tmp_path):
    out = str(tmp_path / "best.json")
    page = tmp_path / "best.html"
    lines = said(
        "optimize", MODEL, "-d", "ASKACC,CPU", *EMULATE, "-b", "8", "--no-isolate",
        "--affinity-out", out, "--html", str(page),
    ).splitlines()  # fmt: skip
    # The answer, what was measured, the placement and two notes; the sweep's verdict, heading, five
    # placements below their names, two notes, and what counts the others of both; the next command.
    assert len(lines) <= 5 + 8 + 2 + 2 + 1
    assert lines[-1].startswith(f"Next:       hetero-lab freeze {MODEL} deploy --affinity {out}")
    found = hl.Affinity.from_json(out)
    assert len(found.ops) == 92
    assert ("--emulate" in lines[-1]) == ("ASKACC" in found.devices)
    assert "plotly-graph-div" in page.read_text("utf-8")


@pytest.mark.slow
def test_a_verified_directory_has_a_page(said, tmp_path):
    page, frozen = tmp_path / "verify.html", hl.freeze(MODEL, "CPU", tmp_path / "f", tolerance=None)
    said("verify", str(frozen), "--html", str(page))
    text = page.read_text("utf-8")
    assert "keeps its contract with OpenVINO" in text
    assert ">partition<" in text


def test_a_flat_affinity_is_read_with_the_model_of_the_command(said, tmp_path):
    file, flat = str(tmp_path / "m.xml"), tmp_path / "flat.json"
    x = op.parameter([1, 4], np.float32, name="x")
    first = op.relu(x, name="r")
    model = ov.Model([op.result(op.tanh(first, name="t"), name="out")], [x], "two")
    ov.save_model(model, file, compress_to_fp16=False)
    flat.write_text('{"r": "ASKACC", "t": "CPU"}')
    emulate = ["--emulate", "ASKACC"]
    few = ["-n", "3", *emulate]
    assert said("profile", file, "--affinity", str(flat), "-q", *few) == ""
    assert " with flat.json (" in said("profile", file, "--affinity", str(flat), *few)
    assert "1 op on ASKACC" in said("apply", file, str(flat), "-n", "3", *emulate)
    assert "1 of 2 ops moves" in said("explain", file, str(flat), "CPU", *emulate)
    assert "ASKACC" in said("export", file, "--affinity", str(flat), "--for", "ovms", *emulate)
    said("lint", file, "--affinity", str(flat), *emulate)


def test_a_shape_needs_no_name_where_there_is_one_input(said, tmp_path):
    assert said("lint", MODEL, "-d", "CPU", "--shape", "2,1,8,8") == "No findings.\n"
    assert hl.load(MODEL, shapes=[2, 1, 8, 8]).input("image").shape == ov.Shape([2, 1, 8, 8])
    x = op.parameter(ov.PartialShape.dynamic(), np.float32, name="x")
    scalar = str(tmp_path / "s.xml")
    ov.save_model(ov.Model([op.result(op.relu(x), name="out")], [x], "s"), scalar)
    for shape in ("[]", "x=[]"):
        assert "CPU can run all 1 op" in said("support", scalar, "-d", "CPU", "--shape", shape)
