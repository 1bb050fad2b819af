from __future__ import annotations

import sys
import time

import pytest
import tqdm.notebook

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


@pytest.fixture
def terminal(capsys, monkeypatch):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    return capsys


def drawn(capsys) -> list[str]:
    return [line.strip() for line in capsys.readouterr().err.split("\r") if line.strip()]


@pytest.mark.parametrize(("show", "waits_s"), [(True, 0.5), (False, 5.0)])
def test_nothing_is_drawn_before_two_seconds_or_if_it_is_not_wanted(
    seconds, terminal, show, waits_s
):
    with Progress("evaluate", show=show, total=10, unit="examples") as progress:
        for _ in range(3):
            progress.advance()
            seconds(waits_s)
        progress.step("second", total=3)
        progress.note("text")
    assert drawn(terminal) == []


def test_steps_are_counted(seconds, terminal):
    with Progress("evaluate", show=True, total=10, unit="examples") as progress:
        for _ in range(2):
            progress.advance()
        seconds(2.1)
        progress.advance()
        progress.note("all right")
        progress.advance()
    lines = drawn(terminal)
    assert len(lines) == 1  # the others came within half a second
    assert lines[0].startswith("evaluate |")
    assert "| 3 of 10 examples" in lines[0]


def test_a_step_may_count_anew(seconds, terminal):
    with Progress("quantise", show=True) as progress:
        seconds(3)
        progress.step("collect statistics", total=20)
        for _ in range(5):
            progress.advance()
        seconds(1)
        progress.note("so far")
    first, last = drawn(terminal)
    assert "collect statistics |" in first
    assert "| 0 of 20" in first
    assert "| 5 of 20" in last
    assert last.endswith("so far")


@pytest.mark.parametrize("known", [True, False])
def test_a_budget_shows_the_time_that_is_used(seconds, terminal, known):
    with Progress("calibrate", show=True, budget_s=60 if known else None) as progress:
        seconds(15)
        progress.limit(60.0)  # may become known later
        progress.step("measure")
        seconds(100)
        progress.step("prove")
    first, last = drawn(terminal)
    assert "measure |" in first
    assert "| 15 of 60 s" in first
    assert "| 60 of 60 s" in last


def test_while_one_step_lasts_the_line_is_kept_going(seconds, terminal):
    with Progress("compile", show=True):
        seconds(5)
        while not (lines := drawn(terminal)):  # the other thread looks every half second
            time.sleep(0.05)
    assert lines[0].startswith("compile: ")


def test_the_line_is_taken_away_from_a_terminal(seconds, terminal):
    with Progress("evaluate", show=True, total=10) as progress:
        seconds(3)
        progress.advance()
    *_, last_line, blank, begin = terminal.readouterr().err.split("\r")
    assert "1 of 10" in last_line
    assert blank.strip() == begin == ""
    assert len(blank) >= len(last_line.rstrip())


def test_a_log_gets_a_line_every_half_minute(seconds, capsys):
    with Progress("calibrate", show=True, budget_s=100) as progress:
        for n in range(100):
            progress.step("measure")
            progress.note(f"{n} placements measured")
            seconds(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "measure: 30 of 100 s, 29 placements measured",
        "measure: 60 of 100 s, 59 placements measured",
        "measure: 90 of 100 s, 89 placements measured",
    ]


def in_notebook(monkeypatch, **options):
    """Return a bar as a notebook draws it, and the widget of that."""
    monkeypatch.setattr("hetero_lab.progress.tqdm", tqdm.notebook.tqdm)
    progress = Progress("measure", show=True, **options)
    return progress, progress._bar.container.children[1]


@pytest.mark.parametrize("options", [{"budget_s": 30}, {"total": 20, "unit": "examples"}, {}])
def test_a_bar_in_a_notebook_ends_full_and_green(seconds, monkeypatch, options):
    progress, bar = in_notebook(monkeypatch, **options)
    with progress:
        seconds(24)
        progress.step("enough is known", *([5] if not options else []))
        progress.advance()
    assert bar.bar_style == "success"
    assert bar.value == bar.max > 0


def test_a_bar_in_a_notebook_shows_that_a_call_failed(seconds, monkeypatch):
    progress, bar = in_notebook(monkeypatch, budget_s=30)
    with pytest.raises(ValueError, match="no"), progress:
        seconds(24)
        progress.step("measure")
        raise ValueError("no")
    assert bar.bar_style == "danger"
    assert bar.value < bar.max
