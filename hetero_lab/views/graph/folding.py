"""A big graph made readable: ops folded into groups, or only the neighbourhood of an op."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from hetero_lab.errors import ArgumentError, did_you_mean, names_at_hand, shorten
from hetero_lab.views.graph.contraction import bundled, contracted, run_name, runs_of
from hetero_lab.views.graph.data import GraphBox, GraphData, GraphNode
from hetero_lab.views.theme import squeeze


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


_SEPARATOR = re.compile(r"[/.]")
_LONGEST_PATH = 40  # scopes deeper than this are one; and so are names made to be long


def by_fusion(nodes: Sequence[GraphNode]) -> dict[int, str]:
    """Put ops with the op in whose node they run."""
    leaders = {node.leader for node in nodes if node.leader}
    return {
        node.index: node.leader or node.name
        for node in nodes
        if node.leader or node.name in leaders
    }


def by_block(nodes: Sequence[GraphNode]) -> dict[int, str]:
    """Put the ops of each repeated layer together."""
    return {node.index: node.block for node in nodes if node.block}


def by_subgraph(nodes: Sequence[GraphNode]) -> dict[int, str]:
    """Put all ops of a subgraph together."""
    return {node.index: f"subgraph {node.subgraph}" for node in nodes}


def by_place(nodes: Sequence[GraphNode], most: int) -> dict[int, str]:
    """Put neighbours in the topological order together, about ``most`` runs of equal length."""
    groups: dict[int, str] = {}
    length = max(1, -(-len(nodes) // most))
    by_box: dict[int, list[GraphNode]] = {}
    for node in nodes:
        by_box.setdefault(node.subgraph, []).append(node)
    for members in by_box.values():
        for start in range(0, len(members), length):
            run = members[start : start + length]
            ends = f"{squeeze(run[0].name, 24)} … {squeeze(run[-1].name, 24)}"
            groups.update((node.index, ends) for node in run)
    return groups


def scopes_of(name: str) -> tuple[str, ...]:
    """Return the scopes that a name is in, outermost first: ``a/b.c`` is in ``a`` and ``a/b``."""
    ends = [m.start() for m in _SEPARATOR.finditer(name[:2000]) if m.start() > 0]
    return tuple(name[:end] for end in ends[:_LONGEST_PATH])


@dataclass
class _Scope:
    """A scope while the tree is cut: what is directly in it."""

    members: list[int]
    inner: dict[str, _Scope]

    @property
    def n_parts(self) -> int:
        return len(self.members) + len(self.inner)

    def everything(self) -> list[int]:
        """Return all nodes in it, at any depth."""
        found: list[int] = []
        queue: list[_Scope] = [self]
        while queue:
            scope = queue.pop()
            found += scope.members
            queue += scope.inner.values()
        return found


def by_scope(nodes: Sequence[GraphNode], most: int, opened: Collection[str] = ()) -> dict[int, str]:
    """Put ops of one name scope together.

    The scopes with most ops are opened first, those of equal size together, as long as there
    are not more than ``most`` groups; ``opened`` names scopes, and ops whose scopes, are opened
    in any case.
    """
    root = _Scope([], {})
    wanted = set(opened)
    sizes: dict[str, int] = {}
    for node in nodes:
        at, path = root, scopes_of(node.name)
        if node.name in opened:
            wanted.update(path)
        for scope in path:
            sizes[scope] = sizes.get(scope, 0) + 1
            at = at.inner.setdefault(scope, _Scope([], {}))
        at.members.append(node.index)
    for name in list(wanted):
        wanted.update(scopes_of(name))
    closed: list[tuple[bool, int, str, _Scope]] = []

    def close(scope: _Scope) -> None:
        for name, inner in scope.inner.items():
            heapq.heappush(closed, (name not in wanted, -sizes[name], name, inner))

    close(root)
    n_parts = root.n_parts
    kept: dict[str, _Scope] = {}
    while closed:
        alike = [heapq.heappop(closed)]
        while closed and closed[0][:2] == alike[0][:2]:
            alike.append(heapq.heappop(closed))
        more = sum(scope.n_parts - 1 for _, _, _, scope in alike)
        may_stay = alike[0][0]
        # A scope that is all there is of the one around it says more than that one.
        if may_stay and more and n_parts + more > most:
            kept.update((name, scope) for _, _, name, scope in alike)
            continue
        n_parts += more
        for _, _, _, scope in alike:
            close(scope)
    return {index: name for name, scope in kept.items() for index in scope.everything()}


def by_mapping(nodes: Sequence[GraphNode], groups: Mapping[str, str]) -> dict[int, str]:
    """Put ops together as the caller says: op → name of its group."""
    return {node.index: str(groups[node.name]) for node in nodes if node.name in groups}


AUTO, FUSION, BLOCK, SCOPE, SUBGRAPH, NONE = (
    "auto", "fusion", "block", "scope", "subgraph", "none",
)  # fmt: skip
FOLDS = (AUTO, FUSION, BLOCK, SCOPE, SUBGRAPH, NONE)
MOST = 300  # with up to so many ops nothing is folded unless it is asked for
MOST_BOXES = 160  # more subgraphs than this are drawn as runs of subgraphs
MOST_PORTS = 60  # so many model inputs, or outputs, are drawn one by one
_FEW = 12  # what was found in so many groups is unfolded

Fold: TypeAlias = "str | Mapping[str, str]"


@dataclass(frozen=True)
class Grain:
    """About how many runs of subgraphs, and of ops, a graph without scopes is folded into."""

    n_runs: int
    n_places: int


FINE, COARSE = Grain(80, 150), Grain(30, 40)  # coarse where wires lead from all to all


@dataclass(frozen=True)
class Shown:
    """What of a graph is drawn, and how.

    Parameters
    ----------
    fold
        ``"fusion"`` (what a device runs as one node, by the counters), ``"block"`` (the repeated
        layers, see :func:`hetero_lab.blocks`), ``"scope"`` (by names), ``"subgraph"``,
        ``"none"``, a mapping op → name of its group, or ``"auto"``: nothing in a graph of up to
        300 ops, else the first of fusion, scope, block, and runs of neighbours that makes it as
        small.
    unfold
        Groups, or ops in them, that are not folded. A scope opens by one level.
    around, hops
        An op, and how many wires from it everything else may be.
    find
        Part of names, in any case: these ops are marked, and unfolded if they are in few groups.
    """

    fold: Fold = AUTO
    unfold: Sequence[str] = ()
    around: str | None = None
    hops: int = 2
    find: str = ""

    def of(self, data: GraphData) -> GraphData:
        """Return what is drawn.

        Raises
        ------
        ArgumentError
            There is no such fold, op or group; nothing has that in its name.
        """
        if isinstance(self.unfold, str):
            return replace(self, unfold=(self.unfold,)).of(data)
        if isinstance(self.fold, str) and self.fold not in FOLDS:
            raise ArgumentError(
                f"fold= is one of {', '.join(FOLDS)} or a mapping op → group, "
                f"not {shorten(self.fold)}."
            )
        if self.around is not None:
            data = neighbourhood(data, self.around, self.hops)
        found = find_ops(data, self.find) if self.find else ()
        if found:
            how_many = f"{len(found)} op{'s' * (len(found) != 1)}"
            note = f"{how_many} with {squeeze(self.find, 30)!r} in the name"
            data = replace(data, marked=frozenset(found), notes=(*data.notes, note))
        fine = self._drawn(data, (), (), FINE)
        if not (fine.is_tangled or self.unfold or found):
            return fine
        return self._drawn(data, self.unfold, found, COARSE if fine.is_tangled else FINE)

    def _drawn(
        self, data: GraphData, unfold: Collection[str], found: Iterable[int], grain: Grain
    ) -> GraphData:
        """Fold all but what is to be unfolded, and what was found if it is in few groups."""
        if self.fold == NONE:
            return data
        runs = {run_name(run): run for run in self._runs(data, grain)}
        bundles = {i: name for name, run in runs.items() for box in run for i in box.nodes}
        opened = {name for i, name in bundles.items() if data.node_of[i].name in unfold}
        opened |= (set(unfold) & set(runs)) | _of_few(bundles, found)
        bundles = {index: name for index, name in bundles.items() if name not in opened}
        loose = [node for node in _foldable(data) if node.index not in bundles]
        groups = _fold(loose, self.fold, unfold, grain)
        opened = _opened(data, groups, set(unfold) - set(runs), self.fold)
        opened |= _of_few(groups, found)
        groups = {index: name for index, name in groups.items() if name not in opened}
        closed = set(bundles.values())
        data = bundled(data, [run for name, run in runs.items() if name in closed])
        return contracted(data, {**groups, **bundles, **_ports(data)})

    def _runs(self, data: GraphData, grain: Grain) -> list[tuple[GraphBox, ...]]:
        """Return the runs of subgraphs that are drawn as one, where there are too many."""
        if not isinstance(self.fold, str) or len(data.boxes) <= MOST_BOXES:
            return []
        return [run for run in runs_of(data.boxes, grain.n_runs) if len(run) > 1]


def _of_few(groups: Mapping[int, str], found: Iterable[int]) -> set[str]:
    """Return the groups that hold what was found, if they are few."""
    hit = {groups[index] for index in found if index in groups}
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
    nodes: Sequence[GraphNode], fold: Fold, unfold: Collection[str], grain: Grain
) -> dict[int, str]:
    """Return the group of each op that is in one."""
    if not isinstance(fold, str):
        return by_mapping(nodes, fold)
    if fold == FUSION:
        return by_fusion(nodes)
    if fold == BLOCK:
        return by_block(nodes)
    if fold == SCOPE:
        return by_scope(nodes, min(MOST, max(2, len(nodes) // 4)), unfold)
    if fold == SUBGRAPH:
        return by_subgraph(nodes)
    if len(nodes) <= MOST:
        return {}
    groups = by_fusion(nodes)
    if _n_left(nodes, groups) <= MOST:
        return groups
    scopes, blocks = by_scope(nodes, MOST, unfold), by_block(nodes)
    for groups, most in ((scopes, MOST), (blocks, MOST), (scopes, 2 * MOST)):
        if _FEW <= _n_left(nodes, groups) <= most:
            return groups
    return by_place(nodes, grain.n_places)


def _n_left(nodes: Sequence[GraphNode], groups: Mapping[int, str]) -> int:
    """Count what is drawn of ops if each group is one node in each subgraph."""
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
        elif inside := _in_scope(data, name, fold):
            # Open already, but for the blocks that it is in or that are in it.
            gone.update(n.block for n in inside if n.block and groups.get(n.index) == n.block)
        else:
            raise ArgumentError(
                f"There is no group {shorten(str(name))} to unfold, and no such op."
                f"{did_you_mean(str(name), [*names, *members])} "
                f"Groups: {names_at_hand(sorted(names), 8)}."
            )
    return gone


def _in_scope(data: GraphData, name: str, fold: Fold) -> list[GraphNode]:
    """Return the nodes in a scope, if ops are folded by scopes."""
    if fold not in (SCOPE, AUTO):
        return []
    inside = (node for node in data.nodes if node.name.startswith(name))
    return [node for node in inside if name in scopes_of(node.name)]
