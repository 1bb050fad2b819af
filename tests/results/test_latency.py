"""One latency that ratio, rank, tables and figures agree on, however the machine drifts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from views.hand_made import small_profile

import hetero_lab as hl
from hetero_lab.intervals import ASSUMED_NOISE, Latency, Noise, Series, turn_level
from hetero_lab.results.evidence import between
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import Row
from hetero_lab.results.sweep_tables import text
from hetero_lab.views.sweep_figures import latency_ranking, placement_latency

LABELS = ("reference", "a", "b", "c", "d")


def drifting_sweep(factors, drift, n_rounds=8, noise=0.01, seed=0, noises=ASSUMED_NOISE) -> Sweep:
    """Measure each placement in a group of its own beside the reference, on a drifting machine.

    ``factors`` are the true ratios to the reference, ``drift`` what the machine multiplies all
    turns of each group with.
    """
    rng = np.random.default_rng(seed)
    turns: dict[str, dict[tuple[int, int], tuple[float, ...]]] = {label: {} for label in LABELS}
    for group, (label, factor, mood) in enumerate(zip(LABELS[1:], factors, drift, strict=True)):
        for number in range(n_rounds):
            for name, true in ((LABELS[0], 1.0), (label, factor)):
                samples = 600.0 * true * mood * rng.lognormal(0.0, noise, 10)
                turns[name][group, number] = tuple(samples)
    profile = small_profile()
    levels = {name: {at: turn_level(t) for at, t in own.items()} for name, own in turns.items()}
    latency = {name: Latency(tuple(own.values())) for name, own in turns.items()}
    rows = tuple(
        Row(
            label=name, key=name, variant="", requests=1, baseline=False, status="ok", detail="",
            same_as="", profile=replace(profile, label=name, latency=latency[name]),
            series=Series(levels[name], levels[LABELS[0]], noises), sustained_us=(),
            reference_latency=latency[LABELS[0]],
        )
        for name in LABELS
    )  # fmt: skip
    return Sweep(rows, LABELS[0], profile.environment, ())


def check(sweep: Sweep) -> None:
    """Assert that nothing which the sweep shows contradicts anything else of it."""
    ranking, summary = sweep.ranking, sweep.summary.set_index("label")
    level = summary.loc[sweep.reference, "median_us"]
    assert list(ranking["rank"]) == list(range(1, len(ranking) + 1))
    assert ranking["median_us"].is_monotonic_increasing
    assert ranking["ratio"].is_monotonic_increasing
    assert ranking["group"].is_monotonic_increasing
    assert list(ranking["median_us"] / level) == pytest.approx(list(ranking["ratio"]))
    for one, other in itertools.permutations(sweep.ranked.rows, 2):
        ratio = between(one, other)
        if ratio is not None:  # a single turn has none
            assert ratio.middle == pytest.approx(one.latency.us / other.latency.us)
    measured = summary.loc[list(ranking["label"])]
    scale = measured["median_us"] / measured["raw_median_us"]
    for end in ("low", "high"):  # a latency has an interval of its own, wherever it is shown
        own = list(measured[f"ci95_{end}_us"])
        assert own == pytest.approx(list(scale * measured[f"raw_ci95_{end}_us"]))
        profiles = [sweep.profile(label).latency.estimate for label in measured.index]
        assert own == [getattr(estimate, f"{end}_us") for estimate in profiles]
    rounded = 1.0 + 1e-9
    assert (measured["ci95_low_us"] <= rounded * measured["median_us"]).all()
    for above in ("ci95_high_us", "p90_us"):
        assert (measured["median_us"] <= rounded * measured[above]).all()
    assert list(measured["throughput_per_s"]) == pytest.approx(list(1e6 / measured["median_us"]))
    assert measured.loc[sweep.reference, "raw_median_us"] == pytest.approx(level)
    medians = measured["median_us"].to_dict()
    bars, points = latency_ranking(sweep), placement_latency(sweep)
    assert [name.removesuffix(" ⌂") for name in bars.layout.yaxis.ticktext] == list(
        ranking["label"]
    )
    scale = 1e-3 if bars.layout.xaxis.title.text == "latency (ms)" else 1.0
    assert list(bars.data[0].x) == [scale * us for us in ranking["median_us"]]
    drawn = sorted(time for trace in points.data for time in trace.y)
    assert drawn == sorted(scale * us for us in medians.values())


def test_a_drift_between_groups_turns_no_rank_around():
    # b takes 3 % less than a, but was measured when everything took a tenth longer.
    sweep = drifting_sweep((0.85, 0.82, 1.3, 1.5), (1.0, 1.1, 1.0, 1.0))
    raw = sweep.summary.set_index("label")["raw_median_us"]
    assert raw["b"] > 1.03 * raw["a"]
    assert list(sweep.ranking["label"]) == ["b", "a", "reference", "c", "d"]
    check(sweep)
    for row in sweep.rows:
        assert raw[row.label] == pytest.approx(row.profile.latency.median_us)
        assert sweep.profile(row.label).latency.median_us == row.latency.us
    verdict, _, _, *ranks = text(sweep.tables, "", []).splitlines()
    assert verdict.startswith("Fastest: 'b'")
    assert [line.split()[2] for line in ranks] == list(sweep.ranking["label"])


def test_a_disturbed_turn_makes_no_second_ratio():
    """In one group, where both have the same rounds, and trimming takes others of each."""
    rng = np.random.default_rng(3)
    levels = {name: rng.lognormal(0.0, 0.2, 8) * factor for name, factor in FACTORS.items()}
    rows = []
    for row in drifting_sweep((1.0,) * 4, (1.0,) * 4).rows[:3]:
        own, beside = (
            {(0, n): 600 * us for n, us in enumerate(levels[name])}
            for name in (row.label, "reference")
        )
        rows.append(replace(row, series=Series(own, beside, ASSUMED_NOISE)))
    check(Sweep(tuple(rows), "reference", rows[0].profile.environment, ()))


FACTORS = {"reference": 1.0, "a": 0.9, "b": 1.2}


@given(
    st.lists(st.floats(0.5, 2.0), min_size=4, max_size=4),
    st.lists(st.floats(0.5, 2.0), min_size=4, max_size=4),
    st.integers(1, 24),
    st.floats(0.0, 0.3),
    st.integers(0, 100),
)
@settings(max_examples=5)
def test_no_table_or_figure_contradicts_another(factors, drift, n_rounds, noise, seed):
    check(drifting_sweep(factors, drift, n_rounds, noise, seed))


def test_what_a_comparison_says_follows_from_what_it_shows():
    runs = [drifting_sweep((0.85, 0.82, 1.3, 1.5), drift) for drift in ((1.0,) * 4, (1.5,) * 4)]
    table = hl.compare(*runs).table.set_index("label")
    assert list(table["ratio"]) == pytest.approx(
        list(table["median_us_after"] / table["median_us_before"])
    )
    for when, sweep in zip(("before", "after"), runs, strict=True):
        medians = sweep.summary.set_index("label")["median_us"]
        assert table[f"median_us_{when}"].to_dict() == pytest.approx(medians.to_dict())
    assert set(table["finding"]) == {"slower"}


def test_a_comparison_of_runs_includes_how_far_each_drifted():
    # The machine wandered by half within each run; a fifth more in the second shows nothing.
    runs = [
        drifting_sweep((1.0,) * 4, [scale * mood for mood in (0.8, 1.0, 1.3, 1.1)])
        for scale in (1.0, 1.2)
    ]
    table = hl.compare(*runs).table.set_index("label")
    assert table.loc["reference", "finding"] == "undecided"
    assert table.loc["reference", "ratio"] == pytest.approx(1.2, rel=0.02)


def test_the_noise_of_the_machine_widens_intervals_and_groups():
    quiet, loud = (
        drifting_sweep((0.97, 0.97, 1.2, 1.5), (1.0,) * 4, 40, 0.005, noises=Noise(relative, 0, 9))
        for relative in (0.001, 0.03)
    )
    for sweep, told_apart in ((quiet, True), (loud, False)):
        groups = sweep.ranking.set_index("label")["group"]
        assert (groups["a"] != groups["reference"]) == told_apart
        assert set(sweep.summary["noise_measured"]) == {True}
    assert list(loud.summary["compile_spread"]) == pytest.approx([0.03] * 5)
    assert quiet.smallest_difference < 0.01 < loud.smallest_difference
