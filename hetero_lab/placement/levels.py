"""Cut a model with states by how often its data have changed devices.

HETERO merges all neighbours on a device and splits the cycles that this makes. Where devices take
turns along a model, A B A B, that can leave one end of a state in the first part of A and the
other one in the second. Here an op has the level of its inputs, and one more for an input of
another device; both ends of a state have the same, and what only a later level needs is computed
there. Parts of one device and one level cannot wait for each other, so that there is no cycle.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hetero_lab.model.opgraph import CONSTANT, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, predict

_GROUP_MARK = "\x00"  # between a device and a level


def predict_by_level(graph: OpGraph, affinity: Affinity) -> Partition | None:
    """Predict the subgraphs of such a cut, ``None`` if a state would be torn by it too.

    Raises
    ------
    AffinityError
        The affinity is of another model.
    """
    affinity.check_model(graph)
    if any(affinity[op.name] != affinity[graph.ops[graph.leader[op.index]].name] for op in graph):
        return None  # what belongs together is on several devices
    level = _levels(graph, affinity)
    if level is None:
        return None
    labels = {
        graph.ops[leader].name: f"{affinity[graph.ops[leader].name]}{_GROUP_MARK}{number}"
        for leader, number in level.items()
    }
    fine = predict(graph, Affinity.from_graph(graph, labels))
    subgraphs = [replace(s, device=s.device.partition(_GROUP_MARK)[0]) for s in fine.subgraphs]
    return replace(fine, subgraphs=tuple(subgraphs))


def _levels(graph: OpGraph, affinity: Affinity) -> dict[int, int] | None:
    """Return the level of each leader, which all that goes with it has."""
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
    # A state is raised by any of its ops, which come at different places of the order.
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
