"""The files of a search for faults: written, read back, and run without the lab."""

from __future__ import annotations

import json
import math
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
from tests.proof.injected_faults import search
from tests.scripts import shown_fault


def test_an_export_runs_without_the_lab(tmp_path):
    """The fault is not in the device, so the script has to say that it is not there."""
    wrong = search(chain_case(fault("shift", "sigmoid")))
    wrong.export(tmp_path)
    assert hl.Affinity.from_json(tmp_path / "affinity.json") == wrong.affinity
    flat = json.loads((tmp_path / "devices.json").read_text())
    assert {op: flat[op] for op in wrong.fix} == wrong.fix
    place = tmp_path / "fault_1"
    assert "hetero_lab" not in (place / "show_fault.py").read_text()
    done = shown_fault(place)
    assert done.returncode == 0, done.stderr
    assert "The fault is not there." in done.stdout
    assert "shift (Add), sigmoid (Sigmoid)" in done.stdout


def test_an_export_of_what_is_refused_says_so(monkeypatch, tmp_path):
    """What is refused is another fault than wrong numbers, in the report and in the script."""
    wrong = search(failing(chain_case(), monkeypatch, "refuse", "shift", "sigmoid"))
    assert "Refused: 'shift', 'sigmoid' together." in wrong.verdict
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


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path):
    search(chain_case(fault("tanh"), fault("negative"))).export(tmp_path)
    assert (tmp_path / "fault_2" / "model.xml").exists()
    (tmp_path / "fault_3").mkdir()
    (tmp_path / "fault_3" / "own.txt").write_text("not of an export")
    wrong = search(chain_case(fault("tanh")))
    wrong.export(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("fault_*")) == ["fault_1", "fault_3"]
    assert hl.read_wrong(tmp_path).verdict == wrong.verdict


def test_what_was_exported_can_be_read_back(tmp_path):
    faults = fault("shift", "sigmoid"), fault("tanh")
    wrong = replace(search(chain_case(*faults)), before=math.inf, after=math.nan, proven=False)
    assert len(wrong.sets) == 2
    wrong.export(tmp_path / "first")
    read = hl.read_wrong(tmp_path / "first")
    assert str(read) == str(wrong)
    assert read.fix == wrong.fix
    assert read.before == math.inf
    assert math.isnan(read.after)
    assert (read.given, read.placement) == (wrong.given, wrong.placement)
    pd.testing.assert_frame_equal(read.errors, wrong.errors)
    pd.testing.assert_frame_equal(read.culprits, wrong.culprits)
    for again, found in zip(read.sets, wrong.sets, strict=True):
        assert [a.tolist() for a in again.inputs] == [a.tolist() for a in found.inputs]
    # It is whole: what it writes is the same, the models and inputs included.
    read.export(tmp_path / "second")
    names = [path.relative_to(tmp_path / "first") for path in tmp_path.glob("first/**/*.*")]
    assert len(names) == 6 + 2 * 6
    for name in names:
        if name.suffix != ".npz":
            first, second = ((tmp_path / place / name) for place in ("first", "second"))
            assert first.read_bytes() == second.read_bytes(), name


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
