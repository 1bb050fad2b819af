"""The files of a search for faults: written, read back, and run without the lab."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import openvino as ov
import pandas as pd
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.debug.reproducer import CompileCall, Reproducer, Symptom
from hetero_lab.devices.core import shared_core
from hetero_lab.model.read import prepare
from hetero_lab.results.environment import current_environment
from hetero_lab.samples.catalogue import datasets_dir
from tests.debug.cases import F32, chain_case, failing, fault
from tests.proof.injected_faults import found_sets, search
from tests.scripts import shown_fault


def test_a_placement_that_is_refused_is_torn_apart_where_it_fails(monkeypatch, tmp_path):
    """What is refused is another fault than wrong numbers, in the report and in the script."""
    wrong = search(failing(chain_case(), monkeypatch, "refuse", "shift", "sigmoid"))
    assert (wrong.kind, found_sets(wrong)) == ("combination", {frozenset({"shift", "sigmoid"})})
    said = r"The placement does not run .*no kernel.*Refused: 'shift', 'sigmoid' together\."
    assert re.match(said, wrong.verdict)
    assert len(wrong.fix) == 1
    assert wrong.proven
    assert wrong.after < 1e-5
    wrong.export(tmp_path)
    assert hl.read_wrong(tmp_path).sets[0].refusal == wrong.sets[0].refusal
    place = tmp_path / "fault_1"
    report = (place / "README.md").read_text()
    assert "# Add + Sigmoid on ACC: refused" in report
    assert "no kernel for this" in report
    assert "wrong" not in report
    # It was the worker that refused them.
    assert "The fault is not there." in shown_fault(place).stdout
    stored = json.loads((place / "fault.json").read_text())
    stored["wrong"]["properties"] = {"INFERENCE_PRECISION_HINT": "nonsense"}
    (place / "fault.json").write_text(json.dumps(stored))
    done = shown_fault(place)
    assert (done.returncode, done.stderr) == (1, "")
    assert "ACC raised: " in done.stdout
    assert "The fault is there." in done.stdout


def test_what_was_exported_is_read_back_shown_without_the_lab_and_replaced(tmp_path):
    faults = fault("shift", "sigmoid"), fault("tanh")
    wrong = replace(search(chain_case(*faults)), before=math.inf, after=math.nan, proven=False)
    first, second = tmp_path / "first", tmp_path / "second"
    wrong.export(first)
    read = hl.read_wrong(first)
    assert str(read) == str(wrong)
    assert read.fix == wrong.fix
    assert read.before == math.inf
    assert math.isnan(read.after)
    assert (read.given, read.placement) == (wrong.given, wrong.placement)
    pd.testing.assert_frame_equal(read.errors, wrong.errors)
    pd.testing.assert_frame_equal(read.culprits, wrong.culprits)
    for again, found in zip(read.sets, wrong.sets, strict=True):
        assert [a.tolist() for a in again.inputs] == [a.tolist() for a in found.inputs]
    assert hl.Affinity.from_json(first / "affinity.json") == wrong.affinity
    flat = json.loads((first / "devices.json").read_text())
    assert {op: flat[op] for op in wrong.fix} == wrong.fix
    # It is whole: what it writes is the same, the models and inputs included.
    read.export(second)
    names = [path.relative_to(first) for path in first.glob("**/*.*")]
    assert len(names) == 6 + 2 * 6
    for name in (name for name in names if name.suffix != ".npz"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    # The fault is not in the device, so the script has to say that it is not there.
    (pair,) = (n for n, found in enumerate(wrong.sets, 1) if found.ops == ("shift", "sigmoid"))
    assert "hetero_lab" not in (first / f"fault_{pair}" / "show_fault.py").read_text()
    done = shown_fault(first / f"fault_{pair}")
    assert done.returncode == 0, done.stderr
    assert "The fault is not there." in done.stdout
    assert "shift (Add), sigmoid (Sigmoid)" in done.stdout
    # Another export into the directory replaces this one, and nothing else.
    (first / "fault_3").mkdir()
    (first / "fault_3" / "own.txt").write_text("not of an export")
    replace(wrong, sets=wrong.sets[:1]).export(first)
    assert sorted(path.name for path in first.glob("fault_*")) == ["fault_1", "fault_3"]
    assert len(hl.read_wrong(first).sets) == 1


def test_the_recording_of_the_course_is_of_a_combination():
    recorded = hl.read_wrong(datasets_dir() / "recordings" / "gpu_plugin_digits_inception")
    assert recorded.kind == "combination"
    (found,) = recorded.sets
    assert found.ops == ("head_parity/matmul", "head_parity/bias", "head_parity/sigmoid")
    assert recorded.proven
    mended = recorded.given.affinity.fix(ops=recorded.fix)
    assert mended == recorded.affinity
    mended.check_model(prepare("digits_inception").graph)
    # Its minimal model is whole: it runs, and on CPU makes what CPU makes of the three ops.
    compiled = ov.Core().compile_model(found.model, "CPU", F32)
    (parity,) = compiled(list(found.inputs)).values()
    assert parity.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("values", "code"), [(-1.0, 1), (1.0, 0)])
def test_one_output_of_two_that_is_nan_is_a_fault(tmp_path, monkeypatch, values, code):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # a code page without the name of the op
    x = op.parameter([1, 4], np.float32, name="x")
    Reproducer(
        symptom=Symptom.NAN, told="", model=ov.Model([op.sqrt(x), op.relu(x)], [x], "m"),
        inputs=[np.full((1, 4), values, np.float32)], wrong=CompileCall("CPU", {}), right=None,
        ops=[("√", "Sqrt")], outputs=["root", "relu"], why="",
        environment=current_environment(["CPU"], shared_core()),
        plugins={},
    ).write(tmp_path)  # fmt: skip
    done = shown_fault(tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    assert f"The fault is {'there' if code else 'not there'}." in done.stdout
