"""Costs of ops by type and device, and predictions: beside measurements, of a difference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.difference import Difference, change, part_name
from hetero_lab.costs.prediction import BOUNDARIES, KINDS, LOST_FUSION, OPS, SPREAD, SUBGRAPHS
from hetero_lab.errors import PlanError
from hetero_lab.results.profile_result import Profile
from hetero_lab.tables import frame_of
from hetero_lab.terminal import count_of
from hetero_lab.views.graph_data import support_sets
from hetero_lab.views.theme import (
    BESIDE,
    BOUNDARY,
    GRID,
    LINE,
    STACKED,
    TEXT,
    TIME_AXIS,
    DeviceStyle,
    ThemedFigure,
    device_styles,
    error_bars,
    finish,
    plain,
    row_axis,
    time_text,
)
from hetero_lab.views.time_figures import counters_of, styles_of

if TYPE_CHECKING:
    import pandas as pd

REORDERS = "reorders"
_MOST_TYPES = 30  # rows; more would not fit a screen
_ROW_PX = 30  # height, for a line of text in a cell
_STRONGEST = 0.42  # opacity of a cell whose ops are all supported: text stays readable on it


def type_cells(source: CostModel | pd.DataFrame, profile: Profile | None = None) -> pd.DataFrame:
    """Count by op type and device, the most frequent types first.

    The columns are ``op_type``, ``device``, ``n_ops``, ``n_supported`` and ``time_us``, which is
    NaN where it is not known. Raises ArgumentError if ``source`` is neither a cost model nor a
    table of support.
    """
    if isinstance(source, CostModel):
        graph = source.graph
        rows = frame_of(
            [
                (op, graph.op(op).type, device, us is not None, us)
                for op, times in source.op_us.items()
                for device, us in zip(source.devices, times, strict=True)
            ],
            ["op", "op_type", "device", "is_supported", "time_us"],
        ).astype({"time_us": float})
    else:
        support_sets(source)  # raises unless it is such a table
        rows = source.melt(["op", "op_type"], var_name="device", value_name="is_supported")
        rows["time_us"] = math.nan
    by_place = ["op_type", "device"]
    cells = rows.groupby(by_place, sort=False, as_index=False).agg(
        n_ops=("op", "size"),
        n_supported=("is_supported", "sum"),
        time_us=("time_us", lambda times: times.sum(min_count=1)),
    )
    if profile is not None:
        times = type_times(profile).loc[:, [*by_place, "time_us"]]
        cells = cells.drop(columns="time_us").merge(times, "left", by_place)
    return cells.sort_values("n_ops", ascending=False, kind="stable", ignore_index=True)


def type_times(profile: Profile) -> pd.DataFrame:
    """Sum the counters by op type and device, the longest first.

    The columns are ``op_type``, ``device``, ``n_ops`` and ``time_us``. An op's time includes the
    ops fused into it. Reorders count as a separate type. Raises MeasurementError without counters.
    """
    graph, rows = profile.graph, []
    for counter in counters_of(profile):
        if counter.status != "EXECUTED":
            continue
        if counter.kind == "reorder":
            op_type = REORDERS
        elif counter.op in graph.index_of:
            op_type = graph.op(counter.op).type
        else:
            op_type = counter.node_type or counter.kind
        op = counter.op if counter.kind == "op" else None
        rows.append((op_type, counter.device, op, float(counter.real_time_us)))
    frame = frame_of(rows, ["op_type", "device", "op", "time_us"])
    times = frame.groupby(["op_type", "device"], as_index=False).agg(
        n_ops=("op", "nunique"), time_us=("time_us", "sum")
    )
    return times.sort_values("time_us", ascending=False, kind="stable", ignore_index=True)


def op_types_by_device(
    source: CostModel | pd.DataFrame,
    profile: Profile | None = None,
    *,
    emulated: Mapping[str, str] | None = None,
) -> go.Figure:
    """Draw op types against devices: the number of supported ops, and their time.

    Parameters
    ----------
    source
        A CostModel, whose times are those of the ops on each device; or the table of
        :func:`hetero_lab.support`, which has no times.
    profile
        Adds to a table the times of the ops where they ran.
    emulated
        Emulated device → the device that really runs it; known from costs and profiles.

    Raises
    ------
    ArgumentError
        ``source`` is something else.
    """
    cells = type_cells(source, profile)
    if isinstance(source, CostModel):
        emulated = {**source.emulated, **(emulated or {})}
    if profile is not None:
        emulated = {**dict(profile.environment.emulated), **(emulated or {})}
    types, devices = (list(cells[name].unique()) for name in ("op_type", "device"))
    top_types = types[:_MOST_TYPES]
    styles = device_styles(devices, emulated)
    figure = ThemedFigure()
    for place, device in enumerate(devices):
        is_drawn = (cells["device"] == device) & cells["op_type"].isin(top_types)
        column = cells.loc[is_drawn].to_dict("records")
        figure.add_heatmap(
            x=[place],
            y=list(range(len(top_types))),
            z=[[cell["n_supported"] / cell["n_ops"]] for cell in column],
            zmin=0,
            zmax=1,
            colorscale=[[0, styles[device].faded(0.0)], [1, styles[device].faded(_STRONGEST)]],
            showscale=False,
            xgap=3,
            ygap=3,
            text=[[_cell_text(cell)] for cell in column],
            texttemplate="%{text}",
            textfont={"color": TEXT, "size": 11},
            hovertext=[[_cell_hover(cell, styles[device].label)] for cell in column],
        )
    left_out = len(types) - len(top_types)
    return finish(
        figure,
        "Op types by device",
        "ops that the device supports, of all; and their time"
        + (f" · {left_out} rarer types are left out" if left_out else ""),
        150 + _ROW_PX * len(top_types),
        (20, 20, 110, 20),
        x={
            "tickvals": list(range(len(devices))),
            "ticktext": [styles[d].label for d in devices],
            "side": "top",
            "showgrid": False,
            "zeroline": False,
            "range": [-0.5, len(devices) - 0.5],
        },
        y=row_axis([plain(t, 30) for t in top_types]),
    )


def _cell_text(cell: Mapping[Any, Any]) -> str:
    count = f"{cell['n_supported']} of {cell['n_ops']}"
    return f"{count} · {time_text(cell['time_us'])}" if cell["time_us"] >= 0 else count


def _cell_hover(cell: Mapping[Any, Any], device: str) -> str:
    time = f"<br>they take {time_text(cell['time_us'])} there" if cell["time_us"] >= 0 else ""
    count = f"{cell['n_supported']} of {cell['n_ops']} ops are supported"
    return f"<b>{plain(cell['op_type'], 40)}</b> on {device}<br>{count}{time}"


def time_by_op_type(profile: Profile) -> go.Figure:
    """Draw the time of each op type by the device that it ran on.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    times = type_times(profile)
    totals = times.groupby("op_type", sort=False)["time_us"].sum()
    types = list(totals.sort_values(ascending=False, kind="stable").index[:_MOST_TYPES])
    total = totals.sum()
    figure = ThemedFigure()
    for device, style in styles_of(profile).items():
        rows = times.loc[(times["device"] == device) & times["op_type"].isin(types)]
        figure.add_bar(
            orientation="h",
            name=style.label,
            y=[types.index(op_type) for op_type in rows["op_type"]],
            x=rows["time_us"].tolist(),
            marker=style.bar(),
            hovertext=[_bar_hover(row, style.label, total) for row in rows.to_dict("records")],
        )
    left_out = len(totals) - len(types)
    return finish(
        figure,
        f"Time by op type of {plain(profile.configuration, 80)}",
        "by the counters; a fused op's time is with the op that it runs in"
        + (f" · {left_out} shorter types are left out" if left_out else ""),
        160 + 24 * len(types),
        (20, 20, 100, 50),
        x=TIME_AXIS,
        y=row_axis([plain(op_type, 30) for op_type in types]),
        **STACKED,
    )


def _bar_hover(row: Mapping[Any, Any], device: str, total_us: float) -> str:
    share = f", {row['time_us'] / total_us:.1%} of all" if total_us else ""
    ops = f"<br>{count_of(row['n_ops'], 'op')} and the ops fused into them" if row["n_ops"] else ""
    return (
        f"<b>{plain(row['op_type'], 40)}</b> on {device}<br>{time_text(row['time_us'])}{share}{ops}"
    )


# Not a colour that stands for a device: a placement uses several.
_POINT = "#b0413e"
_BAND = 0.05  # relative half width of the band that shows how far a point is off
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
    lowest = max(0.0, min(reached, default=math.inf) - room)
    heights = [min(ends[0], lowest), max(ends[1], max(reached, default=0.0) + room)]
    figure = ThemedFigure()
    line = {"color": LINE, "width": 1.5, "dash": "dot"}
    figure.add_scatter(x=ends, y=ends, mode="lines", name="predicted = measured", line=line)
    figure.add_scatter(
        x=[*ends, *reversed(ends)],
        y=[end * (1 + _BAND) for end in ends] + [end * (1 - _BAND) for end in reversed(ends)],
        fill="toself",
        fillcolor=GRID,
        line={"width": 0},
        mode="lines",
        name=f"± {_BAND:.0%}",
    )
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
        centre = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
        figure.add_annotation(text="Not validated: calibrate with a larger budget", **centre)
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


_MOST_MOVED, _OTHERS = 12, "other types"
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
    details: Sequence[str] = ()
    interval_us: tuple[float, float] | None = None


def steps(difference: Difference) -> list[WaterfallStep]:
    """Return the waterfall from before to after, then the whole difference."""
    result: list[WaterfallStep] = []
    at_us = 0.0
    if difference.predicted_ns is not None:
        groups: Any = difference.parts.groupby(["kind", "before", "after"])
        for key, rows in sorted(groups, key=lambda group: (KINDS.index(group[0][0]), *group[0])):
            us = round(float(rows["difference_us"].sum()), 3)
            lines = [f"{part_name(p)}: {change(p.difference_us)}" for p in rows.itertuples()]
            result.append(WaterfallStep(key[0], _label(*key), key[2], at_us, us, _first(lines)))
            at_us = round(at_us + us, 3)
        result.append(WaterfallStep("predicted", "predicted difference", "", 0.0, at_us))
    if (timed := difference.measurement) is not None:
        interval = (timed.low_us, timed.high_us) if math.isfinite(timed.high_us) else None
        us = timed.difference_us
        result.append(
            WaterfallStep("measured", "measured difference", "", 0.0, us, interval_us=interval)
        )
    return result


def moved_types(difference: Difference) -> dict[tuple[str, str], list[str]]:
    """Return the ops that move by type and target device, the most frequent types first."""
    moved = difference.moved
    top_types = {op_type for op_type, _ in Counter(moved["op_type"]).most_common(_MOST_MOVED)}
    types = moved["op_type"].where(moved["op_type"].isin(top_types), _OTHERS)
    totals = Counter(types)
    groups: Any = moved.groupby([types, "after"])
    grouped = {key: list(rows["op"]) for key, rows in groups}
    order = sorted(grouped, key=lambda key: (key[0] not in top_types, -totals[key[0]], *key))
    return {key: grouped[key] for key in order}


def difference(difference: Difference) -> go.Figure:
    """Draw where the difference comes from as a waterfall, and the ops that move below it.

    Each bar begins where the one above it ends; to the left is faster. A bar has the colour of
    the device that does the work: the one where the ops go, or that receives the tensor.
    """
    bars, moved = steps(difference), moved_types(difference)
    types = list(dict.fromkeys(op_type for op_type, _ in moved))
    devices = [*difference.before.affinity.devices, *difference.after.affinity.devices]
    styles = device_styles(devices, difference.emulated)
    sizes = ([len(bars)] if bars else []) + ([max(1, len(types))] if moved or not bars else [])
    height = 160 + sum(90 + _ROW_PX * size for size in sizes)
    figure = make_subplots(
        rows=len(sizes), cols=1, row_heights=sizes, vertical_spacing=90 / (height - 160)
    )
    if bars:
        _draw_steps(figure, bars, styles)
    if moved or not bars:
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
    figure: go.Figure, bars: list[WaterfallStep], styles: dict[str, DeviceStyle]
) -> None:
    where: Any = {"row": 1, "col": 1}
    for place, step in enumerate(bars):
        style = styles.get(step.device)
        marker = style.bar(_OPACITY[step.kind]) if style else {"color": _GREYS[step.kind]}
        error, text = {}, ""
        if step.interval_us is not None:
            low, high = step.interval_us
            error = error_bars([(step.difference_us, low, high)], color=TEXT, thickness=1.5)
            text = f" [{change(low)}, {change(high)}]"
        figure.add_bar(
            **where,
            orientation="h",
            y=[place],
            x=[step.difference_us],
            base=[step.start_us],
            marker=marker,
            showlegend=False,
            error_x=error,
            hovertext=[
                f"<b>{plain(step.label)}</b>: {change(step.difference_us)}{text}"
                + "".join(f"<br>{plain(line, 160)}" for line in step.details)
            ],
        )
    ends = [0.0]
    for step in bars:
        ends += [step.start_us, step.start_us + step.difference_us, *(step.interval_us or ())]
    low, high = min(ends), max(ends)
    room = 0.04 * (high - low) or 1.0
    # In a separate column, where no bar can be.
    texts = [f"  {change(step.difference_us)}" for step in bars]
    places = {"x": [high + room] * len(bars), "y": list(range(len(bars)))}
    figure.add_scatter(**where, **places, **BESIDE, text=texts, showlegend=False)
    figure.update_xaxes(
        **where,
        title="difference in latency (µs), left of 0: faster",
        gridcolor=GRID,
        zeroline=True,
        zerolinecolor=LINE,
        range=[low - room, high + room],
    )
    figure.update_yaxes(row_axis([plain(step.label, 60) for step in bars]), **where)


def _draw_moved(
    figure: go.Figure,
    moved: dict[tuple[str, str], list[str]],
    types: list[str],
    styles: dict[str, DeviceStyle],
    row: int,
) -> None:
    where: Any = {"row": row, "col": 1}
    for (op_type, device), ops in moved.items():
        style, lines = styles[device], _first([plain(op, 80) for op in ops])
        figure.add_bar(
            **where,
            orientation="h",
            y=[types.index(op_type)],
            x=[len(ops)],
            marker=style.bar(),
            showlegend=False,
            hovertext=[
                f"<b>{len(ops)} {plain(op_type)}</b> to {style.label}<br>" + "<br>".join(lines)
            ],
        )
    most = max(map(len, moved.values()), default=0)
    figure.update_xaxes(
        **where,
        title="number of ops that move, in the colour of the device they go to",
        gridcolor=GRID,
        rangemode="tozero",
        zeroline=False,
        tickformat=",d",
        dtick=1 if most < 5 else None,  # or it would be drawn at halves
    )
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
