"""Steady-state latency.

A turn is a few discarded inferences followed by the timed ones, without a pause: single inferences
in between others find cold caches and look up to 40 % slower.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hetero_lab import clock
from hetero_lab.clock import now
from hetero_lab.errors import ArgumentError

DISCARDED_PER_TURN = 2
TIMED_PER_TURN = 10
_STABLE = 0.05  # warm-up ends once two consecutive turns differ by less than this
_MAX_WARMUP_S = 2.0
_MIN_WARMUP_TURNS = 3

Run = Callable[[], object]


@dataclass(frozen=True)
class Stopwatch:
    """A wall-time budget that has started."""

    budget_s: float | None
    started: float

    @classmethod
    def start(cls, budget_s: float | None) -> Stopwatch:
        """Start one; ``None`` never runs out."""
        number = isinstance(budget_s, int | float) and not isinstance(budget_s, bool)
        if budget_s is not None and not (number and 0 < budget_s < float("inf")):
            raise ArgumentError(
                f"A time budget is more than 0 seconds, or None for no limit, not {budget_s!r}."
            )
        return cls(budget_s, now())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return now() - self.started

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent."""
        return self.budget_s is not None and self.elapsed_s >= self.budget_s

    @property
    def left_s(self) -> float:
        """The rest of the budget in seconds, infinite without one."""
        return float("inf") if self.budget_s is None else max(self.budget_s - self.elapsed_s, 0.0)


def time_once(run: Run) -> float:
    """Time one call in microseconds."""
    started = clock.now_ns()
    run()
    return (clock.now_ns() - started) / 1e3


def run_turn(
    run: Run, timed: int = TIMED_PER_TURN, discarded: int = DISCARDED_PER_TURN
) -> tuple[float, ...]:
    """Run one turn and return the timed durations in microseconds."""
    now_ns = clock.now_ns
    samples = [0] * timed
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle would count as the model's time
    try:
        for _ in range(discarded):
            run()
        for index in range(timed):
            started = now_ns()
            run()
            samples[index] = now_ns() - started
    finally:
        if collecting:
            gc.enable()
    return tuple(sample / 1e3 for sample in samples)


def warm_up(run: Run, inferences: int | None = None, at_most_s: float = _MAX_WARMUP_S) -> int:
    """Run until two turns agree within 5 %, or ``inferences`` times; return the number of runs."""
    if inferences is not None:
        for _ in range(inferences):
            run()
        return inferences
    started, done, medians = now(), 0, [float("inf")]
    while now() - started < at_most_s:
        medians.append(float(np.median(run_turn(run, discarded=0))))
        done += TIMED_PER_TURN
        before, after = medians[-2:]
        if len(medians) > _MIN_WARMUP_TURNS and abs(after - before) < _STABLE * before:
            break
    return done


def turn_lengths(inferences: int | None) -> Iterator[int]:
    """Yield the number of timed inferences of each turn, endlessly if no number is given."""
    left = math.inf if inferences is None else inferences
    while left:
        # A small remainder joins the last turn, so that no turn is too short.
        size = int(left) if left < 2 * TIMED_PER_TURN else TIMED_PER_TURN
        yield size
        left -= size
