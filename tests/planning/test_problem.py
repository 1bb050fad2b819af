"""The pairwise part of the objective, by hand: what planners prune, order and start by."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hand_costs import costs_by_op, flat_costs
from planning.brute_force import choices, held_bytes, pairwise_ns
from planning.random_costs import GraphMaker, affinity_of, any_choice, random_case

from hetero_lab.costs.cost_model import BoundaryCost, CostModel, Unit
from hetero_lab.costs.objective import LATENCY
from hetero_lab.errors import PlanError
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.planning import local_search, planner
from hetero_lab.planning.local_search import kick, repair
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.problem import Pairwise, Problem


def with_a_state() -> CostModel:
    """Return costs of 100 bytes of state and 350 of constants; only A can run the ops."""
    maker = GraphMaker()
    read = maker.add("ReadValue", [maker.add("Parameter")], variable="memory", n_bytes=100)
    weight = maker.add("Constant", n_bytes=300)
    added = maker.add("Add", [read, weight, maker.add("Constant", n_bytes=50)])
    maker.add("Assign", [added], variable="memory", n_bytes=100)
    graph = maker.graph()
    names = tuple(graph.ops[index].name for index in graph.placeable)
    free = dict.fromkeys([("A", "B"), ("B", "A")], BoundaryCost())
    return CostModel(graph, ("A", "B"), (Unit(names, (1.0, None)),), free, {"A": 1.0, "B": 1.0})


def test_weights_and_states_are_held_together():
    costs = with_a_state()
    pairwise = Pairwise.build(costs.objective)
    on_a, on_b = np.array([[0]]), np.array([[1]])
    for boundaries in (True, False):
        assert pairwise.least_bytes(on_a, 0, boundaries=boundaries).tolist() == [450]
        assert pairwise.least_bytes(on_a, 1, boundaries=boundaries).tolist() == [0]
        assert pairwise.least_bytes(on_b, 1, boundaries=boundaries).tolist() == [450]
    assert pairwise.fullest_bytes(np.array([[0], [1]])).tolist() == [450, 450]
    assert pairwise.held_bytes.sum(axis=0).tolist() == [450, 450]
    with pytest.raises(PlanError, match=r"\(A 449 B\).* alone need at least 450 B of w"):
        plan_graph(costs.graph, costs, memory_limit={"A": 449})
    assert plan_graph(costs.graph, costs, memory_limit={"A": 450}).memory_bytes["A"] == 450
    # A unit without a device is named.
    with pytest.raises(PlanError, match="None of A, B supports .*readvalue"):
        pairwise.restricted(np.array([[False, True]]))
    assert pairwise.restricted(np.array([[True, False]])).allowed.tolist() == [[True, False]]


@pytest.mark.parametrize("seed", range(8))
def test_the_parts_of_a_choice_add_up(seed):
    costs = random_case(seed, state=seed % 2 == 1)
    pairwise, rng = Pairwise.build(costs.objective), random.Random(seed)
    choices = np.array([any_choice(costs, rng) for _ in range(6)])
    busy = pairwise.busy_ns(choices)
    constant = costs.objective.constant_ns
    for row, choice in enumerate(choices):
        value = pairwise.value_ns(choice)
        assert value == pairwise_ns(costs, tuple(choice.tolist()))
        if len(costs.devices) > 2:  # of two devices, kept layouts are priced as a whole
            assert busy[row].sum() + constant == value
        unit = rng.randrange(len(costs.units))
        for device in np.flatnonzero(pairwise.allowed[unit]):
            moved = choice.copy()
            moved[unit] = device
            change = pairwise.change_ns(choice, [unit], int(device))
            assert change == pairwise.value_ns(moved) - value
        held = held_bytes(costs, affinity_of(costs, choice))
        for number, device in enumerate(costs.devices):
            least = int(pairwise.least_bytes(choices[row : row + 1], number)[0])
            assert least <= held[device]


def test_neighbours_are_found_breadth_first():
    maker = GraphMaker()
    maker.chain(maker.add("Parameter"), "abcdefg")
    costs = costs_by_op(maker.graph())
    pairwise = Pairwise.build(costs.objective)
    assert pairwise.links == tuple((n, n + 1) for n in range(6))
    assert pairwise.neighbours[0] == (1,)
    assert pairwise.neighbours[3] == (2, 4)
    assert pairwise.around(3, 1) == [3]
    assert pairwise.around(3, 3) == [3, 2, 4]
    assert pairwise.around(3, 5) == [3, 2, 4, 1, 5]
    assert pairwise.around(0, 4) == [0, 1, 2, 3]
    assert sorted(pairwise.around(3, 99)) == list(range(7))


def test_kicks_begin_at_the_best_end_of_the_repairs(monkeypatch):
    """Without kicks the plan is that end, so that both have one value."""
    begun = []
    monkeypatch.setattr(planner, "kick", lambda problem, start: iter([begun.append(start)][1:]))
    costs = random_case(0, most_units=25, n_devices=3, n_ops=30)
    made = plan_graph(costs.graph, costs)
    (start,) = begun
    assert start.value_ns(LATENCY) == round(made.predicted_us * 1000)
    assert made.affinity == costs.objective.affinity(start.devices)


def test_the_bound_of_a_large_plan_has_the_subgraphs_of_two_devices():
    """The first half of a chain is fast on A, the second on B: a subgraph of each is needed."""
    maker, names = GraphMaker(), "abcdefghijklmn"
    maker.chain(maker.add("Parameter"), names)
    times = {name: (1.0, 100.0) if name < "h" else (100.0, 1.0) for name in names}
    costs = costs_by_op(maker.graph(), times, constant_us=4.0, spread_us=12.0)
    costs = dataclasses.replace(costs, subgraph_us={"A": 2.0, "B": 3.0})
    made = plan_graph(costs.graph, costs)
    spread_us = 12.0 * 1 / 6  # (n - 1) / (n + 4) of it for two subgraphs
    assert made.method == "min_cut, repaired"
    assert made.predicted_us == 4.0 + 14.0 + 2.0 + 3.0 + spread_us
    assert made.lower_bound_us == made.predicted_us
    assert made.gap == made.relative_gap == 0.0
    assert made.n_subgraphs == 2
    loose = dataclasses.replace(made, lower_bound_us=0.75 * made.predicted_us)
    assert loose.relative_gap == 0.25
    assert "at most 25.0% from the best" in repr(loose)
    regrets = {"same": (0.0, 9.0), "near": (5.0, 5.0), "far": (6.0, 5.0), "below": (-3.0, 4.0)}
    baselines = tuple(
        planner.Baseline(label, 9.0, us, made.affinity, margin)
        for label, (us, margin) in regrets.items()
    )
    assert dataclasses.replace(made, baselines=baselines).undecided == ("near", "below")
    # Where one device does it all in less than two subgraphs can, that is the bound.
    single = dataclasses.replace(costs, subgraph_us={"A": 5000.0, "B": 1.0})
    alone = plan_graph(single.graph, single)
    assert alone.lower_bound_us == alone.predicted_us == 4.0 + 707.0 + 1.0


def test_kicks_lead_to_the_best_unless_time_is_over():
    costs = random_case(3, most_units=6, n_devices=2, n_ops=12)
    pairwise = Pairwise.build(costs.objective)

    def kicked(deadline: float) -> tuple[list[int], int]:
        problem = Problem(pairwise, LATENCY, {}, deadline, UntilInterrupted())
        worst = max((problem.place(np.array(c)) for c in choices(costs)), key=problem.value_ns)
        steps = [problem.value_ns(step) for step in kick(problem, worst)]
        return steps, min(problem.value_ns(problem.place(np.array(c))) for c in choices(costs))

    steps, best = kicked(float("inf"))
    assert steps == sorted(set(steps), reverse=True)  # each better than those before
    assert steps[-1] == best
    assert kicked(-float("inf"))[0] == []


def test_on_large_graphs_moves_that_are_apart_are_made_together(monkeypatch):
    """Every other op of a chain is on B, where it is slower, and each boundary costs 10 µs."""
    maker, names = GraphMaker(), "abcdefghijklmnop"
    maker.chain(maker.add("Parameter"), names)
    costs = flat_costs(maker.graph(), devices=("A", "B"), op_us=(1.0, 2.0), boundary_us=10.0)
    pairwise = Pairwise.build(costs.objective)

    def steps(most_units: int, deadline: float = float("inf")) -> list[list[int]]:
        monkeypatch.setattr(local_search, "_MANY_UNITS", most_units)
        problem = Problem(pairwise, LATENCY, {}, deadline, UntilInterrupted())
        start = problem.place(np.array([at % 2 for at in range(len(names))]))
        return [problem.choice(placed).tolist() for placed in repair(problem, start)]

    one_by_one, together = steps(len(names)), steps(len(names) - 1)
    assert one_by_one[-1] == together[-1] == [0] * len(names)
    assert (len(one_by_one), len(together)) == (8, 1)
    assert len(steps(0, deadline=-1.0)) <= 1
