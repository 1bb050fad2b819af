"""What a sweep measures next, by scripted times, failures and budgets; nothing runs."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from measure.scripted_answers import CRASH, REFUSED, Scripted, answered

from hetero_lab.intervals import Noise
from hetero_lab.measure.stopping import FULL
from hetero_lab.measure.sweep_schedule import Ask, Begin, SweepSchedule
from hetero_lab.results.records import Compiled, Counters, Failed, Finished, Sustained, Turn


class Script(Scripted):
    """Carries out the steps of a schedule, at once."""

    def __init__(self, **times: float):
        super().__init__(**times)
        self.steps: list[Any] = []

    def run(self, keys: str, *, until: int | None = None, **options: Any) -> SweepSchedule:
        """Measure trials with these keys, the first of them the reference, in ``until`` steps."""
        schedule = self.schedule(keys, **options)
        began_s = self.now_s
        for step in itertools.islice(schedule.steps(), until):
            self.steps.append(step)
            step_s = self.now_s
            answers = self.answers(step)
            schedule.tell(self.now_s - began_s, self.now_s - step_s, answers)
        return schedule

    def answers(self, step: Any) -> dict[str, Any]:
        if isinstance(step, Begin):
            self.now_s += self.times["start"]  # they start side by side
            return dict.fromkeys(step.keys, self.times["start"])
        if not isinstance(step, Ask):
            return {}
        answers, lasted = {}, []
        for key, request in step.requests.items():
            self.asked.append((request.func.__name__, key))
            seconds, answer = answered(key, request, self.times)
            answers[key] = self.fault(request.func.__name__, key) or answer
            lasted.append(seconds)
        self.now_s += max(lasted)
        return answers

    def begun(self) -> list[str]:
        """Return the keys of each group as it begins."""
        return ["".join(step.keys) for step in self.steps if isinstance(step, Begin)]


def test_with_time_enough_everything_gets_its_turns():
    script = Script()
    schedule = script.run("rab", budget_s=1000.0, turns=700)  # more than would be precise
    assert script.turns() == {"r": 700, "a": 700, "b": 700}
    assert script.entries(Finished) == ["r", "a", "b"]
    assert schedule.pending() == []
    assert schedule.needs_s() == 0.0
    assert (schedule.plan.turns, schedule.plan.inferences) == (700, FULL)


def test_each_group_has_the_reference_and_each_round_another_order():
    script = Script()
    script.run("rabcd", group=3, turns=4)
    assert script.begun() == ["r", "rab", "rcd"]
    assert not any(step.reuse for step in script.steps if isinstance(step, Begin))
    rounds: dict[tuple[int, int], str] = {}
    for turn in script.of(Turn):
        at = turn.group, turn.round
        rounds[at] = rounds.get(at, "") + turn.entry
    assert list(rounds) == [(group, number) for group in (0, 1) for number in range(4)]
    assert {"".join(sorted(order)) for order in rounds.values()} == {"abr", "cdr"}
    assert len({*rounds.values()}) > 2
    again = Script()
    again.run("rabcd", group=3, turns=4)
    assert again.asked == script.asked  # a group's order is always the same


def test_the_first_placement_is_measured_even_if_that_overruns_the_budget():
    script = Script(compile=1.0)
    schedule = script.run("rabc", budget_s=1.5)
    assert {"r", "a"} == {*script.turns()}
    assert script.now_s < 1.5 + 1.0 + 0.1 + 0.1
    assert len(schedule.pending()) == 4
    assert schedule.plan.inferences == FULL  # it is as if the compile had been paid for
    slow = Script(compile=1.0, inference=0.5)
    schedule = slow.run("rabc", budget_s=2.5)
    assert slow.turns() == {"r": 1, "a": 1}
    assert (schedule.plan.turns, schedule.plan.inferences) == (1, 2)


def test_without_time_for_a_second_compile_it_is_said_how_long_the_rest_takes():
    script = Script(compile=1.0)
    each_s = 3 * 12 * 0.001 + 0.03  # three turns and their warm-up
    schedule = script.run("rab", budget_s=0.5, turns=3)
    assert script.turns() == {}
    assert len(schedule.pending()) == 3
    # Started, compiled and inferred twice, beside the turns of the reference.
    assert schedule.needs_s() == pytest.approx(2 * 1.101 + 3 * each_s)
    counted_s = 0.1 + 1.001 + 36 * 0.001  # compiled again, and as many inferences
    schedule = script.run("rab", budget_s=0.5, turns=3, counters=True)
    assert schedule.needs_s() == pytest.approx(2 * 1.101 + 3 * each_s + 2 * counted_s)


@pytest.mark.parametrize(("budget_s", "least"), [(3.0, 3), (6.0, 7), (12.0, 9)])
def test_a_budget_covers_what_it_can_and_is_kept(budget_s, least):
    script = Script(compile=0.4, inference=0.01)
    schedule = script.run("rabcdefghij", budget_s=budget_s, group=4, turns=8)
    assert script.now_s < budget_s
    turns = script.turns()
    measured = [key for key in turns if key != "r"]
    assert sorted(measured) == list("abcdefghij")[: len(measured)]
    assert least <= len(measured) <= (budget_s - 0.5) / 0.4  # a compile takes 0.4 s
    assert all(turns[key] >= schedule.plan.turns for key in measured[:3])


def test_time_that_is_left_goes_into_more_turns_until_they_agree():
    script = Script()
    script.run("rab", budget_s=100.0, turns=None)
    assert set(script.turns().values()) == {20}  # of equal turns so many are precise


@pytest.mark.parametrize("budget_s", [4.0, 8.0])
def test_groups_share_the_time_that_is_left(monkeypatch, budget_s):
    """With turns that never agree, each group uses a part of it, and all get their least."""
    monkeypatch.setattr("hetero_lab.measure.stopping.known_within", lambda *_: False)
    script = Script()
    script.run("rabcd", budget_s=budget_s, group=2, turns=None)
    turns = script.turns()
    own = [turns[key] for key in "abcd"]
    assert min(own) >= 8
    assert max(own) <= 4 * min(own)
    assert 0.7 * budget_s < script.now_s <= budget_s


def test_what_has_the_fewest_turns_comes_first():
    script = Script()
    before = [
        Turn(entry=key, group=0, round=n, samples_us=(1000.0,) * 10)
        for key, count in (("r", 3), ("a", 3), ("b", 1), ("c", 2)) for n in range(count)
    ]  # fmt: skip
    script.run("rabcd", records=before, turns=4)
    assert script.keys("compile") == ["r", "d", "b", "c", "a"]
    assert {turn.group for turn in script.of(Turn)} == {0, 1}
    assert min(script.turns()[key] for key in "abcd") == 4


def test_a_placement_that_is_refused_is_given_up_at_once():
    script = Script()
    script.fail("compile", "a", REFUSED)
    schedule = script.run("rab")
    assert script.keys("compile") == ["r", "a", "b"]
    assert script.turns() == {"r": 2, "b": 2}
    (failed,) = script.of(Failed)
    assert (failed.entry, failed.status, failed.detail) == ("a", "failed", "not supported")
    assert schedule.pending() == ["a"]


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_crash_is_tried_once_more_and_costs_one_row(crashes):
    script = Script()
    script.fail("run_turn", "b", CRASH, crashes)
    script.run("rab")
    failed = script.of(Failed)
    assert script.entries(Failed) == ["b"] * (crashes - 1)
    assert all("SIGSEGV. hetero_lab.investigate" in record.detail for record in failed)
    assert script.turns() == ({"r": 2, "a": 2, "b": 2} if crashes == 1 else {"r": 2, "a": 2})
    assert script.entries(Compiled) == ["r", "a", "b"]


@pytest.mark.parametrize("kind", ["compile", "warm_up", "run_turn"])
def test_without_its_reference_each_placement_still_gets_its_turns(kind):
    script = Script()
    script.fail(kind, "r", REFUSED)
    schedule = script.run("rabc", group=3, turns=3)
    assert script.turns() == {"a": 3, "b": 3, "c": 3}
    assert script.entries(Failed) == ["r"]  # not tried in each group
    assert script.entries(Finished) == ["a", "b", "c"]
    assert schedule.pending() == ["r"]
    # The reference is tried again by the next call. If it runs, so are the others, for a ratio.
    mended = Script()
    mended.run("rabc", group=3, turns=3, records=script.records)
    assert {*mended.keys("run_turn")} == {"r"}
    both = Script()
    both.run("rabc", group=3, turns=3, records=mended.records)
    assert {*both.keys("run_turn")} == {*"rabc"}


def test_a_group_without_any_that_runs_ends():
    script = Script()
    script.fault = lambda kind, key: REFUSED
    script.run("rab")
    assert script.entries(Failed) == ["r", "a", "b"]
    assert {kind for kind, _ in script.asked} == {"compile"}


def test_an_interrupt_leaves_what_the_next_call_goes_on_from():
    script = Script()
    n_steps = 14  # in the second round
    script.run("rab", turns=3, until=n_steps)
    kept = script.records
    assert 3 < len(script.of(Turn)) < 9
    schedule = script.run("rab", turns=3, records=kept)
    assert schedule.pending() == []
    assert min(script.turns().values()) >= 3
    assert {turn.group for turn in script.of(Turn)} == {0, 1}
    assert len(script.of(Compiled)) == 3  # it is recorded once


def test_counters_are_read_of_each_and_only_with_time_for_them():
    script = Script()
    script.run("rab", counters=True)
    assert script.entries(Counters) == ["r", "a", "b"]
    late = Script(compile=0.4, inference=0.01, counters=0.6)
    schedule = late.run("rabc", counters=True, budget_s=5.3)
    assert late.turns() == dict.fromkeys("rabc", 2)
    assert late.entries(Counters) == ["r"]
    assert len(schedule.pending()) == 3
    assert late.now_s < 5.3


def test_holding_takes_its_seconds_on_top_of_the_budget():
    script = Script(inference=0.01)
    schedule = script.run("rab", budget_s=6.0, group=2, sustained_s=2.95)
    held = {record.entry: record.medians_us for record in script.of(Sustained)}
    assert {key: len(medians) for key, medians in held.items()} == {"r": 25, "a": 25, "b": 25}
    assert {medians for row in held.values() for medians in row} == {10_000.0}
    assert {key: n for key, n in script.turns().items() if key != "r"} == {"a": 2, "b": 2}
    assert script.now_s > 4 * 3.0
    assert schedule.budget_s == schedule.ends_s == pytest.approx(6.0 + 4 * 25 * 0.12)


@pytest.mark.parametrize(
    ("options", "near"), [({}, 1e-6), ({"sustained_s": 2.0}, 0.05), ({"counters": True}, 0.3)]
)
def test_the_end_is_about_known_after_one_round(options, near):
    # With counters each is compiled again: that takes about as long as everything before.
    times = {"inference": 0.01, "counters": 0.4 if "counters" in options else 0.0}
    script = Script(**times)
    assert script.run("rab", turns=10, **options).ends_s == pytest.approx(script.now_s, rel=near)
    script = Script(**times)
    schedule = script.run("rabc", turns=10, group=2, **options)
    assert schedule.ends_s == pytest.approx(script.now_s, rel=0.5)
    assert script.run("rab", turns=10, counters=True, budget_s=1000.0).ends_s == 1000.0


def test_slow_compiles_run_at_once():
    script = Script(compile=0.6)
    script.run("rabcd", at_once=2)
    compiled = [
        "".join(step.requests)
        for step in script.steps
        if isinstance(step, Ask) and step.doing == "compile"
    ]
    assert compiled == ["r", "ab", "cd"]
    assert script.turns() == dict.fromkeys("rabcd", 2)
    alone = Script(compile=0.6)
    alone.fail("compile", "a", REFUSED, times=1)  # for lack of memory, beside the other
    alone.run("rab", at_once=2)
    assert alone.keys("compile") == ["r", "a", "b", "a"]
    assert alone.of(Failed) == []


def test_a_full_turn_is_warmed_up_for():
    script = Script()
    script.run("ra")
    assert script.keys("warm_up") == ["r", "r", "a"]  # the reference at once, to know its time
    short = Script(compile=0.2, inference=0.01)
    schedule = short.run("ra", budget_s=1.2)
    assert schedule.plan.inferences < FULL
    assert short.keys("warm_up") == ["r"]


def test_reference_outputs_are_computed_once_for_each_variant():
    script = Script()
    script.run("ra12", reference=True)
    expected = [s.keywords["trial"].key for s in script.steps if isinstance(s, partial)]
    assert expected == ["r", "1", "2"]


def test_a_device_that_is_new_begins_a_group_if_they_are_kept_apart():
    script = Script()
    # AUTO may choose the GPU, which is then not new any more.
    script.run("rabc", devices={"b": "AUTO:GPU,CPU", "c": "GPU"}, apart=True)
    assert script.begun() == ["r", "ra", "rbc"]


@pytest.mark.parametrize(("relative", "enough"), [(0.001, False), (0.25, True)])
def test_it_goes_on_until_more_turns_would_tell_nothing(relative, enough):
    levels = np.random.default_rng(0).lognormal(7.0, 0.1, (2, 40))
    before = [
        Turn(entry=key, group=0, round=number, samples_us=(level,) * 3)
        for key, own in zip("ra", levels, strict=True)
        for number, level in enumerate(own)
    ]
    script = Script()
    script.run("ra", records=before, turns=None, noise=Noise(relative, 0.0, 12))
    assert (script.turns()["a"] == 41) == enough  # one round tells how long a turn takes
