"""Layers of an acyclic graph: ranks, and an order within each rank (Sugiyama et al. 1981)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_MOST_SLOTS_TO_TRANSPOSE = 3000  # the transposing pass of fast-sugiyama is quadratic


@dataclass(frozen=True)
class Layers:
    """Vertices by rank, in order across the flow.

    Ids from ``n_vertices`` up are passing points: places in a rank that a long wire runs
    through. ``passing`` lists them for each wire that has some.
    """

    ranks: tuple[tuple[int, ...], ...]
    passing: Mapping[tuple[int, int], tuple[int, ...]]
    n_vertices: int
    n_ids: int

    def chain(self, source: int, target: int) -> tuple[int, ...]:
        """Return all that a wire runs through, both ends included."""
        return (source, *self.passing.get((source, target), ()), target)


def find_layers(n: int, edges: Iterable[tuple[int, int]]) -> Layers:
    """Rank the vertices ``0 … n-1`` of an acyclic graph and order each rank.

    Parameters
    ----------
    n
        Number of vertices.
    edges
        Pairs (source, target) with source < target; others do not count.
    """
    from fast_sugiyama import from_edges

    clean = sorted({(a, b) for a, b in edges if a < b})
    # Its passing points are numbered from the number of vertices on: no gaps in the names then.
    linked = sorted({vertex for edge in clean for vertex in edge})
    dense = {vertex: i for i, vertex in enumerate(linked)}
    layouts = from_edges(
        [(dense[a], dense[b]) for a, b in clean],
        dummy_vertices=True,
        check_layout=False,
        transpose=_n_slots(n, clean) <= _MOST_SLOTS_TO_TRANSPOSE,
    )
    parts: list[list[list[int]]] = []
    passing: dict[tuple[int, int], tuple[int, ...]] = {}
    n_ids = n
    for positions, _, _, links in layouts:
        names: dict[int, int] = {}
        rows: dict[float, list[tuple[float, int]]] = {}
        for key, (x, y) in positions:
            vertex = int(key)
            if vertex < len(linked):
                names[vertex] = linked[vertex]
            else:
                names[vertex], n_ids = n_ids, n_ids + 1
            rows.setdefault(round(-y, 3), []).append((x, names[vertex]))
        ranks = [[vertex for _, vertex in sorted(rows[y])] for y in sorted(rows)]
        parts.append(_upright(ranks, n))
        passing.update(_passing([(names[int(a)], names[int(b)]) for a, b in links or ()], n))
    parts += [[[vertex]] for vertex in sorted(set(range(n)) - set(linked))]
    parts.sort(key=lambda part: (-len(part), part[0]))
    depth = max(map(len, parts), default=0)
    ranks = tuple(
        tuple(vertex for part in parts if rank < len(part) for vertex in part[rank])
        for rank in range(depth)
    )
    return Layers(ranks, passing, n, n_ids)


def _n_slots(n: int, edges: Sequence[tuple[int, int]]) -> int:
    """Count how many ranks the wires run over."""
    depth = [0] * n
    for a, b in edges:  # sorted by source, and sources come before targets
        depth[b] = max(depth[b], depth[a] + 1)
    return sum(depth[b] - depth[a] for a, b in edges)


def _upright(ranks: list[list[int]], n: int) -> list[list[int]]:
    """Mirror a part if more of its vertices are in falling than in rising order."""
    rising = sum(
        1 if a < b else -1
        for rank in ranks
        for a, b in pairwise([vertex for vertex in rank if vertex < n])
    )
    return ranks if rising >= 0 else [rank[::-1] for rank in ranks]


def _passing(links: Sequence[tuple[int, int]], n: int) -> dict[tuple[int, int], tuple[int, ...]]:
    following = {a: b for a, b in links if a >= n}
    found = {}
    for a, b in links:
        if a < n <= b:
            chain = [b]
            while following[chain[-1]] >= n:
                chain.append(following[chain[-1]])
            found[a, following[chain[-1]]] = tuple(chain)
    return found
