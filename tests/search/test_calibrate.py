"""Calibrating and optimising on the real runtime; how well is the benchmarks' business."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import openvino as ov
import pytest
from hand_costs import costs_by_op, flat_costs
from planning.random_costs import fork
from small_models import constant_only, convolutions, passed_through

import hetero_lab as hl
from hetero_lab import clock
from hetero_lab.errors import DeviceError, MeasurementError, PlanError
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning.simplify import simplify_graph
from hetero_lab.results.sweep_row import BUDGET_ENDED
from hetero_lab.search import (
    calibrate as calibrating,
    observations as observing,
    optimize as optimizing,
)
from hetero_lab.views.graph_drawing import placement_graph
from hetero_lab.views.result_views import contents_of

QUICK: dict[str, Any] = {"isolate": False, "progress": False}
F32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


@pytest.fixture(scope="module")
def digits():
    return hl.load(convolutions(layers=4))


@pytest.fixture(scope="module")
def few_placements():
    """Without a budget, measure a few placements only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrating, "MOST_FITTED", 6)
        patch.setattr(calibrating, "MOST_VALIDATED", 2)
        patch.setattr(observing, "_ENOUGH_S", 0.05)
        patch.setattr(optimizing, "ROUNDS", 2)
        yield


@pytest.fixture(autouse=True)
def acc():
    """Each test begins with the same device, whatever one before made of it."""
    hl.emulate("ACC", unsupported={"Softmax"})


@pytest.fixture(scope="module")
def costs(digits, few_placements):
    hl.emulate("ACC", unsupported={"Softmax"})
    return hl.calibrate(digits, ["ACC", "CPU"], budget_s=None, device_properties=F32, **QUICK)


def test_a_cost_model_holds_what_was_measured(costs, digits, tmp_path):
    assert costs.devices == ("ACC", "CPU")
    assert {op for unit in costs.units for op in unit.ops} == {
        costs.graph.ops[i].name for i in costs.graph.placeable
    }
    assert len(costs.validation) == 2
    assert costs.notes == ()
    assert dict(costs.emulated) == {"ACC": "CPU"}
    assert (costs.validation["measured_us"] > 0).all()
    assert re.search(r"\(emulated on CPU, b?f(16|32), default\)", costs.environment["ACC"])
    assert costs.device_properties == F32
    softmax = next(op.name for op in costs.graph if op.type == "Softmax")
    assert softmax not in costs.supports("ACC")
    assert softmax in costs.supports("CPU")
    # Convolution and bias are one unit: both devices fuse them.
    assert max(len(unit.ops) for unit in costs.units) > 1
    costs.to_json(tmp_path / "costs.json")
    again = hl.CostModel.from_json(tmp_path / "costs.json")
    cpu = hl.Affinity.uniform(digits, "CPU")
    assert again.predict_us(cpu) == costs.predict_us(cpu) > 0


def test_a_plan_of_it_compiles_and_is_right(costs, digits):
    made = hl.plan(digits, costs)
    assert made.lower_bound_us <= made.predicted_us
    placement = hl.Placement(made.affinity, "plan", F32)
    profile = hl.profile(digits, placement, iterations=20, progress=False)
    assert profile.as_predicted is not False
    assert {row.verdict for row in profile.agreement} <= {"equal", "rounding"}
    assert profile.partition.n_subgraphs == made.n_subgraphs


TIMELESS = 1e-3  # seconds: nothing but what is measured in any case


def test_without_time_the_costs_are_those_of_the_reference_and_say_so(digits):
    with pytest.warns(hl.BudgetWarning, match="one unit"):
        coarse = hl.calibrate(digits, ["ACC", "CPU"], budget_s=TIMELESS, **QUICK)
    assert any("1 placement" in note for note in coarse.notes)
    with pytest.raises(PlanError, match="not validated"):
        _ = coarse.mape
    for device in ("ACC", "CPU"):  # the reference is on both
        assert sum(unit.time_us[coarse.devices.index(device)] or 0.0 for unit in coarse.units) > 0
    assert hl.plan(digits, coarse, budget_s=TIMELESS).predicted_us > 0


def test_what_validates_coarse_costs_is_counted(digits, few_placements, monkeypatch):
    monkeypatch.setattr(calibrating.Calibration, "_is_coarse", property(lambda self: True))
    for validate, said in [(2, "the predictions are validated on 2 others only"), (0, "nothing")]:
        with pytest.warns(hl.BudgetWarning, match=f"is mostly assumed, and {said}"):
            coarse = hl.calibrate(digits, ["ACC", "CPU"], budget_s=None, validate=validate, **QUICK)
        assert len(coarse.validation) == validate


def test_what_is_computed_from_constants_goes_with_its_op(digits):
    """ACC can run convolutions, but not what makes f32 of compressed weights."""
    compressed = hl.compress_weights(digits)
    converts = [op.get_friendly_name() for op in compressed.get_ops() if "Convert" in str(op)]
    assert converts
    hl.emulate("ACC", supported={"Convolution", "Add", "Relu"})
    with pytest.warns(hl.BudgetWarning):  # and no DeviceError
        costs = hl.calibrate(compressed, ["ACC", "CPU"], budget_s=TIMELESS, progress=False)
    compiled = hl.Affinity.automatic(compressed, "HETERO:ACC,CPU")
    assert costs.predict_us(compiled) > 0


@pytest.mark.filterwarnings("ignore::hetero_lab.errors.BudgetWarning")
def test_optimize_without_time_returns_a_measured_baseline(digits, tmp_path):
    options = {"device_properties": F32, "store": tmp_path / "proof", **QUICK}
    best = hl.optimize(digits, ["ACC", "CPU"], budget_s=TIMELESS, **options)
    assert not best.improved
    assert best.notes
    rows = best.summary.set_index("label")
    assert rows.loc["optimized", "median_us"] > 0
    greedy = replace(best.placement, label="greedy")
    # The proof measured greedy, and the row of the answer is that one.
    said = "Measured: 1 placement to learn from, 0 of them planned, and 1 in the proof"
    assert replace(best, split=None).searched == f"{said}."
    split = replace(best, split=greedy).searched
    assert split.startswith(f"{said}; the fastest split, HETERO:ACC,CPU (")
    drawn = contents_of(replace(best, split=greedy)).figures[placement_graph]
    assert drawn.label == "HETERO:ACC,CPU, not taken"
    assert rows.loc["optimized", "configuration"] == rows.loc["greedy", "configuration"]
    assert str(rows.loc["greedy", "configuration"]).startswith("HETERO:ACC,CPU (")
    trial = optimizing.Proposal(1, "plan 1.1", 12.0, 13.0, 2)
    history = replace(best, trials=(trial,)).history
    assert history.to_dict("records") == [trial._asdict()]
    stored = hl.read_sweep(tmp_path / "proof").summary.set_index("label")
    assert stored.loc["greedy", "median_us"] == rows.loc["greedy", "median_us"]


@pytest.mark.filterwarnings("ignore::hetero_lab.errors.BudgetWarning")
def test_optimize_knows_what_simplify_knows_also_without_time(digits):
    hl.emulate("ACC", unsupported={"Concat", "MaxPool", "Softmax"})
    best = hl.optimize(digits, ["ACC", "CPU"], budget_s=TIMELESS, **QUICK)
    rows = list(best.summary["label"])
    assert rows[:3] == ["optimized", "greedy", "CPU"]
    assert "greedy simplified" in rows[3:]
    (note,) = (note for note in best.notes if "in the proof" in note)
    assert "greedy simplified" in note


def cuts_asked_for(monkeypatch, model, costs, *, takes_s=0.0, budget_s=None):
    """Optimize up to the cuts; return them, and until when they may be measured.

    Learning from each device takes ``takes_s``.
    """
    asked, late_ns = [], 0

    def observe(self, affinities, until_s, into, *, counters):
        nonlocal late_ns
        late_ns += int(takes_s * 1e9)
        if any(label.startswith("cut") for label in affinities):
            asked.append((affinities, until_s))
            raise KeyboardInterrupt

    monkeypatch.setattr(clock, "now_ns", lambda: time.perf_counter_ns() + late_ns)
    monkeypatch.setattr(observing.Observer, "observe", observe)
    with pytest.raises(KeyboardInterrupt):
        hl.optimize(model, ["ACC", "CPU"], costs=costs, budget_s=budget_s, **QUICK)
    return asked[-1]


def test_optimize_tries_to_cut_the_model_once(costs, digits, monkeypatch):
    cuts, _ = cuts_asked_for(monkeypatch, digits, costs)
    assert all(label.startswith(("cut", "greedy simplified")) for label in cuts)
    assert list(cuts) == sorted(cuts, key=lambda label: label.startswith("cut"))
    alone_us = costs.predict_us(hl.Affinity.uniform(digits, "CPU"))
    greedy = hl.Affinity.automatic(digits, "HETERO:ACC,CPU")
    support = {device: costs.supports(device) for device in ("ACC", "CPU")}
    simpler = [c.affinity for c in simplify_graph(costs.graph, greedy, support).changes]
    for affinity in cuts.values():
        assert set(affinity.devices) == {"ACC", "CPU"}
        assert affinity in simpler or costs.predict_us(affinity) < 1.3 * alone_us


@pytest.mark.filterwarnings("ignore::hetero_lab.errors.BudgetWarning")
def test_optimize_goes_on_from_stored_costs(costs, digits, tmp_path):
    costs.to_json(tmp_path / "costs.json")
    stored = hl.CostModel.from_json(tmp_path / "costs.json")
    best = hl.optimize(digits, ["ACC", "CPU"], budget_s=3, costs=stored, **QUICK)
    assert [unit.ops for unit in best.costs.units] == [unit.ops for unit in costs.units]
    assert best.placement.device_properties == F32
    with pytest.raises(PlanError, match="calibrate with these"):
        hl.optimize(digits, ["ACC", "CPU"], costs=costs, device_properties={}, progress=False)
    with pytest.raises(PlanError, match="in this order"):
        hl.optimize(digits, ["CPU", "ACC"], costs=costs, progress=False)
    hl.emulate("ACC", unsupported={"Softmax", "Convolution"})
    with pytest.raises(PlanError, match="does not support that now"):
        hl.optimize(digits, ["ACC", "CPU"], costs=costs, progress=False)


@pytest.mark.filterwarnings("ignore::hetero_lab.errors.BudgetWarning")
def test_some_validate_before_half_is_fitted_to(digits, monkeypatch):
    """The time of a slow model may end there."""
    asked: list[str] = []
    monkeypatch.setattr(
        observing.Observer, "observe", lambda self, these, *_, **options: asked.extend(these)
    )
    monkeypatch.setattr(calibrating, "MOST_FITTED", 12)
    hl.calibrate(digits, ["ACC", "CPU"], budget_s=None, validate=8, progress=False)
    assert asked[:2] == ["CPU", "HETERO:ACC,CPU"]  # ACC alone cannot run it
    designed = [label for label in asked if label.startswith(("designed", "kept"))]
    half = sum(label.startswith("designed") for label in designed) / 2
    first = next(n for n, label in enumerate(designed) if label.startswith("kept"))
    assert first < half
    assert designed[-1].startswith("designed")


@pytest.mark.filterwarnings("ignore:Interrupted")
@pytest.mark.parametrize("moment", ["while costs are fitted", "in the turns of a plan"])
def test_an_interrupted_search_is_not_proven(costs, digits, monkeypatch, moment):
    split = hl.Affinity.uniform(digits, "ACC").fix(types={"Relu": "CPU", "Softmax": "CPU"})
    monkeypatch.setattr(optimizing._Optimization, "_proposals", lambda *_: [split])
    adjust, pressed = calibrating.adjust, []

    def press(when: bool) -> None:
        if when and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    def interrupted_fit(*given):
        press(moment == "while costs are fitted")
        return adjust(*given)

    def interrupted_turns(self, record):
        press(moment == "in the turns of a plan" and self.step.startswith("round"))

    monkeypatch.setattr(calibrating, "adjust", interrupted_fit)
    monkeypatch.setattr(observing.Search, "_on_record", interrupted_turns)
    with pytest.raises(KeyboardInterrupt):
        hl.optimize(digits, ["ACC", "CPU"], costs=costs, budget_s=None, **QUICK)
    kept = hl.last_interrupted()
    assert isinstance(kept, hl.CostModel)
    assert kept.interrupted


@pytest.mark.slow
def test_a_search_goes_on_where_a_cut_was_not_measured(digits, few_placements, monkeypatch):
    observe = observing.Observer.observe

    def no_cuts(self, affinities, *given, **options):
        if any(label.startswith("cut") for label in affinities):
            self.failed |= dict.fromkeys(affinities, "time budget used up")
        else:
            observe(self, affinities, *given, **options)

    monkeypatch.setattr(observing.Observer, "observe", no_cuts)
    best = hl.optimize(digits, ["ACC", "CPU"], device_properties=F32, budget_s=None, **QUICK)
    assert best.costs.validation_rows


@pytest.fixture
def broken_acc(monkeypatch):
    """ACC says what it supports, but compiles nothing."""
    compile_model = ov.Core.compile_model

    def without_acc(self, model, device_name=None, config=None, **more):
        if "ACC" in str(device_name):
            raise RuntimeError("the driver of ACC is too old")
        return compile_model(self, model, device_name, config, **more)

    monkeypatch.setattr(ov.Core, "compile_model", without_acc)


def test_a_device_that_compiles_nothing_is_named_with_the_reason(digits, broken_acc):
    with pytest.raises(MeasurementError, match="'ACC' could not be measured: .*driver .* too old"):
        hl.calibrate(digits, ["ACC", "CPU"], budget_s=None, **QUICK)


def test_nothing_is_fitted_to_twice(digits, few_placements, monkeypatch):
    observe, tried = observing.Observer.observe, []

    def noted(self, affinities, until_s, into, **options):
        tried.extend([self.reference] if not tried else [])
        tried.extend(affinities.values())
        observe(self, affinities, until_s, into, **options)

    monkeypatch.setattr(observing.Observer, "observe", noted)
    hl.calibrate(digits, ["ACC", "CPU"], budget_s=None, **QUICK)
    assert len(tried) > 6
    assert len(tried) == len(set(tried))


@pytest.mark.slow
def test_devices_without_counters_are_measured_part_by_part(few_placements, monkeypatch):
    """The runtime's counters are there on every device here, so their reading is cut off."""
    real = observing.nodes_and_conversions

    def without_acc(counters, partition, graph):
        nodes, conversions = real(counters, partition, graph)
        return tuple(n for n in nodes if n.device != "ACC"), conversions

    monkeypatch.setattr(observing, "nodes_and_conversions", without_acc)
    # Each op takes long enough not to drown in what else a busy machine does.
    model = convolutions(size=64, channels=48, layers=4)
    found = hl.calibrate(
        model, ["ACC", "CPU"], budget_s=None, device_properties=F32, progress=False
    )
    on_acc, on_cpu = (sum(unit.time_us[n] or 0.0 for unit in found.units) for n in (0, 1))
    assert on_acc > 0.05 * on_cpu > 10.0


def test_an_op_that_no_device_supports_is_named(digits, own_core):
    for name in ("ACC", "ACC2"):
        hl.emulate(name, unsupported={"Softmax"}, core=own_core)
    with pytest.raises(PlanError, match="supports .*softmax"):
        hl.calibrate(digits, ["ACC", "ACC2"], progress=False, core=own_core)
    assert own_core.n_compiled == 0


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"pin": {"^conv1": "ACC"}}, {"objective": "throughput"}])
def test_optimize_returns_what_measured_best(digits, few_placements, changes):
    hl.emulate("ACC", unsupported={"Softmax", "Concat"})
    options = {"device_properties": F32, **QUICK, **changes}
    best = hl.optimize(digits, ["ACC", "CPU"], budget_s=30, **options)
    rows = best.summary.set_index("label")
    assert list(rows.index)[:3] == ["optimized", "greedy", "CPU"]
    splits = rows.iloc[3:].query("same_as == ''")
    assert best.split is None or best.split.label == splits["ratio"].idxmin()
    assert {*rows["status"]} <= {"ok", BUDGET_ENDED}
    assert rows.loc["greedy", "ratio"] == 1.0
    assert best.improved != best.verdict.startswith(("No plan was shown", "Undecided"))
    if not best.improved:
        allowed = ["greedy"] if "pin" in changes else ["greedy", "CPU"]  # CPU breaks the pin
        best_baseline = rows.loc[allowed, "ratio"].min()
        assert rows.loc["optimized", "ratio"] == best_baseline
    profile = hl.profile(digits, best.placement, iterations=20, progress=False)
    assert {row.verdict for row in profile.agreement} <= {"equal", "rounding"}
    assert len(best.history) == len(best.trials)
    pinned = [op for op in best.affinity.ops if op.startswith("conv1")]
    assert pinned
    assert "pin" not in changes or {best.affinity[op] for op in pinned} == {"ACC"}


@pytest.mark.parametrize("model", [constant_only(), passed_through(2)])
def test_a_model_without_ops_has_nothing_to_place(model):
    for question in (hl.calibrate, hl.optimize):
        with pytest.raises(PlanError, match="has no ops to place"):
            question(model, ["ACC", "CPU"], budget_s=5, **QUICK)


def side_by_side(costs, ratios, elapsed_s=0.0):
    """Return the costs with what the executor was measured to take beside HETERO, and for what."""
    asked: list[tuple] = []
    alone = {d: Affinity.on_one(costs.graph, d) for d in costs.devices}
    apart = Affinity.from_graph(costs.graph, {**alone["A"], "right": "B"})
    made: Any = SimpleNamespace(
        search=SimpleNamespace(watch=SimpleNamespace(elapsed_s=elapsed_s), begin=lambda _: None),
        base={"A": alone["A"], "apart": apart, "B": alone["B"]},
        observer=SimpleNamespace(
            reference=apart, parallel_ratios=lambda *what: (asked.append(what), ratios)[1]
        ),
    )
    return calibrating.Calibration.with_contention(made, costs, 10.0), asked, alone, apart


def test_what_the_executor_takes_is_told_from_its_ratios():
    """100 µs in a row on A, 60 where the branches run beside each other."""
    times = {"head": (5.0, 9.0), "left": (40.0, 90.0), "right": (50.0, 40.0), "tail": (5.0, 9.0)}
    costs = costs_by_op(fork(10**6), times, contention=2.0)
    found, asked, alone, apart = side_by_side(costs, [1.25, 0.9])
    assert asked == [(alone["A"], apart, 10.0)]  # the faster device, and the plan
    assert found.executor_us == pytest.approx(25.0)
    # Of 90 µs 25 are the executor's, 10 head and tail: 55 for 40 µs on each that overlap.
    assert found.contention == pytest.approx(55.0 / 40.0, abs=0.01)
    quick, *_ = side_by_side(costs, [0.8, 0.5])
    assert (quick.executor_us, quick.contention) == (0.0, 1.0)
    assert side_by_side(costs, None)[0] == costs
    late, asked, *_ = side_by_side(costs, [1.25, 0.9], elapsed_s=10.0)
    assert (late, asked) == (costs, [])


def test_cuts_have_the_time_that_the_proof_and_a_plan_leave(costs, digits, monkeypatch):
    _, until_s = cuts_asked_for(monkeypatch, digits, costs, takes_s=300.0, budget_s=1000.0)
    assert until_s == 750.0  # a plan takes a moment, whatever was learnt before it


def test_a_device_alone_is_no_cut(digits, monkeypatch):
    hl.emulate("ACC", supported={"Relu"})
    graph = prepare(digits).graph
    others = {op.type for op in graph} - {"Relu"}
    costs = flat_costs(graph, lacks=others, device_properties=F32, emulated={"ACC": "CPU"})
    support = {device: costs.supports(device) for device in ("ACC", "CPU")}
    greedy = hl.Affinity.automatic(digits, "HETERO:ACC,CPU")
    assert simplify_graph(graph, greedy, support).affinity.devices == ("CPU",)
    cuts, _ = cuts_asked_for(monkeypatch, digits, costs)
    assert all(len(affinity.devices) == 2 for affinity in cuts.values())


def test_properties_are_for_the_devices_that_are_asked_about(digits):
    with pytest.raises(DeviceError, match=r"names GPU, which is not one of ACC, CPU"):
        hl.calibrate(digits, ["ACC", "CPU"], device_properties={"GPU": {}}, progress=False)
