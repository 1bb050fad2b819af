"""Schedules of the parallel executor against their definition, and the plan for it."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from hand_costs import costs_by_op, flat_costs
from openvino import opset13 as op
from planning.brute_force import choices
from planning.random_costs import GraphMaker, affinity_of, any_choice, fork, random_case
from slices import sliced

import hetero_lab as hl
from hetero_lab.costs.cost_model import Unit, ValidationRow
from hetero_lab.errors import AffinityError, ArgumentError, PlanError
from hetero_lab.model.read import prepare
from hetero_lab.placement import overlap
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.overlap import predict_overlapping, sources
from hetero_lab.placement.partition import predict
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.problem import Pairwise
from hetero_lab.planning.schedules import (
    Schedule,
    branches,
    measured_contention,
    plan_schedule,
    simulate,
)

NEAR = 1e-6
TIMES = {"one": 3.0, "two": 4.0, "three": 5.0}
MUCH = 10_000_000  # bytes of a tensor that make an op worth a subgraph of its own


def check_no_overlap(schedule: Schedule) -> None:
    for device in schedule.devices:
        runs = [e for e in schedule.entries if e.device == device]
        assert all(b.start_us >= a.end_us - NEAR for a, b in itertools.pairwise(runs))
        busy = sum(e.end_us - e.start_us for e in runs)
        assert schedule.idle_us[device] == pytest.approx(schedule.makespan_us - busy, abs=NEAR)
    assert schedule.makespan_us == max(e.end_us for e in schedule.entries)


def chain():
    maker = GraphMaker()
    maker.chain(maker.add("Parameter"), TIMES)
    return maker.graph()


def test_a_chain_on_one_device_is_the_sum():
    costs = costs_by_op(chain(), TIMES, subgraph_us=2.0, constant_us=10.0)
    schedule = simulate(costs, affinity_of(costs, (0, 0, 0)))
    assert schedule.makespan_us == 10 + 2 + 3 + 4 + 5
    (only,) = schedule.entries
    assert (only.subgraph, only.device, only.start_us) == (0, "A", 10.0)
    assert schedule.to_frame().loc[0, ["task", "n_ops"]].tolist() == ["subgraph0", 3]
    assert schedule.idle_us == {"A": 10.0, "B": 24.0}
    dear = costs_by_op(chain(), TIMES, boundary_us=7.0, constant_us=1.0)
    there_and_back = simulate(dear, affinity_of(costs, (0, 1, 0)))
    assert there_and_back.makespan_us == 1 + 3 + 7 + 4 + 7 + 5
    assert len(there_and_back.critical_path) == 3


def test_two_branches_on_two_devices_are_the_longer_one():
    times = {"head": 5.0, "left": 20.0, "right": 20.0, "tail": 6.0}
    costs = costs_by_op(fork(MUCH), times, constant_us=2.0)
    placement = affinity_of(costs, (0, 0, 1, 0))
    # Neither device is idle while the branches run: left is a subgraph of its own.
    apart = simulate(costs, placement)
    assert apart.makespan_us == 2 + 5 + 20 + 6
    assert costs.predict_us(placement) == 2 + 5 + 20 + 20 + 6
    assert apart.idle_us == {"A": 2.0, "B": 13.0}
    # Each is half as fast while the other one works, so that nothing is gained.
    assert simulate(replace(costs, contention=2.0), placement).makespan_us == 2 + 5 + 40 + 6
    # Measured, it is told from what the placement takes.
    assert measured_contention(costs, placement, 2 + 5 + 30 + 6) == pytest.approx(1.5, abs=1e-3)
    assert measured_contention(costs, placement, 20.0) == 1.0
    assert simulate(replace(costs, executor_us=3.0), placement).makespan_us == 3 + 2 + 5 + 20 + 6
    assert measured_contention(costs, affinity_of(costs, (0, 0, 0, 0)), 99.0) == 1.0
    # A hand-over is the receiver's work: B's before it runs "right", A's before the tail.
    dear = costs_by_op(fork(MUCH), times, boundary_us=3.0)
    assert simulate(dear, placement).makespan_us == 5 + (3 + 20) + (3 + 6)


def test_the_most_urgent_subgraph_goes_first():
    # Both are ready at once on A; what the long tail on B waits for runs first.
    maker = GraphMaker()
    at = maker.add("Parameter")
    maker.add("Relu", [at], name="idle", n_bytes=MUCH)
    head = maker.add("Relu", [at], name="head", n_bytes=MUCH)
    maker.add("Relu", [head], name="tail", n_bytes=MUCH)
    times = {"idle": 10.0, "head": 8.0, "tail": (None, 30.0)}
    costs = costs_by_op(maker.graph(), times)
    schedule = simulate(costs, affinity_of(costs, (0, 0, 1)))
    assert schedule.makespan_us == 8 + 30
    assert [e.end_us for e in schedule.entries if e.device == "A"] == [8.0, 18.0]


@pytest.mark.parametrize("least_work", [0.0, overlap.WORK_OF_A_SUBGRAPH])
@pytest.mark.parametrize("seed", sliced(range(60), quick=8))
def test_a_simulated_schedule_can_be_run(seed, least_work, monkeypatch):
    monkeypatch.setattr(overlap, "WORK_OF_A_SUBGRAPH", least_work)
    costs = random_case(seed, n_ops=25)
    affinity = affinity_of(costs, any_choice(costs, random.Random(seed)))
    partition = predict_overlapping(costs.graph, affinity)
    schedule = simulate(costs, affinity)
    run_of = {e.subgraph: e for e in schedule.entries}
    assert all(run_of[s.index].device == s.device for s in partition.subgraphs)
    numbers = costs.objective.device_numbers(affinity)
    work = costs.objective.evaluate(numbers, np.array(partition.home)).work_ns[: len(run_of)]
    took_us = [run_of[n].end_us - run_of[n].start_us for n in range(len(work))]
    assert [round(us * 1000) for us in took_us] == work.tolist()
    before = sources(partition, costs.graph)
    for target, every in enumerate(before):
        for source in every:
            assert run_of[target].start_us >= run_of[source].end_us
    check_no_overlap(schedule)
    begin_us = (costs.objective.constant_ns + int(costs.objective.spread_ns(len(work)))) / 1000
    # A device is never idle while one of its subgraphs could run.
    for entry in schedule.entries:
        waits = [run_of[n].end_us for n in before[entry.subgraph]]
        waits += [
            e.end_us
            for e in schedule.entries
            if e.device == entry.device and e.end_us <= entry.start_us and e is not entry
        ]
        assert entry.start_us == max([*waits, begin_us])
    path = schedule.critical_path
    assert path[0].start_us == pytest.approx(begin_us)
    assert all(a.end_us == b.start_us for a, b in itertools.pairwise(path))
    if partition == predict(costs.graph, affinity):
        # All work together is what one subgraph after another takes.
        total_us = begin_us + work.sum() / 1000
        assert total_us == pytest.approx(costs.predict_us(affinity), abs=NEAR)
        parts = costs.explain(affinity)
        for device, us in parts.device_us.items():
            assert schedule.makespan_us - schedule.idle_us[device] == pytest.approx(us, abs=NEAR)
        assert schedule.makespan_us <= total_us + NEAR


@pytest.mark.parametrize("least_work", [0.0, overlap.WORK_OF_A_SUBGRAPH])
@pytest.mark.parametrize("seed", sliced(range(12), quick=3))
def test_the_plan_is_no_worse_than_what_it_is_compared_with(seed, least_work, monkeypatch):
    monkeypatch.setattr(overlap, "WORK_OF_A_SUBGRAPH", least_work)
    costs = random_case(seed, n_ops=15)
    made = plan_schedule(costs.graph, costs)
    assert made.schedule == simulate(costs, made.affinity)
    assert made.predicted_us == made.schedule.makespan_us
    latency = plan_graph(costs.graph, costs)
    for affinity in (latency.affinity, *(b.affinity for b in latency.baselines)):
        assert made.predicted_us <= simulate(costs, affinity).makespan_us
    assert min(made.regret.values()) >= 0
    singles = [d for d in costs.devices if len(costs.supports(d)) == len(costs.graph.placeable)]
    assert list(made.regret) == ["greedy", *singles, "latency plan"]


def test_the_plan_spreads_branches_over_devices():
    times = {"head": 5.0, "left": 20.0, "right": 21.0, "tail": 6.0}
    costs = costs_by_op(fork(MUCH), times, boundary_us=1.0)
    made = plan_schedule(costs.graph, costs)
    assert made.affinity["left"] != made.affinity["right"]
    # The longer branch stays; the other is handed over and back: 5 + max(21, 1 + 20) + 1 + 6.
    assert made.predicted_us == 33
    assert made.regret["latency plan"] == 52 - 33
    # 52 on one device: a split is planned only where all of its interval is below.
    for off, regret in ((1.1, 52 - 33), (1.3, 0.0)):
        known = replace(costs, validation_rows=(ValidationRow("kept", off, 1.0),) * 8)
        made = plan_schedule(costs.graph, known)
        assert made.regret["A"] == regret


@pytest.mark.parametrize("seed", [2, 12])
def test_moves_improve_on_the_baselines_while_there_is_time(seed):
    costs = random_case(seed, most_units=5, n_devices=2, n_ops=12)
    made = plan_schedule(costs.graph, costs)
    assert made.predicted_us < min(b.predicted_us for b in made.baselines)
    every = (simulate(costs, affinity_of(costs, choice)) for choice in choices(costs))
    best = min(schedule.makespan_us for schedule in every)
    assert best - NEAR <= made.predicted_us <= 1.1 * best
    hurried = plan_schedule(costs.graph, costs, budget_s=1e-9)
    assert hurried.predicted_us == min(b.predicted_us for b in hurried.baselines)


def test_branches_are_found_inside_branches():
    # head → (left1 → left2, (up, down) → right) → tail, and units that depend on each other.
    maker = GraphMaker()
    head = maker.add("Relu", [maker.add("Parameter")], name="head")
    left = maker.add("Relu", [maker.add("Relu", [head], name="left1")], name="left2")
    fork = maker.add("Relu", [head], name="fork")
    ends = [maker.add("Relu", [fork], name=name) for name in ("up", "down")]
    right = maker.add("Add", ends, name="right")
    maker.add("Add", [left, right], name="tail")
    names = ["head", "left1", "left2", "fork", "up", "down", "right", "tail"]
    pairwise = Pairwise.build(costs_by_op(maker.graph()).objective)
    found = [[names[unit] for unit in branch] for branch in branches(pairwise)]
    assert found == [["left1", "left2"], ["fork", "up", "down", "right"], ["up"], ["down"]]
    units = (Unit(("two",), (1.0, 1.0)), Unit(("one", "three"), (2.0, 2.0)))
    costs = replace(costs_by_op(chain()), units=units)
    assert branches(Pairwise.build(costs.objective)) == []
    assert plan_schedule(costs.graph, costs).predicted_us == 3.0


def test_what_cannot_be_simulated_or_planned_says_why():
    costs = costs_by_op(chain(), {"one": (1.0, None), "two": 1.0, "three": 1.0})
    with pytest.raises(PlanError, match="B does not support 'one'"):
        simulate(costs, affinity_of(costs, (1, 1, 1)))
    other = Affinity.from_graph(costs.graph, {op.name: "GPU" for op in costs.graph})
    with pytest.raises(PlanError, match="does not know 'GPU'"):
        simulate(costs, other)
    with pytest.raises(AffinityError, match="another model"):
        simulate(random_case(1), affinity_of(costs, (0, 0, 0)))
    with pytest.raises(PlanError, match="belongs to another model"):
        plan_schedule(random_case(1).graph, costs)
    with pytest.raises(PlanError, match="budget_s"):
        plan_schedule(costs.graph, costs, budget_s=0.0)


def test_tables():
    costs = costs_by_op(chain(), TIMES)
    made = plan_schedule(costs.graph, costs)
    frame = made.schedule.to_frame()
    assert list(frame) == ["task", "device", "start_us", "end_us", "n_ops", "critical"]
    assert frame.to_numpy().tolist() == [["subgraph0", "A", 0.0, 12.0, 3, True]]
    assert made.to_frame()["label"].tolist()[0] == "plan"
    assert repr(made).startswith("SchedulePlan(12.0 µs, 1 subgraph, by ")
    assert repr(made.schedule) == (
        "Schedule(12.0 µs, 1 subgraph, 1 on the critical path, idle µs: A 0.0, B 12.0)"
    )
    html = made._repr_html_()
    assert "Place 3 ops on A, in 1 subgraph: predicted latency 12 µs." in html
    assert "subgraph0" in html


# -- hl.plan: one function for both executors ---------------------------------------------------


def test_branches_are_split_where_devices_work_side_by_side():
    """Two equal matmuls both read the input, and are added up."""
    x = op.parameter([8, 8], name="x")
    one = op.matmul(x, op.constant([[1.0] * 8] * 8, dtype="f4"), False, False, name="one")
    two = op.matmul(x, op.constant([[2.0] * 8] * 8, dtype="f4"), False, False, name="two")
    model = hl.load(ov.Model([op.add(one, two, name="sum")], [x], "branches"))
    times = {"one": 100.0, "two": 100.0, "sum": 10.0}
    costs = flat_costs(prepare(model).graph, times, subgraph_us=1.0, emulated={"ACC": "CPU"})
    made = hl.plan(model, costs)
    assert (made.n_subgraphs, made.predicted_us) == (1, 211.0)
    made = hl.plan(model, costs, executor="parallel")
    assert made.affinity["one"] != made.affinity["two"]
    # The later of the two branches, the hand-over, the sum.
    assert 100.0 < made.predicted_us < 130.0
    assert made.regret["greedy"] == pytest.approx(211.0 - made.predicted_us)
    assert made.emulated == {"ACC": "CPU"}
    with pytest.raises(
        ArgumentError, match="leave objective=, memory_limit=, pin= and solver= out"
    ):
        hl.plan(model, costs, executor="parallel", memory_limit={"ACC": 1})
