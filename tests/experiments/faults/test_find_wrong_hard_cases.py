"""find_wrong on models and devices that get in the way of a search."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, MeasurementError, PlanError
from hetero_lab.experiments.faults import refusals
from hetero_lab.planning.cost_model import BoundaryCost, CostModel, Unit
from tests import small_models
from tests.experiments.faults.test_find_wrong import F32, chain_case
from tests.proof import injected_faults as injected
from tests.proof.faults import Fault

CRASHING = (sys.executable, "-m", "tests.experiments.faults.crashing_worker")


def case_of(model, arrays, *faults):
    """Return a model on the suspect as a whole, in f32, with faults in it."""
    hl.emulate(injected.SUSPECT)
    prepared = injected.prepare(model)
    affinity = hl.Affinity.uniform(prepared.model, injected.SUSPECT)
    placement = hl.Placement(affinity, "placed", {injected.SUSPECT: F32}, direct=True)
    return injected.Case(prepared, placement, "f32", arrays, faults)


def crashing(case, monkeypatch, fault, maker, reader):
    """Let the suspect fail where ``reader`` reads what ``maker`` makes."""
    for name, value in (("", fault), ("_MAKER", maker), ("_READER", reader)):
        monkeypatch.setenv(f"FAULT{name}", value)
    return replace(case, worker_command=CRASHING)


# What a model is.


@pytest.mark.parametrize("target", ["after", "sum"])
def test_a_fault_beside_and_inside_a_stateful_path(target):
    arrays = [np.float32([[1, -2, 3, -4]])]
    wrong = injected.search(
        case_of(small_models.stateful(), arrays, Fault(frozenset({target}), target))
    )
    path = {"read", "sum", "middle", "assign"}
    # Ops of a stateful path cannot be apart, so they are one suspect.
    assert set(wrong.culprits["op"]) == ({"after"} if target == "after" else path)
    assert wrong.proven
    assert set(wrong.fix.values()) == {"CPU"}
    assert set(wrong.fix) == set(wrong.culprits["op"])


def quantised():
    """Build two int8 matmuls with an activation between, as quantisation leaves them."""
    rng = np.random.default_rng(0)
    x = node = op.parameter([1, 64], np.float32, name="x")
    for layer in range(2):
        low, high = op.constant(np.float32(-3)), op.constant(np.float32(3))
        node = op.fake_quantize(node, low, high, low, high, 255, name=f"quantise{layer}")
        weights = op.constant(rng.integers(-127, 128, (64, 64)).astype(np.int8))
        scaled = op.multiply(op.convert(weights, "f32"), op.constant(np.float32(1e-3)))
        node = op.matmul(node, scaled, False, True, name=f"matmul{layer}")
        node = op.tanh(node, name=f"tanh{layer}")
    return ov.Model([op.negative(node, name="negative")], [x], "quantised")


def test_a_quantised_model_is_right_in_int8_and_its_fault_is_found():
    arrays = [np.random.default_rng(1).normal(size=(1, 64)).astype(np.float32)]
    right = injected.search(case_of(quantised(), arrays))
    assert right.kind in ("none", "rounding")
    assert right.sets == ()
    wrong = injected.search(case_of(quantised(), arrays, Fault(frozenset({"tanh0"}), "tanh0")))
    assert list(wrong.culprits["op"]) == ["tanh0"]
    assert wrong.precisions == {injected.SUSPECT: "i8"}
    assert wrong.proven


def test_what_is_not_a_number_in_the_reference_is_said_and_the_rest_searched():
    x = op.parameter([1, 4], np.float32, name="x")
    log = op.log(op.relu(x, name="relu"), name="log")
    nan = op.sqrt(log, name="sqrt")
    node = op.sigmoid(op.tanh(x, name="tanh"), name="sigmoid")
    results = [op.result(op.abs(nan, name="abs"), name="nan"), op.result(node, name="good")]
    arrays = [np.float32([[-2, 0.5, 1, 2]])]
    fault = Fault(frozenset({"tanh"}), "tanh")
    wrong = injected.search(case_of(ov.Model(results, [x], "m"), arrays, fault))
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.proven
    assert any("in output 'nan'" in note for note in wrong.notes)
    assert any(note.startswith("'abs' read NaN already") for note in wrong.notes)
    assert np.isnan(wrong.errors.set_index("op")["isolated_error"]["abs"])


def test_a_reference_without_a_number_is_refused_also_where_both_agree():
    x = op.parameter([1, 4], np.float32, name="x")
    model = ov.Model([op.result(op.log(x, name="log"), name="nan")], [x], "m")
    hl.emulate(injected.SUSPECT)
    with pytest.raises(MeasurementError, match=r"'nan'\. Give inputs="):
        hl.find_wrong(model, injected.SUSPECT, inputs=[np.full((1, 4), -1, np.float32)])


def test_a_number_beside_what_is_not_one_is_enough_of_a_reference():
    """The only floating-point output is NaN, but there are indices beside it."""
    x = op.parameter([1, 4], np.float32, name="x")
    largest = op.topk(op.abs(x, name="abs"), op.constant(np.int64(2)), 1, "max", "value")
    results = [
        op.result(op.log(x, name="log"), name="nan"),
        op.result(largest.output(1), name="indices"),
    ]
    arrays = [np.float32([[-1, -2, -0.5, -3]])]
    fault = Fault(frozenset({"abs"}), "abs")
    wrong = injected.search(case_of(ov.Model(results, [x], "m"), arrays))
    assert wrong.kind == "none"
    wrong = injected.search(case_of(ov.Model(results, [x], "m"), arrays, fault))
    assert list(wrong.culprits["op"]) == ["abs"]


def test_a_model_that_is_random_by_itself_is_still_searched():
    """The fault is found although no output can be compared."""
    x = op.parameter([2, 8], np.float32, name="x")
    size, low, high = op.constant(np.array([2, 8])), np.float32(0), np.float32(1)
    noise = op.random_uniform(size, op.constant(low), op.constant(high), "f32")
    noise.set_friendly_name("noise")
    node = op.add(op.tanh(x, name="tanh"), noise, name="sum")
    arrays = [np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)]
    fault = Fault(frozenset({"tanh"}), "tanh")
    right = injected.search(case_of(ov.Model([node], [x], "m"), arrays))
    assert (right.kind, right.sets) == ("rounding", ())
    wrong = injected.search(case_of(ov.Model([node], [x], "m"), arrays, fault))
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.fix == {"tanh": "CPU"}
    assert not wrong.proven
    assert "not proven" in wrong.verdict
    assert any("random by itself ('noise')" in note for note in wrong.notes)


# What the way around it costs.


def costs_of(case, on_cpu_us, boundary_us, other="CPU"):
    """Return a cost model by which every op takes 10 µs on the suspect."""
    graph = case.prepared.graph
    devices = (injected.SUSPECT, other)
    names = [graph.ops[index].name for index in graph.placeable]
    return CostModel(
        graph=graph,
        devices=devices,
        units=tuple(Unit((name,), (10.0, on_cpu_us.get(name, 30.0))) for name in names),
        boundaries=dict.fromkeys([devices, devices[::-1]], BoundaryCost(boundary_us)),
        subgraph_us=dict.fromkeys(devices, 1.0),
    )


@pytest.mark.parametrize(("dear", "moved"), [("shift", "sigmoid"), ("sigmoid", "shift")])
def test_with_costs_the_cheaper_op_of_a_combination_moves(dear, moved):
    case = chain_case(Fault(frozenset({"shift", "sigmoid"}), "sigmoid"))
    costs = costs_of(case, {dear: 500.0}, boundary_us=5.0)
    wrong = injected.search(case, costs)
    assert wrong.fix == {moved: "CPU"}
    assert wrong.proven
    assert costs.predict_us(wrong.affinity) == 4 * 10 + 30 + 2 * 5 + 3 * 1


def test_with_costs_more_may_move_than_is_wrong():
    """Hand-overs are so dear that all that comes after goes to CPU as well."""
    case = chain_case(Fault(frozenset({"tanh"}), "tanh"))
    wrong = injected.search(case, costs_of(case, {}, boundary_us=100.0))
    # 10 + 100 + 4 × 30 and two subgraphs, or 5 × 30 and one of them: the latter.
    assert wrong.fix == dict.fromkeys(["matmul", "tanh", "shift", "sigmoid", "negative"], "CPU")
    assert wrong.proven
    wrong = injected.search(case, costs_of(case, {"matmul": 500.0}, boundary_us=100.0))
    assert wrong.fix == dict.fromkeys(["tanh", "shift", "sigmoid", "negative"], "CPU")
    assert wrong.proven


def test_costs_of_another_model_or_without_the_trusted_device_are_refused():
    case = chain_case()
    costs = costs_of(case, {}, boundary_us=5.0, other="GPU")
    with pytest.raises(PlanError, match="not in it"):
        hl.find_wrong("digits_inception", injected.SUSPECT, costs=costs)
    with pytest.raises(PlanError, match="does not know 'CPU'"):
        hl.find_wrong(case.prepared.model, injected.SUSPECT, costs=costs)


# What a device does.


@pytest.mark.slow  # each crash starts a worker again
def test_a_device_that_crashes_on_a_cut_is_named_and_the_search_goes_on(monkeypatch):
    """The worker is killed where sigmoid is fed from outside, as it is when cut out."""
    case = chain_case(Fault(frozenset({"tanh"}), "tanh"))
    wrong = injected.search(crashing(case, monkeypatch, "crash", "Parameter", "sigmoid"))
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.proven
    (note,) = wrong.notes
    assert note.startswith("ACC refuses to run 'sigmoid' apart from the rest")
    assert "SIGSEGV" in note


@pytest.mark.parametrize(
    ("fault", "said"),
    [pytest.param("crash", "SIGSEGV", marks=pytest.mark.slow), ("refuse", "no kernel")],
)
def test_a_placement_that_does_not_run_is_torn_apart_where_it_fails(monkeypatch, fault, said):
    case = crashing(chain_case(), monkeypatch, fault, "shift", "sigmoid")
    wrong = injected.search(case)
    assert wrong.kind == "combination"
    assert [found.ops for found in wrong.sets] == [("shift", "sigmoid")]
    assert "The placement does not run" in wrong.verdict
    assert any(said in note for note in wrong.notes)
    assert len(wrong.fix) == 1
    assert wrong.proven
    assert wrong.after < 1e-5


def test_a_virtual_device_is_refused():
    with pytest.raises(ArgumentError, match="each of its devices by itself: CPU"):
        hl.find_wrong("digits_inception", "MULTI:CPU")


def test_refused_ops_are_found_and_moved(monkeypatch):
    for name, value in (("MAKER", "shift"), ("READER", "sigmoid"), ("DEVICE", injected.SUSPECT)):
        monkeypatch.setenv(f"FAULT_{name}", value)
    worker = functools.partial(refusals.emulating_worker, command=CRASHING)
    monkeypatch.setattr(refusals, "emulating_worker", worker)
    case = chain_case()
    found = hl.find_refused(case.prepared.model, case.placement, progress=False)
    assert [(each.device, each.ops) for each in found.refusals] == [("ACC", ("shift", "sigmoid"))]
    assert "no kernel for this" in str(found)
    assert found.fix == {"shift": "CPU", "sigmoid": "CPU"}
    assert dict(found.affinity) == dict(case.placement.affinity.fix(ops=found.fix))
