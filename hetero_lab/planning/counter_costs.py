"""What the counters of measured placements say, before anything is fitted.

Op by op: the times on each device, the price of lost fusion, and of reorders at boundaries.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.planning.cost_model import LostFusion, Reorder
from hetero_lab.planning.imputation import Example, guess
from hetero_lab.planning.layouts import kept_layouts
from hetero_lab.planning.observations import ENTERS, LEAVES, Node, Observation
from hetero_lab.planning.units import fused_pairs


@dataclass(frozen=True)
class Parts:
    """Fusion groups, times, lost fusion and reorders; times in µs."""

    groups: Mapping[str, tuple[tuple[str, ...], ...]]  # fusion groups of each device
    op_us: Mapping[tuple[str, str], float]  # (op, device) → its time within its group
    runs: frozenset[tuple[str, str]]  # (op, device) that leads a node of its own
    lost: tuple[LostFusion, ...]
    reorders: tuple[Reorder, ...]


def fusion_groups(
    observations: Iterable[Observation], devices: Sequence[str]
) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return which ops each device executes as one node, where it has most of the model."""
    most: dict[str, tuple[int, tuple[tuple[str, ...], ...]]] = {}
    for seen in observations:
        for device in devices:
            nodes = [node.ops for node in seen.nodes if node.device == device]
            count = sum(map(len, nodes))
            if count > most.get(device, (0, ()))[0]:
                groups = {op: ops for ops in nodes if len(ops) > 1 for op in ops}
                most[device] = (count, tuple(dict.fromkeys(groups.values())))
    return {device: groups for device, (_, groups) in most.items()}


def read_parts(
    graph: OpGraph, devices: Sequence[str], observations: Sequence[Observation]
) -> Parts:
    """Learn times, lost fusion and reorders from the counters of all observations."""
    groups = fusion_groups(observations, devices)
    nodes = [node for seen in observations for node in _regrouped(seen.nodes, groups)]
    op_us, runs = _op_times(graph, devices, groups, nodes)
    pairs = fused_pairs(graph, groups)
    lost = _lost_fusion(graph, devices, pairs, op_us, nodes)
    return Parts(groups, op_us, runs, lost, _reorders(graph, devices, observations))


def _regrouped(
    nodes: Sequence[Node], groups: Mapping[str, Iterable[tuple[str, ...]]]
) -> list[Node]:
    """Give ops without a time of their own to the node of their group, where there is one.

    A device may name a node after another of its ops when the ops around it are elsewhere; the
    join of the counters then finds a neighbour that does not belong to the group.
    """
    group_of = {(d, op): set(ops) for d, all_ops in groups.items() for ops in all_ops for op in ops}
    leads = {(node.subgraph, node.ops[0]) for node in nodes}
    moved: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    kept: list[Node] = []
    for node in nodes:
        mine = group_of.get((node.device, node.ops[0]), set())
        stay = [node.ops[0]]
        for op in node.ops[1:]:
            group = group_of.get((node.device, op), set())
            other = next((o for o in group - mine if (node.subgraph, o) in leads), None)
            if other is None:
                stay.append(op)
            else:
                moved[node.subgraph, other].append(op)
        kept.append(dataclasses.replace(node, ops=tuple(stay)))
    return [
        dataclasses.replace(node, ops=(*node.ops, *moved.get((node.subgraph, node.ops[0]), ())))
        for node in kept
    ]


def _op_times(
    graph: OpGraph,
    devices: Sequence[str],
    groups: Mapping[str, Iterable[tuple[str, ...]]],
    nodes: Sequence[Node],
) -> tuple[dict[tuple[str, str], float], frozenset[tuple[str, str]]]:
    """Return each op's time where its whole group is together: all of it is the leader's."""
    whole = {(d, frozenset(ops)): ops[0] for d in devices for ops in groups.get(d, ())}
    grouped = {(d, op) for d in devices for ops in groups.get(d, ()) for op in ops}
    seen: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for node in nodes:
        alone = len(node.ops) == 1 and (node.device, node.ops[0]) not in grouped
        leader = whole.get((node.device, frozenset(node.ops)), node.ops[0] if alone else None)
        if leader is not None:
            seen[leader, node.device].append(node.us)
    op_us = {key: float(np.median(us)) for key, us in seen.items()}
    # A node that was never seen whole: what it took in part.
    for node in nodes:
        ops = next((g for g in groups.get(node.device, ()) if node.ops[0] in g), node.ops)
        if not any((op, node.device) in op_us for op in ops):
            op_us[node.ops[0], node.device] = node.us
    runs = frozenset(op_us)
    _fill_in(graph, devices, op_us, grouped)
    return op_us, runs


def _fill_in(
    graph: OpGraph,
    devices: Sequence[str],
    op_us: dict[tuple[str, str], float],
    grouped: set[tuple[str, str]],
) -> None:
    """Guess times that no counter shows from another device's, in proportion."""
    for device in devices:
        for other in devices:
            both = [op for op, d in op_us if d == device and (op, other) in op_us]
            theirs = sum(op_us[op, other] for op in both)
            ratio = sum(op_us[op, device] for op in both) / theirs if theirs else 1.0
            for op in graph.placeable:
                name = graph.ops[op].name
                unseen = (name, device) not in op_us and (device, name) not in grouped
                if unseen and (name, other) in op_us:
                    op_us[name, device] = ratio * op_us[name, other]


def _lost_fusion(
    graph: OpGraph,
    devices: Sequence[str],
    pairs: Iterable[tuple[str, str, tuple[str, ...]]],
    op_us: Mapping[tuple[str, str], float],
    nodes: Sequence[Node],
) -> tuple[LostFusion, ...]:
    """Return what two ops cost more where they were seen apart.

    The later op leads a node of its own then: that is what is lost, less what it would have
    taken anyway. What was never seen is told from its like on that device.
    """
    pairs = list(pairs)
    above: defaultdict[str, list[str]] = defaultdict(list)
    below: defaultdict[str, list[str]] = defaultdict(list)
    for first, second, _ in pairs:
        above[second].append(first)
        below[first].append(second)
    later: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    earlier: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for node in nodes:
        members = set(node.ops)
        more = node.us - sum(op_us.get((op, node.device), 0.0) for op in node.ops)
        cut_above = [(p, op) for op in node.ops for p in above[op] if p not in members]
        cut_below = [(op, s) for op in node.ops for s in below[op] if s not in members]
        if len(cut_above) == 1 and not cut_below:
            later[(*cut_above[0], node.device)].append(more)
        elif cut_above:
            # A middle piece: what it lost above is what a piece with no cut below shows.
            for pair in cut_above:
                later[(*pair, node.device)].append(more / len(cut_above))
        elif len(cut_below) == 1:
            earlier[(*cut_below[0], node.device)].append(more)
    examples: defaultdict[str, list[Example]] = defaultdict(list)
    for (_, second, device), us in later.items():
        examples[device].append(Example.of(graph, second, 0, max(0.0, float(np.median(us)))))
    terms = []
    for first, second, fusing in pairs:
        first_us, second_us = [], []
        for device in devices:
            before, after = (table.get((first, second, device)) for table in (earlier, later))
            first_us.append(max(0.0, float(np.median(before))) if before else 0.0)
            if after:
                second_us.append(max(0.0, float(np.median(after))))
            elif device in fusing:
                second_us.append(guess(Example.of(graph, second, 0), examples[device]))
            else:
                second_us.append(0.0)
        terms.append(LostFusion(first, second, tuple(first_us), tuple(second_us)))
    return tuple(terms)


def _reorders(
    graph: OpGraph, devices: Sequence[str], observations: Iterable[Observation]
) -> tuple[Reorder, ...]:
    """Return the conversions of each tensor; what was not seen is told from its like.

    Tensors of one layout cost the same to convert. Where the op that chose it was on another
    device, nothing is learnt from a tensor that left without: it had been converted before.
    """
    layouts = kept_layouts(graph)
    seen: defaultdict[tuple[str, int, str, str], list[float]] = defaultdict(list)
    for observation in observations:
        for c in observation.conversions:
            if c.way != LEAVES:
                seen[c.op, c.port, c.device, c.way].append(c.us)
            elif all(observation.affinity[op] == c.device for op in layouts.path(c.op)):
                seen[layouts.root.get(c.op, c.op), c.port, c.device, c.way].append(c.us)
    examples: defaultdict[tuple[str, str], list[Example]] = defaultdict(list)
    for (op, port, device, way), us in seen.items():
        examples[device, way].append(Example.of(graph, op, port, float(np.median(us))))

    def cost(op: str, port: int, device: str, way: str) -> float:
        if way == LEAVES:
            op = layouts.root.get(op, op)
        known = seen.get((op, port, device, way))
        if known:
            return float(np.median(known))
        like = examples.get((device, way))
        return guess(Example.of(graph, op, port), like) if like else 0.0

    terms = []
    for index in (*graph.placeable, *graph.parameters):
        op = graph.ops[index]
        for port in range(len(op.outputs)):
            leave, enter = (
                tuple(cost(op.name, port, device, way) for device in devices)
                for way in (LEAVES, ENTERS)
            )
            root = layouts.root.get(op.name, "")
            if root or any(leave) or any(enter):
                terms.append(Reorder(op.name, port, leave, enter, root))
    return tuple(terms)
