"""find_wrong tells the rounding and the range of narrow precisions from faults."""

from __future__ import annotations

import numpy as np
import pytest
from openvino import opset13 as op

from hetero_lab.debug.rounding import Rounding
from tests.debug.cases import case_of, constant, f32, fault, parameter, slow
from tests.proof import injected_faults as injected
from tests.proof.injected_faults import found_sets, search
from tests.random_models import arithmetic_model

SHAPE = (4, 64)
NORMAL = [np.random.default_rng(5).normal(size=SHAPE).astype(np.float32)]


def matmul(x, name):
    weights = np.random.default_rng(1).normal(size=(64, 64)) / 8
    return op.matmul(x, constant(weights), False, False, name=name)


@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_zeros_before_a_root_hide_no_fault(precision):
    x = parameter(SHAPE)
    node = op.sqrt(op.relu(x, name="relu"), name="sqrt")
    node = op.abs(op.tanh(node, name="tanh"), name="abs")
    together = fault("sqrt", "tanh")
    wrong = search(case_of([node], [x], NORMAL, together, precision=precision))
    assert found_sets(wrong) == {together.ops}
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
    x = parameter(SHAPE)
    wrong = search(case_of([make(x)], [x], NORMAL, precision="f16"))
    assert wrong.kind == "rounding"
    assert said in wrong.verdict
    assert "inf " not in wrong.verdict
    assert not wrong.proven
    assert wrong.before > 0.5


def test_a_fault_beside_what_leaves_the_range_is_found_and_all_goes_to_the_trusted_device():
    x = parameter(SHAPE)
    results = [log_of_an_exponential(x), op.abs(op.tanh(x, name="tanh"), name="abs")]
    wrong = search(case_of(results, [x], NORMAL, fault("tanh"), precision="f16"))
    assert found_sets(wrong) == {frozenset({"tanh"})}
    assert "With 1 op moved to CPU, the outputs are still off by inf." in wrong.verdict
    assert set(wrong.fix) == set(wrong.given.affinity.ops)
    assert wrong.proven
    assert wrong.after < 1e-6


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_a_long_sum_in_a_narrow_precision_is_rounding(precision):
    x = parameter((1, 2048))
    node = op.sin(op.cum_sum(x, op.constant(np.int64(1)), name="total"), name="sine")
    arrays = [np.random.default_rng(0).normal(size=(1, 2048)).astype(np.float32)]
    wrong = search(case_of([node], [x], arrays, precision=precision))
    assert wrong.kind in ("none", "rounding")


@pytest.mark.parametrize(
    "seed",
    [
        *(28, 120, 349, 403),
        slow(64),  # equal numbers, whose errors add up
        slow(1217),  # two running sums, which are rounded one way
        slow(1383),  # a running sum rounded towards zero
        slow(2161),  # divided by zeros of either sign
        slow(659),  # sines of large numbers, which can be any
    ],
)
@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_graphs_of_ops_that_amplify_rounding_are_not_called_wrong(seed, precision):
    model = arithmetic_model(seed)
    arrays = [np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)]
    inside = model.get_results(), model.get_parameters()
    wrong = search(case_of(*inside, arrays, precision=precision))
    assert wrong.kind in ("none", "rounding")


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
    weights = constant(rng.normal(size=(16, 16)))
    node = op.matmul(op.tanh(node, name="tanh"), weights, False, False, name="matmul")
    node = op.add(node, constant(rng.normal(size=(1, 16)) * 8))
    arrays = [rng.integers(0, 256, (1, 16)).astype(np.uint8)]
    wrong = search(case_of([node], [x], arrays, fault("matmul")))
    assert wrong.precisions == {injected.SUSPECT: "f32"}
    assert wrong.before < 0.3
    assert found_sets(wrong) == {frozenset({"matmul"})}
