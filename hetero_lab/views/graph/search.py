"""What is searched for in a graph: ops by a part of their name, or what is near to one."""

from __future__ import annotations

from dataclasses import replace

from hetero_lab.errors import ArgumentError, did_you_mean, names_at_hand, shorten
from hetero_lab.views.graph.data import GraphData
from hetero_lab.views.text import squeeze


def find_ops(data: GraphData, part: str) -> tuple[int, ...]:
    """Return the nodes that have a text in their name, in any case.

    Raises
    ------
    ArgumentError
        There is none.
    """
    wanted = part.casefold()
    found = tuple(node.index for node in data.nodes if wanted in node.name.casefold())
    if not found:
        names = [node.name for node in data.nodes]
        raise ArgumentError(
            f"No op has {shorten(part)} in its name.{did_you_mean(part, names)} "
            f"Ops: {names_at_hand(names, 6)}."
        )
    return found


def neighbourhood(data: GraphData, op: str, hops: int) -> GraphData:
    """Return the part of a graph that is at most ``hops`` wires away from an op.

    Raises
    ------
    ArgumentError
        No such op is drawn, or ``hops`` is no number from 0.
    """
    if not isinstance(hops, int) or hops < 0:
        raise ArgumentError(f"hops= is a whole number from 0, not {shorten(str(hops))}.")
    centre = next((node.index for node in data.nodes if node.name == op), None)
    if centre is None:
        names = [node.name for node in data.nodes]
        raise ArgumentError(
            f"{shorten(str(op))} is not in the graph.{did_you_mean(str(op), names)} "
            f"Ops: {names_at_hand(names, 6)}."
        )
    near: dict[int, set[int]] = {}
    for edge in data.edges:
        near.setdefault(edge.source, set()).add(edge.target)
        near.setdefault(edge.target, set()).add(edge.source)
    kept, border = {centre}, {centre}
    for _ in range(hops):
        border = {other for index in border for other in near.get(index, ())} - kept
        kept |= border
    nodes = tuple(
        replace(node, n_unseen=len(near.get(node.index, set()) - kept))
        for node in data.nodes
        if node.index in kept
    )
    boxes = []
    for box in data.boxes:
        members = tuple(index for index in box.nodes if index in kept)
        if members:
            boxes.append(replace(box, nodes=members, n_unseen=len(box.nodes) - len(members)))
    n_ops = sum(node.n_ops for node in nodes)
    hop = f"{hops} hop{'s' if hops != 1 else ''}"
    note = f"{n_ops} of {data.n_ops:,} ops: around {squeeze(op, 60)}, {hop}"
    return replace(
        data,
        nodes=nodes,
        edges=tuple(e for e in data.edges if e.source in kept and e.target in kept),
        boxes=tuple(boxes),
        marked=frozenset({centre}),
        notes=(*data.notes, note),
        whole_us=data.total_us if data.is_timed else None,
    )
