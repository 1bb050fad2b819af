"""The rounds of a sweep: groups of placements, turns in random order, failures, the budget.

Every placement of a group has a bench of its own, all alive at once. Models that share a process
share its threads, and on a busy machine the one that was compiled first is then up to a third
faster than an equal one that was compiled second. The next group takes the benches over; the
reference keeps its own.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import psutil
from tqdm.auto import tqdm

from hetero_lab.clock import now
from hetero_lab.errors import CompileError
from hetero_lab.experiments.environment import machine_state
from hetero_lab.experiments.workers.process import WorkerError
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.statistics import compile_spread, paired_ratio, turn_level

GROUP_SIZE = 8
LEAST_TURNS = 8
_NARROWEST = 2.3  # half widths in standard deviations: a tenth more than the least there is
_PRECISE_TURNS = 20  # a spread of fewer turns is too uncertain itself to stop by
_MOST_TURNS = 500
_TIMED_BAR = "{desc} |{bar}| {n:.0f} of about {total:.0f} s {postfix}"
_ATTEMPTS = 2  # a crash has to happen twice to be the placement's own


class Asked(Protocol):
    """A bench, in this process or in one of its own."""

    def ask(self, do: str, *, timeout_s: float, **args: Any) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Plan:
    """How long to measure, and what besides turns."""

    precision: float
    turns: int | None
    sustained_s: float | None
    counters: bool
    reference: bool
    timeout_s: float
    compile_timeout_s: float
    group_size: int = GROUP_SIZE


class SweepRun:
    """One run of a sweep: what is pending is measured and appended record by record.

    Records are ``compiled``, ``turn``, ``counters``, ``sustained``, ``failed``, ``finished`` (of
    an entry) and ``state`` (of the machine).
    """

    def __init__(
        self,
        *,
        entries: Sequence[Mapping[str, Any]],
        reference: str,
        records: list[dict[str, Any]],
        append: Callable[[dict[str, Any]], object],
        plan: Plan,
        watch: Stopwatch,
        progress: bool,
    ):
        # Rows that share a key are measured once.
        self._entries = {e["key"]: {**e, "reference": plan.reference} for e in reversed(entries)}
        self._order = list(dict.fromkeys(e["key"] for e in entries))
        self._reference = reference
        self._records = records
        self._append = append
        self._plan = plan
        self._watch = watch
        self._benches: dict[str, Asked] = {}
        self._idle: list[Asked] = []
        self._compiled: set[str] = set()  # what a living bench holds
        self._start: Callable[[], Asked] | None = None
        self._turns: dict[str, dict[tuple[int, int], float]] = {k: {} for k in self._order}
        for record in records:
            if record["type"] == "turn" and record["entry"] in self._turns:
                at = (record["group"], record["round"])
                self._turns[record["entry"]][at] = turn_level(record["samples_us"])
        self._bar = tqdm(
            total=watch.budget_s,
            desc="sweep",
            unit="s",
            disable=not progress,
            delay=2,
            bar_format=_TIMED_BAR if watch.budget_s else None,
        )
        self._busy_since = (now(), _own_cpu_s(), psutil.cpu_times())

    def pending(self) -> list[str]:
        """Return the keys that are still to be measured."""
        finished = {r["entry"] for r in self._records if r["type"] == "finished"}
        return [
            key
            for key in self._order
            if not self._entries[key]["problem"]
            and (key not in finished or self._missing_turns(key) > 0 or self._lacks_records(key))
        ]

    def measure(self, start: Callable[[], Asked]) -> None:
        """Measure all that is pending, group by group, each placement on a bench of its own."""
        self._start = start
        pending = [key for key in self.pending() if key != self._reference]
        size = max(1, self._plan.group_size - 1)
        groups = [pending[i : i + size] for i in range(0, len(pending), size)] or [[]]
        number = 1 + max((r["group"] for r in self._records if r["type"] == "turn"), default=-1)
        for index, members in enumerate(groups):
            if self._watch.is_over:
                return
            self._measure_group(number + index, members, groups_after=len(groups) - index - 1)
            for key in members:
                self._release(key)

    def close(self) -> None:
        """End the workers and the progress bar."""
        self._close_benches()
        self._bar.close()

    def _measure_group(self, group: int, members: Sequence[str], groups_after: int) -> None:
        alive = self._compile_all([self._reference, *members])
        if alive and not self._watch.is_over:
            self._measure_compiled(group, alive, groups_after)
        for key in alive:
            if self._missing_turns(key) <= 0 and (key in members or groups_after == 0):
                self._record("finished", key)

    def _measure_compiled(self, group: int, alive: list[str], groups_after: int) -> None:
        """Run the rounds of one group: the least turns, the counters, then up to the precision."""
        began = now()
        for key in list(alive):
            self._guarded(alive, key, "warm_up", key=key)
        target = self._plan.turns or LEAST_TURNS
        shuffle = random.Random(group)
        number = 0
        while number < _MOST_TURNS and any(self._lacks(key, target, group, alive) for key in alive):
            round_began = now()
            if not self._round(alive, group, number, shuffle):
                return
            number += 1
            if number == 1:
                self._expect(now() - round_began, target, len(alive), groups_after)
        if self._plan.counters:
            for key in list(alive):
                if self._watch.is_over:
                    break
                self._count(alive, key)
        # What this group took so far is what each later one needs at least.
        deadline = self._deadline(now() - began, groups_after)
        while (
            self._plan.turns is None
            and number < _MOST_TURNS
            and (deadline is None or now() < deadline)
            and not self._precise(alive)
        ):
            if not self._round(alive, group, number, shuffle):
                return
            number += 1
        if self._plan.sustained_s:
            self._hold_all(alive)

    def _compile_all(self, keys: Sequence[str]) -> list[str]:
        """Compile what the budget allows; return what did compile."""
        alive: list[str] = []
        self._start_benches(dict.fromkeys(keys))
        for key in dict.fromkeys(keys):
            if self._watch.is_over and alive:
                break
            if key in self._compiled:
                alive.append(key)
                continue
            self._say(f"compile {self._entries[key]['label']}")
            answer = self._guarded(alive, key, "compile", entry=self._entries[key])
            if answer is None:
                continue
            alive.append(key)
            self._compiled.add(key)
            if not any(r["type"] == "compiled" and r["entry"] == key for r in self._records):
                self._record("compiled", key, **answer)
        return alive

    def _guarded(self, alive: list[str], key: str, do: str, /, **args: Any) -> Any:
        """Ask the bench about one entry; a failure costs that entry and no other."""
        plan = self._plan
        timeout = plan.compile_timeout_s if do in ("compile", "counters") else plan.timeout_s
        if do == "hold":
            timeout += args["seconds"]
        for attempt in range(_ATTEMPTS):
            try:
                bench = self._bench(key)
                if attempt and do != "compile":
                    entry = {**self._entries[key], "reference": False}
                    bench.ask("compile", timeout_s=plan.compile_timeout_s, entry=entry)
                return bench.ask(do, timeout_s=timeout, **args)
            except WorkerError as failure:
                if failure.died:
                    self._close_bench(key)
                if not failure.status.startswith("crashed") or attempt + 1 == _ATTEMPTS:
                    self._fail(alive, key, failure)
                    return None
        return None

    def _fail(self, alive: list[str], key: str, failure: WorkerError) -> None:
        self._record("failed", key, status=failure.status, detail=failure.detail[:2000])
        self._compiled.discard(key)
        if key in alive:
            alive.remove(key)

    def _round(self, alive: list[str], group: int, number: int, shuffle: random.Random) -> bool:
        """Give each placement one turn; ``False`` if the budget ended or nobody is left."""
        self._append({"type": "state", **asdict(machine_state()), "foreign_cpus": self._foreign()})
        order = list(alive)
        shuffle.shuffle(order)
        for key in order:
            if self._watch.is_over:
                return False
            if key not in alive:
                continue
            samples = self._guarded(alive, key, "turn", key=key)
            if samples is not None:
                self._record("turn", key, group=group, round=number, samples_us=samples)
                self._turns[key][group, number] = turn_level(samples)
                self._say(f"measure {self._entries[key]['label']}")
        return bool(alive)

    def _expect(self, round_s: float, target: int, n_alive: int, groups_after: int) -> None:
        """Show how long the least turns will take, now that compiles and a round are known."""
        if self._watch.budget_s is not None or self._bar.total is not None:
            return
        spent = self._watch.elapsed_s
        compiles = spent if self._plan.counters else 0.0
        of_this = spent + compiles + (target - 1) * round_s
        of_this += n_alive * (self._plan.sustained_s or 0.0)
        self._bar.total = round(of_this * (1 + groups_after), 1)
        self._bar.bar_format = _TIMED_BAR

    def _count(self, alive: list[str], key: str) -> None:
        if any(r["type"] == "counters" and r["entry"] == key for r in self._records):
            return
        self._say(f"counters {self._entries[key]['label']}")
        rows = self._guarded(alive, key, "counters", entry=self._entries[key])
        if rows is not None:
            self._record("counters", key, rows=rows)

    def _hold_all(self, alive: list[str]) -> None:
        """Hold each for a while, which the budget for the turns does not pay."""
        began, seconds = now(), self._plan.sustained_s
        for key in list(alive):
            self._say(f"hold {self._entries[key]['label']}")
            medians = self._guarded(alive, key, "hold", key=key, seconds=seconds)
            if medians is not None:
                self._record("sustained", key, medians_us=medians)
        if self._watch.budget_s is not None:
            budget_s = self._watch.budget_s + now() - began
            self._watch = replace(self._watch, budget_s=budget_s)
            self._bar.total = budget_s

    def _missing_turns(self, key: str) -> int:
        paired = self._turns[key]
        if key != self._reference:
            paired = [at for at in self._turns[key] if at in self._turns[self._reference]]
        return (self._plan.turns or LEAST_TURNS) - len(paired)

    def _lacks_records(self, key: str) -> bool:
        """Tell whether counters or a sustained run are asked for and were never made."""
        there = {r["type"] for r in self._records if r.get("entry") == key}
        asked = {"counters": self._plan.counters, "sustained": self._plan.sustained_s}
        return any(wanted and kind not in there for kind, wanted in asked.items())

    def _lacks(self, key: str, target: int, group: int, alive: Sequence[str]) -> bool:
        mine = self._turns[key]
        if key == self._reference:
            # The reference is done when those that are compared with it are.
            return not any(at[0] == group for at in mine) or len(mine) < target
        if self._reference not in alive:  # it failed: there will be no more pairs
            return len(mine) < target
        return sum(at in self._turns[self._reference] for at in mine) < target

    def _precise(self, alive: Sequence[str]) -> bool:
        if self._reference not in alive:
            return True
        reference = self._turns[self._reference]
        for key in alive:
            if key == self._reference:
                continue
            common = [at for at in self._turns[key] if at in reference]
            if 2 <= len(common) < _PRECISE_TURNS:
                return False
            if len(common) < 2:
                continue
            ours, theirs = [self._turns[key][at] for at in common], [reference[at] for at in common]
            _, low, high, _ = paired_ratio(ours, theirs)
            # More turns do not narrow what differs from compile to compile.
            enough = max(self._plan.precision, _NARROWEST * compile_spread(ours, theirs))
            if math.log(high / low) / 2 > enough:
                return False
        return True

    def _deadline(self, took_s: float, groups_after: int) -> float | None:
        if self._watch.budget_s is None:
            return None
        left = self._watch.budget_s - self._watch.elapsed_s
        fair = left / (groups_after + 1)
        spared = left - groups_after * took_s * 1.2
        return now() + max(0.0, min(fair, spared) if groups_after else left)

    def _record(self, kind: str, key: str, **data: Any) -> None:
        self._append({"type": kind, "entry": key, **data})

    def _bench(self, key: str) -> Asked:
        if key not in self._benches:
            if self._start is None:
                raise CompileError("The sweep was not started.")
            try:
                self._benches[key] = self._idle.pop()  # several threads may want the last one
            except IndexError:
                self._benches[key] = self._start()
        return self._benches[key]

    def _start_benches(self, keys: Iterable[str]) -> None:
        """Start all at once; what cannot start says so when it is asked."""

        def start(key: str) -> None:
            with contextlib.suppress(WorkerError):
                self._bench(key)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(start, keys))

    def _release(self, key: str) -> None:
        """Let go of a compiled placement and keep its bench for another."""
        self._compiled.discard(key)
        bench = self._benches.pop(key, None)
        if bench is None:
            return
        try:
            bench.ask("release", timeout_s=self._plan.timeout_s, key=key)
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

    def _foreign(self) -> float:
        """Return how many CPUs other processes kept busy since the last look."""
        wall, own, machine = now(), _own_cpu_s(), psutil.cpu_times()
        before_wall, before_own, before_machine = self._busy_since
        self._busy_since = (wall, own, machine)
        busy = _busy(machine) - _busy(before_machine) - (own - before_own)
        return max(0.0, busy) / max(1e-3, wall - before_wall)

    def _say(self, what: str) -> None:
        self._bar.set_description(what if len(what) <= 50 else what[:49] + "…", refresh=False)
        ratios = {
            k: float(np.median(list(t.values()))) for k, t in self._turns.items() if len(t) >= 3
        }
        if ratios:
            best = min(ratios, key=lambda k: ratios[k])
            label = self._entries[best]["label"]
            self._bar.set_postfix_str(f"best {label[:30]}: {ratios[best]:.0f} µs", refresh=False)
        total = self._bar.total
        elapsed = self._watch.elapsed_s
        self._bar.n = min(elapsed, total) if total else round(elapsed, 1)
        self._bar.update(0)


def _busy(times: Any) -> float:
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_cpu_s() -> float:
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            used = process.cpu_times()
            total += used.user + used.system
        except psutil.Error:
            continue
    return total
