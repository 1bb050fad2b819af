"""What a sweep measures next: groups of placements, turns in random order, failures.

The schedule has no device, process or clock. It yields steps; whoever carries one out tells it the
time and the answers before asking for the next.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from hetero_lab.intervals import Noise, turn_level
from hetero_lab.measure.bench import Bench
from hetero_lab.measure.stopping import (
    FULL,
    LEAST,
    WARM_UP_S,
    Pair,
    RunOptions,
    TurnPlan,
    affordable,
)
from hetero_lab.measure.worker_process import Answer, Request, WorkerError
from hetero_lab.results.records import (
    Compiled,
    Counters,
    Failed,
    Finished,
    Ledger,
    Sustained,
    Trial,
)

_LOOK_SHARE = 0.05  # share of the budget for a first estimate of the inference time
_END_S = 0.1  # reserved for ending the workers and reading the records
_COUNTED_INFERENCES = 36  # inferences to read the counters of one placement
_SLOW_COMPILE_S = 0.5  # compiles (with the first inference) that take longer run in parallel


class Begin(NamedTuple):
    """Let go of all placements but these, and start benches; the answers are the seconds each took.

    With ``reuse``, the benches of the former ones become those of the next ones.
    """

    keys: Sequence[str]
    reuse: bool


class Ask(NamedTuple):
    """Carry out requests in parallel, each on the bench of its key.

    The answer of a key is that of its request, or the WorkerError that came instead.
    """

    doing: str
    requests: Mapping[str, Request[Any]]


# A request by itself is for a bench of its own, which nothing else is asked. The schedule finds the
# answers, and the time, on the line after the yield: see tell().
Step: TypeAlias = Begin | Ask | Request[None]
_Value = TypeVar("_Value")
_Steps: TypeAlias = Generator[Step, None, _Value]


@dataclass(kw_only=True, eq=False)
class SweepSchedule:
    """Decides what is measured next, how often, and what is given up.

    ``trials`` are by key, all measured beside the one with the key ``reference``. The ``ledger``
    has the records of earlier runs and takes each new one. ``noise`` returns how much two compiles
    differ on the given devices. ``expected`` holds the variants whose reference outputs are kept;
    the schedule adds to it. If compiles are slow, so many run ``at_once``. Times are seconds since
    the budget began.
    """

    trials: Mapping[str, Trial]
    reference: str
    ledger: Ledger
    options: RunOptions
    group_size: int
    budget_s: float | None
    noise: Callable[[Iterable[str]], Noise]
    expected: set[str] = field(default_factory=set[str])
    at_once: int = 1

    def __post_init__(self) -> None:
        self.plan = TurnPlan(0, self.options.target)
        self.ends_s = self.budget_s  # about when all is measured, if that is known
        self._alive: dict[str, None] = {}  # compiled and without a failure, the reference first
        self._inference_s: dict[str, float] = {}
        self._start_s = 0.0  # of the slowest bench
        self._ready_s = 0.0  # to compile and infer once, of the slowest placement
        self._together_s = 0.0  # the same per placement, when compiled in parallel
        self._devices: set[str] = set()  # that something was compiled for
        self.tell(0.0)

    def tell(
        self, elapsed_s: float, took_s: float = 0.0, answers: Mapping[str, Any] | None = None
    ) -> None:
        """Tell what time it is, how long the last step took, and what was answered."""
        self._elapsed_s, self._took_s, self._answers = elapsed_s, took_s, answers or {}

    def pending(self) -> list[str]:
        """Return the keys that are still to be measured, those with the fewest turns first."""
        keys = [
            key
            for key in self.trials
            if not self.ledger.has(Finished, key)
            or self._missing_turns(key) > 0
            or self._lacks_records(key)
        ]
        return sorted(keys, key=lambda key: min(self._n_turns(key), self.options.target))

    def steps(self) -> Iterator[Step]:
        """Yield what is to be done, group by group, as far as the budget allows."""
        queue = [key for key in self.pending() if key != self.reference]
        group = first = self.ledger.next_group
        yield from self._make_ready([self.reference])
        while group == first or queue:
            began_s = self._elapsed_s
            plan = self._affordable(len(queue), is_first=group == first)
            if queue and not plan.n_placements:
                return
            self.plan = plan
            members = self._next_group(queue[: min(self.group_size - 1, plan.n_placements)])
            later = replace(plan, n_placements=plan.n_placements - len(members))
            attempts = yield from self._make_ready(members)
            if self._alive:
                yield from self._measure_group(group, later, began_s)
            for key in self._alive:
                is_last = key != self.reference or members == queue
                if is_last and self._missing_turns(key) <= 0:
                    self.ledger.append(Finished(entry=key))
            for key in members:
                self._alive.pop(key, None)
                self._inference_s.pop(key, None)
            queue = [key for key in queue if key not in attempts]
            group += 1

    # -- what the budget allows ---------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """The rest of the budget, infinite without one."""
        return math.inf if self.budget_s is None else self.budget_s - _END_S - self._elapsed_s

    @property
    def _each_ready_s(self) -> float:
        """How long a placement takes to be ready, estimated from earlier ones."""
        together_s = self._together_s if self._n_at_once > 1 else 0.0
        return self._start_s + (together_s or self._ready_s)

    @property
    def _each_inference_s(self) -> float:
        inferences_s = list(self._inference_s.values())
        return float(np.mean(inferences_s)) if inferences_s else 0.0

    def _takes_s(self, plan: TurnPlan) -> float:
        return plan.needs_s(self._each_ready_s, self._each_inference_s, self.group_size)

    def _affordable(self, n_pending: int, *, is_first: bool) -> TurnPlan:
        fit = partial(affordable, turns=self.options.target, needs_s=self._takes_s)
        plan = fit(self.left_s, n_pending)
        if is_first and n_pending and not plan.n_placements and self.left_s > 0.0:
            # Every call measures at least one placement, even if that compile overruns the budget.
            plan = fit(self.left_s + self._ready_s, 1)
            plan = plan if plan.n_placements else replace(LEAST, n_placements=1)
        return plan

    def _turn_s(self, key: str, inferences: int) -> float:
        times_s = self._inference_s
        return inferences * times_s.get(key, times_s.get(self.reference, 0.0))

    def _plan_s(self, plan: TurnPlan) -> float:
        return self._takes_s(plan) if plan.n_placements else 0.0

    def needs_s(self) -> float:
        """Return how long it would take to measure what is pending."""
        others = [key for key in self.pending() if key != self.reference]
        counted_s = 0.0
        if self.options.counters:
            counted_s = self._each_ready_s + _COUNTED_INFERENCES * self._each_inference_s
        return self._plan_s(TurnPlan(len(others), self.options.target)) + len(others) * counted_s

    # -- groups and rounds --------------------------------------------------------------------

    def _next_group(self, keys: Sequence[str]) -> list[str]:
        """Return the next group: it ends before a device that was not compiled for yet.

        That compile may take all the time that is left, so the earlier ones are measured first.
        """
        if not self.options.apart:
            return list(keys)
        earlier, members = set(self._devices), list[str]()
        for key in keys:
            devices = self.trials[key].runs_on
            if members and not devices <= earlier:
                break
            earlier |= devices
            members.append(key)
        return members

    def _make_ready(self, keys: Sequence[str]) -> _Steps[list[str]]:
        """Start benches, compile, infer once; return the keys that were tried."""
        yield Begin([*self._alive, *keys], reuse=self._is_slow)
        self._start_s = max([self._start_s, *self._answers.values()])
        self._devices.update(*(self.trials[key].runs_on for key in keys))
        attempts: list[str] = []
        while len(attempts) < len(keys):
            some = keys[len(attempts) : len(attempts) + self._n_at_once]
            each_s = self.plan.turns * self._turn_s(some[0], self.plan.inferences)
            least_s = (len(self._alive) + len(some)) * each_s
            if attempts and self._ready_s + least_s > self.left_s:
                break
            attempts += some
            yield from self._compile(some)
        return attempts

    @property
    def _n_at_once(self) -> int:
        """How many placements are compiled in parallel."""
        return self.at_once if self._is_slow else 1

    @property
    def _is_slow(self) -> bool:
        return self._ready_s > _SLOW_COMPILE_S

    def _compile(self, keys: Sequence[str]) -> _Steps[None]:
        compare = self.options.reference
        for trial in (self.trials[key] for key in keys if compare):
            # A process that has compiled a second model runs its own about 1 % faster; no placement
            # may have that advantage. Reading a language model once more would take too long, so
            # the first bench that compares computes its outputs, as it does if this fails.
            if trial.scenario is None and trial.variant not in self.expected:
                self.expected.add(trial.variant)
                yield partial(Bench.expect, trial=trial)
        began_s = self._elapsed_s
        batch = {
            key: partial(Bench.compile, trial=self.trials[key], compare=compare) for key in keys
        }
        answers = yield from self._ask("compile", batch)
        took_s = self._elapsed_s - began_s
        if len(keys) > 1:
            self._together_s = max(self._together_s, took_s / len(keys))
        for key, answer in answers.items():
            ready_s = took_s
            if key == self.reference:
                # Its bench may have computed the reference outputs, which happens only once.
                ready_s = min(took_s, 1.2e-3 * (answer.compile_ms + answer.first_inference_ms))
            self._ready_s = max(self._ready_s, ready_s)
            self._inference_s[key] = answer.first_inference_ms / 1e3
            self._alive[key] = None
            if not self.ledger.has(Compiled, key):
                self.ledger.append(answer)
            if key == self.reference and self.left_s > 0.0:
                yield from self._warm_up(key, min(WARM_UP_S, _LOOK_SHARE * self.left_s))

    def _warm_up(self, key: str, at_most_s: float) -> _Steps[None]:
        request = partial(Bench.warm_up, key=key, at_most_s=at_most_s)
        self._inference_s |= yield from self._ask("warm up", {key: request})

    def _measure_group(self, group: int, later: TurnPlan, began_s: float) -> _Steps[None]:
        """Run the rounds of one group: the least turns, the counters, then up to the precision."""
        if self.plan.inferences == FULL:
            for key in list(self._alive):
                if self.left_s >= WARM_UP_S:
                    yield from self._warm_up(key, WARM_UP_S)
        shuffle = random.Random(group)
        number = 0
        while any(self._lacks_turns(key, group) for key in self._alive):
            round_began_s = self._elapsed_s
            if not (yield from self._round(group, number, shuffle)):
                return
            number += 1
            if number == 1 and self.ends_s is None:
                self.ends_s = self._estimated_end_s(self._elapsed_s - round_began_s, later)
        if self.options.counters:
            yield from self._count_all(later)
        # Later groups need their least turns, each at least the time that this one took so far, and
        # a fifth to spare.
        n_later = later.n_groups(self.group_size)
        reserve_s = 1.2 * max(self._plan_s(later), n_later * (self._elapsed_s - began_s))
        deadline_s = self._elapsed_s + min(self.left_s / (n_later + 1), self.left_s - reserve_s)
        while self._elapsed_s < deadline_s and self.options.needs_another(number, self._pairs):
            if not (yield from self._round(group, number, shuffle)):
                return
            number += 1
        if self.options.sustained_s:
            yield from self._hold_all(self.options.sustained_s)

    def _round(self, group: int, number: int, shuffle: random.Random) -> _Steps[bool]:
        """Give each placement one turn; ``False`` if the budget ended or no placement is left."""
        plan = self.plan
        order = list(self._alive)
        shuffle.shuffle(order)
        if plan.turns < self.options.target and self.reference in order:
            # The budget may end this round early, and only pairs with a turn of the reference in
            # the same round give a ratio: the reference goes first.
            order.remove(self.reference)
            order.insert(0, self.reference)
        done: set[str] = set()  # keys that had a turn in this round
        for key in order:
            has_pair = self.reference in done and len(done) > 1
            if self._turn_s(key, plan.inferences) > self.left_s and (number or has_pair):
                return False
            length = {"discarded": plan.discarded, "timed": plan.timed}
            request = partial(Bench.run_turn, key=key, group=group, round=number, **length)
            for turn in (yield from self._ask("measure", {key: request})).values():
                self.ledger.append(turn)
                done.add(key)
                if self.trials[key].requests == 1:
                    self._inference_s[key] = self._took_s / plan.inferences
        return bool(self._alive)

    def _count_all(self, later: TurnPlan) -> _Steps[None]:
        """Read the counters of each placement, as long as there is time for that."""
        waiting = [key for key in self._alive if not self.ledger.has(Counters, key)]
        reserve_s = self._plan_s(later)
        while waiting:
            n = self._n_at_once
            some, waiting = waiting[:n], waiting[n:]
            runs_s = sum(self._turn_s(key, _COUNTED_INFERENCES) for key in some)
            if len(some) * self._each_ready_s + runs_s + reserve_s > self.left_s:
                return
            if len(some) > 1:  # one that fails here is compiled again where its counters are read
                counted = {
                    key: partial(Bench.compile_counted, trial=self.trials[key]) for key in some
                }
                yield Ask("counters", counted)
            for key in some:
                request = partial(Bench.read_counters, trial=self.trials[key])
                for counters in (yield from self._ask("counters", {key: request})).values():
                    self.ledger.append(counters)

    def _hold_all(self, seconds: float) -> _Steps[None]:
        """Hold each placement for some seconds, on top of the budget."""
        began_s = self._elapsed_s
        for key in list(self._alive):
            turn = partial(Bench.run_turn, key=key)
            until_s, medians = self._elapsed_s + seconds, list[float]()
            while key in self._alive and (self._elapsed_s < until_s or not medians):
                answers = yield from self._ask("hold", {key: turn})
                medians += [turn_level(turn.samples_us) for turn in answers.values()]
            if key in self._alive:
                self.ledger.append(Sustained(entry=key, medians_us=tuple(medians)))
        if self.budget_s is not None:
            self.budget_s += self._elapsed_s - began_s
            self.ends_s = self.budget_s

    def _ask(self, doing: str, batch: Mapping[str, Request[Answer]]) -> _Steps[dict[str, Answer]]:
        """Ask about entries; return the answers of those that do not fail, which costs no other.

        A crash may have other causes, and beside others memory or time may lack: what fails so is
        asked once more, alone.
        """
        yield Ask(doing, batch)
        answers = dict(self._answers)
        for key, request in batch.items():
            failure = answers[key]
            if isinstance(failure, WorkerError) and (failure.crashed or len(batch) > 1):
                yield Ask(doing, {key: request})
                answers[key] = failure = self._answers[key]
            if isinstance(failure, WorkerError):
                detail = failure.detail[:2000]
                if failure.crashed and "SIGKILL" not in detail:
                    detail += ". hetero_lab.investigate(model, placement) finds the ops"
                self.ledger.append(Failed(entry=key, status=failure.status, detail=detail))
                self._alive.pop(key, None)
                del answers[key]
        return answers

    def _estimated_end_s(self, round_s: float, later: TurnPlan) -> float:
        """Return about when all has its least turns, by the compiles and one round."""
        spent_s = self._elapsed_s
        counted_s = spent_s if self.options.counters else 0.0
        held_s = len(self._alive) * (self.options.sustained_s or 0.0)
        of_this_s = spent_s + counted_s + (self.options.target - 1) * round_s + held_s
        return of_this_s * (1 + later.n_groups(self.group_size))

    # -- turns and records so far -------------------------------------------------------------

    def _n_turns(self, key: str) -> int:
        if key == self.reference or not self.ledger.levels_us(self.reference):
            return len(self.ledger.levels_us(key))
        return len(self.ledger.pairs(key, self.reference)[0])

    def _missing_turns(self, key: str) -> int:
        return self.options.target - self._n_turns(key)

    def _lacks_records(self, key: str) -> bool:
        """Tell whether counters or a sustained run are asked for and not yet recorded."""
        needs = {Counters: self.options.counters, Sustained: self.options.sustained_s}
        return any(need and not self.ledger.has(kind, key) for kind, need in needs.items())

    def _lacks_turns(self, key: str, group: int) -> bool:
        """Tell whether a placement has fewer turns than are planned for it."""
        levels, target = self.ledger.levels_us(key), self.plan.turns
        if key == self.reference:
            # Once it has enough turns, one in this group will do; it runs in each round anyway.
            return not any(at[0] == group for at in levels) or len(levels) < target
        if self.reference not in self._alive:  # it failed: there will be no more pairs
            return len(levels) < target
        return self._n_turns(key) < target

    @property
    def _pairs(self) -> Iterator[Pair]:
        """The turns of this group's placements beside those of the reference, if it is alive."""
        others = [key for key in self._alive if key != self.reference]
        for key in others if self.reference in self._alive else ():
            noise = self.noise(self.trials[key].runs_on | self.trials[self.reference].runs_on)
            yield *self.ledger.pairs(key, self.reference), noise
