"""Time by subgraph: its ops and the reorders at its boundaries."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.profiling import Profile
from hetero_lab.views.colours import GRID, device_styles
from hetero_lab.views.text import plain
from hetero_lab.views.theme import base_layout


@dataclass(frozen=True)
class SubgraphTime:
    """The counters of one subgraph, in µs."""

    subgraph: int
    device: str
    n_ops: int
    ops_us: float
    reorders_us: float


def subgraph_times(profile: Profile) -> list[SubgraphTime]:
    """Return the times of each subgraph in execution order.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    if not profile.counters:
        raise MeasurementError("This profile has no counters. Profile with counters=True.")
    rows = profile.tables["subgraphs"]
    return [
        SubgraphTime(r.subgraph, r.device, r.n_ops, float(r.ops_us), float(r.reorders_us))
        for r in rows.itertuples()
    ]


def time_by_subgraph(profile: Profile) -> go.Figure:
    """Draw a bar a subgraph: its ops in the device's colour, its reorders faded on top."""
    found = subgraph_times(profile)
    devices = list(dict.fromkeys(row.device for row in found))
    styles = device_styles(devices, dict(profile.environment.emulated))
    figure = go.Figure()
    for device in devices:
        mine = [row for row in found if row.device == device]
        style = styles[device]
        for part, colour in (("ops", style.colour), ("reorders", style.faded(0.4))):
            figure.add_bar(
                x=[row.subgraph for row in mine],
                y=[getattr(row, f"{part}_us") for row in mine],
                name=f"{style.label}: {part}",
                marker={
                    "color": colour,
                    "pattern": {"shape": style.pattern, "solidity": 0.2, "fillmode": "overlay"},
                },
                hovertext=[
                    f"<b>subgraph {row.subgraph}</b> · {style.label}<br>"
                    f"{part} {getattr(row, f'{part}_us'):,.1f} µs, {row.n_ops} ops"
                    for row in mine
                ],
                hoverinfo="text",
            )
    figure.update_layout(
        **base_layout(f"Time by subgraph of {plain(profile.label, 60)}", "from counters"),
        barmode="stack",
        height=400,
        margin={"l": 70, "r": 30, "t": 100, "b": 60},
        bargap=0.3,
    )
    figure.update_xaxes(
        title="subgraph, in execution order", tickmode="linear" if len(found) <= 40 else "auto",
        showgrid=False, zeroline=False,
    )  # fmt: skip
    figure.update_yaxes(title="time by counters (µs)", gridcolor=GRID, rangemode="tozero")
    return figure
