"""The driver: keeps compiled models busy at the same time, each as its demand says.

A demand is closed (so many requests in flight, each begins when its last one ends) or open
(arrivals by a clock, whatever becomes of them; Schroeder, Wierman and Harchol-Balter 2006). Each
request has a thread, which waits in OpenVINO without holding the interpreter's lock.
"""

from __future__ import annotations

import gc
import itertools
import math
import threading
import time
from collections.abc import Sequence

import numpy as np

from hetero_lab.clock import now
from hetero_lab.measure.requests import Drive, Driven, Load
from hetero_lab.runtime.compiled import inference_errors
from hetero_lab.runtime.runners import Runner

WARM_S = 0.1  # before the window, which is not counted
_SPREAD = 1e-3  # of the largest value: what other threads may change in an output


class _Served:
    """One load in a window from ``begins`` to ``ends``, served by lanes.

    ``times`` are those of each inference: due, began and ended.
    """

    def __init__(self, runner: Runner, load: Load, begins: float, ends: float, check: bool):
        self.load, self.begins, self.ends = load, begins, ends
        self.lanes = [runner.another() for _ in range(load.requests)]
        self.expected = runner.outputs() if check else None
        self.times: list[tuple[float, float, float]] = []
        self.behind: list[float] = []
        self.n_wrong = 0
        self.error: BaseException | None = None
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self.period = 1.0 / load.rate_per_s if load.rate_per_s else 0.0
        self.first = begins - WARM_S + load.phase * self.period

    def serve(self, lane: Runner) -> None:
        """Serve arrivals until the window ends, or the patience of those that wait."""
        try:
            with inference_errors(lane.placed.label):
                (self._by_clock if self.period else self._in_flight)(lane)
        except BaseException as error:
            self.error = error

    def _in_flight(self, lane: Runner) -> None:
        while (began := now()) < self.ends and self.error is None:
            self._infer(lane, began, began)

    def _by_clock(self, lane: Runner) -> None:
        free, patience_s = now(), self.load.patience_s
        while self.error is None:
            with self._lock:
                due = self.first + self.period * next(self._numbers)
            if due >= self.ends:
                return
            time.sleep(max(0.0, due - now()))
            began = now()
            self.behind.append(began - max(due, free))
            if began - due <= patience_s:
                self._infer(lane, due, began)
                free = now()

    def _infer(self, lane: Runner, due: float, began: float) -> None:
        lane.infer()
        self.times.append((due, began, now()))
        if self.expected is not None and _differs(lane.outputs(), self.expected):
            self.n_wrong += 1

    def driven(self, cores: float) -> Driven:
        if self.error is not None:
            raise self.error
        within = [at for at in self.times if self.begins <= at[0] < self.ends]
        n_due = len(within)
        if self.period:
            earlier, all_due = (
                math.ceil((until - self.first) / self.period) for until in (self.begins, self.ends)
            )
            n_due = all_due - max(0, earlier)
        served = sum(
            max(0.0, min(ended, self.ends) - max(began, self.begins)) / (ended - began)
            for _, began, ended in self.times
        )
        return Driven(
            rate_per_s=served / (self.ends - self.begins),
            latencies_us=tuple(1e6 * (ended - due) for due, _, ended in within),
            cores=cores,
            n_due=n_due,
            behind_us=1e6 * float(np.median(self.behind)) if self.behind else 0.0,
            n_wrong=self.n_wrong,
        )


def drive(runners: Sequence[Runner], asked: Drive) -> tuple[Driven, ...]:
    """Carry out a :class:`~hetero_lab.measure.requests.Drive`, one runner a load."""
    begins = now() + max(0.0, asked.starts_at - time.time()) + WARM_S
    demands = [
        _Served(runner, load, begins, begins + asked.seconds, asked.check)
        for runner, load in zip(runners, asked.loads, strict=True)
    ]
    threads = [
        threading.Thread(target=demand.serve, args=[lane], name="hetero_lab lane", daemon=True)
        for demand in demands
        for lane in demand.lanes
    ]
    collecting = gc.isenabled()
    gc.disable()
    try:
        time.sleep(max(0.0, begins - WARM_S - now()))
        began_s, used_s = now(), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cores = (time.process_time() - used_s) / (now() - began_s)
    finally:
        if collecting:
            gc.enable()
    return tuple(demand.driven(cores) for demand in demands)


def _differs(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    for name, value in outputs.items():
        other = expected[name]
        if value.dtype.kind != "f":
            same = np.array_equal(value, other)
        else:
            most = _SPREAD * float(np.nanmax(np.abs(other), initial=0.0))
            same = np.allclose(value, other, rtol=0.0, atol=most, equal_nan=True)
        if not same:
            return True
    return False
