"""Figures of accuracy: the front with latency and size, losses by part, errors along a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.accuracy.evaluate import Evaluation
from hetero_lab.experiments.faults.wrong import OpError, Wrong
from hetero_lab.experiments.recover import Recovered
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.sensitivity import Tried
from hetero_lab.placement.affinity import Affinity
from hetero_lab.statistics import Estimate
from hetero_lab.tables import bytes_text
from hetero_lab.views.text import plain, time_text
from hetero_lab.views.theme import (
    BOUNDARY,
    CLEAR,
    GRID,
    LINE,
    base_layout,
    device_styles,
    error_bars,
    latency_bars,
    latency_text,
    spare_colours,
)

_LEAST_ERROR = 1e-6


def sensitivity(recovered: Recovered) -> go.Figure:
    """Draw the output error with each part alone on either device, in topological order.

    A high bar on the fast device: the part alone causes an error. A low bar on the accurate
    device: moving that part alone there repairs the model. The dotted line is the error of the
    whole model on the fast device; shaded parts are chosen for the accurate one.
    """
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
            hovertext=[_part_hover(tried, found, device) for tried, found in drawn],
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
    """Name the parts that have no bar, since they are not parts without an error."""
    missing = [t.chunk.index + 1 for t in recovered.tried if not (t.only_fast or t.only_accurate)]
    if not missing:
        return ""
    which = f"part{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    return f" · {which} not tried in the budget"


def _log_axis(errors: list[float]) -> dict[str, Any]:
    """Errors span many powers of ten; below 1e-6 there is nothing to see, and no bar."""
    seen = [error for error in errors if error >= _LEAST_ERROR]
    if not seen:
        return {"rangemode": "tozero"}
    low, high = math.floor(math.log10(min(seen)) - 0.3), math.log10(max(seen)) + 0.15
    return {"type": "log", "range": [low, high], "dtick": 1, "exponentformat": "power"}


def _home(affinity: Affinity, tried: Tried) -> str:
    devices = [affinity[op] for op in tried.chunk.ops]
    return max(dict.fromkeys(devices), key=devices.count)


def _part_hover(tried: Tried, found: Evaluation, device: str) -> str:
    chunk = tried.chunk
    lines = [
        f"<b>part {chunk.index + 1}, {len(chunk.ops)} ops, alone on {plain(device, 30)}</b>",
        f"{plain(chunk.ops[0], 60)} … {plain(chunk.ops[-1], 60)}",
        f"relative error {found.relative_error:.3g}, accuracy {found.accuracy:.1%}",
        f"{time_text(chunk.accurate_us)} on the accurate device"
        + (f", {time_text(chunk.fast_us)} on the fast one" if chunk.fast_us >= 0 else ""),
    ]
    return "<br>".join(lines)


_COLOUR, _CHOSEN = "#0072B2", "#D55E00"  # no device has a point for itself
_SMALLEST, _LARGEST = 8.0, 18.0  # diameters of markers
_MOST_SIZES = 6  # more different sizes than this have one colour


@dataclass(frozen=True)
class FrontPoint:
    """One placement: latency and accuracy from 0 to 1, with 95 % intervals.

    It is on the front if no other one is as good in latency, accuracy and bytes of weights and
    better in one of them.
    """

    label: str
    latency: Estimate
    accuracy: tuple[float, float, float]
    weight_bytes: float
    is_chosen: bool
    is_on_front: bool


def front_points(result: Recovered | Sweep) -> tuple[FrontPoint, ...]:
    """Return one point per measured placement that has an accuracy, fast to slow.

    Raises
    ------
    ArgumentError
        There is none.
    """
    frame = result.summary
    if "accuracy" in frame:
        frame = frame.dropna(subset=["median_us", "accuracy"])
    if "accuracy" not in frame or not len(frame):
        raise ArgumentError(
            "No placement here has both a latency and an accuracy. Give the sweep labelled data: "
            "hetero_lab.sweep(..., data=hetero_lab.dataset('digits'))."
        )
    frame = frame.sort_values(
        ["median_us", "accuracy"], ascending=[True, False], kind="stable"
    ).reset_index(drop=True)
    costs = [
        (row["median_us"], -row["accuracy"], row["weight_bytes"])
        for row in frame.to_dict("records")
    ]
    return tuple(
        _point(row, not any(_beats(other, own) for other in costs))
        for row, own in zip(frame.to_dict("records"), costs, strict=True)
    )


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


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
    figure = go.Figure()
    steps = [
        p
        for i, p in enumerate(points)
        if all(p.accuracy[0] > before.accuracy[0] for before in points[:i])
    ]
    figure.add_scatter(
        x=[p.latency.us for p in steps], y=[p.accuracy[0] for p in steps],
        mode="lines", name="front of latency and accuracy", hoverinfo="skip",
        line={"color": LINE, "width": 2, "shape": "hv"}, showlegend=len(steps) > 1,
    )  # fmt: skip
    sizes = sorted({p.weight_bytes for p in points}, reverse=True)
    largest = sizes[0] or 1.0
    others = [p for p in points if not p.is_chosen]
    if len(sizes) > _MOST_SIZES:
        figure.add_scatter(**_markers(others, "placement", largest, _COLOUR))
    else:
        spare = [colour for colour in spare_colours() if colour != _CHOSEN]
        for n_bytes, colour in zip(sizes, (_COLOUR, *spare), strict=False):
            own = [p for p in others if p.weight_bytes == n_bytes]
            if own:
                name = f"weights {bytes_text(int(n_bytes))}"
                figure.add_scatter(**_markers(own, name, largest, colour))
    chosen = [p for p in points if p.is_chosen]
    if chosen:
        figure.add_scatter(**_markers(chosen, "chosen", largest, _CHOSEN))
    figure.update_layout(
        **base_layout(
            "Latency, accuracy and size",
            "95 % intervals · area of a marker: its weights · hollow: another placement is at "
            "least as fast, as right and as small, and better in one of them",
        ),
        height=480,
        showlegend=True,
        margin={"l": 80, "r": 40, "t": 100, "b": 60},
    )
    figure.update_xaxes(title="latency (µs)", gridcolor=GRID, zeroline=False)
    figure.update_yaxes(
        title="accuracy",
        gridcolor=GRID,
        title_standoff=12,
        automargin=True,
        zeroline=False,
        tickformat=".1%",
    )
    return figure


def _markers(points: list[FrontPoint], name: str, largest: float, colour: str) -> dict:
    style = {"thickness": 0.8, "width": 3, "color": colour}
    sizes = [_SMALLEST + (_LARGEST - _SMALLEST) * (p.weight_bytes / largest) ** 0.5 for p in points]
    return {
        "x": [p.latency.us for p in points],
        "y": [p.accuracy[0] for p in points],
        "error_x": latency_bars([p.latency for p in points], **style),
        "error_y": error_bars([p.accuracy for p in points], **style),
        "mode": "markers",
        "name": name,
        "marker": {
            "size": sizes,
            "color": [colour if p.is_on_front else CLEAR for p in points],
            "opacity": 0.85,
            "symbol": "diamond" if colour == _CHOSEN else "circle",
            "line": {
                "width": [1.0 if p.is_on_front else 1.8 for p in points],
                "color": [BOUNDARY if p.is_on_front else colour for p in points],
            },
        },
        "hovertext": [_front_hover(p) for p in points],
        "hoverinfo": "text",
    }


def _front_hover(point: FrontPoint) -> str:
    accuracy = point.accuracy
    return (
        f"<b>{plain(point.label, 200)}</b><br>{latency_text(point.latency)}<br>"
        f"{accuracy[0]:.1%} right [{accuracy[1]:.1%}, {accuracy[2]:.1%}]<br>"
        f"weights {bytes_text(int(point.weight_bytes))}"
    )


def _point(row: Mapping[Any, Any], is_on_front: bool) -> FrontPoint:
    def triple(*names: str) -> tuple[float, float, float]:
        middle, low, high = (float(row[name]) for name in names)
        return middle, low, high

    return FrontPoint(
        label=str(row["label"]),
        latency=Estimate(*triple("median_us", "ci95_low_us", "ci95_high_us")),
        accuracy=triple("accuracy", "accuracy_ci95_low", "accuracy_ci95_high"),
        weight_bytes=float(row["weight_bytes"]),
        is_chosen=bool(row.get("chosen", False)),
        is_on_front=is_on_front,
    )


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
