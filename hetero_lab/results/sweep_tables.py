"""The tables of a Sweep, its text and its HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.errors import names_at_hand, shorten
from hetero_lab.results import profile_tables
from hetero_lab.results.environment import emulation
from hetero_lab.results.evaluation import RANKED_ACCURACY, summary_columns
from hetero_lab.results.evidence import ALIKE, BEST, UNDECIDED, Ranking
from hetero_lab.results.profile_tables import INTERVAL
from hetero_lab.results.sweep_row import Row
from hetero_lab.tables import TEXT_COLUMNS, Tables, frame_of, number, text_table, time_text
from hetero_lab.terminal import count_of, one_line

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS, _MORE = 5, "… "  # of the short text, and what begins the number of the others
_NOISY = 10.0  # an interval whose ends are so many times apart comes from noise alone
# Tables that hold those of all profiles, under the names that they have there.
_OF_EACH = {
    "samples": "latency",
    "subgraphs": "subgraphs",
    "counters": "counters",
    "boundaries": "boundaries",
    "placements": "placement",
    "agreement": "agreement",
    "transitions": "transitions",
}
# Latency columns of a profile; a sweep has them twice, raw and on the scale of its reference.
_RAW = ["median_us", "p90_us", "ci95_low_us", "ci95_high_us"]
_RATIO = ["ratio", "ratio_ci95_low", "ratio_ci95_high"]
# Columns that come first in a summary, and those of a ranking, in a file and on a screen.
_FIRST = ["label", "configuration", "status", "n_subgraphs", "boundary_bytes", *_RAW, *_RATIO]
_SETTING = ["label", "configuration", "variant", "executor", "requests"]
_TIMES = [*INTERVAL, "throughput_per_s", *_RATIO]
_RANKED = [*_SETTING, "n_subgraphs", "boundary_bytes", *_TIMES, "baseline", "emulated", "host"]
_RANK = ["rank", "group", "configuration", "n_subgraphs"]
_SHOWN = [*_RANK, *_TIMES, "finding", "emulated", "accuracy"]
_TTFT = ["ttft_ms", "ttft_ci95_low_ms", "ttft_ci95_high_ms"]
_TPOT = ["tpot_ms", "tpot_ci95_low_ms", "tpot_ci95_high_ms"]
_GENERATED = [*_TTFT, *_TPOT, "tokens_per_s", "tokens_per_s_ci95_low", "tokens_per_s_ci95_high"]


def build(rows: Sequence[Row], ranking: Ranking, reference: str, notes: Sequence[str]) -> Tables:
    """Return all tables of a sweep by name, first the summary, which ``to_csv`` writes.

    ``reference`` is the label of the reference.
    """
    import pandas as pd

    measured = [(row, row.profile) for row in rows if row.profile is not None]
    evaluated = any(row.evaluation is not None for row in rows)
    generates = any(profile.generation is not None for _, profile in measured)
    summary = [_summary(row, reference, evaluated=evaluated, generates=generates) for row in rows]
    tables = Tables({"summary": _frame(summary), "ranking": _ranking(rows, summary, ranking)})
    for name, of_profile in _OF_EACH.items():
        frames = []
        for row, profile in measured:
            frame = profile.tables.get(of_profile, pd.DataFrame())
            if len(frame):
                frame = frame.drop(columns="label", errors="ignore")
                frame.insert(0, "label", row.label)
                frame.insert(1, "host", row.measured_on)
                frames.append(frame)
        empty = pd.DataFrame(columns=["label", "host", *profile_tables.COLUMNS[of_profile]])
        tables[name] = pd.concat(frames, ignore_index=True) if frames else empty
    tables["notes"] = pd.DataFrame({"finding": list(notes)}, dtype="str")
    return tables


def text(
    tables: Tables, heading: str, remarks: Sequence[str], most: int | None = _MOST_ROWS
) -> str:
    """Return the verdict, the ranking, failures and remarks as text for a terminal.

    At most ``most`` rows are shown, and half as many failures and remarks; ``None`` shows all.
    """
    ranking = tables["ranking"]
    failures = []
    for row in _failures(tables).to_dict("records"):
        host = f" @ {row['host']}" if isinstance(row.get("host"), str) else ""
        detail = f": {row['detail']}" if row["detail"] else ""
        failures.append(one_line(f"{row['label']}{host}: {row['status']}{detail}", 300))
    lines = [*filter(None, [verdict(tables)]), heading]
    if len(ranking):
        first = ranking_and_failures(tables)[""].iloc[:most].drop(columns="throughput_per_s")
        names = [one_line(name, 80) for name in first["configuration"]]
        lines.append(text_table(first.assign(configuration=names)))
        lines += _more(len(ranking), most, "placement")
    few = None if most is None else most // 2
    for listed, noun in ((failures, "failure"), (list(remarks), "note")):
        lines += [*listed[:few], *_more(len(listed), few, noun)]
    positions = [at for at, line in enumerate(lines) if line.startswith(_MORE)]
    for at in positions[-1:]:
        lines[at] += "; the sweep's report() shows all, on the command line --table"
    return "\n".join(lines) + "\n"


def verdict(tables: Tables) -> str:
    """Say which placement is fastest, which ones are as fast, and for which that is undecided."""
    ranking = tables["ranking"]
    if not len(ranking) or "finding" not in ranking or ranking["host"].nunique() > 1:
        return ""
    open_ = ranking.loc[ranking["finding"].isin([BEST, UNDECIDED])]
    for row in open_.to_dict("records"):
        intervals = ((row["ci95_low_us"], row["ci95_high_us"], time_text),)
        intervals += ((row["ratio_ci95_low"], row["ratio_ci95_high"], number),)
        for low, high, write in intervals:
            if low * _NOISY < high < np.inf:
                reach = f"{shorten(row['configuration'], 80)} reaches from {write(low)} to"
                return f"Too noisy to rank: the interval of {reach} {write(high)}."
    best = ranking.iloc[0]
    word = "Fastest" if best["median_us"] <= ranking["median_us"].min() else "Best"
    text = f"{word}: {shorten(best['configuration'], 80)}, {time_text(best['median_us'])}"
    text += f" ({number(best['throughput_per_s'])} a second)"
    references = tables["summary"].loc[tables["summary"]["reference"]]
    is_reference = best["label"] in set(references["label"])
    if best["ratio"] == best["ratio"] and not is_reference:
        bounds = (best[f"ratio_ci95_{end}"] for end in ("low", "high"))
        ends = (f"{bound:.3f}".replace("inf", "∞") for bound in bounds)
        compared = [shorten(name, 80) for name in references["configuration"]] or ["the reference"]
        text += f", {best['ratio']:.3f} of the time of {compared[0]} (95 %: {' to '.join(ends)})"
        emulated = best["emulated"]  # NaN for none, in a table that was read
        text += emulation(emulated.split(",") if emulated and emulated == emulated else [])
    for word, phrase in ((ALIKE, "as fast, within 5 %"), (UNDECIDED, "undecided")):
        names = list(ranking.loc[ranking["finding"] == word, "configuration"])
        if names:
            text += f"; {phrase}: {names_at_hand(names, 2)}"
    return f"{text}."


def _more(n: int, most: int | None, noun: str) -> list[str]:
    return [f"{_MORE}{count_of(n - most, f'more {noun}')}"] if most is not None and n > most else []


def ranking_and_failures(tables: Tables) -> dict[str, pd.DataFrame]:
    """Return the ranking and the failures, each under its title."""
    ranking, failed = tables["ranking"], _failures(tables)
    names = [name for name in [*_host_column(tables), *_SHOWN] if name in ranking]
    main = ranking.loc[:, names] if len(ranking) else tables["summary"]
    return {"": main, **({"Failures": failed} if len(failed) else {})}


def distinct(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the measured rows of a summary, each placement once."""
    if not len(summary):  # it has no columns then
        return summary
    return summary.loc[summary["median_us"].notna() & (summary["same_as"] == "")]


def _failures(tables: Tables) -> pd.DataFrame:
    summary, columns = tables["summary"], [*_host_column(tables), "label", "status", "detail"]
    if not len(summary):
        return summary.reindex(columns=columns)
    return summary.loc[summary["status"] != "ok", columns]


def _host_column(tables: Tables) -> list[str]:
    hosts = {host for host in tables["summary"].get("host", ()) if isinstance(host, str) and host}
    return ["host"] if len(hosts) > 1 else []


def resolution_note(ranking: Ranking) -> str:
    """Say which differences the run could have shown."""
    if not ranking.smallest_difference <= 1.0:
        return (
            "Too few turns, or too much noise, to tell placements apart; give it more time with "
            "budget_s=, on a quiet machine."
        )
    return (
        "Placements of one group cannot be told apart; the smallest difference that this run "
        f"could have shown is {ranking.smallest_difference:.1%}."
    )


def _summary(row: Row, reference: str, *, evaluated: bool, generates: bool) -> dict[str, Any]:
    profile, scaled = row.profile, row.scaled_profile
    measured: dict[str, Any] = {"configuration": row.name or row.label}
    if scaled is not None:  # under the name of the row that was measured
        label = row.name or row.same_as or row.label
        measured = profile_tables.summary_row(replace(scaled, label=label))
    ratio, low, high, _ = row.series.ratio if profile and row.series.ratio else [None] * 4
    median = measured.get("median_us")
    settled = row.sustained_us[-len(row.sustained_us) // 3 :]
    columns = {
        **dict.fromkeys([*_FIRST, *profile_tables.SUMMARY_COLUMNS]),
        **measured,
        "label": row.label,
        "status": row.status,
        "detail": row.detail,
        "variant": row.variant,
        "weight_bytes": profile.graph.weight_bytes if profile else None,
        "executor": row.executor,
        "requests": row.requests,
        "throughput_per_s": 1e6 / median if median else None,
        "ratio": ratio,
        "ratio_ci95_low": low,
        "ratio_ci95_high": high,
        "n_turns": len(row.series.ours),
        "sustained_us": float(np.median(settled)) if settled else None,
        "same_as": row.same_as,
        "baseline": row.baseline,
        "reference": row.label == reference,
        "host": row.measured_on,
        "hetero_lab_version": profile.environment.hetero_lab_version if profile else None,
    }
    if evaluated:
        columns |= summary_columns(row.evaluation)
    if generates:
        columns |= dict.fromkeys(_GENERATED)
        if profile and profile.generation and row.latency:
            columns |= profile_tables.generation_columns(profile.generation, row.latency)
    factor = profile.latency.median_us / columns["median_us"] if profile else None
    return {
        **columns,
        **{f"raw_{name}": factor and factor * columns[name] for name in _RAW},
        "compile_spread": row.series.spread if profile else None,
        "noise_measured": row.series.noise.is_measured if profile else None,
    }


def _ranking(
    rows: Sequence[Row], summary: Sequence[dict[str, Any]], ranking: Ranking
) -> pd.DataFrame:
    summaries = {id(row): cells for row, cells in zip(rows, summary, strict=True)}
    is_labelled = any(row.evaluation is not None and row.evaluation.is_labelled for row in rows)
    generates = any("tpot_ms" in cells for cells in summary)
    columns = [
        *_RANKED,
        *(RANKED_ACCURACY if is_labelled else []),
        *(_GENERATED if generates else []),
    ]
    labels: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        labels.setdefault((row.same_as or row.label, row.host), []).append(row.label)
    lines = [
        {
            "rank": number,
            "group": group,
            "finding": word,
            **{name: summaries[id(row)][name] for name in columns},
            "labels": "\n".join(labels[row.label, row.host]),
        }
        for row, number, group, word in zip(
            ranking.rows, ranking.ranks, ranking.groups, ranking.findings, strict=True
        )
    ]
    return _frame(lines, columns=["rank", "group", "finding", *columns, "labels"])


def _frame(rows: list[dict[str, Any]], columns: list[str] | None = None) -> pd.DataFrame:
    """Return rows as a table; a column of numbers that no row has is of type float, too."""
    frame = frame_of(rows, columns)
    holes = [c for c in frame if len(frame) and c not in TEXT_COLUMNS and frame[c].isna().all()]
    return frame.astype(dict.fromkeys(holes, float))
