"""Cuts by how often data have changed devices: states stay whole, and there is no cycle."""

from __future__ import annotations

import pytest
from random_models import random_affinity
from small_language_models import decoder
from small_models import stateful

import hetero_lab as hl
from hetero_lab.model.read import prepare
from hetero_lab.placement.overlap import predict_by_level, predict_overlapping
from hetero_lab.placement.partition import predict, torn_path


@pytest.fixture(scope="module")
def graph():
    return prepare(decoder(2, empty_from="constant")).graph


def test_random_affinities_of_a_model_with_states(graph):
    n_mended = 0
    for seed in range(30):
        affinity = random_affinity(graph, ["A", "B", "C"][: 2 + seed % 2], seed)
        found = predict_by_level(graph, affinity)
        if found is None:
            continue
        n_mended += bool(torn_path(graph, predict(graph, affinity)))
        assert not torn_path(graph, found)
        assert all(b.source < min(b.targets) for b in found.boundaries)
        placed = {op: s.device for s in found.subgraphs for op in s.ops}
        names = [graph.ops[i].name for i in graph.placeable]
        assert placed == {name: affinity[name] for name in names}
    assert n_mended > 5


def test_each_turn_is_a_subgraph():
    model = hl.load(decoder(6, empty_from="constant"))
    devices = ["A", "B", "B", "A", "B", "A"]
    graph = prepare(model).graph
    found = hl.blocks(model).dropna()
    device_of = {op: devices[block] for op, block in zip(found["op"], found["block"], strict=True)}
    affinity = hl.Affinity.from_graph(graph, lambda name: device_of.get(name, "A"))
    assert torn_path(graph, predict(graph, affinity))
    cut = predict_overlapping(graph, affinity)
    assert [s.device for s in cut.subgraphs] == ["A", "B", "A", "B", "A"]


def test_where_hetero_tears_nothing_its_cut_is_kept():
    graph = prepare(stateful()).graph
    affinity = random_affinity(graph, ["A"], 0)
    assert predict_overlapping(graph, affinity) == predict(graph, affinity)
