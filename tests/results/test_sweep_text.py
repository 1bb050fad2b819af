"""The text of a sweep, of rows by hand."""

from __future__ import annotations

from dataclasses import replace

from views.hand_made import small_profile
from widgets.hand_sweeps import failed_row, measured_row, on_cpu_alone, small_sweep


def test_without_a_measured_row_nothing_is_said_of_differences():
    lines = small_sweep(measured=False).report().split("\n")
    assert lines[0] == "1 placement, ratios to 'broken 0' (below 1 is faster)"
    assert "broken 0: compile failed: no kernel" in lines
    assert "could have shown" not in "".join(lines)
    assert "Two compiles" not in "".join(lines)
    assert "the smallest difference that this run could have shown is" in small_sweep().report()


def test_a_split_that_is_slower_than_a_device_alone_has_a_cause():
    profile = small_profile()
    alone, split = on_cpu_alone(profile), profile

    def report(alone_takes: float, split_takes: float) -> str:
        rows = (
            measured_row("alone", alone, alone_takes),
            measured_row("split", split, split_takes),
            failed_row("broken"),
        )
        return replace(small_sweep(), rows=rows, reference="alone").report()

    cause = "'split': 187 µs of 205 µs are spent at 2 boundaries"
    assert cause in report(1.0, 2.0)
    assert "'alone' takes 102 µs." in report(1.0, 2.0)
    assert "are spent at" not in report(2.0, 1.0)
    assert "are spent at" not in report(1.0, 1.0)
