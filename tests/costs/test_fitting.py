"""The design and the fit: costs that are known are found again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import openvino as ov
import pytest
import small_models
from openvino import opset13 as opset
from planning.random_costs import GraphMaker, random_graph

from hetero_lab.costs.cost_model import BoundaryCost, CostModel, LostFusion, Unit
from hetero_lab.costs.counter_costs import (
    LEAVES,
    Conversion,
    Example,
    ExecutedNode,
    Observation,
    guess,
    kept_layouts,
    read_parts,
)
from hetero_lab.costs.design import (
    alternating_affinities,
    cut_at,
    lone_cuts,
    middling_affinity,
    segmented_affinities,
)
from hetero_lab.costs.fitting import fit, with_prefill
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity

DEVICES = ("ACC", "CPU")


def single(graph: OpGraph) -> list[tuple[str, ...]]:
    return [(graph.ops[index].name,) for index in graph.placeable]


def everywhere(graph: OpGraph) -> dict[str, frozenset[str]]:
    return {d: frozenset(op for (op,) in single(graph)) for d in DEVICES}


def row(names: Iterable[str]) -> OpGraph:
    maker = GraphMaker()
    maker.chain(maker.add("Parameter"), names)
    return maker.graph()


def fused_chain(
    n_blocks: int, rng: random.Random, spread_us: float = 0.0
) -> tuple[OpGraph, CostModel]:
    """Return a chain of conv, add, relu that fuse, with random costs in whole ns."""
    maker = GraphMaker()
    x = maker.add("Parameter")
    units, lost = [], []
    for block in range(n_blocks):
        n_bytes = rng.choice([10_000, 40_000, 200_000])
        names = [f"{kind}{block}" for kind in ("conv", "add", "relu")]
        for name, kind in zip(names, ("Convolution", "Add", "Relu"), strict=True):
            x = maker.add(kind, [x], name=name, n_bytes=n_bytes)
        slow = rng.randint(20, 200)
        units.append(Unit(tuple(names), (slow / 3, float(slow)), (1.0, 0.0, 0.0)))
        apart = n_bytes / 5e3
        for first, second in itertools.pairwise(names):
            lost.append(LostFusion(first, second, (0.0, 0.0), (apart, apart * 1.5)))
    graph = maker.graph()
    costs = CostModel(
        graph=graph,
        devices=DEVICES,
        units=tuple(units),
        boundaries={
            ("ACC", "CPU"): BoundaryCost(2.0, 1.5e-4),
            ("CPU", "ACC"): BoundaryCost(4.0, 0.5e-4),
        },
        subgraph_us={"ACC": 5.0, "CPU": 2.0},
        constant_us=12.0,
        spread_us=spread_us,
        lost_fusion=tuple(lost),
    )
    return graph, costs


def observe(costs: CostModel, affinity, label: str, rng: np.random.Generator) -> Observation:
    """Return what counters and a clock would show of a placement, with noise of 1 %."""
    partition = costs.explain(affinity).partition
    home = partition.subgraph_of
    lost = {(t.first, t.second): t for t in costs.lost_fusion}
    nodes: list[ExecutedNode] = []
    for unit in costs.units:
        piece: list[str] = []
        us = 0.0
        for op in unit.ops:
            device = DEVICES.index(affinity[op])
            if piece and home[piece[-1]] != home[op]:
                nodes.append(ExecutedNode(tuple(piece), affinity[piece[0]], us, home[piece[0]]))
                term = lost[piece[-1], op]
                piece, us = [], term.second_us[device]
            if op == unit.ops[0]:
                us += unit.time_us[device] or 0.0
            piece.append(op)
        nodes.append(ExecutedNode(tuple(piece), affinity[piece[0]], us, home[piece[0]]))
    return Observation(
        label, affinity, costs.predict_us(affinity) * float(rng.lognormal(0, 0.01)), tuple(nodes)
    )


def uniform(graph: OpGraph, device: str) -> Affinity:
    return Affinity.from_graph(graph, lambda _: device)


def on_each_device(costs: CostModel) -> list[Observation]:
    rng = np.random.default_rng(0)
    return [observe(costs, uniform(costs.graph, device), device, rng) for device in DEVICES]


def counted(graph: OpGraph, device: str, us: float, **op_us: float) -> Observation:
    """Return what was measured and counted of a whole model on a device."""
    nodes = tuple(ExecutedNode((name,), device, time) for name, time in op_us.items())
    return Observation(device, uniform(graph, device), us, nodes)


def errors_of_a_fit(seed: int, spread_us: float = 0.0, wrong: float = 1.0) -> list[float]:
    """Fit 26 placements, one measured ``wrong`` times as long; return the errors of others."""
    rng = np.random.default_rng(seed)
    graph, costs = fused_chain(25, random.Random(seed), spread_us)
    support = everywhere(graph)
    affinities = segmented_affinities(graph, support, single(graph), 44, seed=seed)
    base = [uniform(graph, device) for device in DEVICES]
    observed = [observe(costs, a, str(i), rng) for i, a in enumerate([*base, *affinities[:24]])]
    observed[7] = observed[7].slower(wrong)
    found = fit(graph, support, observed)
    assert [unit.ops for unit in found.units] == [unit.ops for unit in costs.units]
    return [abs(found.predict_us(a) / costs.predict_us(a) - 1) for a in affinities[24:]]


@pytest.mark.parametrize("spread_us", [0.0, 700.0])
@pytest.mark.parametrize("seed", range(2))
def test_known_costs_are_found_again(seed, spread_us):
    errors = errors_of_a_fit(seed, spread_us)
    assert float(np.mean(errors)) < 0.03
    assert max(errors) < 0.12


def test_one_wrong_measurement_does_no_harm():
    assert float(np.mean(errors_of_a_fit(0, wrong=1.8))) < 0.04


def test_a_renamed_node_is_given_back_to_its_group():
    graph, costs = fused_chain(2, random.Random(0))
    whole = on_each_device(costs)
    # The device called the second block's kernel after its last op, and the join of the
    # counters gave the others to the block before.
    nodes = (
        ExecutedNode(("conv0", "add0", "relu0", "conv1", "add1"), "ACC", 10.0, 0),
        ExecutedNode(("relu1",), "ACC", 20.0, 0),
    )
    torn = replace(whole[0], nodes=nodes)
    parts = read_parts(graph, DEVICES, [*whole, torn, torn])
    assert parts.op_us["conv0", "ACC"] == 10.0
    assert parts.op_us["conv1", "ACC"] == 20.0
    assert all(max(t.second_us) < 100 for t in parts.lost_fusion)


def test_conversions_that_were_not_seen_are_told_from_their_like():
    graph, costs = fused_chain(6, random.Random(1))
    base = on_each_device(costs)
    seen = tuple(Conversion(f"relu{block}", 0, "ACC", LEAVES, 50.0) for block in range(3))
    parts = read_parts(graph, DEVICES, [*base, replace(base[0], conversions=seen)])
    leave: Mapping[str, float] = {term.op: term.leave_us[0] for term in parts.reorders}
    assert leave["relu0"] == 50.0
    assert 0.0 < leave["relu4"] <= 50.0 * 4 + 1e-9
    assert all(term.enter_us == (0.0, 0.0) for term in parts.reorders)


@pytest.mark.parametrize("seed", range(8))
def test_designed_placements_are_different_supported_and_spread(seed):
    rng = random.Random(seed)
    graph = random_graph(rng, 60)
    names = [op for (op,) in single(graph)]
    support = {"A": {op for op in names if rng.random() < 0.7}, "B": set(names)}
    made = segmented_affinities(graph, support, single(graph), 20, seed=seed)
    assert len(made) == len(set(made)) == 20
    for affinity in made:
        assert all(op in support[affinity[op]] for op in names)
    switches = sorted(sum(a[x] != a[y] for x, y in itertools.pairwise(names)) for a in made)
    assert switches[-1] - switches[0] >= 8
    shares = [sum(a[op] == "A" for op in names) / len(names) for a in made]
    assert max(shares) - min(shares) > 0.3


@pytest.mark.parametrize("seed", range(8))
def test_one_tensor_alone_crosses_a_lone_cut(seed):
    graph = random_graph(random.Random(seed), 12)
    order = [graph.ops[index].name for index in graph.placeable]
    lone = []
    for n in range(1, len(order)):
        before = set(order[:n])
        crossing = {
            (producer, port)
            for op in graph
            if op.name in order[n:]
            for producer, port in op.inputs
            if graph.ops[producer].name in before
        }
        if len(crossing) == 1:
            lone.append(frozenset(before))
    assert lone_cuts(graph) == lone
    some = lone_cuts(graph, 3)
    assert len(some) == min(3, len(lone))
    assert [cut for cut in lone if cut in some] == some


def test_a_state_is_not_cut_and_what_follows_it_is():
    x = opset.parameter([1, 4], np.float32, name="x")
    state = small_models.variable("v", 1, 4)
    read = opset.read_value(opset.constant(np.zeros((1, 4), np.float32)), state)
    total = opset.add(read, x, name="sum")
    assign = opset.assign(total, state)
    behind = opset.relu(opset.negative(total, name="after"), name="last")
    model = ov.Model([opset.result(behind, name="out")], [assign], [x], "stateful")
    graph = prepare(model).graph
    names = {graph.ops[index].name for index in graph.placeable}
    path = frozenset(names - {"after", "last"})
    assert lone_cuts(graph) == [path, path | {"after"}]


def test_each_op_stays_on_the_only_device_that_has_it():
    graph = random_graph(random.Random(3), 12)
    names = [op for (op,) in single(graph)]
    only = {op: "ABC"[number % 3] for number, op in enumerate(names)}
    support = {device: {op for op in names if only[op] == device} for device in "ABC"}
    (affinity,) = alternating_affinities(graph, support)
    assert {op: affinity[op] for op in names} == only


@pytest.mark.parametrize("seed", range(2))
def test_what_a_device_lacks_stays_on_the_other_side_of_a_cut(seed):
    rng = random.Random(seed)
    graph = random_graph(rng, 30)
    names = [op for (op,) in single(graph)]
    support = {"A": {op for op in names if rng.random() < 0.7}, "B": set(names)}
    before = set(names[: len(names) // 2])
    for devices in (("A", "B"), ("B", "A")):
        affinity = cut_at(graph, support, before, devices)
        for op in names:
            wanted = devices[op not in before]
            assert affinity[op] == (wanted if op in support[wanted] else "B")


def test_few_blocks_give_as_many_placements_as_there_are():
    graph = random_graph(random.Random(0), 2)
    made = segmented_affinities(graph, everywhere(graph), single(graph), 50)
    assert 1 <= len(made) <= 2 ** len(graph.placeable)


@pytest.mark.parametrize(("n", "most_switches"), [(200, 8), (6, 3), (2, 1), (1, 1)])
def test_a_middling_placement_gives_equal_shares_in_few_runs(n, most_switches):
    graph = row(f"op{number}" for number in range(n))
    affinity = middling_affinity(graph, everywhere(graph), single(graph))
    devices = [affinity[op] for (op,) in single(graph)]
    assert sum(a != b for a, b in pairwise(devices)) <= most_switches
    share = devices.count(DEVICES[0]) / n
    assert share == pytest.approx(1 / len(DEVICES), abs=0.01) or n < 200


def test_random_placements_give_a_device_a_tenth_to_nine_tenths():
    graph = row(f"op{number}" for number in range(300))
    made = segmented_affinities(graph, everywhere(graph), single(graph), 100)
    shares = [list(affinity.values()).count(DEVICES[0]) / 301 for affinity in made]
    assert len(made) == 100
    assert 0.09 < min(shares) < 0.13
    assert 0.87 < max(shares) < 0.91


# -- layouts: which op keeps whose, and what is learnt from conversions -------------------------


IMAGE = (1, 16, 8, 8)


def hard_swish() -> OpGraph:
    """Return conv → add → clip → multiply (with conv) → conv, and a residual sum."""
    maker = GraphMaker()
    conv = maker.add("Convolution", [maker.add("Parameter")], name="conv", shape=IMAGE)
    three = maker.add("Constant", n_bytes=4)
    add = maker.add("Add", [conv, three], name="add", shape=IMAGE)
    clip = maker.add("Clamp", [add], name="clip", shape=IMAGE)
    multiply = maker.add("Multiply", [conv, clip], name="multiply", shape=IMAGE)
    end = maker.add("Convolution", [multiply], name="end", shape=IMAGE)
    maker.add("Add", [end, multiply], name="residual", shape=IMAGE)
    flat = maker.add("Reshape", [end], name="flat", shape=(1, 1024))
    maker.add("Relu", [flat], name="relu", shape=(1, 1024))
    return maker.graph()


def test_ops_keep_the_layouts_of_what_they_read():
    assert kept_layouts(hard_swish()) == {
        "add": ("conv",),
        "clip": ("add",),
        "multiply": ("conv", "clip"),
        "residual": ("end", "multiply"),
    }


def test_only_tensors_of_the_same_shape_count_but_for_pooling_and_joining():
    maker = GraphMaker()
    conv = maker.add("Convolution", [maker.add("Parameter")], name="conv", shape=IMAGE)
    row = maker.add("Convolution", [conv], name="row", shape=(1, 16, 1, 8))
    scale = maker.add("ReduceMean", [conv], name="scale", shape=(1, 16, 1, 1))
    maker.add("Multiply", [conv, scale], name="scaled", shape=IMAGE)
    maker.add("Multiply", [conv, row], name="multiply", shape=IMAGE)
    maker.add("Multiply", [row, scale], name="broadcast", shape=IMAGE)
    pooled = maker.add("MaxPool", [conv], name="pool", shape=(1, 16, 4, 4))
    maker.add("Concat", [pooled, scale], name="joined", shape=(1, 16, 4, 5))
    two = maker.add("MaxPool", [conv], name="with_indices", shape=IMAGE, outputs=2)
    maker.add("Relu", [two], name="behind", shape=IMAGE)
    # A tensor without extent in space has one layout only.
    flat = maker.add("Convolution", [maker.add("Parameter")], name="flat", shape=(1, 64, 1, 1))
    maker.add("Relu", [flat], name="relu", shape=(1, 64, 1, 1))
    assert kept_layouts(maker.graph()) == {
        "scaled": ("conv",),
        "multiply": ("conv",),
        "pool": ("conv",),
        "joined": ("pool",),
    }


def test_what_entered_converted_says_nothing_of_leaving():
    graph = hard_swish()
    on = {op.name: "ACC" for op in graph}
    # Twice "clip" leaves ACC: with the op that chose its layout on ACC, and elsewhere.
    whole = seen({**on, "multiply": "CPU"}, graph, Conversion("clip", 0, "ACC", LEAVES, 40.0))
    entered = {**on, "conv": "CPU", "multiply": "CPU"}
    torn = seen(entered, graph, Conversion("clip", 0, "ACC", LEAVES, 0.0))
    parts = read_parts(graph, ("ACC", "CPU"), [whole, torn, torn])
    leave = {term.op: (term.leave_us[0], term.keeps) for term in parts.reorders}
    assert leave["clip"] == (40.0, ("add",))
    assert leave["multiply"] == (40.0, ("conv", "clip"))
    assert leave["conv"] == (40.0, ())


def test_a_layout_that_comes_by_any_way_is_kept():
    graph = hard_swish()
    on = {op.name: "ACC" for op in graph}
    # "residual" has the layout of "end", although "multiply" entered without one.
    placed = {**on, "conv": "CPU", "add": "CPU", "clip": "CPU", "multiply": "CPU"}
    found = seen(placed, graph, Conversion("residual", 0, "ACC", LEAVES, 30.0))
    (term,) = (t for t in read_parts(graph, ("ACC", "CPU"), [found]).reorders if t.op == "residual")
    assert term.leave_us[0] == 30.0


def seen(device_of: dict[str, str], graph: OpGraph, *conversions: Conversion) -> Observation:
    nodes = [
        ExecutedNode((op.name,), device_of[op.name], 5.0)
        for op in graph
        if op.type not in ("Parameter", "Constant", "Result")
    ]
    affinity = Affinity.from_graph(graph, device_of)
    return Observation("x", affinity, 100.0, tuple(nodes), conversions)


def test_a_time_is_guessed_from_the_four_nearest_examples_and_scaled_by_size():
    role = (("Relu",), ("Add",), ("Relu",))
    here, near = Example(role, IMAGE, 400), Example(role, IMAGE, 400, 2.0)
    far = Example((("Relu",), ("MatMul",), ("Relu",)), (1, 8), 800, 1e6)
    assert guess(here, [far, near, near, near, near]) == pytest.approx(2.0)
    assert guess(here, [far, near, near, near]) > 3.0
    assert guess(Example(role, IMAGE, 800), [near]) == pytest.approx(4.0)
    assert guess(Example(role, IMAGE, 40_000), [near]) == pytest.approx(8.0)  # four times at most
    assert guess(Example(role, None, 0), [near]) == 0.0
    assert guess(here, []) > 0.0


def test_what_no_counter_shows_is_in_proportion_to_the_other_device():
    graph = row("abc")
    on_acc = counted(graph, "ACC", 100.0, a=5.0, b=10.0)
    on_cpu = counted(graph, "CPU", 100.0, a=10.0, b=20.0, c=40.0)
    parts = read_parts(graph, DEVICES, [on_acc, on_cpu])
    assert parts.op_us["c", "ACC"] == 20.0
    assert ("c", "ACC") not in parts.runs
    assert parts.op_us["c", "CPU"] == 40.0


def test_how_far_the_constant_may_go_follows_the_shortest_latency():
    """A slow device whose counters tell all says nothing of what the quick one lacks."""
    graph = row("a")

    def constant_us(slow_us: float) -> float:
        slow = counted(graph, "CPU", slow_us, a=slow_us)
        observed = [counted(graph, "ACC", 180.0, a=100.0), slow]
        return fit(graph, everywhere(graph), observed).constant_us

    assert constant_us(1e5) == pytest.approx(constant_us(180.0), rel=0.1)


def test_what_runs_in_another_ops_node_costs_nothing_of_its_own():
    graph, costs = fused_chain(2, random.Random(0))
    found = fit(graph, everywhere(graph), on_each_device(costs))
    assert [unit.share_of_each for unit in found.units] == [(1.0, 0.0, 0.0)] * 2


def test_a_first_token_has_costs_where_one_was_measured():
    _, costs = fused_chain(2, random.Random(0))
    further = on_each_device(costs)
    assert with_prefill(costs, further) == costs
    both = with_prefill(costs, [replace(o, first_us=3.0 * o.measured_us) for o in further])
    assert replace(both, prefill=None) == costs
    for seen in further:
        assert both.predict_ttft_ms(seen.affinity) == pytest.approx(
            3e-3 * seen.measured_us, rel=0.1
        )
