"""Predictions: beside measurements, and of the difference of two placements."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.difference import Difference, change, part_name
from hetero_lab.costs.prediction import BOUNDARIES, KINDS, LOST_FUSION, OPS, SPREAD, SUBGRAPHS
from hetero_lab.errors import PlanError
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import (
    BOUNDARY,
    GRID,
    LINE,
    TEXT,
    DeviceStyle,
    ThemedFigure,
    device_styles,
    error_bars,
    finish,
    plain,
    row_axis,
    time_text,
)

# Not a colour that stands for a device: a placement uses several.
_POINT = "#b0413e"
_BAND = 0.05
_FEW_POINTS = 5  # fewer are no evidence for R²


def predicted_measured(costs: CostModel) -> go.Figure:
    """Draw predicted over measured latency of the placements that were kept out of the fit.

    Each has the 90 % interval of its prediction. Points on the diagonal are predicted exactly;
    above it the prediction is too high. The figure of a cost model that was not validated has no
    points and says so.
    """
    rows = costs.validation_rows
    sure = [(costs.uncertainty.factor(row.distance), row) for row in rows]
    times = [us for row in rows for us in (row.predicted_us, row.measured_us)]
    least, most = min(times, default=0.0), max(times, default=1.0)
    room = 0.08 * (most - least) or 0.08 * most or 1.0
    ends = [max(0.0, least - room), most + room]
    bars = [(row.predicted_us, row.predicted_us / f, row.predicted_us * f) for f, row in sure]
    reached = [us for bar in bars for us in bar if math.isfinite(us)]
    heights = [
        min([ends[0], *(max(0.0, us - room) for us in reached)]),
        max([ends[1], *(us + room for us in reached)]),
    ]
    figure = ThemedFigure()
    figure.add_scatter(
        x=ends, y=ends, mode="lines", name="predicted = measured",
        line={"color": LINE, "width": 1.5, "dash": "dot"},
    )  # fmt: skip
    figure.add_scatter(
        x=[*ends, *reversed(ends)],
        y=[end * (1 + _BAND) for end in ends] + [end * (1 - _BAND) for end in reversed(ends)],
        fill="toself", fillcolor=GRID, line={"width": 0}, mode="lines", name=f"± {_BAND:.0%}",
    )  # fmt: skip
    figure.add_scatter(
        x=[row.measured_us for row in rows],
        y=[row.predicted_us for row in rows],
        error_y=error_bars(bars, color=_POINT, thickness=1, width=3),
        mode="markers",
        name="placement",
        showlegend=False,
        marker={"size": 10, "color": _POINT, "line": {"width": 1, "color": BOUNDARY}},
        hovertext=[
            f"<b>{plain(row.label, 200)}</b><br>measured {time_text(row.measured_us)}<br>"
            f"predicted {time_text(row.predicted_us)} ({row.error:+.1%})"
            for row in rows
        ],
    )
    if not rows:
        figure.add_annotation(
            text="Not validated: calibrate with a larger budget", showarrow=False,
            x=0.5, y=0.5, xref="paper", yref="paper",
        )  # fmt: skip
    axis = {"gridcolor": GRID, "zeroline": False, "ticklabelstandoff": 4}
    return finish(
        figure,
        f"Predicted, measured: {_errors(costs) if rows else 'not validated'}",
        f"{plain(costs.graph.name, 60)} on {plain(', '.join(costs.devices), 60)} · "
        f"{count_of(len(rows), 'placement')} that the fit has not seen",
        660,
        (80, 30, 100, 60),
        x={**axis, "range": ends, "title": "measured latency (µs)"},
        y={**axis, "range": heights, "title": "predicted latency (µs)", "automargin": True},
        width=700,
    )


def _errors(costs: CostModel) -> str:
    mape = f"MAPE {costs.mape:.1%}"
    if len(costs.validation_rows) < _FEW_POINTS:
        return mape
    try:
        r2 = f"{costs.r2:.3f}".replace("-", "−")
    except PlanError:  # all took the same time
        return mape
    return f"{mape}, R² {r2}"


_ROW_PX = 30
_MOST_TYPES, _OTHERS = 12, "other types"
_FEW_OPS = 5
_MOST_NAMED = 8  # parts and ops that a hover names
_GREYS = {LOST_FUSION: LINE, SPREAD: "#d3d8e0", "predicted": "#6f7783", "measured": "#aeb4be"}
_OPACITY = {OPS: 1.0, SUBGRAPHS: 0.7, BOUNDARIES: 0.45}


@dataclass(frozen=True)
class WaterfallStep:
    """A bar of the waterfall in µs: of a part, ``predicted`` or ``measured``, on a ``device``."""

    kind: str
    label: str
    device: str
    start_us: float
    difference_us: float
    details: tuple[str, ...] = ()
    interval_us: tuple[float, float] | None = None


def steps(difference: Difference) -> list[WaterfallStep]:
    """Return the waterfall from before to after, then the whole difference."""
    found: list[WaterfallStep] = []
    at_us = 0.0
    if difference.predicted_ns is not None:
        groups: Any = difference.parts.groupby(["kind", "before", "after"])
        for key, rows in sorted(groups, key=lambda group: (KINDS.index(group[0][0]), *group[0])):
            us = round(float(rows["difference_us"].sum()), 3)
            named = [f"{part_name(p)}: {change(p.difference_us)}" for p in rows.itertuples()]
            details = tuple(_first(named))
            found.append(WaterfallStep(key[0], _label(*key), key[2], at_us, us, details))
            at_us = round(at_us + us, 3)
        found.append(WaterfallStep("predicted", "predicted difference", "", 0.0, at_us))
    if difference.measurement is not None:
        timed = difference.measurement
        interval = (timed.low_us, timed.high_us) if math.isfinite(timed.high_us) else None
        found.append(
            WaterfallStep(
                "measured", "measured difference", "", 0.0, timed.difference_us, (), interval
            )
        )
    return found


def moved_types(difference: Difference) -> dict[tuple[str, str], list[str]]:
    """Return the ops that move by type and target device, the most frequent types first."""
    moved = difference.moved
    shown = {op_type for op_type, _ in Counter(moved["op_type"]).most_common(_MOST_TYPES)}
    types = moved["op_type"].where(moved["op_type"].isin(shown), _OTHERS)
    totals = Counter(types)
    groups: Any = moved.groupby([types, "after"])
    grouped = {key: list(rows["op"]) for key, rows in groups}
    order = sorted(grouped, key=lambda key: (key[0] not in shown, -totals[key[0]], *key))
    return {key: grouped[key] for key in order}


def difference(difference: Difference) -> go.Figure:
    """Draw where the difference comes from as a waterfall, and the ops that move below it.

    Each bar begins where the one above it ends; to the left is faster. A bar has the colour of
    the device that does the work: the one where the ops go, or that receives the tensor.
    """
    found, moved = steps(difference), moved_types(difference)
    types = list(dict.fromkeys(op_type for op_type, _ in moved))
    devices = [*difference.before.affinity.devices, *difference.after.affinity.devices]
    styles = device_styles(devices, difference.emulated)
    sizes = ([len(found)] if found else []) + ([max(1, len(types))] if moved or not found else [])
    height = 160 + sum(90 + _ROW_PX * size for size in sizes)
    figure = make_subplots(
        rows=len(sizes), cols=1, row_heights=sizes, vertical_spacing=90 / (height - 160)
    )
    if found:
        _draw_steps(figure, found, styles)
    if moved or not found:
        _draw_moved(figure, moved, types, styles, row=len(sizes))
    for style in styles.values():  # the legend: a device in each figure, whether it has a bar
        figure.add_bar(x=[None], y=[None], name=style.label, marker=style.bar())
    before, after = difference.before, difference.after
    return finish(
        figure,
        f"From {plain(before.label, 40)} to {plain(after.label, 40)}",
        f"{len(difference.moved)} of {len(before.affinity.ops)} ops move · "
        f"{before.partition.n_subgraphs} → {after.partition.n_subgraphs} subgraphs · "
        f"{before.partition.boundary_bytes:,} → {after.partition.boundary_bytes:,} boundary "
        "bytes · hatched: emulated",
        height,
        (20, 110, 110, 50),
        barmode="stack",
        bargap=0.3,
        showlegend=True,
    )


def _draw_steps(
    figure: go.Figure, found: list[WaterfallStep], styles: dict[str, DeviceStyle]
) -> None:
    where: Any = {"row": 1, "col": 1}
    for place, step in enumerate(found):
        style = styles.get(step.device)
        marker = style.bar(_OPACITY[step.kind]) if style else {"color": _GREYS[step.kind]}
        error, text = {}, ""
        if step.interval_us is not None:
            low, high = step.interval_us
            error = error_bars([(step.difference_us, low, high)], color=TEXT, thickness=1.5)
            text = f" [{change(low)}, {change(high)}]"
        figure.add_bar(
            **where, orientation="h", y=[place], x=[step.difference_us], base=[step.start_us],
            marker=marker, showlegend=False, error_x=error,
            hovertext=[
                f"<b>{plain(step.label)}</b>: {change(step.difference_us)}{text}"
                + "".join(f"<br>{plain(line, 160)}" for line in step.details)
            ],
        )  # fmt: skip
    ends = [0.0]
    for step in found:
        ends += [step.start_us, step.start_us + step.difference_us, *(step.interval_us or ())]
    low, high = min(ends), max(ends)
    room = 0.04 * (high - low) or 1.0
    # In a separate column, where no bar can be.
    figure.add_scatter(
        **where, x=[high + room] * len(found), y=list(range(len(found))), mode="text",
        text=[f"  {change(step.difference_us)}" for step in found], cliponaxis=False,
        textposition="middle right", textfont={"color": TEXT, "size": 11},
        showlegend=False,
    )  # fmt: skip
    figure.update_xaxes(
        **where, title="difference in latency (µs), left of 0: faster", gridcolor=GRID,
        zeroline=True, zerolinecolor=LINE, range=[low - room, high + room],
    )  # fmt: skip
    figure.update_yaxes(row_axis([plain(step.label, 60) for step in found]), **where)


def _draw_moved(
    figure: go.Figure,
    moved: dict[tuple[str, str], list[str]],
    types: list[str],
    styles: dict[str, DeviceStyle],
    row: int,
) -> None:
    where: Any = {"row": row, "col": 1}
    for (op_type, device), ops in moved.items():
        style, named = styles[device], _first([plain(op, 80) for op in ops])
        figure.add_bar(
            **where, orientation="h", y=[types.index(op_type)], x=[len(ops)], marker=style.bar(),
            showlegend=False,
            hovertext=[
                f"<b>{len(ops)} {plain(op_type)}</b> to {style.label}<br>" + "<br>".join(named)
            ],
        )  # fmt: skip
    most = max(map(len, moved.values()), default=0)
    figure.update_xaxes(
        **where, title="number of ops that move, in the colour of the device they go to",
        gridcolor=GRID, rangemode="tozero", zeroline=False, tickformat=",d",
        dtick=1 if most < _FEW_OPS else None,  # or it would be drawn at halves
    )  # fmt: skip
    names = [plain(op_type, 40) for op_type in types] or ["no op moves"]
    figure.update_yaxes(row_axis(names), **where)


def _first(lines: list[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = len(lines) - _MOST_NAMED
    return [*lines[:_MOST_NAMED], *([f"… {more} more"] if more > 0 else [])]


def _label(kind: str, before: str, after: str) -> str:
    if kind == SUBGRAPHS:
        return f"subgraphs on {after}"
    return f"{kind} {before} → {after}" if after else kind
