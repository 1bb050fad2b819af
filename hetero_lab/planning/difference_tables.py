"""The tables of a Difference, and its HTML."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.planning.difference import Difference, Side


def summary(difference: Difference) -> pd.DataFrame:
    """Return the rows ``a``, ``b`` and ``difference``."""
    rows = [_side("a", difference.before), _side("b", difference.after)]
    counted = ["n_ops_moved", "n_subgraphs", "n_boundaries", "boundary_bytes"]
    rows.append(
        {"placement": "difference", "label": "b − a", **_minus(rows[1], rows[0], counted[1:])}
    )
    for row, n in zip(rows, (0, 0, len(difference.moved)), strict=True):
        row["n_ops_moved"] = n
    columns = ["placement", "label", *counted]
    if difference.predicted_parts is not None:
        for row, side in zip(rows, (difference.before, difference.after), strict=False):
            row["predicted_us"] = side.predicted_us
        rows[2]["predicted_us"] = difference.predicted_us
        columns.append("predicted_us")
    if difference.measurement is not None:
        timed = difference.measurement
        values = [
            (timed.before_us, *timed.before_ci95_us),
            (timed.after_us, *timed.after_ci95_us),
            (timed.difference_us, timed.low_us, timed.high_us),
        ]
        names = ["measured_us", "measured_ci95_low_us", "measured_ci95_high_us"]
        for row, numbers in zip(rows, values, strict=True):
            row.update(zip(names, numbers, strict=True))
        columns += names
    return _frame(rows, columns)


def ops(difference: Difference) -> pd.DataFrame:
    """Return one row per op that moves."""
    priced = difference.predicted_parts is not None
    rows = [
        {
            "op": op.op,
            "op_type": op.op_type,
            "before": op.before,
            "after": op.after,
            **(_times(op.before_ns or 0, op.after_ns or 0) if priced else {}),
        }
        for op in difference.moved
    ]
    return _frame(rows, ["op", "op_type", "before", "after", *(_TIMES if priced else [])])


def devices(difference: Difference) -> pd.DataFrame:
    """Return one row per device: its ops before and after, arrivals and departures."""
    before, after = difference.before.affinity.counts(), difference.after.affinity.counts()
    rows = [
        {
            "device": device,
            "before": before.get(device, 0),
            "after": after.get(device, 0),
            "arrived": sum(op.after == device for op in difference.moved),
            "left": sum(op.before == device for op in difference.moved),
        }
        for device in dict.fromkeys([*before, *after])
    ]
    return _frame(rows, ["device", "before", "after", "arrived", "left"])


def subgraphs(difference: Difference) -> pd.DataFrame:
    """Return one row per subgraph that only one of the placements has."""
    rows = [
        {
            "change": change.change,
            "device": change.device,
            "n_ops": len(change.ops),
            "ops": "\n".join(change.ops),
        }
        for change in difference.subgraph_changes
    ]
    return _frame(rows, ["change", "device", "n_ops", "ops"])


def boundaries(difference: Difference) -> pd.DataFrame:
    """Return one row per tensor and pair of devices whose number of hand-overs differs."""
    prices = {
        (part.name, part.device_before, part.device_after): part.difference_ns
        for part in difference.predicted_parts or ()
        if part.kind == "boundaries"
    }
    rows = [
        {
            "tensor": change.tensor,
            "source_device": change.source_device,
            "target_device": change.target_device,
            "n_bytes": change.n_bytes,
            "change": change.change,
            "n_before": change.n_before,
            "n_after": change.n_after,
            "difference_us": prices.get(
                (change.tensor, change.source_device, change.target_device), 0
            )
            / 1000.0,
        }
        for change in difference.boundary_changes
    ]
    columns = [
        "tensor", "source_device", "target_device", "n_bytes", "change", "n_before", "n_after",
    ]  # fmt: skip
    priced = difference.predicted_parts is not None
    return _frame(rows, [*columns, *(["difference_us"] if priced else [])])


def kinds(difference: Difference) -> pd.DataFrame:
    """Return one row per kind of part, the constant too, and the total."""
    _ = difference.priced  # says what is missing without costs
    before, after = difference.before.kinds_ns or {}, difference.after.kinds_ns or {}
    rows = [{"kind": kind, **_times(before[kind], after[kind])} for kind in before]
    rows.append({"kind": "total", **_times(sum(before.values()), sum(after.values()))})
    return _frame(rows, ["kind", *_TIMES])


def parts(difference: Difference) -> pd.DataFrame:
    """Return one row per part that differs, largest first."""
    rows = [
        {
            "kind": part.kind,
            "name": part.name,
            "before": part.device_before,
            "after": part.device_after,
            **_times(part.before_ns, part.after_ns),
        }
        for part in difference.priced
    ]
    # Of a boundary these are the devices that it leaves and enters, whichever placement has it.
    return _frame(rows, ["kind", "name", "before", "after", *_TIMES])


def measured(difference: Difference) -> pd.DataFrame:
    """Return the rows ``ops``, ``rest`` (where counters tell) and ``latency``."""
    timed = difference.timed
    rows: list[dict[str, Any]] = []
    predicted: dict[str, float] = {}
    if difference.predicted_parts is not None:
        of_ops = sum(p.difference_ns for p in difference.priced if p.kind in ("ops", "lost fusion"))
        whole = sum(p.difference_ns for p in difference.priced)
        predicted = {"ops": of_ops / 1000.0, "rest": (whole - of_ops) / 1000.0}
        predicted["latency"] = whole / 1000.0
    if timed.ops_before_us is not None and timed.ops_after_us is not None:
        by_counters = timed.ops_after_us - timed.ops_before_us
        rows.append({"part": "ops", "measured_us": by_counters})
        rows.append({"part": "rest", "measured_us": timed.difference_us - by_counters})
    rows.append(
        {
            "part": "latency",
            "measured_us": timed.difference_us,
            "measured_ci95_low_us": timed.low_us,
            "measured_ci95_high_us": timed.high_us,
        }
    )
    columns = ["part", "measured_us", "measured_ci95_low_us", "measured_ci95_high_us"]
    if predicted:
        rows = [{**row, "predicted_us": predicted[row["part"]]} for row in rows]
        columns.insert(1, "predicted_us")
    return _frame(rows, columns)


def as_html(difference: Difference) -> str:
    """Return sentences and tables as escaped HTML."""
    from hetero_lab.planning.difference_words import sentences
    from hetero_lab.tables import html_table

    shown = [f"<p>{html.escape(line)}</p>" for line in sentences(difference)]
    shown.append(html_table(summary(difference)))
    if difference.predicted_parts:
        shown.append(
            html_table(parts(difference), caption="Where the difference comes from", most=20)
        )
    if difference.moved:
        shown.append(html_table(ops(difference), caption="Ops that move", most=20))
    return "".join(shown)


_TIMES = ["before_us", "after_us", "difference_us"]


def _times(before_ns: int, after_ns: int) -> dict[str, float]:
    values = (before_ns, after_ns, after_ns - before_ns)
    return {name: ns / 1000.0 for name, ns in zip(_TIMES, values, strict=True)}


def _side(name: str, side: Side) -> dict[str, Any]:
    return {
        "placement": name,
        "label": side.label,
        "n_subgraphs": side.partition.n_subgraphs,
        "n_boundaries": len(side.partition.boundaries),
        "boundary_bytes": side.partition.boundary_bytes,
    }


def _minus(after: dict[str, Any], before: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: after[key] - before[key] for key in keys}


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)
