"""Costs of a language model layer by layer, and the best placement by runs of layers."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from planning.brute_force import held_bytes
from planning.random_costs import affinity_of, by_layers, layered_costs, runs
from small_language_models import decoder

import hetero_lab as hl
from hetero_lab.errors import PlanError
from hetero_lab.model.read import prepare
from hetero_lab.model.static_phases import graph_at_context
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning import exhaustive, planner
from hetero_lab.planning.cost_model import BoundaryCost, CostModel
from hetero_lab.planning.counter_costs import ExecutedNode, Observation, read_parts
from hetero_lab.planning.design import block_affinities
from hetero_lab.planning.fitting import _of_layers, fit, with_prefill
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.units import block_units

N_BLOCKS = 5
SCENARIO = hl.Scenario(12, 4)
DEVICES = ("A", "B")


@pytest.fixture(scope="module")
def prepared():
    return prepare(decoder(N_BLOCKS, empty_from="layer"))


@pytest.fixture(scope="module")
def graph(prepared):
    return graph_at_context(prepared, SCENARIO.context_tokens)


@pytest.fixture(scope="module")
def layers(graph):
    return block_units(graph)


def costs_of(graph, seed: int) -> CostModel:
    return replace(layered_costs(graph, DEVICES, seed), scenario=SCENARIO)


def every_placement(costs: CostModel) -> list[Affinity]:
    return [affinity_of(costs, way) for way in itertools.product((0, 1), repeat=len(costs.units))]


@pytest.mark.parametrize("by_starts", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_best_placement_is_between_its_bound_and_all_runs(monkeypatch, graph, seed, by_starts):
    costs = costs_of(graph, seed)
    best_us = min(map(costs.predict_us, every_placement(costs)))
    of_runs = min(costs.predict_us(by_layers(costs, way)) for way in runs(DEVICES, N_BLOCKS))
    if by_starts:
        monkeypatch.setattr(planner, "SMALL", 0)
    found = plan_graph(graph, costs)
    assert found.lower_bound_us <= best_us + 1e-6
    assert best_us <= found.predicted_us + 1e-6
    assert found.predicted_us <= of_runs + 1e-6
    assert costs.predict_tpot_ms(found.affinity) == pytest.approx(found.predicted_us / 1e3)
    if not by_starts:
        assert found.predicted_us == pytest.approx(best_us)
        assert found.gap == 0.0


def test_every_other_layer_may_be_on_another_device(monkeypatch, graph, layers):
    costs = costs_of(graph, 0)
    other = (1, 3, 5)
    costs = replace(
        costs,
        units=tuple(
            replace(unit, time_us=(1.0, 100.0) if number in other else (100.0, 1.0))
            for number, unit in enumerate(costs.units)
        ),
        boundaries=dict.fromkeys(costs.boundaries, BoundaryCost(0.1, 0.0)),
        subgraph_us={"A": 0.1, "B": 0.1},
    )
    monkeypatch.setattr(planner, "SMALL", 0)
    found = plan_graph(graph, costs)
    wanted = {ops[0]: "A" if number in other else "B" for number, ops in enumerate(layers)}
    assert {op: found.affinity[op] for op in wanted} == wanted
    assert found.lower_bound_us <= found.predicted_us < 25.0


@pytest.mark.parametrize("small", [0, 12])
def test_pins_may_ask_for_more_runs_than_devices(monkeypatch, graph, layers, small):
    monkeypatch.setattr(planner, "SMALL", small)
    costs = costs_of(graph, 0)
    wanted = {layers[1][0]: "A", layers[3][0]: "B", layers[5][0]: "A"}
    pin = {f"^{re.escape(op)}$": device for op, device in wanted.items()}
    found = plan_graph(graph, costs, pin=pin)
    assert {op: found.affinity[op] for op in wanted} == wanted


def test_the_number_of_runs_that_are_compared_is_bounded():
    few = list(exhaustive.runs(50, 4, 12_000))
    assert len(few) == 4 + 12 * 49  # three runs each would be too many
    assert {len([*itertools.groupby(way)]) for way in few} == {1, 2}
    assert len(list(exhaustive.runs(5, 3, 12_000))) == 3 + 6 * 4 + 6 * 6


def test_layers_that_were_not_seen_on_a_device_take_as_long_as_those_that_were(graph, layers):
    costs = costs_of(graph, 0)
    us = {"A": 90.0, "B": 130.0}

    def seen(way: list[str]) -> Observation:
        by_layer = [way[0], *way, way[-1]]
        took = sum(us[device] for device in by_layer)
        nodes = tuple(
            ExecutedNode((ops[0],), device, us[device])
            for ops, device in zip(layers, by_layer, strict=True)
        )
        return Observation("".join(way), by_layers(costs, way), took, nodes)

    parts = read_parts(graph, DEVICES, [seen(["A"] * N_BLOCKS), seen(["A"] * 4 + ["B"])])
    found = _of_layers(graph, DEVICES, layers, parts).op_us
    of_b = [sum(found.get((op, "B"), 0.0) for op in ops) for ops in layers[2:-1]]
    assert of_b == pytest.approx([of_b[-1]] * (N_BLOCKS - 1))
    assert of_b[0] > 100.0


def test_the_best_that_fits_counts_the_cache(prepared, graph):
    costs = costs_of(graph, 0)
    alone = plan_graph(graph, costs, pin={"": "A"})
    half = int(0.8 * alone.memory_bytes["A"])
    found = plan_graph(graph, costs, memory_limit={"A": half, "B": half})
    assert max(found.memory_bytes.values()) <= half
    fitting = [a for a in every_placement(costs) if max(held_bytes(costs, a).values()) <= half]
    assert found.predicted_us == pytest.approx(min(map(costs.predict_us, fitting)))
    longer = graph_at_context(prepared, 10 * 16)
    more = plan_graph(longer, costs_of(longer, 0), pin={"": "A"})
    state_bytes = 2 * N_BLOCKS * 2 * 8 * 4  # two states a block: heads, size of a head, f32
    assert more.memory_bytes["A"] - alone.memory_bytes["A"] == 9 * 16 * state_bytes
    with pytest.raises(PlanError, match="memory_limit"):
        plan_graph(graph, costs, memory_limit={"A": 1000, "B": 1000})


def test_what_a_language_model_is_not_planned_for(graph):
    costs = costs_of(graph, 0)
    with pytest.raises(PlanError, match="one request in flight"):
        plan_graph(graph, costs, objective="throughput")
    with pytest.raises(PlanError, match="scenario="):
        costs.predict_ttft_ms(by_layers(costs, ["A"] * N_BLOCKS))


def test_cuts_are_spread_and_go_both_ways(graph, layers):
    support = {d: {op for ops in layers for op in ops} for d in DEVICES}
    found = block_affinities(graph, support, layers, 100)
    costs = costs_of(graph, 0)
    wanted = {by_layers(costs, way) for way in runs(DEVICES, N_BLOCKS) if len(set(way)) > 1}
    assert set(found) == wanted
    n_first = sum(found[0][ops[0]] == "A" for ops in layers[1:-1])
    assert n_first in (2, 3)  # in the middle
    assert found[1][layers[1][0]] == "B"
    support["A"] -= set(layers[3])  # the third block
    left = block_affinities(graph, support, layers, 100)
    assert {a[layers[3][0]] for a in left} == {"B"}
    assert 0 < len(left) < len(found)


def test_times_of_unseen_cuts_follow_from_a_few(graph, layers):
    took = {"A": 90.0, "B": 130.0}
    head = {"A": 400.0, "B": 700.0}

    def measured_us(devices: list[str]) -> float:
        layers_us = sum(took[device] for device in devices) + head[devices[-1]]
        return 300.0 + layers_us + 40.0 * (len(set(devices)) - 1)

    def nodes(device: str, rng) -> tuple[ExecutedNode, ...]:
        """Return what noisy counters say of the layers."""
        times = [(layers[-1], head[device])] + [(ops, took[device]) for ops in layers[1:-1]]
        return tuple(
            ExecutedNode((ops[0],), device, us * rng.uniform(0.7, 1.3)) for ops, us in times
        )

    rng, known = np.random.default_rng(0), costs_of(graph, 0)
    ways = [["A"] * 5, ["B"] * 5, ["A", "A", "B", "B", "B"], ["B"] + ["A"] * 4]
    seen = [
        Observation(
            str(way), by_layers(known, way), measured_us(way),
            nodes(way[0], rng) if len(set(way)) == 1 else (), first_us=7 * measured_us(way),
        )
        for way in ways
    ]  # fmt: skip
    support = {d: {op for ops in layers for op in ops} for d in took}
    costs = with_prefill(fit(graph, support, seen, layers=layers), seen)
    alike = [unit.time_us for unit in costs.units[2:-1]]
    np.testing.assert_allclose(alike, [alike[0]] * len(alike))
    assert costs.prefill is not None
    for way in map(list, runs(DEVICES, N_BLOCKS)):
        affinity = by_layers(known, way)
        assert costs.predict_us(affinity) == pytest.approx(measured_us(way), rel=0.06)
        first_ms = 7e-3 * measured_us(way)
        assert costs.predict_ttft_ms(affinity) == pytest.approx(first_ms, rel=0.1)


def test_costs_hold_for_their_scenario(prepared, graph, own_core):
    costs = replace(layered_costs(graph, ("ACC", "CPU"), 0), scenario=SCENARIO)
    for other in (hl.Scenario(4096, 512), replace(SCENARIO, batch=2)):
        with pytest.raises(PlanError, match="holds for scenario=Scenario.*12.*not Scenario"):
            hl.optimize(prepared.model, ["ACC", "CPU"], costs=costs, scenario=other, core=own_core)
    assert own_core.n_compiled == 0


def test_costs_of_both_phases_are_stored(graph, tmp_path):
    costs = layered_costs(graph, DEVICES, 1, SCENARIO)
    costs.to_json(tmp_path / "costs.json")
    assert CostModel.from_json(tmp_path / "costs.json") == costs
