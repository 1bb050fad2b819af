"""The tables of a Sweep, its text and its HTML."""

from __future__ import annotations

import html
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.experiments.profile import tables as profile_tables
from hetero_lab.experiments.sweep.accuracy import summary_columns
from hetero_lab.statistics import paired_ratio, rank_groups
from hetero_lab.tables import TEXT_COLUMNS, Tables, html_table, number

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.experiments.sweep.result import Row, Sweep

_OF_EACH = ["subgraphs", "counters", "boundaries", "placement", "agreement", "transitions"]


def build(sweep: Sweep) -> Tables:
    """Return all tables of a sweep by name."""
    import pandas as pd

    measured = [row for row in sweep.rows if row.profile is not None]
    tables = Tables(
        {
            "summary": _frame([_summary(row, sweep) for row in sweep.rows]),
            "ranking": _ranking(sweep),
            "samples": pd.DataFrame(
                [
                    {
                        "label": row.label,
                        "host": _host(row),
                        "turn": turn,
                        "index": index,
                        "latency_us": sample,
                    }
                    for row in measured
                    for turn, samples in enumerate(row.profile.latency.turns)  # type: ignore[union-attr]
                    for index, sample in enumerate(samples)
                ],
                columns=["label", "host", "turn", "index", "latency_us"],
            ),
        }
    )
    for of_each in _OF_EACH:
        frames = []
        for row in measured:
            tables_of_row = row.profile.tables  # type: ignore[union-attr]
            if of_each not in tables_of_row:  # without counters there are no transitions
                continue
            frame = tables_of_row[of_each].copy()
            frame.insert(0, "label", row.label)
            frame.insert(1, "host", _host(row))
            if len(frame):
                frames.append(frame)
        key = "placements" if of_each == "placement" else of_each
        tables[key] = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    tables["notes"] = pd.DataFrame({"finding": list(sweep.notes)}, dtype="str")
    return tables


def rank(sweep: Sweep) -> tuple[list[Row], list[int], float]:
    """Return the distinct measured rows from fast to slow, their groups, and what could be seen.

    Host by host: rows of two hosts are never ranked against each other, so groups begin at 1 on
    each.
    """
    every: list[Row] = []
    groups: list[int] = []
    could_be_seen: list[float] = []
    for host in sweep.hosts:
        rows = [
            row
            for row in sweep.rows
            if row.profile is not None
            and _host(row) == host
            and not row.same_as
            and row.series.ours
        ]
        if rows:
            rows.sort(key=_speed)
            of_host, smallest = rank_groups([row.series for row in rows])
            every += rows
            groups += of_host
            could_be_seen.append(smallest)
    return every, groups, max(could_be_seen, default=float("inf"))


def row_name(sweep: Sweep, row: Row) -> str:
    """Return what a row is called where its host is not told beside it."""
    return f"{row.label} @ {row.host}" if row.host and len(sweep.hosts) > 1 else row.label


def _host(row: Row) -> str | None:
    return row.profile.environment.host if row.profile else row.host or None


def text(sweep: Sweep) -> str:
    """Return the ranking as text for a terminal."""
    ranking = sweep.ranking
    distinct = sum(not row.same_as for row in sweep.rows)
    lines = [f"{distinct} placements, ratios to {sweep.reference!r} (below 1 is faster)"]
    if len(ranking):
        shown = ranking[_shown(sweep)].copy()
        for column in ("median_us", "ratio", "ratio_ci95_low", "ratio_ci95_high"):
            shown[column] = [number(v) for v in shown[column]]
        for column in shown.columns.intersection(["accuracy", "accuracy_drop"]):
            shown[column] = ["" if v != v else f"{v:.2%}" for v in shown[column]]
        shown["label"] = [
            label if len(label) <= 60 else label[:59] + "…" for label in shown["label"]
        ]
        lines.append(shown.to_string(index=False))
        lines.append(_what_could_be_seen(sweep))
    lines += [
        f"{row_name(sweep, row)}: {row.status}{': ' + row.detail[:200] if row.detail else ''}"
        for row in sweep.rows
        if row.status != "ok"
    ]
    return "\n".join([*lines, *sweep.notes]) + "\n"


def as_html(sweep: Sweep) -> str:
    """Return the ranking and what went wrong as escaped HTML."""
    parts = [
        html_table(
            sweep.ranking.loc[:, _shown(sweep)] if len(sweep.ranking) else sweep.summary,
            repr(sweep),
        )
    ]
    if len(sweep.ranking):
        parts.append(f"<p>{html.escape(_what_could_be_seen(sweep))}</p>")
    failed = sweep.summary.loc[
        sweep.summary["status"] != "ok",
        [*(["host"] if len(sweep.hosts) > 1 else []), "label", "status", "detail"],
    ]
    if len(failed):
        parts.append(html_table(failed, caption="What went wrong"))
    parts += [f"<p>{html.escape(note)}</p>" for note in sweep.notes]
    return "".join(parts)


_SHOWN = [
    "rank", "group", "label", "n_subgraphs", "median_us", "ratio", "ratio_ci95_low",
    "ratio_ci95_high", "emulated",
]  # fmt: skip


def _shown(sweep: Sweep) -> list[str]:
    accuracy = ["accuracy", "accuracy_drop"] if _is_labelled(sweep) else []
    return [*(["host"] if len(sweep.hosts) > 1 else []), *_SHOWN, *accuracy]


def _is_labelled(sweep: Sweep) -> bool:
    return any(row.evaluation is not None and row.evaluation.is_labelled for row in sweep.rows)


def _what_could_be_seen(sweep: Sweep) -> str:
    smallest = sweep.smallest_difference
    if not np.isfinite(smallest):
        return "Too few turns to tell placements apart; give it more time with budget_s=."
    return (
        "Placements of one group cannot be told apart; the smallest difference that this run "
        f"could have shown is {smallest:.1%}."
    )


def _speed(row: Row) -> float:
    logs = list(row.series.log_ratios.values())
    if logs:
        return float(np.mean(logs))
    assert row.profile is not None
    return float(np.log(row.profile.latency.median_us))


def _ratio(row: Row) -> tuple[float | None, float | None, float | None]:
    common = [at for at in row.series.ours if at in row.series.reference]
    if not common:
        return None, None, None
    ours = [row.series.ours[at] for at in common]
    ratio, low, high, _ = paired_ratio(ours, [row.series.reference[at] for at in common])
    return ratio, low, high


def _summary(row: Row, sweep: Sweep) -> dict[str, Any]:
    own: dict[str, Any] = {"label": row.label, "status": row.status}
    if row.profile is not None:
        own = {**profile_tables.summary_row(row.profile), **own}
    ratio, low, high = _ratio(row) if row.profile is not None else (None, None, None)
    median = own.get("median_us")
    sustained = (
        float(np.median(row.sustained_us[-len(row.sustained_us) // 3 :]))
        if (row.sustained_us)
        else None
    )
    columns = {
        **dict.fromkeys(profile_tables.SUMMARY_COLUMNS),
        **own,
        "detail": row.detail,
        "variant": row.variant,
        "weight_bytes": row.profile.graph.weight_bytes if row.profile is not None else None,
        "executor": row.executor,
        "requests": row.requests,
        "throughput_per_s": 1e6 / median if median else None,
        "ratio": ratio,
        "ratio_ci95_low": low,
        "ratio_ci95_high": high,
        "n_turns": len(row.series.ours),
        "sustained_us": sustained,
        "same_as": row.same_as,
        "baseline": row.baseline,
        "reference": row.label == sweep.reference,
        "host": _host(row),
        "hetero_lab_version": row.profile.environment.hetero_lab_version if row.profile else None,
    }
    if any(other.evaluation is not None for other in sweep.rows):
        columns |= summary_columns(row.evaluation)
    first = [
        "label", "status", "n_subgraphs", "boundary_bytes", "median_us", "p90_us", "ci95_low_us",
        "ci95_high_us", "ratio", "ratio_ci95_low", "ratio_ci95_high",
    ]  # fmt: skip
    return {name: columns[name] for name in [*first, *(c for c in columns if c not in first)]}


def _ranking(sweep: Sweep) -> pd.DataFrame:
    rows, groups, _ = rank(sweep)
    columns = [*_RANKED, *(_ACCURACY if _is_labelled(sweep) else [])]
    ranks: Counter[str | None] = Counter()
    shown = []
    for row, group in zip(rows, groups, strict=True):
        ranks[_host(row)] += 1
        summary = _summary(row, sweep)
        shown.append(
            {
                "rank": ranks[_host(row)],
                "group": group,
                **{k: summary[k] for k in columns},
                "labels": "\n".join(
                    [
                        row.label,
                        *(
                            r.label
                            for r in sweep.rows
                            if r.same_as == row.label and r.host == row.host
                        ),
                    ]
                ),
            }
        )
    return _frame(shown, columns=["rank", "group", *columns, "labels"])


def _frame(rows: list[dict[str, Any]], columns: list[str] | None = None) -> pd.DataFrame:
    """Return rows as a table; a number that no row has is a hole of the same type as one."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=columns)
    holes = [c for c in frame if len(frame) and c not in TEXT_COLUMNS and frame[c].isna().all()]
    return frame.astype(dict.fromkeys(holes, float))


_ACCURACY = [
    "accuracy", "accuracy_ci95_low", "accuracy_ci95_high", "accuracy_drop",
    "accuracy_drop_ci95_low", "accuracy_drop_ci95_high",
]  # fmt: skip
_RANKED = [
    "label", "variant", "executor", "requests", "n_subgraphs", "boundary_bytes", "median_us",
    "ci95_low_us", "ci95_high_us", "ratio", "ratio_ci95_low", "ratio_ci95_high", "baseline",
    "emulated", "host",
]  # fmt: skip
