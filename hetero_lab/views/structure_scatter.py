"""Placement against latency: how subgraphs, bytes and the share of a device go with speed."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.errors import ArgumentError, names_at_hand, shorten
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.statistics import Estimate
from hetero_lab.terminal import count_of
from hetero_lab.views.arguments import expect
from hetero_lab.views.colours import GRID, device_styles
from hetero_lab.views.intervals import latency_bars, latency_end_us, latency_text
from hetero_lab.views.text import plain
from hetero_lab.views.theme import base_layout


@dataclass(frozen=True)
class Point:
    """One placement: its structure and its latency in µs."""

    label: str
    n_subgraphs: int
    boundary_bytes: int
    shares: tuple[tuple[str, float], ...]
    latency: Estimate

    def share(self, device: str) -> float:
        """Share of the ops that this device has, from 0 to 1."""
        return dict(self.shares).get(device, 0.0)


def points(sweep: Sweep) -> list[Point]:
    """Return one point a measured row."""
    found = []
    for row in sweep.rows:
        if row.profile is None or row.latency is None or row.same_as:
            continue
        counts = row.profile.affinity.counts()
        total = sum(counts.values()) or 1
        found.append(
            Point(
                label=sweep.name_of(row),
                n_subgraphs=row.profile.partition.n_subgraphs,
                boundary_bytes=row.profile.partition.boundary_bytes,
                shares=tuple((device, n / total) for device, n in counts.items()),
                latency=row.latency,
            )
        )
    return found


def placement_latency(sweep: Sweep, x: str = "subgraphs") -> go.Figure:
    """Draw a point a placement: latency over its structure.

    Parameters
    ----------
    sweep
        A Sweep.
    x
        ``"subgraphs"``, ``"boundary bytes"`` or the name of a device (its share of the ops).

    Raises
    ------
    ArgumentError
        Another ``x``.
    """
    expect(sweep, Sweep)
    found = points(sweep)
    devices = list(dict.fromkeys(d for p in found for d, _ in p.shares))
    if x == "subgraphs":
        values, title = [float(p.n_subgraphs) for p in found], "number of subgraphs"
    elif x == "boundary bytes":
        values, title = [float(p.boundary_bytes) for p in found], "boundary tensors (bytes)"
    elif x in devices:
        values, title = [p.share(x) for p in found], f"share of the ops on {plain(x, 30)}"
    else:
        known = ["subgraphs", "boundary bytes", *devices]
        raise ArgumentError(f"x= is one of {names_at_hand(known, 20)}, not {shorten(str(x))}.")
    styles = device_styles(devices, dict(sweep.environment.emulated))
    figure = go.Figure()
    for device in devices:
        # A placement has the colour of the device that does most of it.
        mine = [i for i, p in enumerate(found) if max(p.shares, key=lambda s: s[1])[0] == device]
        figure.add_scatter(
            x=[values[i] for i in mine],
            y=[found[i].latency.us for i in mine],
            mode="markers",
            name=f"mostly {styles[device].label}",
            marker={
                "size": 12,
                "color": styles[device].colour,
                "symbol": "circle-open-dot" if styles[device].emulated else "circle",
                "line": {"width": 2},
            },
            error_y=latency_bars([found[i].latency for i in mine]),
            hovertext=[
                f"<b>{plain(found[i].label, 200)}</b><br>{latency_text(found[i].latency)}<br>"
                f"{count_of(found[i].n_subgraphs, 'subgraph')}, "
                f"{found[i].boundary_bytes:,} boundary bytes<br>"
                + ", ".join(f"{plain(d, 30)} {share:.0%}" for d, share in found[i].shares)
                for i in mine
            ],
            hoverinfo="text",
        )
    figure.update_layout(
        **base_layout("Placement against latency"),
        height=460,
        margin={"l": 70, "r": 30, "t": 80, "b": 60},
    )
    figure.update_xaxes(
        title=title, gridcolor=GRID, zeroline=False,
        tickformat=".0%" if x in devices else None,
    )  # fmt: skip
    figure.update_yaxes(
        title="latency (µs)", gridcolor=GRID, range=[0, latency_end_us([p.latency for p in found])]
    )
    return figure
