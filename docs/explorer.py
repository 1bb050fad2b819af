"""A SweepExplorer that lives in a page: every figure it can show is in it, and no kernel is asked.

``_static/site.js`` shows those figures whose ``data-when`` is what is chosen.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go

from docs.course import figure_html
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.search.explain import explain_rows
from hetero_lab.views.cost_figures import difference, time_by_op_type
from hetero_lab.views.graph_drawing import placement_graph
from hetero_lab.views.sweep_figures import title_of
from hetero_lab.views.time_figures import timeline
from hetero_lab.widgets.explorer.explorer import points_figure
from hetero_lab.widgets.explorer.explorer_state import ExplorerState

AXES = (("n_subgraphs", "median_us"), ("boundary_bytes", "median_us"), ("n_subgraphs", "p90_us"))
PANES = {"graph": placement_graph, "timeline": timeline, "time by op type": time_by_op_type}
COMPARISON = "what sets B apart from A"


def explorer_html(sweep: Sweep) -> str:
    """Return HTML to look through a sweep: choose axes, A and B; a click on a point chooses A."""
    state = ExplorerState(sweep)
    axes = [f"{title_of(y)} over {title_of(x)}" for x, y in AXES]
    return "\n".join(
        [
            '<div class="explorer">',
            f"<p>{_select('axes', axes)}</p>",
            *_points(state),
            f"<p>{_select('A', state.measured)} {_select('B', state.measured, 1)} "
            f"{_select('show', [*PANES, COMPARISON])}</p>",
            *_placements(state),
            "</div>",
        ]
    )


def _points(state: ExplorerState) -> Iterator[str]:
    for axes, (x, y) in enumerate(AXES):
        state.choose(x=x, y=y)
        for a, label in enumerate(state.measured):
            state.choose(a=label)
            figure = points_figure(state)
            for trace in figure.data:
                if trace.customdata is not None:  # a click is to tell the place, not the label
                    trace.customdata = [state.measured.index(name) for name in trace.customdata]
            yield _figure(figure, {"axes": axes, "A": a})


def _placements(state: ExplorerState) -> Iterator[str]:
    for a, label in enumerate(state.measured):
        for place, draw in enumerate(PANES.values()):
            yield _figure(draw(state.rows[label].profile), {"A": a, "show": place})
        for b, other in enumerate(state.measured):
            when = {"A": a, "B": b, "show": len(PANES)}
            if a == b:
                yield f"<p {_when(when)}>A and B are the same placement: choose another one.</p>"
            else:
                found = explain_rows(state.rows[label], state.rows[other])
                yield _figure(difference(found), when)


def _figure(figure: go.Figure, when: Mapping[str, int]) -> str:
    return figure_html(figure.to_json(), _when(when))


def _when(chosen: Mapping[str, int]) -> str:
    return f'data-when="{html.escape(json.dumps(chosen))}" hidden'


def _select(name: str, options: Sequence[str], chosen: int = 0) -> str:
    shown = "".join(
        f'<option value="{i}"{" selected" * (i == chosen)}>{html.escape(option)}</option>'
        for i, option in enumerate(options)
    )
    return f'<label>{name} <select name="{name}">{shown}</select></label>'
