"""Evidence: which of several measured placements is best, and which of them differ at all.

All questions compare placements here, with the ratios of `intervals` and the noise between
compiles: a difference within that noise does not count. There are three answers: a difference was
shown, a large one was excluded (two one-sided tests, TOST; Schuirmann 1987), or it is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from hetero_lab.intervals import (
    Ratio,
    holm,
    largest_noise,
    rank_groups,
    series_ratio,
    unpaired_ratio,
)
from hetero_lab.results.sweep_row import Row

_ALPHA, _IMPROVED = 0.05, 0.01  # of a difference; of a placement that replaces a baseline
AS_GOOD = 1.01  # a simpler candidate is preferred if it is slower by no more than this factor
_HOPELESS = 3.0  # a single turn shows that a row is slower if it takes this many times the best
BEST, FASTER, ALIKE, SLOWER = "best", "faster", "as fast", "slower"
UNDECIDED = "undecided"
MAY_BE_BEST = (FASTER, ALIKE, UNDECIDED)
AS_FAST = 0.05  # as fast is within this share
TOLERANCE = 0.1  # by how much the latency may be worse than promised, unless told otherwise
Key = TypeVar("Key")


def ratio_across(after: Row, before: Row) -> Ratio:
    """Return the ratio of rows of two runs, whose turns are not paired."""
    noise = largest_noise((before.series.noise, after.series.noise))
    return unpaired_ratio(after.levels_us, before.levels_us, noise)


def finding(ratio: Ratio | None, p: float | None = None) -> str:
    """Say whether something is ``faster`` or ``slower`` than another, ``as fast``, or undecided.

    It is as fast if the whole interval of the ratio lies within 5 %. ``p`` is the p-value corrected
    for the number of comparisons.
    """
    if ratio is None:
        return UNDECIDED
    if (ratio.p if p is None else p) < _ALPHA and not ratio.low <= 1.0 <= ratio.high:
        return FASTER if ratio.high < 1.0 else SLOWER
    within = ratio.low >= 1.0 / (1.0 + AS_FAST) and ratio.high <= 1.0 + AS_FAST
    return ALIKE if within else UNDECIDED


def reason(ratio: Ratio | None) -> str:
    """Say where a ratio lies, as the reason of a finding."""
    if ratio is None or not math.isfinite(ratio.high):
        return "too few turns for an interval"
    return f"the interval of the ratio reaches from {ratio.low:.3f} to {ratio.high:.3f}"


def between(row: Row, best: Row) -> Ratio | None:
    """Return the ratio of two rows of a sweep; ``None`` if it has no interval.

    A single turn shows that a row is slower only if it takes several times as long.
    """
    by_turns = series_ratio(row.series, best.series)
    level, best_level = row.latency, best.latency
    if math.isfinite(by_turns.high) or level is None or best_level is None:
        return by_turns
    ratio = level.us / best_level.us
    return Ratio(ratio, ratio / _HOPELESS, math.inf, 0.0) if ratio > _HOPELESS else None


def against_best(ratio: Ratio | None, n: int, looks: int = 1) -> str:
    """Return the finding of a ratio to the best of ``n``, which the same data chose.

    The p-value is corrected for all of their pairs and for how often the data are looked at
    (Bonferroni): of equal candidates, one is always the best by chance.
    """
    tests = looks * n * (n - 1) / 2
    return UNDECIDED if ratio is None else finding(ratio, min(1.0, ratio.p * tests))


def judge_candidates(
    us: Mapping[Key, float],
    ratio: Callable[[Key, Key], Ratio | None],
    preferred: Collection[Key] | None = None,
    *,
    n: int = 0,
    looks: int = 1,
) -> dict[Key, str]:
    """Judge each candidate, the simplest first: ``best``, or a :func:`finding` against that.

    ``ratio`` compares two candidates. The best is the first of the ``preferred`` candidates, by
    default of all, that none is shown to beat; a lead of 1 % or less does not count.
    ``n`` counts those that dropped out as well; ``looks`` is as for :func:`against_best`.
    """
    if not us:
        return {}
    n = n or len(us)
    fastest = min(us, key=lambda key: us[key])
    simpler = us if preferred is None else [key for key in us if key in {*preferred, fastest}]

    def is_beaten(key: Key) -> bool:
        faster = (other for other in us if us[key] > AS_GOOD * us[other])
        return any(against_best(ratio(other, key), n, looks) == FASTER for other in faster)

    best = next(key for key in simpler if not is_beaten(key))
    findings = {key: against_best(ratio(key, best), n, looks) for key in us}
    return findings | {best: BEST}


class Decision(NamedTuple):
    """Which row to take, why, and the finding: the best plan against the best baseline.

    ``findings`` are those of rows that were tested, by label, against the one to take.
    """

    label: str
    verdict: str
    finding: str = UNDECIDED
    findings: Mapping[str, str] = {}


def decide(rows: Mapping[str, Row], baselines: Sequence[str], allowed: Sequence[str]) -> Decision:
    """Decide between planned placements and baselines that were measured in turn.

    Only ``allowed`` labels may be chosen. A planned placement is chosen if it is faster than the
    best baseline by a Holm-corrected test at 1 %, otherwise the baseline. The verdict names
    baselines that there was no time to measure.
    """
    planned = [label for label in allowed if label not in baselines]
    baseline_order, plan_order = fastest_first(rows, baselines), fastest_first(rows, planned)
    left_out = [label for label in baselines if rows[label].was_left_out]
    but = f" There was no time to measure {', '.join(left_out)}." if left_out else ""
    if not baseline_order and not plan_order:
        verdict = f"Nothing that keeps to the limits was measured: this is the plan.{but}"
        return Decision([*planned, *baselines][0], verdict)
    if not baseline_order and left_out:
        return Decision(plan_order[0], f"This plan was measured, and no baseline.{but}")
    if not baseline_order:
        return Decision(plan_order[0], "No baseline keeps to the limits; this plan does.")
    best, name = baseline_order[0], rows[baseline_order[0]].configuration
    if not plan_order:
        return Decision(best, f"{name} is the best baseline; no plan was measured beside it.{but}")
    tests = [series_ratio(rows[label].series, rows[best].series) for label in plan_order]
    corrected = zip(plan_order, tests, holm([test.p for test in tests]), strict=True)
    stricter = _ALPHA / _IMPROVED  # finding() tests at 5 %; a p-value so scaled is tested at 1 %
    findings = [(label, ratio, finding(ratio, p * stricter)) for label, ratio, p in corrected]
    faster = [(label, ratio) for label, ratio, word in findings if word == FASTER]
    if faster:
        label, (ratio, low, high, _) = min(faster, key=lambda one: one[1].middle)
        verdict = (
            f"{1 - ratio:.1%} faster than {name}, the best baseline (95 % interval {1 - high:.1%} "
            f"to {1 - low:.1%}){rows[label].emulation}.{but}"
        )
        return Decision(label, verdict, FASTER, {best: SLOWER})
    label, ratio, word = min(findings, key=lambda one: one[2] != UNDECIDED)
    plan = rows[label].configuration
    verdict = f"No plan was shown to be faster than {name}, the best baseline: {plan} is {word}"
    if word == UNDECIDED:
        verdict = f"Undecided whether {plan} is faster than {name}, the best baseline"
    return Decision(best, f"{verdict}; {reason(ratio)}.{but}", word, {n: w for n, _, w in findings})


def fastest_first(rows: Mapping[str, Row], labels: Iterable[str]) -> list[str]:
    """Return the labels whose ratio to the reference is known, from fast to slow."""
    ratios = {label: rows[label].series.ratio for label in labels}
    middle = {label: ratio.middle for label, ratio in ratios.items() if ratio is not None}
    return sorted(middle, key=lambda label: middle[label])


class Ranking(NamedTuple):
    """The distinct measured rows from fast to slow, host by host.

    Rows of different hosts are never ranked against each other, so ``ranks`` and ``groups`` begin
    at 1 on each host. ``findings`` compare each with the first: ``best``, ``as fast`` within 5 %,
    ``undecided`` or ``slower``. ``smallest_difference`` is the smallest relative difference that
    the run could have shown.
    """

    rows: tuple[Row, ...]
    ranks: tuple[int, ...]
    groups: tuple[int, ...]
    findings: tuple[str, ...]
    smallest_difference: float


def rank(rows: Sequence[Row], decided: Mapping[str, str] | None = None) -> Ranking:
    """Rank rows by latency, and group those that cannot be told apart.

    Findings that were ``decided`` before stand, by label, and the best of them comes first.
    """
    decided, alpha = decided or {}, _IMPROVED if decided else _ALPHA
    apart: dict[tuple[str | None, str], list[Row]] = {}
    for row in rows:
        if row.latency is not None and not row.same_as and row.series.ours:
            apart.setdefault((row.measured_on, row.run), []).append(row)
    ranked: list[tuple[Row, int, int, str]] = []
    resolutions: list[float] = []
    for of_host in apart.values():
        of_host.sort(
            key=lambda row: (decided.get(row.label) != BEST, row.latency.us if row.latency else 0.0)
        )
        groups, from_first, smallest = rank_groups([row.series for row in of_host], alpha)
        words = [
            decided.get(row.label)
            or finding(series_ratio(row.series, of_host[0].series), min(1.0, p * _ALPHA / alpha))
            for row, p in zip(of_host, from_first, strict=True)
        ]
        numbers = range(1, len(of_host) + 1)
        ranked += zip(of_host, numbers, groups, [BEST, *words[1:]], strict=True)
        resolutions.append(smallest)
    ordered, ranks, groups, findings = zip(*ranked, strict=True) if ranked else ((), (), (), ())
    return Ranking(ordered, ranks, groups, findings, max(resolutions, default=math.inf))
