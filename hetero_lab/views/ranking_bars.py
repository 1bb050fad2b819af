"""The ranking of a sweep: latency with its interval, grouped by what can be told apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.statistics import Estimate
from hetero_lab.terminal import count_of
from hetero_lab.views.arguments import expect
from hetero_lab.views.colours import GRID, TEXT
from hetero_lab.views.intervals import latency_bars, latency_end_us, latency_text
from hetero_lab.views.text import plain
from hetero_lab.views.theme import base_layout

# Two alternating shades: what matters is where one group ends and the next begins. Greys, because
# colours stand for devices.
_SHADES = ("#6f7783", "#aeb4be")
_ROW_PX = 34


@dataclass(frozen=True)
class RankedRow:
    """One bar: a placement with its latency in µs and its group, which is one of its host."""

    label: str
    group: int
    latency: Estimate
    n_subgraphs: int
    baseline: bool
    emulated: str
    host: str


def ranked_rows(sweep: Sweep) -> list[RankedRow]:
    """Return the measured rows from fast to slow, host by host."""
    ranked = []
    for row, group in zip(sweep.ranked.rows, sweep.ranked.groups, strict=True):
        assert row.profile is not None
        assert row.latency is not None
        ranked.append(
            RankedRow(
                label=sweep.name_of(row),
                group=group,
                latency=row.latency,
                n_subgraphs=row.profile.partition.n_subgraphs,
                baseline=row.baseline,
                emulated=", ".join(device for device, _ in row.profile.environment.emulated),
                host=row.profile.environment.host,
            )
        )
    return ranked


def latency_ranking(sweep: Sweep) -> go.Figure:
    """Draw the ranking: bars of latency with 95 % intervals, fastest on top.

    Neighbours of one shade cannot be told apart by this run. Several hosts follow each other.
    """
    expect(sweep, Sweep)
    rows = ranked_rows(sweep)
    groups = list(dict.fromkeys((r.host, r.group) for r in rows))
    end_us = latency_end_us([r.latency for r in rows])
    names = [f"{plain(r.label, 48)}{' ⌂' if r.baseline else ''}" for r in rows]
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
                f"{count_of(r.n_subgraphs, 'subgraph')}"
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
            f"   group {r.group} · {r.n_subgraphs} subgraph{'s' if r.n_subgraphs != 1 else ''}"
            for r in rows
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
    figure.update_layout(
        **base_layout(
            "Latency ranking",
            f"one shade: cannot be told apart · {seen} · ⌂ one device alone · hatched: emulated",
        ),
        height=130 + _ROW_PX * max(1, len(rows)),
        margin={"l": 20, "r": 130, "t": 80, "b": 50},
        bargap=0.3,
        showlegend=False,
    )
    figure.update_xaxes(title="latency (µs)", range=[0, end_us], gridcolor=GRID)
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=names, autorange="reversed", automargin=True,
        showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure
