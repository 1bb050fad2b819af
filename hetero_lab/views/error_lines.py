"""Errors along a model: what each op gets wrong by itself, and what arrives."""

from __future__ import annotations

import math
from collections.abc import Callable

import plotly.graph_objects as go

from hetero_lab.experiments.search.wrong import OpError, Wrong
from hetero_lab.views.text import plain
from hetero_lab.views.theme import GRID, LINE, base_layout, device_styles

_LEAST = 1e-9
_MOST = 1e3  # beyond, an error is as bad as any
_NAMED = 8  # jumps; what comes after the first ones is seldom of use
_ISOLATED, _ACCUMULATED = "#0072B2", "#D55E00"


def errors_along_model(wrong: Wrong) -> go.Figure:
    """Draw the isolated and the accumulated error of each op, in topological order.

    Where what really arrives jumps, a triangle with the op's name marks it: the error gets beyond
    the dotted line, which is what rounding could add up to at most. Something is wrong there: an
    op whose isolated error is as high, or ops that are wrong only together, of which no isolated
    error tells. What was found to be wrong is shaded. Ops on the trusted device in f32 were not
    run by themselves; what arrives there is drawn all the same.
    """
    ops = wrong.op_errors
    figure = go.Figure()
    lines: list[tuple[str, Callable[[OpError], float | None], dict, str]] = [
        ("rounding, at most", lambda e: e.rounding, {"color": LINE, "dash": "dot"}, "lines"),
        ("accumulated", lambda e: e.accumulated, {"color": _ACCUMULATED}, "lines+markers"),
        ("isolated", lambda e: e.isolated, {"color": _ISOLATED}, "markers"),
    ]
    for name, of, line, mode in lines:
        figure.add_scatter(
            x=list(range(1, len(ops) + 1)),
            y=[_drawn(of(error)) for error in ops],
            name=name, mode=mode, connectgaps=True,
            line={**line, "width": 1.5}, marker={"color": line["color"], "size": 6},
            hovertext=[_hover(error) for error in ops], hoverinfo="text",
        )  # fmt: skip
    jumps = [(place, error) for place, error in enumerate(ops, start=1) if error.jumps]
    if jumps:
        figure.add_scatter(
            x=[place for place, _ in jumps],
            y=[_drawn(error.accumulated) for _, error in jumps],
            name="jumps", mode="markers+text", textposition="top left",
            marker={"color": _ACCUMULATED, "size": 13, "symbol": "triangle-up"},
            text=[plain(error.op, 24) if n < _NAMED else "" for n, (_, error) in enumerate(jumps)],
            hovertext=[_hover(error) for _, error in jumps], hoverinfo="text",
        )  # fmt: skip
    at = {error.op: place for place, error in enumerate(ops, start=1)}
    devices = list(dict.fromkeys(error.device for error in ops))
    styles = device_styles(devices, dict(wrong.environment.emulated))
    for found in wrong.sets:
        for op in found.ops:
            figure.add_vrect(
                x0=at[op] - 0.5, x1=at[op] + 0.5, fillcolor=GRID, line_width=0, layer="below"
            )
    where = ", ".join(styles[device].label for device in devices)
    figure.update_layout(
        **base_layout(
            "Where the numbers go wrong",
            f"of each op on {where}: isolated with the reference's inputs, accumulated with what "
            "really arrives" + (" · shaded: wrong" if wrong.sets else ""),
        ),
        height=440,
        margin={"l": 70, "r": 30, "t": 110, "b": 60},
    )
    figure.update_xaxes(title="op, in topological order", range=[0.4, len(ops) + 0.6])
    figure.update_yaxes(
        title="relative error (log)", type="log", gridcolor=GRID, exponentformat="power", dtick=1
    )
    return figure


def _drawn(error: float | None) -> float | None:
    if error is None or math.isnan(error):
        return None
    return min(max(error, _LEAST), _MOST)


def _hover(error: OpError) -> str:
    def text(value: float | None) -> str:
        return "not measured" if value is None else f"{value:.2g}"

    return "<br>".join(
        [
            f"<b>{plain(error.op, 60)}</b>, {plain(error.op_type, 30)}",
            f"on {plain(error.device, 30)}",
            f"isolated {text(error.isolated)}, accumulated {text(error.accumulated)}",
            f"rounding at most {text(error.rounding)}",
        ]
    )
