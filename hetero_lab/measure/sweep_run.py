"""A run of a sweep: the benches that carry out what its schedule says, and the records of that.

One bench has each placement that is alive, and is replaced when it crashes. Models that share a
process share its threads: on a busy machine, the model compiled first is then up to a third faster
than an equal one compiled second.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from hetero_lab.clock import now
from hetero_lab.measure.bench import AnyBench, Bench, limit_s
from hetero_lab.measure.sweep_schedule import Ask, Begin, Step, SweepSchedule
from hetero_lab.measure.worker_process import Request, WorkerError, Workers
from hetero_lab.progress import Progress, Stopwatch
from hetero_lab.results.environment import OtherWork, machine_state
from hetero_lab.results.records import Call, State, Trial

_SLOW_START_S = 0.5  # a bench that takes longer to start is reused
_LOOK_S = 1.0  # between two looks at the machine, each of which takes some ms


class BenchPool:
    """Benches by the key of the trial that each has compiled; ``start`` starts one."""

    def __init__(
        self, trials: Mapping[str, Trial], start: Callable[[], AnyBench], workers: Workers
    ):
        self._trials, self._start, self._workers = trials, start, workers
        self._benches: dict[str, AnyBench] = {}
        self._idle: list[AnyBench] = []
        self._compiled: set[str] = set()  # keys that are compiled on their bench

    def begin(self, keys: Sequence[str], *, reuse: bool) -> dict[str, float]:
        """Release all placements but these, and start benches; return the seconds that each took.

        One that cannot start is left out, and raises when it is asked.
        """
        took_s: dict[str, float] = {}

        def start(key: str) -> None:
            with contextlib.suppress(WorkerError):
                took_s[key] = self._bench(key).start_s

        leaving = [key for key in self._benches if key not in keys]
        with ThreadPoolExecutor(max(len(leaving), os.cpu_count() or 1)) as pool:
            list(pool.map(partial(self._release, reuse=reuse), leaving))
            list(pool.map(start, keys))
        return took_s

    def ask(self, asked: Mapping[str, Request[Any]]) -> dict[str, Any]:
        """Carry out requests in parallel; return the answers, or the errors that came instead."""
        if len(asked) == 1:
            return {key: self._answer(key, request) for key, request in asked.items()}
        pool = ThreadPoolExecutor(len(asked))
        try:
            return dict(zip(asked, pool.map(self._answer, asked, asked.values()), strict=True))
        except BaseException:  # Ctrl-C: do not wait for the compiles
            self.close()
            raise
        finally:
            pool.shutdown()

    def _answer(self, key: str, request: Request[Any]) -> Any:
        answer, all_asked = None, [request]
        if key not in self._compiled and request.func is not Bench.compile:
            # Its bench is a new one.
            all_asked.insert(0, partial(Bench.compile, trial=self._trials[key]))
        try:
            for asked in all_asked:
                answer = self._bench(key).ask(asked, timeout_s=limit_s(self._workers, asked))
                self._compiled.add(key)
        except WorkerError as failure:
            if failure.died:
                self._close(key)
            return failure
        return answer

    def expect(self, request: Request[None], at_most_s: float) -> None:
        """Let a bench of its own compute reference outputs, if it can."""
        timeout_s = min(self._workers.compile_timeout_s, max(0.0, at_most_s))
        with contextlib.suppress(WorkerError), contextlib.closing(self._start()) as bench:
            bench.ask(request, timeout_s=timeout_s)

    def _bench(self, key: str) -> AnyBench:
        if key not in self._benches:
            try:
                self._benches[key] = self._idle.pop()  # threads may compete for the last one
            except IndexError:
                self._benches[key] = self._start()
        return self._benches[key]

    def _release(self, key: str, *, reuse: bool) -> None:
        """Let go of a compiled placement; keep its bench if a new one would take long.

        Otherwise the next placement gets a new bench, as it would run faster in a process that
        has compiled before. Where starting or compiling is slow, that would take too much time.
        """
        bench = self._benches[key]
        if reuse or bench.start_s >= _SLOW_START_S:
            with contextlib.suppress(WorkerError):
                bench.ask(partial(Bench.release, key=key), timeout_s=self._workers.timeout_s)
                self._idle.append(self._benches.pop(key))
        self._close(key)

    def _close(self, key: str) -> None:
        self._compiled.discard(key)
        bench = self._benches.pop(key, None)
        if bench is not None:
            bench.close()

    def close(self) -> None:
        """End all benches."""
        benches, self._benches, self._idle = [*self._benches.values(), *self._idle], {}, []
        self._compiled.clear()
        if benches:
            with ThreadPoolExecutor(len(benches)) as pool:
                list(pool.map(lambda bench: bench.close(), benches))


class SweepRun:
    """A run of a sweep on this machine.

    ``is_ready`` waits up to the given seconds and tells whether a bench can be started soon.
    """

    def __init__(
        self,
        schedule: SweepSchedule,
        pool: BenchPool,
        watch: Stopwatch,
        *,
        progress: bool = False,
        is_ready: Callable[[float], bool] = lambda _: True,
    ):
        self._schedule, self._pool, self._watch, self._is_ready = schedule, pool, watch, is_ready
        self._bar = Progress("sweep", show=progress, budget_s=watch.budget_s)
        self._startup_s = self._compile_s = 0.0
        self._others, self._looked = OtherWork(), -math.inf

    def measure(self) -> None:
        """Carry out the steps of the schedule, unless nothing is left to measure."""
        with contextlib.closing(self._pool), contextlib.closing(self._bar):
            if self._schedule.pending():
                self._measure()

    def _measure(self) -> None:
        schedule, watch = self._schedule, self._watch
        self._bar.step("start workers")
        schedule.tell(watch.elapsed_s)
        began = now()
        is_ready = self._is_ready(schedule.left_s)
        self._startup_s = now() - began
        schedule.tell(watch.elapsed_s)
        # If it is not, the server goes on importing, and the next call finds it ready.
        for step in schedule.steps() if is_ready else ():
            self._show(step)
            began = now()
            match step:
                case Begin(keys, reuse):
                    answers = self._pool.begin(keys, reuse=reuse)
                case Ask(_, requests):
                    answers = self._pool.ask(requests)
                case request:
                    answers = self._pool.expect(request, schedule.left_s)
            took_s = now() - began
            if not isinstance(step, Ask):
                self._startup_s += took_s
            elif step.doing == "compile":
                self._compile_s += took_s
            schedule.tell(watch.elapsed_s, took_s, answers)
        n_left = len(schedule.pending())
        schedule.ledger.append(
            Call(
                budget_s=schedule.budget_s,
                elapsed_s=watch.elapsed_s,
                startup_s=self._startup_s,
                compile_s=self._compile_s,
                turns=schedule.plan.turns,
                discarded=schedule.plan.discarded,
                timed=schedule.plan.timed,
                n_left=n_left,
                needs_s=self._startup_s + schedule.needs_s() if n_left else 0.0,
            )
        )

    def _show(self, step: Step) -> None:
        """Show what comes next, how long it will all take and the fastest placement so far."""
        schedule, doing = self._schedule, "start workers"
        if isinstance(step, Ask):
            doing = f"{step.doing} {', '.join(schedule.trials[key].label for key in step.requests)}"
        self._bar.step(doing)
        if schedule.ends_s is not None and schedule.ends_s != self._bar.budget_s:
            self._bar.limit(schedule.ends_s)
        if not doing.startswith("measure") or now() < self._looked + _LOOK_S:
            return
        self._looked = now()
        schedule.ledger.append(State(**machine_state(), foreign_cpus=self._others.cpus()))
        levels = {key: list(schedule.ledger.levels_us(key).values()) for key in schedule.trials}
        medians = {key: float(np.median(own)) for key, own in levels.items() if len(own) >= 3}
        text = f"start-up {self._startup_s:.1f} s"
        if medians:
            best = min(medians, key=medians.__getitem__)
            text += f", best so far: {schedule.trials[best].label[:30]}"
        self._bar.note(text)
