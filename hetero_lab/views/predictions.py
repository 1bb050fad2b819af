"""Predictions: beside what was measured, and the predicted difference of two placements."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hetero_lab.errors import PlanError
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.difference import (
    BOUNDARIES,
    KINDS,
    LOST_FUSION,
    OPS,
    SPREAD,
    SUBGRAPHS,
    Difference,
    Part,
    change,
    part_name,
)
from hetero_lab.views.text import plain, time_text
from hetero_lab.views.theme import (
    BOUNDARY,
    GRID,
    LINE,
    TEXT,
    DeviceStyle,
    base_layout,
    device_styles,
    row_axis,
)

# Not a colour that stands for a device: a placement uses several.
_POINT = "#b0413e"
_BAND = 0.05


@dataclass(frozen=True)
class ValidationPoints:
    """The points and the range of both axes; times in µs."""

    labels: tuple[str, ...]
    predicted_us: tuple[float, ...]
    measured_us: tuple[float, ...]
    low_us: float
    high_us: float


def validation_points(costs: CostModel) -> ValidationPoints:
    """Return the validation placements of a cost model; none if it was not validated."""
    rows = costs.validation_rows
    predicted = tuple(row.predicted_us for row in rows)
    measured = tuple(row.measured_us for row in rows)
    least, most = (
        min((*predicted, *measured), default=0.0),
        max((*predicted, *measured), default=1.0),
    )
    room = 0.08 * (most - least) or 0.08 * most or 1.0
    return ValidationPoints(
        labels=tuple(row.label for row in rows),
        predicted_us=predicted,
        measured_us=measured,
        low_us=max(0.0, least - room),
        high_us=most + room,
    )


def predicted_measured(costs: CostModel) -> go.Figure:
    """Draw predicted over measured latency of the placements that the fit has not seen.

    Points on the diagonal are predicted exactly; above it the prediction is too high. Of a cost
    model that was not validated the figure has no points and says so.
    """
    found = validation_points(costs)
    ends = [found.low_us, found.high_us]
    figure = go.Figure()
    figure.add_scatter(
        x=ends, y=ends, mode="lines", name="predicted = measured", hoverinfo="skip",
        line={"color": LINE, "width": 1.5, "dash": "dot"},
    )  # fmt: skip
    figure.add_scatter(
        x=[*ends, *reversed(ends)],
        y=[end * (1 + _BAND) for end in ends] + [end * (1 - _BAND) for end in reversed(ends)],
        fill="toself", fillcolor=GRID, line={"width": 0}, mode="lines", name=f"± {_BAND:.0%}",
        hoverinfo="skip",
    )  # fmt: skip
    figure.add_scatter(
        x=found.measured_us,
        y=found.predicted_us,
        mode="markers",
        name="placement",
        showlegend=False,
        marker={"size": 10, "color": _POINT, "line": {"width": 1, "color": BOUNDARY}},
        hovertext=[
            f"<b>{plain(label, 200)}</b><br>measured {time_text(measured)}<br>"
            f"predicted {time_text(predicted)} ({predicted / measured - 1:+.1%})"
            for label, predicted, measured in zip(
                found.labels, found.predicted_us, found.measured_us, strict=True
            )
        ],
        hoverinfo="text",
    )
    n = len(found.labels)
    figure.update_layout(
        **base_layout(
            f"Predicted, measured: {_errors(costs) if n else 'not validated'}",
            f"{plain(costs.graph.name, 60)} on {plain(', '.join(costs.devices), 60)} · "
            f"{n} placement{'s' * (n != 1)} that the fit has not seen",
        ),
        width=700,
        height=660,
        margin={"l": 80, "r": 30, "t": 100, "b": 60},
    )
    if not n:
        figure.add_annotation(
            text="Not validated: calibrate with a larger budget_s", showarrow=False,
            x=0.5, y=0.5, xref="paper", yref="paper",
        )  # fmt: skip
    axis = {"gridcolor": GRID, "zeroline": False, "range": ends, "ticklabelstandoff": 4}
    figure.update_xaxes(**axis, title="measured latency (µs)")
    figure.update_yaxes(**axis, title="predicted latency (µs)", automargin=True)
    return figure


def _errors(costs: CostModel) -> str:
    mape = f"MAPE {costs.mape:.1%}"
    try:
        return f"{mape}, R² {_minus(costs.r2)}"
    except PlanError:  # all took the same time
        return mape


def _minus(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


_ROW_PX = 30
_MOST_TYPES = 12
_FEW_OPS = 5
_MOST_NAMED = 8  # parts and ops that a hover names
_GREYS = {LOST_FUSION: LINE, SPREAD: "#d3d8e0", "predicted": "#6f7783", "measured": "#aeb4be"}
_OPACITY = {OPS: 1.0, SUBGRAPHS: 0.7, BOUNDARIES: 0.45}


@dataclass(frozen=True)
class WaterfallStep:
    """One bar of the waterfall, in µs from ``start_us``; ``device`` is empty where none does it.

    ``kind`` is that of the parts, or ``predicted`` or ``measured`` for the whole difference.
    """

    kind: str
    label: str
    device: str
    start_us: float
    difference_us: float
    details: tuple[str, ...] = ()
    interval_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class MovedType:
    """Ops of one type that move to one device."""

    op_type: str
    device: str
    ops: tuple[str, ...]


def steps(difference: Difference) -> list[WaterfallStep]:
    """Return the waterfall from before to after, then the predicted and the measured difference."""
    found: list[WaterfallStep] = []
    grouped: dict[tuple[str, str, str], list[Part]] = {}
    for part in difference.predicted_parts or ():
        key = (part.kind, part.device_before, part.device_after)
        grouped.setdefault(key, []).append(part)
    at_ns = 0
    for key in sorted(grouped, key=lambda key: (KINDS.index(key[0]), *key[1:])):
        parts = grouped[key]
        ns = sum(part.difference_ns for part in parts)
        details = tuple(
            f"{part_name(part)}: {change(part.difference_ns / 1000.0)}"
            for part in parts[:_MOST_NAMED]
        )
        more = (f"… {len(parts) - _MOST_NAMED} more",) if len(parts) > _MOST_NAMED else ()
        found.append(
            WaterfallStep(key[0], _label(*key), key[2], at_ns / 1000.0, ns / 1000.0, details + more)
        )
        at_ns += ns
    if difference.predicted_parts is not None:
        found.append(WaterfallStep("predicted", "predicted difference", "", 0.0, at_ns / 1000.0))
    if difference.measurement is not None:
        timed = difference.measurement
        interval = (timed.low_us, timed.high_us) if math.isfinite(timed.high_us) else None
        found.append(
            WaterfallStep(
                "measured", "measured difference", "", 0.0, timed.difference_us, (), interval
            )
        )
    return found


def moved_types(difference: Difference) -> list[MovedType]:
    """Return the ops that move by type and target, the most frequent types first."""
    counts = Counter(op.op_type for op in difference.moved)
    shown = {op_type for op_type, _ in counts.most_common(_MOST_TYPES)}
    grouped: dict[tuple[str, str], list[str]] = {}
    for op in difference.moved:
        op_type = op.op_type if op.op_type in shown else "other types"
        grouped.setdefault((op_type, op.after), []).append(op.op)
    totals = Counter(
        op.op_type if op.op_type in shown else "other types" for op in difference.moved
    )
    order = sorted(grouped, key=lambda key: (key[0] not in shown, -totals[key[0]], *key))
    return [MovedType(*key, tuple(grouped[key])) for key in order]


def difference(difference: Difference) -> go.Figure:
    """Draw where the difference comes from as a waterfall, and the ops that move below it.

    Each bar begins where the one above it ends; to the left is faster. A bar has the colour of
    the device that does the work: the one where the ops go, or that receives the tensor.
    """
    found, moved = steps(difference), moved_types(difference)
    types = list(dict.fromkeys(row.op_type for row in moved))
    devices = dict.fromkeys(
        [*difference.before.affinity.devices, *difference.after.affinity.devices]
    )
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
    n, of = len(difference.moved), len(difference.before.affinity.ops)
    figure.update_layout(
        **base_layout(
            f"From {plain(difference.before.label, 40)} to {plain(difference.after.label, 40)}",
            f"{n} of {of} ops move · {difference.before.partition.n_subgraphs} → "
            f"{difference.after.partition.n_subgraphs} subgraphs · "
            f"{difference.before.partition.boundary_bytes:,} → "
            f"{difference.after.partition.boundary_bytes:,} boundary bytes · hatched: emulated",
        ),
        barmode="stack",
        bargap=0.3,
        height=height,
        margin={"l": 20, "r": 110, "t": 110, "b": 50},
        showlegend=True,
    )
    return figure


def _draw_steps(
    figure: go.Figure, found: list[WaterfallStep], styles: dict[str, DeviceStyle]
) -> None:
    where: Any = {"row": 1, "col": 1}
    for place, step in enumerate(found):
        style = styles.get(step.device)
        marker = style.bar(_OPACITY[step.kind]) if style else {"color": _GREYS[step.kind]}
        error = {}
        if step.interval_us is not None:
            error = {
                "type": "data", "symmetric": False, "color": TEXT, "thickness": 1.5,
                "array": [step.interval_us[1] - step.difference_us],
                "arrayminus": [step.difference_us - step.interval_us[0]],
            }  # fmt: skip
        interval = step.interval_us
        text = f" [{change(interval[0])}, {change(interval[1])}]" if interval else ""
        figure.add_bar(
            **where, orientation="h", y=[place], x=[step.difference_us], base=[step.start_us],
            marker=marker, showlegend=False, error_x=error, hoverinfo="text",
            hovertext=[
                f"<b>{plain(step.label)}</b>: {change(step.difference_us)}{text}"
                + "".join(f"<br>{plain(line, 160)}" for line in step.details)
            ],
        )  # fmt: skip
    ends = [_extent(step) for step in found]
    low, high = min(0.0, *(end[0] for end in ends)), max(0.0, *(end[1] for end in ends))
    room = 0.04 * (high - low) or 1.0
    # In a column of their own, where no bar can be.
    figure.add_scatter(
        **where, x=[high + room] * len(found), y=list(range(len(found))), mode="text",
        text=[f"  {change(step.difference_us)}" for step in found], cliponaxis=False,
        textposition="middle right", textfont={"color": TEXT, "size": 11}, hoverinfo="skip",
        showlegend=False,
    )  # fmt: skip
    figure.update_xaxes(
        **where, title="difference in latency (µs), left of 0: faster", gridcolor=GRID,
        zeroline=True, zerolinecolor=LINE, range=[low - room, high + room],
    )  # fmt: skip
    figure.update_yaxes(row_axis([plain(step.label, 60) for step in found]), **where)


def _draw_moved(
    figure: go.Figure,
    moved: list[MovedType],
    types: list[str],
    styles: dict[str, DeviceStyle],
    row: int,
) -> None:
    where: Any = {"row": row, "col": 1}
    for kind in moved:
        named = [plain(op, 80) for op in kind.ops[:_MOST_NAMED]]
        named += [f"… {len(kind.ops) - _MOST_NAMED} more"] if len(kind.ops) > _MOST_NAMED else []
        figure.add_bar(
            **where, orientation="h", y=[types.index(kind.op_type)], x=[len(kind.ops)],
            marker=styles[kind.device].bar(), showlegend=False, hoverinfo="text",
            hovertext=[
                f"<b>{len(kind.ops)} {plain(kind.op_type)}</b> to {styles[kind.device].label}<br>"
                + "<br>".join(named)
            ],
        )  # fmt: skip
    most = max((len(kind.ops) for kind in moved), default=0)
    figure.update_xaxes(
        **where, title="number of ops that move, in the colour of the device they go to",
        gridcolor=GRID, rangemode="tozero", zeroline=False, tickformat=",d",
        dtick=1 if most < _FEW_OPS else None,  # or it would be drawn at halves
    )  # fmt: skip
    names = [plain(op_type, 40) for op_type in types] or ["no op moves"]
    figure.update_yaxes(row_axis(names), **where)


def _extent(step: WaterfallStep) -> tuple[float, float]:
    places = [step.start_us, step.start_us + step.difference_us, *(step.interval_us or ())]
    return min(places), max(places)


def _label(kind: str, before: str, after: str) -> str:
    if kind == SUBGRAPHS:
        return f"subgraphs on {after}"
    return f"{kind} {before} → {after}" if after else kind
