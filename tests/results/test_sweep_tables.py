"""The tables of a sweep, of rows by hand: every number of a row that takes twice as long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from views.hand_made import small_profile
from widgets.hand_sweeps import ALONE, SLOW, SPLIT, failed_row, measured_row, small_sweep

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.intervals import ASSUMED_NOISE, Series
from hetero_lab.results.sweep_tables import ranking_and_failures, resolution_note, text, verdict


def by_label(sweep: hl.types.Sweep):
    return {row["label"]: row for row in sweep.summary.to_dict("records")}


def test_latencies_are_on_the_scale_of_the_reference():
    """The row's own turns took 300 µs when the reference beside it took 1.5 times as long."""
    profile = small_profile()
    drifted = measured_row("drifted", profile, 3.0)
    levels = {(0, n): 1.5 * level for n, level in enumerate((100.0, 102.0, 101.0))}
    ours = {at: 2.0 * level for at, level in levels.items()}
    drifted = replace(drifted, series=Series(ours, levels, ASSUMED_NOISE))
    rows = (measured_row("reference", profile), drifted, failed_row("broken"))
    sweep = replace(small_sweep(), rows=rows, reference="reference")
    row = by_label(sweep)["drifted"]
    own = drifted.profile.latency
    assert row["ratio"] == pytest.approx(2.0)
    assert row["median_us"] == pytest.approx(2.0 * 102.5)
    assert row["ci95_low_us"] < row["median_us"] < row["ci95_high_us"]
    assert own.median_us == 3.0 * 101.0 + 1.5
    assert row["raw_median_us"] == pytest.approx(own.median_us)
    scale = row["median_us"] / own.median_us
    assert row["p90_us"] == pytest.approx(scale * own.p90_us)
    assert row["raw_p90_us"] == pytest.approx(own.p90_us)
    assert row["mad_us"] == pytest.approx(scale * own.mad_us)
    assert row["throughput_per_s"] == pytest.approx(1e6 / 205.0)
    assert row["rest_us"] == pytest.approx(205.0 - row["ops_us"] - row["reorders_us"])
    assert (row["n_turns"], row["status"], row["detail"]) == (3, "ok", "")
    assert row["weight_bytes"] == profile.graph.weight_bytes == 128
    broken = by_label(sweep)["broken"]
    assert (broken["status"], broken["detail"]) == ("compile failed", "no kernel")
    for name in ("median_us", "ratio", "weight_bytes", "throughput_per_s", "raw_median_us"):
        assert broken[name] != broken[name]
    assert list(sweep.ranking["label"]) == ["reference", "drifted"]


def test_what_a_row_held_is_its_last_third():
    rows = small_sweep().rows
    held = tuple(float(us) for us in (*[1] * 6, 10, 20, 40))
    sweep = replace(small_sweep(), rows=(replace(rows[0], sustained_us=held), *rows[1:]))
    found = by_label(sweep)
    assert found[SPLIT]["sustained_us"] == 20.0
    assert np.isnan(found[ALONE]["sustained_us"])


def test_the_verdict_names_the_fastest_and_those_as_fast():
    profile = small_profile()

    def said(**factors: float) -> str:
        rows = tuple(measured_row(label, profile, factor) for label, factor in factors.items())
        return verdict(replace(small_sweep(), rows=rows, reference="a").tables)

    assert said(a=1.0, b=2.0) == "Fastest: 'a', 102 µs (9,756 a second)."
    faster = said(a=1.0, b=0.5)
    assert faster.startswith("Fastest: 'b', 51.2 µs (19,512 a second), 0.500 of the time of 'a'")
    assert faster.endswith("), with ACC emulated.")
    assert "as fast, within 5 %: 'b'" in said(a=1.0, b=1.002)
    assert "undecided" not in said(a=1.0, b=2.0)
    assert verdict(small_sweep(measured=False).tables) == ""


def test_rows_of_several_hosts_are_told_apart():
    first, *others = small_sweep().rows
    first = replace(first, host="host")
    assert first.profile is not None
    environment = replace(first.profile.environment, host="laptop")
    elsewhere = replace(
        first, host="laptop", profile=replace(first.profile, environment=environment)
    )
    both = replace(small_sweep(), rows=(first, elsewhere, *others))
    assert both.hosts == ("host", "laptop")
    assert both.name_of(first) == f"{SPLIT} @ host"
    assert both.name_of(elsewhere) == f"{SPLIT} @ laptop"
    assert both.name_of(both.rows[-1]) == "broken 0"  # that nobody measured
    assert both.profile(SPLIT, "laptop").environment.host == "laptop"
    assert both.profile(SPLIT).environment.host == "host"
    with pytest.raises(ArgumentError, match=f"No row is called '{SPLIT}'"):
        both.profile(SPLIT, "desk")
    assert verdict(both.tables) == ""  # each host has a fastest of its own
    assert next(iter(ranking_and_failures(both.tables)[""].columns)) == "host"
    assert "host" not in ranking_and_failures(small_sweep().tables)[""]
    failed = replace(failed_row("gone"), host="desk")
    said = replace(both, rows=(*both.rows, failed)).report()
    assert "gone @ desk: compile failed: no kernel" in said
    assert "broken 0: compile failed: no kernel" in small_sweep().report()


def test_a_short_text_counts_what_it_leaves_out():
    profile = small_profile()
    rows = [measured_row(f"row {n}", profile, 1.0 + n) for n in range(7)]
    rows += [failed_row(f"broken {n}") for n in range(4)]
    sweep = replace(small_sweep(), rows=tuple(rows), reference="row 0", notes=("one", "two", "3rd"))
    short, whole = repr(sweep), sweep.report()
    assert [f"row {n}" in short for n in range(7)] == [True] * 5 + [False] * 2
    assert "… 2 more placements" in short
    assert [f"broken {n}" in short for n in range(4)] == [True, True, False, False]
    assert "… 2 more failures" in short
    assert "… 3 more notes; the sweep's report() shows all" in short
    assert "more" not in whole.replace("or more", "")
    assert "--table" not in whole
    assert all(f"row {n}" in whole for n in range(7))
    assert "… 1 more placement\n" in text(sweep.tables, "heading", (), most=6)
    assert "more placement" not in text(sweep.tables, "heading", (), most=7)


def test_what_could_be_seen():
    sweep = small_sweep()
    assert f"could have shown is {sweep.smallest_difference:.1%}" in resolution_note(sweep.ranked)
    nothing = sweep.ranked._replace(smallest_difference=float("inf"))
    assert "Too few turns" in resolution_note(nothing)


def test_tables_of_all_profiles_name_row_and_host():
    sweep = small_sweep()
    for name in ("samples", "subgraphs", "counters", "boundaries", "placements"):
        frame = sweep.tables[name]
        assert list(frame.columns[:2]) == ["label", "host"], name
        assert set(frame["host"]) == {"host"}
    assert list(dict.fromkeys(sweep.tables["samples"]["label"])) == [SPLIT, ALONE, SLOW]
    assert list(dict.fromkeys(sweep.tables["counters"]["label"])) == [SPLIT, SLOW]  # ALONE has none
    none = small_sweep(measured=False)
    assert list(none.tables["samples"].columns) == ["label", "host", "turn", "index", "latency_us"]
    assert len(none.tables["samples"]) == len(none.ranking) == 0
    assert none.summary["median_us"].dtype == float
    assert ranking_and_failures(none.tables)[""].equals(none.summary)


def test_the_failures_are_a_table_of_their_own():
    failures = ranking_and_failures(small_sweep(failed=2).tables)["Failures"]
    assert list(failures["label"]) == ["broken 0", "broken 1"]
    assert list(ranking_and_failures(small_sweep(failed=0).tables)) == [""]


def test_the_levels_of_a_row_are_on_the_scale_of_its_latency():
    measured, gone = measured_row("there", small_profile(), 2.0), failed_row("gone")
    assert measured.latency is not None
    assert np.exp(np.mean(np.log(measured.levels_us))) == pytest.approx(measured.latency.us)
    assert (gone.levels_us, gone.latency, gone.measured_on) == ([], None, None)
