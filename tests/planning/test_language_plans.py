"""The curve of layers and the plan for both phases, against all placements by definition."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from planning.brute_force import held_bytes
from planning.random_costs import affinity_of, by_layers, layered_costs, runs
from small_language_models import decoder

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, PlanError
from hetero_lab.model.opgraph import CONSTANT
from hetero_lab.model.read import prepare
from hetero_lab.model.static_phases import graph_at_context
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning.cost_model import BoundaryCost, CostModel, MeasuredBytes
from hetero_lab.planning.planner import plan_graph
from hetero_lab.tables import bytes_text

N = 4
SCENARIO = hl.Scenario(12, 4)


@pytest.fixture(scope="module")
def graph():
    return graph_at_context(prepare(decoder(N, empty_from="layer")), SCENARIO.context_tokens)


def costs_of(graph, devices: tuple[str, ...], seed: int) -> CostModel:
    return layered_costs(graph, devices, seed, SCENARIO)


def placements(costs: CostModel) -> dict[tuple[str, ...], Affinity]:
    """Return by the devices of the blocks all placements in which each device has one run."""
    return {way: by_layers(costs, way) for way in runs(costs.devices, N)}


def held_by_both(costs: CostModel, prefill: Affinity, decode: Affinity) -> dict[str, int]:
    """Add up what each device holds of two placements; weights and states of both once."""
    graph = costs.graph
    if prefill == decode:
        return held_bytes(costs, prefill)
    held = {
        d: sum(held_bytes(costs, a)[d] - held_bytes(costs, a, boundaries=False)[d]
               for a in (prefill, decode))
        for d in costs.devices
    }  # fmt: skip
    for op in graph:
        where = set()
        if op.type == "ReadValue":
            where = {prefill[op.name], decode[op.name]}
        elif op.type == CONSTANT:
            users = {graph.ops[use.index] for use in graph.consumers[op.index]}
            where = {a[u.name] for u in users if u.type != "Result" for a in (prefill, decode)}
        for device in where:
            held[device] += op.outputs[0].n_bytes or 0
    return held


def static_costs(model, seed: int) -> CostModel:
    return layered_costs(prepare(model).graph, ("A", "B"), seed)


def total_us(costs: CostModel, prefill: Affinity, decode: Affinity) -> float:
    assert costs.prefill is not None
    moved = 0.0
    for op in costs.graph:
        source, target = prefill[op.name], decode[op.name]
        if op.type == "ReadValue" and source != target:
            price = costs.boundaries[source, target]
            n_bytes = (op.outputs[0].n_bytes or 0) * 12 / 16
            moved += price.fixed_us + price.us_per_byte * n_bytes
    return costs.prefill.predict_us(prefill) + moved + 3 * costs.predict_us(decode)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_pair_of_placements_is_found(graph, seed):
    costs = costs_of(graph, ("A", "B"), seed)
    every = placements(costs)
    pairs = list(itertools.product(every.values(), repeat=2))
    held = [held_by_both(costs, *pair) for pair in pairs]
    most = sorted({h["A"] for h in held})
    for limit in ({}, {"A": most[len(most) // 3]}, {("A", "B"): int(1.2 * max(most))}):
        devices = {(k,) if isinstance(k, str) else k: n for k, n in limit.items()}
        fitting = [
            (total_us(costs, *pair), pair == (pair[0], pair[0]))
            for pair, h in zip(pairs, held, strict=True)
            if all(sum(h[d] for d in pool) <= n for pool, n in devices.items())
        ]
        plan = hl.llm.plan_phases(costs, memory_limit=limit)
        assert plan.total_ms * 1e3 == pytest.approx(min(us for us, _ in fitting), abs=0.01)
        assert plan.one_ms * 1e3 == pytest.approx(min(us for us, same in fitting if same), abs=0.01)
        assert plan.differ == (plan.prefill != plan.decode)
        assert plan.total_ms <= plan.one_ms + 1e-6
        assert ("different best placements" in plan.verdict) == plan.differ
        counted = dict(zip(plan.to_frame()["device"], plan.to_frame()["total_bytes"], strict=True))
        assert counted == held_by_both(costs, plan.prefill, plan.decode)


def test_phases_that_differ_are_told(graph):
    costs = costs_of(graph, ("A", "B"), 0)
    units = costs.units
    cheap = dict.fromkeys(costs.boundaries, BoundaryCost(0.1, 0.0))
    fast_b = replace(costs, units=tuple(replace(u, time_us=(50.0, 5.0)) for u in units))
    assert costs.prefill is not None
    fast_a = replace(costs.prefill, units=tuple(replace(u, time_us=(10.0, 900.0)) for u in units))
    plan = hl.llm.plan_phases(replace(fast_b, boundaries=cheap, prefill=fast_a))
    assert (plan.prefill.devices, plan.decode.devices) == (("A",), ("B",))
    assert plan.move_ms == pytest.approx(2 * N * 0.1e-3)
    weights = graph.weight_bytes
    assert [held.weight_bytes for held in plan.memory] == [weights, weights]
    dear = dict.fromkeys(costs.boundaries, BoundaryCost(1e6, 0.0))
    plan = hl.llm.plan_phases(replace(fast_b, boundaries=dear, prefill=fast_a))
    assert not plan.differ
    assert plan.verdict.startswith("One placement is best for both phases")


@pytest.mark.parametrize("devices", [("A", "B"), ("A", "B", "C")])
def test_each_number_of_layers_has_its_fastest_placement(graph, devices):
    costs = costs_of(graph, devices, 7)
    assert costs.prefill is not None
    every = placements(costs)
    curve = hl.llm.block_curve(costs)
    frame = curve.to_frame()
    assert frame["blocks"].tolist() == list(range(N + 1))
    for point in curve.points:
        alike = [a for way, a in every.items() if way.count("A") == point.n_blocks]
        assert point.tpot_ms * 1e3 == pytest.approx(min(map(costs.predict_us, alike)), abs=0.01)
        assert point.ttft_ms == pytest.approx(costs.predict_ttft_ms(point.affinity))
        held = held_bytes(costs, point.affinity)
        assert {m.device: m.total_bytes for m in point.memory} == held
        assert point.held_bytes("A") == held["A"]
    assert frame["tokens_per_s"].tolist() == pytest.approx((1e3 / frame["tpot_ms"]).tolist())
    assert frame["gain_tokens_per_s"][2] == pytest.approx(
        frame["tokens_per_s"][2] - frame["tokens_per_s"][1]
    )
    other = hl.llm.block_curve(costs, device=devices[-1], memory_limit={devices[-1]: 50_000})
    assert max(p.held_bytes(devices[-1]) for p in other.points) <= 50_000
    assert len(other.points) < N + 1


def test_the_curve_is_drawn(graph):
    curve = hl.llm.block_curve(replace(costs_of(graph, ("A", "B"), 7), emulated={"A": "CPU"}))
    figure = json.loads(str(hl.views.gallery(curve)["block_curve"].to_json()))
    frame = curve.to_frame()
    above, below = figure["data"]
    assert list(above["y"]) == frame["tokens_per_s"].tolist()
    assert list(below["y"]) == frame["ttft_ms"].tolist()
    assert above["hovertext"][2].startswith("<b>2 layers on A (emulated on CPU)</b>")
    notes = [note["text"] for note in figure["layout"]["annotations"]]
    assert notes == ["0 layers", "2 layers", "4 layers"]


@pytest.mark.parametrize("limit", [400_000, 1_100_000])
def test_measured_memory_takes_the_place_of_what_is_counted(graph, limit):
    costs = costs_of(graph, ("A", "B"), 3)
    every, layers = range(N + 2), range(1, N + 1)
    measured = [MeasuredBytes((unit,), 100_000 + unit, 50_000) for unit in every]
    measured.append(MeasuredBytes(tuple(layers), 80_000, 7))
    assert costs.prefill is not None
    prefill = replace(costs.prefill, measured_memory={"A": tuple(measured)})
    costs = replace(costs, measured_memory={"A": tuple(measured)}, prefill=prefill)

    def held(choice: tuple[str, ...], affinity: Affinity) -> int:
        units = [unit for unit in every if choice[unit] == "A"]
        counted = held_bytes(costs, affinity), held_bytes(costs, affinity, boundaries=False)
        boundaries = counted[0]["A"] - counted[1]["A"]
        some = 80_007 if {*units} & {*layers} else 0
        return sum(150_000 + unit for unit in units) + some + boundaries

    fitting = []
    for choice in itertools.product("AB", repeat=N + 2):
        affinity = affinity_of(costs, ["AB".index(device) for device in choice])
        if held(choice, affinity) <= limit:
            fitting.append(costs.predict_us(affinity))
    best = plan_graph(graph, costs, memory_limit={"A": limit})
    chosen = tuple(best.affinity[unit.ops[0]] for unit in costs.units)
    assert best.memory_bytes["A"] == held(chosen, best.affinity) <= limit
    assert best.memory_bytes["B"] == held_bytes(costs, best.affinity)["B"]
    solved = plan_graph(graph, costs, memory_limit={"A": limit}, solver="milp")
    assert solved.memory_bytes["A"] <= limit
    assert solved.lower_bound_us <= min(fitting) + 0.01
    curve = hl.llm.block_curve(costs, device="A", memory_limit={"A": limit})
    for point in curve.points:
        way = tuple(point.affinity[unit.ops[0]] for unit in costs.units)
        assert point.held_bytes("A") == held(way, point.affinity) <= limit
    both = hl.llm.plan_phases(costs, memory_limit={"A": limit})
    ops = [unit.ops[0] for unit in costs.units]
    units = [unit for unit in every if "A" in {both.prefill[ops[unit]], both.decode[ops[unit]]}]
    assert both.memory[0].weight_bytes == sum(100_000 + u for u in units) + 80_000 * bool(units)
    assert both.memory[0].total_bytes <= limit


def test_what_cannot_be_planned_is_said(graph):
    costs = costs_of(graph, ("A", "B"), 0)
    with pytest.raises(PlanError, match=r"A and B 10 B\) at a context of 16 tokens: the one that"):
        hl.llm.plan_phases(costs, memory_limit={("A", "B"): 10})
    every = [held_bytes(costs, affinity) for affinity in placements(costs).values()]
    excess = [sum(max(n - 50_000, 0) for n in held.values()) for held in every]
    nearest = [held for held, over in zip(every, excess, strict=True) if over == min(excess)]
    told = [f"{bytes_text(held['A'])} on A and {bytes_text(held['B'])} on B." for held in nearest]
    with pytest.raises(PlanError, match=r"A 50 KB; B 50 KB\).* comes nearest holds") as raised:
        hl.llm.plan_phases(costs, memory_limit={"A": 50_000, "B": 50_000})
    assert any(text in str(raised.value) for text in told)
    with pytest.raises(PlanError, match="'C', which is not planned for"):
        hl.llm.block_curve(costs, memory_limit={("A", "C"): 10})
    with pytest.raises(PlanError, match="'C' is not among the devices"):
        hl.llm.block_curve(costs, device="C")
    with pytest.raises(PlanError, match="first and a further token"):
        hl.llm.plan_phases(replace(costs, prefill=None))
    with pytest.raises(ArgumentError):
        hl.llm.block_curve("costs.json")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_static_models_are_planned_jointly(seed):
    phases = hl.llm.static_phases(hl.load(decoder(N, empty_from="layer")), SCENARIO)
    prefill, decode = static_costs(phases.prefill, seed), static_costs(phases.decode, seed + 100)
    new = SCENARIO.new_tokens - 1
    firsts, rests = placements(prefill), placements(decode)
    cache = {
        way: {d: sum(2 * 15 * 2 * 8 * 4 for there in way if there == d) for d in "AB"}
        for way in rests
    }

    def held(first, rest) -> dict[str, int]:
        return {
            d: held_bytes(prefill, firsts[first])[d]
            + held_bytes(decode, rests[rest])[d]
            + cache[rest][d]
            for d in "AB"
        }

    def took_ms(first, rest) -> float:
        move_us = sum(
            2 * decode.objective.fixed_ns["AB".index(a), "AB".index(b)] / 1e3
            + decode.objective.ns_per_byte["AB".index(a), "AB".index(b)] / 1e3 * 2 * 12 * 2 * 8 * 4
            for a, b in zip(first, rest, strict=True)
            if a != b
        )
        return (
            prefill.predict_us(firsts[first]) + move_us + new * decode.predict_us(rests[rest])
        ) / 1e3

    whole = sum(held(("A",) * N, ("A",) * N).values())
    for share in (1.0, 0.7, 0.4):
        limit = int(share * whole)
        ways = [w for w in itertools.product(firsts, rests) if held(*w)["A"] <= limit]
        plan = hl.llm.plan_static_phases(
            prefill, decode, SCENARIO, memory_limit={"A": limit, "B": 2 * whole}
        )
        assert plan.total_ms == pytest.approx(min(took_ms(*way) for way in ways), abs=2e-3)
        assert plan.memory[0].total_bytes <= limit
        first = next(way for way, affinity in firsts.items() if affinity == plan.prefill)
        rest = next(way for way, affinity in rests.items() if affinity == plan.decode)
        assert {m.device: m.total_bytes for m in plan.memory} == held(first, rest)
        assert plan.differ == (first != rest)


def test_costs_of_static_models_that_do_not_belong_together():
    phases = hl.llm.static_phases(hl.load(decoder(N, empty_from="layer")), SCENARIO)
    other = hl.llm.static_phases(hl.load(decoder(N - 1, empty_from="layer")), SCENARIO)
    prefill, decode = static_costs(phases.prefill, 0), static_costs(other.decode, 0)
    with pytest.raises(PlanError, match="4 layers on A, B, and 3"):
        hl.llm.plan_static_phases(prefill, decode, SCENARIO)
    decode = static_costs(phases.decode, 0)
    with pytest.raises(PlanError, match="keeps both static models within memory_limit"):
        hl.llm.plan_static_phases(prefill, decode, SCENARIO, memory_limit={"A": 10, "B": 10})
