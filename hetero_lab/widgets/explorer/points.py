"""The rows of a sweep as points, a mark and a colour for each group."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from hetero_lab.views.text import plain
from hetero_lab.views.theme import GRID, TEXT, base_layout, device_styles, spare_colours
from hetero_lab.widgets.explorer.look import figure_widget
from hetero_lab.widgets.explorer.state import MOSTLY, NO_GROUP, ExplorerState, title_of

if TYPE_CHECKING:
    import pandas as pd

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")
_MOST_GROUPS = 8


def points_figure(exploring: ExplorerState) -> go.Figure:
    """Draw the rows that are shown, with A and B ringed; a point's customdata is its label."""
    choice, frame = exploring.choice, exploring.shown
    figure = go.Figure()
    emulated = dict(exploring.sweep.environment.emulated)
    # What is the same placement lies on the same point: a click should choose what was measured.
    own = frame.loc[~frame["same_as"].isin(list(frame["label"]))]
    groups = _groups(own, choice.group)
    devices = [
        d for row in exploring.rows.values() if row.profile for d in row.profile.affinity.devices
    ]
    styles = device_styles(devices, emulated)
    for place, (name, rows) in enumerate(groups):
        if choice.group == MOSTLY and name in styles:
            colour, label = styles[name].colour, f"mostly on {styles[name].label}"
        else:
            colour = spare_colours()[place % len(spare_colours())]
            label = plain(name, 60)
        open_mark = choice.group == MOSTLY and name in styles and styles[name].emulated
        figure.add_scatter(
            x=_sent(rows[choice.x]), y=_sent(rows[choice.y]), mode="markers", name=label,
            customdata=list(rows["label"]), hoverinfo="text", error_y=_interval(rows, choice.y),
            hovertext=[_hover(row, frame, choice.x, choice.y) for _, row in rows.iterrows()],
            marker={
                "size": 12, "color": colour, "line": {"width": 2 if open_mark else 0},
                "symbol": "circle-open-dot" if open_mark else _SYMBOLS[place % len(_SYMBOLS)],
            },
        )  # fmt: skip
    figure.add_scatter(**rings(exploring))
    shown, total = len(frame), len(exploring.measured)
    figure.update_layout(
        **base_layout(
            f"{shown} of {total} measured placements", "click a point to see its placement"
        ),
        height=430,
        margin={"l": 76, "r": 24, "t": 104, "b": 56},
        showlegend=True,
        hovermode="closest",
        uirevision=f"{choice.x} {choice.y}",
    )
    figure.update_xaxes(title=plain(title_of(choice.x)), gridcolor=GRID, zeroline=False)
    figure.update_yaxes(title=plain(title_of(choice.y)), gridcolor=GRID, zeroline=False)
    return figure


def points_widget(exploring: ExplorerState, clicked: Callable[[str], None]) -> go.FigureWidget:
    """Return the points as a widget that tells which label was clicked."""
    return figure_widget(points_figure(exploring), clicked)


def rings(exploring: ExplorerState) -> dict[str, Any]:
    """Return the trace of the rings around A and B."""
    choice, frame = exploring.choice, exploring.shown
    marks: dict[str, str] = {}
    for letter, label in (("A", choice.a), ("B", choice.b)):
        if label:
            marks[label] = f"{marks.get(label, '')}{letter}"
    rows = frame.loc[frame["label"].isin(marks)]
    return {
        "x": _sent(rows[choice.x]), "y": _sent(rows[choice.y]), "mode": "markers+text",
        "text": [marks[label] for label in rows["label"]], "textposition": "top right",
        "textfont": {"size": 14, "color": TEXT}, "hoverinfo": "skip", "showlegend": False,
        "marker": {
            "size": 22, "symbol": "circle-open", "color": TEXT, "line": {"width": 2.5},
        },
    }  # fmt: skip


def _groups(frame: pd.DataFrame, group: str) -> list[tuple[str, pd.DataFrame]]:
    if group == NO_GROUP:
        return [("placements", frame)]
    # A column of whole numbers that has gaps holds floats.
    names = [f"{v:g}" if isinstance(v, float) else str(v) for v in frame[group]]
    order = list(dict.fromkeys(names))
    kept = order if len(order) <= _MOST_GROUPS else order[: _MOST_GROUPS - 1]
    label = group if group not in (MOSTLY, "devices") else ""
    found = [
        (f"{label} {name}".strip(), frame.loc[[other == name for other in names]]) for name in kept
    ]
    if len(kept) < len(order):
        found.append(("others", frame.loc[[name not in kept for name in names]]))
    return found


def _interval(rows: pd.DataFrame, column: str) -> dict[str, Any] | None:
    """Return the 95 % interval of a column that has one."""
    low, high = {
        "median_us": ("ci95_low_us", "ci95_high_us"),
        "ratio": ("ratio_ci95_low", "ratio_ci95_high"),
    }.get(column, ("", ""))
    if low not in rows or high not in rows:
        return None
    return {
        "type": "data", "symmetric": False, "array": _sent(rows[high] - rows[column]),
        "arrayminus": _sent(rows[column] - rows[low]),
    }  # fmt: skip


def _sent(values: pd.Series) -> list[float | None]:
    """Return numbers as JSON has them: none for what is not known or has no end."""
    return [float(value) if math.isfinite(value) else None for value in values.astype(float)]


def _hover(row: Any, frame: pd.DataFrame, x: str, y: str) -> str:
    lines = [f"<b>{plain(str(row['label']), 120)}</b>"]
    lines += [f"{plain(title_of(name))}: {row[name]:,.6g}" for name in dict.fromkeys((x, y))]
    same = [str(label) for label in frame.loc[frame["same_as"] == row["label"], "label"]]
    lines += [f"the same placement: {plain(label, 80)}" for label in same[:_MOST_GROUPS]]
    return "<br>".join(lines)
