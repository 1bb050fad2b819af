"""How a sweep uses its benches, which take as long as a test says, on its own clock.

``test_sweep_schedule.py`` has what is measured, ``test_sweep.py`` real benches.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from measure.scripted_answers import CRASH, Scripted, answered

from hetero_lab import clock
from hetero_lab.measure.sweep_run import BenchPool, SweepRun
from hetero_lab.measure.worker_process import WorkerError, Workers
from hetero_lab.progress import Stopwatch
from hetero_lab.results.records import Call, Counters, Failed, State, Turn


class Workshop(Scripted):
    """The clock and the benches of one test."""

    def __init__(self, **times: float):
        super().__init__(**times)
        self.lock = threading.Lock()
        self.alive = self.most_alive = self.started = 0
        self.limits: dict[str, float] = {}  # of an answer, by the kind

    def takes(self, seconds: float) -> None:
        with self.lock:
            self.now_s += seconds

    def run(
        self, keys: str, *, budget_s: float | None = None, group: int = 8, progress: bool = False,
        is_ready: Callable[[float], bool] = lambda _: True, **options: Any,
    ) -> Call | None:  # fmt: skip
        """Measure trials with these keys, the first of them the reference; return the record."""
        schedule = self.schedule(keys, budget_s=budget_s, group=group, **options)
        workers = Workers(group=group, timeout_s=7.0, compile_timeout_s=70.0)
        pool = BenchPool(schedule.trials, lambda: Timed(self), workers)
        watch = Stopwatch.start(budget_s)
        SweepRun(schedule, pool, watch, progress=progress, is_ready=is_ready).measure()
        return self.of(Call)[-1]


class Timed:
    """A bench that takes the times of its workshop."""

    def __init__(self, shop: Workshop):
        self.shop, self.start_s = shop, shop.times["start"]
        shop.takes(self.start_s)
        with shop.lock:
            shop.started += 1
            shop.alive += 1
            shop.most_alive = max(shop.most_alive, shop.alive)

    def ask(self, request: Any, *, timeout_s: float) -> Any:
        shop = self.shop
        given, kind = request.keywords, request.func.__name__
        key = given["trial"].key if "trial" in given else given["key"]
        shop.asked.append((kind, key))
        shop.limits[kind] = timeout_s
        if failure := shop.fault(kind, key):
            raise failure
        seconds, answer = answered(key, request, shop.times)
        shop.takes(seconds)
        return answer

    def close(self) -> None:
        with self.shop.lock:
            self.shop.alive -= 1


@pytest.fixture
def workshop(monkeypatch):
    def make(**times: float) -> Workshop:
        shop = Workshop(**times)
        monkeypatch.setattr(clock, "now_ns", lambda: round(shop.now_s * 1e9))
        return shop

    return make


def test_a_quick_bench_is_new_for_each_placement_and_ends_with_its_group(workshop):
    shop = workshop()
    shop.run("rabc", group=2)
    assert (shop.started, shop.most_alive, shop.alive) == (4, 2, 0)
    assert shop.turns() == {"r": 6, "a": 2, "b": 2, "c": 2}
    assert "release" not in {kind for kind, _ in shop.asked}


@pytest.mark.parametrize("slow", [{"start": 0.6}, {"compile": 0.6}])
def test_a_bench_is_kept_where_a_new_one_would_take_long(workshop, slow):
    shop = workshop(**slow)
    shop.run("rabc", group=2)
    assert (shop.started, shop.most_alive, shop.alive) == (2, 2, 0)
    assert shop.keys("release") == ["a", "b"]


def test_a_bench_that_cannot_let_go_is_ended(workshop):
    shop = workshop(start=0.6)
    shop.fail("release", "a", WorkerError("failed", "gone", died=True))
    shop.run("rabc", group=2)
    assert (shop.started, shop.most_alive, shop.alive) == (3, 2, 0)
    assert shop.turns() == {"r": 6, "a": 2, "b": 2, "c": 2}


def test_a_bench_that_crashed_is_replaced_and_has_compiled_again(workshop):
    shop, crashes = workshop(), ["a", "b", "b"]

    def crash(kind: str, key: str) -> WorkerError | None:
        if kind == "run_turn" and key in crashes:
            crashes.remove(key)
            return CRASH
        return None

    shop.fault = crash
    call = shop.run("rab")
    assert shop.turns() == {"r": 2, "a": 2}
    assert shop.entries(Failed) == ["b"]
    assert (shop.started, shop.alive) == (3 + 2, 0)
    assert Counter(shop.keys("compile")) == {"r": 1, "a": 2, "b": 2}
    assert call.n_left == 1


def test_a_worker_that_died_while_counters_were_compiled_costs_no_row(workshop):
    shop = workshop(compile=0.6)
    shop.fail("compile_counted", "a", WorkerError("timed out", died=True), times=1)
    shop.run("rab", at_once=2, counters=True)
    assert shop.of(Failed) == []
    assert shop.keys("read_counters") == ["r", "a", "b"]


def test_a_call_tells_how_its_time_was_spent(workshop):
    shop = workshop()
    call = shop.run("rab", budget_s=1000.0, turns=3)
    assert (call.budget_s, call.turns, call.discarded, call.timed) == (1000.0, 3, 2, 10)
    assert call.startup_s == pytest.approx(0.3)
    assert call.compile_s == pytest.approx(3 * 0.101)
    assert call.elapsed_s == pytest.approx(shop.now_s)
    assert call.n_left == call.needs_s == 0
    short = workshop(compile=1.0)
    call = short.run("rab", budget_s=0.5, turns=3)
    # Started, compiled and inferred twice, beside the turns of the reference and their warm-up.
    assert call.needs_s == pytest.approx(0.1 + 2 * 1.101 + 3 * (3 * 12 * 0.001 + 0.03))
    slow = workshop(compile=0.6, start=0.0)
    # On the clock of this test, two that run at once take the time of both.
    assert slow.run("rabcd", at_once=2).compile_s == pytest.approx(5 * 0.601)


def test_the_machine_is_looked_at_once_a_second(workshop):
    shop = workshop(inference=0.01)
    shop.run("rab", turns=10)
    assert 3 <= len(shop.of(State)) <= shop.now_s + 1
    kinds = [type(record) for record in shop.records]
    assert kinds.index(State) < kinds.index(Turn)


def test_nothing_is_measured_again(workshop):
    shop = workshop()
    shop.run("rab", turns=3)
    done = [*shop.records]
    shop.asked.clear()
    shop.run("rab", turns=3, records=done)
    assert shop.asked == []
    assert shop.records == done


def test_what_compiles_may_take_longer(workshop):
    shop = workshop(start=0.6)
    shop.run("rab", group=2, counters=True)
    longer, others = {"compile", "read_counters"}, {"warm_up", "run_turn", "release"}
    assert shop.limits == {**dict.fromkeys(longer, 70.0), **dict.fromkeys(others, 7.0)}


def test_a_bench_that_dies_after_its_turns_is_started_again_to_be_counted(workshop):
    shop = workshop()
    shop.fail("read_counters", "a", CRASH, times=1)
    shop.run("rab", counters=True)
    assert shop.turns() == dict.fromkeys("rab", 2)
    assert shop.started == 4
    assert {record.entry for record in shop.of(Counters)} >= {"r", "b"}


def test_slow_compiles_with_counters_run_at_once_too(workshop):
    shop = workshop(compile=0.6, start=0.0)
    shop.fail("compile_counted", "b", CRASH)
    shop.run("rabcd", at_once=2, counters=True)
    both = {key for kind, key in shop.asked if kind == "compile_counted"}
    assert both == set("rabc")  # d is the last, alone
    assert shop.entries(Counters) == list("rabcd")
    assert shop.keys("compile").count("b") == 2  # it had died
    assert shop.turns() == dict.fromkeys("rabcd", 2)


def test_slow_compiles_run_at_once(workshop):
    shop, both = workshop(compile=0.6), threading.Barrier(2, timeout=200)

    def wait_for_the_other(kind: str, key: str) -> None:
        if kind == "compile" and key != "r":  # one that comes alone breaks the barrier
            both.wait()

    shop.fault = wait_for_the_other
    shop.run("rab", at_once=2)
    assert shop.turns() == dict.fromkeys("rab", 2)


def test_where_no_worker_is_ready_in_time_nothing_is_measured(workshop):
    shop = workshop()
    call = shop.run("rab", budget_s=5.0, is_ready=lambda seconds: shop.takes(seconds) or False)
    assert call is not None
    assert shop.asked == []
    assert call.n_left == 3
    assert call.startup_s == pytest.approx(shop.now_s)


def test_the_bar_shows_the_fastest_so_far(workshop, monkeypatch):
    notes: list[str] = []
    monkeypatch.setattr(
        "hetero_lab.measure.sweep_run.Progress.note", lambda bar, text: notes.append(text)
    )
    shop = workshop(inference=0.05)
    shop.run("rab", turns=8, progress=True)
    assert notes[0] == "start-up 0.3 s"
    assert notes[-1] == "start-up 0.3 s, best so far: the r"


def test_the_reference_by_itself_has_its_turns(workshop):
    shop = workshop()
    shop.run("r", turns=3)
    assert shop.turns() == {"r": 3}
    # What later lacks only counters has one turn of it beside, in a group of its own.
    shop.run("r", turns=3, records=shop.records, counters=True)
    assert [turn.group for turn in shop.of(Turn)] == [0, 0, 0, 1]
    assert shop.entries(Counters) == ["r"]
