from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from big_graphs import by_type, transformer_graph
from views.hand_made import predicted_data, random_data, small_profile

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.views.graph_data import data_of_profile
from hetero_lab.views.graph_folding import Shown, by_scope, scopes_of
from hetero_lab.views.theme import SEVERAL


def small():
    return data_of_profile(small_profile())


@cache
def layers(n_ops: int, *on_cpu: str, scoped=True):
    graph = transformer_graph(n_ops, scoped=scoped)
    return predicted_data(graph, by_type(graph, set(on_cpu)))


def names(data, kind="group"):
    return {node.name: node.n_ops for node in data.nodes if node.kind == kind}


def check(data, whole):
    """A folded graph has every op once, and its sources come before their targets."""
    assert data.n_ops == whole.n_ops
    place = {node.index: i for i, node in enumerate(data.nodes)}
    assert all(place[e.source] < place[e.target] and e.source < e.target for e in data.edges)
    assert sorted(i for box in data.boxes for i in box.nodes) == sorted(
        node.index for node in data.nodes if not node.is_port
    )


def test_fusion_groups_of_a_graph_made_by_hand():
    shown = Shown("fusion").of(small())
    (group,) = [node for node in shown.nodes if node.kind == "group"]
    assert (group.name, group.ops, group.time_us) == ("matmul", ("matmul", "relu"), 10.0)
    assert group.types == (("MatMul", 1), ("Relu", 1))
    assert shown.notes == ("2 of 4 ops are folded into 1 group",)
    crossing = [e for e in shown.edges if e.is_boundary]
    assert [e.n_bytes for e in crossing] == [32, 32, 32]
    assert shown.total_us == small().total_us
    check(shown, small())
    assert Shown("fusion", unfold=["relu"]).of(small()).nodes == small().nodes


def test_subgraphs_and_groups_of_the_callers_own():
    assert names(Shown("subgraph").of(small())) == {"subgraph 0": 2}
    mine = Shown({"matmul": "front", "relu": "front", "softmax": "back", "add": "back"}).of(small())
    # Both ops of "back" are in subgraphs of their own.
    assert names(mine) == {"front": 2}
    # A group is split where it would be a circle: all other ops lie between these two.
    data = layers(26)
    ends = {"model/layers.0/input_norm/MVN": "ends", "model/layers.0/Add_1": "ends"}
    assert names(Shown(ends).of(data)) == {}
    check(Shown(ends).of(data), data)


def test_scopes():
    assert scopes_of("a/b.c/d") == ("a", "a/b", "a/b.c")
    assert scopes_of("/a/b") == ("/a",)
    assert scopes_of("plain") == ()
    nodes = [node for node in layers(26).nodes if node.kind == "op"]
    assert set(by_scope(nodes, 4).values()) == {"model/layers.0"}
    assert by_scope(nodes, 100) == {}


def test_small_graphs_are_not_folded_and_others_need_not_be():
    for data, shown in ((small(), Shown()), (layers(200), Shown()), (layers(2500), Shown("none"))):
        assert shown.of(data) == data


def test_a_scope_is_opened_by_one_level():
    data = layers(2500)
    whole = names(Shown().of(data))
    assert len(whole) == 99
    assert whole["model/layers.3"] == 25
    opened = Shown(unfold=["model/layers.3"]).of(data)
    assert "model/layers.3" not in names(opened)
    assert "model/layers.3/output_norm/MVN" in names(opened, "op")
    assert names(opened)["model/layers.4"] == 25
    check(opened, data)
    deep = Shown(unfold=["model/layers.3/attention/scores/Softmax"]).of(data)
    assert "model/layers.3/attention/scores/Softmax" in names(deep, "op")
    with pytest.raises(ArgumentError, match="no group 'model/layer.3' to unfold"):
        Shown(unfold=["model/layer.3"]).of(data)


def test_many_subgraphs_are_drawn_in_runs():
    data = layers(2500, "Softmax", "MVN", "Add")
    shown = Shown().of(data)
    assert len(data.boxes) > 500
    assert len(shown.boxes) <= 80
    assert shown.nodes[1].device == SEVERAL
    assert dict(shown.nodes[1].devices).keys() == {"ACC", "CPU"}
    check(shown, data)
    name = shown.nodes[1].name
    opened = Shown(unfold=[name]).of(data)
    assert name not in names(opened)
    assert len(opened.boxes) > len(shown.boxes)
    assert opened.n_ops == data.n_ops


def test_repeated_layers_without_scopes_are_folded_by_block():
    data = layers(2500, scoped=False)
    shown = Shown().of(data)
    assert names(shown) == {f"block {n}": 25 for n in range(99)}
    check(shown, data)
    # A block is opened by its name, and by that of an op in it.
    for unfold in ("block 3", next(n.name for n in data.nodes if n.block == "block 3")):
        opened = Shown(unfold=[unfold]).of(data)
        assert names(opened) == {f"block {n}": 25 for n in range(99) if n != 3}
        assert {n.block for n in opened.nodes if n.kind == "op"} == {"", "block 3"}


def test_names_without_scopes_are_folded_by_place():
    data = layers(2500, scoped=False)
    data = replace(data, nodes=tuple(replace(node, block="") for node in data.nodes))
    shown = Shown().of(data)
    assert 100 < len(names(shown)) <= 150
    assert all("…" in name for name in names(shown))


def test_search_marks_and_opens():
    data = layers(2500)
    shown = Shown(find="layers.3/attention/SCORES").of(data)
    assert {shown.node_of[i].name for i in shown.marked} == {
        "model/layers.3/attention/scores/MatMul", "model/layers.3/attention/scores/Softmax",
    }  # fmt: skip
    assert shown.notes[0] == "2 ops with 'layers.3/attention/SCORES' in the name"
    assert len(Shown(find="softmax").of(data).marked) == 99  # groups, still closed
    with pytest.raises(ArgumentError, match="No op has 'sofmax' in its name"):
        Shown(find="sofmax").of(data)


def test_around_an_op():
    data = layers(2500)
    near = Shown(around="model/layers.3/attention/scores/Softmax", hops=1).of(data)
    assert set(names(near, "op")) == {
        "model/layers.3/attention/scores/MatMul", "model/layers.3/attention/scores/Softmax",
        "model/layers.3/attention/MatMul",
    }  # fmt: skip
    by_name = {node.name.rpartition("3/")[2]: node.n_unseen for node in near.nodes}
    assert by_name == {
        "attention/scores/MatMul": 2, "attention/scores/Softmax": 0, "attention/MatMul": 2,
    }  # fmt: skip
    assert near.boxes[0].n_unseen == data.n_ops - 3
    assert near.box_us(near.boxes[0]) is None  # a part of a subgraph has not its time
    with pytest.raises(ArgumentError, match="is not in the graph"):
        Shown(around="model/layers.3").of(data)
    with pytest.raises(ArgumentError, match="hops= is a whole number"):
        Shown(around="tokens", hops=-1).of(data)


@pytest.mark.parametrize("fold", ["scope", "subgraph"])
@pytest.mark.parametrize("seed", range(3))
def test_random_graphs_stay_without_circles(seed, fold):
    data = random_data(seed, 300)
    shown = Shown(fold).of(data)
    assert shown.n_ops == data.n_ops
    assert all(e.source < e.target for e in shown.edges)
    assert len(shown.nodes) < len(data.nodes)


def test_the_view_takes_it_all():
    figure = hl.views.placement_graph(small_profile(), fold="fusion", find="add")
    (marks,) = [t for t in figure.data if t.name == "searched for"]
    assert len(marks.x) == 1
    assert "2 of 4 ops are folded" in figure.layout.title.subtitle.text
    (acc,) = [t for t in figure.data if t.name == "ACC (emulated on CPU)"]
    assert acc.marker.symbol[0] == "hexagon2"
    assert "2 ops folded: 2 on ACC" in acc.hovertext[0]
    with pytest.raises(ArgumentError, match="fold= is one of auto, fusion"):
        hl.views.placement_graph(small_profile(), fold="all")
