"""Figures of accuracy: the front with latency and size, losses by part of a model."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hetero_lab.accuracy.recover import ModelPart, Recovered, fast_to_slow
from hetero_lab.errors import ArgumentError
from hetero_lab.results.evaluation import Evaluation
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.tables import bytes_text
from hetero_lab.views.result_views import Contents
from hetero_lab.views.theme import (
    BOUNDARY,
    CLEAR,
    GRID,
    LINE,
    LOG_AXIS,
    SPARE_COLOURS,
    ThemedFigure,
    device_styles,
    error_bars,
    finish,
    interval_of,
    latency_text,
    plain,
    shade,
    time_text,
)

_LEAST_ERROR = 1e-6  # below it f32 itself is not exact


def sensitivity(recovered: Recovered) -> go.Figure:
    """Draw the output error with each part alone on either device, in topological order.

    A high bar on the fast device means that the part alone causes an error. A low bar on the
    accurate device means that moving that part alone there repairs the model. The dotted line is
    the error of the whole model on the fast device; shaded parts are chosen for the accurate one.
    """
    fast, accurate = recovered.fast, recovered.accurate
    styles = device_styles([fast, accurate], dict(recovered.sweep.environment.emulated))
    whole = float(recovered.sensitivity["error_all_fast"].iloc[0])
    errors = [whole]
    figure = ThemedFigure()
    for device, alone in ((fast, "only_fast"), (accurate, "only_accurate")):
        every = ((part, getattr(part, alone)) for part in recovered.tried)
        bars = {p.index + 1: (p, answers) for p, answers in every if answers is not None}
        y = [answers.relative_error for _, answers in bars.values()]
        errors += y
        style = styles[device]
        figure.add_bar(
            x=[*bars],
            y=y,
            name=f"alone on {style.label}",
            marker={"color": style.colour, "pattern": {"shape": style.pattern}},
            hovertext=[_part_hover(*each, device) for each in bars.values()],
        )
    ends = [0.4, len(recovered.tried) + 0.6]
    figure.add_scatter(
        x=ends,
        y=[whole, whole],
        mode="lines",
        name=f"all of it on {plain(fast, 30)}",
        line={"color": LINE, "width": 1.5, "dash": "dot"},
    )
    for part in recovered.tried:
        devices = Counter(recovered.affinity[op] for op in part.ops)
        if devices.most_common(1)[0][0] == accurate:
            shade(figure, part.index + 1)
    return finish(
        figure,
        "Where the precision is lost",
        "relative error of the outputs against f32, one part alone on a device and the rest "
        f"on the other · shaded: chosen for {plain(accurate, 30)}" + _untried(recovered),
        440,
        (70, 30, 110, 60),
        x={"title": "part of the model, in topological order", "dtick": 1, "range": ends},
        y={"title": "relative error (log)", "gridcolor": GRID, **_log_axis(errors)},
        bargap=0.2,
        barmode="group",
    )


def _untried(recovered: Recovered) -> str:
    """Name the parts that have no bar, since they are not parts without an error."""
    missing = [p.index + 1 for p in recovered.tried if not (p.only_fast or p.only_accurate)]
    which = f"{'parts' if len(missing) > 1 else 'part'} {', '.join(map(str, missing))}"
    return f" · {which} not tried in the budget" if missing else ""


def _log_axis(errors: list[float]) -> dict[str, Any]:
    """Errors span many powers of ten; below 1e-6 there is nothing to see, and no bar."""
    visible = [error for error in errors if error >= _LEAST_ERROR]
    if not visible:
        return {"rangemode": "tozero"}
    low, high = math.floor(math.log10(min(visible)) - 0.3), math.log10(max(visible)) + 0.15
    return {**LOG_AXIS, "range": [low, high]}


def _part_hover(part: ModelPart, evaluation: Evaluation, device: str) -> str:
    beside = f", {time_text(part.fast_us)} on the fast one" if part.fast_us >= 0 else ""
    return (
        f"<b>part {part.index + 1}, {len(part.ops)} ops, alone on {plain(device, 30)}</b><br>"
        f"{plain(part.ops[0], 60)} … {plain(part.ops[-1], 60)}<br>"
        f"relative error {evaluation.relative_error:.3g}, accuracy {evaluation.accuracy:.1%}<br>"
        f"{time_text(part.accurate_us)} on the accurate device{beside}"
    )


_COLOUR, _CHOSEN = "#0072B2", "#D55E00"  # no device has a point for itself
_SMALLEST, _LARGEST = 8.0, 18.0  # diameters of markers
_MOST_SIZES = 6  # more different sizes than this have one colour


def front_points(result: Recovered | Sweep) -> list[dict[Any, Any]]:
    """Return the rows of the summary that have a latency and an accuracy, fast to slow.

    ``is_on_front`` says of each whether no other one is as good in latency, accuracy and bytes of
    weights and better in one of them. Raises ArgumentError if there is no such row.
    """
    summary = result.summary
    frame = fast_to_slow(summary) if "accuracy" in summary else summary[:0]
    if not len(frame):
        raise ArgumentError(
            "No placement here has both a latency and an accuracy. Give the sweep labelled data: "
            "hetero_lab.sweep(..., data=hetero_lab.dataset('digits'))."
        )
    costs = frame[["median_us", "accuracy", "weight_bytes"]].to_numpy(float) * (1.0, -1.0, 1.0)
    beaten = [bool(((costs <= row).all(1) & (costs < row).any(1)).any()) for row in costs]
    return frame.assign(is_on_front=~np.array(beaten)).to_dict("records")


def accuracy_front(result: Recovered | Sweep) -> go.Figure:
    """Draw one point per placement: latency and accuracy with intervals, area and colour its size.

    Filled points are on the front of latency, accuracy and size; a hollow one is beaten by
    another point. The line is the front of latency and accuracy alone.

    Raises
    ------
    ArgumentError
        A sweep that was given no data.
    """
    points = front_points(result)
    figure = ThemedFigure()
    steps = [p for p in points if p["is_a_step"]]
    figure.add_scatter(
        x=[p["median_us"] for p in steps],
        y=[p["accuracy"] for p in steps],
        mode="lines",
        name="front of latency and accuracy",
        line={"color": LINE, "width": 2, "shape": "hv"},
        showlegend=len(steps) > 1,
    )
    sizes = sorted({p["weight_bytes"] for p in points}, reverse=True)
    largest = sizes[0] or 1.0
    answer = [p for p in points if p.get("chosen")]
    others = [p for p in points if not p.get("chosen")]
    groups = [("placement", _COLOUR, others)]
    if len(sizes) <= _MOST_SIZES:
        spare = [colour for colour in SPARE_COLOURS if colour != _CHOSEN]
        groups = [
            (f"weights {bytes_text(int(n))}", colour, [p for p in others if p["weight_bytes"] == n])
            for n, colour in zip(sizes, (_COLOUR, *spare), strict=False)
        ]
    for name, colour, members in [*groups, ("chosen", _CHOSEN, answer)]:
        if members:
            figure.add_scatter(**_markers(members, name, largest, colour))
    return finish(
        figure,
        "Latency, accuracy and size",
        "95 % intervals · area of a marker: its weights · hollow: another placement is at least as "
        "fast, accurate and small, and better in one of them",
        480,
        (80, 40, 100, 60),
        x={"title": "latency (µs)", "gridcolor": GRID, "zeroline": False},
        y={
            "title": {"text": "accuracy", "standoff": 12},
            "gridcolor": GRID,
            "automargin": True,
            "zeroline": False,
            "tickformat": ".1%",
        },
        showlegend=True,
    )


def _markers(points: list[dict[Any, Any]], name: str, largest: float, colour: str) -> dict:
    style = {"thickness": 0.8, "width": 3, "color": colour}
    diameter = _LARGEST - _SMALLEST
    is_on_front = [p["is_on_front"] for p in points]
    return {
        "x": [p["median_us"] for p in points],
        "y": [p["accuracy"] for p in points],
        "error_x": error_bars([interval_of(p) for p in points], **style),
        "error_y": error_bars([interval_of(p, "accuracy") for p in points], **style),
        "mode": "markers",
        "name": name,
        "marker": {
            "size": [_SMALLEST + diameter * (p["weight_bytes"] / largest) ** 0.5 for p in points],
            "color": [colour if on_front else CLEAR for on_front in is_on_front],
            "opacity": 0.85,
            "symbol": "diamond" if colour == _CHOSEN else "circle",
            "line": {
                "width": [1.0 if on_front else 1.8 for on_front in is_on_front],
                "color": [BOUNDARY if on_front else colour for on_front in is_on_front],
            },
        },
        "hovertext": [_front_hover(p) for p in points],
    }


def _front_hover(point: dict[Any, Any]) -> str:
    accuracy, low, high = interval_of(point, "accuracy")
    return (
        f"<b>{plain(point['configuration'], 200)}</b><br>{latency_text(interval_of(point))}<br>"
        f"{accuracy:.1%} right [{low:.1%}, {high:.1%}]<br>"
        f"weights {bytes_text(int(point['weight_bytes']))}"
    )


def contents_of_recovered(recovered: Recovered) -> Contents:
    """Return what a page shows of a recovered accuracy."""
    has_parts = any(part.only_fast is not None for part in recovered.tried)
    return Contents({accuracy_front: recovered, sensitivity: recovered if has_parts else None})
