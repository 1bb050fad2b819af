"""Op types by device: what is supported, and where the time goes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.views.graph.data import supported_ops
from hetero_lab.views.text import plain, time_text
from hetero_lab.views.theme import GRID, TEXT, base_layout, device_styles, row_axis

if TYPE_CHECKING:
    import pandas as pd

REORDERS = "reorders at boundaries"
_MOST_TYPES = 30
_ROW_PX = 30
_STRONGEST = 0.42  # opacity of a cell whose ops are all supported: text stays readable on it


@dataclass(frozen=True)
class TypeCell:
    """Ops of one type on one device: how many there are, how many it supports, their time.

    ``time_us`` is ``None`` where it is not known.
    """

    op_type: str
    device: str
    n_ops: int
    n_supported: int
    time_us: float | None


@dataclass(frozen=True)
class TypeTime:
    """Time of the ops of one type that ran on one device, with all that is fused into them."""

    op_type: str
    device: str
    n_ops: int
    time_us: float


def type_cells(
    source: CostModel | pd.DataFrame, profile: Profile | None = None
) -> tuple[TypeCell, ...]:
    """Count by op type and device, the most frequent types first.

    Raises
    ------
    ArgumentError
        ``source`` is neither a cost model nor a table of support.
    """
    if isinstance(source, CostModel):
        return _cells_of_costs(source)
    able = supported_ops(source)
    types = list(source["op_type"])
    counts = Counter(types)
    supported = {
        device: Counter(t for op, t in zip(source["op"], types, strict=True) if op in able[device])
        for device in able
    }
    times = {(t.op_type, t.device): t.time_us for t in type_times(profile)} if profile else {}
    return tuple(
        TypeCell(t, d, n, supported[d][t], times.get((t, d)))
        for t, n in counts.most_common()
        for d in able
    )


def _cells_of_costs(costs: CostModel) -> tuple[TypeCell, ...]:
    graph = costs.graph
    counts: Counter[str] = Counter()
    supported: Counter[tuple[str, str]] = Counter()
    times: dict[tuple[str, str], float] = {}
    for unit in costs.units:
        shares = unit.shares or (1.0 / len(unit.ops),) * len(unit.ops)
        for op, share in zip(unit.ops, shares, strict=True):
            op_type = graph.ops[graph.index_of[op]].type
            counts[op_type] += 1
            for device, time in zip(costs.devices, unit.time_us, strict=True):
                if time is not None:
                    key = (op_type, device)
                    supported[key] += 1
                    times[key] = times.get(key, 0.0) + share * time
    return tuple(
        TypeCell(t, d, n, supported[t, d], times.get((t, d)))
        for t, n in counts.most_common()
        for d in costs.devices
    )


def type_times(profile: Profile) -> tuple[TypeTime, ...]:
    """Sum the counters by op type and device, the longest first; reorders are a type of their own.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    if not profile.counters:
        raise MeasurementError("This profile has no counters. Profile with counters=True.")
    graph = profile.graph
    times: dict[tuple[str, str], float] = {}
    ops: dict[tuple[str, str], set[str]] = {}
    for counter in profile.counters:
        if counter.status != "EXECUTED":
            continue
        if counter.op in graph.index_of:
            op_type = graph.ops[graph.index_of[counter.op]].type
        else:
            op_type = REORDERS if counter.kind == "reorder" else counter.node_type or counter.kind
        key = (REORDERS if counter.kind == "reorder" else op_type, counter.device)
        times[key] = times.get(key, 0.0) + counter.real_time_us
        ops.setdefault(key, set()).update([counter.op] if counter.kind == "op" else ())
    return tuple(
        TypeTime(*key, len(ops[key]), float(us))
        for key, us in sorted(times.items(), key=lambda item: (-item[1], item[0]))
    )


def op_types_by_device(
    source: CostModel | pd.DataFrame,
    profile: Profile | None = None,
    *,
    emulated: Mapping[str, str] | None = None,
) -> go.Figure:
    """Draw op types against devices: how many ops a device supports, and what they take there.

    Parameters
    ----------
    source
        A CostModel, whose times are those of the ops on each device; or the table of
        :func:`hetero_lab.support`, which has no times.
    profile
        With a table: times of the ops where they ran.
    emulated
        Emulated device → the device that really runs it; costs and profiles know it.

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
    types = list(dict.fromkeys(cell.op_type for cell in cells))
    shown = types[:_MOST_TYPES]
    devices = list(dict.fromkeys(cell.device for cell in cells))
    styles = device_styles(devices, emulated)
    by_place = {(cell.op_type, cell.device): cell for cell in cells}
    figure = go.Figure()
    for place, device in enumerate(devices):
        column = [by_place[op_type, device] for op_type in shown]
        figure.add_heatmap(
            x=[place], y=list(range(len(shown))),
            z=[[cell.n_supported / cell.n_ops] for cell in column], zmin=0, zmax=1,
            colorscale=[[0, styles[device].faded(0.0)], [1, styles[device].faded(_STRONGEST)]],
            showscale=False, xgap=3, ygap=3, text=[[_cell_text(cell)] for cell in column],
            texttemplate="%{text}", textfont={"color": TEXT, "size": 11}, hoverinfo="text",
            hovertext=[[_cell_hover(cell, styles[device].label)] for cell in column],
        )  # fmt: skip
    left_out = len(types) - len(shown)
    figure.update_layout(
        **base_layout(
            "Op types by device",
            "ops that the device supports, of all; and their time"
            + (f" · {left_out} rarer types are left out" if left_out else ""),
        ),
        height=150 + _ROW_PX * len(shown),
        margin={"l": 20, "r": 20, "t": 110, "b": 20},
    )
    figure.update_xaxes(
        tickvals=list(range(len(devices))), ticktext=[styles[d].label for d in devices],
        side="top", showgrid=False, zeroline=False, range=[-0.5, len(devices) - 0.5],
    )  # fmt: skip
    figure.update_yaxes(
        tickvals=list(range(len(shown))), ticktext=[plain(t, 30) for t in shown],
        automargin=True, showgrid=False, zeroline=False, range=[len(shown) - 0.5, -0.5],
        ticklabelstandoff=6,
    )  # fmt: skip
    return figure


def _cell_text(cell: TypeCell) -> str:
    count = f"{cell.n_supported} of {cell.n_ops}"
    return count if cell.time_us is None else f"{count} · {time_text(cell.time_us)}"


def _cell_hover(cell: TypeCell, device: str) -> str:
    lines = [
        f"<b>{plain(cell.op_type, 40)}</b> on {device}",
        f"{cell.n_supported} of {cell.n_ops} ops are supported",
    ]
    if cell.time_us is not None:
        lines.append(f"they take {time_text(cell.time_us)} there")
    return "<br>".join(lines)


def time_by_op_type(profile: Profile) -> go.Figure:
    """Draw the time of each op type by the device that it ran on.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    found = type_times(profile)
    totals: defaultdict[str, float] = defaultdict(float)
    for row in found:
        totals[row.op_type] += row.time_us
    types = sorted(totals, key=totals.__getitem__, reverse=True)[:_MOST_TYPES]
    devices = list(dict.fromkeys(s.device for s in profile.partition.subgraphs))
    styles = device_styles(devices, dict(profile.environment.emulated))
    total = sum(row.time_us for row in found)
    figure = go.Figure()
    for device, style in styles.items():
        own = [row for row in found if row.device == device and row.op_type in types]
        figure.add_bar(
            orientation="h", name=style.label,
            y=[types.index(row.op_type) for row in own], x=[row.time_us for row in own],
            marker=style.bar(),
            hovertext=[_bar_hover(row, style.label, total) for row in own], hoverinfo="text",
        )  # fmt: skip
    left_out = len(totals) - len(types)
    figure.update_layout(
        **base_layout(
            f"Time by op type of {plain(profile.label, 60)}",
            "by the counters; a fused op's time is with the op that it runs in"
            + (f" · {left_out} shorter types are left out" if left_out else ""),
        ),
        barmode="stack",
        bargap=0.25,
        height=160 + 24 * len(types),
        margin={"l": 20, "r": 20, "t": 100, "b": 50},
        showlegend=True,
        legend_traceorder="normal",
    )
    figure.update_xaxes(title="time (µs)", gridcolor=GRID, rangemode="tozero", zeroline=False)
    figure.update_yaxes(row_axis([plain(op_type, 30) for op_type in types]))
    return figure


def _bar_hover(row: TypeTime, device: str, total_us: float) -> str:
    share = f", {row.time_us / total_us:.1%} of all" if total_us else ""
    lines = [f"<b>{plain(row.op_type, 40)}</b> on {device}", f"{time_text(row.time_us)}{share}"]
    if row.n_ops:
        lines.append(f"{row.n_ops} op{'s' * (row.n_ops != 1)} and what is fused into them")
    return "<br>".join(lines)
