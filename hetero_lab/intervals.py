"""Intervals: of latencies, over samples in turns, and of shares of right answers.

Inferences that follow each other are not independent, turns nearly are, so intervals are
bootstrapped over turns (Efron 1979) where there are several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hetero_lab.errors import ArgumentError
from hetero_lab.tables import time_text

_Z_95 = 1.959963984540054  # 97.5 % of the normal distribution
_LEAST_LOG_P = -300.0  # smaller p-values are 0
_ALPHA = 0.05  # of the test by which two placements differ
# The half width of an interval, in standard deviations from compile to compile, that more turns
# hardly narrow.
NARROWEST = 1.1 * _Z_95
_TRIMMED = 0.2  # of each end: one disturbed turn of five does not count
_BATCHES = 10  # of a long run: so few that each outlasts what keeps a machine busy
_RESAMPLES = 2000  # 50 lie beyond each end of a 95 % interval
_LEAST_RESAMPLES = 200  # then still 5 do
_MOST_DRAWN = 40_000_000  # values drawn in all resamples together
_DRAWN_AT_ONCE = 1_000_000  # values, 8 MB
_SEED = 20260101  # any: equal samples have equal intervals
# Standard deviation of the log level of a run: all that a process runs can be faster or slower by a
# fifth than in another one, minutes apart on a quiet machine.
_BETWEEN_RUNS = 0.1
_SHOWN_US = 0.05  # less is no number to show
_FEW = 5  # fewer turns than this say little; then single samples are resampled


@dataclass(frozen=True)
class Noise:
    """How much two compiles of one placement differ: memory and cores fall differently.

    No number of turns averages that out. The default was seen on CPUs; what
    :func:`hetero_lab.measure_noise` measured on this host takes its place.

    Attributes
    ----------
    relative, absolute_us
        Standard deviation of the ratio of the two latencies, and of their difference in µs.
    n_compiles
        How many compiles that was measured on; 0 if it is assumed.
    measured_at
        When, in ISO 8601; empty if it is assumed.
    """

    relative: float = 0.005
    absolute_us: float = 1.9
    n_compiles: int = 0
    measured_at: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether it was measured here rather than assumed."""
        return self.n_compiles > 0

    @property
    def when_busy(self) -> Noise:
        """What it is where other processes keep cores busy: twice as much.

        With one of two cores kept busy, A/A runs scattered 2.2 and 3.4 times as far from sweep to
        sweep: enough on one machine (0 of 40 told apart), rather too little on another (8 of 30).
        """
        return replace(self, relative=2.0 * self.relative, absolute_us=2.0 * self.absolute_us)

    def spread(self, latency_us: float) -> float:
        """Return the standard deviation of the log ratio of two compiles that take so long."""
        return float(np.hypot(self.relative, self.absolute_us / latency_us))

    def __str__(self) -> str:
        how = f"measured on {self.n_compiles} compiles" if self.is_measured else "assumed"
        fixed = f" and {time_text(self.absolute_us)}" if self.absolute_us >= _SHOWN_US else ""
        return f"{self.relative:.2%}{fixed} ({how})"


ASSUMED_NOISE = Noise()


def assumed_noise(device: str) -> Noise:
    """Return what is assumed of a device until it is measured.

    Processes that share a graphics card differ more: by 12.5 % for inferences of 0.4 ms on the one
    that was measured.
    """
    off_cpu = device.startswith(("GPU", "NPU"))
    return replace(ASSUMED_NOISE, relative=0.1) if off_cpu else ASSUMED_NOISE


def largest_noise(noises: Iterable[Noise]) -> Noise:
    """Return a noise that none of these exceeds; without any, what is assumed."""
    several = list(noises) or [ASSUMED_NOISE]
    return Noise(
        max(noise.relative for noise in several),
        max(noise.absolute_us for noise in several),
        min(noise.n_compiles for noise in several),
        min(noise.measured_at for noise in several),
    )


@dataclass(frozen=True)
class Estimate:
    """A latency in µs with its interval."""

    us: float
    low_us: float
    high_us: float


@dataclass(frozen=True)
class Latency:
    """Steady-state latency: the samples of each turn, in microseconds."""

    turns: tuple[tuple[float, ...], ...]

    @cached_property
    def samples_us(self) -> np.ndarray:
        """All samples in order, shape ``[n]``, in µs."""
        return np.array([s for turn in self.turns for s in turn], dtype=np.float64)

    @cached_property
    def median_us(self) -> float:
        """Median in µs."""
        return float(np.median(self.samples_us))

    @cached_property
    def p90_us(self) -> float:
        """90th percentile in µs."""
        return float(np.percentile(self.samples_us, 90))

    @cached_property
    def p99_us(self) -> float:
        """99th percentile in µs."""
        return float(np.percentile(self.samples_us, 99))

    @cached_property
    def mad_us(self) -> float:
        """Median absolute deviation from the median in µs."""
        return float(np.median(np.abs(self.samples_us - self.median_us)))

    @cached_property
    def ci95_us(self) -> tuple[float, float]:
        """95 % bootstrap confidence interval of the median in µs."""
        return median_interval(self.turns)

    @cached_property
    def estimate(self) -> Estimate:
        """The median with its interval."""
        return Estimate(self.median_us, *self.ci95_us)

    def scaled(self, factor: float) -> Latency:
        """Return it on another scale."""
        return Latency(tuple(tuple(factor * sample for sample in turn) for turn in self.turns))

    def __len__(self) -> int:
        return len(self.samples_us)

    def __repr__(self) -> str:
        low, high = self.ci95_us
        return (
            f"Latency(median {self.median_us:.1f} µs, 95 % [{low:.1f}, {high:.1f}], "
            f"p90 {self.p90_us:.1f} µs, {len(self)} samples in {len(self.turns)} turns)"
        )


def median_interval(turns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return a 95 % percentile-bootstrap interval of the median (Efron and Tibshirani 1993).

    Resamples whole turns where there are at least five, single samples otherwise. A very long
    measurement is resampled less often: its interval is narrow, and time and memory are not free.
    """
    from scipy import stats

    arrays = [np.asarray(turn, dtype=np.float64) for turn in turns if len(turn)]
    every = np.concatenate(arrays)
    if len(every) < 2:
        return float(every[0]), float(every[0])
    units = arrays if len(arrays) >= _FEW else list(every.reshape(-1, 1))
    length = max(len(unit) for unit in units)
    table = np.array([np.pad(u, (0, length - len(u)), constant_values=np.nan) for u in units])
    middle_of = np.nanmedian if np.isnan(table).any() else np.median

    def medians(picks: np.ndarray, axis: int) -> np.ndarray:
        del axis  # always the last one
        return middle_of(table[picks].reshape(*picks.shape[:-1], -1), axis=-1)

    seed: Any = {"random_state": np.random.default_rng(_SEED)}  # `rng` since SciPy 1.15
    low, high = stats.bootstrap(
        (np.arange(len(table)),),
        medians,
        n_resamples=int(np.clip(_MOST_DRAWN // len(every), _LEAST_RESAMPLES, _RESAMPLES)),
        batch=max(1, _DRAWN_AT_ONCE // len(every)),
        method="percentile",
        **seed,
    ).confidence_interval
    # The median of the data always lies in its own interval, and this among the data.
    middle, least, most = float(np.median(every)), float(every.min()), float(every.max())
    return max(least, min(float(low), middle)), min(most, max(float(high), middle))


def centred(levels_us: Sequence[float], us: float) -> list[float]:
    """Return levels scaled so that their geometric mean is ``us``."""
    logs = np.log(np.asarray(levels_us, dtype=np.float64))
    return (us * np.exp(logs - logs.mean())).tolist()


def turn_level(samples: Sequence[float]) -> float:
    """Return what stands for a turn when turns are compared: its median in µs."""
    return float(np.median(np.asarray(samples, dtype=np.float64)))


class Ratio(NamedTuple):
    """A ratio of two latencies, its 95 % interval, and the p-value of no difference.

    The interval is infinite and p is 1 where there were too few turns.
    """

    middle: float
    low: float
    high: float
    p: float


UNKNOWN_RATIO = Ratio(1.0, 0.0, math.inf, 1.0)


def paired_ratio(ours: Sequence[float], reference: Sequence[float], noise: Noise) -> Ratio:
    """Return the ratio of ours to the reference; with fewer than two pairs it has no interval.

    Both are turn levels in µs, paired by round. The test is a trimmed t on the logarithms of the
    paired ratios: a drift of the machine hits both of a pair.
    """
    logs = np.log(np.asarray(ours, dtype=np.float64) / np.asarray(reference, dtype=np.float64))
    return _ratio(*_mean_error(logs), compile_spread(ours, reference, noise))


def known_within(
    precision: float, ours: Sequence[float], reference: Sequence[float], noise: Noise
) -> bool:
    """Tell whether more turns would tell nothing more about a paired ratio.

    Either the half width of its interval is at most ``precision``, or it is about as narrow as the
    difference between compiles allows, which no number of turns averages out.
    """
    _, low, high, _ = paired_ratio(ours, reference, noise)
    enough = max(precision, NARROWEST * compile_spread(ours, reference, noise))
    return low > 0.0 and math.log(high / low) / 2 <= enough


def unpaired_ratio(ours: Sequence[float], reference: Sequence[float], noise: Noise) -> Ratio:
    """Like :func:`paired_ratio` for turns that were not measured beside each other.

    Welch (1947) on the logarithms, widened by how far the machine drifted within each of the two
    runs, each of which is one draw of what it drifts through, and by how far the levels of two runs
    lie apart on a quiet machine.
    """
    first, second = (np.log(np.asarray(x, dtype=np.float64)) for x in (ours, reference))
    drifts = _drift(first), _drift(second), _BETWEEN_RUNS
    spread = math.hypot(compile_spread(ours, reference, noise), *drifts)
    return _ratio(*_welch_error(first, second), spread)


def ratio_of_runs(
    ours: Sequence[float], before: Sequence[float], spread: float, drift: float
) -> Ratio:
    """Return by how much a ratio changed that was measured once in each of several processes.

    Student's t on the logarithms with pooled variance, which is at least ``spread`` squared.
    Without ``before`` it is the ratio itself. What moves a ratio by ``drift`` from one time to
    another moves all processes of that time, so that no number of them averages it out.
    """
    parts = [np.log(np.asarray(values, dtype=np.float64)) for values in (ours, before or [1.0])]
    counted = parts if before else parts[:1]
    freedom = sum(len(part) - 1 for part in counted)
    squares = sum(float(np.sum((part - part.mean()) ** 2)) for part in counted)
    pooled = max(math.sqrt(squares / freedom) if freedom else 0.0, spread)
    error = pooled * math.sqrt(sum(1.0 / len(part) for part in counted))
    middle = float(parts[0].mean() - parts[1].mean())
    return _ratio(middle, error, max(1, freedom), drift * math.sqrt(len(counted)))


def log_spread(values: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms; 0 of fewer than two values."""
    return float(np.std(np.log(values), ddof=1)) if len(values) > 1 else 0.0


def _drift(logs: np.ndarray) -> float:
    """Return the standard deviation of the level from one part of a run to the next."""
    parts = np.array_split(logs, min(_BATCHES, len(logs)))
    return float(np.std([np.median(part) for part in parts], ddof=1)) if len(parts) > 1 else 0.0


def compile_spread(first: Sequence[float], second: Sequence[float], noise: Noise) -> float:
    """Return how far the log ratio of two placements, given by turn levels, varies by compile."""
    levels = [float(np.median(levels)) for levels in (first, second) if len(levels)]
    return noise.spread(min(levels, default=1.0))


def _welch_error(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Return the difference of the means of two samples, its standard error, and freedom."""
    middle = float(first.mean() - second.mean())
    if min(len(first), len(second)) < 2:
        return middle, math.inf, 0
    parts = [float(values.var(ddof=1)) / len(values) for values in (first, second)]
    each = [part**2 / (len(v) - 1) for part, v in zip(parts, (first, second), strict=True)]
    freedom = sum(parts) ** 2 / sum(each) if any(each) else len(first) + len(second) - 2
    return middle, math.sqrt(sum(parts)), freedom


def _ratio(middle: float, error: float, freedom: float, spread: float) -> Ratio:
    """Return a ratio from its logarithm and standard error, to which compiles add their spread.

    The error is estimated, the spread is known: their intervals add in squares (Graybill and Wang
    1980), so that an error which looks small by chance, of a few turns, counts with its freedom.
    """
    from scipy import optimize, special

    if error == 0.0 and not (middle and spread):  # a placement beside itself, or nothing varies
        return Ratio(*[math.exp(middle)] * 3, p=float(middle == 0.0))
    if not math.isfinite(error):
        return Ratio(math.exp(middle), 0.0, math.inf, 1.0)

    def half_width(log_p: float) -> float:
        tail = math.exp(log_p) / 2
        return math.hypot(special.stdtrit(freedom, tail) * error, special.ndtri(tail) * spread)

    half, p = half_width(math.log(_ALPHA)), 0.0
    if abs(middle) <= half_width(0.0):  # of which SciPy may not make exactly 0
        p = 1.0
    elif half_width(_LEAST_LOG_P) > abs(middle):
        root = optimize.brentq(lambda x: half_width(x) - abs(middle), _LEAST_LOG_P, 0.0)
        p = math.exp(float(root))  # pyright: ignore[reportArgumentType]
    # NumPy's exp may warn of infinity, where OpenVINO has set how the processor rounds.
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), p)


def _mean_error(values: np.ndarray) -> tuple[float, float, int]:
    """Return the 20 % trimmed mean, its standard error, infinite for one value, and freedom.

    The interval is that of Tukey and McLaughlin (1963): a few disturbed turns do not widen it.
    A busy machine stays busy for seconds, so that consecutive rounds are correlated; many rounds
    are therefore put into batches, and the batches count as independent (batch means, Law and
    Carson 1979).
    """
    from scipy import stats
    from scipy.stats import mstats

    if len(values) >= 2 * _BATCHES:
        batches = np.array_split(values, _BATCHES)
        values = np.array([float(stats.trim_mean(batch, _TRIMMED)) for batch in batches])
    n_trimmed = int(_TRIMMED * len(values))
    mean = float(stats.trim_mean(values, _TRIMMED))
    if len(values) < 2:
        return mean, float("inf"), 0
    if not n_trimmed:
        return mean, float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1
    error = float(mstats.trimmed_stde(values, (_TRIMMED, _TRIMMED)))
    return mean, error, len(values) - 2 * n_trimmed - 1


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several comparisons (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.arange(len(order), 0, -1) * np.asarray(p_values, dtype=np.float64)[order]
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return adjusted.tolist()


At: TypeAlias = tuple[int, int]  # group and round of a turn


def in_common(
    ours: Mapping[At, float], reference: Mapping[At, float]
) -> tuple[list[float], list[float]]:
    """Return the levels of the rounds that both have, in the same order."""
    both = [at for at in ours if at in reference]
    return [ours[at] for at in both], [reference[at] for at in both]


@dataclass(frozen=True)
class Series:
    """Turn levels in µs of one placement and of the reference beside it.

    ``noise`` is how much two compiles differ on the devices of the two.
    """

    ours: dict[At, float]
    reference: dict[At, float]
    noise: Noise

    @cached_property
    def ratio(self) -> Ratio | None:
        """Ratio to the reference as of :func:`paired_ratio`; ``None`` without a common round."""
        ours, beside = in_common(self.ours, self.reference)
        return paired_ratio(ours, beside, self.noise) if ours else None

    @cached_property
    def spread(self) -> float:
        """By how much the log ratio of two compiles of this placement varies."""
        return compile_spread(list(self.ours.values()), [], self.noise)

    @cached_property
    def log_ratios(self) -> dict[At, float]:
        """Logarithm of the ratio to the reference for each round that has both."""
        return {
            at: float(np.log(value / self.reference[at]))
            for at, value in self.ours.items()
            if at in self.reference
        }


def series_ratio(a: Series, b: Series) -> Ratio:
    """Return the ratio of two placements that were measured beside the same reference.

    It is the quotient of their ratios to it, so that all ratios of a table agree. Rounds that both
    were in are paired for the interval; otherwise their ratios to the reference are compared
    (Welch 1947).
    """
    noise = largest_noise((a.noise, b.noise))
    spread = compile_spread(list(a.ours.values()), list(b.ours.values()), noise)
    common = [at for at in a.ours if at in b.ours]
    first, second = (np.array(list(s.log_ratios.values())) for s in (a, b))
    if len(common) >= 2:
        of_pairs = _mean_error(np.array([np.log(a.ours[at] / b.ours[at]) for at in common]))
    elif min(len(first), len(second)) < 2:
        return UNKNOWN_RATIO
    else:
        of_pairs = _welch_error(first, second)
    direct, error, freedom = of_pairs
    middle = direct
    if a.ratio is not None and b.ratio is not None:
        middle = math.log(a.ratio.middle / b.ratio.middle)
    # Trimming makes the two estimates of one ratio differ, which is an error of either.
    return _ratio(middle, math.hypot(error, middle - direct), freedom, spread)


def rank_groups(
    series: Sequence[Series], alpha: float = _ALPHA
) -> tuple[list[int], list[float], float]:
    """Group placements, sorted from fast to slow, that cannot be told apart.

    No two of a group differ by a Holm-corrected test of all pairs at ``alpha``, there are as few
    groups as that allows, and they part where the evidence between neighbours is strongest. Returns
    the group number of each, from 1, the corrected p-value of its difference from the first, and
    the smallest relative difference that any pair could have shown.
    """
    n = len(series)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    tests = [series_ratio(series[i], series[j]) for i, j in pairs]
    adjusted = dict(zip(pairs, holm([test.p for test in tests]), strict=True))
    plain = dict(zip(pairs, (test.p for test in tests), strict=True))
    # best[k]: least (groups, sum of log p at the cuts) of the first k, and where the last begins.
    best: list[tuple[int, float, int]] = [(0, 0.0, 0)]
    for end in range(1, n + 1):
        options = []
        for start in range(end - 1, -1, -1):
            if any(adjusted[start, j] < alpha for j in range(start + 1, end)):
                break
            count, evidence, _ = best[start]
            log_p = float(np.log(max(plain[start - 1, start], 1e-300))) if start else 0.0
            options.append((count + 1, evidence + log_p, start))
        best.append(min(options))
    groups = [0] * n
    end = n
    while end:
        number, _, start = best[end]
        groups[start:end] = [number] * (end - start)
        end = start
    # Two that are the same turns have a width of 0, which no measurement has.
    widths = [test.high / test.middle for test in tests if test.middle < test.high < math.inf]
    from_first = [adjusted.get((0, i), 1.0) for i in range(n)]
    return groups, from_first, min(widths, default=math.inf) - 1.0


def compile_noise(groups: Sequence[np.ndarray]) -> Noise:
    """Estimate how much two compiles differ, from compiles of equal placements.

    Each set of equal placements has the turn levels in µs, shape ``[compile, round]``, of rounds
    that all were in. Sets of one model share about one latency; two models, a quick and a slow one,
    tell the relative part from the absolute one.

    The noise is an upper 95 % limit: too small a noise calls equal placements different, too large
    a one only takes more turns. It comes from the variance between the medians of compiles, at its
    upper limit (chi-squared), less what their turns explain (one-way random effects; Searle,
    Casella and McCulloch 1992).
    """
    parts = sorted((_between(group) for group in groups), key=lambda part: part[0])
    if len(parts) == 1 or parts[0][0] > parts[-1][0] / 2:  # about one latency
        return _as_noise(_pooled(parts), 0.0, groups)
    middle = math.sqrt(parts[0][0] * parts[-1][0])
    quick = [part for part in parts if part[0] < middle]
    slow = [part for part in parts if part[0] >= middle]
    quick_us, slow_us = (float(np.mean([level for level, *_ in kind])) for kind in (quick, slow))
    quick_variance, slow_variance = _pooled(quick), _pooled(slow)
    if quick_variance <= slow_variance:
        return _as_noise(_pooled(parts), 0.0, groups)
    more = (quick_variance - slow_variance) / (quick_us**-2 - slow_us**-2)
    return _as_noise(slow_variance - more / slow_us**2, more, groups)


def _as_noise(relative2: float, absolute2: float, groups: Sequence[np.ndarray]) -> Noise:
    n_compiles = sum(len(group) for group in groups)
    return Noise(math.sqrt(max(0.0, relative2)), math.sqrt(absolute2), n_compiles)


def _between(levels: np.ndarray) -> tuple[float, float, float, int]:
    """Return level in µs, variance of the compiles, that of one by its turns, and freedom."""
    logs = np.log(levels)
    logs = logs - np.median(logs, axis=0)  # what all compiles of a round have in common
    batches = np.array_split(logs, min(_BATCHES, logs.shape[1]), axis=1)
    # Medians, because a turn beside which something else ran can be slower by any amount.
    parts = np.stack([np.median(batch, axis=1) for batch in batches], axis=1)
    within = float(np.mean(parts.var(axis=1, ddof=1))) / parts.shape[1]
    between = float(np.var(np.median(logs, axis=1), ddof=1))
    return float(np.median(levels)), between, within, len(logs) - 1


def _pooled(parts: Sequence[tuple[float, float, float, int]]) -> float:
    """Return an upper 95 % limit of the variance of the log ratio of two compiles."""
    from scipy import stats

    freedom = [part[3] for part in parts]
    observed = float(np.average([part[1] for part in parts], weights=freedom))
    explained = float(np.average([part[2] for part in parts], weights=freedom))
    highest = observed * sum(freedom) / float(stats.chi2.ppf(_ALPHA, sum(freedom)))
    return 2.0 * max(highest - explained, highest - observed)


def wilson_interval(right: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, 0 to 1 (Wilson 1927); ArgumentError without answers."""
    from scipy import stats

    if not 0 <= right <= n or n == 0:
        raise ArgumentError(f"{right} right answers of {n} have no share. Give at least one.")
    interval: Any = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    # All right or all wrong: rounding must not push the share out of its own interval.
    return min(right / n, float(interval.low)), max(right / n, float(interval.high))


@dataclass(frozen=True)
class PairedDrop:
    """What is lost from one set of answers to another of the same ``n`` questions.

    ``lost`` were right before and wrong after, ``won`` the other way round. ``drop`` is the share
    of right answers before less that after, ``low`` and ``high`` its 95 % interval (adjusted Wald,
    Agresti and Min 2005), ``p`` the exact p-value of no difference (McNemar 1947, as a sign test of
    the changed answers).
    """

    n: int
    lost: int
    won: int
    drop: float
    low: float
    high: float
    p: float


def paired_drop(
    before: Sequence[bool] | np.ndarray, after: Sequence[bool] | np.ndarray
) -> PairedDrop:
    """Compare two sets of answers, each ``True`` where right, question by question.

    Raises ArgumentError if there are none, or not as many of one as of the other.
    """
    from scipy import stats

    first, second = np.asarray(before, dtype=bool), np.asarray(after, dtype=bool)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ArgumentError(
            "Paired answers are two lists of equal length, at least one of each. Given: "
            f"{first.size} and {second.size}."
        )
    n = len(first)
    lost, won = int(np.sum(first & ~second)), int(np.sum(~first & second))
    adjusted = (lost - won) / (n + 2)
    error = _Z_95 * float(np.sqrt(lost + won + 1 - (lost - won) ** 2 / (n + 2))) / (n + 2)
    changed: Any = stats.binomtest(lost, lost + won) if lost + won else None
    return PairedDrop(
        n=n,
        lost=lost,
        won=won,
        drop=(lost - won) / n,
        low=max(-1.0, adjusted - error),
        high=min(1.0, adjusted + error),
        p=1.0 if changed is None else float(changed.pvalue),
    )
