"""Where the latency goes: ops, boundary reorders, and the rest that counters do not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.experiments.profile.profile import Profile
from hetero_lab.experiments.profile.tables import time_parts
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.views.colours import GRID, TEXT
from hetero_lab.views.text import NOT_IN_TURN, plain
from hetero_lab.views.theme import base_layout

# Not colours that stand for devices.
_PARTS = (
    ("ops", "ops", "#5b6472"),
    ("reorders", "reorders (layout, precision)", "#b0413e"),
    ("rest", "rest (boundaries, runtime)", "#c3c7ce"),
)


@dataclass(frozen=True)
class Split:
    """One latency in parts, in µs; ``exceeds`` where the counters add up to more than it."""

    label: str
    latency_us: float
    ops_us: float
    reorders_us: float
    rest_us: float
    exceeds: bool


def splits(results: Sweep | Profile | Sequence[Profile]) -> list[Split]:
    """Return the parts of each profile that has counters."""
    if isinstance(results, Sweep):
        named = [
            (results.name_of(row), row.profile, row.latency.us)
            for row in results.rows
            if row.profile and row.latency and not row.same_as
        ]
    else:
        profiles = [results] if isinstance(results, Profile) else list(results)
        named = [(profile.label, profile, profile.latency.median_us) for profile in profiles]
    found = []
    for label, profile, latency_us in named:
        if profile.counters:
            parts = time_parts(profile.counters, latency_us)
            exceeds = parts.pop("counters_exceed_latency")
            found.append(Split(label, latency_us, **parts, exceeds=exceeds))
    return found


def _subtitle(results: Sweep | Profile | Sequence[Profile]) -> str:
    apart = not isinstance(results, Sweep | Profile) and len(results) > 1
    return "counters of a compile of their own" + (f" · {NOT_IN_TURN}" if apart else "")


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
                f"{split.latency_us:,.1f} µs"
                + ("<br>the counters add up to more than the latency" if split.exceeds else "")
                for split, value in zip(found, values, strict=True)
            ],
            hoverinfo="text",
        )
    figure.add_scatter(
        x=[split.latency_us for split in found],
        y=places,
        mode="markers",
        name="wall-clock latency",
        marker={"symbol": "line-ns", "size": 22, "line": {"width": 3, "color": TEXT}},
        hoverinfo="skip",
    )
    figure.update_layout(
        **base_layout("Where the latency goes", _subtitle(results)),
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
