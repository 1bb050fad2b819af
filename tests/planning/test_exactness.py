"""The planners find the optimum: compared with all choices, counted from the definitions."""

from __future__ import annotations

import dataclasses
import itertools
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from big_graphs import transformer_graph
from hand_costs import costs_by_op, flat_costs
from hypothesis import given, settings, strategies as st
from msgspec import structs
from planning.brute_force import choices, held_bytes, interval_ns, latency_ns, ns, pairwise_ns
from planning.random_costs import GraphMaker, affinity_of, random_case, scaled
from slices import sliced

from hetero_lab.costs.cost_model import BoundaryCost, CostModel, Unit
from hetero_lab.costs.objective import Objective
from hetero_lab.errors import PlanError
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import memory_pools
from hetero_lab.planning import planner
from hetero_lab.planning.exhaustive import best_runs, runs, small_enough
from hetero_lab.planning.pairwise_minimum import milp, min_cut
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.problem import Pairwise

VALUE = {"latency": latency_ns, "throughput": interval_ns}


def pairwise_of(costs: CostModel) -> Pairwise:
    return Pairwise.build(costs.objective)


def every_placement(costs: CostModel) -> list[Affinity]:
    return [affinity_of(costs, choice) for choice in choices(costs)]


def check_against_all_choices(costs: CostModel) -> None:
    every = list(choices(costs))
    best = min(pairwise_ns(costs, choice) for choice in every)
    for solve in (milp, min_cut) if len(costs.devices) == 2 else (milp,):
        choice, bound_ns = solve(pairwise_of(costs))
        assert bound_ns == pairwise_ns(costs, choice) == best
    affinities = [affinity_of(costs, choice) for choice in every]
    for objective, value_ns in VALUE.items():
        made = plan_graph(costs.graph, costs, objective=objective)
        value = value_ns(costs, made.affinity)
        assert ns(made.predicted_us) == value == min(value_ns(costs, a) for a in affinities)
        found = costs.predictor(made.affinity).evaluation
        assert found.value_ns(objective) / 1000.0 == made.predicted_us
        assert made.gap == 0.0


@pytest.mark.parametrize("seed", sliced(range(560), quick=12, in_ci=60))
def test_planners_equal_brute_force(seed):
    # All choices of 12 units on three devices would be half a million predictions.
    most_units = (12 if seed % 2 else 8) if seed >= 60 else 7
    n_devices = None if seed < 60 else 3 - seed % 2
    check_against_all_choices(random_case(seed, most_units, n_devices, state=seed % 4 == 3))


@pytest.mark.parametrize("seed", sliced(range(6), quick=0, in_ci=2))
def test_twelve_units_on_three_devices(seed):
    costs = random_case(seed, most_units=12, n_devices=3, n_ops=16)
    pairwise = pairwise_of(costs)
    every = list(choices(costs))
    found, _ = milp(pairwise)
    assert pairwise_ns(costs, found) == min(pairwise_ns(costs, choice) for choice in every)
    made = plan_graph(costs.graph, costs)
    assert ns(made.predicted_us) == min(
        costs.objective.evaluate(pairwise.devices(choice)).value_ns("latency") for choice in every
    )


@pytest.mark.parametrize("seed", range(2))
def test_many_units_of_which_few_are_free(seed):
    costs = random_case(seed, most_units=150, n_devices=2, n_ops=160)
    units = tuple(
        unit if at % 25 == 0 else structs.replace(unit, time_us=(None, unit.time_us[1] or 1.0))
        for at, unit in enumerate(costs.units)
    )
    costs = dataclasses.replace(costs, units=units)
    every = list(choices(costs))
    assert len(units) > 64 > len(every) > 1
    made = plan_graph(costs.graph, costs)
    assert ns(made.predicted_us) == min(latency_ns(costs, affinity_of(costs, c)) for c in every)


@pytest.mark.parametrize("seed", range(0, 12, 3))
def test_min_cut_is_milp_on_larger_graphs(seed):
    costs = random_case(seed, most_units=150, n_devices=2, n_ops=40 + 10 * seed)
    pairwise = pairwise_of(costs)
    (cut, least), (program, _) = min_cut(pairwise), milp(pairwise)
    assert least == pairwise_ns(costs, cut) == pairwise_ns(costs, program)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("n_devices", [2, 3])
@pytest.mark.parametrize("seed", sliced(range(12), quick=1, in_ci=4))
def test_a_plan_is_between_its_bound_and_every_baseline(seed, n_devices, objective):
    costs = random_case(seed, 150, n_devices, n_ops=40 + 10 * seed, state=seed % 4 == 0)
    if seed % 2 == 0:  # everything is supported everywhere, so there are single devices
        units = tuple(
            structs.replace(u, time_us=tuple(7.0 if us is None else us for us in u.time_us))
            for u in costs.units
        )
        costs = dataclasses.replace(costs, units=units)
    made = plan_graph(costs.graph, costs, objective=objective, budget_s=1)
    assert 0 <= made.lower_bound_us <= made.predicted_us  # 0 where the program takes longer
    assert ns(made.predicted_us) == VALUE[objective](costs, made.affinity)
    labels = [baseline.label for baseline in made.baselines]
    assert labels[0] == "greedy"
    for baseline in made.baselines:
        assert made.predicted_us <= baseline.predicted_us
        assert ns(baseline.predicted_us) == VALUE[objective](costs, baseline.affinity)
        assert made.regret[baseline.label] == pytest.approx(
            baseline.predicted_us - made.predicted_us
        )
        if baseline.label != "greedy":
            assert set(baseline.affinity.devices) == {baseline.label}
    alone = {d for d in costs.devices if all(set(u.ops) <= costs.supports(d) for u in costs.units)}
    assert set(labels[1:]) == alone
    greedy = made.baselines[0].affinity
    for unit in costs.units:
        first = next(d for d in costs.devices if set(unit.ops) <= costs.supports(d))
        assert {greedy[op] for op in unit.ops} == {first}
    frame = made.to_frame().set_index("label")
    assert frame["regret_us"].drop(["plan", "lower bound"]).to_dict() == made.regret


@pytest.mark.parametrize("limited", ["", "A", "AB"])
@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("seed", sliced(range(12), quick=2))
def test_the_bound_of_the_large_method_holds(monkeypatch, seed, objective, limited):
    monkeypatch.setattr(planner, "SMALL", 0)
    costs = random_case(seed, most_units=6)
    every = every_placement(costs)
    limit, most = None, 0
    if limited:
        held = {a: sum(held_bytes(costs, a)[d] for d in limited) for a in every}
        sizes = sorted(set(held.values()))
        most = sizes[len(sizes) // 3]
        limit = {tuple(limited): most}
        every = [a for a in every if held[a] <= most]
    made = plan_graph(costs.graph, costs, objective=objective, memory_limit=limit)
    best = min(VALUE[objective](costs, affinity) for affinity in every)
    assert ns(made.lower_bound_us) <= best <= ns(made.predicted_us)
    assert VALUE[objective](costs, made.affinity) == ns(made.predicted_us)
    assert not limit or sum(held_bytes(costs, made.affinity)[d] for d in limited) <= most


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), power=st.integers(3, 8))
def test_sums_beyond_32_bits_are_exact(seed, power):
    costs = scaled(random_case(seed, most_units=7), 3.0 * 10.0**power)
    pairwise = pairwise_of(costs)
    best = min(pairwise_ns(costs, choice) for choice in choices(costs))
    program, bound_ns = milp(pairwise)
    assert bound_ns <= best == pairwise_ns(costs, program)
    if len(costs.devices) == 2:
        cut, bound_ns = min_cut(pairwise)
        assert bound_ns == pairwise_ns(costs, cut) == best


def test_large_and_small_costs_beside_each_other_are_exact():
    for seed in range(10):
        costs = random_case(seed, most_units=8, n_devices=2)
        factors = [1.0, 1e3, 1e6, 1e9]
        units = tuple(
            type(u)(u.ops, tuple(None if t is None else t * factors[i % 4] for t in u.time_us))
            for i, u in enumerate(costs.units)
        )
        mixed = dataclasses.replace(costs, units=units)
        best = min(pairwise_ns(mixed, choice) for choice in choices(mixed))
        assert pairwise_ns(mixed, min_cut(pairwise_of(mixed))[0]) == best


@pytest.mark.parametrize("seed", [145, 156, 194, 225])
def test_a_busiest_device_of_hours_is_found(seed):
    # HiGHS' tolerances are absolute: unscaled, it was wrong by 15 % here and called it proven.
    costs = scaled(random_case(seed, most_units=7, n_devices=2 + seed % 2), 1e7)
    pairwise = pairwise_of(costs)
    found, bound_ns = milp(pairwise, "throughput")
    every = np.array([found, *choices(costs)])
    value, *values = (pairwise.busy_ns(every).max(axis=1) + ns(costs.constant_us)).tolist()
    assert bound_ns <= min(values) == value
    assert value - bound_ns < 1e-6 * value


@pytest.mark.parametrize("n_devices", [2, 3])
def test_a_chain_is_divided_into_stages_of_equal_time(n_devices):
    maker = GraphMaker()
    times = {f"op{n}": 10.0 * (1 + n * 7 % 5) for n in range(90)}  # 2,700 in all
    maker.chain(maker.add("Parameter"), times)
    devices = tuple("ABC"[:n_devices])
    price = dict.fromkeys(itertools.permutations(devices, 2), BoundaryCost(150.0))
    units = tuple(Unit((op,), (us,) * n_devices) for op, us in times.items())
    costs = CostModel(maker.graph(), devices, units, price, dict.fromkeys(devices, 20.0))
    made = plan_graph(costs.graph, costs, objective="throughput", budget_s=0.5)
    # The later stages receive: no plan of one run a device can be better than this by much.
    least_us = (2700 + (n_devices - 1) * 150) / n_devices + 20
    assert least_us <= made.predicted_us <= least_us + 40
    assert made.n_subgraphs == n_devices


POOLS = ([("A",)], [("A",), ("B",)], [("A", "B")], [("A", "B"), ("A",)], [("B", "A"), ("B", "C")])


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    share=st.floats(0, 1, allow_subnormal=False),
    pools=st.sampled_from(POOLS),
)
def test_memory_limits_are_kept_and_the_best_within_them_is_found(seed, share, pools):
    costs = random_case(seed, most_units=5, state=seed % 4 == 1)
    held = {affinity: held_bytes(costs, affinity) for affinity in every_placement(costs)}
    limits: dict[str | tuple[str, ...], int] = {}
    for pool in pools:
        if set(pool) <= set(costs.devices):
            sizes = sorted({sum(size[d] for d in pool) for size in held.values()})
            limits[pool if len(pool) > 1 else pool[0]] = sizes[round(share * (len(sizes) - 1))]
    by_pool = {(key,) if isinstance(key, str) else key: n for key, n in limits.items()}

    def keeps(size: dict[str, int]) -> bool:
        return all(sum(size[d] for d in pool) <= n for pool, n in by_pool.items())

    fitting = [affinity for affinity, size in held.items() if keeps(size)]
    if not fitting:
        with pytest.raises(PlanError, match="keeps within memory_limit"):
            plan_graph(costs.graph, costs, memory_limit=limits)
        return
    made = plan_graph(costs.graph, costs, memory_limit=limits)
    assert made.memory_bytes == held_bytes(costs, made.affinity)
    assert keeps(dict(made.memory_bytes))
    assert ns(made.predicted_us) == min(latency_ns(costs, affinity) for affinity in fitting)
    assert planner.keeps_limits(costs, made.affinity, memory_limit=limits)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", sliced(range(40), quick=3))
def test_balanced_memory_is_the_least_latency_of_all_even_placements(seed, limited):
    costs = random_case(seed, most_units=6, n_devices=2 + seed % 2, state=seed % 5 == 4)
    every = every_placement(costs)
    both = {a: held_bytes(costs, a)["A"] + held_bytes(costs, a)["B"] for a in every}
    most = sorted(both.values())[len(both) // 3]
    within = [a for a in every if both[a] <= most] if limited else every
    fullest = {a: max(held_bytes(costs, a, boundaries=False).values()) for a in within}
    allowed = int(1.05 * min(fullest.values()))
    made = plan_graph(
        costs.graph,
        costs,
        objective="balanced_memory",
        memory_limit={("A", "B"): most} if limited else None,
    )
    assert made.memory_bytes == held_bytes(costs, made.affinity)
    assert made.affinity in fullest
    assert fullest[made.affinity] <= allowed
    even = [affinity for affinity, n_bytes in fullest.items() if n_bytes <= allowed]
    assert ns(made.predicted_us) == min(latency_ns(costs, affinity) for affinity in even)
    assert made.gap == 0.0


@pytest.mark.parametrize("n_devices", [2, 3])
def test_a_large_model_is_spread_over_devices_evenly(n_devices):
    costs = random_case(2, most_units=40, n_devices=n_devices, n_ops=40)
    units = tuple(structs.replace(u, time_us=(7.0,) * n_devices) for u in costs.units)
    free = dataclasses.replace(costs, units=units)
    on_a = affinity_of(free, [0] * len(units))
    whole = held_bytes(free, on_a, boundaries=False)["A"]
    made = plan_graph(free.graph, free, objective="balanced_memory")
    held = held_bytes(free, made.affinity, boundaries=False)
    assert made.memory_bytes == held_bytes(free, made.affinity)
    assert whole / n_devices <= max(held.values()) < 1.3 * whole / n_devices
    assert ns(made.predicted_us) == latency_ns(free, made.affinity)
    assert made.lower_bound_us <= made.predicted_us


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_that_nothing_fits_is_named(seed):
    costs = random_case(seed, most_units=6)
    least = min(held_bytes(costs, affinity)["A"] for affinity in every_placement(costs))
    if least:
        with pytest.raises(PlanError, match=r"memory_limit \(A .*\).*[Rr]aise (the|a) limit"):
            plan_graph(costs.graph, costs, memory_limit={"A": least - 1})
    assert plan_graph(costs.graph, costs, memory_limit={"A": least}).memory_bytes["A"] <= least
    pool = random_case(3, most_units=5, n_devices=2)
    says = r"A and B 0 B\): .*on A and B .* at least 3.03 KB of weights"
    with pytest.raises(PlanError, match=says):
        plan_graph(pool.graph, pool, memory_limit={"A": 10**9, ("B", "A"): 0})


@pytest.mark.parametrize("n_devices", [2, 3])
def test_a_large_plan_keeps_a_tight_limit(n_devices):
    costs = random_case(2, most_units=40, n_devices=n_devices, n_ops=40)
    away = [max(i for i, us in enumerate(u.time_us) if us is not None) for u in costs.units]
    limit = held_bytes(costs, affinity_of(costs, away))["A"] * 5 // 4
    made = plan_graph(costs.graph, costs, memory_limit={"A": limit})
    assert made.memory_bytes == held_bytes(costs, made.affinity)
    greedy = made.baselines[0].affinity
    assert made.memory_bytes["A"] <= limit < held_bytes(costs, greedy)["A"]
    assert ns(made.predicted_us) == latency_ns(costs, made.affinity)
    assert made.lower_bound_us <= made.predicted_us


def test_where_no_placement_keeps_the_limits_it_says_what_would_help(monkeypatch):
    """Both devices are too small for what is quickest, and no program is solved in time."""
    costs = random_case(2, most_units=30, n_devices=2, n_ops=30)
    limit = {}
    for number, device in enumerate("AB"):
        first = [number if u.time_us[number] is not None else 1 - number for u in costs.units]
        limit[device] = held_bytes(costs, affinity_of(costs, first))[device] * 6 // 10
    made = plan_graph(costs.graph, costs, memory_limit=limit)
    assert all(made.memory_bytes[device] <= limit[device] for device in "AB")

    def late(*arguments, **options):
        return milp(*arguments, **{**options, "budget_s": 60.0})

    monkeypatch.setattr(planner, "milp", late)  # its answer needs more copies than it counts
    with pytest.raises(PlanError, match="found in time"):
        plan_graph(costs.graph, costs, memory_limit=limit, budget_s=1e-9)
    monkeypatch.setattr(planner, "milp", lambda *_, **options: None)
    with pytest.raises(PlanError, match=r"found in time\. Give more time or raise a limit\.$"):
        plan_graph(costs.graph, costs, memory_limit=limit, budget_s=1e-9)
    moved = plan_graph(costs.graph, costs, memory_limit=limit)  # step by step
    assert all(moved.memory_bytes[device] <= limit[device] for device in "AB")
    little = {device: n_bytes // 4 for device, n_bytes in limit.items()}
    with pytest.raises(PlanError, match=r"was found\. Raise a limit a little\.$"):
        plan_graph(costs.graph, costs, memory_limit=little)


@pytest.mark.parametrize("seed", range(6))
def test_pins_are_kept_and_the_best_with_them_is_found(seed):
    costs = random_case(seed, most_units=7)
    last = len(costs.devices) - 1
    number = next(i for i, u in enumerate(costs.units) if u.time_us[last] is not None)
    op = costs.units[number].ops[0]
    best = min(
        latency_ns(costs, affinity_of(costs, choice))
        for choice in choices(costs)
        if choice[number] == last
    )
    pin = {f"^{op}$": costs.devices[last]}
    made = plan_graph(costs.graph, costs, pin=pin)
    assert made.affinity[op] == costs.devices[last]
    assert ns(made.predicted_us) == best
    assert planner.keeps_limits(costs, made.affinity, pin=pin)


@pytest.mark.parametrize("n_devices", [2, 3])
def test_a_large_plan_keeps_its_pins(n_devices):
    costs = random_case(11, most_units=60, n_devices=n_devices, n_ops=60)
    pins = {}
    for unit in costs.units[::5]:
        device = next(d for d in reversed(costs.devices) if set(unit.ops) <= costs.supports(d))
        pins[f"^{unit.ops[0]}$"] = device
    made = plan_graph(costs.graph, costs, pin=pins, budget_s=0.5)
    assert {f"^{u.ops[0]}$": made.affinity[u.ops[0]] for u in costs.units[::5]} == pins
    assert made.lower_bound_us <= made.predicted_us
    assert ns(made.predicted_us) == latency_ns(costs, made.affinity)


@pytest.fixture
def predictions(monkeypatch):
    """Count predictions; Ctrl-C comes in one of them if ``last`` is its number."""
    counted = SimpleNamespace(n=0, last=None)
    evaluate = Objective.evaluate

    def counting(self: Objective, devices: Any) -> Any:
        counted.n += 1
        if counted.n == counted.last:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, devices)

    monkeypatch.setattr(Objective, "evaluate", counting)
    return counted


def test_a_plan_without_time_is_still_a_plan(predictions):
    graph = transformer_graph(30)  # every third op on the CPU: many moves would help
    lacks = {graph.ops[index].name: (None, 3.0) for index in graph.placeable[::3]}
    costs = flat_costs(graph, lacks, boundary_us=1.0)
    made = plan_graph(graph, costs, budget_s=1e-6)
    assert predictions.n < 20
    assert plan_graph(graph, costs).predicted_us < made.predicted_us
    assert made.lower_bound_us <= made.predicted_us
    assert all(regret >= 0 for regret in made.regret.values())


@pytest.mark.parametrize(("most_units", "last"), [(9, 4), (60, 20)])
def test_ctrl_c_leaves_the_best_plan_so_far(predictions, most_units, last):
    costs = random_case(7, most_units=most_units, n_devices=2, n_ops=60)
    predictions.last = last
    made = plan_graph(costs.graph, costs, keep=True)
    assert made.interrupted
    assert predictions.n < last + 10
    assert made.lower_bound_us <= made.predicted_us
    assert all(regret >= 0 for regret in made.regret.values())
    predictions.n = 0
    with pytest.raises(KeyboardInterrupt):
        plan_graph(costs.graph, costs)


def test_the_integer_program_can_be_asked_for(monkeypatch):
    costs, given = random_case(3), []

    def noted(solve, *arguments, **options):
        given.append(options["options"]["time_limit"])
        return solve(*arguments, **options)

    monkeypatch.setattr("hetero_lab.planning.pairwise_minimum.interruptible", noted)
    plan = plan_graph(costs.graph, costs, solver="milp", budget_s=60)
    assert plan.method == "milp, repaired"
    assert given
    assert all(0.1 <= seconds <= 60.0 for seconds in given)
    assert plan.lower_bound_us <= plan_graph(costs.graph, costs).predicted_us <= plan.predicted_us
    monkeypatch.setattr("hetero_lab.planning.pairwise_minimum._LEAST_S", 0.0)
    assert milp(pairwise_of(random_case(3, 60, 3, n_ops=60)), budget_s=0.0) is None
    with pytest.raises(PlanError, match="no solver 'milq'. Did you mean 'milp'"):
        plan_graph(costs.graph, costs, solver="milq")


def test_a_placement_that_breaks_a_pin_or_a_limit_is_none_to_measure():
    maker = GraphMaker()
    at = maker.add("Parameter")
    for name in "abc":
        at = maker.add("Add", [at, maker.add("Constant")], name=name)
    costs = costs_by_op(maker.graph())
    on_a = Affinity.on_one(costs.graph, "A")
    for name in "abc":
        assert planner.keeps_limits(costs, on_a, pin={f"^{name}$": "A"})
        assert not planner.keeps_limits(costs, on_a, pin={f"^{name}$": "B"})
    needed = held_bytes(costs, on_a)["A"]
    assert needed == 300
    assert planner.keeps_limits(costs, on_a, memory_limit={"A": needed})
    assert not planner.keeps_limits(costs, on_a, memory_limit={"A": needed - 1})
    # Nor is a run of layers a start from where a search begins.
    for most, expected in ((300, {0, 1, 2, 3}), (250, {0, 1}), (150, {0})):
        pools = memory_pools(costs.devices, {"A": most})
        found = best_runs(pairwise_of(costs), pools)
        assert {int((choice == 0).sum()) for choice in found} == expected


def test_the_best_of_twelve_units_that_can_move_is_proven():
    costs = random_case(99, most_units=14)
    assert (pairwise_of(costs).allowed.sum(axis=1) > 1).sum() == planner.SMALL == 12
    assert plan_graph(costs.graph, costs).gap == 0.0


def test_runs_by_hand_and_how_many_are_compared():
    one = [[0, 0, 0], [1, 1, 1]]
    two = [[0, 1, 1], [0, 0, 1], [1, 0, 0], [1, 1, 0]]
    assert list(runs(3, 2, most=6)) == one + two
    assert list(runs(3, 2, most=5)) == one  # all of a number of runs, or none
    assert list(runs(1, 3, most=99)) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("n_free", "n_devices", "n_fixed", "looked_at"),
    [(19, 2, 0, True), (20, 2, 0, False), (12, 3, 0, True), (13, 3, 0, False),
     (19, 2, 20, True), (19, 2, 40, False)],
)  # fmt: skip
def test_few_choices_are_all_looked_at(n_free, n_devices, n_fixed, looked_at):
    """600,000 choices, or 24 million devices in all of them, are too many."""
    allowed = np.ones((n_free + n_fixed, n_devices), dtype=bool)
    allowed[n_free:, 1:] = False
    problem: Any = SimpleNamespace(allowed=allowed, units=range(len(allowed)))
    assert small_enough(problem) is looked_at
