"""The planners find the optimum: compared with all choices, counted from the definitions."""

from __future__ import annotations

import pytest
from planning.brute_force import choices, latency_ns, pairwise_ns
from planning.random_costs import affinity_of, random_case

from hetero_lab.errors import PlanError
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.milp import milp
from hetero_lab.planning.min_cut import min_cut
from hetero_lab.planning.pairwise import Pairwise
from hetero_lab.planning.planner import plan_graph

QUICK = range(40)
MANY = range(1000, 1500)


def pairwise_of(costs: CostModel) -> Pairwise:
    return Pairwise.build(costs.objective, [unit.ops for unit in costs.units])


def check_against_all_choices(seed: int, most_units: int, n_devices: int | None = None) -> None:
    costs = random_case(seed, most_units=most_units, n_devices=n_devices)
    every = list(choices(costs))
    best = min(pairwise_ns(costs, choice) for choice in every)
    found = milp(pairwise_of(costs))
    assert found is not None
    assert found.value_ns == found.bound_ns == best
    assert pairwise_ns(costs, found.devices) == best
    if len(costs.devices) == 2:
        cut = min_cut(pairwise_of(costs))
        assert cut.value_ns == cut.bound_ns == best
        assert pairwise_ns(costs, cut.devices) == best
    whole = min(latency_ns(costs, affinity_of(costs, choice)) for choice in every)
    made = plan_graph(costs.graph, costs)
    assert round(made.predicted_us * 1000) == whole
    assert latency_ns(costs, made.affinity) == whole
    assert made.gap == 0.0


@pytest.mark.parametrize("seed", QUICK)
def test_planners_equal_brute_force(seed):
    check_against_all_choices(seed, most_units=7)


@pytest.mark.slow
@pytest.mark.parametrize("first", MANY[::50])
def test_planners_equal_brute_force_on_many(first):
    for seed in range(first, first + 50):
        # All choices of 12 units on three devices would be half a million predictions.
        n_devices = 2 + seed % 2
        check_against_all_choices(seed, most_units=12 if n_devices == 2 else 8, n_devices=n_devices)


@pytest.mark.parametrize("seed", range(12))
def test_min_cut_is_milp_on_larger_graphs(seed):
    costs = random_case(seed, most_units=120, n_devices=2, n_ops=40 + 12 * seed)
    pairwise = pairwise_of(costs)
    cut, program = min_cut(pairwise), milp(pairwise)
    assert program is not None
    assert cut.value_ns == program.value_ns == pairwise_ns(costs, cut.devices)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("n_devices", [2, 3])
def test_a_plan_is_between_its_bound_and_every_baseline(seed, n_devices):
    costs = random_case(seed, most_units=60, n_devices=n_devices, n_ops=60)
    made = plan_graph(costs.graph, costs, time_limit_s=10)
    assert made.lower_bound_us <= made.predicted_us
    assert made.predicted_us == costs.predict_us(made.affinity)
    labels = [baseline.label for baseline in made.baselines]
    assert labels[0] == "greedy"
    for baseline in made.baselines:
        assert made.predicted_us <= baseline.predicted_us == costs.predict_us(baseline.affinity)
        assert made.regret[baseline.label] == pytest.approx(
            baseline.predicted_us - made.predicted_us
        )
    alone = {d for d in costs.devices if all(set(u.ops) <= costs.supports(d) for u in costs.units)}
    assert set(labels[1:]) == alone


def test_sums_beyond_32_bits_are_exact():
    costs = random_case(3, most_units=12, n_devices=2)
    factor = 40_000_000
    large = CostModel(
        graph=costs.graph,
        devices=costs.devices,
        units=tuple(
            type(u)(u.ops, tuple(None if t is None else t * factor for t in u.time_us))
            for u in costs.units
        ),
        boundaries={
            pair: type(c)(c.fixed_us * factor, c.us_per_byte * factor)
            for pair, c in costs.boundaries.items()
        },
        subgraph_us=costs.subgraph_us,
    )
    best = min(pairwise_ns(large, choice) for choice in choices(large))
    assert best > 2**33
    assert min_cut(pairwise_of(large)).value_ns == best


@pytest.mark.parametrize("seed", range(20))
def test_throughput_is_the_least_time_of_the_busiest_device(seed):
    costs = random_case(seed, most_units=7)
    made = plan_graph(costs.graph, costs, objective="throughput")
    best = min(costs.predictor(affinity_of(costs, choice)).busiest_us for choice in choices(costs))
    assert made.predicted_us == best


def held_bytes(costs: CostModel, choice: tuple[int, ...], device: int) -> int:
    """Count constants and boundary tensors of a device from the partition."""
    from hetero_lab.model.opgraph import CONSTANT
    from hetero_lab.placement.partition import predict

    graph = costs.graph
    partition = predict(graph, affinity_of(costs, choice))
    total = 0
    for subgraph in partition.subgraphs:
        if subgraph.device != costs.devices[device]:
            continue
        seen, queue = set(), [graph.index_of[op] for op in subgraph.ops]
        queue = [i for i in queue if i in set(graph.placeable)]
        while queue:
            for producer, _ in graph.ops[queue.pop()].inputs:
                if producer in graph.constant_side and producer not in seen:
                    seen.add(producer)
                    queue.append(producer)
        total += sum(
            graph.ops[i].outputs[0].n_bytes or 0 for i in seen if graph.ops[i].type == CONSTANT
        )
    for boundary in partition.boundaries:
        n_bytes = graph.ops[graph.index_of[boundary.op]].outputs[boundary.port].n_bytes or 0
        for index in (boundary.source, *boundary.targets):
            if partition.subgraphs[index].device == costs.devices[device]:
                total += n_bytes
    return total


@pytest.mark.parametrize("seed", range(25))
def test_memory_limits_are_kept_and_the_best_within_them_is_found(seed):
    costs = random_case(seed, most_units=6)
    every = list(choices(costs))
    sizes = sorted({held_bytes(costs, choice, 0) for choice in every})
    limit = sizes[len(sizes) // 3]
    fitting = [choice for choice in every if held_bytes(costs, choice, 0) <= limit]
    best = min(latency_ns(costs, affinity_of(costs, choice)) for choice in fitting)
    made = plan_graph(costs.graph, costs, memory_limit={costs.devices[0]: limit})
    assert made.memory_bytes[costs.devices[0]] <= limit
    assert round(made.predicted_us * 1000) == best
    if sizes[0] > 0:
        with pytest.raises(PlanError, match="memory_limit"):
            plan_graph(costs.graph, costs, memory_limit={costs.devices[0]: sizes[0] - 1})


@pytest.mark.parametrize("seed", range(15))
def test_pins_are_kept_and_the_best_with_them_is_found(seed):
    costs = random_case(seed, most_units=7)
    number = (
        next(i for i, u in enumerate(costs.units) if None not in u.time_us)
        if any(None not in u.time_us for u in costs.units)
        else None
    )
    if number is None:
        pytest.skip("no unit may be everywhere")
    op, last = costs.units[number].ops[0], len(costs.devices) - 1
    best = min(
        latency_ns(costs, affinity_of(costs, choice))
        for choice in choices(costs)
        if choice[number] == last
    )
    made = plan_graph(costs.graph, costs, pin={f"^{op}$": costs.devices[last]})
    assert made.affinity[op] == costs.devices[last]
    assert round(made.predicted_us * 1000) == best
