"""The load loop: keeps models busy at the same time; a part of run_machine.py as well.

A load is closed (so many requests in flight, each begins when its last one ends) or open (arrivals
by a clock, whatever becomes of them; Schroeder, Wierman and Harchol-Balter 2006). Each request has
a thread, which waits in OpenVINO without holding the interpreter's lock.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hetero_lab.clock import now, unix_now
from hetero_lab.measure.loads import Driven, Load

WARM_S = 0.1  # before the window, which is not counted


class Lane(NamedTuple):
    """A request: how it infers, and whether its last outputs are wrong."""

    infer: Callable[[], object]
    is_wrong: Callable[[], bool] = lambda: False


class LoadWindow:
    """One load in a window from ``begins`` to ``ends``, served by lanes.

    ``times`` are those of each inference: due, began and ended.
    """

    def __init__(self, lanes: Sequence[Lane], load: Load, begins: float, ends: float):
        self.lanes, self.load, self.begins, self.ends = lanes, load, begins, ends
        self.times: list[tuple[float, float, float]] = []
        self.behind: list[float] = []
        self.n_wrong = 0
        self.error: BaseException | None = None
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self.period = 1.0 / load.rate_per_s if load.rate_per_s else 0.0
        self.first = begins - WARM_S + load.phase * self.period

    def serve(self, lane: Lane) -> None:
        """Serve arrivals until the window ends, or the patience of those that wait."""
        try:
            (self._by_clock if self.period else self._in_flight)(lane)
        except BaseException as error:
            self.error = error

    def _in_flight(self, lane: Lane) -> None:
        while (began := now()) < self.ends and self.error is None:
            self._infer(lane, began, began)

    def _by_clock(self, lane: Lane) -> None:
        free, patience_s = now(), self.load.patience_s
        while self.error is None:
            with self._lock:
                due = self._due(next(self._numbers))
            if due >= self.ends:
                return
            time.sleep(max(0.0, due - now()))
            began = now()
            self.behind.append(began - max(due, free))
            if began - due <= patience_s:
                self._infer(lane, due, began)
                free = now()

    def _infer(self, lane: Lane, due: float, began: float) -> None:
        lane.infer()
        self.times.append((due, began, now()))
        is_wrong = lane.is_wrong()  # takes a while
        with self._lock:
            self.n_wrong += is_wrong

    def _due(self, number: int) -> float:
        return self.first + self.period * number

    def _n_before(self, until: float) -> int:
        number = max(0, int((until - self.first) / self.period) - 1)
        while self._due(number) < until:
            number += 1
        return number

    def driven(self) -> Driven:
        """Return how it went; raise the error that ended it."""
        if self.error is not None:
            raise self.error
        within = [at for at in self.times if self.begins <= at[0] < self.ends]
        n_due = len(within)
        if self.period:
            n_due = self._n_before(self.ends) - self._n_before(self.begins)
        served = sum(
            max(0.0, min(ended, self.ends) - max(began, self.begins)) / (ended - began)
            for _, began, ended in self.times
        )
        return Driven(
            rate_per_s=served / (self.ends - self.begins),
            latencies_us=tuple(1e6 * (ended - due) for due, _, ended in within),
            n_due=n_due,
            behind_us=1e6 * float(np.median(self.behind)) if self.behind else 0.0,
            n_wrong=self.n_wrong,
        )


def window_at(starts_at: float) -> float:
    """Return when the window begins of what starts at a Unix time, by the clock of this process.

    A process that is late warms for less, so that all windows are one.
    """
    return now() + max(0.0, starts_at + WARM_S - unix_now())


def keep_busy(
    lanes: Sequence[Sequence[Lane]], loads: Sequence[Load], begins: float, seconds: float
) -> list[LoadWindow]:
    """Drive models at the same time, each by its lanes as its load says."""
    windows = [
        LoadWindow(group, load, begins, begins + seconds)
        for group, load in zip(lanes, loads, strict=True)
    ]
    threads = [
        threading.Thread(target=window.serve, args=[lane], name="hetero_lab lane", daemon=True)
        for window in windows
        for lane in window.lanes
    ]
    collecting = gc.isenabled()
    gc.disable()
    try:
        time.sleep(max(0.0, begins - WARM_S - now()))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        if collecting:
            gc.enable()
    return windows
