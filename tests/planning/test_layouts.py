"""Which ops keep whose layout, and what is learnt from conversions where one was kept."""

from __future__ import annotations

from planning.random_costs import GraphMaker

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning.counter_costs import (
    LEAVES,
    Conversion,
    ExecutedNode,
    Observation,
    kept_layouts,
    read_parts,
)

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
    assert kept_layouts(maker.graph()) == {
        "scaled": ("conv",),
        "multiply": ("conv",),
        "pool": ("conv",),
        "joined": ("pool",),
    }


def test_a_tensor_without_extent_in_space_has_one_layout_only():
    maker = GraphMaker()
    conv = maker.add("Convolution", [maker.add("Parameter")], name="conv", shape=(1, 64, 1, 1))
    maker.add("Relu", [conv], name="relu", shape=(1, 64, 1, 1))
    assert kept_layouts(maker.graph()) == {}


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
