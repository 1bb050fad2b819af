"""The text of a sweep, of rows by hand."""

from __future__ import annotations

from dataclasses import replace

from views.hand_made import small_profile
from widgets.hand_sweeps import failed_row, measured_row, on_cpu_alone, small_sweep


def test_without_a_measured_row_nothing_is_said_of_differences():
    lines = small_sweep(measured=False).report().split("\n")
    assert lines[0] == "0 of 1 placement, ratios to 'broken 0' (below 1 is faster)"
    assert "broken 0: compile failed: no kernel" in lines
    assert "could have shown" not in "".join(lines)
    assert "Two compiles" not in "".join(lines)
    assert "the smallest difference that this run could have shown is" in small_sweep().report()
    assert "3 of 4 placements, ratios to " in small_sweep().report()


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


def test_a_noisy_run_is_not_read_as_a_ranking():
    sweep = small_sweep(failed=0)
    quiet, noisy = sweep.rows[0], sweep.rows[1]
    level = noisy.series.ours
    wild = {at: us * (0.01 if n % 2 else 100.0) for n, (at, us) in enumerate(level.items())}
    rows = (quiet, replace(noisy, series=replace(noisy.series, ours=wild)))
    said = replace(sweep, rows=rows).report()
    assert said.startswith("Too noisy to rank: the interval of ")
    assert "Fastest" not in said
    assert "too much noise, to tell placements apart" in said


def test_a_device_without_a_row_is_named():
    sweep = small_sweep(failed=0)
    assert "cannot run every op" not in sweep.report()
    split = measured_row("split", small_profile(), 1.0)
    alone = replace(measured_row("CPU", on_cpu_alone(small_profile()), 1.0), baseline=True)
    said = replace(sweep, rows=(split, alone), reference="split").report()
    assert "; ACC alone cannot run every op" in said
