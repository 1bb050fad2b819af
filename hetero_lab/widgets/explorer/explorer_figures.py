"""The parts of the explorer: figures that are updated in place, the table of rows, the graph."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as ipw
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs

from hetero_lab.errors import HeteroLabError
from hetero_lab.results.sweep_row import Row
from hetero_lab.tables import readable
from hetero_lab.views.graph_data import GraphData, data_of_profile
from hetero_lab.views.graph_drawing import WIDTH, draw
from hetero_lab.views.graph_folding import FOLDS, Shown
from hetero_lab.views.sweep_figures import axis_of, finite, intervals_of, points, scale_of
from hetero_lab.views.theme import (
    INTERVALS,
    TEXT,
    device_styles,
    finish,
    latency_end_us,
)
from hetero_lab.widgets.explorer.explorer_state import RUN, ExplorerState

CLASS = "hetero-lab-explorer"
_HERE = Path(__file__).parent
KEPT = 200  # drawings that are remembered


class Look(anywidget.AnyWidget):
    """Brings Plotly, once, and the style; keeps JupyterLab from handling keys in the explorer."""

    _esm = _HERE / "explorer.js"
    _css = _HERE / "explorer.css"
    plotly = traitlets.Unicode(get_plotlyjs()).tag(sync=True)


class Figure(anywidget.AnyWidget):
    """A figure that is updated in place; ``clicked`` gets a point's customdata, and Shift.

    A FigureWidget brings 5 MB of scripts each. ``drawn`` is the figure as JSON, empty for none, and
    ``width`` its room in pixels, 0 until it is on a page.
    """

    _esm = _HERE / "figure.js"
    drawn = traitlets.Unicode().tag(sync=True)
    width = traitlets.Int().tag(sync=True)

    def __init__(self, clicked: Callable[[Any, bool], None] | None = None, **options: Any):
        super().__init__(**options)
        if clicked is not None:
            self.on_msg(lambda _, told, __: clicked(told["chosen"], told["shift"]))


class Rows(anywidget.AnyWidget):
    """The table of placements, sorted in the browser; ``a`` and ``b`` are the chosen labels.

    ``columns`` are those of ``table_of``, ``labels`` the labels of their rows.
    """

    _esm = _HERE / "rows.js"
    columns = traitlets.List().tag(sync=True)
    labels = traitlets.List().tag(sync=True)
    a = traitlets.Unicode().tag(sync=True)
    b = traitlets.Unicode().tag(sync=True)


_COLUMNS = (
    RUN, "rank", "group", "configuration", "finding", "median_us", "ratio", "throughput_per_s",
    "accuracy", "n_subgraphs", "boundary_bytes",
)  # fmt: skip


def table_of(exploring: ExplorerState) -> list[list[Any]]:
    """Return the columns of the table: heading, the texts of all rows, the values to sort by."""
    frame = exploring.shown
    names = [name for name in _COLUMNS if name in frame]
    names.remove(RUN if len(exploring.runs) == 1 else "throughput_per_s")
    whole = frame.convert_dtypes()  # a rank stays a whole number beside rows without one
    return [
        [heading, texts, finite(frame[name])]
        for name in names
        for heading, texts in readable(whole[[name, *INTERVALS.get(name, ())]]).items()
    ]


def message(text: str) -> str:
    """Return a message as escaped HTML; nothing for an empty text."""
    if not text:
        return ""
    lines = "<br>".join(html.escape(line) for line in text.splitlines())
    return f'<div class="hlx-message" role="status">{lines}</div>'


def points_figure(exploring: ExplorerState) -> go.Figure:
    """Draw the rows that are shown, with A and B ringed; a point's customdata is its label."""
    choice, frame = exploring.choice, exploring.shown
    devices = [
        d for row in exploring.rows.values() if row.profile for d in row.profile.affinity.devices
    ]
    styles = device_styles(devices, exploring.emulated)
    figure = points(frame, choice.x, choice.y, choice.group, styles)
    figure.add_scatter(**rings(exploring))
    intervals = intervals_of(frame, choice.y)
    scale = scale_of(frame, choice.y)
    ends = {"range": [0, scale * latency_end_us(intervals)]} if intervals else {}
    return finish(
        figure,
        f"{len(frame)} of {len(exploring.measured)} measured placements",
        "click a point to see its placement",
        430,
        (76, 24, 104, 56),
        x=axis_of(frame, choice.x),
        y={**axis_of(frame, choice.y), **ends},
        showlegend=True,
        hovermode="closest",
        uirevision=f"{choice.x} {choice.y}",
    )


def rings(exploring: ExplorerState) -> dict[str, Any]:
    """Return the trace of the rings around A and B."""
    choice, frame = exploring.choice, exploring.shown
    marks: dict[str, str] = {}
    for letter, label in (("A", choice.a), ("B", choice.b)):
        if label:
            marks[label] = f"{marks.get(label, '')}{letter}"
    rows = frame.loc[frame["label"].isin(marks)]
    return {
        "x": finite(rows[choice.x], scale_of(frame, choice.x)),
        "y": finite(rows[choice.y], scale_of(frame, choice.y)), "mode": "markers+text",
        "text": [marks[label] for label in rows["label"]], "textposition": "top right",
        "textfont": {"size": 14, "color": TEXT}, "showlegend": False,
        "cliponaxis": False,
        "marker": {
            "size": 22, "symbol": "circle-open", "color": TEXT, "line": {"width": 2.5},
        },
    }  # fmt: skip


class Pane:
    """A tab of words, a figure and tables, each updated in place; ``widget`` is to be displayed."""

    def __init__(self) -> None:
        self.words, self.figure, self.tables = ipw.HTML(), Figure(), ipw.HTML()
        self.widget = ipw.VBox([self.words, self.figure, self.tables])

    def show(self, words: str, figure: str = "", tables: str = "") -> None:
        """Show HTML, the JSON of a figure, and HTML; nothing for what is empty."""
        self.words.value, self.figure.drawn, self.tables.value = words, figure, tables


class GraphPane:
    """The widgets around one placement graph; ``widget`` is the one to display.

    A click on a group of folded ops opens it. ``shown`` says what is drawn, ``data`` has its nodes.
    """

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self.label = ""
        self.shown = Shown()
        self.data: GraphData | None = None
        self._rows = rows
        self._whole = lru_cache(KEPT)(self._whole_of)
        self.drawn = lru_cache(KEPT)(self._drawn)
        self._setting = False
        self._fold = ipw.Dropdown(options=FOLDS, description="fold", layout={"width": "200px"})
        self._find = _text("find ops", "part of a name, then Enter")
        self._around = _text("around op", "name of an op, then Enter")
        self._hops = ipw.BoundedIntText(
            2, min=0, max=20, description="hops", layout={"width": "130px"}
        )
        self._reset = ipw.Button(description="Fold again", tooltip="Close what was opened")
        self._message = ipw.HTML()
        self.figure = Figure(lambda place, _: self.open_group(place))
        self.figure.add_class("hlx-graph")
        self.figure.observe(lambda _: self.show(self.shown), "width")
        for control in (self._fold, self._find, self._around, self._hops):
            control.observe(self._changed, "value")
        self._reset.on_click(lambda _: self.show(Shown(fold=str(self._fold.value))))
        controls = [self._fold, self._find, self._around, self._hops, self._reset]
        self.widget = ipw.VBox(
            [ipw.HBox(controls, layout={"flex_flow": "row wrap"}), self._message, self.figure]
        )

    def draw(self, label: str) -> None:
        """Draw the placement of another row, folded as at first."""
        if label != self.label:
            self.label = label
            self.show(self.first)

    @property
    def first(self) -> Shown:
        """What is drawn of another placement."""
        return Shown(fold=str(self._fold.value))

    def show(self, shown: Shown) -> None:
        """Draw another part of the same graph; if there is none, say so and keep the picture."""
        if not self.label:
            return
        try:
            self.data, self.figure.drawn = self.drawn(self.label, shown, self.figure.width)
        except HeteroLabError as error:
            self._message.value = message(str(error))
            return
        self.shown, self._message.value = shown, ""
        self._setting = True
        try:
            self._find.value, self._around.value = shown.find, shown.around or ""
            self._hops.value = shown.hops
        finally:
            self._setting = False

    def _whole_of(self, label: str) -> GraphData:
        profile = self._rows[label].scaled_profile
        assert profile is not None
        return data_of_profile(profile)

    def _drawn(self, label: str, shown: Shown, room: int) -> tuple[GraphData, str]:
        """Return the nodes, and the figure for a room of so many pixels, as JSON."""
        data = shown.of(self._whole(label))
        # Its margins are 48 px, and a row may be 15 % longer than asked.
        return data, str(draw(data, max(400, int((room - 48) / 1.15)) if room else WIDTH).to_json())

    def open_group(self, index: int) -> None:
        """Open the group of folded ops that has this number in ``data``."""
        node = self.data.node_of.get(int(index)) if self.data else None
        if node is None or node.kind != "group":
            return
        # A scope opens by one level; the name of anything else may change with what is open.
        by_scope = all(name.startswith(node.name) for name in node.ops)
        name = node.name if by_scope else node.ops[0]
        self.show(Shown(**{**vars(self.shown), "unfold": (*self.shown.unfold, name)}))

    def _changed(self, change: dict[str, Any]) -> None:
        if self._setting:
            return
        self.show(
            Shown(
                fold=str(self._fold.value),
                unfold=() if change["owner"] in (self._fold, self._around) else self.shown.unfold,
                around=self._around.value.strip() or None,
                hops=self._hops.value,
                find=self._find.value.strip(),
            )
        )


def _text(label: str, placeholder: str) -> ipw.Text:
    return ipw.Text(
        description=label, placeholder=placeholder, continuous_update=False,
        layout={"width": "290px"}, style={"description_width": "70px"},
    )  # fmt: skip
