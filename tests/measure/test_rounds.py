"""What a sweep does with its time: benches that take as long as a test says, on its own clock.

``test_sweep.py`` has real ones. Here nothing depends on how fast the machine is.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hetero_lab import clock
from hetero_lab.intervals import ASSUMED_NOISE
from hetero_lab.measure import requests
from hetero_lab.measure.budget import FULL, RunOptions
from hetero_lab.measure.rounds import SweepRun
from hetero_lab.measure.worker_process import WorkerError
from hetero_lab.measure.workers import Workers
from hetero_lab.results.records import (
    Call,
    Compiled,
    Counters,
    Failed,
    Finished,
    Sustained,
    Trial,
    Turn,
)
from hetero_lab.runtime.timing import Stopwatch


class Workshop:
    """The clock, the benches and the records of one test; times in s."""

    def __init__(self, **times: float):
        self.times = {"start": 0.1, "compile": 0.1, "inference": 0.001, "counters": 0.0, **times}
        self.now_s, self.lock = 0.0, threading.Lock()
        self.alive = self.most_alive = self.started = 0
        self.asked: list[tuple[str, str]] = []  # the kind of request and the key
        self.limits: dict[str, float] = {}  # of an answer, by the kind
        self.fault: Callable[[str, str], object] = lambda kind, key: None
        self.records: list[Any] = []

    def takes(self, seconds: float) -> None:
        with self.lock:
            self.now_s += seconds

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def call(self) -> Call:
        return self.of(Call)[-1]

    def turns(self) -> dict[str, int]:
        return dict(Counter(turn.entry for turn in self.of(Turn)))

    def run(
        self, keys: str, *, budget_s: float | None = None, group: int = 8, at_once: int = 1,
        records: Any = (), is_ready: Callable[[float], bool] = lambda _: True,
        progress: bool = False, **options: Any,
    ) -> SweepRun:  # fmt: skip
        """Measure trials with these keys, the first of them the reference."""
        trials = [
            Trial(
                key=key, label=f"the {key}", variant="", affinity=("CPU",), devices=("CPU",),
                device_properties={}, direct=True,
            )
            for key in keys
        ]  # fmt: skip
        self.records = list(records)
        run = SweepRun(
            trials=trials, reference=keys[0], records=records, append=self.records.append,
            options=RunOptions(**{"counters": False, "reference": False, "turns": 2, **options}),
            workers=Workers(group=group, timeout_s=7.0, compile_timeout_s=70.0),
            watch=Stopwatch.start(budget_s), progress=progress, is_ready=is_ready,
            start=lambda: Timed(self), noise=lambda devices: ASSUMED_NOISE, at_once=at_once,
        )  # fmt: skip
        run.measure()
        run.close()
        return run


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
        shop, times = self.shop, self.shop.times
        trial = getattr(request, "trial", None)
        key, kind = trial.key if trial else request.key, type(request).__name__
        shop.asked.append((kind, key))
        shop.limits[kind] = timeout_s
        shop.fault(kind, key)
        match request:
            case requests.Compile():
                shop.takes(times["compile"] + times["inference"])
                return Compiled(
                    entry=key, compile_ms=1e3 * times["compile"],
                    first_inference_ms=1e3 * times["inference"], partition={},
                    as_predicted=True, agreement=(), peak_rss_bytes=1,
                )  # fmt: skip
            case requests.WarmUp(at_most_s=at_most_s):
                shop.takes(min(at_most_s, 30 * times["inference"]))
                return times["inference"]
            case requests.RunTurn(discarded=discarded, timed=timed):
                shop.takes((discarded + timed) * times["inference"])
                level = 1e6 * times["inference"]
                return Turn(
                    entry=key, group=request.group, round=request.round, samples_us=(level,) * timed
                )
            case requests.ReadCounters():
                shop.takes(times["counters"])
                return Counters(entry=key, rows=())

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


def test_with_time_enough_everything_gets_its_turns(workshop):
    shop = workshop()
    shop.run("rab", budget_s=1000.0, turns=3)
    assert shop.turns() == {"r": 3, "a": 3, "b": 3}
    assert [r.entry for r in shop.of(Finished)] == ["r", "a", "b"]
    assert shop.call.n_left == shop.call.needs_s == 0
    assert (shop.call.turns, shop.call.discarded, shop.call.timed) == (3, 2, 10)
    assert shop.call.startup_s == pytest.approx(0.3)
    assert shop.call.compile_s == pytest.approx(3 * 0.101)
    assert shop.call.elapsed_s == pytest.approx(shop.now_s)


def test_a_quick_bench_is_new_for_each_placement_and_ends_with_its_group(workshop):
    shop = workshop()
    shop.run("rabc", group=2)
    assert (shop.started, shop.most_alive, shop.alive) == (4, 2, 0)
    assert shop.turns() == {"r": 6, "a": 2, "b": 2, "c": 2}
    assert "Release" not in {kind for kind, _ in shop.asked}


@pytest.mark.parametrize("slow", [{"start": 0.6}, {"compile": 0.6}])
def test_a_bench_is_kept_where_a_new_one_would_take_long(workshop, slow):
    shop = workshop(**slow)
    shop.run("rabc", group=2)
    assert (shop.started, shop.most_alive, shop.alive) == (2, 2, 0)
    assert [key for kind, key in shop.asked if kind == "Release"] == ["a", "b", "c"]


def test_a_bench_that_cannot_let_go_is_ended(workshop):
    shop = workshop(start=0.6)

    def die(kind: str, key: str) -> None:
        if (kind, key) == ("Release", "a"):
            raise WorkerError("failed", "gone", died=True)

    shop.fault = die
    shop.run("rabc", group=2)
    assert (shop.started, shop.most_alive, shop.alive) == (3, 2, 0)
    assert shop.turns() == {"r": 6, "a": 2, "b": 2, "c": 2}


def test_a_crash_is_tried_once_more_and_costs_one_row(workshop):
    shop, crashes = workshop(), {"a": 1, "b": 2}

    def crash(kind: str, key: str) -> None:
        if kind == "RunTurn" and crashes.get(key, 0):
            crashes[key] -= 1
            raise WorkerError("crashed (signal 11)", "SIGSEGV", died=True, crashed=True)

    shop.fault = crash
    shop.run("rab")
    assert shop.turns() == {"r": 2, "a": 2}
    (failed,) = shop.of(Failed)
    assert (failed.entry, failed.status) == ("b", "crashed (signal 11)")
    assert "SIGSEGV. hetero_lab.investigate" in failed.detail
    assert shop.alive == 0
    assert shop.call.n_left == 1
    assert [r.entry for r in shop.of(Compiled)] == ["r", "a", "b"]  # the second one says no more


def test_the_first_placement_is_measured_even_if_that_overruns_the_budget(workshop):
    shop = workshop(compile=1.0)
    shop.run("rabc", budget_s=1.5)
    assert {"r", "a"} == {*shop.turns()}
    assert shop.now_s < 1.5 + 1.0 + 0.1 + 0.1
    assert shop.call.n_left == 4
    assert shop.call.timed == FULL.timed  # it is as if the compile had been paid for
    slow = workshop(compile=1.0, inference=0.5)
    slow.run("rabc", budget_s=2.5)
    assert slow.turns() == {"r": 1, "a": 1}
    assert (slow.call.turns, slow.call.discarded, slow.call.timed) == (1, 1, 1)


def test_without_time_for_a_second_compile_it_is_said_how_long_the_rest_takes(workshop):
    shop = workshop(compile=1.0)
    each_s = 3 * 12 * 0.001 + 0.03  # three turns and their warm-up
    shop.run("rab", budget_s=0.5, turns=3)
    assert shop.turns() == {}
    assert shop.call.n_left == 3
    # Started, compiled and inferred twice, beside the turns of the reference.
    assert shop.call.needs_s == pytest.approx(0.1 + 2 * 1.101 + 3 * each_s)
    shop.run("rab", budget_s=0.5, turns=3, counters=True)
    counted_s = 1.101 + 36 * 0.001  # compiled again, and as many inferences
    assert shop.call.needs_s == pytest.approx(0.1 + 2 * 1.101 + 3 * each_s + 2 * counted_s)


@pytest.mark.parametrize(("budget_s", "least"), [(3.0, 3), (6.0, 7), (12.0, 9)])
def test_a_budget_covers_what_it_can_and_is_kept(workshop, budget_s, least):
    shop = workshop(compile=0.4, inference=0.01)
    shop.run("rabcdefghij", budget_s=budget_s, group=4, turns=8)
    assert shop.now_s < budget_s
    turns = shop.turns()
    measured = [key for key in turns if key != "r"]
    assert sorted(measured) == list("abcdefghij")[: len(measured)]
    assert least <= len(measured) <= (budget_s - 0.5) / 0.5  # a compile with its start takes 0.5 s
    assert all(turns[key] >= shop.call.turns for key in measured[:3])


def test_time_that_is_left_goes_into_more_turns_until_they_agree(workshop):
    shop = workshop()
    shop.run("rab", budget_s=100.0, turns=None)
    assert set(shop.turns().values()) == {20}  # of equal turns so many are precise


@pytest.mark.parametrize("budget_s", [4.0, 8.0])
def test_groups_share_the_time_that_is_left(workshop, monkeypatch, budget_s):
    """With turns that never agree, each group uses a part of it, and all get their least."""
    monkeypatch.setattr("hetero_lab.measure.rounds.known_within", lambda *_: False)
    shop = workshop()
    shop.run("rabcd", budget_s=budget_s, group=2, turns=None)
    turns = shop.turns()
    own = [turns[key] for key in "abcd"]
    assert min(own) >= 8
    assert max(own) <= 4 * min(own)
    assert 0.7 * budget_s < shop.now_s <= budget_s


def test_what_has_the_fewest_turns_comes_first(workshop):
    shop = workshop()
    before = [
        Turn(entry=key, group=0, round=n, samples_us=(1000.0,) * 10)
        for key, count in (("r", 3), ("a", 3), ("b", 1), ("c", 2)) for n in range(count)
    ]  # fmt: skip
    shop.run("rabcd", records=before, turns=4)
    compiled = [key for kind, key in shop.asked if kind == "Compile"]
    assert compiled == ["r", "d", "b", "c", "a"]
    assert {turn.group for turn in shop.of(Turn)} == {0, 1}
    assert min(shop.turns()[key] for key in "abcd") == 4


def test_nothing_is_measured_again(workshop):
    shop = workshop()
    run = shop.run("rab", turns=3)
    done = [*shop.records]
    assert run.pending() == []
    shop.asked.clear()
    again = shop.run("rab", turns=3, records=done)
    assert again.pending() == []
    assert {key for _, key in shop.asked} == {"r"}  # beside which anything new would be measured


def test_counters_are_read_of_each_and_only_with_time_for_them(workshop):
    shop = workshop()
    shop.run("rab", counters=True)
    assert [record.entry for record in shop.of(Counters)] == ["r", "a", "b"]
    late = workshop(compile=0.4, inference=0.01, counters=0.6)
    late.run("rabc", counters=True, budget_s=5.5)
    assert late.turns() == dict.fromkeys("rabc", 2)
    assert [record.entry for record in late.of(Counters)] == ["r"]
    assert late.call.n_left == 3
    assert late.now_s < 5.5


def test_holding_takes_its_seconds_on_top_of_the_budget(workshop):
    shop = workshop(inference=0.01)
    shop.run("rab", budget_s=6.0, group=2, sustained_s=3.0)
    held = {record.entry: record.medians_us for record in shop.of(Sustained)}
    assert {key: len(medians) for key, medians in held.items()} == {"r": 25, "a": 25, "b": 25}
    assert {medians for row in held.values() for medians in row} == {10_000.0}
    assert {key: n for key, n in shop.turns().items() if key != "r"} == {"a": 2, "b": 2}
    assert shop.now_s > 4 * 3.0
    assert shop.call.budget_s == pytest.approx(6.0 + 4 * 25 * 0.12)


@pytest.mark.parametrize(
    ("options", "near"), [({}, 1e-6), ({"sustained_s": 2.0}, 0.05), ({"counters": True}, 0.3)]
)
def test_the_bar_shows_about_how_long_it_takes(workshop, monkeypatch, options, near):
    limits = []
    monkeypatch.setattr(
        "hetero_lab.measure.rounds.Progress.limit", lambda bar, seconds: limits.append(seconds)
    )
    # With counters each is compiled again: that takes about as long as everything before.
    shop = workshop(inference=0.01, counters=0.4 if "counters" in options else 0.0)
    shop.run("rab", turns=10, **options)
    assert limits == [pytest.approx(shop.now_s, rel=near)]
    shop.run("rabc", turns=10, group=2, **options)
    assert limits[1] == pytest.approx(shop.call.elapsed_s, rel=0.5)
    limits.clear()
    shop.run("rab", turns=10, counters=True, budget_s=1000.0)
    assert limits == []  # the budget is what it shows


def test_slow_compiles_run_at_once_and_count_by_their_share(workshop):
    shop = workshop(compile=0.6, start=0.0)
    shop.run("rabcd", at_once=2)
    assert next(key for kind, key in shop.asked if kind == "Compile") == "r"
    assert shop.turns() == dict.fromkeys("rabcd", 2)
    # On the clock of this test, two that run at once take the time of both.
    assert shop.call.compile_s == pytest.approx(5 * 0.601)


def test_a_full_turn_is_warmed_up_for(workshop):
    shop = workshop()
    shop.run("ra")
    warmed = [key for kind, key in shop.asked if kind == "WarmUp"]
    assert warmed == ["r", "r", "a"]  # the reference also at once, to know its time
    short = workshop(compile=0.2, inference=0.01)
    short.run("ra", budget_s=1.2)
    assert short.call.timed < FULL.timed
    assert [key for kind, key in short.asked if kind == "WarmUp"] == ["r"]


def test_what_compiles_may_take_longer(workshop):
    shop = workshop(start=0.6)
    shop.run("rab", group=2, counters=True)
    longer, others = {"Compile", "ReadCounters"}, {"WarmUp", "RunTurn", "Release"}
    assert shop.limits == {**dict.fromkeys(longer, 70.0), **dict.fromkeys(others, 7.0)}


def test_without_the_reference_the_others_have_their_turns(workshop):
    shop = workshop()

    def fail(kind: str, key: str) -> None:
        if (kind, key) == ("Compile", "r"):
            raise WorkerError("compile failed", "no kernel", died=False)

    shop.fault = fail
    shop.run("rab", turns=3, group=2)
    assert shop.turns() == {"a": 3, "b": 3}
    assert [record.entry for record in shop.of(Failed)] == ["r"]


def test_a_bench_that_dies_after_its_turns_is_started_again_to_be_counted(workshop):
    shop, deaths = workshop(), {"a": 1}

    def die(kind: str, key: str) -> None:
        if (kind, key) == ("ReadCounters", "a") and deaths.pop("a", 0):
            raise WorkerError("crashed (signal 11)", "", died=True, crashed=True)

    shop.fault = die
    shop.run("rab", counters=True)
    assert shop.turns() == dict.fromkeys("rab", 2)
    assert shop.started == 4
    assert {record.entry for record in shop.of(Counters)} >= {"r", "b"}


def test_slow_compiles_with_counters_run_at_once_too(workshop):
    shop = workshop(compile=0.6, start=0.0)

    def die(kind: str, key: str) -> None:
        if (kind, key) == ("CompileCounted", "b"):
            raise WorkerError("crashed (signal 11)", "", died=True, crashed=True)

    shop.fault = die
    shop.run("rabcd", at_once=2, counters=True)
    both = {key for kind, key in shop.asked if kind == "CompileCounted"}
    assert both == set("rabc")  # d is the last, alone
    assert [record.entry for record in shop.of(Counters)] == list("rabcd")
    assert [key for kind, key in shop.asked if kind == "Compile"].count("b") == 2  # it had died
    assert shop.turns() == dict.fromkeys("rabcd", 2)


def test_where_no_worker_is_ready_in_time_nothing_is_measured(workshop):
    shop = workshop()
    run = shop.run("rab", budget_s=5.0, is_ready=lambda seconds: shop.takes(seconds) or False)
    assert shop.asked == []
    assert len(run.pending()) == shop.call.n_left == 3
    assert shop.call.startup_s == pytest.approx(shop.now_s)


def test_the_bar_shows_the_fastest_so_far(workshop, monkeypatch):
    notes: list[str] = []
    monkeypatch.setattr(
        "hetero_lab.measure.rounds.Progress.note", lambda bar, text: notes.append(text)
    )
    shop = workshop(inference=0.001)
    shop.run("rab", turns=4, progress=True)
    assert notes[0] == "start-up 0.3 s"
    assert notes[-1] == "start-up 0.3 s, best the r: 1000 µs"


def test_the_reference_by_itself_has_its_turns(workshop):
    shop = workshop()
    shop.run("r", turns=3)
    assert shop.turns() == {"r": 3}
    # What later lacks only counters has one turn of it beside, in a group of its own.
    shop.run("r", turns=3, records=shop.records, counters=True)
    assert [turn.group for turn in shop.of(Turn)] == [0, 0, 0, 1]
    assert [record.entry for record in shop.of(Counters)] == ["r"]
