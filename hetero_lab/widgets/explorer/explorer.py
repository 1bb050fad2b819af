"""SweepExplorer: the rows of a sweep as points; a click shows that placement, two compare."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import ipywidgets as ipw

from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.tables import html_table
from hetero_lab.views.op_types import time_by_op_type
from hetero_lab.views.predictions import difference
from hetero_lab.views.result_views import slowest_nodes
from hetero_lab.views.theme import squeeze
from hetero_lab.views.times import timeline
from hetero_lab.widgets.explorer.figures import (
    CLASS,
    GraphPane,
    Look,
    figure_widget,
    message,
    points_figure,
    rings,
    table,
)
from hetero_lab.widgets.explorer.state import ExplorerState, title_of

_TABS = ("Graph", "Timeline", "Counters", "Compare A and B", "Rows")
_WIDE = {"description_width": "80px"}
_ROWS = [
    "label", "n_subgraphs", "boundary_bytes", "median_us", "p90_us", "ratio", "ratio_ci95_low",
    "ratio_ci95_high", "devices", "same_as",
]  # fmt: skip


class SweepExplorer(ipw.VBox):
    """Look through a sweep: filter, group, choose axes, see a placement, compare two.

    No device is needed: a sweep from :func:`hetero_lab.read_sweep` will do.

    Parameters
    ----------
    sweep
        A Sweep. Rows that were not measured, or not evaluated, are listed with their cause.

    Attributes
    ----------
    exploring
        The choices, readable and settable from Python through :meth:`select` and the rest.
    controls, points, tab, graph
        Its parts; missing if nothing was measured.

    Raises
    ------
    ArgumentError
        ``sweep`` is something else.

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

    def __init__(self, sweep: Sweep):
        self.exploring = ExplorerState(sweep)
        self._message = ipw.HTML(message(self.exploring.message))
        children: list[ipw.Widget] = [Look(), self._heading(), self._message]
        self._quiet = False
        if self.exploring.measured:
            children += self._browser()
        for text, rows in (
            ("Not measured", self.exploring.troubled(measured=False)),
            ("Measured, but without accuracy", self.exploring.troubled(measured=True)),
        ):
            if len(rows):
                children.append(_listed(rows, caption=f"{text}: {len(rows)}", most=200))
        super().__init__(children)
        self.add_class(CLASS)

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
        """Show the rows that match words of the label and comparisons such as ``n_subgraphs<4``."""
        self._choose(filter=text)

    @property
    def message(self) -> str:
        """The widget's message as HTML; empty if nothing is wrong."""
        return self._message.value

    def _heading(self) -> ipw.HTML:
        sweep = self.exploring.sweep
        notes = [f"{name} is emulated on {base}" for name, base in sweep.environment.emulated]
        text = html.escape(" · ".join([repr(sweep), *notes, *sweep.notes]))
        return ipw.HTML(f"<div><b>{text}</b></div>")

    def _browser(self) -> list[ipw.Widget]:
        state = self.exploring
        axes = [(title_of(name), name) for name in state.axes]
        labels = [(squeeze(label, 90), label) for label in state.measured]
        self.controls = controls = SimpleNamespace(
            filter=ipw.Text(
                description="filter", placeholder="words, n_subgraphs<4, ratio<1; then Enter",
                continuous_update=False, layout={"width": "330px"}, style=_WIDE,
            ),
            x=_dropdown("across", axes, state.choice.x),
            y=_dropdown("up", axes, state.choice.y),
            group=_dropdown("group by", state.groupings, state.choice.group),
            a=_dropdown("A", labels, state.choice.a, "420px"),
            b=_dropdown("compare B", [("nothing", ""), *labels], "", "420px"),
            click=ipw.ToggleButtons(
                options=[("a click chooses A", "a"), ("chooses B", "b")],
                style={"button_width": "140px"},
            ),
        )  # fmt: skip
        self.points = ipw.VBox()
        self.graph = GraphPane()
        self._panes = [ipw.VBox() for _ in _TABS]
        self._panes[0].children = (self.graph.widget,)
        self.tab = ipw.Tab(self._panes)
        for place, name in enumerate(_TABS):
            self.tab.set_title(place, name)
        self._stale = set(range(len(_TABS)))
        for name in vars(state.choice):
            getattr(controls, name).observe(partial(self._from_control, name), "value")
        self.tab.observe(lambda _: self._draw_pane(), "selected_index")
        self._redraw_points()
        self.tab.selected_index = 0
        self._draw_pane()
        wrap = {"flex_flow": "row wrap"}
        return [
            ipw.HBox([controls.filter, controls.x, controls.y, controls.group], layout=wrap),
            self.points,
            ipw.HBox([controls.a, controls.b, controls.click], layout=wrap),
            self.tab,
        ]

    def _from_control(self, name: str, change: Any) -> None:
        if not self._quiet:
            self._choose(**{name: change["new"]})

    def _clicked(self, label: str) -> None:
        self._choose(**{self.controls.click.value: str(label)})

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
            for name, value in vars(state.choice).items():
                if name != "filter" or not failed:  # a wrong filter stays, to be corrected
                    getattr(self.controls, name).value = value
        finally:
            self._quiet = False
        if failed:
            return
        self._stale.add(len(_TABS) - 1)
        if changes.keys() <= {"a", "b"}:
            (figure,) = self.points.children
            figure.data[-1].update(rings(state))
            self._stale = set(range(len(_TABS)))
        else:
            self._redraw_points()
        self._draw_pane()

    def _redraw_points(self) -> None:
        figure = points_figure(self.exploring)
        self.points.children = (figure_widget(figure, self._clicked),)

    def _draw_pane(self) -> None:
        """Draw the open tab, if the choices have changed since."""
        place = self.tab.selected_index
        row = self.exploring.selected
        if place is None or place not in self._stale or row is None or row.profile is None:
            return
        self._stale.discard(place)
        profile = row.profile
        draws: dict[str, Callable[[], list[ipw.Widget]]] = {
            "Timeline": lambda: [figure_widget(timeline(profile))],
            "Counters": lambda: _counters(profile),
            "Compare A and B": self._comparison,
            "Rows": lambda: [_listed(self.exploring.shown.filter(_ROWS), most=500)],
        }
        if _TABS[place] == "Graph":
            self.graph.draw(profile)
            return
        try:
            self._panes[place].children = draws[_TABS[place]]()
        except HeteroLabError as error:
            self._panes[place].children = [ipw.HTML(message(str(error)))]

    def _comparison(self) -> list[ipw.Widget]:
        found = self.exploring.difference()
        if found is None:
            return [ipw.HTML(message("Choose two different placements A and B to compare."))]
        words = "<br>".join(html.escape(line) for line in repr(found).splitlines())
        return [
            ipw.HTML(f"<div>{words}</div>"),
            figure_widget(difference(found)),
            _listed(found.summary),
            _listed(found.ops, caption=f"Ops that move: {len(found.ops)}", most=200),
        ]


def _dropdown(label: str, options: Any, value: str, width: str = "280px") -> ipw.Dropdown:
    return ipw.Dropdown(
        description=label, options=options, value=value, layout={"width": width}, style=_WIDE
    )


def _listed(frame: Any, **options: Any) -> ipw.HTML:
    return ipw.HTML(table(html_table(frame, **options)))


def _counters(profile: Profile) -> list[ipw.Widget]:
    figure = figure_widget(time_by_op_type(profile))
    return [figure, _listed(slowest_nodes(profile), caption="Slowest nodes", most=60)]
