"""Sensitivity: which part of a model, in topological order, loses how much in low precision."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from hetero_lab.experiments.accuracy.evaluate import Evaluation
from hetero_lab.experiments.search.recovered import Recovered
from hetero_lab.experiments.search.sensitivity import Tried
from hetero_lab.placement.affinity import Affinity
from hetero_lab.views.arguments import expect
from hetero_lab.views.colours import GRID, LINE, device_styles
from hetero_lab.views.text import plain, time_text
from hetero_lab.views.theme import base_layout

_LEAST = 1e-6


def sensitivity(recovered: Recovered) -> go.Figure:
    """Draw the output error with each part alone on either device, in topological order.

    A high bar on the fast device: the part brings in an error by itself. A low bar on the
    accurate device: that part alone, there, mends the model. The dotted line is the error of the
    whole model on the fast device; parts with a shade behind are chosen for the accurate
    one.
    """
    expect(recovered, Recovered)
    fast, accurate = recovered.fast, recovered.accurate
    styles = device_styles([fast, accurate], dict(recovered.sweep.environment.emulated))
    ways = [(fast, [(t, t.only_fast) for t in recovered.tried])]
    ways.append((accurate, [(t, t.only_accurate) for t in recovered.tried]))
    figure = go.Figure()
    for device, pairs in ways:
        drawn = [(tried, found) for tried, found in pairs if found is not None]
        figure.add_bar(
            x=[tried.chunk.index + 1 for tried, _ in drawn],
            y=[found.relative_error for _, found in drawn],
            name=f"alone on {styles[device].label}",
            marker={"color": styles[device].colour, "pattern": {"shape": styles[device].pattern}},
            hovertext=[_hover(tried, found, device) for tried, found in drawn],
            hoverinfo="text",
        )
    whole = float(recovered.sensitivity["error_all_fast"].iloc[0])
    ends = [0.4, len(recovered.tried) + 0.6]
    figure.add_scatter(
        x=ends, y=[whole, whole], mode="lines", name=f"all of it on {plain(fast, 30)}",
        line={"color": LINE, "width": 1.5, "dash": "dot"}, hoverinfo="skip",
    )  # fmt: skip
    for tried in recovered.tried:
        if _home(recovered.affinity, tried) == accurate:
            at = tried.chunk.index + 1
            figure.add_vrect(x0=at - 0.5, x1=at + 0.5, fillcolor=GRID, line_width=0, layer="below")
    figure.update_layout(
        **base_layout(
            "Where the precision is lost",
            "relative error of the outputs against f32, one part alone on a device and the rest "
            f"on the other · shaded: chosen for {plain(accurate, 30)}" + _untried(recovered),
        ),
        height=440,
        margin={"l": 70, "r": 30, "t": 110, "b": 60},
        bargap=0.2,
        barmode="group",
    )
    figure.update_xaxes(title="part of the model, in topological order", dtick=1, range=ends)
    errors = [found.relative_error for _, pairs in ways for _, found in pairs if found is not None]
    figure.update_yaxes(title="relative error (log)", gridcolor=GRID, **_log_axis([*errors, whole]))
    return figure


def _untried(recovered: Recovered) -> str:
    """Say which parts have no bar, so that nobody takes them for parts without an error."""
    missing = [t.chunk.index + 1 for t in recovered.tried if not (t.only_fast or t.only_accurate)]
    if not missing:
        return ""
    which = f"part{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    return f" · {which} not tried in the budget"


def _log_axis(errors: list[float]) -> dict[str, Any]:
    """Errors span many powers of ten; below 1e-6 there is nothing to see, and no bar."""
    seen = [error for error in errors if error >= _LEAST]
    if not seen:
        return {"rangemode": "tozero"}
    low, high = math.floor(math.log10(min(seen)) - 0.3), math.log10(max(seen)) + 0.15
    return {"type": "log", "range": [low, high], "dtick": 1, "exponentformat": "power"}


def _home(affinity: Affinity, tried: Tried) -> str:
    devices = [affinity[op] for op in tried.chunk.ops]
    return max(dict.fromkeys(devices), key=devices.count)


def _hover(tried: Tried, found: Evaluation, device: str) -> str:
    chunk = tried.chunk
    lines = [
        f"<b>part {chunk.index + 1}, {len(chunk.ops)} ops, alone on {plain(device, 30)}</b>",
        f"{plain(chunk.ops[0], 60)} … {plain(chunk.ops[-1], 60)}",
        f"relative error {found.relative_error:.3g}, accuracy {found.accuracy:.1%}",
        f"{time_text(chunk.accurate_us)} on the accurate device"
        + (f", {time_text(chunk.fast_us)} on the fast one" if chunk.fast_us >= 0 else ""),
    ]
    return "<br>".join(lines)
