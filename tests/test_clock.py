"""There is one clock, and whoever replaces it replaces it for all."""

from __future__ import annotations

import re

from package_source import PACKAGE

from hetero_lab import clock
from hetero_lab.progress import Stopwatch
from hetero_lab.runtime.executors import run_turn, time_once

READING = re.compile(
    r"(\btime\.|^from time import .*)\b(time|monotonic|perf_counter)(_ns)?\b", re.MULTILINE
)


def test_no_other_module_reads_a_clock():
    files = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if READING.search(path.read_text("utf-8"))
    }
    # What runs a deployed directory has to do without the rest of the package.
    assert files == {"clock.py", "deploy/run_frozen.py", "debug/show_fault.py"}


def test_a_replaced_clock_is_everybodys(monkeypatch):
    at_ns = 5_000_000_000
    monkeypatch.setattr(clock, "now_ns", lambda: at_ns)

    def three_milliseconds() -> None:
        nonlocal at_ns
        at_ns += 3_000_000

    assert clock.now() == 5.0
    watch = Stopwatch.start(0.1)
    assert time_once(three_milliseconds) == 3000.0
    assert run_turn(three_milliseconds, timed=4, discarded=1) == (3000.0,) * 4
    assert round(watch.elapsed_s, 9) == 0.018
    assert not watch.is_over
    at_ns += 90_000_000
    assert watch.is_over
