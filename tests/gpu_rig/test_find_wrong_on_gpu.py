"""find_wrong on OpenVINO's own GPU plugin, whose faults nobody has put there."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from tests.scripts import alone, shown_fault


def on_gpu(model, precision):
    return alone(model, "GPU", {"INFERENCE_PRECISION_HINT": precision})


def shows_its_fault(directory):
    """Run an exported script; it does not import the lab."""
    done = shown_fault(directory)
    assert "hetero_lab" not in (directory / "show_fault.py").read_text()
    assert done.returncode in (0, 1), done.stderr
    return "The fault is there." in done.stdout


@pytest.mark.timeout(600)
def test_the_head_of_digits_inception_is_wrong_in_combination(tmp_path):
    model = hl.load("digits_inception")
    wrong = hl.find_wrong(model, on_gpu(model, "f32"), budget_s=None, progress=False)
    assert wrong.kind == "combination"
    (found,) = wrong.sets
    assert found.ops == ("head_parity/matmul", "head_parity/bias", "head_parity/sigmoid")
    assert found.minimal
    # Each by itself is right, and to look inside would undo the fusion.
    assert wrong.culprits["isolated_error"].max() < 1e-5
    assert wrong.culprits["accumulated_error"].max() > 2e-3
    assert wrong.before > 2e-3
    assert wrong.proven
    assert wrong.after < 1e-3
    assert len(wrong.fix) == 1
    wrong.export(tmp_path)
    assert shows_its_fault(tmp_path / "fault_1")


def test_a_chain_of_unary_ops_in_f16(tmp_path):
    x = op.parameter([1, 4, 6, 6], np.float32, name="x")
    node = op.tanh(op.relu(x, name="relu"), name="tanh")
    node = op.floor(op.sqrt(node, name="sqrt"), name="floor")
    model = hl.load(ov.Model([op.sigmoid(node, name="sigmoid")], [x], "chain"))
    wrong = hl.find_wrong(model, on_gpu(model, "f16"), progress=False)
    assert wrong.kind == "combination"
    assert ("sqrt", "floor") in [found.ops for found in wrong.sets]
    assert wrong.proven
    wrong.export(tmp_path)
    number = [found.ops for found in wrong.sets].index(("sqrt", "floor")) + 1
    assert shows_its_fault(tmp_path / f"fault_{number}")


def test_an_op_on_a_tensor_of_rank_nine_is_wrong_by_itself(tmp_path):
    x = op.parameter([2] * 9, np.float32, name="x")
    model = hl.load(ov.Model([op.relu(x, name="relu")], [x], "rank9"))
    wrong = hl.find_wrong(model, on_gpu(model, "f32"), isolate=True, progress=False)
    assert wrong.kind == "op"
    assert wrong.fix == {"relu": "CPU"}
    assert wrong.proven
    wrong.export(tmp_path)
    assert shows_its_fault(tmp_path / "fault_1")


def test_an_op_that_crashes_the_device_is_named_and_the_search_goes_on():
    """The plugin ends the process at a transpose of rank nine."""
    x = op.parameter([32, 2, 2, 2, 2], np.float32, name="x")
    node = op.reshape(op.relu(x, name="relu"), op.constant([2] * 9), False, name="up")
    node = op.transpose(node, op.constant(np.arange(9)[::-1].copy()), name="transpose")
    node = op.negative(op.reshape(node, op.constant([-1]), False, name="down"), name="negative")
    model = hl.load(ov.Model([node], [x], "rank9"))
    wrong = hl.find_wrong(model, on_gpu(model, "f32"), isolate=True, progress=False)
    assert wrong.kind in ("op", "combination")
    assert "transpose" in set(wrong.culprits["op"])
    assert {"relu", "negative"}.isdisjoint(wrong.culprits["op"])
    assert "The placement does not run" in wrong.verdict
    assert wrong.proven
    assert wrong.after < 1e-5
