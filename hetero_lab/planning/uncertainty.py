"""How far a prediction may be off, from placements that the costs were not fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hetero_lab.statistics import Estimate

_COVERED = 0.9


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """The error of predictions, which grows with the distance from what was fitted.

    A placement is described by its parts in µs: the work of each device, and all hand-overs. Its
    distance is the share of its latency by which these differ from those of the nearest placement
    in ``seen``, of shape ``[placement, part]``. ``scale`` is the error (root mean square of the
    logarithm) at distance 0 of ``n`` validated placements; the error at distance d is 1 + d times
    as large. The interval is that of a further observation, by Student's t.
    """

    seen: np.ndarray
    scale: float = math.inf
    n: int = 0

    def distance(self, parts_us: np.ndarray) -> float:
        """Return how unlike to all fitted placements one is; 0 if that is unknown."""
        if not len(self.seen):
            return 0.0
        apart = np.abs(self.seen - parts_us).sum(axis=1)
        return float(apart.min() / max(1e-9, parts_us.sum()))

    def interval(self, us: float, parts_us: np.ndarray) -> Estimate:
        """Return a prediction with its 90 % interval, 0 to infinite without validation."""
        factor = self.factor(self.distance(parts_us))
        return Estimate(us, us / factor, us * factor)

    def margin_us(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return by how much the predicted difference of two placements may be off, at 90 %.

        What the two have in common does not count.
        """
        share = self.factor(max(self.distance(first), self.distance(second))) - 1.0
        different = float(np.abs(first - second).sum())
        return share * different if different else 0.0

    def factor(self, distance: float) -> float:
        """Return by which factor a prediction may be too high or too low, at 90 %."""
        from scipy import stats

        if not self.n:
            return math.inf
        quantile = float(stats.t.ppf((1.0 + _COVERED) / 2.0, self.n))
        further = math.sqrt(1.0 + 1.0 / self.n)
        return math.exp(quantile * further * self.scale * (1.0 + distance))
