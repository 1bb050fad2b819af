"""The placement graph: which op runs where, what it costs, and what crosses between subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast

import plotly.graph_objects as go

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.errors import ArgumentError, MeasurementError
from hetero_lab.lookup import annex_for
from hetero_lab.model.opgraph import grouped
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement, PlacementLike
from hetero_lab.placement.priorities import Priorities
from hetero_lab.result import Framed
from hetero_lab.results.profile_result import Profile
from hetero_lab.tables import bytes_text
from hetero_lab.views.graph_data import (
    GraphData,
    GraphEdge,
    GraphNode,
    boundary_hover,
    box_hover,
    box_titles,
    data_of_placement,
    data_of_profile,
    exit_labels,
    node_labels,
    op_hover,
    port_hover,
)
from hetero_lab.views.graph_folding import AUTO, Fold, Shown
from hetero_lab.views.graph_layout import (
    CROWDED,
    DENSE,
    ROOMY,
    TITLE_CHARACTER,
    Frame,
    Point,
    break_into_rows,
    lay_out,
)
from hetero_lab.views.theme import (
    BOUNDARY,
    CAUSE,
    CONSEQUENCE,
    LINE,
    TEXT,
    TIME_SCALE,
    DeviceStyle,
    ThemedFigure,
    device_styles,
    escape,
    finish,
    lines_of,
    plain,
)

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 780  # a row may be a sixth longer, and still fits a page of the site
_BOUNDARY_WIDTHS = (1.8, 2.4, 3.2, 4.4, 6.0)  # each a third more: neighbours can be told apart
_CROWDED = 150  # with more boundaries than this they are drawn thinner
_FUSED, _SMALLEST, _LARGEST, _UNTIMED, _PORT = 2.6, 3.6, 16.0, 6.0, 3.5  # radii
# Room for the title, a line below it and a row of the legend; around the figure; and the graph.
_TOP, _MARGIN, _EDGE = 104, 12, 12
_COLOUR_BAR = 64  # height
_SMALL = {"size": 10, "color": TEXT}
_LEGEND_ROW, _LEGEND_ENTRY, _LETTER = 22, 45, 7  # height; width beside the text, of a letter
# A white mark in an op says that it computes in less than f32.
_MARKS = {"bf16": "circle", "f16": "diamond", "i8": "square", "u8": "triangle-up"}
_MARK, _SMALLEST_MARK = 0.8, 3.0  # diameter in radii, and its least


def placement_graph(
    placed: Profile | Framed | PlacementLike | Source,
    model: Source | None = None,
    *,
    color: Literal["device", "time"] = "device",
    costs: CostModel | None = None,
    width: int = WIDTH,
    fold: Fold = AUTO,
    unfold: Sequence[str] = (),
    around: str | None = None,
    hops: int = 2,
    find: str = "",
    support: pd.DataFrame | CostModel | None = None,
) -> go.Figure:
    """Draw a placement: ops in their subgraphs, boundaries between them.

    A node's area is its time, where that is known; a white mark in it is a precision below f32, a
    boundary's width its bytes; hovering tells the rest. The flow goes from left to right and on
    in the next row, like text.

    Parameters
    ----------
    placed
        The result of :func:`hetero_lab.profile` or :func:`hetero_lab.interop.npuw`. Or, to look
        before anything is measured, a placement (an Affinity, a Placement, ``"HETERO:GPU,CPU"``)
        with its ``model``, or a model alone, which is drawn as HETERO places it on the devices of
        this machine.
    model
        The model of a placement: anything that :func:`hetero_lab.load` takes.
    color
        ``"device"``, or ``"time"``: grey ops are quick, red ones slow. The frames of the subgraphs
        have the colours of the devices in either case.
    costs
        A cost model, for the times of ops that were not measured.
    width
        Approximate width of a row in pixels.
    fold, unfold, around, hops, find
        The part of a big graph to draw: see :class:`hetero_lab.views.graph_folding.Shown`.
        Several hundred ops are folded into groups; ``unfold`` opens some, ``around`` shows the
        neighbourhood of an op, ``find`` marks the ops that have a text in their name.
    support
        The result of :func:`hetero_lab.support`, the preferred device first, or a cost model. Ops
        that a preferred device cannot run are then ringed as causes. Ops that it could run, but
        that are elsewhere because of a cause beside them, are ringed as consequences.

    Returns
    -------
    plotly.graph_objects.Figure

    Raises
    ------
    ArgumentError
        A placement without its model, an unknown way to fold, op or group, nothing is found, or
        ``support`` is something else.
    MeasurementError
        ``color="time"``, and no time is known.
    AffinityError, DeviceError, PlanError
        A placement or costs of another model, or a device that cannot run what is placed on it.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> whole = hl.views.placement_graph("CPU", model)  # at once: nothing is measured
    >>> measured = hl.profile(model, "CPU", iterations=20, progress=False)
    >>> near = hl.views.placement_graph(measured, around="head_digit/matmul", color="time")
    >>> near.layout.height < whole.layout.height
    True
    """
    if isinstance(placed, Profile):
        data = data_of_profile(placed, support, costs)
    elif data_in_annex := annex_for("graph", placed):
        data = data_in_annex(placed)
    elif model is not None:
        data = data_of_placement(model, cast(PlacementLike, placed), support, costs)
    elif isinstance(placed, Placement | Affinity | Priorities):
        raise ArgumentError("A placement is drawn with its model: placement_graph(placed, model).")
    elif isinstance(placed, Framed):
        fact = f"There is no graph of a {type(placed).__name__}"
        raise ArgumentError(f"{fact}, but of what hetero_lab.profile(model, placement) returns.")
    else:
        data = data_of_placement(placed, None, support, costs)
    if color == "time" and not data.is_timed:
        raise MeasurementError(
            "There are no times to colour by. Give a profile with counters=True, or "
            "costs=hetero_lab.calibrate(model, devices)."
        )
    return draw(Shown(fold, unfold, around, hops, find).of(data), width, color)


def draw(data: GraphData, width: int = WIDTH, color: str = "device") -> go.Figure:
    drawing = _Drawing(data, width, color)
    styles = device_styles(data.devices, data.emulated)
    for style in styles.values():
        drawing.add_boxes(style)
    inner = [edge for edge in data.edges if not edge.is_boundary]
    drawing.add_lines(drawing.routes(inner), {"width": 1, "color": LINE})
    drawing.add_boundaries()
    for style in styles.values():
        drawing.add_ops(style)
    drawing.add_precisions()
    drawing.add_ports()
    drawing.add_rings()
    drawing.add_titles()
    drawing.add_exits()
    return _finished(drawing, width)


def _finished(drawing: _Drawing, width: int) -> go.Figure:
    """Add title, hints and axes; the graph is lower where the legend above it has several rows."""
    data, page = drawing.data, drawing.page
    span = max(page.width, width)
    across = int(span) + 2 * (_EDGE + _MARGIN)
    crosses = any(edge.is_boundary for edge in data.edges)
    hints = [
        *map(escape, data.notes),
        "area of a node: its time, none in a small dot" if data.is_timed else "",
        "width of a boundary: its bytes" if crosses else "",
        "the flow continues in the next row" if page.n_rows > 1 else "",
    ]
    subtitle = " · ".join(filter(None, hints))
    n_rows = _n_legend_rows(drawing.figure, across - 2 * _MARGIN) + len(lines_of(subtitle))
    top = _TOP + _LEGEND_ROW * max(0, n_rows - 2)
    bottom = _MARGIN
    if drawing.by_time:
        bottom = _COLOUR_BAR
        drawing.figure.update_layout(coloraxis=_colour_axis(drawing.longest or 0.0))
    return finish(
        drawing.figure,
        plain(data.title, 105),
        subtitle,
        int(page.height) + top + bottom,
        (_MARGIN, _MARGIN, top, bottom),
        x={"visible": False, "range": [-_EDGE, span + _EDGE]},
        y={"visible": False, "range": [page.height + 2, -2]},
        width=across,  # squeezed, labels would lie on each other
        hovermode="closest",
        dragmode="pan",
    )


def _colour_axis(longest_us: float) -> dict[str, Any]:
    """Return the scale of the times, and the bar under the graph that explains it."""
    return {
        "colorscale": list(TIME_SCALE), "cmin": 0.0, "cmax": longest_us or 1.0,
        "colorbar": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yanchor": "top",
            "lenmode": "pixels", "len": 300, "thickness": 10, "nticks": 5, "outlinewidth": 0,
            "title": {"text": "time of an op (µs)", "side": "top"},
        },
    }  # fmt: skip


def _n_legend_rows(figure: go.Figure, available: float) -> int:
    traces: Any = figure.data
    n_rows, row_width = 1, 0
    for name in (trace.name for trace in traces if trace.showlegend is not False):
        entry = _LEGEND_ENTRY + _LETTER * len(name or "")
        if row_width and row_width + entry > available:
            n_rows, row_width = n_rows + 1, 0
        row_width += entry
    return n_rows


def node_radius(node: GraphNode, longest_us: float | None) -> float:
    """Return a node's radius: its area is in proportion to its time, where times are known."""
    if node.is_port:
        return _PORT
    if longest_us is None:
        return min(_LARGEST, _UNTIMED * node.n_ops**0.25)
    share = (node.time_us or 0.0) / longest_us if longest_us > 0 else 0.0
    return max(_FUSED if node.leader else _SMALLEST, _LARGEST * share**0.5)


def _corners(f: Frame) -> list[Point]:
    x0, x1, y0, y1 = f.left, f.right, f.top, f.bottom
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)]


def _outline(f: Frame) -> list[list[Point]]:
    """Return the border of a subgraph, without the sides on which it continues."""
    is_open = (False, f.opens_right, False, f.opens_left)  # top, right, bottom, left
    return [list(side) for side, gap in zip(pairwise(_corners(f)), is_open, strict=True) if not gap]


def _spot(lines: Sequence[Sequence[Point]]) -> Point:
    """Return where to hover over a wire: before its end, where other wires are rarely near."""
    (x0, y0), (x1, y1) = lines[-1][-2:]
    return (x0 + x1) / 2, (y0 + y1) / 2


def width_level(n_bytes: int | None, largest: int) -> int:
    """Return the width class of a boundary: the square root of its bytes, in steps."""
    share = (n_bytes or 0) / largest if largest else 0.0
    return min(len(_BOUNDARY_WIDTHS) - 1, int(len(_BOUNDARY_WIDTHS) * share**0.5))


class _Drawing:
    """The figure of a placement graph while it is drawn, with the places of everything in it."""

    def __init__(self, data: GraphData, width: int, color: str):
        times = [node.time_us or 0.0 for node in data.nodes]
        self.longest = max(times, default=0.0) if data.is_timed else None
        self.by_time = color == "time"
        self.data = data
        self.radii = {node.index: node_radius(node, self.longest) for node in data.nodes}
        self.labels = node_labels(data)
        self.exits = exit_labels(data)
        self.titles = box_titles(data)
        least_titles = {index: options[-1] for index, options in self.titles.items()}
        spacing = CROWDED if data.is_tangled else DENSE if data.is_big else ROOMY
        strip = lay_out(data, self.radii, self.labels, self.exits, least_titles, spacing)
        self.page = break_into_rows(strip, width)
        self.figure = ThemedFigure()

    def add_boxes(self, style: DeviceStyle) -> None:
        devices = {box.index: box.device for box in self.data.boxes}
        pieces = [piece for piece in self.page.frames if devices[piece.index] == style.device]
        filling = {"fill": "toself", "fillcolor": style.faded(0.11), "legendgroup": style.device}
        self.add_lines([_corners(piece) for piece in pieces], {"width": 0}, **filling)
        self.add_lines(
            [line for piece in pieces for line in _outline(piece)],
            {"width": 1.2, "color": style.faded(0.8), "dash": style.dash},
            legendgroup=style.device,
            **({"name": style.label, "showlegend": True} if self.by_time else {}),
        )

    def add_boundaries(self) -> None:
        """Draw the wires between subgraphs, wider the more bytes cross."""
        boundaries = [edge for edge in self.data.edges if edge.is_boundary]
        if not boundaries:
            return
        largest = max(edge.n_bytes or 0 for edge in boundaries)
        scale = 0.6 if len(boundaries) > _CROWDED else 1.0
        for level, thickness in enumerate(_BOUNDARY_WIDTHS):
            some = [edge for edge in boundaries if width_level(edge.n_bytes, largest) == level]
            line = {"width": max(_BOUNDARY_WIDTHS[0], scale * thickness), "color": BOUNDARY}
            self.add_lines(self.routes(some), line, legendgroup="boundary")
        name = f"boundary (the largest: {bytes_text(largest)})"
        line, group = {"width": 4, "color": BOUNDARY}, {"legendgroup": "boundary"}
        self.figure.add_scatter(
            x=[None], y=[None], mode="lines", line=line, name=name, legendrank=1001, **group
        )
        routed = [(edge, lines) for edge in boundaries if (lines := self.routes([edge]))]
        spots = [_spot(lines) for _, lines in routed]
        hover = [boundary_hover(edge, self.data) for edge, _ in routed]
        look = {"marker": {"size": 14, "color": BOUNDARY, "opacity": 0}, "showlegend": False}
        self.add_points(spots, "markers", hovertext=hover, **look, **group)

    def add_ops(self, style: DeviceStyle) -> None:
        ops = [n for n in self.data.nodes if not n.is_port and n.device == style.device]
        marker: dict[str, Any] = {"color": style.colour, "opacity": 1}
        marker["size"] = [2 * self.radii[n.index] for n in ops]
        if self.by_time:
            marker["color"] = [TEXT if n.time_us is None else n.time_us for n in ops]
            marker["coloraxis"] = "coloraxis"
        if any(n.kind == "group" for n in ops):
            marker["symbol"] = ["hexagon2" if n.kind == "group" else "circle" for n in ops]
        hover = [op_hover(n, self.data) for n in ops]
        legend = {"name": style.label, "legendgroup": style.device, "showlegend": not self.by_time}
        self.add_nodes(ops, marker, ["bottom center"] * len(ops), hover, **legend)

    def add_ports(self) -> None:
        ports = [n for n in self.data.nodes if n.is_port]
        marker = {"size": 2 * _PORT, "color": TEXT, "symbol": "square"}
        sides = ["middle left" if n.kind == "input" else "middle right" for n in ports]
        hover = [port_hover(n) for n in ports]
        self.add_nodes(ports, marker, sides, hover, name="model input or output", legendrank=1002)

    def add_precisions(self) -> None:
        """Mark the ops that compute in less than f32."""
        for precision, symbol in _MARKS.items():
            # A fused op runs as its leader does; a folded group may have several precisions.
            leading = (n for n in self.data.nodes if not n.leader)
            ops = [n.index for n in leading if precision in n.precision.split(", ")]
            size = [max(_SMALLEST_MARK, _MARK * self.radii[i]) for i in ops]
            look = {"color": "#ffffff", "opacity": 1, "line": {"width": 0.8, "color": TEXT}}
            self.add_marks(ops, f"computes in {precision}", 1003, size=size, symbol=symbol, **look)

    def add_rings(self) -> None:
        """Ring the causes and consequences of displacement, and the ops searched for."""
        displaced = grouped((n.displaced.is_cause, n.index) for n in self.data.nodes if n.displaced)
        causes, others = displaced.get(True, []), displaced.get(False, [])
        for name, ops, symbol, colour, room, rank in (
            ("cause: not supported where preferred", causes, "circle-open", CAUSE, 6, 1005),
            ("consequence: placed with a cause", others, "diamond-open", CONSEQUENCE, 8, 1005),
            ("searched for", sorted(self.data.marked), "circle-open", TEXT, 9, 1004),
        ):
            sizes = [2 * self.radii[i] + room for i in ops]
            self.add_marks(ops, name, rank, size=sizes, symbol=symbol, color=colour, line_width=2)

    def add_titles(self) -> None:
        """Write the longest title that fits above each subgraph."""
        boxes = {box.index: box for box in self.data.boxes}
        places, texts, hover = [], [], []
        for f in self.page.frames:
            room = (f.right - f.left) / TITLE_CHARACTER - 1
            options = [*self.titles[f.index], str(f.index)]
            if f.opens_left:
                options = [f"{options[0]} (continued)", *options]
            places.append((f.left + 4 + 8 * f.opens_left, f.top + 9))
            texts.append(escape(next((o for o in options if len(o) <= room), options[-1])))
            hover.append(box_hover(boxes[f.index], self.data))
        self.add_texts(places, texts, "middle right", hovertext=hover)

    def add_exits(self) -> None:
        """Write bytes just above the wires, where they leave a subgraph."""
        spots = (self.page.exits[op] for op in self.exits)
        self.add_texts([(x + 3, y - 2.5) for x, y in spots], [*self.exits.values()], "top right")

    def add_texts(
        self, places: Sequence[Point], texts: Sequence[str], position: str, **hover: Any
    ) -> None:
        look = {"textposition": position, "textfont": _SMALL, "showlegend": False}
        self.add_points(places, "text", text=texts, **look, **hover)

    def add_marks(self, ops: Sequence[int], name: str, rank: int, **marker: Any) -> None:
        if ops:
            spots = [self.page.spots[i] for i in ops]
            self.add_points(spots, "markers", name=name, legendrank=rank, marker=marker)

    def add_nodes(
        self,
        nodes: Sequence[GraphNode],
        marker: Mapping[str, Any],
        position: str | Sequence[str],
        hover: Sequence[str],
        **legend: Any,
    ) -> None:
        texts = [escape(self.labels.get(n.index, "")).replace("\n", "<br>") for n in nodes]
        self.add_points(
            [self.page.spots[n.index] for n in nodes],
            "markers+text" if self.labels else "markers",
            marker={**marker, "line": {"width": 0}},
            text=texts if self.labels else None,
            textposition=position,
            textfont=_SMALL,
            hovertext=hover,
            customdata=[n.index for n in nodes],
            **legend,
        )

    def add_points(self, points: Sequence[Point], mode: str, **options: Any) -> None:
        self.figure.add_scatter(
            x=[x for x, _ in points], y=[y for _, y in points], mode=mode, **options
        )

    def routes(self, edges: Iterable[GraphEdge]) -> list[Sequence[Point]]:
        return [line for e in edges for line in self.page.routes.get((e.source, e.target), ())]

    def add_lines(
        self, lines: Iterable[Sequence[Point]], line: Mapping[str, Any], **more: Any
    ) -> None:
        """Put many lines into one trace, with gaps between them."""
        points: list[Any] = []
        for corners in lines:
            points += [*((round(x, 1), round(y, 1)) for x, y in corners), (None, None)]
        if points:
            self.add_points(points, "lines", line=line, **{"showlegend": False, **more})
