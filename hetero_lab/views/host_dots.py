"""Hosts side by side: what each of them makes of the same placements."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.statistics import Estimate
from hetero_lab.views.arguments import expect
from hetero_lab.views.colours import CLEAR, GRID, LINE, TEXT
from hetero_lab.views.intervals import error_bars, latency_bars, latency_end_us, latency_text
from hetero_lab.views.text import plain
from hetero_lab.views.theme import base_layout

# Shapes, because colours stand for devices.
_SYMBOLS = (
    "circle", "diamond-open", "square", "triangle-up-open", "cross", "star-open", "pentagon",
    "hexagon-open",
)  # fmt: skip
_WHISKERS = {"color": TEXT, "thickness": 1.2, "width": 3}
_ROW_PX = 22
_SPREAD = 0.56  # of a row, over which the hosts of one placement are spread


@dataclass(frozen=True)
class HostRow:
    """One placement on one host: latency and, if it was beside it, ratio to the reference there."""

    label: str
    host: str
    latency: Estimate
    ratio: tuple[float, float, float] | None
    emulated: str


def host_rows(sweep: Sweep) -> list[HostRow]:
    """Return each measured row, in the order of the sweep."""
    found = []
    for row in sweep.rows:
        if row.profile is None or row.latency is None or row.same_as:
            continue
        found.append(
            HostRow(
                row.label,
                row.profile.environment.host,
                row.latency,
                row.series.ratio[:3] if row.series.ratio else None,
                emulated=", ".join(name for name, _ in row.profile.environment.emulated),
            )
        )
    return found


def hosts(sweep: Sweep) -> go.Figure:
    """Draw latency and ratio of each placement, a symbol a host.

    Latencies compare the hosts; ratios, each to the reference on its own host, tell whether what
    is best on one is best on the other. Rows of two hosts were not measured beside each other.

    Raises
    ------
    ArgumentError
        Nothing was measured.
    """
    expect(sweep, Sweep)
    rows = host_rows(sweep)
    if not rows:
        raise ArgumentError("Nothing was measured, so there are no hosts to compare.")
    labels = list(dict.fromkeys(row.label for row in rows))
    names = list(dict.fromkeys(row.host for row in rows))
    emulated = {row.label for row in rows if row.emulated}
    figure = make_subplots(cols=2, shared_yaxes=True, horizontal_spacing=0.04)
    for number, host in enumerate(names):
        mine = [row for row in rows if row.host == host]
        offset = _SPREAD * ((number + 0.5) / len(names) - 0.5)
        places = [labels.index(row.label) + offset for row in mine]
        marker = {
            "symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 9, "color": TEXT,
            "line": {"width": 1.5, "color": TEXT},
        }  # fmt: skip
        figure.add_scatter(
            col=1, row=1, mode="markers", marker=marker,
            name=plain(host, 40), legendgroup=str(number),
            x=[row.latency.us for row in mine],
            y=places,
            error_x=latency_bars([row.latency for row in mine], **_WHISKERS),
            hovertext=[_hover(row) for row in mine],
            hoverinfo="text",
        )  # fmt: skip
        paired = [
            (place, row, row.ratio)
            for place, row in zip(places, mine, strict=True)
            if row.ratio is not None
        ]
        figure.add_scatter(
            col=2, row=1, mode="markers", marker=marker,
            name=plain(host, 40), legendgroup=str(number), showlegend=False,
            x=[ratio[0] for _, _, ratio in paired],
            y=[place for place, _, _ in paired],
            error_x=error_bars([ratio for _, _, ratio in paired], **_WHISKERS),
            hovertext=[_hover(row) for _, row, _ in paired],
            hoverinfo="text",
        )  # fmt: skip
    figure.add_vline(x=1, col=2, line={"color": LINE, "width": 1, "dash": "dot"})  # type: ignore[arg-type]
    figure.update_layout(
        **base_layout(
            f"{len(names)} host{'s' if len(names) != 1 else ''}",
            "bars: 95 % intervals · left of 1: faster than the reference there"
            + (" · * with an emulated device" if emulated else ""),
        ),
        height=190 + _ROW_PX * len(labels) * max(2, len(names)),
        margin={"l": 20, "r": 30, "t": 110, "b": 60},
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False)
    figure.update_xaxes(
        title="latency (µs)", range=[0, latency_end_us([r.latency for r in rows])], col=1
    )
    figure.update_xaxes(title="ratio to the reference on the same host", col=2)
    for number in range(1, len(labels)):
        figure.add_hline(y=number - 0.5, line={"color": GRID, "width": 1})
    figure.update_yaxes(
        range=[len(labels) - 0.5, -0.5], showgrid=False, zeroline=False, automargin=True,
        tickvals=list(range(len(labels))), tickcolor=CLEAR,
        ticktext=[plain(label, 44) + (" *" if label in emulated else "") for label in labels],
    )  # fmt: skip
    return figure


def _hover(row: HostRow) -> str:
    ratio = "" if row.ratio is None else f"<br>{row.ratio[0]:.3f} of the reference there"
    emulated = f"<br>emulated: {plain(row.emulated, 80)}" if row.emulated else ""
    return (
        f"<b>{plain(row.label, 200)}</b><br>{plain(row.host, 80)}<br>"
        f"{latency_text(row.latency)}{ratio}{emulated}"
    )
