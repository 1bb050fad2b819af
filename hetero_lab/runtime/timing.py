"""Steady-state latency.

A turn is a few discarded inferences and then the timed ones, all in a row: a compiled model
that is visited for one inference at a time finds cold caches and looks up to 40 % slower.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab import clock
from hetero_lab.clock import now
from hetero_lab.errors import ArgumentError

DISCARDED_PER_TURN = 2
TIMED_PER_TURN = 10
_STABLE = 0.05  # warm-up ends when two turns in a row differ by less than this
_MAX_WARMUP_S = 2.0
_MIN_WARMUP_TURNS = 3

Run = Callable[[], object]


@dataclass(frozen=True)
class Stopwatch:
    """A wall-time budget that started when it was made."""

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
        """Whether the budget is used up."""
        return self.budget_s is not None and self.elapsed_s >= self.budget_s

    @property
    def left_s(self) -> float:
        """Seconds until then, infinite without a budget."""
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
    gc.disable()  # a collection in the middle would be counted as the model's time
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
    """Run until two turns in a row agree within 5 %, at most 2 s; or a given number of times.

    Returns the number of inferences.
    """
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
    """Yield how many inferences each turn times, without end if their number is not given."""
    left = math.inf if inferences is None else inferences
    while left:
        # A small rest joins the last turn, so that no turn is shorter than it must be.
        size = int(left) if left < 2 * TIMED_PER_TURN else TIMED_PER_TURN
        yield size
        left -= size


def run_side_by_side_turn(
    runs: Sequence[Run], timed: int = TIMED_PER_TURN
) -> list[tuple[float, ...]]:
    """Run several models in threads of their own, each again and again.

    A turn lasts until each has ``timed`` samples, so that none is measured while another one has
    already ended; quick models have more samples.

    Returns
    -------
    list of tuple
        The durations of each model's inferences in µs.
    """
    samples: list[list[float]] = [[] for _ in runs]
    failed: list[BaseException] = []
    together = threading.Barrier(len(runs))
    ended = threading.Event()

    def work(run: Run, own: list[float]) -> None:
        try:
            for _ in range(DISCARDED_PER_TURN):
                run()
            together.wait()
            while not ended.is_set():
                own.append(time_once(run))
                if len(own) == timed and all(len(s) >= timed for s in samples):
                    ended.set()
        except threading.BrokenBarrierError:
            pass  # another one failed
        except BaseException as error:
            failed.append(error)
            together.abort()
            ended.set()

    threads = [
        threading.Thread(target=work, args=pair, name="hetero_lab side by side", daemon=True)
        for pair in zip(runs, samples, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        ended.set()  # Ctrl-C in the join: the threads end after the inference that they are in
    if failed:
        raise failed[0]
    return [tuple(s) for s in samples]
