"""Which ops of a big graph belong together: by fusion group, subgraph, scope of names, or place.

Each function maps node indices to the name of a group; nodes that stay alone are left out.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hetero_lab.views.graph.data import GraphNode
from hetero_lab.views.text import squeeze

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
