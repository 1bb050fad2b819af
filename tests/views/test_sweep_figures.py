"""What the figures of a sweep show, against numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hand_made import small_profile
from widgets.hand_sweeps import ALONE, SLOW, SPLIT, measured_row, small_sweep

from hetero_lab.statistics import Series
from hetero_lab.views.latency_split import splits
from hetero_lab.views.ranking_bars import latency_ranking, ranked_rows
from hetero_lab.views.structure_scatter import placement_latency, points

# Twelve samples each: 100 to 105 µs, 150 to 156 and 200 to 207.
MEDIANS = [102.5, 153.0, 203.5]


def test_rows_are_ranked_from_fast_to_slow():
    sweep = small_sweep()
    sweep = replace(sweep, rows=sweep.rows[::-1])
    rows = ranked_rows(sweep)
    assert [(r.label, r.median_us, r.group, r.n_subgraphs) for r in rows] == [
        (SPLIT, 102.5, 1, 3), (ALONE, 153.0, 2, 1), (SLOW, 203.5, 3, 3),
    ]  # fmt: skip
    assert all(r.low_us <= r.median_us <= r.high_us for r in rows)
    figure = latency_ranking(sweep)
    assert list(figure.data[0].x) == MEDIANS
    assert figure.layout.xaxis.title.text == "median latency (µs)"
    assert len(set(figure.data[0].marker.color[:2])) == 2  # they can be told apart
    assert "could show: " in figure.layout.title.subtitle.text


@pytest.mark.parametrize(("n_rows", "n_turns"), [(1, 3), (3, 1)])
def test_a_ranking_of_too_little_has_no_infinite_numbers(n_rows, n_turns):
    sweep = small_sweep(failed=0)
    rows = []
    for row in sweep.rows[:n_rows]:
        ours, reference = (
            dict(list(levels.items())[:n_turns])
            for levels in (row.series.ours, row.series.reference)
        )
        rows.append(replace(row, series=Series(ours, reference)))
    figure = latency_ranking(replace(sweep, rows=tuple(rows)))
    assert "too little to tell placements apart" in figure.layout.title.subtitle.text
    assert "inf%" not in figure.to_json()


def test_points_of_structure_and_latency():
    found = points(small_sweep())
    assert [(p.label, p.n_subgraphs, p.boundary_bytes, p.median_us) for p in found] == [
        (SPLIT, 3, 64, 102.5), (ALONE, 1, 0, 153.0), (SLOW, 3, 64, 203.5),
    ]  # fmt: skip
    assert [(p.share("ACC"), p.share("CPU")) for p in found] == [
        (0.75, 0.25), (0.0, 1.0), (0.75, 0.25),
    ]  # fmt: skip
    figure = placement_latency(small_sweep(), "ACC")
    shown = {t.name: (list(t.x), list(t.y)) for t in figure.data}
    assert shown == {
        "mostly ACC (emulated on CPU)": ([0.75, 0.75], [102.5, 203.5]),
        "mostly CPU": ([0.0], [153.0]),
    }


def test_where_three_latencies_go():
    sweep = small_sweep()
    fast = measured_row("fast", small_profile(), 0.1)  # its median is 11.6 µs
    found = splits(replace(sweep, rows=(*sweep.rows, fast)))
    # Row CPU has no counters; those of the others are 10 + 5 + 3 of ops, 2 + 1 of reorders.
    assert [(s.label, s.ops_us, s.reorders_us, s.exceeds) for s in found] == [
        (SPLIT, 18.0, 3.0, False), (SLOW, 18.0, 3.0, False), ("fast", 18.0, 3.0, True),
    ]  # fmt: skip
    assert [s.rest_us for s in found] == [81.5, 182.5, 0.0]
