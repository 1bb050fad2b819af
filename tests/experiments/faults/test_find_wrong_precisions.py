"""find_wrong tells the rounding and the range of narrow precisions from faults."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import precisions
from hetero_lab.runtime.rounding import Rounding, drawn_by_value
from tests.proof import injected_faults as injected
from tests.proof.faults import Fault

RNG = np.random.default_rng(5)
NORMAL = [RNG.normal(size=(4, 64)).astype(np.float32)]


def f32(values):
    return np.array(values, np.float32)


def constant(value):
    return op.constant(np.float32(value))


def matmul(x, name):
    weights = np.random.default_rng(1).normal(size=(64, 64)) / 8
    return op.matmul(x, op.constant(weights.astype(np.float32)), False, False, name=name)


def case_of(nodes, inputs, arrays, precision, *faults):
    """Return a model on the suspect as a whole, in a precision, with faults in it."""
    if precision not in precisions("CPU", core=shared_core()):
        pytest.skip(f"the CPU here does not compute in {precision}")
    hl.emulate(injected.SUSPECT)
    prepared = injected.prepare(ov.Model(nodes, inputs, "m"))
    affinity = hl.Affinity.uniform(prepared.model, injected.SUSPECT)
    hint = {injected.SUSPECT: {"INFERENCE_PRECISION_HINT": precision}}
    placement = hl.Placement(affinity, "placed", hint, direct=True)
    return injected.Case(prepared, placement, precision, arrays, faults)


def parameter(shape=(4, 64), kind: type = np.float32):
    return op.parameter(list(shape), kind, name="x")


@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_zeros_before_a_root_hide_no_fault(precision):
    x = parameter()
    node = op.sqrt(op.relu(x, name="relu"), name="sqrt")
    node = op.abs(op.tanh(node, name="tanh"), name="abs")
    fault = Fault(frozenset({"sqrt", "tanh"}), "tanh")
    wrong = injected.search(case_of([node], [x], NORMAL, precision, fault))
    assert injected.found_sets(wrong) == {fault.ops}
    assert wrong.proven


def log_of_a_sigmoid(x):
    node = op.multiply(matmul(x, "matmul"), constant(8), name="scale")
    return op.log(op.sigmoid(node, name="sigmoid"), name="log")


def log_of_an_exponential(x):
    node = op.multiply(x, constant(6), name="scale")
    return op.log(op.exp(node, name="exp"), name="log")


def norm_of_large_values(x):
    large = op.multiply(matmul(x, "matmul"), constant(300), name="large")
    square = op.multiply(large, large, name="square")
    mean = op.reduce_mean(square, op.constant(np.array([1])), True, name="mean")
    return op.divide(large, op.sqrt(mean, name="root"), name="norm")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (log_of_a_sigmoid, "'log' turns numbers that f16 cannot tell apart into infinity or NaN"),
        (log_of_an_exponential, "'exp' leaves the range of f16"),
        (norm_of_large_values, "'square' leaves the range of f16"),
    ],
)
def test_what_leaves_the_range_of_a_precision_is_no_fault_and_not_right(make, said):
    x = parameter()
    wrong = injected.search(case_of([make(x)], [x], NORMAL, "f16"))
    assert wrong.kind == "rounding"
    assert said in wrong.verdict
    assert "inf " not in wrong.verdict
    assert not wrong.proven
    assert wrong.before > 0.5


def test_a_fault_beside_what_leaves_the_range_is_found_and_all_goes_to_the_trusted_device():
    x = parameter()
    results = [log_of_an_exponential(x), op.abs(op.tanh(x, name="tanh"), name="abs")]
    fault = Fault(frozenset({"tanh"}), "tanh")
    wrong = injected.search(case_of(results, [x], NORMAL, "f16", fault))
    assert injected.found_sets(wrong) == {fault.ops}
    assert "With 1 op moved to CPU, the outputs are still off by inf." in wrong.verdict
    assert set(wrong.fix) == set(wrong.given.affinity.ops)
    assert wrong.proven
    assert wrong.after < 1e-6


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_a_long_sum_in_a_narrow_precision_is_rounding(precision):
    x = parameter((1, 2048))
    node = op.sin(op.cum_sum(x, op.constant(np.int64(1)), name="total"), name="sine")
    arrays = [np.random.default_rng(0).normal(size=(1, 2048)).astype(np.float32)]
    wrong = injected.search(case_of([node], [x], arrays, precision))
    assert wrong.kind in ("none", "rounding")


def test_graphs_of_ops_that_amplify_rounding_are_not_called_wrong():
    assert injected.run_narrow(1, first_seed=28)
    assert injected.run_narrow(1, first_seed=120)
    assert injected.run_narrow(1, first_seed=349)
    assert injected.run_narrow(1, first_seed=403)


@pytest.mark.slow
def test_graphs_whose_rounding_depends_on_more_are_not_called_wrong():
    assert injected.run_narrow(1, first_seed=64)  # equal numbers, whose errors add up
    assert injected.run_narrow(1, first_seed=1217)  # two running sums, which are rounded one way
    assert injected.run_narrow(1, first_seed=1383)  # a running sum rounded towards zero
    assert injected.run_narrow(1, first_seed=2161)  # divided by zeros of either sign
    assert injected.run_narrow(1, first_seed=659)  # sines of large numbers, which can be any


@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_equal_values_are_rounded_alike(precision):
    table = np.random.default_rng(0).uniform(-1, 1, 2**16)
    values = f32([0.3, 1.7, -0.3, 0.3, 1.7, 5000.0])
    drawn = drawn_by_value(values, precision, table, shift=7)
    assert drawn[0] == drawn[3] == -drawn[2]
    assert drawn[1] == drawn[4]
    assert len({drawn[0], drawn[1], drawn[5]}) == 3


def test_as_many_elements_may_become_infinite_as_in_a_sample_wherever_they_are():
    reference = f32([1, 2, 3, 4])
    rounding = Rounding(0.1, np.array([True, False, False, False]), most_odd=1)
    assert rounding.explains(f32([np.inf, 2, np.nan, 4.05]), reference)
    assert not rounding.explains(f32([1, 2, np.nan, np.inf]), reference)
    assert not rounding.explains(f32([1, 2, np.nan, 4.2]), reference)


def test_an_image_in_8_bits_does_not_make_f32_coarse():
    x = parameter((1, 16), np.uint8)
    rng = np.random.default_rng(1)
    node = op.multiply(op.convert(x, "f32"), constant(1 / 255), name="scale")
    weights = op.constant(rng.normal(size=(16, 16)).astype(np.float32))
    node = op.matmul(op.tanh(node, name="tanh"), weights, False, False, name="matmul")
    node = op.add(node, op.constant((rng.normal(size=(1, 16)) * 8).astype(np.float32)))
    arrays = [rng.integers(0, 256, (1, 16)).astype(np.uint8)]
    fault = Fault(frozenset({"matmul"}), "matmul")
    wrong = injected.search(case_of([node], [x], arrays, "f32", fault))
    assert wrong.precisions == {injected.SUSPECT: "f32"}
    assert wrong.before < 0.3
    assert injected.found_sets(wrong) == {fault.ops}
