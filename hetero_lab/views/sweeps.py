"""Figures of a sweep: the ranking, latency against structure, hosts side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hetero_lab.errors import ArgumentError, names_at_hand, shorten
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.results.sweep.row import Row
from hetero_lab.placement.partition import Partition
from hetero_lab.statistics import Estimate
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import (
    CLEAR,
    GRID,
    LINE,
    TEXT,
    device_styles,
    error_bars,
    finish,
    latency_bars,
    latency_end_us,
    latency_text,
    plain,
    row_axis,
)


@dataclass(frozen=True)
class Measured:
    """One measured placement, as the figures of a sweep show it.

    ``label`` tells hosts apart where the figure does not. ``group`` is the group in the ranking of
    its host, 0 outside a ranking.
    """

    row: Row
    profile: Profile
    latency: Estimate
    label: str
    group: int = 0

    @property
    def host(self) -> str:
        """The host that measured it."""
        return self.profile.environment.host

    @property
    def emulated(self) -> str:
        """The emulated devices in use, separated by commas."""
        return ", ".join(device for device, _ in self.profile.environment.emulated)

    @property
    def partition(self) -> Partition:
        """Its subgraphs and boundaries."""
        return self.profile.partition

    @cached_property
    def shares(self) -> dict[str, float]:
        """Device → its share of the ops, from 0 to 1."""
        counts = self.profile.affinity.counts()
        total = sum(counts.values()) or 1
        return {device: n / total for device, n in counts.items()}


def measured_rows(sweep: Sweep) -> list[Measured]:
    """Return the distinct measured rows, in the order of the sweep."""
    return [
        Measured(row, row.profile, row.latency, row.label)
        for row in sweep.rows
        if row.profile is not None and row.latency is not None and not row.same_as
    ]


def ranked_rows(sweep: Sweep) -> list[Measured]:
    """Return the measured rows from fast to slow, host by host."""
    return [
        Measured(row, row.profile, row.latency, sweep.name_of(row), group)
        for row, group in zip(sweep.ranked.rows, sweep.ranked.groups, strict=True)
        if row.profile is not None and row.latency is not None
    ]


def placement_latency(sweep: Sweep, x: str = "subgraphs") -> go.Figure:
    """Draw one point per placement: latency over its structure.

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
    found = measured_rows(sweep)
    devices = list(dict.fromkeys(device for p in found for device in p.shares))
    if x == "subgraphs":
        values, title = [float(p.partition.n_subgraphs) for p in found], "number of subgraphs"
    elif x == "boundary bytes":
        values, title = (
            [float(p.partition.boundary_bytes) for p in found],
            "boundary tensors (bytes)",
        )
    elif x in devices:
        values, title = [p.shares.get(x, 0.0) for p in found], f"share of the ops on {plain(x, 30)}"
    else:
        known = ["subgraphs", "boundary bytes", *devices]
        raise ArgumentError(f"x= is one of {names_at_hand(known, 20)}, not {shorten(str(x))}.")
    styles = device_styles(devices, dict(sweep.environment.emulated))
    figure = go.Figure()
    for device in devices:
        # A placement has the colour of the device that does most of it.
        own = [
            (value, p)
            for value, p in zip(values, found, strict=True)
            if max(p.shares, key=p.shares.__getitem__) == device
        ]
        style = styles[device]
        figure.add_scatter(
            x=[value for value, _ in own],
            y=[p.latency.us for _, p in own],
            mode="markers",
            name=f"mostly {style.label}",
            marker={
                "size": 12,
                "color": style.colour,
                "symbol": "circle-open-dot" if style.emulated else "circle",
                "line": {"width": 2},
            },
            error_y=latency_bars([p.latency for _, p in own]),
            hovertext=[
                f"<b>{plain(sweep.name_of(p.row), 200)}</b><br>{latency_text(p.latency)}<br>"
                f"{count_of(p.partition.n_subgraphs, 'subgraph')}, "
                f"{p.partition.boundary_bytes:,} boundary bytes<br>"
                + ", ".join(f"{plain(d, 30)} {share:.0%}" for d, share in p.shares.items())
                for _, p in own
            ],
            hoverinfo="text",
        )
    end_us = latency_end_us([p.latency for p in found])
    shares = {"tickformat": ".0%"} if x in devices else {}
    return finish(
        figure,
        "Placement against latency",
        height=460,
        margins=(70, 30, 80, 60),
        x={"title": title, "gridcolor": GRID, "zeroline": False, **shares},
        y={"title": "latency (µs)", "gridcolor": GRID, "range": [0, end_us]},
    )


# Shapes, because colours stand for devices.
_SYMBOLS = (
    "circle", "diamond-open", "square", "triangle-up-open", "cross", "star-open", "pentagon",
    "hexagon-open",
)  # fmt: skip
_WHISKERS = {"color": TEXT, "thickness": 1.2, "width": 3}
_HOST_ROW_PX = 22
_SPREAD = 0.56  # of a row, over which the hosts of one placement are spread


def hosts(sweep: Sweep) -> go.Figure:
    """Draw latency and ratio of each placement, one symbol per host.

    Latencies compare the hosts. Ratios, each to the reference on its own host, tell whether the
    best placement on one host is the best on another. Rows of two hosts were not measured in turn.

    Raises
    ------
    ArgumentError
        Nothing was measured.
    """
    rows = measured_rows(sweep)
    if not rows:
        raise ArgumentError("Nothing was measured, so there are no hosts to compare.")
    labels = list(dict.fromkeys(row.label for row in rows))
    names = list(dict.fromkeys(row.host for row in rows))
    emulated = {row.label for row in rows if row.emulated}
    figure = make_subplots(cols=2, shared_yaxes=True, horizontal_spacing=0.04)
    for number, host in enumerate(names):
        own = [row for row in rows if row.host == host]
        offset = _SPREAD * ((number + 0.5) / len(names) - 0.5)
        marker = {
            "symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 9, "color": TEXT,
            "line": {"width": 1.5, "color": TEXT},
        }  # fmt: skip
        latencies = [
            (row, (row.latency.us, row.latency.low_us, row.latency.high_us)) for row in own
        ]
        ratios = [(row, row.row.series.ratio[:3]) for row in own if row.row.series.ratio]
        for col, drawn in enumerate((latencies, ratios), start=1):
            figure.add_scatter(
                col=col, row=1, mode="markers", marker=marker,
                name=plain(host, 40), legendgroup=str(number),
                showlegend=None if col == 1 else False,
                x=[triple[0] for _, triple in drawn],
                y=[labels.index(row.label) + offset for row, _ in drawn],
                error_x=error_bars([triple for _, triple in drawn], **_WHISKERS),
                hovertext=[_host_hover(row) for row, _ in drawn],
                hoverinfo="text",
            )  # fmt: skip
    right: Any = 2  # a number; plotly's annotation says text
    figure.add_vline(x=1, col=right, line={"color": LINE, "width": 1, "dash": "dot"})
    figure.update_xaxes(
        title="latency (µs)", range=[0, latency_end_us([r.latency for r in rows])], col=1
    )
    figure.update_xaxes(title="ratio to the reference on the same host", col=2)
    for number in range(1, len(labels)):
        figure.add_hline(y=number - 0.5, line={"color": GRID, "width": 1})
    shown = [plain(label, 44) + (" *" if label in emulated else "") for label in labels]
    return finish(
        figure,
        count_of(len(names), "host"),
        "bars: 95 % intervals · left of 1: faster than the reference there"
        + (" · * with an emulated device" if emulated else ""),
        190 + _HOST_ROW_PX * len(labels) * max(2, len(names)),
        (20, 30, 110, 60),
        x={"gridcolor": GRID, "zeroline": False},
        y=row_axis(shown) | {"tickcolor": CLEAR},
    )


def _host_hover(row: Measured) -> str:
    paired = row.row.series.ratio
    ratio = "" if paired is None else f"<br>{paired[0]:.3f} of the reference there"
    emulated = f"<br>emulated: {plain(row.emulated, 80)}" if row.emulated else ""
    return (
        f"<b>{plain(row.label, 200)}</b><br>{plain(row.host, 80)}<br>"
        f"{latency_text(row.latency)}{ratio}{emulated}"
    )


# Two alternating shades show where one group ends and the next begins. They are greys, because
# colours stand for devices.
_SHADES = ("#6f7783", "#aeb4be")
_ROW_PX = 34


def latency_ranking(sweep: Sweep) -> go.Figure:
    """Draw the ranking: bars of latency with 95 % intervals, fastest on top.

    This run cannot tell the bars of one group apart; shades alternate from group to group. Several
    hosts follow each other.
    """
    rows = ranked_rows(sweep)
    groups = list(dict.fromkeys((r.host, r.group) for r in rows))
    end_us = latency_end_us([r.latency for r in rows])
    names = [f"{plain(r.label, 48)}{' ⌂' if r.row.baseline else ''}" for r in rows]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=list(range(len(rows))),
            x=[r.latency.us for r in rows],
            marker={
                "color": [_SHADES[groups.index((r.host, r.group)) % 2] for r in rows],
                "pattern": {
                    "shape": ["/" if r.emulated else "" for r in rows],
                    "solidity": 0.15,
                    "fillmode": "overlay",
                },
            },
            error_x=latency_bars([r.latency for r in rows], color=TEXT, thickness=1.5),
            hovertext=[
                f"<b>{plain(r.label, 200)}</b><br>{latency_text(r.latency)}<br>group {r.group}, "
                f"{count_of(r.partition.n_subgraphs, 'subgraph')}"
                + (f"<br>emulated: {plain(r.emulated, 80)}" if r.emulated else "")
                for r in rows
            ],
            hoverinfo="text",
        )
    )
    figure.add_scatter(
        x=[min(r.latency.high_us, end_us) for r in rows],
        y=list(range(len(rows))),
        mode="text",
        text=[
            f"   group {r.group} · {count_of(r.partition.n_subgraphs, 'subgraph')}" for r in rows
        ],
        textposition="middle right",
        textfont={"color": TEXT, "size": 11},
        cliponaxis=False,
        hoverinfo="skip",
    )
    smallest = sweep.smallest_difference
    seen = f"smallest difference this run could show: {smallest:.1%}"
    if not math.isfinite(smallest):
        seen = "too little to tell placements apart" if rows else "nothing measured"
    marks = ["same group: cannot be told apart", seen]
    marks += ["⌂ one device alone"] if any(r.row.baseline for r in rows) else []
    marks += ["hatched: emulated"] if any(r.emulated for r in rows) else []
    return finish(
        figure,
        "Latency ranking",
        " · ".join(marks),
        130 + _ROW_PX * max(1, len(rows)),
        (20, 130, 80, 50),
        x={"title": "latency (µs)", "range": [0, end_us], "gridcolor": GRID},
        y=row_axis(names),
        bargap=0.3,
        showlegend=False,
    )
