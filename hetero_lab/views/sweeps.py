"""Figures of a sweep: the ranking, latency against structure, hosts side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hetero_lab.errors import ArgumentError, names_at_hand, shorten
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import (
    CLEAR,
    GRID,
    LINE,
    TEXT,
    device_styles,
    error_bars,
    finish,
    interval_of,
    latency_axis,
    latency_text,
    plain,
    row_axis,
)

MOSTLY = "mostly on"
_SHARE = "share "


def with_shares(sweep: Sweep) -> pd.DataFrame:
    """Return the summary with hosts in labels, and the devices of each placement.

    ``share DEVICE`` is the share of the ops on it in %, ``mostly on`` the device of most ops.
    """
    frame = sweep.summary.copy()
    if not len(frame):
        return pd.DataFrame({name: [] for name in ("label", "status", "detail")})
    frame["label"] = [sweep.name_of(row) for row in sweep.rows]
    # A column with gaps may hold numbers as objects.
    for name in frame.columns:
        filled = [value for value in frame[name] if value is not None and value == value]
        if filled and all(isinstance(v, int | float) and not isinstance(v, bool) for v in filled):
            frame[name] = pd.to_numeric(frame[name])
    counts = [row.profile.affinity.counts() if row.profile else {} for row in sweep.rows]
    for device in dict.fromkeys(device for each in counts for device in each):
        frame[f"{_SHARE}{device}"] = [
            100.0 * each.get(device, 0) / (sum(each.values()) or 1) if each else math.nan
            for each in counts
        ]
    frame[MOSTLY] = [max(each, key=lambda d: each[d]) if each else "" for each in counts]
    return frame


def _measured(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the distinct measured rows of a summary."""
    rows = frame.to_dict("records")
    return [row for row in rows if row["median_us"] == row["median_us"] and not row["same_as"]]


def _emulated(row: Mapping[Any, Any]) -> str:
    """Name the emulated devices in use, for a hover."""
    names = row["emulated"].replace(",", ", ")
    return f"<br>emulated: {plain(names, 80)}" if names else ""


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
    found = _measured(with_shares(sweep))
    devices = [name.removeprefix(_SHARE) for name in (found or [{}])[0] if name.startswith(_SHARE)]
    columns = {
        "subgraphs": ("n_subgraphs", "number of subgraphs"),
        "boundary bytes": ("boundary_bytes", "boundary tensors (bytes)"),
        **{d: (f"{_SHARE}{d}", f"share of the ops on {plain(d, 30)}") for d in devices},
    }
    if x not in columns:
        raise ArgumentError(f"x= is one of {names_at_hand(columns, 20)}, not {shorten(str(x))}.")
    column, title = columns[x]
    share, shares = (0.01, {"tickformat": ".0%"}) if x in devices else (1, {})
    scale, axis = latency_axis([interval_of(row) for row in found])
    styles = device_styles(devices, dict(sweep.environment.emulated))
    figure = go.Figure()
    for device, style in styles.items():
        # A placement has the colour of the device that does most of it.
        own = [row for row in found if row[MOSTLY] == device]
        figure.add_scatter(
            x=[share * row[column] for row in own],
            y=[scale * row["median_us"] for row in own],
            mode="markers",
            name=f"mostly {style.label}",
            marker={
                "size": 12,
                "color": style.colour,
                "symbol": "circle-open-dot" if style.emulated else "circle",
                "line": {"width": 2},
            },
            error_y=error_bars([interval_of(row) for row in own], scale),
            hovertext=[
                f"<b>{plain(row['label'], 200)}</b><br>{latency_text(interval_of(row))}<br>"
                f"{count_of(int(row['n_subgraphs']), 'subgraph')}, "
                f"{row['boundary_bytes']:,.0f} boundary bytes<br>"
                + ", ".join(
                    f"{plain(d, 30)} {row[_SHARE + d]:.0f}%" for d in devices if row[_SHARE + d]
                )
                for row in own
            ],
        )
    return finish(
        figure,
        "Placement against latency",
        height=460,
        margins=(70, 30, 80, 60),
        x={"title": title, "gridcolor": GRID, "zeroline": False, **shares},
        y=axis,
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
    rows = _measured(sweep.summary)
    if not rows:
        raise ArgumentError("Nothing was measured, so there are no hosts to compare.")
    labels = list(dict.fromkeys(row["label"] for row in rows))
    names = list(dict.fromkeys(row["host"] for row in rows))
    emulated = {row["label"] for row in rows if row["emulated"]}
    scale, axis = latency_axis([interval_of(row) for row in rows])
    figure = make_subplots(cols=2, shared_yaxes=True, horizontal_spacing=0.04)
    for number, host in enumerate(names):
        own = [row for row in rows if row["host"] == host]
        offset = _SPREAD * ((number + 0.5) / len(names) - 0.5)
        marker = {
            "symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 9, "color": TEXT,
            "line": {"width": 1.5, "color": TEXT},
        }  # fmt: skip
        for col, (column, factor) in enumerate((("median_us", scale), ("ratio", 1.0)), start=1):
            drawn = [row for row in own if row[column] == row[column]]
            figure.add_scatter(
                col=col, row=1, mode="markers", marker=marker,
                name=plain(host, 40), legendgroup=str(number),
                showlegend=None if col == 1 else False,
                x=[factor * row[column] for row in drawn],
                y=[labels.index(row["label"]) + offset for row in drawn],
                error_x=error_bars(
                    [interval_of(row, column) for row in drawn], factor, **_WHISKERS
                ),
                hovertext=[_host_hover(row) for row in drawn],
            )  # fmt: skip
    right: Any = 2  # a number; plotly's annotation says text
    figure.add_vline(x=1, col=right, line={"color": LINE, "width": 1, "dash": "dot"})
    figure.update_xaxes(axis, col=1)
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


def _host_hover(row: Mapping[Any, Any]) -> str:
    ratio = row["ratio"]
    return (
        f"<b>{plain(row['label'], 200)}</b><br>{plain(row['host'], 80)}<br>"
        f"{latency_text(interval_of(row))}"
        + (f"<br>{ratio:.3f} of the reference there" if ratio == ratio else "")
        + _emulated(row)
    )


# Of the first group, and of all others: greys, because colours stand for devices.
_FIRST, _OTHERS = "#6f7783", "#aeb4be"
_ROW_PX = 34


def latency_ranking(sweep: Sweep) -> go.Figure:
    """Draw the ranking: bars of latency with 95 % intervals, fastest on top.

    This run cannot tell the bars of one group apart; those of the first group are darker. Several
    hosts follow each other.
    """
    rows = sweep.ranking.to_dict("records")
    labels = [sweep.name_of(row) for row in sweep.ranked.rows]
    latencies = [interval_of(r) for r in rows]
    scale, axis = latency_axis(latencies)
    names = [
        f"{plain(label, 48)}{' ⌂' if r['baseline'] else ''}"
        for label, r in zip(labels, rows, strict=True)
    ]
    subgraphs = [count_of(r["n_subgraphs"], "subgraph") for r in rows]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=list(range(len(rows))),
            x=[scale * r["median_us"] for r in rows],
            marker={
                "color": [_FIRST if r["group"] == 1 else _OTHERS for r in rows],
                "pattern": {
                    "shape": ["/" if r["emulated"] else "" for r in rows],
                    "solidity": 0.15,
                    "fillmode": "overlay",
                },
            },
            error_x=error_bars(latencies, scale, color=TEXT, thickness=1.5),
            hovertext=[
                f"<b>{plain(label, 200)}</b><br>{latency_text(interval_of(r))}<br>"
                f"group {r['group']}, {n}{_emulated(r)}"
                for label, r, n in zip(labels, rows, subgraphs, strict=True)
            ],
        )
    )
    figure.add_scatter(
        x=[min(scale * high, axis["range"][1]) for _, _, high in latencies],
        y=list(range(len(rows))),
        mode="text",
        text=[
            f"   group {r['group']}, {r['finding']} · {n}"
            for r, n in zip(rows, subgraphs, strict=True)
        ],
        textposition="middle right",
        textfont={"color": TEXT, "size": 11},
        cliponaxis=False,
    )
    smallest = sweep.smallest_difference
    seen = f"smallest difference this run could show: {smallest:.1%}"
    if not math.isfinite(smallest):
        seen = "too little to tell placements apart" if rows else "nothing measured"
    marks = ["darker: group 1, which may be the fastest"] * any(r["group"] > 1 for r in rows)
    marks += ["same group: cannot be told apart", seen]
    marks += ["⌂ one device alone"] if any(r["baseline"] for r in rows) else []
    marks += ["hatched: emulated"] if any(r["emulated"] for r in rows) else []
    return finish(
        figure,
        "Latency ranking",
        " · ".join(marks),
        130 + _ROW_PX * max(1, len(rows)),
        (20, 190, 80, 50),
        x=axis,
        y=row_axis(names),
        bargap=0.3,
        showlegend=False,
    )
