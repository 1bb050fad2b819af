"""find_wrong where faults overlap, shapes depend on data, outputs are random, or devices hang."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import precisions
from hetero_lab.experiments.faults import placed_runs
from hetero_lab.experiments.faults.find_wrong import search_wrong
from hetero_lab.placement.partition import predict
from hetero_lab.runtime.timing import Stopwatch
from tests.experiments.faults.test_find_wrong import chain_case
from tests.experiments.faults.test_find_wrong_hard_cases import case_of, crashing
from tests.experiments.faults.test_find_wrong_precisions import case_of as case_in
from tests.proof import injected_faults as injected
from tests.proof.faults import Fault

NORMAL = [np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def fault(*ops):
    return Fault(frozenset(ops), ops[-1])


def parameter(shape=(2, 8)):
    return op.parameter(list(shape), np.float32, name="x")


# Sets that share ops.


@pytest.mark.parametrize(
    "sets",
    [
        [("matmul", "tanh"), ("tanh", "shift")],
        slow([("matmul", "tanh"), ("matmul", "shift"), ("matmul", "negative")]),
        slow([("matmul", "tanh"), ("tanh", "shift"), ("shift", "sigmoid")]),
        slow([("matmul", "tanh", "shift"), ("tanh", "sigmoid")]),
    ],
)
def test_combinations_that_share_ops_are_all_found_and_gone_around(sets):
    case = chain_case(*(fault(*ops) for ops in sets))
    wrong = injected.search(case)
    assert injected.found_sets(wrong) == {frozenset(ops) for ops in sets}
    assert all(found.minimal for found in wrong.sets)
    assert wrong.proven
    assert all(set(ops) & set(wrong.fix) for ops in sets)
    outputs, _ = case.runs().placed(wrong.placement)
    expected, _ = case.runs(()).placed(case.placement)
    np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-5)


# The way around.


def long_chain(n=24):
    x = node = parameter()
    for index in range(n):
        node = op.negative(node, name=f"op{index}")
    return ov.Model([node], [x], "chain")


@pytest.mark.parametrize(
    ("target", "fix", "n_subgraphs"),
    [
        ("op22", {"op22", "op23"}, 2),  # rather than a subgraph of op23 alone
        slow("op1", {"op0", "op1"}, 2),
        slow("op12", {"op12"}, 3),  # half of the model is not moved for that
    ],
)
def test_without_costs_neighbours_move_along_where_that_leaves_fewer_subgraphs(
    target, fix, n_subgraphs
):
    case = case_of(long_chain(), NORMAL, fault(target))
    wrong = injected.search(case)
    assert injected.found_sets(wrong) == {frozenset({target})}
    assert set(wrong.fix) == fix
    assert predict(case.prepared.graph, wrong.affinity).n_subgraphs == n_subgraphs
    assert wrong.proven


@pytest.mark.slow
def test_without_costs_the_cut_is_where_the_fewest_bytes_are_handed_over():
    """The wrong op makes a wide tensor of a narrow one, and the next op narrows it again."""
    rng = np.random.default_rng(0)
    x = node = parameter((2, 4))
    for index in range(20):
        node = op.negative(node, name=f"before{index}")
    wide = op.constant(rng.normal(size=(4, 64)).astype(np.float32))
    narrow = op.constant(rng.normal(size=(64, 4)).astype(np.float32))
    node = op.matmul(node, wide, False, False, name="wide")
    node = op.matmul(node, narrow, False, False, name="narrow")
    for index in range(10):
        node = op.negative(node, name=f"after{index}")
    arrays = [rng.normal(size=(2, 4)).astype(np.float32)]
    case = case_of(ov.Model([node], [x], "m"), arrays, fault("wide"))
    wrong = injected.search(case)
    assert set(wrong.fix) == {"wide", "narrow"}
    assert predict(case.prepared.graph, wrong.affinity).boundary_bytes == 2 * 2 * 4 * 4
    assert wrong.proven


# Errors along the model.


def test_errors_are_of_the_whole_model_and_jump_where_the_fault_is():
    case = chain_case(fault("shift", "sigmoid"))
    homes = {"matmul": "CPU", "negative": "CPU"}
    mixed = case.placement.affinity.fix(ops=homes)
    f32 = {device: {"INFERENCE_PRECISION_HINT": "f32"} for device in (injected.SUSPECT, "CPU")}
    placement = hl.Placement(mixed, "mixed", f32)
    wrong = injected.search(replace(case, placement=placement))
    errors = wrong.errors.set_index("op")
    assert list(errors.index) == ["matmul", "tanh", "shift", "sigmoid", "negative"]
    assert list(errors.index[errors["jumps"]]) == ["sigmoid"]
    assert errors["isolated_error"].isna().tolist() == [True, False, False, False, True]
    assert errors["accumulated_error"]["matmul"] < 1e-6
    assert errors["accumulated_error"]["negative"] == pytest.approx(wrong.before, rel=1e-3)


@pytest.mark.slow
def test_a_second_fault_jumps_as_well():
    wrong = injected.search(chain_case(fault("matmul"), fault("shift", "sigmoid")))
    errors = wrong.errors.set_index("op")
    assert list(errors.index[errors["jumps"]]) == ["matmul", "sigmoid"]


# What is random.


def random_beside():
    x = parameter()
    size, low, high = op.constant(np.array([2, 8])), np.float32(0), np.float32(1)
    noise = op.random_uniform(size, op.constant(low), op.constant(high), "f32")
    noise.set_friendly_name("noise")
    tanh = op.tanh(x, name="tanh")
    good = op.abs(op.sigmoid(tanh, name="sigmoid"), name="abs")
    results = [op.result(op.add(tanh, noise, name="sum"), name="rand"), op.result(good)]
    return ov.Model(results, [x], "m")


@pytest.mark.parametrize("ops", [("tanh",), slow(("sigmoid", "abs"))])
def test_an_output_beside_a_random_one_is_compared_and_mended(ops):
    wrong = injected.search(case_of(random_beside(), NORMAL, fault(*ops)))
    assert injected.found_sets(wrong) == {frozenset(ops)}
    assert 0.05 < wrong.before < 1
    assert wrong.proven
    assert wrong.after < 1e-6
    assert any("so 1 of its outputs cannot be compared" in note for note in wrong.notes)


@pytest.mark.slow
def test_an_op_that_only_a_random_output_shows_is_found_and_nothing_is_proven():
    wrong = injected.search(case_of(random_beside(), NORMAL, fault("sum")))
    assert injected.found_sets(wrong) == {frozenset({"sum"})}
    assert wrong.verdict.startswith("The outputs that can be compared are right.")
    assert not wrong.proven
    assert "not proven" in wrong.verdict


# Shapes that depend on data.


def of_dynamic_shape(threshold=0.0):
    x = parameter((4, 16))
    above = op.greater(x, op.constant(np.float32(threshold)))
    where = op.transpose(op.non_zero(above, "i32"), op.constant(np.array([1, 0])), name="where")
    node = op.gather_nd(op.exp(x, name="exp"), where, 0, name="gather")
    node = op.log(op.tanh(node, name="tanh"), name="log")
    return ov.Model([op.negative(node, name="negative")], [x], "dynamic")


@pytest.mark.parametrize("precision", [slow("f32"), "f16"])
@pytest.mark.parametrize("faults", [[], slow([fault("tanh")])])
def test_beside_a_shape_that_depends_on_data(precision, faults):
    if precision not in precisions("CPU", core=shared_core()):
        pytest.skip(f"the CPU here does not compute in {precision}")
    arrays = [np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)]
    model = of_dynamic_shape()
    results = [result.input_value(0) for result in model.get_results()]
    case = case_in(results, model.get_parameters(), arrays, precision, *faults)
    wrong = injected.search(case)
    assert injected.found_sets(wrong) == {each.ops for each in faults}
    assert wrong.proven
    if faults:
        assert wrong.sets[0].damage == pytest.approx(wrong.before, rel=0.01)
        assert wrong.errors.set_index("op")["jumps"]["tanh"]
    else:
        assert wrong.kind in ("none", "rounding")


@pytest.mark.slow
def test_a_shape_that_rounding_changes_is_no_fault():
    """Numbers at the threshold itself: what rounding makes of them decides on the shape."""
    if "f16" not in precisions("CPU", core=shared_core()):
        pytest.skip("the CPU here does not compute in f16")
    arrays = [np.full((4, 16), 0.1, np.float32)]
    arrays[0][0] = 0.5
    x = parameter((4, 16))
    log = op.log(x, name="log")
    above = op.greater(log, op.constant(np.log(np.float32(0.1))), name="above")
    where = op.transpose(op.non_zero(above, "i32"), op.constant(np.array([1, 0])), name="where")
    node = op.abs(op.gather_nd(op.exp(x, name="exp"), where, 0, name="gather"), name="abs")
    wrong = injected.search(case_in([node], [x], arrays, "f16"))
    assert wrong.sets == ()


# Tolerances.


def test_an_output_is_as_exact_as_what_it_depends_on():
    """A fault of 3 % in f32 is found beside another output in bf16, whose tolerance is 15 %."""
    if "bf16" not in precisions("CPU", core=shared_core()):
        pytest.skip("the CPU here does not compute in bf16")
    x = parameter()
    shift = op.constant(np.full((1, 8), -0.75, np.float32))
    one = op.add(op.tanh(x, name="tanh"), shift, name="shift")
    other = op.abs(op.sigmoid(x, name="sigmoid"), name="abs")
    hl.emulate(injected.SUSPECT)
    hl.emulate("NARROW")
    prepared = injected.prepare(ov.Model([one, other], [x], "m"))
    affinity = hl.Affinity.uniform(prepared.model, injected.SUSPECT)
    affinity = affinity.fix(ops=dict.fromkeys(["sigmoid", "abs"], "NARROW"))
    hints = {injected.SUSPECT: "f32", "NARROW": "bf16"}
    own = {device: {"INFERENCE_PRECISION_HINT": hint} for device, hint in hints.items()}
    placement = hl.Placement(affinity, "two", own)
    case = injected.Case(prepared, placement, "bf16", NORMAL, (fault("shift"),))
    wrong = injected.search(case)
    assert 0.01 < wrong.before < 0.3 * 0.15
    assert injected.found_sets(wrong) == {frozenset({"shift"})}


# Devices that hang.


@pytest.mark.slow  # it waits for a worker that hangs
def test_a_device_that_hangs_is_given_a_part_of_the_budget(monkeypatch):
    case = crashing(chain_case(fault("tanh")), monkeypatch, "hang", "Parameter", "sigmoid")
    # A quarter of the budget, several times over, would be long for a test.
    monkeypatch.setattr(placed_runs, "_SHARE_OF_BUDGET", 0.0125)
    watch = Stopwatch.start(400.0)
    wrong = search_wrong(case.runs(watch=watch), watch)
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.proven
    assert wrong.complete
    (note,) = wrong.notes
    assert note.startswith("ACC refuses to run 'sigmoid' apart from the rest")
    assert "timed out after" in note
