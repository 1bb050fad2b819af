"""Layers of an acyclic graph: ranks, and an order within each rank (Sugiyama et al. 1981)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

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
    clean = sorted({(a, b) for a, b in edges if a < b})
    parts: list[list[list[int]]] = []
    passing: dict[tuple[int, int], tuple[int, ...]] = {}
    n_ids = n
    for members, links in _parts(n, clean):
        if not links:
            parts.append([members])
            continue
        rows, wires, more = _layers_of_part(members, links, n_ids)
        n_ids += more
        parts.append(_upright(rows, n))
        passing.update(_passing(wires, n))
    parts.sort(key=lambda part: (-len(part), part[0]))
    depth = max(map(len, parts), default=0)
    ranks = tuple(
        tuple(vertex for part in parts if rank < len(part) for vertex in part[rank])
        for rank in range(depth)
    )
    return Layers(ranks, passing, n, n_ids)


def _parts(
    n: int, edges: Sequence[tuple[int, int]]
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Return the vertices and edges of each connected part of the graph."""
    ends = np.array(edges, dtype=int).reshape(-1, 2).T
    joined = coo_array((np.ones(len(edges)), (ends[0], ends[1])), shape=(n, n))
    part_of = connected_components(joined, directed=False)[1].tolist()
    parts: dict[int, tuple[list[int], list[tuple[int, int]]]] = {p: ([], []) for p in part_of}
    for vertex in range(n):
        parts[part_of[vertex]][0].append(vertex)
    for edge in edges:
        parts[part_of[edge[0]]][1].append(edge)
    return list(parts.values())


def _layers_of_part(
    members: Sequence[int], edges: Sequence[tuple[int, int]], first_id: int
) -> tuple[list[list[int]], list[tuple[int, int]], int]:
    """Return ranks, links and number of passing points of a connected graph."""
    from fast_sugiyama import from_edges

    # It numbers passing points from the number of vertices on. In a graph of several parts, or
    # with gaps in the numbers, they would be mixed up with vertices.
    dense = {vertex: i for i, vertex in enumerate(members)}
    ((positions, _, _, links),) = from_edges(
        [(dense[a], dense[b]) for a, b in edges],
        dummy_vertices=True,
        check_layout=False,
        transpose=_n_slots(dense, edges) <= _MOST_SLOTS_TO_TRANSPOSE,
    )
    rows: dict[float, list[tuple[float, int]]] = {}
    for key, (x, y) in positions:
        rows.setdefault(round(-y, 3), []).append((x, int(key)))
    # Passing points are renumbered by position: the numbers of fast-sugiyama differ each time.
    names = dict(enumerate(members))
    ranks: list[list[int]] = []
    for y in sorted(rows):
        ranks.append([])
        for _, vertex in sorted(rows[y]):
            names.setdefault(vertex, first_id + len(names) - len(members))
            ranks[-1].append(names[vertex])
    wires = sorted((names[int(a)], names[int(b)]) for a, b in links or ())
    return ranks, wires, len(names) - len(members)


def _n_slots(dense: Mapping[int, int], edges: Sequence[tuple[int, int]]) -> int:
    """Count how many ranks the wires run over."""
    depth = [0] * len(dense)
    for a, b in edges:  # sorted by source, and sources come before targets
        depth[dense[b]] = max(depth[dense[b]], depth[dense[a]] + 1)
    return sum(depth[dense[b]] - depth[dense[a]] for a, b in edges)


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
