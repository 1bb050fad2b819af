"""The partition rule as it is computed, against a slow transcription of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from openvino import opset13 as op
from placement import partition_oracle
from proof.graphs import DEVICES, Case, build, cases
from random_models import random_affinity, random_model

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict

N_QUICK, N_ALL = 60, 2000
CHUNK = 250


def agree(graph: OpGraph, affinity: Affinity) -> partition_oracle.Parts:
    """Assert that both give every node the same subgraph and hand over the same tensors."""
    devices = [affinity[node.name] for node in graph]
    for index in graph.results:
        devices[index] = devices[graph.ops[index].inputs[0][0]]
    expected = partition_oracle.partition(graph, devices)
    predicted = predict(graph, affinity)
    members: list[set[int]] = [set() for _ in predicted.subgraphs]
    for index, home in enumerate(predicted.home):
        if home >= 0:
            members[home].add(index)
    subgraphs = [frozenset(nodes) for nodes in members]
    assert set(subgraphs) == expected.subgraphs
    crossings = {
        (graph.index_of[b.op], b.port): (
            subgraphs[b.source],
            frozenset(subgraphs[t] for t in b.targets),
        )
        for b in predicted.boundaries
    }
    assert crossings == expected.crossings
    for subgraph, nodes in zip(predicted.subgraphs, subgraphs, strict=True):
        assert {graph.index_of[name] for name in subgraph.ops} == nodes & set(graph.placeable)
        assert {devices[graph.index_of[name]] for name in subgraph.ops} <= {subgraph.device}
    return expected


def random_case(seed: int) -> partition_oracle.Parts:
    """Compare on a random graph of 3 to 60 ops, whose constants are shared, on 2 or 3 devices."""
    size = np.random.default_rng(seed).integers(3, 60)
    graph = prepare(random_model(seed, int(size))).graph
    return agree(graph, random_affinity(graph, list(DEVICES[seed % 2 :]), seed))


def _chunks() -> list[Any]:
    chunks = [range(N_QUICK)]
    chunks += [range(start, start + CHUNK) for start in range(0, N_ALL, CHUNK)]
    by_hand = [pytest.mark.slow, pytest.mark.by_hand]
    return [pytest.param(c, marks=by_hand * (c.stop > N_QUICK), id=str(c)) for c in chunks]


@pytest.mark.parametrize("seeds", _chunks())
def test_random_graphs_are_split_as_the_rule_says(seeds: range):
    done = [random_case(seed) for seed in seeds]
    # Both halves of the rule are needed, or the comparison would show little.
    assert sum(parts.n_closing > parts.n_starts for parts in done) > 0.1 * len(done)
    assert sum(parts.n_cut > parts.n_closing for parts in done) > 0.02 * len(done)


@settings(max_examples=60)
@given(cases(most_ops=30))
def test_graphs_with_states_and_computed_constants_are_split_as_the_rule_says(case: Case):
    graph = prepare(build(case)).graph
    homes = iter(case.homes * len(graph))
    agree(graph, Affinity.from_graph(graph, lambda _name: next(homes)))


def test_a_constant_that_two_parts_share_joins_them():
    shared = op.constant(np.ones((1, 4), np.float32), name="shared")
    inputs = [op.parameter([1, 4], np.float32, name=name) for name in ("x", "y")]
    sums = [op.add(x, shared, name=f"add_{x.get_friendly_name()}") for x in inputs]
    model = ov.Model([op.result(node) for node in sums], inputs, "shared")
    graph = prepare(model).graph
    expected = agree(graph, Affinity.from_graph(graph, lambda _name: "CPU"))
    assert len(expected.subgraphs) == 1
