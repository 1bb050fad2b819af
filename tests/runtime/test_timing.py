"""How often and in what turns things are run. How long they take is asserted nowhere."""

from __future__ import annotations

import gc
import itertools

import pytest
from hypothesis import example, given, strategies as st

from hetero_lab import clock
from hetero_lab.errors import ArgumentError
from hetero_lab.progress import Stopwatch
from hetero_lab.runtime.executors import (
    DISCARDED_PER_TURN,
    TIMED_PER_TURN,
    run_turn,
    time_once,
    turn_lengths,
    warm_up,
)


class Counted:
    """Something to run that counts its runs and sees whether garbage is collected."""

    def __init__(self, fails_at: int = 0) -> None:
        self.n = 0
        self.collecting: set[bool] = set()
        self.fails_at = fails_at

    def __call__(self) -> None:
        self.n += 1
        self.collecting.add(gc.isenabled())
        if self.n == self.fails_at:
            raise KeyboardInterrupt


def test_a_turn_is_two_discarded_and_ten_timed_in_a_row_without_garbage_collection():
    run = Counted()
    samples = run_turn(run)
    assert (DISCARDED_PER_TURN, TIMED_PER_TURN) == (2, 10)
    assert (run.n, len(samples)) == (12, 10)
    assert all(sample > 0 for sample in samples)
    assert run.collecting == {False}
    assert gc.isenabled()
    for fails_at in (1, 5):
        with pytest.raises(KeyboardInterrupt):
            run_turn(Counted(fails_at))
        assert gc.isenabled()
    gc.disable()
    try:
        run_turn(run)
        assert not gc.isenabled()
    finally:
        gc.enable()


@given(st.integers(1, 500))
@example(1)
@example(19)
@example(20)
def test_turns_hold_exactly_what_was_asked_for_and_a_small_rest_joins_the_last(iterations):
    sizes = list(turn_lengths(iterations))
    assert sum(sizes) == iterations
    assert set(sizes[:-1]) <= {10}
    assert min(iterations, 10) <= sizes[-1] < 20


def test_without_a_number_there_are_turns_without_end():
    assert list(itertools.islice(turn_lengths(None), 500)) == [10] * 500


@pytest.mark.parametrize("budget", [0, -1, float("nan"), "5", True, [1]])
def test_a_budget_is_more_than_nothing(budget):
    with pytest.raises(ArgumentError, match="more than 0 seconds"):
        Stopwatch.start(budget)


@pytest.fixture
def takes_ms(monkeypatch):
    """Return something to run that takes these times, on the clock of the test."""
    passed = [0]
    monkeypatch.setattr(clock, "now_ns", lambda: passed[0])

    def make(*times_ms: float):
        every = itertools.cycle(times_ms)

        def run() -> None:
            passed[0] += round(next(every) * 1e6)

        return run

    return make


def test_times_are_in_microseconds(takes_ms):
    assert time_once(takes_ms(2.5)) == 2500.0
    assert run_turn(takes_ms(9.0, 8.0, 1.0, 2.0, 3.0), timed=3) == (1000.0, 2000.0, 3000.0)
    watch, endless, run = Stopwatch.start(0.012), Stopwatch.start(None), takes_ms(4.0)
    for elapsed_s in (0.004, 0.008, 0.012, 0.016):
        run()
        assert watch.elapsed_s == pytest.approx(elapsed_s)
        assert watch.left_s == pytest.approx(max(0.012 - elapsed_s, 0.0))
        assert watch.is_over == (elapsed_s > 0.01)
    assert endless.left_s == float("inf")
    assert not endless.is_over


def test_a_warm_up_ends_when_two_turns_agree(takes_ms):
    """At the earliest after three; within 5 % is the same."""
    for n in (0, 1, 7):
        run = Counted()
        assert warm_up(run, n) == n == run.n
    assert warm_up(takes_ms(1.0)) == 30
    turns = [1.6, 1.4, 1.2, 1.1, 1.06, 9.0]  # 4 % less at last
    assert warm_up(takes_ms(*[ms for ms in turns for _ in range(10)])) == 50
    assert warm_up(takes_ms(*[1.0] * 10, *[2.0] * 10), at_most_s=0.095) == 70
    assert warm_up(takes_ms(1.0), at_most_s=0.0) == 0
