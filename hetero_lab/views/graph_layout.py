"""Layout of a placement graph, in pixels.

Two layered layouts are nested: the subgraphs among each other, and the ops of each subgraph inside
its box, so that boxes never overlap and no wire runs through a box that it does not touch. The
flow goes from left to right on one strip. A long strip is broken into rows, like text, so that a
deep graph fits the width of a page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hetero_lab.views.graph_data import GraphBox, GraphData
from hetero_lab.views.layered import Layers, Wire, assign_coordinates

CHARACTER, TITLE_CHARACTER = 6.0, 6.2  # width of a character of a label, of a title
TITLE_HEIGHT = 16.0  # a line of 10 px and room around it
_LINE_HEIGHT = 11.5  # of a label, which is 10 px high
_NODE_GAP = 4.0  # between a label and the node below it

Point = tuple[float, float]
Pair = tuple[int, int]
# What a node takes with its label to each side of its middle: left, right, above and below.
Extent = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Spacing:
    """Distances in pixels.

    ``across`` separates subgraphs across the flow, ``lane`` is the width of a passing wire,
    ``padding`` the margin inside boxes, ``turn`` the least and the greatest room for wires to turn.
    """

    across: float
    lane: float
    padding: float
    turn: tuple[float, float]


ROOMY = Spacing(across=13.0, lane=9.0, padding=7.0, turn=(30.0, 90.0))
DENSE = Spacing(across=6.0, lane=5.0, padding=4.0, turn=(20.0, 45.0))
CROWDED = Spacing(across=3.0, lane=0.8, padding=4.0, turn=(20.0, 45.0))
_TURN_INSIDE = (4.0, 34.0)  # that room inside a subgraph, where wires rise less


def extent_of(kind: str, radius: float, label: str) -> Extent:
    """Return the extent of a node: label below, before a model input, behind an output."""
    lines = label.split("\n") if label else []
    width = CHARACTER * max(map(len, lines), default=0)
    if kind in ("op", "group"):
        half = max(radius + 4.5, width / 2 + 2.5)
        return half, half, radius + 3, radius + 3 + _LINE_HEIGHT * len(lines)
    beside, near, high = radius + 4 + width, radius + 2, max(radius, 4 if label else 0) + 3
    return (beside, near, high, high) if kind == "input" else (near, beside, high, high)


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle of a subgraph, or its part in one row; open where it continues in another."""

    index: int
    left: float
    top: float
    right: float
    bottom: float
    opens_left: bool = False
    opens_right: bool = False


@dataclass(frozen=True)
class Strip:
    """A graph on one strip from left to right.

    ``spots`` are the middles of nodes by op index. ``solids`` are left, right, top and bottom of
    nodes and labels, which should not be broken. ``routes`` are the corners of each edge, by
    (source, target), from left to right. ``exits`` are where the wires of an op leave its subgraph.
    """

    spots: Mapping[int, Point]
    solids: tuple[tuple[float, float, float, float], ...]
    frames: tuple[Frame, ...]
    routes: Mapping[Pair, tuple[Point, ...]]
    exits: Mapping[int, Point]


def lay_out(
    data: GraphData,
    radii: Mapping[int, float],
    labels: Mapping[int, str],
    exit_labels: Mapping[int, str],
    box_titles: Mapping[int, str],
    spacing: Spacing,
) -> Strip:
    """Lay a graph out on one strip.

    ``radii`` and ``labels`` are those of nodes by op index; a label has lines, or is left out.
    ``exit_labels`` are texts where the wires of an op leave its subgraph, ``box_titles`` texts that
    must fit on top of each subgraph.
    """
    extents = {
        node.index: extent_of(node.kind, radii[node.index], labels.get(node.index, ""))
        for node in data.nodes
    }
    boxed = {op for box in data.boxes for op in box.nodes}
    loose = [node for node in data.nodes if node.index not in boxed]
    blocks = [_alone(n.index, extents[n.index]) for n in loose if n.kind == "input"]
    # Subgraphs come in execution order, so that wires between blocks always lead forward.
    blocks += [
        _inside(data, box, extents, TITLE_CHARACTER * len(box_titles[box.index]), spacing)
        for box in data.boxes
    ]
    blocks += [_alone(n.index, extents[n.index]) for n in loose if n.kind != "input"]
    return _join(data, blocks, extents, exit_labels, spacing)


@dataclass(frozen=True)
class _SubgraphBox:
    """A subgraph with its ops, or a model input or output, with its corner at (0, 0).

    ``box`` is the subgraph's index. ``leaving`` are the wires from an op to the right border,
    ``entering`` those from the left border to an op.
    """

    box: int | None
    length: float
    breadth: float
    spots: Mapping[int, Point]
    inner: Mapping[Pair, tuple[Point, ...]]
    leaving: Mapping[int, tuple[Point, ...]]
    entering: Mapping[int, tuple[Point, ...]]


def _alone(index: int, extent: Extent) -> _SubgraphBox:
    left, right, above, below = extent
    spots, wire = {index: (left, above)}, {index: ((left, above),)}
    return _SubgraphBox(None, left + right, above + below, spots, {}, wire, wire)


def _inside(
    data: GraphData,
    box: GraphBox,
    extents: Mapping[int, Extent],
    shortest: float,
    spacing: Spacing,
) -> _SubgraphBox:
    padding = spacing.padding
    shortest += 2 * padding
    if not box.nodes:
        return _SubgraphBox(box.index, shortest, TITLE_HEIGHT + 2 * padding, {}, {}, {}, {})
    # The first and the last vertex are the borders, where wires from and to other boxes run.
    ops = sorted(box.nodes)
    number = {op: i + 1 for i, op in enumerate(ops)}
    border = len(ops) + 1
    inner = [(e.source, e.target) for e in data.edges if {e.source, e.target} <= number.keys()]
    out = sorted({e.source for e in data.edges if e.source in number and e.target not in number})
    into = sorted({e.target for e in data.edges if e.target in number and e.source not in number})
    edges = [(number[a], number[b]) for a, b in inner]
    edges += [(number[op], border) for op in out] + [(0, number[op]) for op in into]
    sizes = [(0.0, 0.0, 0.0, 0.0), *(extents[op] for op in ops), (0.0, 0.0, 0.0, 0.0)]
    # From the middle of an extent to the middle of its node, across the flow.
    offsets = [(above - below) / 2 for _, _, above, below in sizes]
    wires = [Wire(a, b, offsets[a], offsets[b]) for a, b in edges]
    breadths = [above + below for _, _, above, below in sizes]
    borders = {0, border}
    layers, middle = assign_coordinates(breadths, wires, _NODE_GAP, spacing.lane, borders)
    breadths += [spacing.lane] * (layers.n_ids - len(breadths))
    real = [i for i in range(1, layers.n_ids) if i != border]
    top = min(middle[i] - breadths[i] / 2 for i in real) - padding - TITLE_HEIGHT
    bottom = max(middle[i] + breadths[i] / 2 for i in real) + padding
    # From here on, levels are those of wires: an op's own middle, not that of its extent.
    level = [m - top + (offsets[i] if i <= border else 0.0) for i, m in enumerate(middle)]
    lengths = [left + right for left, right, _, _ in sizes]
    bends = _bends(layers, wires, level, 0.25, _TURN_INSIDE, borders)
    columns = _Columns(layers, lengths, bends)
    ranks = [columns.rank_of[i] for i in number.values()]
    columns.begin_at(padding - columns.starts[min(ranks)])
    length = max(columns.ends[max(ranks)] + padding, shortest)
    spots = {op: (columns.middle(i), level[i]) for op, i in number.items()}
    leaving, entering = {}, {}
    for op in out:
        chain = layers.chain(number[op], border)[:-1]
        points = (spots[op], *columns.turns(chain, level))
        leaving[op] = (*points, (length, points[-1][1]))
    for op in into:
        chain = layers.chain(0, number[op])[1:]
        entering[op] = ((0.0, level[chain[0]]), *columns.turns(chain, level), spots[op])
    return _SubgraphBox(
        box=box.index,
        length=length,
        breadth=bottom - top,
        spots=spots,
        inner={
            (a, b): (spots[a], *columns.turns(layers.chain(*edge), level), spots[b])
            for (a, b), edge in zip(inner, edges, strict=False)
        },
        leaving=leaving,
        entering=entering,
    )


class _Columns:
    """Start and end of each rank along the flow; wires turn in the gaps between them."""

    def __init__(
        self,
        layers: Layers,
        lengths: Sequence[float],
        bends: Sequence[float],
        writing: Sequence[float] = (),
    ):
        self.bends, self.rank_of = bends, layers.rank_of
        self.starts, self.ends = list[float](), list[float]()
        at = 0.0
        for r, rank in enumerate(layers.ranks):
            thickness = max((lengths[v] for v in rank if v < layers.n_vertices), default=0.0)
            self.starts.append(at)
            self.ends.append(at + thickness)
            at += thickness + bends[r] + (writing[r] if writing else 0.0)

    def begin_at(self, start: float) -> None:
        self.starts = [at + start for at in self.starts]
        self.ends = [at + start for at in self.ends]

    def middle(self, vertex: int) -> float:
        rank = self.rank_of[vertex]
        return (self.starts[rank] + self.ends[rank]) / 2

    def turns(self, chain: Sequence[int], level: Sequence[float]) -> list[Point]:
        """Return the corners of a wire: straight on through a column, a turn in the gap."""
        points = []
        for a, b in pairwise(chain):
            start = self.starts[self.rank_of[b]]
            points += [(start - self.bends[self.rank_of[b] - 1], level[a]), (start, level[b])]
        return points


def _bends(
    layers: Layers,
    wires: Sequence[Wire],
    level: Sequence[float],
    slope: float,
    limits: tuple[float, float],
    ignored: Collection[int] = (),
) -> list[float]:
    """Return the room after each rank in which its wires turn: more for steeper ones."""
    steepest = [0.0] * len(layers.ranks)
    for wire in wires:
        for a, b in pairwise(layers.chain(wire.source, wire.target)):
            if a not in ignored and b not in ignored:
                rank = layers.rank_of[a]
                steepest[rank] = max(steepest[rank], abs(level[a] - level[b]))
    least, most = limits
    return [min(most, least + slope * rise) for rise in steepest]


def _join(
    data: GraphData,
    blocks: Sequence[_SubgraphBox],
    extents: Mapping[int, Extent],
    exit_labels: Mapping[int, str],
    spacing: Spacing,
) -> Strip:
    """Lay out blocks among each other and put everything on one strip."""
    block_of = {op: i for i, block in enumerate(blocks) for op in block.spots}
    between = [(e.source, e.target) for e in data.edges if block_of[e.source] < block_of[e.target]]
    wires = []
    for a, b in between:
        i, j = block_of[a], block_of[b]
        leaves = blocks[i].leaving[a][-1][1] - blocks[i].breadth / 2
        enters = blocks[j].entering[b][0][1] - blocks[j].breadth / 2
        wires.append(Wire(i, j, leaves, enters))
    breadths = [block.breadth for block in blocks]
    layers, middle = assign_coordinates(breadths, wires, spacing.across, spacing.lane)
    bends = _bends(layers, wires, middle, 0.15, spacing.turn)
    rank_of = layers.rank_of
    writing = [8.0] * len(layers.ranks)  # a little room where a row may end
    for op, text in exit_labels.items():
        rank = rank_of[block_of[op]]
        writing[rank] = max(writing[rank], CHARACTER * len(text) + 14)
    columns = _Columns(layers, [block.length for block in blocks], bends, writing)
    corner = [
        (columns.starts[rank_of[i]], middle[i] - block.breadth / 2)
        for i, block in enumerate(blocks)
    ]
    spots: dict[int, Point] = {}
    routes: dict[Pair, tuple[Point, ...]] = {}
    exits: dict[int, Point] = {}
    for block, place in zip(blocks, corner, strict=True):
        spots.update({op: _moved(spot, place) for op, spot in block.spots.items()})
        exits.update({op: _moved(wire[-1], place) for op, wire in block.leaving.items()})
        for pair, points in block.inner.items():
            routes[pair] = tuple(_moved(point, place) for point in points)
    level = list(middle)
    for a, b in between:
        i, j = block_of[a], block_of[b]
        head = [_moved(point, corner[i]) for point in blocks[i].leaving[a]]
        tail = [_moved(point, corner[j]) for point in blocks[j].entering[b]]
        level[i], level[j] = head[-1][1], tail[0][1]
        routes[a, b] = (*head, *columns.turns(layers.chain(i, j), level), *tail)
    return Strip(
        spots=spots,
        solids=(
            *(_around(spots[op], extents[op]) for op in spots),
            *(_beside(exits[op], text) for op, text in exit_labels.items()),
        ),
        frames=tuple(
            Frame(block.box, x, y, x + block.length, y + block.breadth)
            for block, (x, y) in zip(blocks, corner, strict=True)
            if block.box is not None
        ),
        routes=routes,
        exits=exits,
    )


def _moved(point: Point, by: Point) -> Point:
    return point[0] + by[0], point[1] + by[1]


def _around(spot: Point, extent: Extent) -> tuple[float, float, float, float]:
    left, right, above, below = extent
    x, y = spot
    return x - left, x + right, y - above, y + below


def _beside(spot: Point, text: str) -> tuple[float, float, float, float]:
    return spot[0], spot[0] + CHARACTER * len(text) + 4, spot[1] - _LINE_HEIGHT, spot[1]


_STEP = 4.0  # between places for a break: the least gap between ops
_OVERHANG = 9.0  # how far a broken wire extends at both ends
_ROW_GAP = 24.0  # more than between subgraphs of a row
_INSET = 5.0  # between the border of a broken subgraph and its content
_CURVE_STEPS = 10  # of a turn, which then looks smooth
# Costs of breaking a wire, a turning wire, a subgraph, a subgraph near its border, a node or label.
_WIRE, _TURN, _FRAME, _BORDER, _SOLID = 0.25, 0.3, 1.5, 3.0, 6.0
# Costs of a row that is not full or too long (by the square of that), and of any row.
_SLACK, _EXCESS, _ROW = 10.0, 90.0, 2.0
_LONGEST = 1.15  # of the requested width, the longest row
_NEAR = 40.0  # to a border: a break would leave a strip of less than an op and its label


@dataclass(frozen=True)
class Page:
    """A Strip broken into rows; a wire is one polyline for each of its rows."""

    width: float
    height: float
    n_rows: int
    spots: Mapping[int, Point]
    frames: tuple[Frame, ...]
    routes: Mapping[Pair, tuple[tuple[Point, ...], ...]]
    exits: Mapping[int, Point]


def break_into_rows(strip: Strip, width: float) -> Page:
    """Break a strip into rows of at most about ``width``, where few wires are broken."""
    spans = [s[:2] for s in strip.solids] + [(f.left, f.right) for f in strip.frames]
    first = min((left for left, _ in spans), default=0.0)
    last = max((right for _, right in spans), default=1.0)
    cuts = choose_cuts(strip, first, last, width)
    rows = list(zip([first, *cuts], [*cuts, last], strict=True))
    curves = {pair: _curve(points) for pair, points in strip.routes.items()}
    spots: dict[int, Point] = {}
    exits: dict[int, Point] = {}
    frames: list[Frame] = []
    pieces: dict[Pair, list[tuple[Point, ...]]] = {pair: [] for pair in curves}
    y = 0.0
    for left, right in rows:
        is_first, is_last = left == first, right == last
        wires = {pair: _clip(line, left, right) for pair, line in curves.items()}
        wires = {pair: line for pair, line in wires.items() if line}
        here = [
            _trimmed(f, strip, wires.values(), left, right)
            for f in strip.frames
            if f.left < right and left < f.right
        ]
        ys = [y for s in strip.solids if s[0] < right and left < s[1] for y in s[2:]]
        ys += [y for f in here for y in (f.top, f.bottom)]
        ys += [y for line in wires.values() for _, y in line]
        low, high = min(ys, default=0.0), max(ys, default=1.0)
        dx, dy = -left, y - low
        for places, points in ((spots, strip.spots), (exits, strip.exits)):
            for op, (px, py) in points.items():
                if left <= px < right or (is_last and px == right):
                    places[op] = (px + dx, py + dy)
        for f in here:
            goes_back, goes_on = f.left < left and not is_first, f.right > right and not is_last
            x0 = max(f.left, left) + dx - _OVERHANG * goes_back
            x1 = min(f.right, right) + dx + _OVERHANG * goes_on
            frames.append(Frame(f.index, x0, f.top + dy, x1, f.bottom + dy, goes_back, goes_on))
        for pair, line in wires.items():
            points = [(px + dx, py + dy) for px, py in line]
            if line[0][0] == left and not is_first:
                points.insert(0, (points[0][0] - _OVERHANG, points[0][1]))
            if line[-1][0] == right and not is_last:
                points.append((points[-1][0] + _OVERHANG, points[-1][1]))
            pieces[pair].append(tuple(points))
        y += high - low + _ROW_GAP
    return Page(
        width=max(right - left for left, right in rows),
        height=y - _ROW_GAP,
        n_rows=len(rows),
        spots=spots,
        frames=tuple(frames),
        routes={pair: tuple(lines) for pair, lines in pieces.items()},
        exits=exits,
    )


def _trimmed(
    frame: Frame, strip: Strip, wires: Iterable[Sequence[Point]], left: float, right: float
) -> Frame:
    """Shrink a piece of a broken frame to the height that its content needs."""
    if left <= frame.left and frame.right <= right:
        return frame
    left, right = max(left, frame.left), min(right, frame.right)
    ys = [y for line in wires for x, y in line if left <= x <= right]
    ys += [y for a, b, *ends in strip.solids if a < right and left < b for y in ends]
    ys = [y for y in ys if frame.top <= y <= frame.bottom]
    top = max(frame.top, min(ys, default=frame.top) - TITLE_HEIGHT - _INSET)
    bottom = min(frame.bottom, max(ys, default=frame.bottom) + _INSET)
    return replace(frame, top=top, bottom=bottom)


def choose_cuts(strip: Strip, first: float, last: float, width: float) -> list[float]:
    """Choose places that cost little and fill rows, as for paragraphs (Knuth and Plass 1981)."""
    if last - first <= _LONGEST * width:
        return []
    n = int((last - first) / _STEP) + 1
    turns = [
        (a[0], b[0])
        for points in strip.routes.values()
        for a, b in pairwise(points)
        if abs(a[1] - b[1]) > 1
    ]
    wires = [(points[0][0], points[-1][0]) for points in strip.routes.values()]
    cost = np.zeros(n + 1)
    for spans, each in (
        (wires, _WIRE),
        (turns, _TURN),
        ([(f.left, f.right) for f in strip.frames], _FRAME),
        ([(f.left, min(f.right, f.left + _NEAR)) for f in strip.frames], _BORDER),
        ([(max(f.left, f.right - _NEAR), f.right) for f in strip.frames], _BORDER),
        ([solid[:2] for solid in strip.solids], _SOLID),
    ):
        cost += each * _count(spans, first, n)
    cost[n] = 0.0
    full = max(1, int(width / _STEP))
    best, came_from = np.zeros(n + 1), [0] * (n + 1)
    for place in range(1, n + 1):
        earlier = np.arange(max(0, place - int(_LONGEST * full)), place)
        slack = 1 - (place - earlier) / full
        if place == n:
            slack = np.where(slack > 0, 0.15 * slack, slack)  # the last row may be short
        poor = np.where(slack > 0, _SLACK, _EXCESS) * slack**2
        total = best[earlier] + _ROW + poor
        came_from[place] = int(earlier[total.argmin()])
        best[place] = total.min() + cost[place]
    cuts, place = [], came_from[n]
    while place:
        cuts.append(first + place * _STEP)
        place = came_from[place]
    return cuts[::-1]


def _count(spans: Sequence[Point], first: float, n: int) -> np.ndarray:
    places = first + _STEP * np.arange(n + 1)
    left, right = np.sort(np.array(spans).reshape(-1, 2), axis=0).T
    return np.searchsorted(left, places) - np.searchsorted(right, places, "right")


def _curve(points: Sequence[Point]) -> tuple[Point, ...]:
    """Draw a smooth line through the corners of a wire, horizontal at each."""
    line = [points[0]]
    for (x0, y0), (x1, y1) in pairwise(points):
        if abs(y1 - y0) > 0.5:
            for step in range(1, _CURVE_STEPS):
                t = step / _CURVE_STEPS
                bend = t * t * (3 - 2 * t)
                line.append((x0 + t * (x1 - x0), y0 + bend * (y1 - y0)))
        line.append((x1, y1))
    return tuple(line)


def _clip(line: Sequence[Point], left: float, right: float) -> list[Point]:
    """Return the part of a line between two positions; lines run from left to right."""
    left, right = max(left, line[0][0]), min(right, line[-1][0])
    if left >= right:
        return []
    xs, ys = zip(*line, strict=True)
    y0, y1 = np.interp([left, right], xs, ys).tolist()
    return [(left, y0), *(point for point in line if left < point[0] < right), (right, y1)]
