"""A run of a sweep: carries out on benches what its schedule says, and appends the records."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np

from hetero_lab.clock import Stopwatch, now
from hetero_lab.measure.bench_pool import BenchPool
from hetero_lab.measure.requests import Expect
from hetero_lab.measure.sweep_schedule import Ask, Begin, Step, SweepSchedule
from hetero_lab.progress import Progress
from hetero_lab.results.environment import OtherWork, machine_state
from hetero_lab.results.records import Call, State

_LOOK_S = 1.0  # between two looks at the machine, each of which takes some ms


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
                case Expect():
                    answers = self._pool.expect(step, schedule.left_s)
            took_s = now() - began
            if isinstance(step, Begin | Expect):
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
                discarded=schedule.plan.length.discarded,
                timed=schedule.plan.length.timed,
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
