"""There is one clock, and whoever replaces it replaces it for all."""

from __future__ import annotations

import ast

from package_source import trees

from hetero_lab import clock
from hetero_lab.progress import Stopwatch
from hetero_lab.runtime.executors import run_turn, time_once

CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}


def readings(name: str, tree: ast.Module) -> list[str]:
    """Return each mention of a clock of Python's, with its line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            used = {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = {node.attr} if node.value.id == "time" else set()
        else:
            continue
        found += [f"{name}:{node.lineno}: {each}" for each in used & CLOCKS]
    return found


def test_no_other_module_reads_a_clock():
    mentioned = [line for each in trees().items() for line in readings(*each)]
    # What runs a deployed directory has to do without the rest of the package.
    files = {line.partition(":")[0] for line in mentioned}
    assert files == {"clock.py", "deploy/run_frozen.py", "debug/show_fault.py"}, mentioned


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
