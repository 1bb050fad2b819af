"""The timeline of a profile's subgraphs, reconstructed from counters."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.profiling import Profile
from hetero_lab.views.colours import GRID, device_styles
from hetero_lab.views.text import plain
from hetero_lab.views.theme import base_layout


@dataclass(frozen=True)
class Bar:
    """One subgraph on its device's lane; times in µs."""

    subgraph: int
    device: str
    start_us: float
    duration_us: float
    n_ops: int


def bars(profile: Profile) -> list[Bar]:
    """Return the subgraphs one after another, as HETERO runs them.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    if not profile.counters:
        raise MeasurementError(
            "A timeline is made of counters, and this profile has none. Profile with counters=True."
        )
    found, at = [], 0.0
    for subgraph in profile.partition.subgraphs:
        took = sum(c.real_time_us for c in profile.counters if c.subgraph == subgraph.index)
        found.append(Bar(subgraph.index, subgraph.device, at, took, len(subgraph.ops)))
        at += took
    return found


def timeline(profile: Profile) -> go.Figure:
    """Draw the subgraphs over time, a lane a device.

    Counters have no start times: the bars are put one after another in execution order.
    """
    found = bars(profile)
    devices = list(dict.fromkeys(bar.device for bar in found))
    styles = device_styles(devices, dict(profile.environment.emulated))
    figure = go.Figure()
    for device in devices:
        mine = [bar for bar in found if bar.device == device]
        style = styles[device]
        figure.add_bar(
            orientation="h",
            y=[devices.index(device)] * len(mine),
            base=[bar.start_us for bar in mine],
            x=[bar.duration_us for bar in mine],
            name=style.label,
            marker={
                "color": style.colour,
                "pattern": {"shape": style.pattern, "solidity": 0.2, "fillmode": "overlay"},
                "line": {"width": 1, "color": "rgba(255, 255, 255, 0.8)"},
            },
            text=[str(bar.subgraph) for bar in mine],
            textposition="inside",
            insidetextanchor="middle",
            hovertext=[
                f"<b>subgraph {bar.subgraph}</b> · {style.label}<br>{bar.duration_us:,.1f} µs, "
                f"{bar.n_ops} ops"
                for bar in mine
            ],
            hoverinfo="text",
        )
    figure.update_layout(
        **base_layout(
            f"Timeline of {plain(profile.label, 60)}",
            "reconstructed from counters: order is real, start times are not measured",
        ),
        barmode="overlay",
        height=170 + 60 * len(devices),
        margin={"l": 20, "r": 30, "t": 100, "b": 50},
        bargap=0.35,
    )
    figure.update_xaxes(title="time by counters (µs)", gridcolor=GRID, rangemode="tozero")
    figure.update_yaxes(
        tickvals=list(range(len(devices))), ticktext=[styles[d].label for d in devices],
        autorange="reversed", automargin=True, showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure
