"""How often and in what turns things are run. How long they take is asserted nowhere."""

from __future__ import annotations

import gc
import itertools

import pytest
from hypothesis import given, strategies as st

from hetero_lab.errors import ArgumentError
from hetero_lab.runtime.timing import (
    DISCARDED_PER_TURN,
    TIMED_PER_TURN,
    Stopwatch,
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


def test_a_turn_is_two_discarded_and_ten_timed_in_a_row():
    run = Counted()
    samples = run_turn(run)
    assert (DISCARDED_PER_TURN, TIMED_PER_TURN) == (2, 10)
    assert run.n == 12
    assert len(samples) == 10
    assert all(sample > 0 for sample in samples)


def test_garbage_waits_until_a_turn_is_over():
    run = Counted()
    run_turn(run)
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
def test_turns_hold_exactly_what_was_asked_for(iterations):
    sizes = list(turn_lengths(iterations))
    assert sum(sizes) == iterations
    assert all(min(iterations, 10) <= size < 20 for size in sizes)


@pytest.mark.parametrize(
    ("iterations", "sizes"),
    [(1, [1]), (9, [9]), (10, [10]), (19, [19]), (20, [10, 10]), (25, [10, 15]), (30, [10] * 3)],
)
def test_a_small_rest_joins_the_last_turn(iterations, sizes):
    assert list(turn_lengths(iterations)) == sizes


def test_without_a_number_there_are_turns_without_end():
    assert list(itertools.islice(turn_lengths(None), 500)) == [10] * 500


def test_warm_up_runs_as_often_as_told_or_until_it_is_steady():
    for n in (0, 1, 7):
        run = Counted()
        assert warm_up(run, n) == n == run.n
    run = Counted()
    assert warm_up(run) == run.n
    assert run.n >= 10
    assert run.n % 10 == 0


@pytest.mark.parametrize("budget", [0, -1, float("nan"), "5", True, [1]])
def test_a_budget_is_more_than_nothing(budget):
    with pytest.raises(ArgumentError, match="more than 0 seconds"):
        Stopwatch.start(budget)


def test_a_stopwatch():
    endless = Stopwatch.start(None)
    assert not endless.is_over
    assert endless.elapsed_s >= 0
    assert Stopwatch.start(1e-9).is_over
    assert not Stopwatch.start(1e9).is_over


def test_time_once_runs_once():
    run = Counted()
    assert time_once(run) > 0
    assert run.n == 1
