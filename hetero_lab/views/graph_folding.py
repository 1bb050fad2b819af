"""A big graph made readable: ops folded into groups, or only the neighbourhood of an op."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TypeAlias

from hetero_lab.errors import ArgumentError, did_you_mean, names_at_hand, shorten
from hetero_lab.model.opgraph import grouped
from hetero_lab.terminal import count_of
from hetero_lab.views.graph_data import GraphBox, GraphData, GraphEdge, GraphNode
from hetero_lab.views.theme import SEVERAL, squeeze


def find_ops(data: GraphData, part: str) -> tuple[int, ...]:
    """Return the nodes whose name contains a text, in any case; ArgumentError if there is none."""
    text = part.casefold()
    matches = tuple(node.index for node in data.nodes if text in node.name.casefold())
    if not matches:
        raise _no_such_op(data, part, f"No op has {shorten(part)} in its name.")
    return matches


def _no_such_op(data: GraphData, name: str, fact: str) -> ArgumentError:
    names = [node.name for node in data.nodes]
    return ArgumentError(f"{fact}{did_you_mean(name, names)} Ops: {names_at_hand(names, 6)}.")


def neighbourhood(data: GraphData, op: str, hops: int) -> GraphData:
    """Return what is at most ``hops`` wires from an op; ArgumentError for a wrong op or number."""
    if not isinstance(hops, int) or hops < 0:
        raise ArgumentError(f"hops= is a whole number from 0, not {shorten(str(hops))}.")
    centre = next((node.index for node in data.nodes if node.name == op), None)
    if centre is None:
        raise _no_such_op(data, str(op), f"{shorten(str(op))} is not in the graph.")
    ends = [(edge.source, edge.target) for edge in data.edges]
    near = grouped([*ends, *((target, source) for source, target in ends)])
    reach, border = {centre}, {centre}
    for _ in range(hops):
        border = {other for index in border for other in near.get(index, ())} - reach
        reach |= border
    nodes = tuple(
        replace(node, n_unseen=len(set(near.get(node.index, ())) - reach))
        for node in data.nodes
        if node.index in reach
    )
    members = ((box, tuple(i for i in box.nodes if i in reach)) for box in data.boxes)
    n_ops = sum(node.n_ops for node in nodes)
    note = f"{n_ops} of {data.n_ops:,} ops: around {squeeze(op, 60)}, {count_of(hops, 'hop')}"
    return replace(
        data,
        nodes=nodes,
        edges=tuple(e for e in data.edges if e.source in reach and e.target in reach),
        boxes=tuple(
            replace(box, nodes=inside, n_unseen=len(box.nodes) - len(inside))
            for box, inside in members
            if inside
        ),
        marked=frozenset({centre}),
        notes=(*data.notes, note),
        whole_us=data.total_us if data.is_timed else None,
    )


_SEPARATOR = re.compile(r"[/.]")
_LONGEST_PATH = 40  # deeper scopes count as one, as do names made to be long


def by_fusion(nodes: Sequence[GraphNode]) -> dict[int, str]:
    """Put ops with the op whose node runs them."""
    leaders = {node.leader for node in nodes if node.leader}
    return {
        node.index: node.leader or node.name
        for node in nodes
        if node.leader or node.name in leaders
    }


def by_place(nodes: Sequence[GraphNode], most: int) -> dict[int, str]:
    """Put neighbours in the topological order together, about ``most`` runs of equal length."""
    groups: dict[int, str] = {}
    length = max(1, -(-len(nodes) // most))
    for members in grouped((node.subgraph, node) for node in nodes).values():
        for start in range(0, len(members), length):
            run = members[start : start + length]
            ends = f"{squeeze(run[0].name, 24)} … {squeeze(run[-1].name, 24)}"
            groups.update((node.index, ends) for node in run)
    return groups


def scopes_of(name: str) -> tuple[str, ...]:
    """Return the scopes that a name is in, outermost first: ``a/b.c`` is in ``a`` and ``a/b``."""
    ends = [m.start() for m in _SEPARATOR.finditer(name[:2000]) if m.start() > 0]
    return tuple(name[:end] for end in ends[:_LONGEST_PATH])


def by_scope(nodes: Sequence[GraphNode], most: int, opened: Collection[str] = ()) -> dict[int, str]:
    """Put ops of one name scope together.

    The scopes with most ops are opened first, those of equal size together, as long as there
    are at most ``most`` groups. ``opened`` names scopes that are opened in any case, and ops whose
    scopes are.
    """
    paths = {node.index: scopes_of(node.name) for node in nodes}
    sizes = Counter(scope for path in paths.values() for scope in path)
    inner: dict[str, dict[str, None]] = {}  # scope → the scopes directly in it; "" is the root
    for path in paths.values():
        for around, scope in pairwise(("", *path)):
            inner.setdefault(around, {})[scope] = None
    # The parts of an open scope: the scopes in it, and the ops directly in it.
    n_parts = Counter(path[-1] if path else "" for path in paths.values())
    n_parts.update({scope: len(scopes) for scope, scopes in inner.items()})
    names = {*opened, *(s for n in nodes if n.name in opened for s in paths[n.index])}
    open_scopes = names | {outer for name in names for outer in scopes_of(name)}
    closed: list[tuple[bool, int, str]] = []

    def close(scopes: Iterable[str]) -> None:
        for scope in scopes:
            heapq.heappush(closed, (scope not in open_scopes, -sizes[scope], scope))

    close(inner.get("", ()))
    total, groups = n_parts[""], set[str]()
    while closed:
        alike = [heapq.heappop(closed)]
        while closed and closed[0][:2] == alike[0][:2]:
            alike.append(heapq.heappop(closed))
        scopes = [scope for _, _, scope in alike]
        more = sum(n_parts[scope] - 1 for scope in scopes)
        may_stay = alike[0][0]
        # A scope that is the only part of the one around it is the better name.
        if may_stay and more and total + more > most:
            groups.update(scopes)
            continue
        total += more
        close(name for scope in scopes for name in inner.get(scope, ()))
    return {index: scope for index, path in paths.items() for scope in path if scope in groups}


AUTO, FUSION, BLOCK = "auto", "fusion", "block"
SCOPE, SUBGRAPH, NONE = "scope", "subgraph", "none"
FOLDS = (AUTO, FUSION, BLOCK, SCOPE, SUBGRAPH, NONE)
MOST = 300  # a graph of at most this many ops is folded only on request
MOST_BOXES = 160  # more subgraphs than this are drawn as runs of subgraphs
MOST_PORTS = 60  # at most this many model inputs, or outputs, are drawn one by one
_FEW = 12  # matches of a search are unfolded if they are in at most this many groups

Fold: TypeAlias = str | Mapping[str, str]


# About how many runs of subgraphs, and of ops, a graph without scopes is folded into: the second
# where wires lead from all to all.
_FINE, _COARSE = (80, 150), (30, 40)


@dataclass(frozen=True)
class Shown:
    """The part of a graph to draw, and how it is folded.

    ``fold`` is ``"fusion"`` (ops that a device runs as one node, by the counters), ``"block"``
    (repeated layers, see :func:`hetero_lab.blocks`), ``"scope"`` (by names), ``"subgraph"``,
    ``"none"``, a mapping op → name of its group, or ``"auto"``: no folding up to 300 ops, else
    the first of fusion, scope, block and runs of neighbours that makes the graph that small.

    ``unfold`` names groups, or ops in them, that are not folded; a scope opens by one level.
    ``around`` is an op, and ``hops`` the greatest distance from it in wires. ``find`` is a part of
    a name, in any case: matching ops are marked, and unfolded if they are in few groups.
    """

    fold: Fold = AUTO
    unfold: Sequence[str] = ()
    around: str | None = None
    hops: int = 2
    find: str = ""

    def of(self, data: GraphData) -> GraphData:
        """Return the data to draw; ArgumentError for a fold, op or group that is not known."""
        if isinstance(self.unfold, str):
            return replace(self, unfold=(self.unfold,)).of(data)
        if isinstance(self.fold, str) and self.fold not in FOLDS:
            raise ArgumentError(
                f"fold= is one of {', '.join(FOLDS)} or a mapping op → group, "
                f"not {shorten(self.fold)}."
            )
        if self.around is not None:
            data = neighbourhood(data, self.around, self.hops)
        matches = find_ops(data, self.find) if self.find else ()
        if matches:
            note = f"{count_of(len(matches), 'op')} with {squeeze(self.find, 30)!r} in the name"
            data = replace(data, marked=frozenset(matches), notes=(*data.notes, note))
        fine = self._drawn(data, (), (), _FINE)
        if not (fine.is_tangled or self.unfold or matches):
            return fine
        return self._drawn(data, self.unfold, matches, _COARSE if fine.is_tangled else _FINE)

    def _drawn(
        self, data: GraphData, unfold: Collection[str], hits: Iterable[int], grain: tuple[int, int]
    ) -> GraphData:
        """Fold everything except the given groups, and except matches in few groups."""
        if self.fold == NONE:
            return data
        few_boxes = not isinstance(self.fold, str) or len(data.boxes) <= MOST_BOXES
        runs = {} if few_boxes else _runs(data.boxes, grain[0])
        bundles = {i: name for name, run in runs.items() for box in run for i in box.nodes}
        opened = {name for i, name in bundles.items() if data.node_of[i].name in unfold}
        opened |= (set(unfold) & set(runs)) | _of_few(bundles, hits)
        bundles = {index: name for index, name in bundles.items() if name not in opened}
        loose = [node for node in _foldable(data) if node.index not in bundles]
        groups = _fold(loose, self.fold, unfold, grain[1])
        opened = _opened(data, groups, set(unfold) - set(runs), self.fold)
        opened |= _of_few(groups, hits)
        groups = {index: name for index, name in groups.items() if name not in opened}
        closed = set(bundles.values())
        data = bundled(data, [run for name, run in runs.items() if name in closed])
        return contracted(data, {**groups, **bundles, **_ports(data)})


def _runs(boxes: Sequence[GraphBox], most: int) -> dict[str, Sequence[GraphBox]]:
    """Return by name the runs of subgraphs that are drawn as one, ``most`` of equal length."""
    length = -(-len(boxes) // most)
    runs = (boxes[i : i + length] for i in range(0, len(boxes), length))
    return {f"subgraphs {run[0].index} to {run[-1].index}": run for run in runs if len(run) > 1}


def _of_few(groups: Mapping[int, str], matches: Iterable[int]) -> set[str]:
    """Return the groups that hold the matches, if they are few."""
    hit = {groups[index] for index in matches if index in groups}
    return hit if len(hit) <= _FEW else set()


def _foldable(data: GraphData) -> list[GraphNode]:
    """Return the ops in the order of their subgraphs, which is topological too."""
    return [
        data.node_of[index]
        for box in data.boxes
        for index in box.nodes
        if data.node_of[index].kind == "op"
    ]


def _ports(data: GraphData) -> dict[int, str]:
    """Put inputs, and outputs, together where there are many."""
    groups: dict[int, str] = {}
    for kind in ("input", "output"):
        alike = [node.index for node in data.nodes if node.kind == kind]
        if len(alike) > MOST_PORTS:
            groups.update(dict.fromkeys(alike, f"{len(alike):,} {kind}s"))
    return groups


def _fold(
    nodes: Sequence[GraphNode], fold: Fold, unfold: Collection[str], n_places: int
) -> dict[int, str]:
    if not isinstance(fold, str):
        return {node.index: str(fold[node.name]) for node in nodes if node.name in fold}
    blocks = {node.index: node.block for node in nodes if node.block}
    if fold == BLOCK:
        return blocks
    if fold == SUBGRAPH:
        return {node.index: f"subgraph {node.subgraph}" for node in nodes}
    if fold == SCOPE:
        return by_scope(nodes, min(MOST, max(2, len(nodes) // 4)), unfold)
    groups = by_fusion(nodes)
    if fold == FUSION:
        return groups
    if len(nodes) <= MOST:
        return {}
    if _n_left(nodes, groups) <= MOST:
        return groups
    scopes = by_scope(nodes, MOST, unfold)
    for groups, most in ((scopes, MOST), (blocks, MOST), (scopes, 2 * MOST)):
        if _FEW <= _n_left(nodes, groups) <= most:
            return groups
    return by_place(nodes, n_places)


def _n_left(nodes: Sequence[GraphNode], groups: Mapping[int, str]) -> int:
    """Count the nodes that are drawn if each group is one node in each subgraph."""
    return len({(node.subgraph, groups.get(node.index, node.index)) for node in nodes})


def _opened(
    data: GraphData, groups: Mapping[int, str], unfold: Iterable[str], fold: Fold
) -> set[str]:
    """Return the groups that are named, or that hold an op that is named."""
    names = set(groups.values())
    members = {node.name: node.index for node in data.nodes}
    gone: set[str] = set()
    for name in unfold:
        if name in names:
            gone.add(name)
        elif name in members:
            gone.update({groups[members[name]]} if members[name] in groups else ())
        elif fold in (SCOPE, AUTO) and (inside := _in_scope(data, name)):
            # Open already, but for the blocks that it is in or that are in it.
            gone.update(n.block for n in inside if n.block and groups.get(n.index) == n.block)
        else:
            raise ArgumentError(
                f"There is no group {shorten(str(name))} to unfold, and no such op."
                f"{did_you_mean(str(name), [*names, *members])} "
                f"Groups: {names_at_hand(sorted(names), 8)}."
            )
    return gone


def _in_scope(data: GraphData, name: str) -> list[GraphNode]:
    inside = (node for node in data.nodes if node.name.startswith(name))
    return [node for node in inside if name in scopes_of(node.name)]


def bundled(data: GraphData, runs: Collection[Sequence[GraphBox]]) -> GraphData:
    """Draw runs of subgraphs as single boxes; in execution order, no wire leaves and comes back."""
    home = {index: run[0].index for run in runs for box in run for index in box.nodes}
    later = {box.index for run in runs for box in run[1:]}
    whole = {
        run[0].index: GraphBox(
            index=run[0].index,
            device=_one_of([box.device for box in run]),
            nodes=tuple(index for box in run for index in box.nodes),
            n_unseen=sum(box.n_unseen for box in run),
            n_subgraphs=len(run),
        )
        for run in runs
    }
    boxes = tuple(whole.get(box.index, box) for box in data.boxes if box.index not in later)
    nodes = tuple(replace(n, subgraph=home[n.index]) if n.index in home else n for n in data.nodes)
    edges = tuple(
        replace(e, is_boundary=False)
        if e.is_boundary and e.source in home and home[e.source] == home.get(e.target)
        else e
        for e in data.edges
    )
    return replace(data, nodes=nodes, edges=edges, boxes=boxes)


def _one_of(devices: Collection[str]) -> str:
    return next(iter(devices)) if len(set(devices)) == 1 else SEVERAL


def contracted(data: GraphData, groups: Mapping[int, str]) -> GraphData:
    """Draw each group as one node in every subgraph that it is in.

    A group is split where the graph would become cyclic; new numbers follow the flow.
    """
    parts = _parts(data, groups)
    if all(len(members) == 1 for members in parts):
        return data
    order = _topological(data, parts)
    number = {index: n for n, part in enumerate(order) for index in parts[part]}
    nodes = tuple(
        _group([data.node_of[i] for i in parts[part]], groups, n) for n, part in enumerate(order)
    )
    notes, sizes = data.notes, [node.n_ops for node in nodes if node.kind == "group"]
    if sizes:
        into = count_of(len(sizes), "group")
        notes = (*notes, f"{sum(sizes):,} of {data.n_ops:,} ops are folded into {into}")
    return replace(
        data,
        nodes=nodes,
        edges=_merged(data, number),
        boxes=tuple(
            replace(box, nodes=tuple(sorted({number[index] for index in box.nodes})))
            for box in data.boxes
        ),
        marked=frozenset(number[index] for index in data.marked),
        notes=notes,
    )


def _parts(data: GraphData, groups: Mapping[int, str]) -> list[list[int]]:
    """Divide the nodes into those that become one.

    An op joins the last part of its group unless it reads something that comes after that part:
    the part would then be both before and after that, so the op begins a new one.
    """
    sources = grouped((edge.target, edge.source) for edge in data.edges)
    parts: list[list[int]] = []
    part_of: dict[int, int] = {}
    before: list[int] = []  # of each part, the parts before it in its own subgraph, as bits
    subgraph_of: list[int] = []
    open_part: dict[tuple[int, str], int] = {}
    boxed = [data.node_of[index] for box in data.boxes for index in box.nodes]
    inside = {node.index for node in boxed}
    loose = [node for node in data.nodes if node.index not in inside]
    for node in [*loose, *boxed]:
        key = (node.subgraph, groups.get(node.index, ""))
        reads = {part_of[s] for s in sources.get(node.index, ()) if s in part_of}
        # There is no circle through another subgraph: the order of subgraphs has none.
        reads = {part for part in reads if subgraph_of[part] == node.subgraph}
        part = open_part.get(key) if node.index in groups else None
        if part is not None and any(before[r] >> part & 1 for r in reads if r != part):
            part = None
        if part is None:
            part = len(parts)
            parts.append([])
            before.append(0)
            subgraph_of.append(node.subgraph)
            if node.index in groups:
                open_part[key] = part
        parts[part].append(node.index)
        part_of[node.index] = part
        new = 0
        for r in reads - {part}:
            new |= before[r] | 1 << r
        if new & ~before[part]:
            before[part] |= new
            if len(parts[part]) > 1:  # nothing comes after a new part yet
                before = [b | new if b >> part & 1 else b for b in before]
    return parts


def _topological(data: GraphData, parts: Sequence[Sequence[int]]) -> list[int]:
    """Order parts so that sources come first, else by their first op."""
    part_of = {index: part for part, members in enumerate(parts) for index in members}
    sorter = TopologicalSorter({part: set[int]() for part in range(len(parts))})
    for edge in data.edges:
        if part_of[edge.source] != part_of[edge.target]:
            sorter.add(part_of[edge.target], part_of[edge.source])
    sorter.prepare()
    ready: list[tuple[int, int]] = []
    order = []
    while sorter.is_active():
        for part in sorter.get_ready():
            heapq.heappush(ready, (min(parts[part]), part))
        _, part = heapq.heappop(ready)
        order.append(part)
        sorter.done(part)
    return order


def _group(members: Sequence[GraphNode], groups: Mapping[int, str], index: int) -> GraphNode:
    first = members[0]
    if len(members) == 1:
        return replace(first, index=index)
    if all(node.is_port for node in members):
        return replace(first, index=index, name=groups[first.index], tensors=())
    times = [node.time_us for node in members if node.time_us is not None]
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
        device=_one_of(devices),
        subgraph=first.subgraph,
        tensors=(),
        time_us=float(sum(times)) if times else None,
        precision=", ".join(precisions),
        ops=tuple(node.name for node in ops),
        types=tuple(types.most_common()),
        devices=tuple(devices.most_common()),
        n_unseen=sum(node.n_unseen for node in members),
        # A group that hides a cause shows it.
        displaced=max(displaced, key=lambda d: d.is_cause, default=None),
    )


def _merged(data: GraphData, number: Mapping[int, int]) -> tuple[GraphEdge, ...]:
    """Join the wires between two nodes; a tensor that several ops read counts once."""
    wires = (((number[edge.source], number[edge.target]), edge) for edge in data.edges)
    merged = []
    for (source, target), edges in grouped(wires).items():
        if source == target:
            continue
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
