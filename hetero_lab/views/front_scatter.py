"""Latency against accuracy, with the front of what no other placement beats in both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.recovered import Recovered
from hetero_lab.experiments.sweep_result import Sweep
from hetero_lab.views.arguments import expect
from hetero_lab.views.colours import BOUNDARY, GRID, LINE
from hetero_lab.views.text import bytes_text, plain, time_text
from hetero_lab.views.theme import base_layout

_COLOUR, _CHOSEN = "#0072B2", "#D55E00"  # no device has a point for itself
_LEAST, _MOST = 8.0, 18.0  # diameters of markers


@dataclass(frozen=True)
class FrontPoint:
    """One placement: latency in µs and accuracy from 0 to 1, with 95 % intervals."""

    label: str
    latency_us: tuple[float, float, float]
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
    best_before = frame["accuracy"].cummax().shift(fill_value=-1.0)
    return tuple(
        _point(row, bool(row["accuracy"] > before))
        for row, before in zip(frame.to_dict("records"), best_before, strict=True)
    )


def accuracy_front(result: Recovered | Sweep) -> go.Figure:
    """Draw a point a placement: latency and accuracy with intervals, the area its weights.

    The line is the front: no other placement is both faster and more often right.

    Raises
    ------
    ArgumentError
        A sweep that was given no data.
    """
    if not isinstance(result, Recovered):
        expect(result, Sweep)
    points = front_points(result)
    front = [p for p in points if p.is_on_front]
    figure = go.Figure()
    figure.add_scatter(
        x=[p.latency_us[0] for p in front], y=[p.accuracy[0] for p in front],
        mode="lines", name="front", hoverinfo="skip",
        line={"color": LINE, "width": 2, "shape": "hv"},
    )  # fmt: skip
    largest = max(p.weight_bytes for p in points) or 1.0
    for is_chosen, name in ((False, "placement"), (True, "chosen")):
        mine = [p for p in points if p.is_chosen == is_chosen]
        if mine:
            figure.add_scatter(**_markers(mine, name, largest, is_chosen))
    figure.update_layout(
        **base_layout(
            "Latency and accuracy",
            f"95 % intervals · weights {bytes_text(int(largest))} in the largest marker",
        ),
        height=480,
        margin={"l": 80, "r": 40, "t": 100, "b": 60},
    )
    figure.update_xaxes(title="median latency (µs)", gridcolor=GRID, zeroline=False)
    figure.update_yaxes(title="accuracy", gridcolor=GRID, zeroline=False, tickformat=".1%")
    return figure


def _markers(points: list[FrontPoint], name: str, largest: float, is_chosen: bool) -> dict:
    colour = _CHOSEN if is_chosen else _COLOUR

    def error(triples: list[tuple[float, float, float]]) -> dict:
        return {
            "type": "data", "symmetric": False, "thickness": 1.2, "color": colour,
            "array": [high - middle for middle, _, high in triples],
            "arrayminus": [middle - low for middle, low, _ in triples],
        }  # fmt: skip

    sizes = [_LEAST + (_MOST - _LEAST) * (p.weight_bytes / largest) ** 0.5 for p in points]
    return {
        "x": [p.latency_us[0] for p in points],
        "y": [p.accuracy[0] for p in points],
        "error_x": error([p.latency_us for p in points]),
        "error_y": error([p.accuracy for p in points]),
        "mode": "markers",
        "name": name,
        "marker": {
            "size": sizes,
            "color": colour,
            "opacity": 0.75,
            "symbol": "diamond" if is_chosen else "circle",
            "line": {"width": 1, "color": BOUNDARY},
        },
        "hovertext": [_hover(p) for p in points],
        "hoverinfo": "text",
    }


def _hover(point: FrontPoint) -> str:
    latency, accuracy = point.latency_us, point.accuracy
    return (
        f"<b>{plain(point.label, 200)}</b><br>{time_text(latency[0])} "
        f"[{time_text(latency[1])}, {time_text(latency[2])}]<br>"
        f"{accuracy[0]:.1%} right [{accuracy[1]:.1%}, {accuracy[2]:.1%}]<br>"
        f"weights {bytes_text(int(point.weight_bytes))}"
    )


def _point(row: Mapping[Any, Any], is_on_front: bool) -> FrontPoint:
    def triple(*names: str) -> tuple[float, float, float]:
        middle, low, high = (float(row[name]) for name in names)
        return middle, low, high

    return FrontPoint(
        label=str(row["label"]),
        latency_us=triple("median_us", "ci95_low_us", "ci95_high_us"),
        accuracy=triple("accuracy", "accuracy_ci95_low", "accuracy_ci95_high"),
        weight_bytes=float(row["weight_bytes"]),
        is_chosen=bool(row.get("chosen", False)),
        is_on_front=is_on_front,
    )
