"""Cut a placement for devices that work at the same time, finer than HETERO where that pays.

HETERO merges all neighbours on a device. An op that needs another device's result then holds back
ops of its subgraph that do not, and a result for another device is ready only when the whole
subgraph is. Here a subgraph of HETERO's is split between ops that differ in the ops of other
devices that they wait for, or that wait for them. A split is undone where the work that it lets
run at the same time is less than a subgraph costs. A chain is cut as HETERO cuts it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

import numpy as np

from hetero_lab.model.opgraph import CONSTANT, PARAMETER, OpGraph, grouped, related, work_of
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, partition_of_split, predict, torn_path

# The cost of a subgraph, in multiply-adds or bytes: 20 to 50 µs of one core.
WORK_OF_A_SUBGRAPH = 1e6


def predict_overlapping(graph: OpGraph, affinity: Affinity) -> Partition:
    """Predict the subgraphs of a :class:`~hetero_lab.parallel.executor.ParallelExecutor`."""
    coarse = predict(graph, affinity)
    if graph.stateful_paths:  # the ops between the two ends of a state must stay together
        by_level = predict_by_level(graph, affinity) if torn_path(graph, coarse) else None
        return by_level or coarse
    if coarse.n_subgraphs < 2:
        return coarse
    blocks = _blocks(graph, coarse)
    if len(blocks) == len({block.home for block in blocks}):
        return coarse
    return partition_of_split(graph, affinity, _numbers(graph, blocks))


def sources(partition: Partition, graph: OpGraph) -> tuple[frozenset[int], ...]:
    """Return, for each subgraph, the subgraphs that it waits for.

    A model's input is ready from the start, so a boundary that only passes one on does not count.
    """
    sources_of: list[set[int]] = [set() for _ in partition.subgraphs]
    for boundary in partition.boundaries:
        index = graph.index_of.get(boundary.op)
        if index is None or graph.ops[index].type != PARAMETER:
            for target in boundary.targets:
                sources_of[target].add(boundary.source)
    return tuple(map(frozenset, sources_of))


def _numbers(graph: OpGraph, blocks: list[_OverlapGroup]) -> np.ndarray:
    """Return the block number of every node; a node that no op reads gets its own."""
    block_of = {index: n for n, block in enumerate(blocks) for index in block.ops}
    place = {n: at for at, n in enumerate(_order(graph, blocks, block_of))}
    numbers = np.arange(len(blocks), len(blocks) + len(graph))
    for op in reversed(graph.ops):
        if op.index in block_of:
            numbers[op.index] = block_of[op.index]
            continue
        # An input, or an op computed from constants, belongs to the first block that reads it. In a
        # later one, the earlier reader would wait for that block, which may wait for the reader.
        readers = [int(numbers[use.index]) for use in graph.consumers[op.index]]
        readers = [n for n in readers if n in place]
        if readers:
            numbers[op.index] = min(readers, key=place.__getitem__)
    for index in graph.results:
        numbers[index] = numbers[graph.ops[index].inputs[0][0]]
    return numbers


def _order(graph: OpGraph, blocks: list[_OverlapGroup], block_of: dict[int, int]) -> Iterable[int]:
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for n, block in enumerate(blocks):
        producers = {p for index in block.ops for p, _ in graph.ops[index].inputs if p in block_of}
        sorter.add(n, *({block_of[producer] for producer in producers} - {n}))
    return sorter.static_order()


@dataclass
class _OverlapGroup:
    """Ops that run as one subgraph.

    ``before`` holds the ops of other devices that they wait for, ``after`` the ops of other
    devices that wait for them: one bit for each placeable op.
    """

    home: int
    ops: list[int]
    before: int
    after: int
    work: float


def _blocks(graph: OpGraph, coarse: Partition) -> list[_OverlapGroup]:
    """Split the subgraphs of a partition wherever it pays."""
    home = coarse.home
    devices = [subgraph.device for subgraph in coarse.subgraphs]
    bit = {index: 1 << number for number, index in enumerate(graph.placeable)}
    on_device = dict.fromkeys(devices, 0)
    for index in graph.placeable:
        on_device[devices[home[index]]] |= bit[index]
    above, below = related(graph, [bit.get(index, 0) for index in range(len(graph))])
    work = np.array([work_of(graph, graph.ops[index]) for index in graph.placeable])
    # A split makes new boundaries, and a submodel may have to know the shapes there: leave a
    # subgraph with unknown shapes whole.
    whole = {home[i] for i in bit if any(tensor.shape is None for tensor in graph.ops[i].outputs)}
    groups: dict[tuple[int, int, int], _OverlapGroup] = {}
    for number, index in enumerate(graph.placeable):
        elsewhere = ~on_device[devices[home[index]]]
        before, after = above[index] & elsewhere, below[index] & elsewhere
        key = (home[index], 0, 0) if home[index] in whole else (home[index], before, after)
        block = groups.setdefault(key, _OverlapGroup(home[index], [], before, after, 0.0))
        block.ops.append(index)
        block.work += work[number]
    parts = grouped((block.home, block) for block in groups.values())
    return [b for blocks in parts.values() for b in _merge(graph, blocks, work)]


def _merge(graph: OpGraph, blocks: list[_OverlapGroup], work: np.ndarray) -> list[_OverlapGroup]:
    """Merge neighbouring blocks of one subgraph while a split between them does not pay.

    Two blocks are neighbours if one reads from the other, or if both read the same model input.
    """
    if len(blocks) == 1:
        return blocks
    blocks = list(blocks)
    block_of = {index: n for n, block in enumerate(blocks) for index in block.ops}
    users: list[set[int]] = [set() for _ in blocks]
    readers: dict[int, list[int]] = {}
    for n, block in enumerate(blocks):
        for index in block.ops:
            for producer, _ in graph.ops[index].inputs:
                if graph.ops[producer].type == PARAMETER:
                    readers.setdefault(producer, []).append(n)
                elif (source := block_of.get(producer, n)) != n:
                    users[source].add(n)
    pairs = {(a, b) for a, every in enumerate(users) for b in every}
    pairs.update(pair for every in readers.values() for pair in pairwise(every))
    into = list(range(len(blocks)))  # the block that each one was merged into
    while True:
        pairs = {(into[a], into[b]) for a, b in pairs if into[a] != into[b]}
        n_left = len(set(into))
        for _, a, b in sorted((_loss(blocks, users, a, b, work), a, b) for a, b in pairs):
            a, b = into[a], into[b]
            # If a second way leads from one to the other, the block on that way would both read
            # from the merged block and feed it: a cycle.
            if (
                a == b
                or _loss(blocks, users, a, b, work) >= WORK_OF_A_SUBGRAPH
                or _leads_around(users, a, b)
                or _leads_around(users, b, a)
            ):
                continue
            one, other = blocks[a], blocks[b]
            blocks[a] = _OverlapGroup(
                one.home,
                sorted(one.ops + other.ops),
                one.before | other.before,
                one.after | other.after,
                one.work + other.work,
            )
            into = [a if n == b else n for n in into]
            users[a] |= users[b]
            users[b] = set()
            for every in users:
                if b in every:
                    every.remove(b)
                    every.add(a)
            users[a].discard(a)
        if len(set(into)) == n_left:
            return [blocks[n] for n in sorted(set(into))]


def _loss(
    blocks: list[_OverlapGroup], users: list[set[int]], one: int, other: int, work: np.ndarray
) -> float:
    """Return how much work could no longer run at the same time if two blocks were one.

    The first block then waits for ops that only the second one needs, and ops that only the
    first one feeds wait for the second. If neither reads from the other, this holds both ways.
    """
    losses = [0.0]
    for a, b in ((one, other), (other, one)):
        if a in users[b]:
            continue
        first, second = blocks[a], blocks[b]
        awaited = _sum(second.before & ~first.before, work)
        fed = _sum(first.after & ~second.after, work)
        losses += [min(awaited, first.work + fed), min(fed, second.work + awaited)]
    return max(losses)


def _sum(bits: int, work: np.ndarray) -> float:
    if not bits:
        return 0.0
    packed = np.frombuffer(bits.to_bytes((len(work) + 7) // 8, "little"), np.uint8)
    mask = np.unpackbits(packed, bitorder="little", count=len(work)).view(bool)
    return float(work[mask].sum())


def _leads_around(users: list[set[int]], first: int, second: int) -> bool:
    """Return whether a way besides the direct edge leads from one block to another."""
    queue = list(users[first] - {second})
    reached = set(queue)
    while queue:
        for user in users[queue.pop()]:
            if user == second:
                return True
            if user not in reached:
                reached.add(user)
                queue.append(user)
    return False


def predict_by_level(graph: OpGraph, affinity: Affinity) -> Partition | None:
    """Cut a model with states by how often its data have changed devices.

    HETERO merges all neighbours on a device and then splits the cycles that this makes. Where
    devices take turns along a model, A B A B, that can leave one end of a state in the first part
    of A and the other end in the second. Here an op has the level of its inputs, plus one for each
    input from another device; both ends of a state share a level, and an op that only a later level
    needs is computed there. Parts of one device and one level cannot wait for each other, so there
    is no cycle. ``None`` if this cut would tear a state as well.
    """
    affinity.check_model(graph)
    if any(affinity[op.name] != affinity[graph.ops[graph.leader[op.index]].name] for op in graph):
        return None  # a state is already on several devices
    level = _levels(graph, affinity)
    if level is None:
        return None
    return predict(graph, affinity, [level[leader] for leader in graph.leader])


def _levels(graph: OpGraph, affinity: Affinity) -> dict[int, int] | None:
    """Return the level of each leader, which its followers share; ``None`` if there are none."""
    leader = graph.leader
    device = {i: affinity[graph.ops[i].name] for i in set(leader)}
    inputs: dict[int, set[int]] = defaultdict(set)
    users: dict[int, set[int]] = defaultdict(set)
    for op in graph:
        for producer, _ in op.inputs:
            source, target = leader[producer], leader[op.index]
            if source != target and graph.ops[producer].type != CONSTANT:
                inputs[target].add(source)
                users[source].add(target)
    order = sorted(set(leader))
    level = dict.fromkeys(order, 0)
    # One pass in topological order is enough without states. A state is one node here although its
    # ops lie far apart, so raising it can raise ops that were visited before: repeat until stable.
    # Levels that still rise after a pass for each state depend on themselves.
    for _ in range(len(graph.stateful_paths) + 2):
        before = dict(level)
        for index in order:
            for source in inputs[index]:
                above = level[source] + (device[source] != device[index])
                level[index] = max(level[index], above)
        if level == before:
            break
    else:
        return None
    states = {path[0] for path in graph.stateful_paths}
    for index in reversed(order):
        if users[index] and index not in states:
            below = (level[u] - (device[u] != device[index]) for u in users[index])
            level[index] = max(level[index], min(below))
    return level
