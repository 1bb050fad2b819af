from __future__ import annotations

import time

import pytest

from hetero_lab import clock
from hetero_lab.progress import Progress


@pytest.fixture
def seconds(monkeypatch):
    """A clock that goes as the test says."""
    passed = [100.0]
    monkeypatch.setattr(clock, "now_ns", lambda: int(passed[0] * 1e9))

    def wait(more: float) -> None:
        passed[0] += more

    return wait


def drawn(capsys) -> list[str]:
    return [line.strip() for line in capsys.readouterr().err.split("\r") if line.strip()]


def test_nothing_is_drawn_before_two_seconds(seconds, capsys):
    with Progress("evaluate", show=True, total=10, unit="examples") as progress:
        for _ in range(3):
            progress.advance()
            seconds(0.5)
    assert drawn(capsys) == []


def test_steps_are_counted(seconds, capsys):
    with Progress("evaluate", show=True, total=10, unit="examples") as progress:
        seconds(2.1)
        progress.advance(3)
        progress.note("all right")
        progress.advance(1)
    lines = drawn(capsys)
    assert len(lines) == 1  # the others came within half a second
    assert lines[0].startswith("evaluate |")
    assert "| 3 of 10 examples" in lines[0]


def test_a_step_may_count_anew(seconds, capsys):
    with Progress("quantise", show=True) as progress:
        seconds(3)
        progress.step("collect statistics", total=20)
        progress.advance(5)
        seconds(1)
        progress.note("so far")
    first, last = drawn(capsys)
    assert "collect statistics |" in first
    assert "| 0 of 20" in first
    assert "| 5 of 20" in last
    assert last.endswith("so far")


def test_a_budget_shows_the_time_that_is_used(seconds, capsys):
    with Progress("calibrate", show=True, budget_s=60) as progress:
        seconds(15)
        progress.step("measure")
        seconds(100)
        progress.step("prove")
    first, last = drawn(capsys)
    assert "measure |" in first
    assert "| 15 of 60 s" in first
    assert "| 60 of 60 s" in last


def test_while_one_step_lasts_the_line_is_kept_going(seconds, capsys):
    with Progress("compile", show=True):
        seconds(5)
        time.sleep(1.2)  # the other thread looks every half second
    assert drawn(capsys)[0].startswith("compile: ")


def test_show_false_draws_nothing(seconds, capsys):
    with Progress("evaluate", show=False, total=10) as progress:
        seconds(5)
        progress.step("second", total=3)
        progress.advance()
        progress.note("text")
    assert drawn(capsys) == []
