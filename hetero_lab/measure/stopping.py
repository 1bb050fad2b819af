"""When a sweep stops: how many turns are enough, and what a time budget allows.

The estimate is based on what the compiles and inferences took so far. A group gets more than its
least turns only in time that later groups do not need for theirs. If the time is too short for the
least turns of all, turns become fewer, then shorter; after that, placements are left out.
From outside, :class:`.session.SweepControl` stops it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from hetero_lab.arguments import check_positive, check_whole
from hetero_lab.intervals import Noise, known_within
from hetero_lab.runtime.executors import DISCARDED_PER_TURN, TIMED_PER_TURN

WARM_UP_S, WARM_UP_INFERENCES = 0.3, 30  # at most, and before two turns in a row can agree
_ENOUGH = 0.75  # share of the placements covered by the sparsest plan
LEAST_TURNS = 8  # the trimmed mean drops one at each end, which leaves 5 degrees of freedom
_PRECISE_TURNS = 20  # the spread of fewer turns is too uncertain to stop by
FULL = DISCARDED_PER_TURN + TIMED_PER_TURN  # inferences of a turn that is not shortened
_SHORTER = (5, 2)  # timed inferences of those that are
_MOST_TURNS = 500  # more tell nothing that the noise between two compiles does not hide

# The turns of a placement and of the reference in the same rounds, in µs, and their noise.
Pair: TypeAlias = tuple[Sequence[float], Sequence[float], Noise]


@dataclass(frozen=True)
class RunOptions:
    """How long to measure, and what besides turns: arguments of a sweep, but for ``apart``.

    With it, the first placement on a device that was not compiled for yet begins a new
    group: its compile may take all the time that is left, so earlier placements are measured before
    it. A value that is not a number, or is too small, raises ArgumentError.
    """

    precision: float = 0.02
    turns: int | None = None
    sustained_s: float | None = None
    counters: bool = True
    reference: bool = True
    apart: bool = False

    def __post_init__(self) -> None:
        check_positive("precision", self.precision)
        if self.sustained_s is not None:
            check_positive("sustained_s", self.sustained_s)
        if self.turns is not None:
            check_whole("turns", self.turns, least=2)

    @property
    def target(self) -> int:
        """The least number of turns of each placement."""
        return self.turns or LEAST_TURNS

    def needs_another(self, n_rounds: int, group: Iterable[Pair]) -> bool:
        """Tell whether a group needs a round more than ``n_rounds`` for the precision asked for."""
        if self.turns is not None or n_rounds >= _MOST_TURNS:
            return False
        return any(
            len(ours) < _PRECISE_TURNS or not known_within(self.precision, ours, reference, noise)
            for ours, reference, noise in group
            if len(ours) >= 2  # else there is no interval that could narrow
        )


@dataclass(frozen=True)
class TurnPlan:
    """How many placements besides the reference are measured, with how many turns.

    Each turn has so many ``discarded`` and ``timed`` inferences.
    """

    n_placements: int
    turns: int
    discarded: int = DISCARDED_PER_TURN
    timed: int = TIMED_PER_TURN

    @property
    def inferences(self) -> int:
        """Discarded and timed inferences of a turn together."""
        return self.discarded + self.timed

    def n_groups(self, group_size: int) -> int:
        """Return how many groups the placements make; each has the reference besides."""
        return math.ceil(self.n_placements / max(1, group_size - 1))

    def needs_s(self, ready_s: float, inference_s: float, group_size: int) -> float:
        """Return how long it takes, with the reference's turns in each group.

        ``ready_s`` reaches from the start of a worker to the end of its first inference.
        """
        n_groups = max(1, self.n_groups(group_size))
        each_s = self.turns * self.inferences * inference_s
        if self.inferences == FULL:  # shortened turns are not warmed up for
            each_s += min(WARM_UP_S, WARM_UP_INFERENCES * inference_s)
        return self.n_placements * ready_s + (self.n_placements + n_groups) * each_s


LEAST = TurnPlan(0, 1, 1, 1)


def affordable(
    left_s: float, n_placements: int, turns: int, needs_s: Callable[[TurnPlan], float]
) -> TurnPlan:
    """Return the plan with the most turns that covers about as many placements as any plan.

    There are ``n_placements`` to measure besides the reference, each with up to ``turns`` turns.
    ``needs_s`` returns how long a plan takes.
    """
    covered = []
    for plan in _from_full_to_sparse(turns):
        plans = [replace(plan, n_placements=n) for n in range(n_placements + 1)]
        n_fitting = bisect.bisect_right(plans, left_s, key=needs_s)
        if n_fitting:
            covered.append(plans[n_fitting - 1])
    if not covered:
        return LEAST
    enough = max(plan.n_placements for plan in covered) * _ENOUGH
    return next(plan for plan in covered if plan.n_placements >= enough)


def _from_full_to_sparse(turns: int) -> Iterator[TurnPlan]:
    fewer = [n for n in (turns // 2, 2) if 2 <= n < turns]
    yield from (TurnPlan(0, n) for n in dict.fromkeys([turns, *fewer]))
    yield from (TurnPlan(0, 2, 1, timed) for timed in _SHORTER)
    yield LEAST
