"""Times of units on a device that has no counters: its subgraphs, run and timed apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from hetero_lab.experiments.search.observer import Observer
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import resolve
from hetero_lab.planning.design import placed
from hetero_lab.planning.observations import ExecutedNode
from hetero_lab.runtime.inputs import given_or_generated
from hetero_lab.runtime.parallel import ParallelExecutor

_PARTS = 12
_RUNS = 12
_DISCARDED = 2


def isolated_nodes(
    observer: Observer,
    device: str,
    support: Mapping[str, frozenset[str]],
    known: Sequence[ExecutedNode],
) -> tuple[ExecutedNode, ...]:
    """Return a node for each op that a device supports, from timed subgraphs.

    The model is divided into at most 12 parts; every other part runs on the device, then the
    rest, so that two compiles show all of them apart. The time of a subgraph is divided among
    its ops as another device's counters divide theirs, or by the bytes that they make.
    """
    bound, conditions = observer.bound, observer.conditions
    weights = _weights(bound.graph, known)
    arrays = given_or_generated(bound, conditions.inputs, conditions.seed)
    found: list[ExecutedNode] = []
    for affinity in _halves(bound.graph, device, support):
        executor = ParallelExecutor.of(resolve(bound, observer.placement(affinity, "isolated")))
        try:
            for _ in range(_RUNS):
                executor(arrays)
            spans, partition = executor.timeline, executor.partition
        finally:
            executor.close()
        times: defaultdict[int, list[float]] = defaultdict(list)
        for span in spans:
            if span.request >= _DISCARDED:
                times[span.subgraph].append((span.end_s - span.start_s) * 1e6)
        for subgraph in partition.subgraphs:
            ops = [op for op in subgraph.ops if op in weights]
            if subgraph.device == device and ops:
                total = sum(weights[op] for op in ops)
                us = float(np.median(times[subgraph.index]))
                found += [ExecutedNode((op,), device, us * weights[op] / total) for op in ops]
    return tuple(found)


def _weights(graph: OpGraph, known: Sequence[ExecutedNode]) -> dict[str, float]:
    counted: defaultdict[str, list[float]] = defaultdict(list)
    for node in known:
        counted[node.ops[0]].append(node.us)
    if counted:
        # Ops inside another's node weigh next to nothing, but not nothing.
        return {
            graph.ops[i].name: float(np.median(counted.get(graph.ops[i].name, [1e-3])))
            for i in graph.placeable
        }
    return {
        graph.ops[i].name: 1.0 + sum(t.n_bytes or 0 for t in graph.ops[i].outputs)
        for i in graph.placeable
    }


def _halves(graph: OpGraph, device: str, support: Mapping[str, frozenset[str]]) -> list[Affinity]:
    """Return two placements: even and odd parts of the model on the device."""
    leaders = list(dict.fromkeys(graph.leader[i] for i in graph.placeable))
    part_of = {leader: number * _PARTS // len(leaders) for number, leader in enumerate(leaders)}
    others = [other for other in support if other != device]
    halves = []
    for half in range(2):
        device_of = {}
        for index in graph.placeable:
            name = graph.ops[index].name
            own = part_of[graph.leader[index]] % 2 == half and name in support[device]
            other = next((d for d in others if name in support[d]), device)
            device_of[name] = device if own else other
        halves.append(placed(graph, device_of))
    return halves
