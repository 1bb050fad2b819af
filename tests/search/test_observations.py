"""What a search reads from counters, and times where a device has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from counting_core import F32
from planning.random_costs import GraphMaker
from small_models import chain

import hetero_lab as hl
from hetero_lab.costs.counter_costs import ENTERS, LEAVES, Conversion, ExecutedNode
from hetero_lab.devices.bound import bind
from hetero_lab.measure.session import Conditions
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.runtime.counters import Counter
from hetero_lab.search.observations import isolated_nodes, nodes_and_conversions


@pytest.mark.parametrize("extra", [0.0, 0.5])
def test_each_conversion_counts_at_its_boundary_or_with_the_op_beside_it(extra):
    """Whole microseconds were rounded down: half of one is added to each."""
    maker = GraphMaker()
    x = maker.add("Parameter", name="x")
    b = maker.chain(x, ["a", "b"])
    maker.add("Result", [maker.chain(b, ["c", "c_d"])], name="out")
    graph = maker.graph()
    devices = {"c": "B", "c_d": "B"}
    partition = predict(graph, Affinity.from_graph(graph, lambda name: devices.get(name, "A")))
    (boundary,) = partition.boundaries

    def counter(subgraph: int, us: float, kind: str, **more: Any) -> Counter:
        name = more.pop("name", "reorder")
        us += 0.0 if extra else 0.25
        device = "AB"[subgraph]
        return Counter(subgraph, device, name, "", "", "", "EXECUTED", us, us, kind=kind, **more)

    reorder = "reorder"
    rows = [
        counter(0, 10.0, "op", op="a", fused_ops=("b",)),
        counter(1, 20.0, "op", op="c"),
        counter(1, 30.0, "op", op="c_d"),
        counter(0, 1.0, reorder, tensor="x"),  # read by a
        counter(0, 2.0, reorder, tensor=boundary.tensor),
        counter(1, 3.0, reorder, tensor=boundary.tensor),
        counter(1, 4.0, reorder, tensor="out"),  # made by c_d
        counter(1, 5.0, reorder, name="c_d_abcd"),
        counter(1, 6.0, reorder, name="copy_of_c"),
        counter(0, 7.0, reorder, op="b"),
        counter(0, 9.0, "other"),
    ]
    each = extra or 0.25
    nodes, conversions = nodes_and_conversions(rows, partition, graph)
    assert nodes == (
        ExecutedNode(("a", "b"), "A", 10.0 + 1.0 + 7.0 + 3 * each, 0),
        ExecutedNode(("c",), "B", 20.0 + 6.0 + 2 * each, 1),
        ExecutedNode(("c_d",), "B", 30.0 + 4.0 + 5.0 + 3 * each, 1),
    )
    assert conversions == (
        Conversion("b", 0, "A", LEAVES, 2.0 + each),
        Conversion("b", 0, "B", ENTERS, 3.0 + each),
    )
    assert nodes_and_conversions([], partition, graph) == ((), ())


def test_without_counters_each_op_of_a_device_is_timed_once(core):
    names = "abcdefghijklmn"
    bound = bind(chain(*names), core)
    conditions = Conditions(None, 0)
    in_f32 = dict.fromkeys(["ACC", "CPU"], F32)
    observer: Any = SimpleNamespace(
        search=SimpleNamespace(bound=bound, session=SimpleNamespace(conditions=conditions)),
        placement=lambda affinity, label: hl.Placement(affinity, label, in_f32),
    )
    support = {"ACC": frozenset(names) - {"c"}, "CPU": frozenset(names)}
    known = [ExecutedNode((name,), "CPU", 3.0 if name == "b" else 1.0) for name in names]
    nodes = isolated_nodes(observer, "ACC", support, known)
    assert sorted(node.ops for node in nodes) == [(name,) for name in names if name != "c"]
    assert {node.device for node in nodes} == {"ACC"}
    us = {node.ops[0]: node.us for node in nodes}
    assert min(us.values()) > 0.0
    # Twelve parts: the first two ops are one of them.
    assert us["b"] == pytest.approx(3.0 * us["a"])
