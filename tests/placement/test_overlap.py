"""The cut for devices that work at the same time: finer than HETERO's, and only where it pays.

Models with states are cut by how often data have changed devices: states stay whole, and there is
no cycle.
"""

from __future__ import annotations

import random

import pytest
from planning.random_costs import GraphMaker, fork, random_graph
from random_models import random_affinity
from small_language_models import decoder
from small_models import stateful

import hetero_lab as hl
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import prepare
from hetero_lab.placement import overlap
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.overlap import predict_by_level, predict_overlapping
from hetero_lab.placement.partition import Partition, predict, torn_path

MUCH = 10_000_000  # bytes of a tensor that make an op worth a subgraph of its own


def placed(graph: OpGraph, accelerated: set[str]) -> Affinity:
    return Affinity.from_graph(graph, lambda name: "ACC" if name in accelerated else "CPU")


def parts(partition: Partition) -> set[tuple[str, ...]]:
    return {subgraph.ops for subgraph in partition.subgraphs}


def test_an_op_that_waits_for_another_device_holds_back_no_other():
    graph = fork(MUCH)
    affinity = placed(graph, {"head", "left"})
    assert parts(predict(graph, affinity)) == {("head", "left"), ("right", "tail")}
    found = predict_overlapping(graph, affinity)
    assert parts(found) == {("head",), ("left",), ("right",), ("tail",)}
    assert [s.index for s in found.subgraphs] == [0, 1, 2, 3]
    assert [s.device for s in found.subgraphs] == ["ACC", "ACC", "CPU", "CPU"]
    # What has a tensor of unknown shape stays whole, and so does what is little work.
    unknown = fork(MUCH, "NonZero", None)
    affinity = placed(unknown, {"head", "left"})
    assert ("right", "tail") in parts(predict_overlapping(unknown, affinity))
    little = fork(100)
    affinity = placed(little, {"head", "left"})
    assert predict_overlapping(little, affinity) == predict(little, affinity)


@pytest.mark.parametrize("accelerated", [(), (0, 1), (2, 3), (1, 3)])
def test_a_chain_is_cut_as_hetero_cuts_it(accelerated):
    maker = GraphMaker()
    skip = maker.chain(maker.add("Parameter"), ["op0"], n_bytes=MUCH)
    at = maker.chain(skip, [f"op{number}" for number in range(1, 5)], n_bytes=MUCH)
    maker.add("Add", [at, skip], name="end", n_bytes=MUCH)
    graph = maker.graph()
    affinity = placed(graph, {f"op{number}" for number in accelerated})
    assert predict_overlapping(graph, affinity) == predict(graph, affinity)


def check(graph: OpGraph, affinity: Affinity) -> tuple[int, int]:
    """Check a cut against the definitions; return how many subgraphs HETERO and it make."""
    coarse, fine = predict(graph, affinity), predict_overlapping(graph, affinity)
    assert sorted(op for s in fine.subgraphs for op in s.ops) == sorted(
        op for s in coarse.subgraphs for op in s.ops
    )
    # Also of ops that share what is computed from constants, a decompressed weight.
    for subgraph in fine.subgraphs:
        assert {affinity[op] for op in subgraph.ops} <= {subgraph.device}
        assert len({coarse.subgraph_of[op] for op in subgraph.ops}) <= 1
    # They stand in an order that can be executed: nothing waits for itself.
    assert all(target > b.source for b in fine.boundaries for target in b.targets)
    return coarse.n_subgraphs, fine.n_subgraphs


@pytest.mark.parametrize("least_work", [0.0, 5000.0, overlap.WORK_OF_A_SUBGRAPH])
def test_random_graphs_are_cut_finer_and_without_cycles(least_work, monkeypatch):
    monkeypatch.setattr(overlap, "WORK_OF_A_SUBGRAPH", least_work)
    coarse, fine = 0, 0
    for seed in range(60):
        rng = random.Random(seed)
        graph = random_graph(rng, rng.randint(2, 30))
        accelerated = {op.name for op in graph if rng.random() < 0.4}
        n_coarse, n_fine = check(graph, placed(graph, accelerated))
        assert n_coarse <= n_fine
        coarse, fine = coarse + n_coarse, fine + n_fine
    assert coarse < fine


def test_the_cut_of_many_branches_takes_time_in_proportion(monkeypatch):
    maker = GraphMaker()
    inputs = maker.add("Parameter")
    ends = [maker.chain(inputs, [f"{branch}_{n}" for n in range(6)]) for branch in range(100)]
    maker.add("Concat", ends, name="end")
    graph = maker.graph()
    affinity = placed(graph, {op.name for op in graph if op.name[-1] in "024"})
    calls = []
    loss = overlap._loss
    monkeypatch.setattr(overlap, "_loss", lambda *args: calls.append(1) or loss(*args))
    assert predict_overlapping(graph, affinity) == predict(graph, affinity)
    assert len(calls) < 10 * len(graph)


def test_random_affinities_of_a_model_with_states():
    graph = prepare(decoder(2, empty_from="constant")).graph
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
    model = prepare(decoder(6, empty_from="constant"))
    devices = ["A", "B", "B", "A", "B", "A"]
    graph = model.graph
    found = hl.blocks(model).dropna()
    device_of = {op: devices[block] for op, block in zip(found["op"], found["block"], strict=True)}
    affinity = hl.Affinity.from_graph(graph, lambda name: device_of.get(name, "A"))
    assert torn_path(graph, predict(graph, affinity))
    cut = predict_overlapping(graph, affinity)
    assert [s.device for s in cut.subgraphs] == ["A", "B", "A", "B", "A"]
    # Where HETERO tears nothing, its cut is kept.
    graph = prepare(stateful()).graph
    affinity = random_affinity(graph, ["A"], 0)
    assert predict_overlapping(graph, affinity) == predict(graph, affinity)
