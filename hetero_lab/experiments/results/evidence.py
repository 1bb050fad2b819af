"""Evidence: which of several measured placements is best, and which of them differ at all.

Every comparison of the questions is made here from the ratios of `statistics`, with the noise that
was measured between compiles: a difference below it is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hetero_lab.experiments.results.sweep.row import Row
from hetero_lab.statistics import (
    Noise,
    Ratio,
    holm,
    largest_noise,
    paired_ratio,
    series_ratio,
    unpaired_ratio,
)

_ALPHA = 0.05
AS_GOOD = 1.01  # a simpler candidate that is slower by no more is preferred
_HOPELESS = 3.0  # times the best; what a single turn shows to be slower
BEST, ALIKE, SLOWER = "best", "as fast", "slower"
Key = TypeVar("Key")


def ratio(ours: Sequence[float], others: Sequence[float], noise: Noise) -> Ratio | None:
    """Return the ratio of the turns that both have, in order; ``None`` without any."""
    common = min(len(ours), len(others))
    return paired_ratio(ours[:common], others[:common], noise) if common else None


def ratio_across(after: Row, before: Row) -> Ratio:
    """Return the ratio of rows of two runs, which were not measured in turn."""
    noise = largest_noise((before.series.noise, after.series.noise))
    return unpaired_ratio(after.levels_us, before.levels_us, noise)


def is_slower(row: Row, best: Row) -> bool:
    """Tell whether a row is slower than the best one beyond the intervals.

    A single turn has no interval. It says little, but shows what is hopeless.
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
    """Say of each candidate whether it is ``best``, ``as fast`` or ``slower``.

    Parameters
    ----------
    us
        The time of each, the simplest first.
    slower
        Tells whether one is slower than the best, beyond the uncertainty.
    preferred
        Which are taken rather than the fastest where they are slower by 1 % at most; all by
        default, so that the simplest is.
    """
    if not us:
        return {}
    fastest = min(us, key=lambda key: us[key])
    simpler = us if preferred is None else [key for key in us if key in {*preferred, fastest}]
    best = next(key for key in simpler if us[key] <= AS_GOOD * us[fastest])
    return {key: BEST if key == best else SLOWER if slower(key, best) else ALIKE for key in us}


@dataclass(frozen=True)
class Decision:
    """Which row to take, why, and whether it beats every baseline."""

    label: str
    verdict: str
    improved: bool


def decide(rows: Mapping[str, Row], baselines: Sequence[str], allowed: Sequence[str]) -> Decision:
    """Decide between planned placements and baselines, as they were measured in turns.

    A planned placement is taken if it is faster than the best baseline by a Holm-corrected
    test. Where the evidence is thin, the baseline is. Baselines that time did not allow to be
    measured are named.

    Parameters
    ----------
    rows
        By label, measured or not.
    baselines, allowed
        The baselines that may be taken, and all that may be taken.
    """
    planned = [label for label in allowed if label not in baselines]
    known = [label for label in baselines if rows[label].series.log_ratios]
    tried = [label for label in planned if rows[label].series.log_ratios]
    left_out = [label for label in baselines if rows[label].was_left_out]
    but = f" There was no time to measure {', '.join(left_out)}." if left_out else ""
    if not known:
        if not tried:
            return Decision(
                (planned or list(baselines))[0],
                f"Nothing that keeps to the limits was measured: this is the plan.{but}",
                False,
            )
        chosen = min(tried, key=lambda label: _ratio_to_reference(rows[label]))
        if left_out:
            return Decision(chosen, f"This is the fastest plan that was measured.{but}", False)
        return Decision(
            chosen, "No baseline keeps to the limits; this is the fastest plan that does.", True
        )
    best = min(known, key=lambda label: _ratio_to_reference(rows[label]))
    tests = [series_ratio(rows[label].series, rows[best].series) for label in tried]
    for label, (ratio, low, high, _), p in sorted(
        zip(tried, tests, holm([test.p for test in tests]), strict=True), key=lambda t: t[1].middle
    ):
        if ratio < 1.0 and p < _ALPHA:
            return Decision(
                label,
                f"{1 - ratio:.1%} faster than {best}, the best baseline (95 % interval "
                f"{1 - high:.1%} to {1 - low:.1%}).{but}",
                True,
            )
    if tried or not planned:
        return Decision(best, f"No plan was measurably faster than {best}.{but}", False)
    return Decision(best, f"No plan was measured beside {best}, the best baseline.{but}", False)


def _ratio_to_reference(row: Row) -> float:
    return row.series.ratio.middle if row.series.ratio else math.inf
