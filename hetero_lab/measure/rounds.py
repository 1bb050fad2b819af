"""The rounds of a sweep: groups of placements, turns in random order, failures, the budget.

Every placement of a group has its own bench, and all benches of a group are alive at the same
time. Models that share a process share its threads: on a busy machine, the model compiled first
is then up to a third faster than an equal one compiled second. The next group reuses the benches;
the reference keeps its own.

Slow compiles, as on GPUs, which also compile kernels, run in parallel, each in its own process.
Nothing is measured meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import partial

import numpy as np

from hetero_lab.clock import now
from hetero_lab.intervals import Noise, known_within, turn_level
from hetero_lab.measure import requests
from hetero_lab.measure.bench import AnyBench
from hetero_lab.measure.budget import (
    FULL,
    LEAST,
    WARM_UP_S,
    Durations,
    RunOptions,
    TurnLength,
    TurnPlan,
    affordable,
)
from hetero_lab.measure.requests import Answer, Request
from hetero_lab.measure.worker_process import WorkerError
from hetero_lab.measure.workers import Workers, limit_s
from hetero_lab.progress import Progress
from hetero_lab.results.environment import OtherWork, machine_state
from hetero_lab.results.records import (
    AnyRecord,
    Call,
    Compiled,
    Counters,
    Failed,
    Finished,
    Ledger,
    State,
    Sustained,
    Trial,
    by_key,
)
from hetero_lab.runtime.timing import Stopwatch

_PRECISE_TURNS = 20  # the spread of fewer turns is too uncertain to stop by
MOST_TURNS = 500
_ATTEMPTS = 2  # other processes can cause one crash (memory, drivers); a second is the placement's
_LOOK_SHARE = 0.05  # share of the budget for a first estimate of the inference time
_END_S = 0.1  # reserved for ending the workers and reading the records
_COUNTED_INFERENCES = 36  # inferences to read the counters of one placement
_SLOW_START_S = 0.5  # a bench that takes longer to start is reused
_SLOW_COMPILE_S = 0.5  # compiles (with the first inference) that take longer run in parallel


@dataclass(kw_only=True, eq=False)
class BaseRun:
    """One run of a sweep, wherever it measures: appends record by record.

    Trials that share a key are measured once, as the first of them, all beside the trial with the
    key ``reference``. ``records`` are those of earlier runs; ``append`` takes each new one.
    """

    trials: Sequence[Trial]
    reference: str
    records: InitVar[Iterable[AnyRecord]]
    append: Callable[[AnyRecord], object]
    options: RunOptions
    workers: Workers
    watch: Stopwatch
    progress: bool

    def __post_init__(self, records: Iterable[AnyRecord]) -> None:
        self._trials = by_key(self.trials)
        self._ledger = Ledger(records)
        self._bar = Progress("sweep", show=self.progress, budget_s=self.watch.budget_s)

    def pending(self) -> list[str]:
        """Return the keys that are still to be measured."""
        raise NotImplementedError

    def measure(self) -> None:
        """Measure pending trials, as far as the budget allows."""
        raise NotImplementedError

    def close(self) -> None:
        """End what the run has started, and the progress bar."""
        raise NotImplementedError

    def _record(self, record: AnyRecord) -> None:
        self.append(record)
        self._ledger.note(record)


@dataclass(kw_only=True, eq=False)
class SweepRun(BaseRun):
    """A run on this machine.

    ``start`` starts a bench; ``is_ready`` waits up to the given seconds and tells whether that
    will be quick. ``noise`` returns how much two compiles differ on the given devices. ``expected``
    holds the variants whose reference outputs are kept on disk; the run adds to it. If compiles are
    slow, ``at_once`` benches compile in parallel.
    """

    start: Callable[[], AnyBench]
    noise: Callable[[Iterable[str]], Noise]
    is_ready: Callable[[float], bool] = lambda _: True
    expected: set[str] = field(default_factory=set)
    at_once: int = 1

    def __post_init__(self, records: Iterable[AnyRecord]) -> None:
        super().__post_init__(records)
        self._benches: dict[str, AnyBench] = {}
        self._idle: list[AnyBench] = []
        self._group: list[str] = []  # keys, the reference first
        self._compiled: set[str] = set()  # keys that are compiled on a living bench
        self._inference_s: dict[str, float] = {}
        self._ready_s: list[float] = []  # time to compile and infer once, per placement
        self._together_s: list[float] = []  # the same per placement, when compiled in parallel
        self._start_s = 0.0  # time to start one bench
        self._startup_s = 0.0  # time spent on starting benches so far
        self._compile_s = 0.0
        self._turn_plan = TurnPlan(0, self.options.target)
        self._met: set[str] = set()  # devices that something was compiled for
        self._others = OtherWork()

    def pending(self) -> list[str]:
        """Return the keys that are still to be measured, those with the fewest turns first."""
        keys = [
            key
            for key in self._trials
            if not self._ledger.has(Finished, key)
            or self._missing_turns(key) > 0
            or self._lacks_records(key)
        ]
        return sorted(keys, key=lambda key: min(self._n_turns(key), self.options.target))

    def measure(self) -> None:
        """Measure pending trials, group by group, as far as the budget allows."""
        queue = [key for key in self.pending() if key != self.reference]
        group = first = self._ledger.next_group
        self._bar.step("start workers")
        began = now()
        is_ready = self.is_ready(self._left_s)
        self._startup_s = now() - began
        if not is_ready:  # the server goes on importing: the next call finds it ready
            self._record_call()
            return
        self._group = [self.reference]
        self._make_ready(self._group)
        while group == first or (queue and not self.watch.is_over):
            turn_plan = self._turn_plan = self._affordable(len(queue), is_first=group == first)
            if queue and not turn_plan.n_placements and (self.watch.is_over or group > first):
                break
            most = min(self.workers.group - 1, turn_plan.n_placements)
            members = self._first_group(queue[:most])
            later = replace(turn_plan, n_placements=turn_plan.n_placements - len(members))
            tried = self._measure_group(group, members, later, is_last=members == queue)
            for key in members:
                self._release(key)
            queue = [key for key in queue if key not in tried]
            group += 1
        self._record_call()

    def close(self) -> None:
        """End the workers and the progress bar."""
        self._close_benches()
        self._bar.close()

    # -- what the budget allows ---------------------------------------------------------------

    @property
    def _left_s(self) -> float:
        budget_s = self.watch.budget_s
        return math.inf if budget_s is None else budget_s - _END_S - self.watch.elapsed_s

    @property
    def _durations(self) -> Durations:
        """How long a placement takes, estimated from earlier placements."""
        known = list(self._inference_s.values())
        together = self._at_once > 1 and self._together_s
        return Durations(
            ready_s=self._start_s + max(together or self._ready_s, default=0.0),
            inference_s=float(np.mean(known)) if known else 0.0,
        )

    def _affordable(self, n_pending: int, *, is_first: bool) -> TurnPlan:
        chosen = partial(
            affordable,
            durations=self._durations,
            turns=self.options.target,
            group_size=self.workers.group,
        )
        turn_plan = chosen(self._left_s, n_pending)
        if is_first and n_pending and not turn_plan.n_placements and self._left_s > 0.0:
            # Every call measures at least one placement, even if that compile overruns the budget.
            turn_plan = chosen(self._left_s + max(self._ready_s, default=0.0), 1)
            turn_plan = turn_plan if turn_plan.n_placements else TurnPlan(1, 1, LEAST)
        return turn_plan

    def _fits(self, seconds: float) -> bool:
        return seconds <= self._left_s

    def _turn_s(self, key: str, length: TurnLength) -> float:
        known = self._inference_s
        return length.inferences * known.get(key, known.get(self.reference, 0.0))

    def _needs_s(self, n_placements: int) -> float:
        turn_plan = TurnPlan(n_placements, self.options.target)
        counted = 0.0
        if self.options.counters:
            durations = self._durations
            counted = durations.ready_s + _COUNTED_INFERENCES * durations.inference_s
        return turn_plan.needs_s(self._durations, self.workers.group) + n_placements * counted

    def _deadline(self, took_s: float, later: TurnPlan) -> float:
        """Return when a group has to stop adding turns, so that later groups get their least."""
        n_groups, reserve = later.n_groups(self.workers.group), 0.0
        if n_groups:
            reserve = max(later.needs_s(self._durations, self.workers.group), n_groups * took_s)
        return now() + max(0.0, min(self._left_s / (n_groups + 1), self._left_s - 1.2 * reserve))

    # -- groups and rounds --------------------------------------------------------------------

    def _measure_group(
        self, group: int, members: Sequence[str], later: TurnPlan, *, is_last: bool
    ) -> list[str]:
        """Measure some placements beside the reference; return those that were tried."""
        began = now()
        self._group = [self.reference, *members]
        tried = self._make_ready(members)
        if self._alive:
            self._measure_compiled(group, later, began)
        for key in self._alive:
            if self._missing_turns(key) <= 0 and (key != self.reference or is_last):
                self._record(Finished(entry=key))
        return tried

    def _first_group(self, keys: Sequence[str]) -> list[str]:
        """Return the next group: it ends before a device that was not compiled for yet.

        That compile may take all the time that is left, so the earlier ones are measured first.
        """
        if not self.options.apart:
            return list(keys)
        met, members = set(self._met), list[str]()
        for key in keys:
            devices = self._trials[key].runs_on
            if members and not devices <= met:
                break
            met |= devices
            members.append(key)
        return members

    def _make_ready(self, keys: Sequence[str]) -> list[str]:
        """Start benches, compile, infer once; return the keys that were tried."""
        tried: list[str] = []
        self._start_benches([key for key in keys if key not in self._compiled])
        self._met.update(*(self._trials[key].runs_on for key in keys))
        turn_plan = self._turn_plan
        while len(tried) < len(keys):
            some = keys[len(tried) : len(tried) + self._at_once]
            each_s = turn_plan.turns * self._turn_s(some[0], turn_plan.length)
            least_s = (len(self._alive) + len(some)) * each_s
            if tried and not self._fits(max(self._ready_s, default=0.0) + least_s):
                break
            tried += some
            self._compile([key for key in some if key not in self._compiled])
        return tried

    @property
    def _alive(self) -> list[str]:
        """The keys of the group that are compiled and did not fail, the reference first."""
        return [key for key in self._group if key in self._compiled]

    @property
    def _at_once(self) -> int:
        """How many placements are compiled in parallel."""
        return self.at_once if self._is_slow else 1

    @property
    def _is_slow(self) -> bool:
        return max(self._ready_s, default=0.0) > _SLOW_COMPILE_S

    def _compile(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        self._compute_expected(keys)
        self._bar.step(f"compile {', '.join(self._trials[key].label for key in keys)}")
        began = now()
        compare = self.options.reference
        asked = {key: requests.Compile(trial=self._trials[key], compare=compare) for key in keys}
        answers = self._ask_at_once(asked) if len(keys) > 1 else {}
        for key in keys:
            if key not in answers:
                # The others may have taken the memory or time that it needs: try it alone.
                answers[key] = self._guarded(key, asked[key])
        took_s = now() - began
        if len(keys) > 1:
            self._together_s.append(took_s / len(keys))
        for key in keys:
            answer = answers[key]
            if answer is None:
                continue
            self._ready_s.append(took_s)
            self._compile_s += took_s / len(keys)
            self._inference_s[key] = answer.first_inference_ms / 1e3
            if not self._ledger.has(Compiled, key):
                self._record(answer)
            if key == self.reference:
                if self._left_s > 0.0:
                    self._warm_up(key, min(WARM_UP_S, _LOOK_SHARE * self._left_s))
                # This bench may have computed the reference outputs, which happens only once.
                both_ms = answer.compile_ms + answer.first_inference_ms
                self._ready_s[-1] = min(self._ready_s[-1], 1.2 * both_ms / 1e3)

    def _compute_expected(self, keys: Sequence[str]) -> None:
        """Compute the reference outputs of these placements in a separate process.

        A process that has compiled a second model runs its own about 1 % faster; no placement
        may have that advantage over the others. (Reading a language model once more would take
        too long, so the first bench that compares computes its reference outputs.)
        """
        if not self.options.reference:
            return
        for trial in (self._trials[key] for key in keys):
            if trial.scenario is not None or trial.variant in self.expected:
                continue
            self.expected.add(trial.variant)
            began = now()
            # If this fails or takes too long, the first bench that compares computes them.
            with contextlib.suppress(WorkerError), contextlib.closing(self.start()) as bench:
                timeout_s = min(self.workers.compile_timeout_s, max(0.0, self._left_s))
                bench.ask(requests.Expect(trial=trial), timeout_s=timeout_s)
            self._startup_s += now() - began

    def _warm_up(self, key: str, at_most_s: float) -> None:
        inference_s = self._guarded(key, requests.WarmUp(key=key, at_most_s=at_most_s))
        if inference_s is not None:
            self._inference_s[key] = inference_s

    def _measure_compiled(self, group: int, later: TurnPlan, began: float) -> None:
        """Run the rounds of one group: the least turns, the counters, then up to the precision."""
        turn_plan = self._turn_plan
        if turn_plan.length == FULL:
            for key in self._alive:
                if self._fits(WARM_UP_S):
                    self._warm_up(key, WARM_UP_S)
        shuffle = random.Random(group)
        number = 0
        while number < MOST_TURNS and any(
            self._lacks(key, turn_plan.turns, group) for key in self._alive
        ):
            round_began = now()
            if not self._round(group, number, shuffle):
                return
            number += 1
            if number == 1:
                self._expect(now() - round_began, later)
        if self.options.counters:
            self._count_all(later)
        # Each later group needs at least the time that this one took so far.
        deadline = self._deadline(now() - began, later)
        while (
            self.options.turns is None
            and number < MOST_TURNS
            and now() < deadline
            and not self._precise(self._alive)
        ):
            if not self._round(group, number, shuffle):
                return
            number += 1
        if self.options.sustained_s:
            self._hold_all(self.options.sustained_s)

    def _round(self, group: int, number: int, shuffle: random.Random) -> bool:
        """Give each placement one turn; ``False`` if the budget ended or no placement is left."""
        self._record(State(**machine_state(), foreign_cpus=self._others.cpus()))
        length = self._turn_plan.length
        order = self._alive
        shuffle.shuffle(order)
        if self._turn_plan.turns < self.options.target and self.reference in order:
            # The budget may end this round early, and only pairs with a turn of the reference in
            # the same round give a ratio: the reference goes first.
            order.remove(self.reference)
            order.insert(0, self.reference)
        done: set[str] = set()  # keys that had a turn in this round
        for key in order:
            has_pair = self.reference in done and len(done) > 1
            if not self._fits(self._turn_s(key, length)) and (number or has_pair):
                return False
            if key not in self._compiled:
                continue
            began = now()
            asked = requests.RunTurn(key=key, group=group, round=number, **asdict(length))
            turn = self._guarded(key, asked)
            if turn is not None:
                self._record(turn)
                done.add(key)
                if self._trials[key].requests == 1:
                    self._inference_s[key] = (now() - began) / length.inferences
                self._bar.step(f"measure {self._trials[key].label}")
        self._show_best()
        return bool(self._alive)

    def _count_all(self, later: TurnPlan) -> None:
        """Read the counters of each placement, as long as there is time for that."""
        reserve = later.needs_s(self._durations, self.workers.group)
        reserve = reserve if later.n_placements else 0.0
        waiting = [key for key in self._alive if not self._ledger.has(Counters, key)]
        while waiting:
            some = [waiting.pop(0) for _ in range(min(self._at_once, len(waiting)))]
            runs_s = sum(self._turn_s(key, TurnLength(0, _COUNTED_INFERENCES)) for key in some)
            if not self._fits(len(some) * self._durations.ready_s + runs_s + reserve):
                return
            self._bar.step(f"counters {', '.join(self._trials[key].label for key in some)}")
            if len(some) > 1:
                self._ask_at_once(
                    {key: requests.CompileCounted(trial=self._trials[key]) for key in some}
                )
            for key in some:
                if key not in self._benches:  # its worker died; its turns are good
                    again = requests.Compile(trial=self._trials[key])
                    if self._guarded(key, again) is None:
                        continue
                counted = self._guarded(key, requests.ReadCounters(trial=self._trials[key]))
                if counted is not None:
                    self._record(counted)

    def _hold_all(self, seconds: float) -> None:
        """Hold each placement for some seconds, on top of the budget."""
        began = now()
        for key in self._alive:
            self._bar.step(f"hold {self._trials[key].label}")
            turn = requests.RunTurn(key=key, **asdict(FULL))
            until, medians = now() + seconds, list[float]()
            while key in self._compiled and (now() < until or not medians):
                if held := self._guarded(key, turn):
                    medians.append(turn_level(held.samples_us))
            if key in self._compiled:
                self._record(Sustained(entry=key, medians_us=tuple(medians)))
        if self.watch.budget_s is not None:
            budget_s = self.watch.budget_s + now() - began
            self.watch = replace(self.watch, budget_s=budget_s)
            self._bar.limit(budget_s)

    # -- turns and records so far -------------------------------------------------------------

    def _n_turns(self, key: str) -> int:
        if key == self.reference:
            return len(self._ledger.levels_us(key))
        return len(self._ledger.paired(key, self.reference)[0])

    def _missing_turns(self, key: str) -> int:
        return self.options.target - self._n_turns(key)

    def _lacks_records(self, key: str) -> bool:
        """Tell whether counters or a sustained run are asked for and not yet recorded."""
        asked = {Counters: self.options.counters, Sustained: self.options.sustained_s}
        return any(wanted and not self._ledger.has(kind, key) for kind, wanted in asked.items())

    def _lacks(self, key: str, target: int, group: int) -> bool:
        own = self._ledger.levels_us(key)
        if key == self.reference:
            # Once it has enough turns, one in this group will do; it runs in each round anyway.
            return not any(at[0] == group for at in own) or len(own) < target
        if self.reference not in self._compiled:  # it failed: there will be no more pairs
            return len(own) < target
        return self._n_turns(key) < target

    def _precise(self, alive: Sequence[str]) -> bool:
        others = [k for k in alive if k != self.reference] if self.reference in alive else []
        for key in others:
            ours, beside = self._ledger.paired(key, self.reference)
            if len(ours) < 2:
                continue
            noise = self.noise(self._trials[key].runs_on | self._trials[self.reference].runs_on)
            precision = self.options.precision
            if len(ours) < _PRECISE_TURNS or not known_within(precision, ours, beside, noise):
                return False
        return True

    # -- benches ------------------------------------------------------------------------------

    def _ask_at_once(self, wanted: Mapping[str, Request[Answer]]) -> dict[str, Answer | None]:
        """Ask several benches in parallel; return the answers of those that did not fail."""
        pool = ThreadPoolExecutor(len(wanted))
        asked = {key: pool.submit(self._ask, key, request) for key, request in wanted.items()}
        try:
            wait(asked.values())
        except BaseException:  # Ctrl-C: do not wait for the compiles
            self._close_benches()
            raise
        finally:
            pool.shutdown()
        answers: dict[str, Answer | None] = {}
        for key, future in asked.items():
            try:
                answers[key] = future.result()
            except WorkerError as failure:
                if failure.died:
                    self._close_bench(key)
        return answers

    def _ask(self, key: str, request: Request[Answer]) -> Answer:
        answer = self._bench(key).ask(request, timeout_s=limit_s(self.workers, request))
        if isinstance(request, requests.Compile):
            self._compiled.add(key)
        return answer

    def _guarded(self, key: str, request: Request[Answer]) -> Answer | None:
        """Ask the bench about one entry; a failure costs that entry and no other.

        After a crash, which may have other causes, the request is repeated once on a new bench.
        """
        for attempt in range(_ATTEMPTS):
            try:
                if attempt and request.answer is not Compiled:  # a new bench has compiled nothing
                    self._ask(key, requests.Compile(trial=self._trials[key]))
                return self._ask(key, request)
            except WorkerError as failure:
                if failure.died:
                    self._close_bench(key)
                if not failure.crashed or attempt + 1 == _ATTEMPTS:
                    detail = failure.detail[:2000]
                    if failure.crashed and "SIGKILL" not in detail:
                        detail += ". hetero_lab.investigate(model, placement) finds the ops"
                    self._record(Failed(entry=key, status=failure.status, detail=detail))
                    self._compiled.discard(key)
                    return None
        return None

    def _bench(self, key: str) -> AnyBench:
        if key not in self._benches:
            try:
                self._benches[key] = self._idle.pop()  # threads may compete for the last one
            except IndexError:
                self._benches[key] = self.start()
                self._start_s = max(self._start_s, self._benches[key].start_s)
        return self._benches[key]

    def _start_benches(self, keys: Sequence[str]) -> None:
        """Start benches in parallel; one that cannot start raises when it is asked."""

        def start(key: str) -> None:
            with contextlib.suppress(WorkerError):
                self._bench(key)

        began = now()
        self._bar.step("start workers")
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(start, keys))
        self._startup_s += now() - began

    def _release(self, key: str) -> None:
        """Let go of a compiled placement; keep its bench if a new one would take long.

        Otherwise the next placement gets a new bench, as it would run faster in a process that
        has compiled before. Where starting or compiling is slow, that would take too much time.
        """
        self._compiled.discard(key)
        self._inference_s.pop(key, None)
        bench = self._benches.pop(key, None)
        if bench is None:
            return
        if not self._is_slow and bench.start_s < _SLOW_START_S:
            bench.close()
            return
        try:
            bench.ask(requests.Release(key=key), timeout_s=self.workers.timeout_s)
        except WorkerError:
            bench.close()
        else:
            self._idle.append(bench)

    def _close_bench(self, key: str) -> None:
        self._compiled.discard(key)
        bench = self._benches.pop(key, None)
        if bench is not None:
            bench.close()

    def _close_benches(self) -> None:
        open_, self._benches, self._idle = [*self._benches.values(), *self._idle], {}, []
        self._compiled.clear()
        if open_:
            with ThreadPoolExecutor(len(open_)) as pool:
                list(pool.map(lambda bench: bench.close(), open_))

    # -- records and the progress bar ---------------------------------------------------------

    def _record_call(self) -> None:
        """Record how the time was spent and what is left to do."""
        left = self.pending()
        turn_plan = self._turn_plan
        others = [key for key in left if key != self.reference]
        self._record(
            Call(
                budget_s=self.watch.budget_s,
                elapsed_s=self.watch.elapsed_s,
                startup_s=self._startup_s,
                compile_s=self._compile_s,
                turns=turn_plan.turns,
                discarded=turn_plan.length.discarded,
                timed=turn_plan.length.timed,
                n_left=len(left),
                needs_s=self._startup_s + self._needs_s(len(others)) if left else 0.0,
            )
        )

    def _expect(self, round_s: float, later: TurnPlan) -> None:
        """Show how long the least turns will take, estimated from the compiles and one round."""
        if self._bar.budget_s is not None:
            return
        spent = self.watch.elapsed_s
        compiles = spent if self.options.counters else 0.0
        of_this = spent + compiles + (self.options.target - 1) * round_s
        of_this += len(self._alive) * (self.options.sustained_s or 0.0)
        self._bar.limit(of_this * (1 + later.n_groups(self.workers.group)))

    def _show_best(self) -> None:
        """Show the time that starting workers took, and the fastest placement so far."""
        if not self.progress:
            return
        levels = {key: list(self._ledger.levels_us(key).values()) for key in self._trials}
        medians = {key: float(np.median(own)) for key, own in levels.items() if len(own) >= 3}
        text = f"start-up {self._startup_s:.1f} s"
        if medians:
            best = min(medians, key=medians.__getitem__)
            text += f", best so far: {self._trials[best].label[:30]}"
        self._bar.note(text)
