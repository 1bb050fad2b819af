"""SweepExplorer: the rows of a sweep as points and a table; a click shows that placement."""

from __future__ import annotations

import asyncio
import html
import time
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import ipywidgets as ipw

from hetero_lab.errors import HeteroLabError
from hetero_lab.results import sweep_tables
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.tables import html_table
from hetero_lab.terminal import count_of
from hetero_lab.views.op_type_figures import time_by_op_type
from hetero_lab.views.prediction_figures import difference
from hetero_lab.views.sweep_figures import title_of
from hetero_lab.views.time_figures import timeline
from hetero_lab.widgets.explorer.explorer_figures import (
    CLASS,
    KEPT,
    Figure,
    GraphPane,
    Look,
    Pane,
    Rows,
    message,
    points_figure,
    rings,
    table_of,
)
from hetero_lab.widgets.explorer.explorer_state import ExplorerState, labelled
from hetero_lab.widgets.last_picture import LastPicture

_NEEDS_KERNEL = "Choosing, filtering, comparing and the other tabs"
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
            x=_dropdown("across", axes, state.choice.x),
            y=_dropdown("up", axes, state.choice.y),
            group=_dropdown("group by", state.groupings, state.choice.group),
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
            tabs = {
                "Before and after": ipw.HTML(
                    f'<div class="hlx-runs" tabindex="0">{state.comparison._repr_html_()}</div>'
                ),
                **tabs,
            }
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
                    control.value = getattr(state.choice, name)
            self.rows.a, self.rows.b = state.choice.a, state.choice.b
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
        """Draw what the open tab shows of the choices."""
        name = self.tab.get_title(self.tab.selected_index)
        if name == GRAPH:
            self.graph.draw(self.exploring.choice.a)
        elif name in self._panes:
            self._panes[name].show(*self._content(name, *self._pair(name)))
        self._draw_ahead()

    def _pair(self, name: str, a: str = "") -> tuple[str, str]:
        """Return the placements that a tab shows, with ``a`` or else A as the first."""
        choice = self.exploring.choice
        return a or choice.a, choice.b if name == COMPARED else ""

    def _content_of(self, name: str, a: str, b: str) -> tuple[str, ...]:
        """Return words, figure and tables of a tab."""
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
            return (
                message(
                    "Choose two different placements A and B to compare. In the table and on the "
                    "points, a click chooses A, Shift and a click B."
                ),
            )
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
