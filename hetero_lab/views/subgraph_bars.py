"""Time by subgraph: its ops and the reorders at its boundaries."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.profile.profile import Profile
from hetero_lab.views.arguments import expect
from hetero_lab.views.colours import GRID, device_styles
from hetero_lab.views.text import plain, time_text
from hetero_lab.views.theme import base_layout

_MOST_ROWS = 40  # more subgraphs than this stand side by side, without names
_ROW_PX = 24
_PARTS = (("ops_us", "ops", 1.0), ("reorders_us", "reorders", 0.4))


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
    found = []
    for subgraph in profile.partition.subgraphs:
        mine = [c for c in profile.counters if c.subgraph == subgraph.index]
        found.append(
            SubgraphTime(
                subgraph.index,
                subgraph.device,
                len(subgraph.ops),
                float(sum(c.real_time_us for c in mine if c.kind in ("op", "other"))),
                float(sum(c.real_time_us for c in mine if c.kind == "reorder")),
            )
        )
    return found


def time_by_subgraph(profile: Profile) -> go.Figure:
    """Draw a bar a subgraph: its ops in the device's colour, then its reorders, faded.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    expect(profile, Profile)
    found = subgraph_times(profile)
    styles = device_styles([row.device for row in found], dict(profile.environment.emulated))
    rows = len(found) <= _MOST_ROWS
    figure = go.Figure()
    for device, style in styles.items():
        mine = [row for row in found if row.device == device]
        for key, part, opacity in _PARTS:
            places, values = [row.subgraph for row in mine], [getattr(row, key) for row in mine]
            if not any(values) and part == "reorders":
                continue
            figure.add_bar(
                **({"y": places, "x": values} if rows else {"x": places, "y": values}),
                orientation="h" if rows else "v",
                name=f"{style.label}: {part}",
                marker={
                    "color": style.faded(opacity),
                    "line": {"width": 0},
                    "pattern": {
                        "shape": style.pattern, "solidity": 0.2, "fillmode": "overlay",
                        "fgcolor": "#ffffff", "fgopacity": 0.5,
                    },
                },
                hovertext=[
                    f"<b>subgraph {row.subgraph}</b> on {style.label}<br>"
                    f"{part} take {time_text(value)}<br>{row.n_ops} op{'s' * (row.n_ops != 1)}"
                    for row, value in zip(mine, values, strict=True)
                ],
                hoverinfo="text",
            )  # fmt: skip
    figure.update_layout(
        **base_layout(
            f"Time by subgraph of {plain(profile.label, 60)}",
            "by the counters of a compile of their own · hatched: emulated",
        ),
        barmode="stack",
        bargap=0.25,
        height=160 + _ROW_PX * len(found) if rows else 420,
        margin={"l": 20, "r": 20, "t": 100, "b": 50},
        showlegend=True,
        legend_traceorder="normal",
    )
    along = {"title": "time (µs)", "gridcolor": GRID, "rangemode": "tozero", "zeroline": False}
    across = {"showgrid": False, "zeroline": False, "automargin": True}
    if rows:
        figure.update_xaxes(**along)
        figure.update_yaxes(
            **across, tickvals=[row.subgraph for row in found],
            ticktext=[f"{row.subgraph} · {plain(row.device, 20)}" for row in found],
            range=[len(found) - 0.4, -0.6], ticklabelstandoff=6,
        )  # fmt: skip
    else:
        figure.update_yaxes(**along, automargin=True)
        figure.update_xaxes(**across, title="subgraph, in execution order")
    return figure
