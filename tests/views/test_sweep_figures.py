"""What the figures of a sweep show, against numbers that were worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from widgets.hand_sweeps import ALONE, SLOW, SPLIT, small_sweep

from hetero_lab.advise.advice import Advice, Judged
from hetero_lab.intervals import Series
from hetero_lab.views.sweep_figures import (
    axis_of,
    finite,
    hosts,
    latency_ranking,
    placement_latency,
    scale_of,
    with_shares,
)

# The reference's median times 1, 1.5 and 2; medians of their own turns are 102.5, 153 and 203.5.
LATENCIES = [102.5, 153.75, 205.0]


def test_rows_are_ranked_from_fast_to_slow():
    sweep = small_sweep()
    sweep = replace(sweep, rows=sweep.rows[::-1])
    figure = latency_ranking(sweep)
    assert list(figure.layout.yaxis.ticktext) == [SPLIT, ALONE, SLOW]
    assert [text.strip() for text in figure.data[1].text] == [
        "group 1, best · 3 subgraphs · emulated", "group 2, slower · 1 subgraph · emulated",
        "group 3, slower · 3 subgraphs · emulated",
    ]  # fmt: skip
    bars = figure.data[0].error_x
    assert all(length >= 0 for length in (*bars.array, *bars.arrayminus))
    assert list(figure.data[0].x) == pytest.approx(LATENCIES)
    assert figure.layout.xaxis.title.text == "latency (µs)"
    assert len(set(figure.data[0].marker.color[:2])) == 2  # they can be told apart
    said = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert "filled: may be the fastest" in said
    assert "this run could have shown is " in said
    assert len(set(figure.data[0].marker.color[1:])) == 1  # not of the first group


def test_bars_of_an_advice_say_its_judgements():
    sweep = small_sweep(failed=0)
    judged = [
        Judged(row, None, None, "final", judgement)  # type: ignore
        for row, judgement in zip(sweep.rows, ("as fast", "best", "slower"), strict=True)
    ]
    figure = latency_ranking(Advice(None, "", tuple(judged), (), "hetero", sweep))  # type: ignore
    said = [text.split(" · ")[0].strip() for text in figure.data[1].text]
    assert said == ["as fast", "best", "slower"]
    first, second, third = figure.data[0].marker.color
    assert first == second != third


@pytest.mark.parametrize(("n_rows", "n_turns"), [(1, 3), (3, 1)])
def test_a_ranking_of_too_little_has_no_infinite_numbers(n_rows, n_turns):
    sweep = small_sweep(failed=0)
    rows, turns = [], [(0, turn) for turn in range(n_turns)]
    for row in sweep.rows[:n_rows]:
        ours, reference = (
            {turn: us[turn] for turn in turns} for us in (row.series.ours, row.series.reference)
        )
        rows.append(replace(row, series=Series(ours, reference, row.series.noise)))
    little = replace(sweep, rows=tuple(rows))
    ranking = latency_ranking(little)
    assert "Too few turns" in ranking.layout.title.subtitle.text
    for figure in (ranking, placement_latency(little), hosts(little)):
        assert "inf" not in figure.to_json().lower().replace("info", "")


def test_points_of_structure_and_latency():
    frame, failed = with_shares(small_sweep()).head(3), with_shares(small_sweep()).iloc[3]
    columns = ["label", "n_subgraphs", "boundary_bytes", "share ACC", "share CPU", "mostly on"]
    assert frame[columns].to_numpy().tolist() == [
        [SPLIT, 3, 64, 75.0, 25.0, "ACC"], [ALONE, 1, 0, 0.0, 100.0, "CPU"],
        [SLOW, 3, 64, 75.0, 25.0, "ACC"],
    ]  # fmt: skip
    assert list(frame["median_us"]) == pytest.approx(LATENCIES)
    assert (math.isnan(failed["share ACC"]), failed["mostly on"]) == (True, "")
    assert placement_latency(small_sweep()).layout.xaxis.dtick == 1
    figure = placement_latency(small_sweep(), "ACC")
    assert figure.layout.xaxis.dtick is None
    shown = {t.name: (list(t.x), pytest.approx(list(t.y))) for t in figure.data}
    assert shown == {
        "mostly on ACC (emulated on CPU)": ([75.0, 75.0], [102.5, 205.0]),
        "mostly on CPU": ([0.0], [153.75]),
    }


def test_long_times_are_drawn_in_ms_and_numbers_without_unit_as_they_are():
    frame = with_shares(small_sweep()).head(3)
    assert scale_of(frame, "median_us") == 1.0
    for name in ("median_us", "ci95_low_us", "ci95_high_us", "p90_us"):
        frame[name] *= 100.0
    assert axis_of(frame, "median_us")["title"] == "median (ms)"
    assert axis_of(frame, "p90_us")["title"] == "p90 (ms)"
    drawn = finite(frame["median_us"], scale_of(frame, "median_us"))
    assert drawn == pytest.approx([us / 10.0 for us in LATENCIES])
    assert scale_of(frame, "n_subgraphs") == 1
