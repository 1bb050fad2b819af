"""Which ops keep whose layout, and what is learnt from conversions where one was kept."""

from __future__ import annotations

from planning.random_costs import GraphMaker

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning.counter_costs import kept_layouts, read_parts
from hetero_lab.planning.observations import LEAVES, Conversion, Node, Observation


def hard_swish() -> OpGraph:
    """Return conv → add → clip → multiply (with conv) → conv, and a residual sum."""
    maker = GraphMaker()
    conv = maker.add("Convolution", [maker.add("Parameter")], name="conv")
    three = maker.add("Constant", n_bytes=4)
    add = maker.add("Add", [conv, three], name="add")
    clip = maker.add("Clamp", [add], name="clip")
    multiply = maker.add("Multiply", [conv, clip], name="multiply")
    end = maker.add("Convolution", [multiply], name="end")
    maker.add("Add", [end, multiply], name="residual")
    maker.add("Relu", [maker.add("Reshape", [end], name="flat")], name="relu")
    return maker.graph()


def test_elementwise_ops_keep_the_layout_of_what_they_read():
    found = kept_layouts(hard_swish())
    assert found.root == {"add": "conv", "clip": "conv", "multiply": "conv", "relu": "flat"}
    assert found.path("multiply") == {"conv", "add", "clip", "multiply"}
    assert found.path("clip") == {"conv", "add", "clip"}
    assert found.path("residual") == {"residual"}


def test_a_tensor_of_another_shape_has_no_say():
    maker = GraphMaker()
    conv = maker.add("Convolution", [maker.add("Parameter")], name="conv", n_bytes=400)
    scale = maker.add("ReduceMean", [conv], name="scale", n_bytes=4)
    maker.add("Multiply", [conv, scale], name="multiply", n_bytes=400)
    maker.add("Multiply", [scale, conv], name="broadcast", n_bytes=800)
    assert kept_layouts(maker.graph()).root == {"multiply": "conv"}


def test_what_entered_converted_says_nothing_of_leaving():
    graph = hard_swish()
    on = {op.name: "ACC" for op in graph}
    # Twice "clip" leaves ACC: with the op that chose its layout on ACC, and elsewhere.
    whole = seen({**on, "multiply": "CPU"}, graph, Conversion("clip", 0, "ACC", LEAVES, 40.0))
    entered = {**on, "conv": "CPU", "multiply": "CPU"}
    torn = seen(entered, graph, Conversion("clip", 0, "ACC", LEAVES, 0.0))
    parts = read_parts(graph, ("ACC", "CPU"), [whole, torn, torn])
    leave = {term.op: (term.leave_us[0], term.layout_of) for term in parts.reorders}
    assert leave["clip"] == (40.0, "conv")
    assert leave["multiply"] == (40.0, "conv")
    assert leave["conv"] == (40.0, "")


def seen(device_of: dict[str, str], graph: OpGraph, *conversions: Conversion) -> Observation:
    nodes = [
        Node((op.name,), device_of[op.name], 5.0)
        for op in graph
        if op.type not in ("Parameter", "Constant", "Result")
    ]
    affinity = Affinity.from_graph(graph, device_of)
    return Observation("x", affinity, 100.0, tuple(nodes), conversions)
