"""Layered layout of an acyclic graph whose vertices have a size (Sugiyama et al. 1981).

Vertices are ranked and ordered within each rank. Sweeps that sort each rank by the positions of its
neighbours improve the order. Then each rank is moved as near to its neighbours as its order allows,
by isotonic regression (Barlow et al. 1972), again and again: the result is balanced, but no line is
quite straight. At last each line without branches is straightened within the room beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from scipy.optimize import isotonic_regression

from hetero_lab.model.opgraph import grouped

_SORTING_SWEEPS = 12  # to and fro; the best order of all is kept
_MOVING_SWEEPS = 12  # half of them to and fro, then half that balance both sides
_STRAIGHTENING_PASSES = 3  # a line that was straightened makes room for others
_FARTHEST = 20.0  # a long line would climb like stairs if its vertices could move far for it
_SIDE_BY_SIDE = 0.2  # share of the gap that two passing wires keep
_LINE, _BRANCH = 8.0, 1.0  # weights of the links of a line without branches, and of others


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

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """The rank of each vertex and passing point."""
        return {vertex: r for r, rank in enumerate(self.ranks) for vertex in rank}

    def chain(self, source: int, target: int) -> tuple[int, ...]:
        """Return the vertices and passing points of a wire, both ends included."""
        return (source, *self.passing.get((source, target), ()), target)


def find_layers(n: int, edges: Iterable[tuple[int, int]]) -> Layers:
    """Rank the vertices ``0 … n-1`` and order each rank; edges that do not rise are ignored.

    Vertices come in the order of their numbers, and wires that pass a rank with their source.
    """
    clean = sorted({(a, b) for a, b in edges if a < b})
    rank = _ranks(n, clean)
    order: list[tuple[int, int, int, int]] = [(rank[v], v, 0, v) for v in range(n)]
    passing: dict[tuple[int, int], tuple[int, ...]] = {}
    n_ids = n
    for a, b in clean:
        between = range(rank[a] + 1, rank[b])
        if between:
            passing[a, b] = tuple(range(n_ids, n_ids + len(between)))
            n_ids += len(between)
            order += [(r, a, b, point) for r, point in zip(between, passing[a, b], strict=True)]
    ranks: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for r, *_, vertex in sorted(order):
        ranks[r].append(vertex)
    return Layers(tuple(map(tuple, ranks)), passing, n, n_ids)


def _ranks(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Rank by the longest way to each vertex; one that feeds more than it reads is moved later."""
    targets: list[list[int]] = [[] for _ in range(n)]
    rank, n_sources = [0] * n, [0] * n
    for a, b in edges:  # sorted by source, and sources come before targets
        targets[a].append(b)
        n_sources[b] += 1
        rank[b] = max(rank[b], rank[a] + 1)
    for v in reversed(range(n)):
        if len(targets[v]) > n_sources[v]:
            rank[v] = min(rank[b] for b in targets[v]) - 1
    return rank


@dataclass(frozen=True, slots=True)
class Wire:
    """A connection of two vertices, with the offsets from their middles where it touches them."""

    source: int
    target: int
    source_offset: float = 0.0
    target_offset: float = 0.0


def assign_coordinates(
    breadth: Sequence[float],
    wires: Sequence[Wire],
    gap: float,
    lane: float,
    ignored: Collection[int] = (),
) -> tuple[Layers, list[float]]:
    """Return the layers in a good order, and the middle of everything across the flow.

    ``breadth`` is the size across the flow of each vertex, ``gap`` the free space beside vertices,
    ``lane`` the space of a passing wire. Nothing needs to be near ``ignored`` vertices.
    """
    layers = find_layers(len(breadth), ((wire.source, wire.target) for wire in wires))
    work = _CoordinateAssignment(layers, breadth, find_links(layers, wires, ignored), gap, lane)
    work.pack()
    work.sort()
    for sweep in range(_MOVING_SWEEPS):
        work.sweep(forward=sweep % 2 == 0, both=sweep >= _MOVING_SWEEPS // 2)
    for _ in range(_STRAIGHTENING_PASSES):
        work.straighten()
    return replace(layers, ranks=tuple(map(tuple, work.ranks))), work.middle


def find_links(
    layers: Layers, wires: Sequence[Wire], ignored: Collection[int]
) -> dict[Wire, float]:
    """Cut wires into links from one rank to the next, each with its weight.

    Links end in the middle of their targets; all offsets are at the source. One wire of many at a
    vertex weighs less.
    """
    leaving = Counter((wire.source, wire.source_offset) for wire in wires)
    entering = Counter((wire.target, wire.target_offset) for wire in wires)
    links: dict[Wire, float] = {}
    for wire in wires:
        for a, b in pairwise(layers.chain(wire.source, wire.target)):
            if a in ignored or b in ignored:
                continue
            shift = (wire.source_offset if a == wire.source else 0.0) - (
                wire.target_offset if b == wire.target else 0.0
            )
            alone = (a != wire.source or leaving[a, wire.source_offset] == 1) and (
                b != wire.target or entering[b, wire.target_offset] == 1
            )
            link = Wire(a, b, shift)
            links[link] = max(links.get(link, 0.0), _LINE if alone else _BRANCH)
    return links


class _CoordinateAssignment:
    def __init__(
        self,
        layers: Layers,
        breadth: Sequence[float],
        links: Mapping[Wire, float],
        gap: float,
        lane: float,
    ):
        self.links, self.gap, self.n = links, gap, layers.n_vertices
        self.size = [*breadth, *[lane] * (layers.n_ids - self.n)]
        self.ranks = [list(rank) for rank in layers.ranks]
        self.middle = [0.0] * layers.n_ids
        self.before = grouped((link.target, (link, weight)) for link, weight in links.items())
        self.after = grouped((link.source, (link, weight)) for link, weight in links.items())

    def pack(self) -> None:
        """Put the vertices of each rank side by side."""
        for rank in self.ranks:
            offsets = self.offsets(rank)
            for vertex, offset in zip(rank, offsets, strict=True):
                self.middle[vertex] = offset - offsets[-1] / 2

    def distance(self, a: int, b: int) -> float:
        both_pass = a >= self.n and b >= self.n
        return (self.size[a] + self.size[b]) / 2 + self.gap * (_SIDE_BY_SIDE if both_pass else 1)

    def offsets(self, rank: Sequence[int]) -> list[float]:
        """Return the least distance of each vertex from the first one of its rank."""
        offsets = [0.0]
        for a, b in pairwise(rank):
            offsets.append(offsets[-1] + self.distance(a, b))
        return offsets

    def sort(self) -> None:
        """Sort ranks by where their neighbours are; keep the order with the shortest wires."""
        best: tuple[float, list[list[int]]] = (float("inf"), [])
        for sweep in range(_SORTING_SWEEPS + 1):
            if sweep:
                self.sweep(forward=sweep % 2 == 1, sort=True)
            # How far all wires run across the flow.
            length = sum(
                abs(self.middle[k.source] + k.source_offset - self.middle[k.target])
                for k in self.links
            )
            if length < best[0] - 1e-6:
                best = (length, [list(rank) for rank in self.ranks])
        self.ranks = best[1]
        self.pack()

    def sweep(self, forward: bool, sort: bool = False, both: bool = False) -> None:
        """Move each rank near to the one before it, or after it, or to both."""
        for rank in self.ranks if forward else reversed(self.ranks):
            goals, weight = {v: self.middle[v] for v in rank}, dict.fromkeys(rank, 0.1)
            for vertex in rank:
                before = self.before.get(vertex, ()) if forward or both else ()
                after = self.after.get(vertex, ()) if both or not forward else ()
                near = [(self.middle[k.source] + k.source_offset, pull) for k, pull in before]
                near += [(self.middle[k.target] - k.source_offset, pull) for k, pull in after]
                if near:
                    weight[vertex] = sum(pull for _, pull in near)
                    goals[vertex] = sum(level * pull for level, pull in near) / weight[vertex]
            if sort:
                rank.sort(key=goals.__getitem__)
            offsets = self.offsets(rank)
            free = [goals[v] - offset for v, offset in zip(rank, offsets, strict=True)]
            starts = free
            if free != sorted(free):
                starts = isotonic_regression(free, weights=[weight[v] for v in rank]).x.tolist()
            for vertex, start, offset in zip(rank, starts, offsets, strict=True):
                self.middle[vertex] = start + offset

    def straighten(self) -> None:
        """Let each line without branches bend as rarely as its room allows."""
        place = {v: (rank, k) for rank in self.ranks for k, v in enumerate(rank)}
        following = {k.source: k for k, weight in self.links.items() if weight == _LINE}
        inside = {link.target for link in following.values()}
        for start in sorted(following.keys() - inside):
            line = [(start, 0.0)]  # vertices, and their levels on a straight line
            while link := following.get(line[-1][0]):
                line.append((link.target, line[-1][1] + link.source_offset))
            while line:
                low, high, run = float("-inf"), float("inf"), []
                for vertex, level in line:
                    least, most = self.room(*place[vertex])
                    least, most = max(low, least - level), min(high, most - level)
                    if least > most:
                        break
                    low, high = least, most
                    run.append((vertex, level))
                line = line[len(run) :]
                goal = median(self.middle[vertex] - level for vertex, level in run)
                start = min(max(goal, low), high)
                for vertex, level in run:
                    self.middle[vertex] = start + level

    def room(self, rank: Sequence[int], k: int) -> tuple[float, float]:
        """Return the least and the greatest position of a place in a rank."""
        vertex = rank[k]
        at = self.middle[vertex]
        farthest = _FARTHEST if vertex < self.n else float("inf")
        low, high = at - farthest, at + farthest
        if k > 0:
            low = max(low, self.middle[rank[k - 1]] + self.distance(rank[k - 1], vertex))
        if k + 1 < len(rank):
            high = min(high, self.middle[rank[k + 1]] - self.distance(vertex, rank[k + 1]))
        # The present position is always allowed, whatever rounding says.
        return min(low, at), max(high, at)
