"""Where the latency goes: ops, boundary reorders, and the rest that counters do not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.experiments.profile.profile import Profile
from hetero_lab.experiments.profile.tables import summary_row
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.experiments.sweep.tables import row_name
from hetero_lab.views.colours import GRID, TEXT
from hetero_lab.views.text import plain
from hetero_lab.views.theme import base_layout

# Not colours that stand for devices.
_PARTS = (
    ("ops", "ops", "#5b6472"),
    ("reorders", "reorders (layout, precision)", "#b0413e"),
    ("rest", "rest (hand-over, runtime)", "#c3c7ce"),
)


@dataclass(frozen=True)
class Split:
    """One latency in parts, in µs; ``exceeds`` where the counters add up to more than it."""

    label: str
    median_us: float
    ops_us: float
    reorders_us: float
    rest_us: float
    exceeds: bool


def splits(results: Sweep | Profile | Sequence[Profile]) -> list[Split]:
    """Return the parts of each profile that has counters."""
    if isinstance(results, Sweep):
        named = [
            (row_name(results, row), row.profile)
            for row in results.rows
            if row.profile and not row.same_as
        ]
    else:
        profiles = [results] if isinstance(results, Profile) else list(results)
        named = [(profile.label, profile) for profile in profiles]
    found = []
    for label, profile in named:
        if profile.counters:
            row = summary_row(profile)
            parts = (row["ops_us"], row["reorders_us"], row["rest_us"])
            found.append(Split(label, row["median_us"], *parts, row["counters_exceed_latency"]))
    return found


def where_time_goes(results: Sweep | Profile | Sequence[Profile]) -> go.Figure:
    """Draw each latency as a stacked bar of ops, reorders and rest.

    Counters come from a compile of their own. Where they add up to more than the wall-clock
    latency (kernels overlap, or noise), the bar is longer than the latency, which is marked,
    and there is no rest.
    """
    found = splits(results)
    places = list(range(len(found)))
    figure = go.Figure()
    for key, name, colour in _PARTS:
        values = [getattr(split, f"{key}_us") for split in found]
        figure.add_bar(
            orientation="h",
            y=places,
            x=values,
            name=name,
            marker={"color": colour},
            hovertext=[
                f"<b>{plain(split.label, 200)}</b><br>{name}: {value:,.1f} µs of "
                f"{split.median_us:,.1f} µs"
                + ("<br>the counters add up to more than the latency" if split.exceeds else "")
                for split, value in zip(found, values, strict=True)
            ],
            hoverinfo="text",
        )
    figure.add_scatter(
        x=[split.median_us for split in found],
        y=places,
        mode="markers",
        name="wall-clock latency",
        marker={"symbol": "line-ns", "size": 22, "line": {"width": 3, "color": TEXT}},
        hoverinfo="skip",
    )
    figure.update_layout(
        **base_layout("Where the latency goes", "counters of a compile of their own"),
        barmode="stack",
        height=150 + 36 * max(1, len(found)),
        margin={"l": 20, "r": 30, "t": 100, "b": 50},
        bargap=0.35,
    )
    figure.update_xaxes(title="time (µs)", gridcolor=GRID, rangemode="tozero")
    figure.update_yaxes(
        tickvals=places, ticktext=[plain(split.label, 48) for split in found],
        autorange="reversed", automargin=True, showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure
