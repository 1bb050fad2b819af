"""Evidence: which of several measured placements is best, and which of them differ at all.

All questions compare placements here, with the ratios of `statistics` and the noise between
compiles: a difference within that noise does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from hetero_lab.experiments.results.sweep.row import Row
from hetero_lab.statistics import (
    Ratio,
    holm,
    largest_noise,
    series_ratio,
    unpaired_ratio,
)

_ALPHA = 0.05
AS_GOOD = 1.01  # a simpler candidate is preferred if it is slower by no more than this factor
_HOPELESS = 3.0  # a single turn shows that a row is slower if it takes this many times the best
BEST, ALIKE, SLOWER = "best", "as fast", "slower"
Key = TypeVar("Key")


def ratio_across(after: Row, before: Row) -> Ratio:
    """Return the ratio of rows of two runs, whose turns are not paired."""
    noise = largest_noise((before.series.noise, after.series.noise))
    return unpaired_ratio(after.levels_us, before.levels_us, noise)


def is_slower(row: Row, best: Row) -> bool:
    """Tell whether a row is slower than the best one beyond the intervals.

    A single turn has no interval: the row counts as slower only if it takes several times as long.
    """
    own, least = row.latency, best.latency
    if own is None or least is None:
        return False
    if math.isfinite(own.high_us):
        return own.low_us > least.high_us
    return own.us > _HOPELESS * least.us


def judged(
    us: Mapping[Key, float],
    slower: Callable[[Key, Key], bool],
    preferred: Collection[Key] | None = None,
) -> dict[Key, str]:
    """Judge each candidate, the simplest first, by its time: ``best``, ``as fast`` or ``slower``.

    ``slower`` tells whether a candidate is slower than the best one, beyond the uncertainty. The
    ``preferred`` candidates are preferred to the fastest if they are at most 1 % slower; by default
    all, so that the simplest of them is chosen.
    """
    if not us:
        return {}
    fastest = min(us, key=lambda key: us[key])
    simpler = us if preferred is None else [key for key in us if key in {*preferred, fastest}]
    best = next(key for key in simpler if us[key] <= AS_GOOD * us[fastest])
    return {key: BEST if key == best else SLOWER if slower(key, best) else ALIKE for key in us}


class Decision(NamedTuple):
    """Which row to take, why, and whether it beats every baseline."""

    label: str
    verdict: str
    improved: bool = False


def decide(rows: Mapping[str, Row], baselines: Sequence[str], allowed: Sequence[str]) -> Decision:
    """Decide between planned placements and baselines that were measured in turn.

    Only ``allowed`` labels may be chosen. A planned placement is chosen if it is faster than the
    best baseline by a Holm-corrected test, otherwise the baseline. The verdict names baselines that
    there was no time to measure.
    """
    planned = [label for label in allowed if label not in baselines]
    known, tried = _fastest_first(rows, baselines), _fastest_first(rows, planned)
    left_out = [label for label in baselines if rows[label].was_left_out]
    but = f" There was no time to measure {', '.join(left_out)}." if left_out else ""
    if not known and not tried:
        verdict = f"Nothing that keeps to the limits was measured: this is the plan.{but}"
        return Decision([*planned, *baselines][0], verdict)
    if not known and left_out:
        return Decision(tried[0], f"This is the fastest plan that was measured.{but}")
    if not known:
        verdict = "No baseline keeps to the limits; this is the fastest plan that does."
        return Decision(tried[0], verdict, improved=True)
    best = known[0]
    tests = [series_ratio(rows[label].series, rows[best].series) for label in tried]
    for label, (ratio, low, high, _), p in sorted(
        zip(tried, tests, holm([test.p for test in tests]), strict=True), key=lambda t: t[1].middle
    ):
        if ratio < 1.0 and p < _ALPHA:
            verdict = (
                f"{1 - ratio:.1%} faster than {best}, the best baseline (95 % interval "
                f"{1 - high:.1%} to {1 - low:.1%}).{but}"
            )
            return Decision(label, verdict, improved=True)
    if tried or not planned:
        return Decision(best, f"No plan was measurably faster than {best}.{but}")
    return Decision(best, f"No plan was measured beside {best}, the best baseline.{but}")


def _fastest_first(rows: Mapping[str, Row], labels: Sequence[str]) -> list[str]:
    ratios = {label: rows[label].series.ratio for label in labels}
    middle = {label: ratio.middle for label, ratio in ratios.items() if ratio is not None}
    return sorted(middle, key=lambda label: middle[label])
