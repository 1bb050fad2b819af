"""Latency, accuracy and size, with the front of what no other placement beats in all three."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.search.recovered import Recovered
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.statistics import Estimate
from hetero_lab.tables import bytes_text
from hetero_lab.views.arguments import expect
from hetero_lab.views.colours import BOUNDARY, CLEAR, GRID, LINE, spare_colours
from hetero_lab.views.intervals import error_bars, latency_bars, latency_text
from hetero_lab.views.text import plain
from hetero_lab.views.theme import base_layout

_COLOUR, _CHOSEN = "#0072B2", "#D55E00"  # no device has a point for itself
_LEAST, _MOST = 8.0, 18.0  # diameters of markers
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
    """Return one point a measured placement that has an accuracy, fast to slow.

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
        _point(row, not any(_beats(other, mine) for other in costs))
        for row, mine in zip(frame.to_dict("records"), costs, strict=True)
    )


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def accuracy_front(result: Recovered | Sweep) -> go.Figure:
    """Draw a point a placement: latency and accuracy with intervals, area and colour its size.

    Filled points are on the front of latency, accuracy and size; a hollow one is beaten by
    another point. The line is the front of latency and accuracy alone.

    Raises
    ------
    ArgumentError
        A sweep that was given no data.
    """
    if not isinstance(result, Recovered):
        expect(result, Sweep)
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
            mine = [p for p in others if p.weight_bytes == n_bytes]
            if mine:
                name = f"weights {bytes_text(int(n_bytes))}"
                figure.add_scatter(**_markers(mine, name, largest, colour))
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
    sizes = [_LEAST + (_MOST - _LEAST) * (p.weight_bytes / largest) ** 0.5 for p in points]
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
        "hovertext": [_hover(p) for p in points],
        "hoverinfo": "text",
    }


def _hover(point: FrontPoint) -> str:
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
