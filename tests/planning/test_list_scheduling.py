"""List scheduling against the paper's example, and predicted schedules against the definitions."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from planning.random_costs import GraphMaker, affinity_of, random_case
from slices import sliced

from hetero_lab.errors import AffinityError, PlanError
from hetero_lab.placement import overlap
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.overlap import predict_overlapping
from hetero_lab.placement.partition import predict
from hetero_lab.planning.cost_model import BoundaryCost, CostModel, LostFusion, Unit
from hetero_lab.planning.list_scheduling import list_scheduling, schedule_tasks, unit_tasks
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.schedules import Schedule, simulate, work_ns
from hetero_lab.planning.task_graph import (
    Edge,
    Task,
    TaskGraph,
    heft_rank,
    lower_bound_us,
)
from hetero_lab.runtime.timeline import sources

NEAR = 1e-6
MUCH = 10_000_000  # bytes of a tensor that make an op worth a subgraph of its own

# Topcuoglu, Hariri, Wu 2002: figure 2 (the tasks' times on P1, P2, P3 and the edges) and table 1.
PAPER_TIMES = [
    (14, 16, 9),
    (13, 19, 18),
    (11, 13, 19),
    (13, 8, 17),
    (12, 13, 10),
    (13, 16, 9),
    (7, 15, 11),
    (5, 11, 14),
    (18, 12, 20),
    (21, 7, 16),
]
PAPER_EDGES = {
    (1, 2): 18,
    (1, 3): 12,
    (1, 4): 9,
    (1, 5): 11,
    (1, 6): 14,
    (2, 8): 19,
    (2, 9): 16,
    (3, 7): 23,
    (4, 8): 27,
    (4, 9): 23,
    (5, 9): 13,
    (6, 8): 15,
    (7, 10): 17,
    (8, 10): 11,
    (9, 10): 13,
}
PAPER_RANKS = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]


def edge(source: int, target: int, us: float, devices: tuple[str, ...]) -> Edge:
    pairs = itertools.permutations(devices, 2)
    return Edge(source, target, dict.fromkeys(pairs, us))


def paper() -> TaskGraph:
    devices = ("P1", "P2", "P3")
    tasks = tuple(Task(f"n{n}", times) for n, times in enumerate(PAPER_TIMES, 1))
    edges = tuple(edge(a - 1, b - 1, us, devices) for (a, b), us in PAPER_EDGES.items())
    return TaskGraph(devices, tasks, edges)


def random_tasks(seed: int) -> TaskGraph:
    rng = random.Random(seed)
    devices = ("A", "B", "C", "D")[: rng.randint(1, 4)]
    tasks = []
    for number in range(rng.randint(1, 14)):
        times = [
            None if rng.random() < 0.2 else rng.choice([0.0, rng.uniform(0, 50)]) for _ in devices
        ]
        if all(time is None for time in times):
            times[rng.randrange(len(devices))] = 3.0
        tasks.append(Task(f"t{number}", tuple(times)))
    # Numbers are no topological order.
    order = list(range(len(tasks)))
    rng.shuffle(order)
    edges = [
        Edge(
            order[a],
            order[b],
            {
                pair: rng.choice([0.0, rng.uniform(0, 40)])
                for pair in itertools.product(devices, devices)
                if pair[0] != pair[1] or rng.random() < 0.2
            },
        )
        for a, b in itertools.combinations(range(len(tasks)), 2)
        if rng.random() < 0.3
    ]
    return TaskGraph(devices, tuple(tasks), tuple(edges))


def check_no_overlap(schedule: Schedule) -> None:
    for device in schedule.devices:
        runs = [e for e in schedule.entries if e.device == device]
        assert all(b.start_us >= a.end_us - NEAR for a, b in itertools.pairwise(runs))
        busy = sum(e.end_us - e.start_us for e in runs)
        assert schedule.idle_us[device] == pytest.approx(schedule.makespan_us - busy, abs=NEAR)
    assert schedule.makespan_us == max(e.end_us for e in schedule.entries)


def test_heft_is_the_papers_example():
    graph = paper()
    assert heft_rank(graph) == pytest.approx(PAPER_RANKS, abs=5e-4)
    schedule = schedule_tasks(graph)
    assert schedule.makespan_us == 80
    where = {e.task: (e.device, e.start_us, e.end_us) for e in schedule.entries}
    # Figure 4 (a).
    assert where == {
        "n1": ("P3", 0, 9),
        "n3": ("P3", 9, 28),
        "n4": ("P2", 18, 26),
        "n2": ("P1", 27, 40),
        "n5": ("P3", 28, 38),
        "n6": ("P2", 26, 42),
        "n9": ("P2", 56, 68),
        "n7": ("P3", 38, 49),
        "n8": ("P1", 57, 62),
        "n10": ("P2", 73, 80),
    }
    # n10 waits for n8, n8 for n6, n6 for the device that n4 is on.
    assert [e.task for e in schedule.critical_path] == ["n1", "n4", "n6", "n8", "n10"]
    assert schedule.idle_us == {"P1": 62, "P2": 37, "P3": 31}
    assert 41 < lower_bound_us(graph) <= 80


def test_a_gap_is_used():
    # "small" ranks last, but fits on A while A waits for what B makes.
    devices = ("A", "B")
    tasks = (Task("make", (None, 10.0)), Task("use", (30.0, None)), Task("small", (10.0, None)))
    graph = TaskGraph(devices, tasks, (edge(0, 1, 0.0, devices),))
    schedule = schedule_tasks(graph)
    assert {e.task: (e.start_us, e.end_us) for e in schedule.entries} == {
        "make": (0, 10),
        "small": (0, 10),
        "use": (10, 40),
    }


@settings(max_examples=200)
@given(seed=st.integers(0, 10**9))
def test_a_schedule_can_be_run(seed):
    graph = random_tasks(seed)
    schedule = schedule_tasks(graph)
    run_of = {e.index: e for e in schedule.entries}
    assert sorted(run_of) == list(range(len(graph.tasks)))
    for number, task in enumerate(graph.tasks):
        run = run_of[number]
        time = task.time_us[graph.devices.index(run.device)]
        assert time is not None
        assert run.end_us - run.start_us == pytest.approx(time)
    for wire in graph.edges:
        source, target = run_of[wire.source], run_of[wire.target]
        price = wire.transfer_us.get((source.device, target.device), 0.0)
        assert target.start_us >= source.end_us + price - NEAR
    check_no_overlap(schedule)
    assert schedule.makespan_us >= lower_bound_us(graph) - NEAR
    path = schedule.critical_path
    assert path[-1].end_us == schedule.makespan_us
    assert all(a.end_us <= b.start_us + NEAR for a, b in itertools.pairwise(path))


@pytest.mark.parametrize("seed", range(40))
def test_the_lower_bound_holds_for_every_placement(seed):
    graph = random_tasks(seed)
    if len(graph.tasks) > 6:
        graph = TaskGraph(
            graph.devices,
            graph.tasks[:6],
            tuple(e for e in graph.edges if max(e.source, e.target) < 6),
        )
    least = np.inf
    places = [[d for d, t in enumerate(task.time_us) if t is not None] for task in graph.tasks]
    rng = random.Random(seed)
    for choice in itertools.islice(itertools.product(*places), 200):
        order = list(graph.order)
        for _ in range(3):
            least = min(least, _makespan(graph, choice, order))
            a, b = rng.randrange(len(order)), rng.randrange(len(order))
            order[a], order[b] = order[b], order[a]
            order.sort(key=lambda t: _depth(graph, t))
    assert least >= lower_bound_us(graph) - NEAR


def _depth(graph: TaskGraph, task: int) -> int:
    before = [graph.edges[e].source for e in graph.into[task]]
    return 1 + max((_depth(graph, t) for t in before), default=0)


def _makespan(graph: TaskGraph, choice: tuple[int, ...], order: list[int]) -> float:
    free, end = [0.0] * len(graph.devices), {}
    for task in order:
        here = choice[task]
        start = free[here]
        for number in graph.into[task]:
            source = graph.edges[number].source
            start = max(start, end[source] + graph.transfers[number, choice[source], here])
        end[task] = free[here] = start + (graph.tasks[task].time_us[here] or 0.0)
    return max(end.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TaskGraph(("A",), ()), "no task to schedule"),
        (lambda: TaskGraph((), (Task("t", ()),)), "needs devices"),
        (lambda: TaskGraph(("A", "A"), (Task("t", (1, 1)),)), "each once"),
        (lambda: TaskGraph(("A", "B"), (Task("t", (1.0,)),)), "'t' has 1 times.*A, B"),
        (lambda: TaskGraph(("A",), (Task("t", (None,)),)), "None of A supports task 't'"),
        (lambda: TaskGraph(("A",), (Task("t", (-1.0,)),)), "-1.0 is no time"),
        (lambda: TaskGraph(("A",), (Task("t", (float("nan"),)),)), "nan is no time"),
        (lambda: pair([Edge(0, 2, {})]), "from task 0 to 2.*0 to 1"),
        (lambda: pair([Edge(0, 1, {("A", "B"): 1.0})]), "'a' to 'b' lacks .* B to A"),
        (lambda: pair([edge(0, 1, 1.0, ("A", "B", "C"))]), "'C', which is not scheduled on"),
        (lambda: pair([edge(0, 1, -1.0, ("A", "B"))]), "-1.0 is no time"),
        (
            lambda: pair([edge(0, 1, 1.0, ("A", "B")), edge(1, 0, 1.0, ("A", "B"))]),
            "'a', 'b' wait for each other in a circle",
        ),
        (lambda: pair([edge(0, 0, 1.0, ("A", "B"))]), "'a'.* in a circle"),
    ],
)
def test_bad_tasks_say_why(make, message):
    with pytest.raises(PlanError, match=message):
        make()


def pair(edges: list[Edge]) -> TaskGraph:
    return TaskGraph(("A", "B"), (Task("a", (1.0, 2.0)), Task("b", (2.0, 1.0))), tuple(edges))


def costs_of(graph, times, *, boundary=0.0, subgraph=0.0, constant=0.0) -> CostModel:
    """Return costs on A and B; ``times`` for each op by name, the same on both if a number."""
    units = [Unit((name,), us if isinstance(us, tuple) else (us, us)) for name, us in times.items()]
    return CostModel(
        graph=graph,
        devices=("A", "B"),
        units=tuple(units),
        boundaries={("A", "B"): BoundaryCost(boundary), ("B", "A"): BoundaryCost(boundary)},
        subgraph_us={"A": subgraph, "B": subgraph},
        constant_us=constant,
    )


def chain():
    maker = GraphMaker()
    at = maker.add("Parameter")
    for name in ("one", "two", "three"):
        at = maker.add("Relu", [at], name=name)
    return maker.graph()


def diamond():
    """Return head → (left, right) → tail."""
    maker = GraphMaker()
    head = maker.add("Relu", [maker.add("Parameter")], name="head", n_bytes=MUCH)
    left = maker.add("Relu", [head], name="left", n_bytes=MUCH)
    right = maker.add("Relu", [head], name="right", n_bytes=MUCH)
    maker.add("Add", [left, right], name="tail", n_bytes=MUCH)
    return maker.graph()


def test_a_chain_on_one_device_is_the_sum():
    costs = costs_of(chain(), {"one": 3.0, "two": 4.0, "three": 5.0}, subgraph=2.0, constant=10.0)
    schedule = simulate(costs, affinity_of(costs, (0, 0, 0)))
    assert schedule.makespan_us == 10 + 2 + 3 + 4 + 5
    (only,) = schedule.entries
    assert (only.task, only.device, only.start_us, only.n_ops) == ("subgraph0", "A", 10.0, 3)
    assert schedule.idle_us == {"A": 10.0, "B": 24.0}
    there_and_back = simulate(
        costs_of(chain(), {"one": 3.0, "two": 4.0, "three": 5.0}, boundary=7.0, constant=1.0),
        affinity_of(costs, (0, 1, 0)),
    )
    assert there_and_back.makespan_us == 1 + 3 + 7 + 4 + 7 + 5
    assert len(there_and_back.critical_path) == 3


def test_two_branches_on_two_devices_are_the_longer_one():
    times = {"head": 5.0, "left": 20.0, "right": 20.0, "tail": 6.0}
    costs = costs_of(diamond(), times, constant=2.0)
    placement = affinity_of(costs, (0, 0, 1, 0))
    # Neither device is idle while the branches run: left is a subgraph of its own.
    apart = simulate(costs, placement)
    assert apart.makespan_us == 2 + 5 + 20 + 6
    assert costs.predict_us(placement) == 2 + 5 + 20 + 20 + 6
    assert apart.idle_us == {"A": 2.0, "B": 13.0}


def test_a_hand_over_is_the_receivers_work():
    times = {"head": 5.0, "left": 20.0, "right": 20.0, "tail": 6.0}
    costs = costs_of(diamond(), times, boundary=3.0)
    schedule = simulate(costs, affinity_of(costs, (0, 0, 1, 0)))
    # B receives before it runs "right"; the tail receives from B.
    assert schedule.makespan_us == 5 + (3 + 20) + (3 + 6)


def test_the_most_urgent_subgraph_goes_first():
    # Both are ready at once on A; what the long tail on B waits for runs first.
    maker = GraphMaker()
    at = maker.add("Parameter")
    maker.add("Relu", [at], name="idle", n_bytes=MUCH)
    head = maker.add("Relu", [at], name="head", n_bytes=MUCH)
    maker.add("Relu", [head], name="tail", n_bytes=MUCH)
    times = {"idle": 10.0, "head": 8.0, "tail": (None, 30.0)}
    costs = costs_of(maker.graph(), times)
    schedule = simulate(costs, affinity_of(costs, (0, 0, 1)))
    assert schedule.makespan_us == 8 + 30
    assert [e.end_us for e in schedule.entries if e.device == "A"] == [8.0, 18.0]


@pytest.mark.parametrize("least_work", [0.0, overlap.WORK_OF_A_SUBGRAPH])
@pytest.mark.parametrize("seed", sliced(range(60), quick=20))
def test_a_simulated_schedule_can_be_run(seed, least_work, monkeypatch):
    monkeypatch.setattr(overlap, "WORK_OF_A_SUBGRAPH", least_work)
    costs = random_case(seed, n_ops=25)
    rng = random.Random(seed)
    places = [[n for n, t in enumerate(unit.time_us) if t is not None] for unit in costs.units]
    affinity = affinity_of(costs, [rng.choice(every) for every in places])
    partition = predict_overlapping(costs.graph, affinity)
    schedule = simulate(costs, affinity)
    run_of = {e.index: e for e in schedule.entries}
    assert [run_of[s.index].device for s in partition.subgraphs] == [
        s.device for s in partition.subgraphs
    ]
    work = work_ns(costs, costs.objective.device_numbers(affinity), partition)
    assert [round((run_of[n].end_us - run_of[n].start_us) * 1000) for n in range(len(work))] == (
        work.tolist()
    )
    before = sources(partition, costs.graph)
    for target, every in enumerate(before):
        for source in every:
            assert run_of[target].start_us >= run_of[source].end_us
    check_no_overlap(schedule)
    begin_us = (costs.objective.constant_ns + int(costs.objective.spread_ns(len(work)))) / 1000
    # A device is never idle while one of its subgraphs could run.
    for entry in schedule.entries:
        waits = [run_of[n].end_us for n in before[entry.index]]
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
@pytest.mark.parametrize("seed", sliced(range(12), quick=4))
def test_the_plan_is_no_worse_than_what_it_is_compared_with(seed, least_work, monkeypatch):
    monkeypatch.setattr(overlap, "WORK_OF_A_SUBGRAPH", least_work)
    costs = random_case(seed, n_ops=30)
    made = list_scheduling(costs.graph, costs)
    again = simulate(costs, made.affinity)
    assert made.predicted_us == again.makespan_us
    assert made.schedule == again
    latency = plan_graph(costs.graph, costs)
    others = [latency.affinity, *(b.affinity for b in latency.baselines)]
    for affinity in others:
        ends = simulate(costs, affinity).makespan_us
        assert made.predicted_us <= ends
    assert min(made.regret.values()) >= 0
    singles = [d for d in costs.devices if len(costs.supports(d)) == len(costs.graph.placeable)]
    assert list(made.regret) == ["list scheduling", "greedy", *singles, "latency plan"]


def test_the_plan_spreads_branches_over_devices():
    times = {"head": 5.0, "left": 20.0, "right": 21.0, "tail": 6.0}
    costs = costs_of(diamond(), times, boundary=1.0)
    made = list_scheduling(costs.graph, costs)
    assert made.affinity["left"] != made.affinity["right"]
    # The longer branch stays; the other is handed over and back: 5 + max(21, 1 + 20) + 1 + 6.
    assert made.predicted_us == 33
    assert made.regret["latency plan"] == 52 - 33


def test_moves_improve_on_list_scheduling():
    # Of 20 random models some are improved, and none is far from the best of all choices.
    improved = 0
    for seed in range(20):
        costs = random_case(seed, most_units=5, n_devices=2, n_ops=12)
        made = list_scheduling(costs.graph, costs)
        improved += made.predicted_us < min(b.predicted_us for b in made.baselines)
        choices = itertools.product(
            *[[n for n, t in enumerate(u.time_us) if t is not None] for u in costs.units]
        )
        every = [affinity_of(costs, choice) for choice in choices]
        best = min(simulate(costs, affinity).makespan_us for affinity in every)
        # Greedy may leave an input on another device than its users, which no choice does.
        assert made.predicted_us >= best - NEAR or made.affinity not in every
        assert made.predicted_us <= 1.1 * best
    assert improved >= 1


def test_units_become_tasks():
    costs = costs_of(
        diamond(),
        {"head": (5.0, None), "left": 20.0, "right": 20.0, "tail": 6.0},
        boundary=3.0,
        subgraph=2.0,
    )
    lost = LostFusion("head", "left", (0.5, 0.25), (0.125, 1.0))
    costs = CostModel(
        costs.graph, costs.devices, costs.units, costs.boundaries, costs.subgraph_us, 0.0, (lost,)
    )
    graph = unit_tasks(costs)
    assert [task.name for task in graph.tasks] == ["head", "left", "right", "tail"]
    assert graph.tasks[0].time_us == (5.0, None)
    prices = {(e.source, e.target): e.transfer_us for e in graph.edges}
    assert set(prices) == {(0, 1), (0, 2), (1, 3), (2, 3)}  # a model's input is no edge
    assert prices[0, 2] == {("A", "A"): 0.0, ("A", "B"): 5.0, ("B", "A"): 5.0, ("B", "B"): 0.0}
    assert prices[0, 1]["A", "B"] == 3 + 2 + 0.5 + 1.0
    assert prices[0, 1]["B", "A"] == 3 + 2 + 0.25 + 0.125


def test_units_that_depend_on_each_other_are_in_the_order_of_their_first_ops():
    costs = costs_of(chain(), {"one": 1.0, "two": 1.0, "three": 1.0})
    units = (Unit(("two",), (1.0, 1.0)), Unit(("one", "three"), (2.0, 2.0)))
    costs = CostModel(costs.graph, costs.devices, units, costs.boundaries, costs.subgraph_us)
    graph = unit_tasks(costs)
    assert [(e.source, e.target) for e in graph.edges] == [(1, 0)]
    assert list_scheduling(costs.graph, costs).predicted_us == 3.0


def test_what_cannot_be_simulated_or_planned_says_why():
    costs = costs_of(chain(), {"one": (1.0, None), "two": 1.0, "three": 1.0})
    with pytest.raises(PlanError, match="B does not support 'one'"):
        simulate(costs, affinity_of(costs, (1, 1, 1)))
    other = Affinity.from_graph(costs.graph, {op.name: "GPU" for op in costs.graph})
    with pytest.raises(PlanError, match="does not know 'GPU'"):
        simulate(costs, other)
    with pytest.raises(AffinityError, match="another model"):
        simulate(random_case(1), affinity_of(costs, (0, 0, 0)))
    with pytest.raises(PlanError, match="belongs to another model"):
        list_scheduling(random_case(1).graph, costs)
    limits: list[Any] = [0.0, float("nan"), "1"]
    for limit in limits:
        with pytest.raises(PlanError, match="budget_s"):
            list_scheduling(costs.graph, costs, budget_s=limit)


def test_tables():
    costs = costs_of(chain(), {"one": 3.0, "two": 4.0, "three": 5.0})
    made = list_scheduling(costs.graph, costs)
    frame = made.schedule.to_frame()
    assert list(frame) == ["task", "device", "start_us", "end_us", "n_ops", "critical"]
    assert frame.to_dict("records") == [
        {
            "task": "subgraph0",
            "device": "A",
            "start_us": 0.0,
            "end_us": 12.0,
            "n_ops": 3,
            "critical": True,
        }
    ]
    assert made.to_frame()["label"].tolist()[0] == "plan"
    assert repr(made).startswith("SchedulePlan(12.0 µs, 1 subgraph, by ")
    assert repr(made.schedule) == (
        "Schedule(12.0 µs, 1 tasks, 1 on the critical path, idle µs: A 0.0, B 12.0)"
    )
    assert "subgraph0" in made._repr_html_()
