from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings, strategies as st
from openvino import opset13 as op
from random_models import random_model
from small_models import (
    NASTY_NAMES,
    chain,
    compressed,
    convolutions,
    dynamic_inside,
    odd_ends,
    stateful,
    variable,
)

from hetero_lab.model.opgraph import OpGraph, graph_from_json, graph_to_json, op_graph, work_of
from hetero_lab.model.read import prepare


def graph_of(model: ov.Model) -> OpGraph:
    return prepare(model).graph


def names(graph: OpGraph, indices) -> list[str]:
    return [graph.ops[index].name for index in indices]


def leaders(graph: OpGraph) -> dict[str, str]:
    return {op.name: graph.ops[graph.leader[op.index]].name for op in graph}


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_the_graph_is_the_model(seed):
    model = random_model(seed)
    graph = graph_of(model)
    nodes = prepare(model).model.get_ordered_ops()
    assert [op.name for op in graph] == [node.get_friendly_name() for node in nodes]
    assert [op.type for op in graph] == [node.get_type_name() for node in nodes]
    for op_, node in zip(graph, nodes, strict=True):
        sources = [(s.get_node().get_friendly_name(), s.get_index()) for s in node.input_values()]
        assert [(graph.ops[p].name, port) for p, port in op_.inputs] == sources
        assert all(producer < op_.index for producer, _ in op_.inputs)
        for tensor, output in zip(op_.outputs, node.outputs(), strict=True):
            assert tensor.shape == tuple(output.get_shape())
            assert tensor.n_bytes == int(np.prod(tensor.shape)) * output.get_element_type().size
    assert names(graph, graph.parameters) == [p.get_friendly_name() for p in model.get_parameters()]
    assert names(graph, graph.results) == [r.get_friendly_name() for r in model.get_results()]
    assert all(graph.leader[leader] == leader for leader in graph.leader)
    assert all(graph.leader[index] == index for index in graph.placeable)
    uses = [(producer, port) for op_ in graph for producer, port in op_.inputs]
    assert sorted(uses) == sorted(
        (index, use.source_port) for index, of in enumerate(graph.consumers) for use in of
    )


def test_json_keeps_any_name_and_unknown_shapes():
    for model in (chain(*NASTY_NAMES), dynamic_inside(), stateful(), odd_ends()):
        graph = graph_of(model)
        assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("ops"),
        lambda data: data["ops"][2].pop(),
        lambda data: data["ops"][1].__setitem__(2, [[5, 0]]),
        lambda data: data["ops"][1].__setitem__(2, [[1, 0]]),
        lambda data: data["ops"][1].__setitem__(2, [[-1, 0]]),
        lambda data: data["ops"][1].__setitem__(2, [[0, 3]]),
        lambda data: data["ops"][1].__setitem__(2, "x"),
        lambda data: data.__setitem__("parameters", None),
        lambda data: data.__setitem__("parameters", []),
        lambda data: data["ops"][1].__setitem__(0, data["ops"][0][0]),
        lambda data: data["ops"][-1].__setitem__(2, []),
        lambda data: data["ops"][0][3][0].__setitem__(2, -1),
    ],
)
def test_json_that_is_no_graph(change):
    data = graph_to_json(graph_of(chain("r", "s")))
    change(data)
    with pytest.raises((KeyError, TypeError, ValueError)):
        graph_from_json(data)


def test_a_graph_is_frozen_and_can_be_sent():
    graph = graph_of(convolutions())
    for frozen in (graph, graph.ops[0]):
        with pytest.raises(dataclasses.FrozenInstanceError):
            frozen.name = "other"
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert len(graph) == len(list(graph)) == len(graph.ops)
    assert repr(graph) == "OpGraph('convolutions', 7 ops, 13 nodes)"


def test_bytes_of_packed_and_unknown_tensors():
    graph = graph_of(compressed(ov.Type.u4))
    by_name = {op_.name: op_.outputs[0] for op_ in graph if op_.outputs}
    assert (by_name["weights"].element_type, by_name["weights"].n_bytes) == ("u4", 128)
    assert by_name["decompress"].n_bytes == 1024
    unknown = {op_.name: op_.outputs[0] for op_ in graph_of(dynamic_inside()) if op_.outputs}
    assert unknown["relu"].n_bytes == 16
    assert (unknown["nonzero"].shape, unknown["nonzero"].n_bytes) == (None, None)


def test_the_constant_side_is_what_is_computed_from_constants():
    graph = graph_of(compressed(ov.Type.i8))
    assert names(graph, sorted(graph.constant_side)) == [
        "weights", "decompress", "scale", "scaled",
    ]  # fmt: skip
    assert names(graph, graph.placeable) == ["matmul0"]
    # A random number and a variable are no constants, though they read constants only.
    state = graph_of(stateful())
    assert names(state, state.placeable) == ["read", "sum", "middle", "assign", "after"]
    shape, low, high = op.constant([4]), op.constant(np.float32(0)), op.constant(np.float32(1))
    noise = op.random_uniform(shape, low, high, "f32", 0, 0)
    noise.set_friendly_name("noise")
    x = op.parameter([4], np.float32, name="x")
    graph = graph_of(ov.Model([op.result(op.add(noise, x, name="add"))], [x], "noisy"))
    assert names(graph, graph.placeable) == ["noise", "add"]


def test_constants_parameters_and_results_follow():
    leads = leaders(graph_of(compressed(ov.Type.i8, users=2)))
    first = next(name for name in leads if name.startswith("matmul"))
    assert {leads[name] for name in ("weights", "decompress", "scale", "scaled")} == {first}
    for i in (0, 1):
        assert leads[f"matmul{i}"] == leads[f"out{i}"] == f"matmul{i}"
    leads = leaders(graph_of(odd_ends()))
    # What no op uses leads itself, and its result follows it.
    for leader, *followers in (
        ("relu", "x", "once", "twice"), ("doubled", "sum"), ("unused",), ("through", "passed"),
        ("constant", "fixed"),
    ):  # fmt: skip
        assert {leads[name] for name in (leader, *followers)} == {leader}


def test_a_stateful_path_is_one():
    graph = graph_of(stateful())
    (path,) = graph.stateful_paths
    assert names(graph, path) == ["read", "sum", "middle", "assign"]
    assert leaders(graph)["assign"] == "read"
    assert leaders(graph)["after"] == "after"
    assert graph.ops[path[0]].variable == graph.ops[path[-1]].variable == "v"


def test_stateful_paths_that_meet_are_one():
    x = op.parameter([1, 4], np.float32, name="x")
    variables = [variable(name, 1, 4) for name in "vw"]
    zero = op.constant(np.zeros((1, 4), np.float32))
    reads = [op.read_value(zero, variable) for variable in variables]
    total = op.add(op.add(reads[0], reads[1]), x, name="total")
    assigns = [op.assign(total, variable) for variable in variables]
    model = ov.Model([op.result(op.relu(total), name="out")], assigns, [x], "two_states")
    (path,) = graph_of(model).stateful_paths
    assert len(path) == 6


def test_op_graph_follows_a_change_of_the_model():
    model = chain("r", "s")
    before = op_graph(model)
    assert op_graph(model) is before
    model.get_ordered_ops()[1].set_friendly_name("renamed")
    assert [op_.name for op_ in op_graph(model)] == ["x", "renamed", "s", "out"]


def test_work_is_multiply_adds_of_products_and_bytes_of_others():
    x = op.parameter([1, 6, 8, 8], np.float32, name="x")
    conv = op.convolution(
        x, np.ones((4, 6, 3, 3), np.float32), [1, 1], [1, 1], [1, 1], [1, 1], name="conv"
    )
    flat = op.reshape(conv, np.array([4, 64]), False, name="flat")
    product = op.matmul(flat, np.ones((64, 10), np.float32), False, False, name="product")
    graph = prepare(ov.Model([op.result(product, name="out")], [x], "work")).graph
    work = {name: work_of(graph, graph.ops[i]) for name, i in graph.index_of.items()}
    assert work["conv"] == 4 * 8 * 8 * 6 * 3 * 3
    assert work["product"] == pytest.approx(4 * 64 * 10)
    assert work["flat"] == 2 * 4 * 256 + 16
