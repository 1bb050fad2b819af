"""Medians and intervals of latencies: pure functions over samples in turns.

Inferences that follow each other are not independent, turns nearly are, so intervals are
bootstrapped over turns (Efron 1979) where there are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_RESAMPLES = 2000
_SEED = 20260101
_FEW = 5  # fewer turns than this say little; then single samples are resampled


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

    Resamples whole turns where there are at least five, single samples otherwise.
    """
    arrays = [np.asarray(turn, dtype=np.float64) for turn in turns if len(turn)]
    every = np.concatenate(arrays)
    if len(every) < 2:
        return float(every[0]), float(every[0])
    rng = np.random.default_rng(_SEED)
    if len(arrays) >= _FEW and len({len(a) for a in arrays}) == 1:
        table = np.stack(arrays)
        picks = rng.integers(0, len(table), size=(_RESAMPLES, len(table)))
        medians = np.median(table[picks].reshape(_RESAMPLES, -1), axis=1)
    else:
        picks = rng.integers(0, len(every), size=(_RESAMPLES, len(every)))
        medians = np.median(every[picks], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    # The median of the data always lies in its own interval.
    middle = float(np.median(every))
    return min(float(low), middle), max(float(high), middle)
