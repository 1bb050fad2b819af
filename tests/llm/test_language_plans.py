"""Placements of language models by layer, against all placements by definition.

Costs layer by layer, the best placement by runs of layers, the curve of layers, the plan for both
phases, and what fits.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from planning.brute_force import held_bytes
from planning.random_costs import affinity_of, by_layers, layered_costs, runs
from slices import sliced
from small_language_models import decoder

import hetero_lab as hl
from hetero_lab.costs.cost_model import BoundaryCost, CostModel, MeasuredBytes
from hetero_lab.costs.counter_costs import ExecutedNode, Observation, read_parts
from hetero_lab.costs.design import block_affinities, block_units
from hetero_lab.costs.fitting import _of_layers, fit, with_prefill
from hetero_lab.errors import PlanError
from hetero_lab.model.opgraph import CONSTANT
from hetero_lab.model.read import prepare
from hetero_lab.model.static_phases import graph_at_context
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning import block_fit, planner
from hetero_lab.planning.planner import plan_graph
from hetero_lab.tables import bytes_text

N, DEVICES = 5, ("A", "B")
SCENARIO = hl.Scenario(12, 4)


@pytest.fixture(scope="module")
def prepared():
    return prepare(decoder(N, empty_from="layer"))


@pytest.fixture(scope="module")
def graph(prepared):
    return graph_at_context(prepared, SCENARIO.context_tokens)


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
    return layered_costs(prepare(model).graph, DEVICES, seed)


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


@pytest.mark.parametrize("seed", sliced(range(4), quick=1))
def test_the_best_pair_of_placements_is_found(graph, seed):
    costs = costs_of(graph, DEVICES, seed)
    every = placements(costs)
    pairs = list(itertools.product(every.values(), repeat=2))
    held = [held_by_both(costs, *pair) for pair in pairs]
    totals = [total_us(costs, *pair) for pair in pairs]
    most = sorted({h["A"] for h in held})
    for limit in ({}, {"A": most[len(most) // 3]}, {("A", "B"): int(1.2 * max(most))}):
        devices = {(k,) if isinstance(k, str) else k: n for k, n in limit.items()}
        fitting = [
            (total, pair == (pair[0], pair[0]))
            for total, pair, h in zip(totals, pairs, held, strict=True)
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
    costs = costs_of(graph, DEVICES, 0)
    units = costs.units
    cheap = dict.fromkeys(costs.boundaries, BoundaryCost(0.1, 0.0))
    fast_b = replace(costs, units=tuple(structs.replace(u, time_us=(50.0, 5.0)) for u in units))
    assert costs.prefill is not None
    fast_a = replace(
        costs.prefill, units=tuple(structs.replace(u, time_us=(10.0, 900.0)) for u in units)
    )
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
    curve = hl.llm.block_curve(replace(costs_of(graph, DEVICES, 7), emulated={"A": "CPU"}))
    figure = json.loads(str(hl.views.gallery(curve)["block_curve"].to_json()))
    frame = curve.to_frame()
    above, below = figure["data"]
    assert list(above["y"]) == frame["tokens_per_s"].tolist()
    assert list(below["y"]) == frame["ttft_ms"].tolist()
    assert above["hovertext"][2].startswith("<b>2 layers on A (emulated on CPU)</b>")
    notes = [note["text"] for note in figure["layout"]["annotations"]]
    assert notes == ["0 layers", "3 layers", "5 layers"]


def test_measured_memory_takes_the_place_of_what_is_counted(graph):
    limit = 400_000
    costs = costs_of(graph, DEVICES, 3)
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


def test_what_cannot_be_planned_is_said(prepared, graph, own_core):
    costs = costs_of(graph, DEVICES, 0)
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
    with pytest.raises(PlanError, match="one request in flight"):
        plan_graph(graph, costs, objective="throughput")
    costs = replace(layered_costs(graph, ("ACC", "CPU"), 0), scenario=SCENARIO)
    for other in (hl.Scenario(4096, 512), replace(SCENARIO, batch=2)):
        with pytest.raises(PlanError, match="holds for scenario=Scenario.*12.*not Scenario"):
            hl.optimize(prepared.model, ["ACC", "CPU"], costs=costs, scenario=other, core=own_core)
    assert own_core.n_compiled == 0


@pytest.fixture(scope="module")
def phases():
    return hl.llm.static_phases(hl.load(decoder(N, empty_from="layer")), SCENARIO)


@pytest.mark.parametrize("seed", sliced(range(4), quick=1))
def test_static_models_are_planned_jointly(phases, seed):
    prefill, decode = static_costs(phases.prefill, seed), static_costs(phases.decode, seed + 100)
    new = SCENARIO.new_tokens - 1
    firsts, rests = placements(prefill), placements(decode)
    first_bytes = {way: held_bytes(prefill, affinity) for way, affinity in firsts.items()}
    rest_bytes = {way: held_bytes(decode, affinity) for way, affinity in rests.items()}
    first_us = {way: prefill.predict_us(affinity) for way, affinity in firsts.items()}
    rest_us = {way: decode.predict_us(affinity) for way, affinity in rests.items()}
    cache = {
        way: {d: sum(2 * 15 * 2 * 8 * 4 for there in way if there == d) for d in "AB"}
        for way in rests
    }

    def held(first, rest) -> dict[str, int]:
        return {d: first_bytes[first][d] + rest_bytes[rest][d] + cache[rest][d] for d in "AB"}

    def took_ms(first, rest) -> float:
        move_us = sum(
            2 * decode.objective.fixed_ns["AB".index(a), "AB".index(b)] / 1e3
            + decode.objective.ns_per_byte["AB".index(a), "AB".index(b)] / 1e3 * 2 * 12 * 2 * 8 * 4
            for a, b in zip(first, rest, strict=True)
            if a != b
        )
        return (first_us[first] + move_us + new * rest_us[rest]) / 1e3

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


def test_costs_of_static_models_that_do_not_belong_together(phases):
    other = hl.llm.static_phases(hl.load(decoder(N - 1, empty_from="layer")), SCENARIO)
    prefill, decode = static_costs(phases.prefill, 0), static_costs(other.decode, 0)
    with pytest.raises(PlanError, match="5 layers on A, B, and 4"):
        hl.llm.plan_static_phases(prefill, decode, SCENARIO)
    decode = static_costs(phases.decode, 0)
    with pytest.raises(PlanError, match="keeps both static models within memory_limit"):
        hl.llm.plan_static_phases(prefill, decode, SCENARIO, memory_limit={"A": 10, "B": 10})


# -- costs layer by layer, and runs of layers ---------------------------------------------------


@pytest.fixture(scope="module")
def layers(graph):
    return block_units(graph)


def every_placement(costs: CostModel) -> list[Affinity]:
    return [affinity_of(costs, way) for way in itertools.product((0, 1), repeat=len(costs.units))]


@pytest.mark.parametrize("by_starts", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_best_placement_is_between_its_bound_and_all_runs(monkeypatch, graph, seed, by_starts):
    costs = costs_of(graph, DEVICES, seed)
    best_us = min(map(costs.predict_us, every_placement(costs)))
    of_runs = min(costs.predict_us(by_layers(costs, way)) for way in runs(DEVICES, N))
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
    costs = costs_of(graph, DEVICES, 0)
    other = (1, 3, 5)
    costs = replace(
        costs,
        units=tuple(
            structs.replace(unit, time_us=(1.0, 100.0) if number in other else (100.0, 1.0))
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
    costs = costs_of(graph, DEVICES, 0)
    wanted = {layers[1][0]: "A", layers[3][0]: "B", layers[5][0]: "A"}
    pin = {f"^{re.escape(op)}$": device for op, device in wanted.items()}
    found = plan_graph(graph, costs, pin=pin)
    assert {op: found.affinity[op] for op in wanted} == wanted


def test_layers_that_were_not_seen_on_a_device_take_as_long_as_those_that_were(graph, layers):
    costs = costs_of(graph, DEVICES, 0)
    us = {"A": 90.0, "B": 130.0}

    def seen(way: list[str]) -> Observation:
        by_layer = [way[0], *way, way[-1]]
        took = sum(us[device] for device in by_layer)
        nodes = tuple(
            ExecutedNode((ops[0],), device, us[device])
            for ops, device in zip(layers, by_layer, strict=True)
        )
        return Observation("".join(way), by_layers(costs, way), took, nodes)

    parts = read_parts(graph, DEVICES, [seen(["A"] * N), seen(["A"] * 4 + ["B"])])
    found = _of_layers(graph, DEVICES, layers, parts).op_us
    of_b = [sum(found.get((op, "B"), 0.0) for op in ops) for ops in layers[2:-1]]
    assert of_b == pytest.approx([of_b[-1]] * (N - 1))
    assert of_b[0] > 100.0


def test_the_best_that_fits_counts_the_cache(prepared, graph):
    costs = costs_of(graph, DEVICES, 0)
    alone = plan_graph(graph, costs, pin={"": "A"})
    half = int(0.8 * alone.memory_bytes["A"])
    found = plan_graph(graph, costs, memory_limit={"A": half, "B": half})
    assert max(found.memory_bytes.values()) <= half
    fitting = [a for a in every_placement(costs) if max(held_bytes(costs, a).values()) <= half]
    assert found.predicted_us == pytest.approx(min(map(costs.predict_us, fitting)))
    longer = graph_at_context(prepared, 10 * 16)
    more = plan_graph(longer, costs_of(longer, DEVICES, 0), pin={"": "A"})
    state_bytes = 2 * N * 2 * 8 * 4  # two states a block: heads, size of a head, f32
    assert more.memory_bytes["A"] - alone.memory_bytes["A"] == 9 * 16 * state_bytes
    with pytest.raises(PlanError, match="memory_limit"):
        plan_graph(graph, costs, memory_limit={"A": 1000, "B": 1000})


def test_cuts_are_spread_and_go_both_ways(graph, layers):
    support = {d: {op for ops in layers for op in ops} for d in DEVICES}
    found = block_affinities(graph, support, layers, 100)
    costs = costs_of(graph, DEVICES, 0)
    wanted = {by_layers(costs, way) for way in runs(DEVICES, N) if len(set(way)) > 1}
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

    rng, known = np.random.default_rng(0), costs_of(graph, DEVICES, 0)
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
    for way in map(list, runs(DEVICES, N)):
        affinity = by_layers(known, way)
        assert costs.predict_us(affinity) == pytest.approx(measured_us(way), rel=0.06)
        first_ms = 7e-3 * measured_us(way)
        assert costs.predict_ttft_ms(affinity) == pytest.approx(first_ms, rel=0.1)


# -- as many blocks as fit ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    hl.emulate("ACC")
    return prepare(decoder(4))


def held(fit):
    return {m.device: (m.weight_bytes, m.state_bytes, m.boundary_bytes) for m in fit.memory}


def test_all_on_the_first_device_where_it_fits(small):
    fit = hl.fit_blocks(small, ["ACC", "CPU"], {"ACC": "1GiB"}, context_tokens=100)
    assert fit.affinity == hl.Affinity.uniform(small, "ACC")
    # 4 layers, 2 states each, of 2 heads of 8 f32 numbers for each of 100 tokens
    assert held(fit) == {"ACC": (small.graph.weight_bytes, 4 * 2 * 2 * 8 * 100 * 4, 0),
                         "CPU": (0, 0, 0)}  # fmt: skip
    more = hl.fit_blocks(small, ["ACC", "CPU"], {}, context_tokens=50, batch=3)
    assert more.memory[0].state_bytes == 4 * 2 * 2 * 8 * 50 * 4 * 3


def test_as_many_blocks_as_fit_and_not_one_more(small):
    """Against the bytes of every cut, added up from their definition op by op."""
    sized = graph_at_context(small, 64)
    totals = []
    for n_first in range(5):
        cut = {block: "ACC" if block < n_first else "CPU" for block in range(4)}
        affinity = hl.Affinity.by_block(small, cut)
        total = 0
        for op in sized:
            n_bytes = sum(tensor.n_bytes or 0 for tensor in op.outputs)
            on = {affinity[sized.ops[use.index].name] for use in sized.consumers[op.index]
                  if sized.ops[use.index].type != "Result"}  # fmt: skip
            if op.type == "Constant":
                total += n_bytes * ("ACC" in on)
            elif on - {affinity[op.name]} and "ACC" in on | {affinity[op.name]}:
                total += n_bytes
            if op.type == "ReadValue" and affinity[op.name] == "ACC":
                total += n_bytes
        totals.append(total)
    for n_first, total in enumerate(totals):
        fitting = max(n for n, t in enumerate(totals) if t <= total)
        fit = hl.fit_blocks(small, ["ACC", "CPU"], {"ACC": total}, context_tokens=64)
        assert fit.memory[0].total_bytes == totals[fitting] <= total
        assert fitting >= n_first
        by_block = {block: "ACC" if block < fitting else "CPU" for block in range(4)}
        assert fit.affinity == hl.Affinity.by_block(small, by_block)


def test_devices_that_share_a_memory(small):
    sizes = [hl.fit_blocks(small, ["ACC"], {}, context_tokens=n).memory[0] for n in (10, 1000)]
    assert sizes[0].total_bytes < sizes[1].total_bytes
    limit = {("ACC", "CPU"): 2 * sizes[0].total_bytes, "ACC": sizes[0].total_bytes // 2}
    fit = hl.fit_blocks(small, ["ACC", "CPU"], limit, context_tokens=10)
    assert fit.memory[0].total_bytes <= sizes[0].total_bytes // 2
    assert sum(m.total_bytes for m in fit.memory) <= 2 * sizes[0].total_bytes
    with pytest.raises(PlanError, match=r"ACC and CPU .* at the least .* needed.* 1000 tokens"):
        hl.fit_blocks(small, ["ACC", "CPU"], limit, context_tokens=1000)


def test_three_devices_are_filled_in_their_order(small):
    hl.emulate("ACC2")
    all_of_it = hl.fit_blocks(small, ["ACC"], {}).memory[0].total_bytes
    limit = {"ACC": 6 * all_of_it // 10, "ACC2": all_of_it // 2}
    fit = hl.fit_blocks(small, ["ACC", "ACC2", "CPU"], limit)
    assert all(m.total_bytes <= limit.get(m.device, m.total_bytes) for m in fit.memory)
    ranges = [m.blocks for m in fit.memory if m.blocks]
    numbers = [n for r in ranges for n in range(int(r.split("-")[0]), int(r.split("-")[-1]) + 1)]
    assert numbers == list(range(4))
    assert list(fit.to_frame()["device"]) == ["ACC", "ACC2", "CPU"]


def test_splits_that_exceed_a_limit_by_themselves_cost_no_try(monkeypatch):
    model, devices = prepare(decoder(8)), ["ACC", "ACC2", "ACC3", "CPU"]
    for device in devices[:3]:
        hl.emulate(device)
    total = hl.fit_blocks(model, ["CPU"], {}, context_tokens=16).memory[0].total_bytes
    limit = dict.fromkeys(devices, int(0.36 * total))
    monkeypatch.setattr(block_fit, "_MOST_SPLITS", 40)  # without limits it is the 69th
    fit = hl.fit_blocks(model, devices, limit, context_tokens=16)
    assert all(m.total_bytes <= limit[m.device] for m in fit.memory)
    assert fit.memory[-1].blocks.endswith("7")
    monkeypatch.setattr(block_fit, "_MOST_SPLITS", 1)
    with pytest.raises(PlanError, match="None of the first 1 ways to divide 8 blocks"):
        hl.fit_blocks(model, devices, limit, context_tokens=16)


def test_limits_that_cannot_be_kept(small):
    total = hl.fit_blocks(small, ["CPU"], {}).memory[0].total_bytes
    for limit, says in (
        ({"ACC": total // 3, "CPU": total // 3},
         f"at the least {bytes_text(total)} are needed together"),
        ({"GPU": "1GiB"}, "'GPU', which is not planned for"),
        ({"ACC": "much"}, "not a number of bytes"),
        ({("ACC", "CPU"): 10}, "No placement by block keeps within"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=says):
            hl.fit_blocks(small, ["ACC", "CPU"], limit)


def test_shapes_at_a_context_length(small):
    sized = graph_at_context(small, 64, batch=2)
    shapes = {op.outputs[0].shape for op in sized if op.type == "ReadValue"}
    assert shapes == {(2, 2, 64, 8)}
    for op, whole in itertools.zip_longest(sized, small.graph):
        assert all(t.n_bytes is not None for t in op.outputs)
        assert op.inputs == whole.inputs
    static = prepare("digits_inception")
    assert graph_at_context(static, 77) == static.graph
