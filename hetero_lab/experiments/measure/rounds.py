"""The rounds of a sweep: groups of placements, turns in random order, failures, the budget.

Every placement of a group has a bench of its own, all alive at once. Models that share a process
share its threads, and on a busy machine the one that was compiled first is then up to a third
faster than an equal one that was compiled second. The next group takes the benches over; the
reference keeps its own.

Where a compile is slow, as on GPUs, whose kernels are compiled too, those of a group are compiled
at once in their processes, with nothing measured meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from hetero_lab.clock import now
from hetero_lab.experiments.measure.budget import (
    FULL,
    LEAST,
    Durations,
    RunOptions,
    TurnLength,
    TurnPlan,
    affordable,
)
from hetero_lab.experiments.measure.environment import OtherWork, machine_state
from hetero_lab.experiments.measure.ledger import Ledger
from hetero_lab.experiments.measure.records import (
    AnyRecord,
    Call,
    Compiled,
    Counters,
    Failed,
    Finished,
    State,
    Sustained,
    Trial,
)
from hetero_lab.experiments.measure.workers.bench import WARM_UP_S
from hetero_lab.experiments.measure.workers.process import AnyBench, WorkerError
from hetero_lab.experiments.measure.workers.requests import (
    Answer,
    Compile,
    CompileCounted,
    Expect,
    Hold,
    ReadCounters,
    Release,
    Request,
    RunTurn,
    WarmUp,
)
from hetero_lab.experiments.measure.workers.set_up import Workers
from hetero_lab.progress import calm
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.statistics import Noise, known_within

_PRECISE_TURNS = 20  # a spread of fewer turns is too uncertain itself to stop by
MOST_TURNS = 500
_TIMED_BAR = "{desc} |{bar}| {n:.0f} of about {total:.0f} s {postfix}"
_ATTEMPTS = 2  # a crash has to happen twice to be the placement's own
_LOOK_SHARE = 0.05  # of the budget for a first look at how long an inference takes
_SAY_S = 0.1
_END_S = 0.1  # to end the workers and read what was measured
_COUNTED_INFERENCES = 36  # of a compile with counters
_SLOW_START_S = 0.5  # of a bench
_SLOW_COMPILE_S = 0.5  # and the first inference; of a quick compile it is worth knowing the time


class SweepRun:
    """One run of a sweep: what is pending is measured and appended record by record.

    Parameters
    ----------
    trials
        What is to be measured; of trials that share a key the first.
    reference
        The key of the trial that all others are measured beside.
    records
        What was measured before.
    append
        Is given each record as it is made.
    options, workers, watch
        How to measure, the limits of workers, and the time there is.
    start, is_ready
        Starts a bench; tells whether that can be done soon, after waiting so many seconds at most.
    noise
        Tells how much two compiles differ on some devices.
    expected
        Variants whose expected outputs benches find; others are added once they are computed.
    at_once
        How many benches may compile at once, if compiles are slow.
    progress
        Whether to show a bar.
    """

    def __init__(
        self,
        *,
        trials: Sequence[Trial],
        reference: str,
        records: Iterable[AnyRecord],
        append: Callable[[AnyRecord], object],
        options: RunOptions,
        workers: Workers,
        watch: Stopwatch,
        start: Callable[[], AnyBench],
        noise: Callable[[Iterable[str]], Noise],
        is_ready: Callable[[float], bool] = lambda _: True,
        expected: set[str] | None = None,
        at_once: int = 1,
        progress: bool,
    ):
        self._trials = {trial.key: trial for trial in reversed(trials)}
        self._order = list(dict.fromkeys(trial.key for trial in trials))
        self._reference = reference
        self._ledger = Ledger(records)
        self._append = append
        self._options = options
        self._workers = workers
        self._watch = watch
        self._start = start
        self._noise = noise
        self._is_ready = is_ready
        self._most_at_once = at_once
        self._benches: dict[str, AnyBench] = {}
        self._idle: list[AnyBench] = []
        self._expected = set[str]() if expected is None else expected
        self._compiled: set[str] = set()  # what a living bench holds
        self._inference_s: dict[str, float] = {}
        self._ready_s: list[float] = []  # to compile and infer once, placement by placement
        self._together_s: list[float] = []  # the same for each of several that were ready at once
        self._start_s = 0.0  # of another bench
        self._startup_s = 0.0  # of all benches so far
        self._compile_s = self._longest_compile_s = 0.0
        self._turn_plan = TurnPlan(0, options.target)
        self._met: set[str] = set()  # devices that something was compiled for
        self._bar = calm(
            tqdm(
                total=watch.budget_s,
                desc="sweep",
                unit="s",
                disable=not progress,
                delay=2,
                bar_format=_TIMED_BAR if watch.budget_s else None,
            )
        )
        self._said_at = -math.inf
        self._others = OtherWork()

    def pending(self) -> list[str]:
        """Return the keys that are still to be measured, those with the fewest turns first."""
        keys = [
            key
            for key in self._order
            if not self._ledger.has(Finished, key)
            or self._missing_turns(key) > 0
            or self._lacks_records(key)
        ]
        return sorted(keys, key=lambda key: min(self._n_turns(key), self._options.target))

    def measure(self) -> None:
        """Measure what is pending and the budget allows, group by group."""
        queue = [key for key in self.pending() if key != self._reference]
        group = first = self._ledger.next_group
        self._say("start workers")
        began = now()
        is_ready = self._is_ready(self._left_s)
        self._startup_s = now() - began
        if not is_ready:  # the call after this one finds them ready
            self._record_call()
            return
        self._make_ready([self._reference])
        while group == first or (queue and not self._watch.is_over):
            turn_plan = self._turn_plan = self._affordable(len(queue), is_first=group == first)
            if queue and not turn_plan.n_placements and (self._watch.is_over or group > first):
                break
            most = min(max(1, self._workers.group - 1), turn_plan.n_placements)
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
        budget_s = self._watch.budget_s
        return math.inf if budget_s is None else budget_s - _END_S - self._watch.elapsed_s

    @property
    def _durations(self) -> Durations:
        """How long a placement takes, from those before."""
        known = list(self._inference_s.values())
        return Durations(
            ready_s=self._start_s + max(self._each_ready_s, default=0.0),
            inference_s=float(np.mean(known)) if known else 0.0,
            warm_up_s=WARM_UP_S,
        )

    def _affordable(self, n_pending: int, *, is_first: bool) -> TurnPlan:
        options = self._options
        if self._watch.budget_s is None:
            return TurnPlan(n_pending, options.target)
        chosen = partial(
            affordable,
            durations=self._durations,
            turns=options.target,
            group_size=self._workers.group,
        )
        turn_plan = chosen(self._left_s, n_pending)
        if is_first and n_pending and not turn_plan.n_placements and self._left_s > 0.0:
            # Every call gets on by a placement; for that it may end later by one compile.
            turn_plan = chosen(self._left_s + max(self._ready_s, default=0.0), 1)
            turn_plan = turn_plan if turn_plan.n_placements else TurnPlan(1, 1, LEAST)
        return turn_plan

    def _fits(self, seconds: float) -> bool:
        return seconds <= self._left_s

    def _turn_s(self, key: str, length: TurnLength) -> float:
        known = self._inference_s
        return length.inferences * known.get(key, known.get(self._reference, 0.0))

    def _needs_s(self, n_placements: int) -> float:
        turn_plan = TurnPlan(n_placements, self._options.target)
        counted = 0.0
        if self._options.counters:
            durations = self._durations
            counted = durations.ready_s + _COUNTED_INFERENCES * durations.inference_s
        return turn_plan.needs_s(self._durations, self._workers.group) + n_placements * counted

    def _deadline(self, took_s: float, later: TurnPlan) -> float | None:
        """Return until when a group may add turns: later ones have their least turns first."""
        if self._watch.budget_s is None:
            return None
        n_groups = math.ceil(later.n_placements / max(1, self._workers.group - 1))
        if not n_groups:
            return now() + self._left_s
        reserve = max(later.needs_s(self._durations, self._workers.group), n_groups * took_s)
        return now() + max(0.0, min(self._left_s / (n_groups + 1), self._left_s - 1.2 * reserve))

    # -- groups and rounds --------------------------------------------------------------------

    def _measure_group(
        self, group: int, members: Sequence[str], later: TurnPlan, *, is_last: bool
    ) -> list[str]:
        """Measure some placements beside the reference; return those that were tried."""
        began = now()
        alive = [self._reference] if self._reference in self._compiled else []
        tried = self._make_ready(members, len(alive))
        alive += [key for key in members if key in self._compiled]
        if alive:
            self._measure_compiled(group, alive, later, began)
        for key in alive:
            if self._missing_turns(key) <= 0 and (key != self._reference or is_last):
                self._record(Finished(entry=key))
        return tried

    def _first_group(self, keys: Sequence[str]) -> list[str]:
        """Return those of the next group, up to one on a device that may take long to compile."""
        if not self._options.apart:
            return list(keys)
        met, members = set(self._met), list[str]()
        for key in keys:
            devices = self._trials[key].runs_on
            if members and not devices <= met:
                break
            met |= devices
            members.append(key)
        return members

    def _make_ready(self, keys: Sequence[str], n_alive: int = 0) -> list[str]:
        """Start benches, compile, infer once; return the keys that were tried."""
        tried: list[str] = []
        self._start_benches([key for key in keys if key not in self._compiled])
        self._met.update(*(self._trials[key].runs_on for key in keys))
        turn_plan = self._turn_plan
        while len(tried) < len(keys):
            some = keys[len(tried) : len(tried) + self._at_once]
            each_s = turn_plan.turns * self._turn_s(some[0], turn_plan.length)
            least_s = (n_alive + len(some)) * each_s
            if tried and not self._fits(max(self._ready_s, default=0.0) + least_s):
                break
            tried += some
            self._compile([key for key in some if key not in self._compiled])
            n_alive += sum(key in self._compiled for key in some)
        return tried

    @property
    def _at_once(self) -> int:
        """How many placements are compiled at once."""
        return self._most_at_once if self._is_slow else 1

    @property
    def _is_slow(self) -> bool:
        return max(self._ready_s, default=0.0) > _SLOW_COMPILE_S

    @property
    def _each_ready_s(self) -> list[float]:
        """How long one more placement took; what compiling at once saves is known once seen."""
        return self._together_s if self._at_once > 1 and self._together_s else self._ready_s

    def _compile(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        self._compute_expected(keys)
        self._say(f"compile {', '.join(self._trials[key].label for key in keys)}")
        began = now()
        compare = self._options.reference
        requests = {key: Compile(trial=self._trials[key], compare=compare) for key in keys}
        answers = self._ask_at_once(requests) if len(keys) > 1 else {}
        for key in keys:
            if key not in answers:
                # What failed beside others may only have lacked their memory or time.
                answers[key] = self._guarded(None, key, requests[key])
        took_s = now() - began
        if len(keys) > 1:
            self._together_s.append(took_s / len(keys))
        for key in keys:
            answer = answers[key]
            if answer is None:
                continue
            self._ready_s.append(took_s)
            self._compile_s += took_s / len(keys)
            self._longest_compile_s = max(self._longest_compile_s, took_s)
            self._compiled.add(key)
            self._inference_s[key] = answer.first_inference_ms / 1e3
            if not self._ledger.has(Compiled, key):
                self._record(answer)
            if key == self._reference:
                if self._left_s > 0.0:
                    self._warm_up(None, key, min(WARM_UP_S, _LOOK_SHARE * self._left_s))
                # What outputs are compared with may have been computed there, once.
                both_ms = answer.compile_ms + answer.first_inference_ms
                self._ready_s[-1] = min(self._ready_s[-1], 1.2 * both_ms / 1e3)

    def _compute_expected(self, keys: Sequence[str]) -> None:
        """Let a bench of its own compute what the outputs of these are compared with.

        A process that has compiled another model runs its own about 1 % faster, which one
        placement must not have over the others. (A language model takes too long to be read
        once more; the bench that compares first computes it.)
        """
        if not self._options.reference:
            return
        for trial in (self._trials[key] for key in keys):
            if trial.scenario is not None or trial.variant in self._expected:
                continue
            self._expected.add(trial.variant)
            began = now()
            # Where it fails or takes too long, the bench that compares computes it.
            with contextlib.suppress(WorkerError), contextlib.closing(self._start()) as bench:
                timeout_s = min(self._workers.compile_timeout_s, max(0.0, self._left_s))
                bench.ask(Expect(trial=trial), timeout_s=timeout_s)
            self._startup_s += now() - began

    def _warm_up(self, alive: list[str] | None, key: str, at_most_s: float) -> None:
        inference_s = self._guarded(alive, key, WarmUp(key=key, at_most_s=at_most_s))
        if inference_s is not None:
            self._inference_s[key] = inference_s

    def _measure_compiled(
        self, group: int, alive: list[str], later: TurnPlan, began: float
    ) -> None:
        """Run the rounds of one group: the least turns, the counters, then up to the precision."""
        turn_plan = self._turn_plan
        if turn_plan.length == FULL:
            for key in list(alive):
                if self._fits(WARM_UP_S):
                    self._warm_up(alive, key, WARM_UP_S)
        shuffle = random.Random(group)
        number = 0
        while number < MOST_TURNS and any(
            self._lacks(key, turn_plan.turns, group, alive) for key in alive
        ):
            round_began = now()
            if not self._round(alive, group, number, shuffle, turn_plan.length):
                return
            number += 1
            if number == 1:
                self._expect(now() - round_began, len(alive), later)
        if self._options.counters:
            self._count_all(alive, later)
        # What this group took so far is what each later one needs at least.
        deadline = self._deadline(now() - began, later)
        while (
            self._options.turns is None
            and number < MOST_TURNS
            and (deadline is None or now() < deadline)
            and not self._precise(alive)
        ):
            if not self._round(alive, group, number, shuffle, turn_plan.length):
                return
            number += 1
        if self._options.sustained_s:
            self._hold_all(alive, self._options.sustained_s)

    def _round(
        self,
        alive: list[str],
        group: int,
        number: int,
        shuffle: random.Random,
        length: TurnLength,
    ) -> bool:
        """Give each placement one turn; ``False`` if the budget ended or nobody is left."""
        self._record(State(**asdict(machine_state()), foreign_cpus=self._others.cpus()))
        order = list(alive)
        shuffle.shuffle(order)
        if self._turn_plan.turns < self._options.target and self._reference in order:
            # The budget may end this round, and a turn without the reference's tells little.
            order.remove(self._reference)
            order.insert(0, self._reference)
        for key in order:
            if not self._fits(self._turn_s(key, length)) and (number or self._has_pair(group)):
                return False
            if key not in alive:
                continue
            began = now()
            asked = RunTurn(key=key, group=group, round=number, **asdict(length))
            turn = self._guarded(alive, key, asked)
            if turn is not None:
                self._record(turn)
                if self._trials[key].requests == 1:
                    self._inference_s[key] = (now() - began) / length.inferences
                self._say(f"measure {self._trials[key].label}")
        return bool(alive)

    def _has_pair(self, group: int) -> bool:
        """Tell whether some placement of a group has a turn beside one of the reference."""
        beside = self._ledger.levels_us(self._reference)
        return any(
            at[0] == group and at in beside
            for key in self._order
            if key != self._reference
            for at in self._ledger.levels_us(key)
        )

    def _count_all(self, alive: list[str], later: TurnPlan) -> None:
        """Read the counters of each, as long as there is time for that."""
        reserve = later.needs_s(self._durations, self._workers.group)
        reserve = reserve if later.n_placements else 0.0
        waiting = [key for key in alive if not self._ledger.has(Counters, key)]
        while waiting:
            some = [waiting.pop(0) for _ in range(min(self._at_once, len(waiting)))]
            runs_s = sum(self._turn_s(key, TurnLength(0, _COUNTED_INFERENCES)) for key in some)
            if not self._fits(len(some) * self._durations.ready_s + runs_s + reserve):
                return
            self._say(f"counters {', '.join(self._trials[key].label for key in some)}")
            if len(some) > 1:
                self._ask_at_once({key: CompileCounted(trial=self._trials[key]) for key in some})
            for key in some:
                if key not in self._benches:  # its worker died; the turns that it has are good
                    again = Compile(trial=self._trials[key])
                    if self._guarded(alive, key, again) is None:
                        continue
                counted = self._guarded(alive, key, ReadCounters(trial=self._trials[key]))
                if counted is not None:
                    self._record(counted)

    def _hold_all(self, alive: list[str], seconds: float) -> None:
        """Hold each for a while, which the budget for the turns does not pay."""
        began = now()
        for key in list(alive):
            self._say(f"hold {self._trials[key].label}")
            held = self._guarded(alive, key, Hold(key=key, seconds=seconds))
            if held is not None:
                self._record(held)
        if self._watch.budget_s is not None:
            self._bar.total = self._watch.budget_s + now() - began
            self._watch = replace(self._watch, budget_s=self._bar.total)

    # -- what is there, what is missing -------------------------------------------------------

    def _n_turns(self, key: str) -> int:
        if key == self._reference:
            return len(self._ledger.levels_us(key))
        return self._ledger.n_paired(key, self._reference)

    def _missing_turns(self, key: str) -> int:
        return self._options.target - self._n_turns(key)

    def _lacks_records(self, key: str) -> bool:
        """Tell whether counters or a sustained run are asked for and were never made."""
        asked = {Counters: self._options.counters, Sustained: self._options.sustained_s}
        return any(wanted and not self._ledger.has(kind, key) for kind, wanted in asked.items())

    def _lacks(self, key: str, target: int, group: int, alive: Sequence[str]) -> bool:
        own = self._ledger.levels_us(key)
        if key == self._reference:
            # The reference is done when those that are compared with it are.
            return not any(at[0] == group for at in own) or len(own) < target
        if self._reference not in alive:  # it failed: there will be no more pairs
            return len(own) < target
        return self._n_turns(key) < target

    def _precise(self, alive: Sequence[str]) -> bool:
        others = [k for k in alive if k != self._reference] if self._reference in alive else []
        reference = self._ledger.levels_us(self._reference)
        for key in others:
            own = self._ledger.levels_us(key)
            common = [at for at in own if at in reference]
            if 2 <= len(common) < _PRECISE_TURNS:
                return False
            if len(common) < 2:
                continue
            pair = [own[at] for at in common], [reference[at] for at in common]
            noise = self._noise(self._trials[key].runs_on | self._trials[self._reference].runs_on)
            if not known_within(self._options.precision, *pair, noise):
                return False
        return True

    # -- benches ------------------------------------------------------------------------------

    def _ask_at_once(self, requests: Mapping[str, Request[Answer]]) -> dict[str, Answer | None]:
        """Ask several benches at once; return the answers of those that did not fail."""
        pool = ThreadPoolExecutor(len(requests))
        asked = {key: pool.submit(self._ask, key, request) for key, request in requests.items()}
        try:
            wait(asked.values())
        except BaseException:  # Ctrl-C: nobody waits for compiles that are not wanted
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
        return self._bench(key).ask(request, timeout_s=self._workers.limit_s(request))

    def _guarded(
        self, alive: list[str] | None, key: str, request: Request[Answer]
    ) -> Answer | None:
        """Ask the bench about one entry; a failure costs that entry and no other."""
        timeout_s = self._workers.limit_s(request)
        for attempt in range(_ATTEMPTS):
            try:
                bench = self._bench(key)
                if attempt and not _compiles(request):
                    again = Compile(trial=self._trials[key])
                    bench.ask(again, timeout_s=self._workers.compile_timeout_s)
                return bench.ask(request, timeout_s=timeout_s)
            except WorkerError as failure:
                if failure.died:
                    self._close_bench(key)
                if not failure.crashed or attempt + 1 == _ATTEMPTS:
                    detail = failure.detail[:2000]
                    self._record(Failed(entry=key, status=failure.status, detail=detail))
                    self._compiled.discard(key)
                    if alive is not None and key in alive:
                        alive.remove(key)
                    return None
        return None

    def _bench(self, key: str) -> AnyBench:
        if key not in self._benches:
            try:
                self._benches[key] = self._idle.pop()  # several threads may want the last one
            except IndexError:
                self._benches[key] = self._start()
                self._start_s = max(self._start_s, self._benches[key].start_s)
        return self._benches[key]

    def _start_benches(self, keys: Sequence[str]) -> None:
        """Start all at once; what cannot start says so when it is asked."""

        def start(key: str) -> None:
            with contextlib.suppress(WorkerError):
                self._bench(key)

        began = now()
        self._say("start workers")
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(start, keys))
        self._startup_s += now() - began

    def _release(self, key: str) -> None:
        """Let go of a compiled placement; keep its bench for another where a new one is dear.

        What the bench has compiled before makes the next one faster than it would be by itself.
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
            bench.ask(Release(key=key), timeout_s=self._workers.timeout_s)
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

    def _record(self, record: AnyRecord) -> None:
        self._append(record)
        self._ledger.note(record)

    def _record_call(self) -> None:
        """Record what the time went into, and what is left to do."""
        left = self.pending()
        turn_plan = self._turn_plan
        others = [key for key in left if key != self._reference]
        self._record(
            Call(
                budget_s=self._watch.budget_s,
                elapsed_s=self._watch.elapsed_s,
                startup_s=self._startup_s,
                compile_s=self._compile_s,
                longest_compile_s=self._longest_compile_s,
                turns=turn_plan.turns,
                discarded=turn_plan.length.discarded,
                timed=turn_plan.length.timed,
                n_left=len(left),
                needs_s=self._startup_s + self._needs_s(len(others)) if left else 0.0,
            )
        )

    def _expect(self, round_s: float, n_alive: int, later: TurnPlan) -> None:
        """Show how long the least turns will take, now that compiles and a round are known."""
        if self._watch.budget_s is not None or self._bar.total is not None:
            return
        spent = self._watch.elapsed_s
        compiles = spent if self._options.counters else 0.0
        of_this = spent + compiles + (self._options.target - 1) * round_s
        of_this += n_alive * (self._options.sustained_s or 0.0)
        n_groups = math.ceil(later.n_placements / max(1, self._workers.group - 1))
        self._bar.total = round(of_this * (1 + n_groups), 1)
        self._bar.bar_format = _TIMED_BAR

    def _say(self, what: str) -> None:
        if self._bar.disable or now() - self._said_at < _SAY_S:
            return
        self._said_at = now()
        self._bar.set_description(what if len(what) <= 50 else what[:49] + "…", refresh=False)
        levels = {key: list(self._ledger.levels_us(key).values()) for key in self._order}
        medians = {key: float(np.median(own)) for key, own in levels.items() if len(own) >= 3}
        postfix = f"start-up {self._startup_s:.1f} s"
        if medians:
            best = min(medians, key=lambda key: medians[key])
            postfix += f", best {self._trials[best].label[:30]}: {medians[best]:.0f} µs"
        self._bar.set_postfix_str(postfix, refresh=False)
        total = self._bar.total
        elapsed = self._watch.elapsed_s
        self._bar.n = min(elapsed, total) if total else round(elapsed, 1)
        self._bar.update(0)


def _compiles(request: Request[Any]) -> bool:
    return isinstance(request, Compile)
