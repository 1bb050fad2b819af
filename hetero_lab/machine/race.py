"""The race of sets: a look at each, and a final of the best few, which are judged by it alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hetero_lab.errors import HeteroLabError, MeasurementError
from hetero_lab.intervals import Noise, Ratio, known_within, paired_ratio
from hetero_lab.machine.demand import Turn
from hetero_lab.measure.loads import Driven
from hetero_lab.progress import Stopwatch
from hetero_lab.results.evidence import BEST, UNDECIDED, judge_candidates

NOT_MEASURED = "not measured"
LOOKS = 2  # turns of each set before the final; a single one may be disturbed
FINALISTS = 3  # beside the reference
LEAST_TURNS, _MOST_TURNS = 6, 30  # of the final; fewer give no narrow interval
_PRECISION = 0.015  # half the width of the interval of a ratio


@dataclass(frozen=True)
class Together:
    """One way of each model, all at the same time; the turns say how each model fared.

    ``predicted`` are the shares of its rate alone that each model was foretold to get. ``turns``
    are those of the final, where every finalist has one in each round.
    """

    label: str
    chosen: Mapping[str, str]
    predicted: Mapping[str, float]
    looks: tuple[Turn, ...] = ()
    turns: tuple[Turn, ...] = ()
    judgement: str = NOT_MEASURED  # or best, or a finding
    why: str = ""  # it was not measured

    @property
    def seen(self) -> tuple[Turn, ...]:
        """The turns to describe it by."""
        return self.turns or self.looks

    @cached_property
    def pooled(self) -> Turn:
        """These turns as one."""
        every = {name: [turn[name] for turn in self.seen] for name in self.chosen if self.seen}
        return {
            name: Driven(
                rate_per_s=float(np.median([one.rate_per_s for one in turns])),
                latencies_us=tuple(us for one in turns for us in one.latencies_us),
                n_due=sum(one.n_due for one in turns),
            )
            for name, turns in every.items()
        }


class Race:
    """Measures ``sets``, the first of them the reference.

    ``cost`` says how bad a turn was, ``turn`` measures one of a set. What the looks chose is judged
    by other turns, so that no luck of the choice counts.
    """

    def __init__(
        self, cost: Callable[[Turn], float], noise: Noise, turn: Callable[[Together], Turn]
    ):
        self.sets: list[Together] = []
        self.cost, self.noise, self.turn = cost, noise, turn

    def run(self, watch: Stopwatch) -> None:
        """Measure until the finalists are known or time is over; the reference has a look."""
        for number in range(LOOKS):
            for index in self._running:
                if not watch.is_over or (index == 0 and number == 0):
                    self._measure(index, "looks")
        if not self._running:
            raise MeasurementError(f"No set of ways runs. {self.sets[0].why}")
        candidates = [i for i in self._running if i > 0 and self.sets[i].looks]
        best = sorted(candidates, key=lambda i: self._level(self.sets[i].looks))[:FINALISTS]
        for number in range(_MOST_TURNS):
            for index in (0, *best):
                if watch.is_over:
                    return
                self._measure(index, "turns")
            if number + 1 >= LEAST_TURNS and all(map(self._is_precise, best)):
                return

    def results(self) -> list[Together]:
        """Return the sets, each with a judgement; those without a final are undecided."""
        final = [i for i in self._running if self.sets[i].turns]
        levels = {i: self._level(self.sets[i].turns) for i in final}
        findings = judge_candidates(
            levels,
            lambda i, j: ratio_of(self.sets[i], self.sets[j], self.cost, self.noise),
            preferred=[0],
        )
        candidates = [i for i in self._running if self.sets[i].looks]
        if not findings and candidates:  # the budget ended before a final
            least = min(candidates, key=lambda i: self._level(self.sets[i].looks))
            findings = {0 if 0 in candidates else least: BEST}
        findings = dict.fromkeys(candidates, UNDECIDED) | findings
        return [
            replace(one, judgement=findings.get(i, NOT_MEASURED)) for i, one in enumerate(self.sets)
        ]

    @property
    def _running(self) -> list[int]:
        return [index for index, one in enumerate(self.sets) if not one.why]

    def _measure(self, index: int, kind: str) -> None:
        one = self.sets[index]
        if one.why:
            return
        try:
            self.sets[index] = replace(one, **{kind: (*getattr(one, kind), self.turn(one))})
        except HeteroLabError as error:
            self.sets[index] = replace(one, why=str(error))

    def _is_precise(self, index: int) -> bool:
        """Whether more turns would tell nothing more about its ratio to the reference."""
        pair = _beside(self.sets[index], self.sets[0], self.cost)
        return len(pair[0]) < 2 or known_within(_PRECISION, *pair, self.noise)

    def _level(self, turns: Sequence[Turn]) -> float:
        return float(np.median([*map(self.cost, turns)]))


def best_of(sets: Sequence[Together]) -> Together:
    """Return the set that was judged best; the first one, if nothing was measured."""
    return next((one for one in sets if one.judgement == BEST), sets[0])


def ratio_of(
    one: Together, other: Together, cost: Callable[[Turn], float], noise: Noise
) -> Ratio | None:
    """Return the ratio of the costs of two sets over the turns that both have, if there are any."""
    ours, others = _beside(one, other, cost)
    return paired_ratio(ours, others, noise) if ours else None


def _beside(
    one: Together, other: Together, cost: Callable[[Turn], float]
) -> tuple[list[float], list[float]]:
    """Return the costs of the turns that both have, of the final if both were in it."""
    both = one.turns and other.turns
    ours, others = ([*map(cost, each.turns if both else each.looks)] for each in (one, other))
    common = min(len(ours), len(others))
    return ours[:common], others[:common]
