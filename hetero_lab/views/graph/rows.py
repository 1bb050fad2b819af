"""Breaking a long strip into rows, like text, so that a deep graph fits the width of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hetero_lab.views.graph.layout import TITLE_HEIGHT, Frame, Pair, Point, Strip

_STEP = 4.0
_OVERHANG = 9.0  # how far a broken wire extends at both ends
_ROW_GAP = 24.0
_INSET = 5.0  # between the border of a broken subgraph and what is in it
_CURVE_STEPS = 10
# What breaking costs: a wire, one that turns just there, a subgraph, one near its border, a node
# or label; then a row that is not full or too long (by the square of that) and any row at all.
_WIRE, _TURN, _FRAME, _BORDER, _SOLID = 0.25, 0.3, 1.5, 3.0, 6.0
_SLACK, _EXCESS, _ROW = 10.0, 90.0, 2.0
_LONGEST = 1.15  # how much longer than asked for a row may be
_NEAR = 40.0


@dataclass(frozen=True, slots=True)
class FramePiece:
    """The part of a subgraph's rectangle in one row; open where it continues in another row."""

    frame: Frame
    opens_left: bool
    opens_right: bool


@dataclass(frozen=True)
class Page:
    """A graph in rows: the same as a Strip, wires as polylines, one for each row they are in."""

    width: float
    height: float
    n_rows: int
    spots: Mapping[int, Point]
    frames: tuple[FramePiece, ...]
    routes: Mapping[Pair, tuple[tuple[Point, ...], ...]]
    exits: Mapping[int, Point]


def break_into_rows(strip: Strip, width: float) -> Page:
    """Break a strip into rows of at most about ``width``, where few wires are broken."""
    first = min([solid[0] for solid in strip.solids] + [f.left for f in strip.frames], default=0.0)
    last = max([solid[1] for solid in strip.solids] + [f.right for f in strip.frames], default=1.0)
    cuts = choose_cuts(strip, first, last, width)
    rows = list(zip([first, *cuts], [*cuts, last], strict=True))
    curves = {pair: _curve(points) for pair, points in strip.routes.items()}
    spots: dict[int, Point] = {}
    exits: dict[int, Point] = {}
    frames: list[FramePiece] = []
    pieces: dict[Pair, list[tuple[Point, ...]]] = {pair: [] for pair in curves}
    y = 0.0
    for left, right in rows:
        is_first, is_last = left == first, right == last
        wires = {pair: _clip(line, left, right) for pair, line in curves.items()}
        wires = {pair: line for pair, line in wires.items() if len(line) > 1}
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
        for found, points in ((spots, strip.spots), (exits, strip.exits)):
            for op, (px, py) in points.items():
                if left <= px < right or (is_last and px == right):
                    found[op] = (px + dx, py + dy)
        for f in here:
            goes_back, goes_on = f.left < left and not is_first, f.right > right and not is_last
            x0 = max(f.left, left) + dx - _OVERHANG * goes_back
            x1 = min(f.right, right) + dx + _OVERHANG * goes_on
            moved = Frame(f.index, x0, f.top + dy, x1, f.bottom + dy)
            frames.append(FramePiece(moved, goes_back, goes_on))
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
    """Choose where to break: little that matters is broken, and rows are full.

    A shortest path over all places, like breaking a paragraph into lines (Knuth and Plass 1981).
    """
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
    cost = [0.0] * (n + 1)
    for spans, each in (
        (wires, _WIRE),
        (turns, _TURN),
        ([(f.left, f.right) for f in strip.frames], _FRAME),
        ([(f.left, min(f.right, f.left + _NEAR)) for f in strip.frames], _BORDER),
        ([(max(f.left, f.right - _NEAR), f.right) for f in strip.frames], _BORDER),
        ([solid[:2] for solid in strip.solids], _SOLID),
    ):
        for i, count in enumerate(_count(spans, first, n)):
            cost[i] += each * count
    cost[n] = 0.0
    full = max(1, int(width / _STEP))
    best = [0.0] * (n + 1)
    came_from = [0] * (n + 1)
    for place in range(1, n + 1):
        options = []
        for earlier in range(max(0, place - int(_LONGEST * full)), place):
            slack = 1 - (place - earlier) / full
            if slack > 0 and place == n:
                slack *= 0.15  # the last row may be short
            poor = (_SLACK if slack > 0 else _EXCESS) * slack**2
            options.append((best[earlier] + _ROW + poor, earlier))
        least, came_from[place] = min(options)
        best[place] = least + cost[place]
    cuts, place = [], came_from[n]
    while place:
        cuts.append(first + place * _STEP)
        place = came_from[place]
    return cuts[::-1]


def _count(spans: Sequence[Point], first: float, n: int) -> list[int]:
    """Count at each step how many spans it is inside of."""
    change = [0] * (n + 2)
    for left, right in spans:
        a = max(0, int((left - first) / _STEP) + 1)
        b = min(n + 1, int(-(-(right - first) // _STEP)))
        if a < b:
            change[a] += 1
            change[b] -= 1
    total, counts = 0, []
    for step in change[: n + 1]:
        total += step
        counts.append(total)
    return counts


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
    """Return the part of a line between two lengths; lines run from left to right."""
    if line[-1][0] < left or line[0][0] > right:
        return []
    inside: list[Point] = []
    for (x0, y0), (x1, y1) in pairwise(line):
        if x1 < left or x0 > right:
            continue
        for x in (max(x0, left), min(x1, right)):
            y = y0 + (y1 - y0) * ((x - x0) / (x1 - x0) if x1 > x0 else 0.0)
            if not inside or inside[-1] != (x, y):
                inside.append((x, y))
    return inside
