"""Op types by device: which are supported, and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.results.profile_result import Profile
from hetero_lab.tables import frame_of
from hetero_lab.terminal import count_of
from hetero_lab.views.graph_data import known_support
from hetero_lab.views.theme import (
    STACKED,
    TEXT,
    TIME_AXIS,
    ThemedFigure,
    device_styles,
    finish,
    plain,
    row_axis,
    time_text,
)
from hetero_lab.views.time_figures import counters_of, styles_of

if TYPE_CHECKING:
    import pandas as pd

REORDERS = "reorders"
_MOST_TYPES = 30
_ROW_PX = 30
_STRONGEST = 0.42  # opacity of a cell whose ops are all supported: text stays readable on it


def type_cells(source: CostModel | pd.DataFrame, profile: Profile | None = None) -> pd.DataFrame:
    """Count by op type and device, the most frequent types first.

    The columns are ``op_type``, ``device``, ``n_ops``, ``n_supported`` and ``time_us``, which is
    NaN where it is not known. Raises ArgumentError if ``source`` is neither a cost model nor a
    table of support.
    """
    if isinstance(source, CostModel):
        rows = _rows_of_costs(source)
    else:
        known_support(source)  # raises unless it is such a table
        rows = source.melt(["op", "op_type"], var_name="device", value_name="is_supported")
        rows["time_us"] = math.nan
    by_place = ["op_type", "device"]
    found = rows.groupby(by_place, sort=False, as_index=False).agg(
        n_ops=("op", "size"),
        n_supported=("is_supported", "sum"),
        time_us=("time_us", lambda times: times.sum(min_count=1)),
    )
    if profile is not None:
        times = type_times(profile).loc[:, [*by_place, "time_us"]]
        found = found.drop(columns="time_us").merge(times, "left", by_place)
    return found.sort_values("n_ops", ascending=False, kind="stable", ignore_index=True)


def _rows_of_costs(costs: CostModel) -> pd.DataFrame:
    """Return one row per op and device."""
    graph = costs.graph
    rows = [
        (op, graph.op(op).type, device, us is not None, us)
        for op, times in costs.op_us.items()
        for device, us in zip(costs.devices, times, strict=True)
    ]
    columns = ["op", "op_type", "device", "is_supported", "time_us"]
    return frame_of(rows, columns).astype({"time_us": float})


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
    found = frame.groupby(["op_type", "device"], as_index=False).agg(
        n_ops=("op", "nunique"), time_us=("time_us", "sum")
    )
    return found.sort_values("time_us", ascending=False, kind="stable", ignore_index=True)


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
    shown = types[:_MOST_TYPES]
    styles = device_styles(devices, emulated)
    figure = ThemedFigure()
    for place, device in enumerate(devices):
        own = cells.loc[(cells["device"] == device) & cells["op_type"].isin(shown)]
        column = own.to_dict("records")
        figure.add_heatmap(
            x=[place], y=list(range(len(shown))),
            z=[[cell["n_supported"] / cell["n_ops"]] for cell in column], zmin=0, zmax=1,
            colorscale=[[0, styles[device].faded(0.0)], [1, styles[device].faded(_STRONGEST)]],
            showscale=False, xgap=3, ygap=3, text=[[_cell_text(cell)] for cell in column],
            texttemplate="%{text}", textfont={"color": TEXT, "size": 11},
            hovertext=[[_cell_hover(cell, styles[device].label)] for cell in column],
        )  # fmt: skip
    left_out = len(types) - len(shown)
    return finish(
        figure,
        "Op types by device",
        "ops that the device supports, of all; and their time"
        + (f" · {left_out} rarer types are left out" if left_out else ""),
        150 + _ROW_PX * len(shown),
        (20, 20, 110, 20),
        x={
            "tickvals": list(range(len(devices))), "ticktext": [styles[d].label for d in devices],
            "side": "top", "showgrid": False, "zeroline": False,
            "range": [-0.5, len(devices) - 0.5],
        },
        y=row_axis([plain(t, 30) for t in shown]),
    )  # fmt: skip


def _cell_text(cell: Mapping[Any, Any]) -> str:
    count = f"{cell['n_supported']} of {cell['n_ops']}"
    return f"{count} · {time_text(cell['time_us'])}" if cell["time_us"] >= 0 else count


def _cell_hover(cell: Mapping[Any, Any], device: str) -> str:
    lines = [
        f"<b>{plain(cell['op_type'], 40)}</b> on {device}",
        f"{cell['n_supported']} of {cell['n_ops']} ops are supported",
    ]
    if cell["time_us"] >= 0:
        lines.append(f"they take {time_text(cell['time_us'])} there")
    return "<br>".join(lines)


def time_by_op_type(profile: Profile) -> go.Figure:
    """Draw the time of each op type by the device that it ran on.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    found = type_times(profile)
    totals = found.groupby("op_type", sort=False)["time_us"].sum()
    types = list(totals.sort_values(ascending=False, kind="stable").index[:_MOST_TYPES])
    total = totals.sum()
    figure = ThemedFigure()
    for device, style in styles_of(profile).items():
        own = found.loc[(found["device"] == device) & found["op_type"].isin(types)]
        figure.add_bar(
            orientation="h", name=style.label,
            y=[types.index(op_type) for op_type in own["op_type"]], x=own["time_us"].tolist(),
            marker=style.bar(),
            hovertext=[_bar_hover(row, style.label, total) for row in own.to_dict("records")],
        )  # fmt: skip
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
    lines = [
        f"<b>{plain(row['op_type'], 40)}</b> on {device}",
        f"{time_text(row['time_us'])}{share}",
    ]
    if row["n_ops"]:
        lines.append(f"{count_of(row['n_ops'], 'op')} and the ops fused into them")
    return "<br>".join(lines)
