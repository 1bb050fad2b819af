"""The figures of the explorer as widgets, in JupyterLab's own colours."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets as ipw
import plotly.graph_objects as go

from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.views.graph.data import GraphData, data_of_profile
from hetero_lab.views.graph.drawing import draw
from hetero_lab.views.graph.folding import FOLDS, Shown
from hetero_lab.views.sweeps import MOSTLY
from hetero_lab.views.theme import (
    GRID,
    INTERVALS,
    SPARE_COLOURS,
    TEXT,
    device_styles,
    error_bars,
    finish,
    plain,
)
from hetero_lab.widgets.explorer.state import NO_GROUP, ExplorerState, title_of

if TYPE_CHECKING:
    import pandas as pd


WIDTH = 1080


def figure_widget(
    figure: go.Figure, clicked: Callable[[Any], None] | None = None
) -> go.FigureWidget:
    """Return a figure as a widget; ``clicked`` gets the customdata of a clicked point.

    A widget may be made while it is invisible, in a closed tab. Plotly can then measure neither its
    room nor its title, and would draw it too narrow, with the subtitle over the title.
    """
    widget = go.FigureWidget(figure)
    layout: Any = widget.layout
    title, subtitle = layout.title.text, layout.title.subtitle.text
    with widget.batch_update():
        if layout.width is None:
            layout.width = WIDTH
        if subtitle:
            layout.title.text = f'{title}<br><span style="font-size: 11px">{subtitle}</span>'
            layout.title.subtitle.text = ""
    if clicked is not None:

        def told(trace: Any, points: Any, _: Any) -> None:
            for place in points.point_inds:
                clicked(trace.customdata[place])

        traces: Any = widget.data
        for trace in traces:
            if trace.customdata is not None:
                trace.on_click(told)
    return widget


CLASS = "hetero-lab-explorer"
_HERE = Path(__file__).parent


class Look(anywidget.AnyWidget):
    """Brings the style, and keeps JupyterLab from handling keys pressed in the explorer."""

    _esm = _HERE / "explorer.js"
    _css = _HERE / "explorer.css"


def message(text: str) -> str:
    """Return a message as escaped HTML; nothing for an empty text."""
    if not text:
        return ""
    lines = "<br>".join(html.escape(line) for line in text.splitlines())
    return f'<div class="hlx-message" role="status">{lines}</div>'


def table(content: str) -> str:
    """Put a table of ``tables.html_table`` into a box that scrolls."""
    return f'<div class="hlx-table" tabindex="0">{content}</div>'


_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")
_MOST_GROUPS = 8


def points_figure(exploring: ExplorerState) -> go.Figure:
    """Draw the rows that are shown, with A and B ringed; a point's customdata is its label."""
    choice, frame = exploring.choice, exploring.shown
    figure = go.Figure()
    emulated = dict(exploring.sweep.environment.emulated)
    # Equal placements lie on the same point: a click should choose the measured one.
    own = frame.loc[~frame["same_as"].isin(list(frame["label"]))]
    groups = _groups(own, choice.group)
    devices = [
        d for row in exploring.rows.values() if row.profile for d in row.profile.affinity.devices
    ]
    styles = device_styles(devices, emulated)
    for place, (name, rows) in enumerate(groups):
        if choice.group == MOSTLY and name in styles:
            colour, label = styles[name].colour, f"mostly on {styles[name].label}"
        else:
            colour = SPARE_COLOURS[place % len(SPARE_COLOURS)]
            label = plain(name, 60)
        open_mark = choice.group == MOSTLY and name in styles and styles[name].emulated
        figure.add_scatter(
            x=_sent(rows[choice.x]), y=_sent(rows[choice.y]), mode="markers", name=label,
            customdata=list(rows["label"]), error_y=_interval(rows, choice.y),
            hovertext=[_hover(row, frame, choice.x, choice.y) for _, row in rows.iterrows()],
            marker={
                "size": 12, "color": colour, "line": {"width": 2 if open_mark else 0},
                "symbol": "circle-open-dot" if open_mark else _SYMBOLS[place % len(_SYMBOLS)],
            },
        )  # fmt: skip
    figure.add_scatter(**rings(exploring))
    shown, total = len(frame), len(exploring.measured)
    return finish(
        figure,
        f"{shown} of {total} measured placements",
        "click a point to see its placement",
        430,
        (76, 24, 104, 56),
        x={"title": plain(title_of(choice.x)), "gridcolor": GRID, "zeroline": False},
        y={"title": plain(title_of(choice.y)), "gridcolor": GRID, "zeroline": False},
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
        "x": _sent(rows[choice.x]), "y": _sent(rows[choice.y]), "mode": "markers+text",
        "text": [marks[label] for label in rows["label"]], "textposition": "top right",
        "textfont": {"size": 14, "color": TEXT}, "showlegend": False,
        "cliponaxis": False,
        "marker": {
            "size": 22, "symbol": "circle-open", "color": TEXT, "line": {"width": 2.5},
        },
    }  # fmt: skip


def _groups(frame: pd.DataFrame, group: str) -> list[tuple[str, pd.DataFrame]]:
    if group == NO_GROUP:
        return [("placements", frame)]
    # A column of whole numbers that has gaps holds floats.
    names = [f"{v:g}" if isinstance(v, float) else str(v) for v in frame[group]]
    order = list(dict.fromkeys(names))
    kept = order if len(order) <= _MOST_GROUPS else order[: _MOST_GROUPS - 1]
    label = group if group not in (MOSTLY, "devices") else ""
    found = [
        (f"{label} {name}".strip(), frame.loc[[other == name for other in names]]) for name in kept
    ]
    if len(kept) < len(order):
        found.append(("others", frame.loc[[name not in kept for name in names]]))
    return found


def _interval(rows: pd.DataFrame, column: str) -> dict[str, Any] | None:
    """Return the error bars of a column that has 95 % intervals."""
    names = [column, *INTERVALS.get(column, ())]
    if len(names) == 1 or not set(names) <= set(rows):
        return None
    return error_bars([*rows[names].astype(float).itertuples(index=False, name=None)])


def _sent(values: pd.Series) -> list[float | None]:
    """Return numbers for JSON, which has neither NaN nor infinity."""
    return [float(value) if math.isfinite(value) else None for value in values.astype(float)]


def _hover(row: Any, frame: pd.DataFrame, x: str, y: str) -> str:
    lines = [f"<b>{plain(str(row['label']), 120)}</b>"]
    lines += [f"{plain(title_of(name))}: {row[name]:,.6g}" for name in dict.fromkeys((x, y))]
    same = [str(label) for label in frame.loc[frame["same_as"] == row["label"], "label"]]
    lines += [f"the same placement: {plain(label, 80)}" for label in same[:_MOST_GROUPS]]
    return "<br>".join(lines)


class GraphPane:
    """The widgets around one placement graph; ``widget`` is the one to display.

    A click on a group of folded ops opens it. ``shown`` says what is drawn, ``data`` has its nodes.
    """

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.shown = Shown()
        self.data: GraphData | None = None
        self._whole: GraphData | None = None
        self._setting = False
        self._fold = ipw.Dropdown(
            options=[(f"fold: {name}", name) for name in FOLDS], layout={"width": "140px"}
        )
        self._find = _text("find ops", "part of a name, then Enter")
        self._around = _text("around op", "name of an op, then Enter")
        self._hops = ipw.BoundedIntText(
            2, min=0, max=20, description="hops", layout={"width": "130px"}
        )
        self._reset = ipw.Button(description="Fold again", tooltip="Close what was opened")
        self._message = ipw.HTML()
        self.place = ipw.VBox()
        self.place.add_class("hlx-graph")
        for control in (self._fold, self._find, self._around, self._hops):
            control.observe(self._changed, "value")
        self._reset.on_click(lambda _: self.show(Shown(fold=str(self._fold.value))))
        controls = [self._fold, self._find, self._around, self._hops, self._reset]
        self.widget = ipw.VBox(
            [ipw.HBox(controls, layout={"flex_flow": "row wrap"}), self._message, self.place]
        )

    def draw(self, profile: Profile) -> None:
        """Draw another placement, folded as at first."""
        if profile is not self.profile:
            self.profile, self._whole = profile, data_of_profile(profile)
            self.show(Shown(fold=str(self._fold.value)))

    def show(self, shown: Shown) -> None:
        """Draw another part of the same graph; if there is none, say so and keep the picture."""
        if self._whole is None:
            return
        try:
            data = shown.of(self._whole)
            figure = figure_widget(draw(data, WIDTH - 180), self.open_group)
        except HeteroLabError as error:
            self._message.value = message(str(error))
            return
        self.shown, self.data = shown, data
        self._message.value = ""
        self._setting = True
        try:
            self._find.value, self._around.value = shown.find, shown.around or ""
            self._hops.value = shown.hops
        finally:
            self._setting = False
        self.place.children = (figure,)

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
        layout={"width": "260px"}, style={"description_width": "70px"},
    )  # fmt: skip
