"""The race of sets: measured in turns, and fewer of them the longer it lasts.

Those that are worse beyond the intervals drop out, and at each look the worse half of the others
(sequential halving; Karnin, Koren and Somekh 2013), so that the turns go to those that may be best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_lab.errors import HeteroLabError, MeasurementError
from hetero_lab.intervals import Noise, Ratio, known_within, paired_ratio
from hetero_lab.measure.loads import Driven
from hetero_lab.results.evidence import BEST, SLOWER, against_best, judged
from hetero_lab.runtime.timing import Stopwatch

NOT_MEASURED = "not measured"
_LEAST_TURNS, _MOST_TURNS = 3, 30
_LOOKS = (2, 4, 8, 16)  # turns after which sets drop out
_N_LOOKS = len(_LOOKS) + 1  # and the last one
_FINALISTS = 3  # beside the reference
_PRECISION = 0.015  # half the width of the interval of a ratio
Turn = Mapping[str, Driven]


@dataclass(frozen=True)
class Together:
    """One way of each model, all at the same time; ``turns`` says how each model fared.

    ``predicted`` are the shares of its rate alone that each model was foretold to get.
    """

    label: str
    chosen: Mapping[str, str]
    predicted: Mapping[str, float]
    turns: tuple[Turn, ...] = ()
    judgement: str = NOT_MEASURED  # or best, or a finding
    why: str = ""  # it was not measured


class Race:
    """Measures ``sets``, the first of them the reference.

    ``cost`` says how bad a turn was, ``turn`` measures one of a set.
    """

    def __init__(
        self, cost: Callable[[Turn], float], noise: Noise, turn: Callable[[Together], Turn]
    ):
        self.sets: list[Together] = []
        self.cost, self.noise, self.turn = cost, noise, turn
        self._dropped: set[int] = set()

    def run(self, watch: Stopwatch) -> None:
        """Measure until the last rival is known or time is over; the reference has three turns."""
        for number in range(1, _MOST_TURNS + 1):
            for index in self._racing:
                if not watch.is_over or (number <= _LEAST_TURNS and index == 0):
                    self._measure(index)
            racing = self._racing
            if not racing:
                raise MeasurementError(f"No set of ways runs. {self.sets[0].why}")
            if number in _LOOKS:
                self._drop(racing)
            if number < _LEAST_TURNS:
                continue
            if watch.is_over:
                return
            others = [index for index in self._racing if index > 0]
            if not others or (len(others) == 1 and self._is_precise(others[0])):
                return

    def _drop(self, racing: Sequence[int]) -> None:
        ranked = sorted((i for i in racing if i > 0), key=self._level)
        best = min(racing, key=self._level)
        most = max(_FINALISTS, math.ceil(len(ranked) / 2))
        self._dropped |= {i for i in ranked if self._is_slower(i, best)} | {*ranked[most:]}

    def judged(self) -> list[Together]:
        """Return the sets, each with a judgement.

        The best is one of those that were not dropped, by the turns that they share: one that
        was dropped early may have been measured while the machine was faster.
        """
        racing = [index for index in self._racing if self.sets[index].turns]
        shared = min((len(self.sets[index].turns) for index in racing), default=0)
        levels = {index: self._level(index, shared) for index in racing}
        found = judged(levels, self.ratio, preferred=[0], n=len(self.sets), looks=_N_LOOKS)
        best = next((index for index, word in found.items() if word == BEST), 0)
        n = len(self.sets)
        found |= {i: against_best(self.ratio(i, best), n, _N_LOOKS) for i in self._dropped}
        return [
            replace(one, judgement=found.get(index, NOT_MEASURED))
            for index, one in enumerate(self.sets)
        ]

    @property
    def _racing(self) -> list[int]:
        known = enumerate(self.sets)
        return [i for i, one in known if not one.why and i not in self._dropped]

    def _measure(self, index: int) -> None:
        one = self.sets[index]
        try:
            self.sets[index] = replace(one, turns=(*one.turns, self.turn(one)))
        except HeteroLabError as error:
            self.sets[index] = replace(one, why=str(error))

    def ratio(self, index: int, other: int) -> Ratio | None:
        """Return the ratio of the costs of two sets over the turns that both have."""
        return ratio_of(self.sets[index], self.sets[other], self.cost, self.noise)

    def _is_precise(self, index: int) -> bool:
        """Whether more turns would tell nothing more about its ratio to the reference."""
        pair = _beside(self.sets[index], self.sets[0], self.cost)
        return len(pair[0]) > 1 and known_within(_PRECISION, *pair, self.noise)

    def _is_slower(self, index: int, best: int) -> bool:
        return against_best(self.ratio(index, best), len(self.sets), _N_LOOKS) == SLOWER

    def _level(self, index: int, n_turns: int | None = None) -> float:
        return float(np.median([*map(self.cost, self.sets[index].turns)][:n_turns]))


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
    ours, others = ([*map(cost, each.turns)] for each in (one, other))
    common = min(len(ours), len(others))
    return ours[:common], others[:common]
