"""Cut a partition finer, where independent branches on one device are one subgraph."""

from __future__ import annotations

from dataclasses import replace

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, predict

_MARK = "\x00"


def split_branches(graph: OpGraph, affinity: Affinity) -> Partition:
    """Return the partition with every subgraph split into its independent branches.

    Two ops of a subgraph stay together if they wait for the same boundaries and the same
    boundaries and model outputs wait for them. Such groups are convex, so that the finer
    partition has no cycles.

    Raises
    ------
    AffinityError
        The affinity is of another model.
    """
    coarse = predict(graph, affinity)
    home = coarse.home
    stateful = {index for path in graph.stateful_paths for index in path}
    waits = [0] * len(graph.ops)
    feeds = [0] * len(graph.ops)
    numbers: dict[tuple[int, int], int] = {}
    for op in graph.ops:
        for producer, port in op.inputs:
            if home[producer] != home[op.index] and home[producer] >= 0:
                waits[op.index] |= 1 << numbers.setdefault((producer, port), len(numbers))
            elif home[producer] == home[op.index]:
                waits[op.index] |= waits[producer]
    for op in reversed(graph.ops):
        for use in graph.consumers[op.index]:
            if home[use.index] != home[op.index] or graph.ops[use.index].type == "Result":
                feeds[op.index] |= 1 << numbers.setdefault((-1 - use.index, 0), len(numbers))
            else:
                feeds[op.index] |= feeds[use.index]
    groups: dict[tuple[int, int, int], int] = {}
    labels: dict[str, str] = {}
    for op in graph.ops:
        leader = graph.leader[op.index]
        if leader != op.index:
            continue
        signature = (
            (home[op.index], 0, 0)
            if op.index in stateful
            else (home[op.index], waits[op.index], feeds[op.index])
        )
        number = groups.setdefault(signature, len(groups))
        labels[op.name] = f"{affinity[op.name]}{_MARK}{number}"
    fine = predict(graph, Affinity.from_graph(graph, labels))
    return replace(
        fine,
        subgraphs=tuple(replace(s, device=s.device.partition(_MARK)[0]) for s in fine.subgraphs),
    )
