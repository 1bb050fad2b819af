"""Layout of a placement graph, in pixels.

Two layered layouts inside each other: subgraphs among each other, and the ops of each subgraph
inside its box, so that boxes never overlap and no wire runs through a box that it does not touch.
The flow goes from left to right on one strip; ``graph_rows`` breaks a long one into rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hetero_lab.views.graph.coordinates import Wire, assign_coordinates
from hetero_lab.views.graph.data import GraphBox, GraphData
from hetero_lab.views.graph.layers import Layers, find_layers

CHARACTER, TITLE_CHARACTER = 6.0, 6.2  # width of a character of a label, of a title
TITLE_HEIGHT = 16.0
_LINE_HEIGHT = 11.5
_NODE_GAP = 4.0

Point = tuple[float, float]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Spacing:
    """Distances in pixels.

    ``across`` is between subgraphs across the flow, ``lane`` what a passing wire takes,
    ``padding`` inside of boxes; ``turn`` the least and the greatest room for wires to turn.
    """

    across: float
    lane: float
    padding: float
    turn: tuple[float, float]


ROOMY = Spacing(across=13.0, lane=9.0, padding=7.0, turn=(30.0, 90.0))
DENSE = Spacing(across=6.0, lane=5.0, padding=4.0, turn=(20.0, 45.0))
CROWDED = Spacing(across=3.0, lane=0.8, padding=4.0, turn=(20.0, 45.0))
_TURN_INSIDE = (4.0, 34.0)


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a node with its label goes to each side of its middle."""

    left: float
    right: float
    above: float
    below: float

    @property
    def length(self) -> float:
        """Size along the flow."""
        return self.left + self.right

    @property
    def breadth(self) -> float:
        """Size across the flow."""
        return self.above + self.below

    @property
    def offset(self) -> float:
        """From the middle of the extent to the middle of the node, across the flow."""
        return (self.above - self.below) / 2


def extent_of(kind: str, radius: float, label: str) -> Extent:
    """Return the extent of a node: label below, before a model input, behind an output."""
    lines = label.split("\n") if label else []
    width = CHARACTER * max(map(len, lines), default=0)
    if kind in ("op", "group"):
        half = max(radius + 4.5, width / 2 + 2.5)
        below = radius + 3 + _LINE_HEIGHT * len(lines)
        return Extent(half, half, radius + 3, below)
    beside, near, high = radius + 4 + width, radius + 2, max(radius, 4 if label else 0) + 3
    if kind == "input":
        return Extent(beside, near, high, high)
    return Extent(near, beside, high, high)


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle of a subgraph."""

    index: int
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Strip:
    """A graph on one strip from left to right.

    Attributes
    ----------
    spots
        Middle of each node by op index.
    solids
        Left, right, top and bottom of what had better not be broken: nodes and labels.
    routes
        The corners of each edge, by (source, target), from left to right.
    exits
        Where the wires of an op leave its subgraph, by op index.
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
    spacing: Spacing = ROOMY,
) -> Strip:
    """Lay a graph out on one strip.

    Parameters
    ----------
    radii, labels
        Radius of each node and what is written beside it (lines, or nothing), by op index.
    exit_labels
        What is written where the wires of an op leave its subgraph, by op index.
    box_titles
        What must fit on top of each subgraph.
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
    spot = (extent.left, extent.above)
    return _SubgraphBox(
        None, extent.length, extent.breadth, {index: spot}, {}, {index: (spot,)}, {index: (spot,)}
    )


def _inside(
    data: GraphData,
    box: GraphBox,
    extents: Mapping[int, Extent],
    shortest: float,
    spacing: Spacing,
) -> _SubgraphBox:
    padding = spacing.padding
    if not box.nodes:
        return _SubgraphBox(
            box.index, shortest + 2 * padding, TITLE_HEIGHT + 2 * padding, {}, {}, {}, {}
        )
    # The first and the last vertex are the borders, to which wires from and to outside run.
    ops = sorted(box.nodes)
    number = {op: i + 1 for i, op in enumerate(ops)}
    border = len(ops) + 1
    inner = [(e.source, e.target) for e in data.edges if {e.source, e.target} <= number.keys()]
    out = sorted({e.source for e in data.edges if e.source in number and e.target not in number})
    into = sorted({e.target for e in data.edges if e.target in number and e.source not in number})
    edges = [(number[a], number[b]) for a, b in inner]
    edges += [(number[op], border) for op in out] + [(0, number[op]) for op in into]
    offsets = [0.0, *(extents[op].offset for op in ops), 0.0]
    wires = [Wire(a, b, offsets[a], offsets[b]) for a, b in edges]
    breadths = [0.0, *(extents[op].breadth for op in ops), 0.0]
    found = assign_coordinates(
        find_layers(border + 1, edges), breadths, wires, _NODE_GAP, spacing.lane, {0, border}
    )
    layers, middle = found.layers, list(found.middle)
    breadths += [spacing.lane] * (layers.n_ids - len(breadths))
    real = [i for i in range(1, layers.n_ids) if i != border]
    top = min(middle[i] - breadths[i] / 2 for i in real) - padding - TITLE_HEIGHT
    bottom = max(middle[i] + breadths[i] / 2 for i in real) + padding
    # From here on the level of a wire: of an op that is its own middle, not that of its extent.
    level = [m - top + (offsets[i] if i <= border else 0.0) for i, m in enumerate(middle)]
    lengths = [0.0, *(extents[op].length for op in ops), 0.0]
    columns = _Columns(
        layers, lengths, _bends(layers, edges, level, 0.25, _TURN_INSIDE, {0, border})
    )
    ranks = [columns.rank_of[i] for i in number.values()]
    columns.begin_at(padding - columns.starts[min(ranks)])
    length = max(columns.ends[max(ranks)] + padding, shortest + 2 * padding)
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
            (a, b): (
                spots[a],
                *columns.turns(layers.chain(number[a], number[b]), level),
                spots[b],
            )
            for a, b in inner
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
        self.bends = bends
        self.rank_of = {vertex: r for r, rank in enumerate(layers.ranks) for vertex in rank}
        self.starts: list[float] = []
        self.ends: list[float] = []
        at = 0.0
        for r, rank in enumerate(layers.ranks):
            thickness = max((lengths[v] for v in rank if v < layers.n_vertices), default=0.0)
            self.starts.append(at)
            self.ends.append(at + thickness)
            at += thickness + bends[r] + (writing[r] if writing else 0.0)

    def begin_at(self, start: float) -> None:
        """Move all ranks."""
        self.starts = [at + start for at in self.starts]
        self.ends = [at + start for at in self.ends]

    def middle(self, vertex: int) -> float:
        """Return the middle of a vertex's rank."""
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
    edges: Sequence[Pair],
    level: Sequence[float],
    slope: float,
    limits: tuple[float, float],
    ignored: Collection[int] = (),
) -> list[float]:
    """Return the room after each rank in which its wires turn: more for steeper ones."""
    steepest = [0.0] * len(layers.ranks)
    rank_of = {vertex: r for r, rank in enumerate(layers.ranks) for vertex in rank}
    for edge in edges:
        chain = layers.chain(*edge)
        for a, b in pairwise(chain):
            if a not in ignored and b not in ignored:
                rise = abs(level[a] - level[b])
                steepest[rank_of[a]] = max(steepest[rank_of[a]], rise)
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
        source, target = blocks[block_of[a]], blocks[block_of[b]]
        wires.append(
            Wire(
                block_of[a],
                block_of[b],
                source.leaving[a][-1][1] - source.breadth / 2,
                target.entering[b][0][1] - target.breadth / 2,
            )
        )
    layers = find_layers(len(blocks), [(wire.source, wire.target) for wire in wires])
    breadths = [block.breadth for block in blocks]
    found = assign_coordinates(layers, breadths, wires, spacing.across, spacing.lane)
    layers, middle = found.layers, found.middle
    pairs = [(wire.source, wire.target) for wire in wires]
    bends = _bends(layers, pairs, middle, 0.15, spacing.turn)
    rank_of = {vertex: r for r, rank in enumerate(layers.ranks) for vertex in rank}
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


def _around(spot: Point, e: Extent) -> tuple[float, float, float, float]:
    return spot[0] - e.left, spot[0] + e.right, spot[1] - e.above, spot[1] + e.below


def _beside(spot: Point, text: str) -> tuple[float, float, float, float]:
    return spot[0], spot[0] + CHARACTER * len(text) + 4, spot[1] - _LINE_HEIGHT, spot[1]
