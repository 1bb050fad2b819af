"""Ways around ops that must move, where nothing is known of the times of ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict

if TYPE_CHECKING:
    import openvino as ov


def price_without_costs(
    graph: OpGraph, affinity: Affinity, given: Affinity
) -> tuple[int, int, int]:
    """Return the number of subgraphs, the bytes at their boundaries, and the ops that moved."""
    partition = predict(graph, affinity)
    n_moved = sum(affinity[op] != given[op] for op in given.ops)
    return partition.n_subgraphs, partition.boundary_bytes, n_moved


def widened(
    graph: OpGraph,
    affinity: Affinity,
    given: Affinity,
    target: str,
    most_moved: int,
    core: ov.Core,
) -> Affinity:
    """Move more ops to a device as long as that lowers the price.

    In each step the cheapest of these moves: an op beside one that has moved, or a whole subgraph
    that is cut off from the rest.

    Parameters
    ----------
    affinity
        What has to move has moved in it.
    given
        The affinity in question.
    target
        The device that ops move to.
    most_moved
        The ops that may move, with those that have.
    """
    best, price = affinity, price_without_costs(graph, affinity, given)
    while True:
        wider = {
            best.fix(ops=dict.fromkeys(ops, target), core=core): None
            for ops in _beside(graph, best, given, target, most_moved - price[2])
        }
        priced = [(price_without_costs(graph, each, given), each) for each in wider]
        priced = [each for each in priced if each[0][2] <= most_moved and each[0] < price]
        if not priced:
            return best
        price, best = min(priced, key=lambda each: each[0])


def _beside(
    graph: OpGraph, affinity: Affinity, given: Affinity, target: str, most: int
) -> Iterator[tuple[str, ...]]:
    """Return single ops beside those that have moved, and small subgraphs elsewhere."""
    placeable = [graph.ops[index] for index in graph.placeable]
    free = {op.name for op in placeable if affinity[op.name] != target}
    beside: dict[str, None] = {}
    for op in placeable:
        if affinity[op.name] != given[op.name]:
            near = [producer for producer, _ in op.inputs]
            near += [use.index for use in graph.consumers[op.index]]
            beside.update((graph.ops[index].name, None) for index in near)
    if most < 1:
        return
    yield from ((name,) for name in beside if name in free)
    for subgraph in predict(graph, affinity).subgraphs:
        if subgraph.device != target and 1 < len(subgraph.ops) <= most:
            yield subgraph.ops
