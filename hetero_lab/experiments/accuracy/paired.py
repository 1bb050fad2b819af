"""Shares of right answers, and how two models that answered the same questions differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_lab.errors import ArgumentError
from hetero_lab.statistics import Z_95


@dataclass(frozen=True)
class PairedDrop:
    """What is lost from one set of answers to another of the same questions.

    Attributes
    ----------
    n, lost, won
        Questions; right before and wrong after; wrong before and right after.
    drop, low, high
        The share of right answers before less that after, and its 95 % interval (adjusted Wald,
        Agresti and Min 2005).
    p
        Exact p-value of no difference (McNemar 1947, as a sign test of the changed answers).
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

    Returns
    -------
    PairedDrop

    Raises
    ------
    ArgumentError
        There are none, or not as many of one as of the other.
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
    error = Z_95 * float(np.sqrt(lost + won + 1 - (lost - won) ** 2 / (n + 2))) / (n + 2)
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
