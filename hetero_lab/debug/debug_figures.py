"""The figure of a search for faults: errors along a model, and what a page shows of it."""

from __future__ import annotations

import plotly.graph_objects as go

from hetero_lab.debug.investigate import Investigation
from hetero_lab.debug.wrong import OpError, Wrong
from hetero_lab.views.result_views import Contents
from hetero_lab.views.theme import (
    GRID,
    LINE,
    LOG_AXIS,
    ThemedFigure,
    device_styles,
    finish,
    plain,
    shade,
)

_LEAST = 1e-9  # far below the rounding of f32; a logarithmic axis has no 0
_MOST = 1e3  # beyond, an error is as bad as any
_NAMED = 8  # jumps; those after the first ones are seldom of use
_ISOLATED, _ACCUMULATED = "#0072B2", "#D55E00"


def errors_along_model(wrong: Wrong) -> go.Figure:
    """Draw the isolated and the accumulated error of each op, in topological order.

    A triangle with the op's name marks a jump of the accumulated error beyond the dotted line,
    which is the most that rounding can add up to. Something is wrong there: an op whose isolated
    error is as high, or ops that are wrong only together, which no isolated error shows. Ops that
    were found to be wrong are shaded. Ops on the trusted device in f32 were not run by themselves;
    their accumulated error is drawn all the same.
    """
    ops, figure = wrong.op_errors, ThemedFigure()
    places, hovers = list(range(1, len(ops) + 1)), list(map(_hover, ops))
    errors = wrong.errors.filter(like="_error").astype(float).clip(_LEAST, _MOST)
    for name, column, line, mode in (
        ("rounding, at most", "rounding_error", {"color": LINE, "dash": "dot"}, "lines"),
        ("accumulated", "accumulated_error", {"color": _ACCUMULATED}, "lines+markers"),
        ("isolated", "isolated_error", {"color": _ISOLATED}, "markers"),
    ):
        figure.add_scatter(
            x=places,
            y=errors[column],
            name=name,
            mode=mode,
            connectgaps=True,
            hovertext=hovers,
            line={**line, "width": 1.5},
            marker={"color": line["color"], "size": 6},
        )
    jumps = [number for number, error in enumerate(ops) if error.jumps]
    if jumps:
        labels = [plain(ops[number].op, 24) for number in jumps[:_NAMED]]
        figure.add_scatter(
            x=[places[number] for number in jumps],
            y=errors["accumulated_error"].iloc[jumps],
            name="jumps",
            mode="markers+text",
            textposition="top left",
            marker={"color": _ACCUMULATED, "size": 13, "symbol": "triangle-up"},
            text=labels + [""] * (len(jumps) - len(labels)),
            hovertext=[hovers[number] for number in jumps],
        )
    at = {error.op: place for place, error in enumerate(ops, start=1)}
    styles = device_styles((error.device for error in ops), dict(wrong.environment.emulated))
    for fault in wrong.sets:
        for op in fault.ops:
            shade(figure, at[op])
    where = ", ".join(style.label for style in styles.values())
    return finish(
        figure,
        "Where the numbers go wrong",
        f"of each op on {where}: isolated with the reference's inputs, accumulated with those "
        "that really arrive" + (" · shaded: wrong" if wrong.sets else ""),
        440,
        (70, 30, 110, 60),
        x={"title": "op, in topological order", "range": [0.4, len(ops) + 0.6], "gridcolor": GRID},
        y={"title": "relative error (log)", "gridcolor": GRID, **LOG_AXIS},
    )


def _hover(error: OpError) -> str:
    def text(value: float | None) -> str:
        return "not measured" if value is None else f"{value:.2g}"

    lines = [
        f"<b>{plain(error.op, 60)}</b>, {plain(error.op_type, 30)}",
        f"on {plain(error.device, 30)}",
        f"isolated {text(error.isolated)}, accumulated {text(error.accumulated)}",
        f"rounding at most {text(error.rounding)}",
    ]
    return "<br>".join(lines)


def contents_of_search(result: Wrong | Investigation) -> Contents:
    wrong = result.wrong if isinstance(result, Investigation) else result
    heading = result.verdict if isinstance(result, Wrong) else ""
    has_errors = wrong is not None and wrong.op_errors
    return Contents({errors_along_model: wrong if has_errors else None}, heading)
