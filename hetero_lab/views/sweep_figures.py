"""Figures of a sweep: the ranking, latency against structure, hosts side by side.

``result_views`` says which figures a result shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hetero_lab.errors import ArgumentError, names_at_hand, shorten
from hetero_lab.result import Result
from hetero_lab.results.evidence import BEST, MAY_BE_BEST
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_tables import distinct, resolution_note
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import (
    BESIDE,
    CLEAR,
    GRID,
    INTERVALS,
    LINE,
    SPARE_COLOURS,
    TEXT,
    DeviceStyle,
    Interval,
    ThemedFigure,
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
    frame["configuration"] = [sweep.shown_name(row) for row in sweep.rows]
    counts = [row.profile.affinity.counts() if row.profile else {} for row in sweep.rows]
    n_ops = pd.DataFrame(counts, index=frame.index)
    shares = (100.0 * n_ops.fillna(0)).div(n_ops.sum(axis="columns"), axis="index")
    frame = frame.join(shares.add_prefix(_SHARE))
    frame[MOSTLY] = [max(each, key=lambda d: each[d]) if each else "" for each in counts]
    return frame


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
    frame = with_shares(sweep)
    devices = [name.removeprefix(_SHARE) for name in map(str, frame) if name.startswith(_SHARE)]
    columns = {
        "subgraphs": "n_subgraphs",
        "boundary bytes": "boundary_bytes",
        **{d: f"{_SHARE}{d}" for d in devices},
    }
    if x not in columns:
        raise ArgumentError(f"x= is one of {names_at_hand(columns, 20)}, not {shorten(str(x))}.")
    frame = distinct(frame)
    _, axis = latency_axis(intervals_of(frame, "median_us"))
    styles = device_styles(devices, dict(sweep.environment.emulated))
    return finish(
        points(frame, columns[x], "median_us", MOSTLY, styles),
        "Placement against latency",
        height=460,
        margins=(70, 30, 80, 60),
        x=axis_of(frame, columns[x]),
        y=axis,
    )


NO_GROUP = "none"
_UNITS = {"us": "µs", "ms": "ms", "bytes": "bytes", "s": "s", "mhz": "MHz"}
_POINTS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")
_MOST_GROUPS = len(_POINTS)
_MOST_TICKS = 10  # between whole numbers; the labels of more would touch


def points(
    frame: pd.DataFrame, x: str, y: str, group: str, styles: Mapping[str, DeviceStyle]
) -> go.Figure:
    """Draw a point per distinct row, one column over another, by groups.

    Groups by the device of most ops have its style. A point's customdata is its label.
    """
    figure = ThemedFigure()
    if not len(frame):
        return figure
    # Equal placements lie on the same point: a click should choose the measured one.
    measured = frame.loc[~frame["same_as"].isin(list(frame["label"]))]
    across, up = scale_of(frame, x), scale_of(frame, y)
    for place, (name, rows) in enumerate(_groups(measured, group)):
        style = styles.get(name) if group == MOSTLY else None
        is_open = style is not None and style.emulated
        figure.add_scatter(
            x=finite(rows[x], across),
            y=finite(rows[y], up),
            mode="markers",
            name=f"mostly on {style.label}" if style else plain(name, 60),
            customdata=list(rows["label"]),
            error_y=error_bars(intervals_of(rows, y), up),
            hovertext=[_point_hover(row, frame, x, y) for row in rows.to_dict("records")],
            marker={
                "size": 12,
                "line": {"width": 2 if is_open else 0},
                "color": style.colour if style else SPARE_COLOURS[place % len(SPARE_COLOURS)],
                "symbol": "circle-open-dot" if is_open else _POINTS[place % len(_POINTS)],
            },
        )
    return figure


def _groups(frame: pd.DataFrame, group: str) -> list[tuple[str, pd.DataFrame]]:
    if group == NO_GROUP:
        return [("placements", frame)]
    frame = frame.sort_values(group, kind="stable", key=lambda column: column.astype(str))
    # A column of whole numbers that has gaps holds floats.
    names = [f"{v:g}" if isinstance(v, float) else str(v) for v in frame[group]]
    order = list(dict.fromkeys(names))
    top = order if len(order) <= _MOST_GROUPS else order[: _MOST_GROUPS - 1]
    label = group if group not in (MOSTLY, "devices") else ""
    groups = [
        (f"{label} {name}".strip(), frame.loc[[other == name for other in names]]) for name in top
    ]
    if len(top) < len(order):
        groups.append(("others", frame.loc[[name not in top for name in names]]))
    return groups


def intervals_of(rows: pd.DataFrame, column: str) -> list[Interval]:
    """Return the values of a column that has 95 % intervals, with these; else nothing."""
    names = [column, *INTERVALS.get(column, ())]
    if len(names) == 1 or not set(names) <= set(rows):
        return []
    return [*rows[names].astype(float).itertuples(index=False, name=None)]


def scale_of(rows: pd.DataFrame, column: str) -> float:
    """Return the factor to the unit of the axis of a column: long times in µs are drawn in ms."""
    if not column.endswith("_us"):
        return 1
    return latency_axis(intervals_of(rows, column) or [(rows[column].max(), 0.0, 0.0)])[0]


def finite(values: pd.Series, scale: float = 1) -> list[Any]:
    """Return texts and scaled numbers for JSON, which has neither NaN nor infinity."""
    filled = values.astype(object).where(values.notna(), math.inf)
    return [v if isinstance(v, str) else scale * v if math.isfinite(v) else None for v in filled]


_ALWAYS = ("median_us", "n_subgraphs", "boundary_bytes")  # in every hover


def _point_hover(row: Mapping[Any, Any], frame: pd.DataFrame, x: str, y: str) -> str:
    shares = {n.removeprefix(_SHARE): row[n] for n in map(str, frame) if n.startswith(_SHARE)}
    lines = [
        f"<b>{plain(row['configuration'], 120)}</b>",
        latency_text(interval_of(row)),
        f"{count_of(int(row['n_subgraphs']), 'subgraph')}, "
        f"{row['boundary_bytes']:,.0f} boundary bytes",
        ", ".join(f"{plain(device, 30)} {share:.0f}%" for device, share in shares.items() if share),
    ]
    more = [name for name in dict.fromkeys((x, y)) if name not in _ALWAYS]
    lines += [f"{plain(title_of(name))}: {row[name]:,.6g}" for name in more]
    same = [*map(str, frame.loc[frame["same_as"] == row["label"], "configuration"])]
    lines += [f"the same placement: {plain(name, 80)}" for name in same[:_MOST_GROUPS]]
    return "<br>".join(lines)


def axis_of(rows: pd.DataFrame, column: str) -> dict[str, Any]:
    """Return the axis of a column; a few whole numbers have no ticks between them."""
    unit = "(ms)" if scale_of(rows, column) < 1 else "(µs)"
    title = plain(title_of(column)).replace("(µs)", unit)
    axis = {"title": title, "gridcolor": GRID, "zeroline": False}
    is_few = column.startswith("n_") and rows[column].max() - rows[column].min() <= _MOST_TICKS
    return {**axis, "dtick": 1} if is_few else axis


def title_of(column: str) -> str:
    """Return an axis title with its unit: ``median_us`` is ``median (µs)``."""
    if column.startswith(_SHARE):
        return f"share of the ops on {column.removeprefix(_SHARE)} (%)"
    if column == "throughput_per_s":
        return "throughput (1/s)"
    name, _, unit = column.rpartition("_")
    if name and unit in _UNITS:
        return f"{name.replace('_', ' ')} ({_UNITS[unit]})"
    if column.startswith("n_"):
        return f"number of {column.removeprefix('n_').replace('_', ' ')}"
    if column.startswith("ratio"):
        return f"{column.replace('_', ' ')} to the reference"
    return column.replace("_", " ")


# Shapes, because colours stand for devices.
_SYMBOLS = (
    "circle", "diamond-open", "square", "triangle-up-open", "cross", "star-open", "pentagon",
    "hexagon-open",
)  # fmt: skip
_WHISKERS = {"color": TEXT, "thickness": 1.2, "width": 3}
_HOST_ROW_PX = 22  # for each host: a symbol of 9 px and room around it
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
    rows = distinct(sweep.summary).to_dict("records")
    if not rows:
        raise ArgumentError("Nothing was measured, so there are no hosts to compare.")
    labels = list(dict.fromkeys(row["label"] for row in rows))
    names = list(dict.fromkeys(row["host"] for row in rows))
    emulated = {row["label"] for row in rows if row["emulated"]}
    scale, axis = latency_axis([interval_of(row) for row in rows])
    figure = make_subplots(cols=2, shared_yaxes=True, horizontal_spacing=0.04)
    for number, host in enumerate(names):
        host_rows = [row for row in rows if row["host"] == host]
        offset = _SPREAD * ((number + 0.5) / len(names) - 0.5)
        marker = {
            "symbol": _SYMBOLS[number % len(_SYMBOLS)],
            "size": 9,
            "color": TEXT,
            "line": {"width": 1.5, "color": TEXT},
        }
        for col, (column, factor) in enumerate((("median_us", scale), ("ratio", 1.0)), start=1):
            drawn = [row for row in host_rows if row[column] == row[column]]
            figure.add_scatter(
                col=col,
                row=1,
                mode="markers",
                marker=marker,
                name=plain(host, 40),
                legendgroup=str(number),
                showlegend=None if col == 1 else False,
                x=[factor * row[column] for row in drawn],
                y=[labels.index(row["label"]) + offset for row in drawn],
                error_x=error_bars(
                    [interval_of(row, column) for row in drawn], factor, **_WHISKERS
                ),
                hovertext=[_host_hover(row) for row in drawn],
            )
    right: Any = 2  # a number; plotly's annotation says text
    figure.add_vline(x=1, col=right, line={"color": LINE, "width": 1, "dash": "dot"})
    figure.update_xaxes(axis, col=1)
    figure.update_xaxes(title="ratio to the reference on the same host", col=2)
    for number in range(1, len(labels)):
        figure.add_hline(y=number - 0.5, line={"color": GRID, "width": 1})
    titles = {row["label"]: row["configuration"] for row in rows}
    ticks = [plain(titles[label], 60) + (" *" if label in emulated else "") for label in labels]
    return finish(
        figure,
        count_of(len(names), "host"),
        "bars: 95 % intervals · left of 1: faster than the reference there"
        + (" · * with an emulated device" if emulated else ""),
        190 + _HOST_ROW_PX * len(labels) * max(2, len(names)),
        (20, 30, 110, 60),
        x={"gridcolor": GRID, "zeroline": False},
        y=row_axis(ticks) | {"tickcolor": CLEAR},
    )


def _host_hover(row: Mapping[Any, Any]) -> str:
    ratio = row["ratio"]
    return (
        f"<b>{plain(row['configuration'], 200)}</b><br>{plain(row['host'], 80)}<br>"
        f"{latency_text(interval_of(row))}"
        + (f"<br>{ratio:.3f} of the reference there" if ratio == ratio else "")
        + _emulated(row)
    )


# Bars that may be the fastest; others are hollow. Intervals can be read on it, light or dark.
_FIRST = "rgba(128, 128, 128, 0.3)"
_ROW_PX = 34  # a bar, and the line of text behind it


def latency_ranking(measured: Sweep | Result) -> go.Figure:
    """Draw the ranking: bars of latency with 95 % intervals, fastest on top.

    This run cannot tell the bars of one group apart; those of the first group are filled. Several
    hosts follow each other. An advice's bars have its judgements instead, and those that may be the
    best are filled.

    Raises
    ------
    ArgumentError
        A result without a sweep.
    """
    sweep = measured if isinstance(measured, Sweep) else getattr(measured, "sweep", None)
    if sweep is None:
        raise ArgumentError(
            f"A ranking is drawn of a sweep or an advice, not of a {type(measured).__name__}. "
            "hetero_lab.sweep(model, placements) returns one."
        )
    summary = next(iter(measured.tables.values()))
    has = "judgement" in summary
    judged = dict(zip(summary["label"], summary["judgement"], strict=True)) if has else {}
    rows = sweep.ranking.to_dict("records")
    names = [sweep.shown_name(row) for row in sweep.ranked.rows]
    latencies = [interval_of(r) for r in rows]
    scale, axis = latency_axis(latencies)
    texts = [judged.get(row["label"]) or f"group {row['group']}, {row['finding']}" for row in rows]
    may_be_best = [
        judged.get(row["label"]) in (BEST, *MAY_BE_BEST) if judged else row["group"] == 1
        for row in rows
    ]
    subgraphs = [
        count_of(r["n_subgraphs"], "subgraph") + (" · emulated" if r["emulated"] else "")
        for r in rows
    ]
    figure = ThemedFigure(
        go.Bar(
            orientation="h",
            y=list(range(len(rows))),
            x=[scale * r["median_us"] for r in rows],
            marker={
                "color": [_FIRST if first else CLEAR for first in may_be_best],
                "line": {"color": LINE, "width": 1},
            },
            error_x=error_bars(latencies, scale, color=TEXT, thickness=2),
            hovertext=[
                f"<b>{plain(name, 200)}</b><br>{latency_text(interval_of(r))}<br>"
                f"{words}, {n}{_emulated(r)}"
                for name, r, words, n in zip(names, rows, texts, subgraphs, strict=True)
            ],
        )
    )
    figure.add_scatter(
        x=[min(scale * high, axis["range"][1]) for _, _, high in latencies],
        y=list(range(len(rows))),
        text=[f"   {words} · {n}" for words, n in zip(texts, subgraphs, strict=True)],
        **BESIDE,
    )
    marks = ["filled: may be the fastest"] * (not all(may_be_best))
    marks += [resolution_note(sweep.ranked).rstrip(".") if rows else "nothing measured"]
    marks += ["⌂ one device alone"] if any(r["baseline"] for r in rows) else []
    return finish(
        figure,
        "Latency ranking",
        " · ".join(marks),
        130 + _ROW_PX * max(1, len(rows)),
        (20, 230, 80, 50),
        x=axis,
        y=row_axis(
            [
                plain(name, 60) + (" ⌂" if row["baseline"] else "")
                for name, row in zip(names, rows, strict=True)
            ]
        ),
        bargap=0.3,
        showlegend=False,
    )
