from __future__ import annotations

import random
from dataclasses import replace
from graphlib import TopologicalSorter

import numpy as np
import openvino as ov
import pytest
from big_graphs import transformer_graph
from planning.random_costs import GraphMaker
from small_models import stateful

import hetero_lab as hl
from hetero_lab.errors import HeteroLabWarning
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import prepare

KINDS = ["MatMul", "Add", "Multiply", "Softmax", "Relu", "Transpose", "Concat", "Sigmoid"]


def repeated(seed: int, n_layers: int, *, numbered: bool) -> tuple[OpGraph, dict[str, int]]:
    """A graph of equal random layers and the true block of each op.

    A layer reads the end of the one before and a tensor that all share, has a weight of its own,
    and may have a state. Its ops are in a random topological order among all others.
    """
    draw = random.Random(seed)
    maker, block = GraphMaker("random"), {}

    def add(kind, reads=(), layer=None, variable=None):
        label = f"layers.{layer}.{len(maker.ops)}" if numbered and layer is not None else "op"
        name = f"{label}_{len(maker.ops)}"
        if layer is not None:
            block[name] = layer
        return maker.add(kind, reads, name=name, n_bytes=None, variable=variable)

    tokens = add("Parameter")
    mask = tokens
    # Often longer than the path to where it is read; of two layers it would leave one and a half.
    for _ in range(draw.randrange(15) if n_layers > 2 else 0):
        mask = add("Convert", [mask])
    stream = add("Gather", [tokens, add("Constant")])
    n_ops = draw.randint(5, 15)
    recipe = []
    for at in range(n_ops):
        reads = [draw.choice([at - 1, at - 1, draw.randrange(-1, at)])]
        reads += [draw.randrange(-1, at) for _ in range(draw.random() < 0.4)]
        recipe.append((draw.choice(KINDS), reads, draw.random() < 0.3))
    reads_mask = draw.randrange(n_ops)
    state_at = draw.choice([None, draw.randrange(n_ops)])
    for layer in range(n_layers):
        made = {-1: stream}
        read_so_far = set()
        for at, (kind, reads, weighted) in enumerate(recipe):
            read_so_far.update(reads)
            sources = [made[read] for read in reads]
            sources += [add("Constant")] * weighted
            sources += [mask] * (at == reads_mask)
            if at == state_at:
                past = add("ReadValue", [], layer, f"past.{layer}")
                sources.append(past)
            made[at] = add(kind, sources, layer)
            if at == state_at:
                add("Assign", [made[at]], layer, f"past.{layer}")
        loose = [made[at] for at in range(n_ops) if at not in read_so_far]
        stream = add("Subtract", [stream, *loose], layer)  # everything leads on
    head = add("LogSoftmax", [stream])
    add("Result", [head])

    sorter = TopologicalSorter({o.index: [p for p, _ in o.inputs] for o in maker.ops})
    sorter.prepare()
    ready, order = [], []
    while sorter.is_active():
        ready += sorted(sorter.get_ready())
        order.append(ready.pop(draw.randrange(len(ready))))
        sorter.done(order[-1])
    place = {old: new for new, old in enumerate(order)}
    ops = []
    for new, old in enumerate(order):
        inputs = tuple((place[read], port) for read, port in maker.ops[old].inputs)
        ops.append(replace(maker.ops[old], index=new, inputs=inputs))
    return OpGraph("random", tuple(ops), (place[tokens],), (place[head + 1],)), block


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("n_layers", [2, 3, 12])
def test_layers_of_random_ops_are_found(n_layers, numbered):
    for seed in range(8):
        graph, truth = repeated(seed, n_layers, numbered=numbered)
        found = find_blocks(graph)
        assert found.n_blocks == n_layers, seed
        for index in graph.placeable:
            op = graph.ops[index]
            if op.name in truth:
                assert found.of_op[index] == truth[op.name], (seed, op)
            elif op.type == "LogSoftmax":
                assert found.of_op[index] == n_layers
            elif op.type == "Gather":
                assert found.of_op[index] == -1
        # Data never flow back, and a state is in one block.
        of_op = found.of_op
        assert all(of_op[p] <= of_op[i] for i in graph.placeable for p, _ in graph.ops[i].inputs)
        assert all(len({of_op[index] for index in path}) == 1 for path in graph.stateful_paths)
        assert all(of_op[index] == of_op[leader] for index, leader in enumerate(graph.leader))


@pytest.mark.parametrize("scoped", [True, False])
def test_layers_of_a_transformer(scoped):
    graph = transformer_graph(2500, scoped=scoped)
    found = find_blocks(graph)
    assert found.n_blocks == 99
    true_layers = transformer_graph(2500).ops  # the same graph, with names that tell
    for index in graph.placeable:
        name = true_layers[index].name
        if "layers." in name:
            assert found.of_op[index] == int(name.split(".")[1].split("/")[0])


def test_the_table_has_a_row_for_each_op():
    graph = prepare("digits_inception").graph
    by_op = hl.blocks("digits_inception").set_index("op")["block"]
    assert list(by_op.index) == [graph.ops[index].name for index in graph.placeable]
    assert (by_op["mixed2/concat"], by_op["mixed3/branch1x1/conv"]) == (0, 1)
    assert by_op.isna()["head_digit/matmul"]
    assert by_op.isna().iloc[0]
    assert str(by_op.dtype) == "Int64"


def test_no_repetition_is_said():
    with pytest.warns(HeteroLabWarning, match="no repeated layers"):
        table = hl.blocks(stateful())
    assert table["block"].isna().all()
    assert len(table) == len(prepare(stateful()).graph.placeable)
    assert find_blocks(OpGraph("empty", (), (), ())).n_blocks == 0


@pytest.mark.parametrize("n_branches", [1, 2, 3])
def test_identical_branches_are_in_the_same_blocks(n_branches):
    image = ov.opset13.parameter([1, 4], np.float32, name="image")
    stem, ends = ov.opset13.tanh(image, name="stem"), []
    for branch in range(n_branches):
        end = stem
        for layer in range(4):
            end = ov.opset13.relu(end, name=f"branch{branch}/layer{layer}/relu")
            end = ov.opset13.sigmoid(end, name=f"branch{branch}/layer{layer}/sigmoid")
        ends.append(end)
    found = hl.blocks(ov.Model(ends, [image], "twins")).set_index("op")["block"]
    assert len(found) == 8 * n_branches + 1
    for op, block in found.drop("stem").items():
        assert block == int(str(op).partition("/layer")[2][0])
