"""Many nodes of a placement graph drawn as one, without making it cyclic."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hetero_lab.views.graph.data import GraphBox, GraphData, GraphEdge, GraphNode
from hetero_lab.views.theme import SEVERAL


def runs_of(boxes: Sequence[GraphBox], most: int) -> list[tuple[GraphBox, ...]]:
    """Divide subgraphs into about ``most`` runs, each of subgraphs that follow each other."""
    length = max(1, -(-len(boxes) // most))
    return [tuple(boxes[i : i + length]) for i in range(0, len(boxes), length)]


def run_name(run: Sequence[GraphBox]) -> str:
    """Name a run of subgraphs."""
    return f"subgraphs {run[0].index} to {run[-1].index}"


def bundled(data: GraphData, runs: Collection[Sequence[GraphBox]]) -> GraphData:
    """Draw each run of subgraphs as one box; what crosses within it is no boundary any more.

    Subgraphs come in execution order, so a run has no wire that leaves it and comes back.
    """
    home = {index: run[0].index for run in runs for box in run for index in box.nodes}
    boxes: list[GraphBox] = []
    run_of = {box.index: run for run in runs for box in run}
    for box in data.boxes:
        run = run_of.get(box.index)
        if run is None:
            boxes.append(box)
        elif box is run[0]:
            devices = dict.fromkeys(each.device for each in run)
            boxes.append(
                GraphBox(
                    box.index,
                    box.device if len(devices) == 1 else SEVERAL,
                    tuple(index for each in run for index in each.nodes),
                    sum(each.n_unseen for each in run),
                    len(run),
                )
            )
    nodes = tuple(replace(n, subgraph=home[n.index]) if n.index in home else n for n in data.nodes)
    edges = tuple(
        replace(e, is_boundary=False)
        if e.is_boundary and e.source in home and home[e.source] == home.get(e.target)
        else e
        for e in data.edges
    )
    return replace(data, nodes=nodes, edges=edges, boxes=tuple(boxes))


def contracted(data: GraphData, groups: Mapping[int, str]) -> GraphData:
    """Draw each group as one node in every subgraph that it is in.

    A group is split where the graph would become cyclic. Nodes are renumbered in an order in
    which sources come before targets.
    """
    parts = _parts(data, groups)
    if all(len(members) == 1 for members in parts):
        return data
    order = _topological(data, parts)
    number = {index: n for n, part in enumerate(order) for index in parts[part]}
    nodes = tuple(
        _group([data.node_of[i] for i in parts[part]], groups, n) for n, part in enumerate(order)
    )
    n_groups = sum(node.kind == "group" for node in nodes)
    folded = sum(node.n_ops for node in nodes if node.kind == "group")
    into = f"{n_groups} group{'s' * (n_groups != 1)}"
    notes = [f"{folded:,} of {data.n_ops:,} ops are folded into {into}"] if n_groups else []
    return replace(
        data,
        nodes=nodes,
        edges=_merged(data, number),
        boxes=tuple(
            GraphBox(
                box.index,
                box.device,
                tuple(sorted({number[index] for index in box.nodes})),
                box.n_unseen,
                box.n_subgraphs,
            )
            for box in data.boxes
        ),
        marked=frozenset(number[index] for index in data.marked),
        notes=(*data.notes, *notes),
        whole_us=data.total_us if data.is_timed else None,
    )


def _parts(data: GraphData, groups: Mapping[int, str]) -> list[list[int]]:
    """Divide the nodes into those that become one.

    An op joins the last part of its group unless something that it reads comes after that part:
    then it would be both before and after it, and begins a new one.
    """
    sources: dict[int, list[int]] = {}
    for edge in data.edges:
        sources.setdefault(edge.target, []).append(edge.source)
    parts: list[list[int]] = []
    part_of: dict[int, int] = {}
    before: list[int] = []  # of each part, the parts before it in its own subgraph, as bits
    after: list[int] = []
    subgraph_of: list[int] = []
    open_part: dict[tuple[int, str], int] = {}
    boxed = [data.node_of[index] for box in data.boxes for index in box.nodes]
    inside = {node.index for node in boxed}
    loose = [node for node in data.nodes if node.index not in inside]
    for node in [*loose, *boxed]:
        key = (node.subgraph, groups.get(node.index, ""))
        reads = {part_of[s] for s in sources.get(node.index, ()) if s in part_of}
        # A circle through another subgraph cannot be: their own order has none.
        reads = {part for part in reads if subgraph_of[part] == node.subgraph}
        part = open_part.get(key) if node.index in groups else None
        if part is not None and any(before[r] >> part & 1 for r in reads if r != part):
            part = None
        if part is None:
            part = len(parts)
            parts.append([])
            before.append(0)
            after.append(0)
            subgraph_of.append(node.subgraph)
            if node.index in groups:
                open_part[key] = part
        parts[part].append(node.index)
        part_of[node.index] = part
        new = 0
        for r in reads - {part}:
            new |= before[r] | 1 << r
        new &= ~before[part]
        if new:
            later = after[part] | 1 << part
            for p in _bits(later):
                before[p] |= new
            for p in _bits(new):
                after[p] |= later
    return parts


def _bits(number: int) -> Iterable[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _topological(data: GraphData, parts: Sequence[Sequence[int]]) -> list[int]:
    """Order parts so that sources come first, else by their first op."""
    part_of = {index: part for part, members in enumerate(parts) for index in members}
    targets: dict[int, set[int]] = {}
    waits = [0] * len(parts)
    for edge in data.edges:
        a, b = part_of[edge.source], part_of[edge.target]
        if a != b and b not in targets.setdefault(a, set()):
            targets[a].add(b)
            waits[b] += 1
    ready = [(min(parts[p]), p) for p in range(len(parts)) if not waits[p]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, part = heapq.heappop(ready)
        order.append(part)
        for target in targets.get(part, ()):
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(ready, (min(parts[target]), target))
    return order


def _group(members: Sequence[GraphNode], groups: Mapping[int, str], index: int) -> GraphNode:
    first = members[0]
    if len(members) == 1:
        return replace(first, index=index)
    if all(node.is_port for node in members):
        return replace(first, index=index, name=groups[first.index], tensors=())
    known = [node.time_us for node in members if node.time_us is not None]
    ops = [node for node in members if not node.is_port]
    types = Counter(node.type for node in ops)
    devices = Counter(node.device for node in ops)
    precisions = dict.fromkeys(node.precision for node in members if node.precision)
    displaced = [node.displaced for node in ops if node.displaced]
    return GraphNode(
        index=index,
        kind="group",
        name=groups[first.index],
        type=types.most_common(1)[0][0],
        device=ops[0].device if len(devices) == 1 else SEVERAL,
        subgraph=first.subgraph,
        tensors=(),
        time_us=float(sum(known)) if known else None,
        precision=", ".join(precisions),
        ops=tuple(node.name for node in ops),
        types=tuple(types.most_common()),
        devices=tuple(devices.most_common()),
        n_unseen=sum(node.n_unseen for node in members),
        # A cause hides no less for being folded.
        displaced=max(displaced, key=lambda found: found.is_cause, default=None),
    )


def _merged(data: GraphData, number: Mapping[int, int]) -> tuple[GraphEdge, ...]:
    """Join the wires between two nodes; a tensor that several ops read counts once."""
    grouped: dict[tuple[int, int], list[GraphEdge]] = {}
    for edge in data.edges:
        pair = (number[edge.source], number[edge.target])
        if pair[0] != pair[1]:
            grouped.setdefault(pair, []).append(edge)
    merged = []
    for (source, target), edges in grouped.items():
        tensors: dict[tuple[int, str], int | None] = {}
        reorders: dict[int, float] = {}
        for edge in edges:
            sized = zip(edge.tensors, edge.sizes, strict=True)
            tensors.update(((edge.source, name), size) for name, size in sized)
            if edge.reorder_us is not None:
                reorders[edge.source] = max(edge.reorder_us, reorders.get(edge.source, 0.0))
        merged.append(
            GraphEdge(
                source=source,
                target=target,
                tensors=tuple(name for _, name in tensors),
                sizes=tuple(tensors.values()),
                is_boundary=any(edge.is_boundary for edge in edges),
                reorder_us=sum(reorders.values()) if reorders else None,
            )
        )
    return tuple(merged)
