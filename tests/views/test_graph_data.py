from __future__ import annotations

import msgspec
import pytest
from hand_costs import flat_costs
from views.hand_made import predicted_data, small_profile, tensor

from hetero_lab.errors import ArgumentError
from hetero_lab.model.opgraph import Op, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Boundary, Partition, Subgraph, Wiring, predict
from hetero_lab.views.graph_data import NO_SUBGRAPH, data_of_profile, graph_data, structure


def test_nodes_edges_and_boxes_against_tables_made_by_hand():
    data = data_of_profile(small_profile())
    shown = [
        (n.index, n.kind, n.name, n.device, n.subgraph, n.time_us, n.precision, n.leader, n.fused)
        for n in data.nodes
    ]
    assert shown == [
        (0, "input", "x", "ACC", NO_SUBGRAPH, None, "", "", ()),
        (2, "op", "matmul", "ACC", 0, 10.0, "bf16", "", ("relu",)),
        (3, "op", "relu", "ACC", 0, 0.0, "bf16", "matmul", ()),
        (4, "op", "softmax", "CPU", 1, 5.0, "f32", "", ()),
        (5, "op", "add", "ACC", 2, 3.0, "bf16", "", ()),
        (6, "output", "probabilities", "ACC", NO_SUBGRAPH, None, "", "", ()),
    ]
    assert data.total_us == 18.0
    assert data.devices == ("ACC", "CPU")
    assert data.emulated == {"ACC": "CPU"}
    assert data.title == "small on HETERO:ACC,CPU: 103 µs, 3 subgraphs, 2 boundaries of 64 B"
    edges = {
        (e.source, e.target): (e.tensors, e.n_bytes, e.is_boundary, e.reorder_us)
        for e in data.edges
    }
    assert edges == {
        (0, 2): (("x",), 16, False, None),
        (2, 3): (("matmul",), 32, False, None),
        (3, 4): (("relu",), 32, True, 2.0),
        (3, 5): (("relu",), 32, True, 2.0),
        (4, 5): (("softmax",), 32, True, 1.0),
        (5, 6): (("add",), 32, False, None),
    }
    assert [(b.index, b.device, b.nodes) for b in data.boxes] == [
        (0, "ACC", (2, 3)),
        (1, "CPU", (4,)),
        (2, "ACC", (5,)),
    ]
    assert [data.box_us(box) for box in data.boxes] == [10.0, 5.0, 3.0]


def test_without_counters_no_time_is_known():
    data = data_of_profile(small_profile(counters=()))
    assert not data.is_timed
    assert {node.time_us for node in data.nodes} == {None}
    assert {edge.reorder_us for edge in data.edges} == {None}
    assert {data.box_us(box) for box in data.boxes} == {None}


def test_structure():
    parts = (Subgraph("CPU", ()), Subgraph("CPU", ()))
    assert structure(Partition(parts[:1], ())) == "1 subgraph"
    one = (Boundary("a", "a", 0, 0, (1,), 2000),)
    assert structure(Partition(parts, one)) == "2 subgraphs, 1 boundary of 2 KB"


def test_a_prediction_is_called_one():
    graph, affinity = small_profile().graph, small_profile().affinity
    costs = flat_costs(graph, {"softmax": (9.0, 7.0)})
    data = graph_data(graph, affinity, predict(graph, affinity), costs=costs)
    assert data.title == "small: 3 subgraphs, 2 boundaries of 64 B (predicted)"
    assert [n.time_us for n in data.nodes if n.name == "softmax"] == [7.0]
    assert data.notes == ("times of ops: predicted by the cost model",)
    assert [e.is_boundary for e in data.edges] == [False, False, True, True, True, False]


def test_several_tensors_between_two_ops_are_one_edge():
    halves = (tensor(4), msgspec.structs.replace(tensor(4), n_bytes=None))
    ops = (
        Op(0, "x", "Parameter", (), (tensor(8),)),
        Op(1, "split", "VariadicSplit", ((0, 0),), halves),
        Op(2, "join", "Concat", ((1, 1), (1, 0)), (tensor(8),)),
        Op(3, "y", "Result", ((2, 0),), ()),
    )
    graph = OpGraph("halves", ops, (0,), (3,))
    affinity = Affinity.from_graph(graph, {"x": "A", "split": "A", "join": "B", "y": "B"})
    edge = next(edge for edge in predicted_data(graph, affinity).edges if edge.source)
    assert edge.tensors == ("split:0", "split:1")
    assert edge.sizes == (16, None)
    assert edge.n_bytes is None
    assert edge.is_boundary


def test_computed_weights_are_shown_where_they_cross():
    ops = (
        Op(0, "x", "Parameter", (), (tensor(4),)),
        Op(1, "weights", "Constant", (), (tensor(4),)),
        Op(2, "unpack", "Convert", ((1, 0),), (tensor(4),)),
        Op(3, "add", "Add", ((0, 0), (2, 0)), (tensor(4),)),
        Op(4, "y", "Result", ((3, 0),), ()),
    )
    graph = OpGraph("packed", ops, (0,), (4,))
    affinity = Affinity.from_graph(graph, {op.name: "A" for op in ops})
    partition = Partition(
        (Subgraph("A", ()), Subgraph("B", ("add",))),
        (Boundary("unpack", "unpack", 0, 0, (1,), 16),),
    )
    data = graph_data(graph, affinity, partition)
    assert [(b.index, b.nodes) for b in data.boxes] == [(0, (2,)), (1, (3,))]
    assert [(e.source, e.target, e.is_boundary) for e in data.edges] == [
        (0, 3, False),
        (2, 3, True),
        (3, 4, False),
    ]
    # Where they do not cross, they are left out as constants are.
    inside = Partition((Subgraph("A", ("add",)),), ())
    assert [n.name for n in graph_data(graph, affinity, inside).nodes] == ["x", "add", "y"]


def test_a_subgraph_that_only_copies_holds_its_input_and_output():
    ops = (
        Op(0, "x", "Parameter", (), (tensor(4, "x"),)),
        Op(1, "y", "Result", ((0, 0),), ()),
    )
    graph = OpGraph("copy", ops, (0,), (1,))
    affinity = Affinity.from_graph(graph, {"x": "A", "y": "A"})
    partition = Partition((Subgraph("A", ()),), (), (Wiring((("model", 0),), (("model", 0),)),))
    data = graph_data(graph, affinity, partition)
    assert data.boxes[0].nodes == (0, 1)
    assert not data.edges[0].is_boundary


def test_a_partition_of_another_model_is_refused():
    profile = small_profile()
    other = Partition((Subgraph("CPU", ("elsewhere",)),), ())
    with pytest.raises(ArgumentError, match="no op 'elsewhere'"):
        graph_data(profile.graph, profile.affinity, other)
