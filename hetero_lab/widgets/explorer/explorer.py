"""SweepExplorer: the rows of a sweep as points and a table; a click shows that placement."""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anywidget
import ipywidgets as ipw
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs

from hetero_lab.errors import HeteroLabError
from hetero_lab.results import sweep_tables
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import Row
from hetero_lab.tables import html_table, readable
from hetero_lab.terminal import count_of
from hetero_lab.views.cost_figures import difference, time_by_op_type
from hetero_lab.views.graph_data import GraphData, data_of_profile
from hetero_lab.views.graph_drawing import WIDTH, draw
from hetero_lab.views.graph_folding import FOLDS, Shown
from hetero_lab.views.sweep_figures import (
    axis_of,
    finite,
    intervals_of,
    points,
    scale_of,
    title_of,
)
from hetero_lab.views.theme import INTERVALS, TEXT, device_styles, finish, latency_end_us
from hetero_lab.views.time_figures import timeline
from hetero_lab.widgets.explorer.explorer_state import RUN, ExplorerState, labelled
from hetero_lab.widgets.last_picture import LastPicture

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
    frame = exploring.shown
    devices = [
        d for row in exploring.rows.values() if row.profile for d in row.profile.affinity.devices
    ]
    styles = device_styles(devices, exploring.emulated)
    figure = points(frame, exploring.x, exploring.y, exploring.group, styles)
    figure.add_scatter(**rings(exploring))
    up = axis_of(frame, exploring.y)
    if intervals := intervals_of(frame, exploring.y):
        up["range"] = [0, scale_of(frame, exploring.y) * latency_end_us(intervals)]
    return finish(
        figure,
        f"{len(frame)} of {len(exploring.measured)} measured placements",
        "click a point to see its placement",
        430,
        (76, 24, 104, 56),
        x=axis_of(frame, exploring.x),
        y=up,
        showlegend=True,
        hovermode="closest",
        uirevision=f"{exploring.x} {exploring.y}",
    )


def rings(exploring: ExplorerState) -> dict[str, Any]:
    """Return the trace of the rings around A and B."""
    frame = exploring.shown
    rows = frame.loc[frame["label"].isin([exploring.a, exploring.b])]
    marks = ["A" * (label == exploring.a) + "B" * (label == exploring.b) for label in rows["label"]]
    return {
        "x": finite(rows[exploring.x], scale_of(frame, exploring.x)),
        "y": finite(rows[exploring.y], scale_of(frame, exploring.y)), "mode": "markers+text",
        "text": marks, "textposition": "top right",
        "textfont": {"size": 14, "color": TEXT}, "showlegend": False, "cliponaxis": False,
        "marker": {"size": 22, "symbol": "circle-open", "color": TEXT, "line": {"width": 2.5}},
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
        self._reset.on_click(lambda _: self.show(self.first))
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
        self.show(replace(self.shown, unfold=(*self.shown.unfold, name)))

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


_NEEDS_KERNEL = "Choosing, filtering, comparing and the other tabs"
_CHOOSE = (
    "Choose two different placements A and B to compare. In the table and on the points, a click "
    "chooses A, Shift and a click B."
)
_WIDE = {"description_width": "60px"}
_WRAP = {"flex_flow": "row wrap"}
GRAPH, TIMELINE, COUNTERS, COMPARED = "Graph", "Timeline", "Counters", "Compare A and B"
_NODE_COLUMNS = ["op", "real_time_us", "subgraph", "device", "node_type", "exec_type", "precision"]
_PAUSE_S, _SLOW_S = 0.05, 0.3  # between drawings made ahead; none are made if one takes longer


class SweepExplorer(LastPicture):
    """Look through a sweep: rank, filter, group, choose axes, see a placement, compare two.

    No device is needed: a sweep from :func:`hetero_lab.read_sweep` will do.

    Parameters
    ----------
    sweep
        A Sweep. Rows that were not measured, or not evaluated, are listed with their cause.
    before
        An earlier sweep with some of the same labels. Its rows stand beside the others, under what
        differs between the two machines and how far each placement changed, as by
        :func:`hetero_lab.compare`.

    Attributes
    ----------
    exploring
        The choices, readable and settable from Python through :meth:`select` and the rest.
    controls, points, rows, tab, graph
        Its parts; missing if nothing was measured.

    Raises
    ------
    ArgumentError
        ``sweep`` is something else, or no label was measured in both sweeps.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> measured = hl.sweep(model, ["CPU"], turns=2, isolate=False, counters=False, progress=False)
    >>> explorer = hl.SweepExplorer(measured)
    >>> explorer.filter("n_subgraphs<4")
    >>> list(explorer.exploring.shown["label"])
    ['CPU']
    """

    def __init__(self, sweep: Sweep, before: Sweep | None = None):
        self.exploring = ExplorerState(sweep, before)
        self._message = ipw.HTML(message(self.exploring.message))
        children: list[ipw.Widget] = [Look(), ipw.HTML(_heading(self.exploring)), self._message]
        self._quiet = False
        if self.exploring.measured:
            children += self._browser()
        for text, rows in (
            ("Not measured", self.exploring.troubled(measured=False)),
            ("Measured, but without accuracy", self.exploring.troubled(measured=True)),
        ):
            if len(rows):
                children.append(ipw.HTML(_listed(rows, f"{text}: {len(rows)}", 200)))
        super().__init__(children, _NEEDS_KERNEL)
        self.add_class(CLASS)

    def _picture(self) -> tuple[str, str]:
        sweep = self.exploring.sweep
        return repr(sweep).partition("\n")[0], sweep._repr_html_()

    def select(self, label: str) -> None:
        """Show a row as the placement A."""
        self._choose(a=label)

    def compare_with(self, label: str) -> None:
        """Compare A with this row, the placement B; an empty label ends the comparison."""
        self._choose(b=label)

    def choose_axes(self, x: str, y: str) -> None:
        """Draw one column of numbers over another."""
        self._choose(x=x, y=y)

    def group_by(self, name: str) -> None:
        """Colour the points by a column."""
        self._choose(group=name)

    def filter(self, text: str) -> None:
        """Show the rows that match words of label and devices, and such as ``subgraphs<4``."""
        self._choose(filter=text)

    @property
    def message(self) -> str:
        """The widget's message as HTML; empty if nothing is wrong."""
        return self._message.value

    def _browser(self) -> list[ipw.Widget]:
        state = self.exploring
        axes = [(title_of(name), name) for name in state.axes]
        self.rows = Rows()
        self.controls = SimpleNamespace(
            filter=ipw.Text(
                description="filter", placeholder="GPU, subgraphs<4, latency<2ms; then Enter",
                continuous_update=False, layout={"width": "370px"}, style=_WIDE,
            ),
            x=_dropdown("across", axes, state.x),
            y=_dropdown("up", axes, state.y),
            group=_dropdown("group by", state.groupings, state.group),
        )  # fmt: skip
        self.points = Figure(lambda label, shift: self._choose(**{"b" if shift else "a": label}))
        self.points.add_class("hlx-points")
        self.rows.add_class("hlx-placements")
        self.graph = GraphPane(state.rows)
        self._panes = {name: Pane() for name in (TIMELINE, COUNTERS, COMPARED)}
        self._content = lru_cache(KEPT)(self._content_of)
        self._ahead: asyncio.TimerHandle | None = None
        tabs = {GRAPH: self.graph.widget, **{n: pane.widget for n, pane in self._panes.items()}}
        if state.comparison is not None:
            table = f'<div class="hlx-runs" tabindex="0">{state.comparison._repr_html_()}</div>'
            tabs = {"Before and after": ipw.HTML(table), **tabs}
        self.tab = ipw.Tab(list(tabs.values()), titles=list(tabs), selected_index=0)
        for name, control in vars(self.controls).items():
            control.observe(partial(self._from_control, name), "value")
        for name in ("a", "b"):
            self.rows.observe(partial(self._from_control, name), name)
        self.tab.observe(lambda _: self._draw_pane(), "selected_index")
        self.graph.figure.observe(lambda _: self._draw_ahead(), "width")
        self._choose()
        return [
            ipw.HBox([*vars(self.controls).values()], layout=_WRAP),
            ipw.HBox([self.points, self.rows], layout=_WRAP),
            self.tab,
        ]

    def _from_control(self, name: str, change: Any) -> None:
        if not self._quiet:
            self._choose(**{name: change["new"]})

    def _choose(self, **changes: str) -> None:
        """Change the choices and what is drawn; if that fails, say so and put the controls back."""
        state, failed = self.exploring, False
        try:
            state.choose(**changes)
            self._message.value = message(state.message)
        except HeteroLabError as error:
            self._message.value = message(str(error))
            failed = True
        if not state.measured:
            return
        self._quiet = True
        try:
            for name, control in vars(self.controls).items():
                if name != "filter" or not failed:  # a wrong filter stays, to be corrected
                    control.value = getattr(state, name)
            self.rows.a, self.rows.b = state.a, state.b
        finally:
            self._quiet = False
        if failed:
            return
        if changes and changes.keys() <= {"a", "b"}:
            self._figure.data[-1].update(rings(state))
        else:
            self._figure = points_figure(state)
            with self.rows.hold_sync():
                self.rows.labels, self.rows.columns = list(state.shown["label"]), table_of(state)
        self.points.drawn = str(self._figure.to_json())
        self._draw_pane()

    def _draw_pane(self) -> None:
        name = self.tab.get_title(self.tab.selected_index)
        if name == GRAPH:
            self.graph.draw(self.exploring.a)
        elif name in self._panes:
            self._panes[name].show(*self._content(name, *self._pair(name)))
        self._draw_ahead()

    def _pair(self, name: str, a: str = "") -> tuple[str, str]:
        """Return the placements that a tab shows, with ``a`` or else A as the first."""
        return a or self.exploring.a, self.exploring.b if name == COMPARED else ""

    def _content_of(self, name: str, a: str, b: str) -> tuple[str, ...]:
        profile = self.exploring.rows[a].profile
        assert profile is not None
        try:
            if name == TIMELINE:
                return "", str(timeline(profile).to_json())
            if name == COUNTERS:
                counters = profile.tables["counters"].query("status == 'EXECUTED'")
                slowest = counters.sort_values("real_time_us", ascending=False, kind="stable")
                named = slowest["op"].where(slowest["op"] != "", slowest["node_name"])
                nodes = slowest.assign(op=named)[_NODE_COLUMNS]
                figure = str(time_by_op_type(profile).to_json())
                return "", figure, _listed(nodes, "Slowest nodes")
            found = self.exploring.difference(a, b)
        except HeteroLabError as error:
            is_bare = name != COMPARED and not profile.counters and a.endswith("(recorded)")
            return (message("The recording holds no counters." if is_bare else str(error)),)
        if found is None:
            return (message(_CHOOSE),)
        words = "<br>".join(html.escape(line) for line in repr(found).splitlines())
        moved = _listed(found.ops, f"Ops that move: {len(found.ops)}", 200)
        figure = str(difference(found).to_json())
        return f"<div>{words}</div>", figure, _listed(found.summary) + moved

    def _draw_ahead(self) -> None:
        """Draw for the open tab what may be chosen next, bit by bit, while the kernel waits."""
        if self._ahead is not None:
            self._ahead.cancel()
        room, name = self.graph.figure.width, self.tab.get_title(self.tab.selected_index)
        labels = [*self.exploring.shown["label"]][: KEPT // 2]
        if name == GRAPH:
            tasks = [partial(self.graph.drawn, label, self.graph.first, room) for label in labels]
        elif name in self._panes:
            tasks = [partial(self._content, name, *self._pair(name, label)) for label in labels]
        else:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # there is no kernel
            return

        def step() -> None:
            began = time.thread_time()
            tasks.pop(0)()
            if tasks and time.thread_time() - began < _SLOW_S:
                self._ahead = loop.call_later(_PAUSE_S, step)

        self._ahead = loop.call_later(_PAUSE_S, step)


def _dropdown(label: str, options: Any, value: str) -> ipw.Dropdown:
    return ipw.Dropdown(
        description=label, options=options, value=value, layout={"width": "270px"}, style=_WIDE
    )


def _listed(frame: Any, caption: str = "", most: int = 60) -> str:
    return f'<div class="hlx-table" tabindex="0">{html_table(frame, caption, most)}</div>'


def _heading(state: ExplorerState) -> str:
    """Return the answer in a line; what else is to be known is folded."""
    runs = state.runs.values()
    answer, _, more = repr(state.sweep).partition("\n")[0].partition("; ")
    if state.comparison is not None:
        answer, more = f"{state.comparison.verdict} Not measured in turn.", answer
    facts = [
        f"{count_of(len(run.rows), 'placement')}, {run.environment.measured_at[:10]}, "
        f"{run.environment.host}, OpenVINO {run.environment.openvino_version.partition('-')[0]}"
        for run in runs
    ]
    notes = [
        *(f"{name} is emulated on {base}." for name, base in state.emulated.items()),
        *(sweep_tables.could_be_seen(run.ranked) for run in runs if run.ranked.rows),
        *(labelled(name, note) for name, run in state.runs.items() for note in run.notes),
    ]
    items = "".join(f"<li>{html.escape(note)}</li>" for note in [more, *notes] if note)
    return (
        f'<p class="hlx-answer">{html.escape(answer)}</p><details><summary>'
        f"{html.escape(' · '.join(facts))}</summary><ul>{items}</ul></details>"
    )
