"""find_wrong on the real runtime, with faults that are put in at compile."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import openvino as ov
import pandas as pd
import pytest
from openvino import opset13 as op
from slices import sliced

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.model.read import prepare
from hetero_lab.samples.catalogue import datasets_dir
from tests.proof import injected_faults as injected
from tests.proof.faults import Fault

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def chain_case(*faults):
    """Return x → scale → tanh → shift → sigmoid → gain on the suspect, with faults in it."""
    hl.emulate(injected.SUSPECT)
    rng = np.random.default_rng(0)
    x = op.parameter([2, 8], np.float32, name="x")
    weights = op.constant(rng.normal(size=(8, 8)).astype(np.float32), name="weights")
    node = op.matmul(x, weights, False, False, name="matmul")
    node = op.tanh(node, name="tanh")
    node = op.add(node, op.constant(np.full((1, 8), 0.5, np.float32)), name="shift")
    node = op.sigmoid(node, name="sigmoid")
    node = op.negative(node, name="negative")
    prepared = injected.prepare(ov.Model([node], [x], "chain"))
    affinity = hl.Affinity.uniform(prepared.model, injected.SUSPECT)
    placement = hl.Placement(affinity, "placed", {injected.SUSPECT: F32}, direct=True)
    arrays = [rng.normal(size=(2, 8)).astype(np.float32)]
    return injected.Case(prepared, placement, "f32", arrays, faults)


def test_a_right_placement_is_right():
    wrong = injected.search(chain_case())
    assert (wrong.kind, wrong.fix, wrong.sets) == ("none", {}, ())
    assert wrong.affinity == wrong.given.affinity
    assert wrong.n_compiles == 1


def test_an_op_that_is_wrong_by_itself():
    wrong = injected.search(chain_case(Fault(frozenset({"tanh"}), "tanh")))
    assert wrong.kind == "op"
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.fix == {"tanh": "CPU"}
    assert wrong.proven
    assert wrong.after < 1e-5
    errors = wrong.errors.set_index("op")
    assert errors.loc["tanh", "isolated_error"] > 0.1
    assert errors.drop(index="tanh")["isolated_error"].max() < 1e-6
    # What comes before is right, what comes after is off with right inputs only.
    assert errors.loc["matmul", "accumulated_error"] < 1e-6
    assert errors.loc["negative", "accumulated_error"] == pytest.approx(wrong.before, rel=1e-3)


def test_ops_that_are_wrong_only_together():
    fault = Fault(frozenset({"shift", "sigmoid"}), "sigmoid")
    wrong = injected.search(chain_case(fault))
    assert wrong.kind == "combination"
    assert [found.ops for found in wrong.sets] == [("shift", "sigmoid")]
    assert wrong.sets[0].minimal
    assert len(wrong.fix) == 1
    assert wrong.fix.keys() < {"shift", "sigmoid"}
    assert wrong.proven
    errors = wrong.errors.set_index("op")
    assert errors["isolated_error"].max() < 1e-6
    assert errors.loc["sigmoid", "accumulated_error"] > 0.01


def test_ctrl_c_while_the_errors_are_measured_keeps_what_is_wrong():
    runs = chain_case(Fault(frozenset({"tanh"}), "tanh")).runs()
    placed = runs.placed

    def interrupted_at_last(placement, shown=()):
        if shown:  # the last run, with all tensors in sight
            raise KeyboardInterrupt
        return placed(placement)

    runs.placed = interrupted_at_last
    wrong = injected.search_wrong(runs, injected.Stopwatch.start(None))
    assert wrong.interrupted
    assert wrong.fix == {"tanh": "CPU"}
    assert wrong.proven
    assert wrong.errors["accumulated_error"].isna().all()
    assert any(note.startswith("Ctrl-C came before") for note in wrong.notes)


def test_a_tolerance_is_above_zero():
    with pytest.raises(ArgumentError, match="above 0"):
        hl.find_wrong("digits_inception", "CPU", tolerance=0.0)


def test_an_export_runs_without_the_lab(tmp_path):
    """The fault is not in the device, so the script has to say that it is not there."""
    wrong = injected.search(chain_case(Fault(frozenset({"shift", "sigmoid"}), "sigmoid")))
    wrong.export(tmp_path)
    assert hl.Affinity.from_json(tmp_path / "affinity.json") == wrong.affinity
    flat = json.loads((tmp_path / "devices.json").read_text())
    assert {op: flat[op] for op in wrong.fix} == wrong.fix
    place = tmp_path / "fault_1"
    script = (place / "show_fault.py").read_text()
    assert "hetero_lab" not in script
    done = subprocess.run(
        [sys.executable, place / "show_fault.py"], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert "The fault is not there." in done.stdout
    assert "shift (Add), sigmoid (Sigmoid)" in done.stdout


def test_an_export_of_what_is_refused_says_so(monkeypatch, tmp_path):
    """What is refused is another fault than wrong numbers, in the report and in the script."""
    for name, value in (("", "refuse"), ("_MAKER", "shift"), ("_READER", "sigmoid")):
        monkeypatch.setenv(f"FAULT{name}", value)
    command = (sys.executable, "-m", "tests.experiments.faults.crashing_worker")
    wrong = injected.search(replace(chain_case(), worker_command=command))
    assert "Refused: 'shift', 'sigmoid' together." in wrong.verdict
    wrong.export(tmp_path)
    assert hl.read_wrong(tmp_path).sets[0].refusal == wrong.sets[0].refusal
    place = tmp_path / "fault_1"
    report = (place / "README.md").read_text()
    assert "# Add + Sigmoid on ACC: refused" in report
    assert "no kernel for this" in report
    assert "wrong" not in report

    def shown():
        script = [sys.executable, place / "show_fault.py"]
        return subprocess.run(script, capture_output=True, text=True, cwd="/")

    # It was the worker that refused them.
    assert "The fault is not there." in shown().stdout
    fault = json.loads((place / "fault.json").read_text())
    fault["wrong"]["properties"] = {"INFERENCE_PRECISION_HINT": "nonsense"}
    (place / "fault.json").write_text(json.dumps(fault))
    done = shown()
    assert (done.returncode, done.stderr) == (1, "")
    assert "ACC raised: " in done.stdout
    assert "The fault is there." in done.stdout


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path):
    tanh, negative = (Fault(frozenset({op}), op) for op in ("tanh", "negative"))
    injected.search(chain_case(tanh, negative)).export(tmp_path)
    assert (tmp_path / "fault_2" / "model.xml").exists()
    (tmp_path / "fault_3").mkdir()
    (tmp_path / "fault_3" / "own.txt").write_text("not of an export")
    wrong = injected.search(chain_case(tanh))
    wrong.export(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("fault_*")) == ["fault_1", "fault_3"]
    assert hl.read_wrong(tmp_path).verdict == wrong.verdict


def test_what_was_exported_can_be_read_back(tmp_path):
    faults = Fault(frozenset({"shift", "sigmoid"}), "sigmoid"), Fault(frozenset({"tanh"}), "tanh")
    wrong = injected.search(chain_case(*faults))
    assert len(wrong.sets) == 2
    wrong.export(tmp_path / "first")
    read = hl.read_wrong(tmp_path / "first")
    assert str(read) == str(wrong)
    assert read.fix == wrong.fix
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


def test_errors_without_end_or_unknown_are_stored(tmp_path):
    wrong = injected.search(chain_case(Fault(frozenset({"tanh"}), "tanh")))
    unproven = replace(wrong, before=float("inf"), after=float("nan"), proven=False)
    unproven.export(tmp_path)
    read = hl.read_wrong(tmp_path)
    assert read.before == float("inf")
    assert math.isnan(read.after)


@pytest.mark.parametrize("first_seed", sliced([1000, 1050], quick=1))
def test_a_slice_of_the_injected_faults(first_seed):
    assert injected.run_faults(3, first_seed)
    assert injected.run_without(2, first_seed)


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_a_thousand_ops_need_forty_compiles_at_most(together):
    assert injected.run_big(together)
