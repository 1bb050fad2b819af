"""Latency samples, the time of each subgraph, and where the latency goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views.hand_made import counter, small_profile
from widgets.hand_sweeps import SLOW, SPLIT, measured_row, small_sweep

import hetero_lab as hl
from hetero_lab.errors import MeasurementError
from hetero_lab.intervals import Latency
from hetero_lab.placement.partition import Partition, Subgraph
from hetero_lab.views.theme import time_text
from hetero_lab.views.time_figures import histograms, splits


def with_samples(*samples: float, label: str = "one"):
    return replace(small_profile(), latency=Latency((tuple(samples),)), label=label)


def test_counts_against_a_table_made_by_hand():
    # 100 to 108 in 60 bins is 0.14 a bin; the next round width is 0.2. 900 is far out.
    edges, (counts,) = histograms([small_profile()])
    assert edges[0] == 100.0
    assert edges[1] - edges[0] == pytest.approx(0.2)
    counted = {round(e, 1): n for e, n in zip(edges, counts, strict=False) if n}
    assert counted == {100.0: 1, 101.0: 1, 102.0: 2, 104.0: 1, 106.0: 1, 108.0: 1}


def test_profiles_share_their_bins_and_no_sample_is_lost():
    edges, counts = histograms([with_samples(10, 11, 12), with_samples(300, 310, 320, label="two")])
    assert [sum(each) for each in counts] == [3, 3]
    assert edges[0] <= 10
    assert edges[-1] > 320
    assert [len(each) for each in counts] == [len(edges) - 1] * 2


@pytest.mark.parametrize("samples", [(50.0, 50.0, 50.0), (50.0,)])
def test_samples_without_a_range(samples):
    _, (counts,) = histograms([with_samples(*samples)])
    assert sum(counts) == len(samples)


def test_placements_of_a_sweep_were_measured_in_turn():
    sweep = small_sweep()
    figure = hl.views.latency_samples(sweep)
    assert "not measured in turn" not in figure.layout.title.subtitle.text
    first = sweep.ranking.iloc[0]
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert texts[0].startswith(f"<b>{first['label']}</b>")
    assert texts[1].startswith(f"median {time_text(first['median_us'])}")
    apart = hl.views.latency_samples([small_profile(), small_profile()])
    assert "not measured in turn" in apart.layout.title.subtitle.text


def test_the_axis_has_its_unit_and_each_row_its_numbers():
    figure = hl.views.latency_samples([small_profile(), with_samples(100.0, 110.0)])
    assert figure.layout.xaxis.title.text == "latency (µs)"
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert texts[0].startswith("<b>HETERO:ACC,CPU</b>")
    assert "ACC (emulated on CPU)" in texts[0]
    assert "median 103 µs" in texts[1]
    assert "1 beyond the right edge" in texts[1]
    assert "median 105 µs" in texts[3]


def test_bars_have_the_colour_of_their_device_and_reorders_are_faded():
    figure = hl.views.time_by_subgraph(small_profile())
    shown = {t.name: (t.marker.color, t.marker.pattern.shape, list(t.x)) for t in figure.data}
    assert shown == {
        "ACC (emulated on CPU): ops": ("#E69F00", "/", [10.0, 3.0]),
        "ACC (emulated on CPU): reorders": ("rgba(230, 159, 0, 0.4)", "/", [2.0, 1.0]),
        "CPU: ops": ("#0072B2", "", [5.0]),
    }
    assert list(figure.layout.yaxis.ticktext) == ["0 · ACC", "1 · CPU", "2 · ACC"]
    assert [text.rpartition("<br>")[2] for text in figure.data[0].hovertext] == ["2 ops", "1 op"]


def test_many_subgraphs_have_thin_bars():
    names = [f"op{i}" for i in range(50)]
    profile = replace(
        small_profile(),
        partition=Partition(tuple(Subgraph("CPU", (n,)) for n in names), ()),
        counters=tuple(counter(i, "CPU", "op", n, 1.0 + i) for i, n in enumerate(names)),
    )
    figure = hl.views.time_by_subgraph(profile)
    assert list(figure.data[0].y) == list(range(50))
    assert not any(figure.layout.yaxis.ticktext)
    assert figure.layout.height < 1200


def test_without_counters_there_is_nothing_to_draw():
    with pytest.raises(MeasurementError, match="counters=True"):
        hl.views.time_by_subgraph(small_profile(counters=()))


def test_where_three_latencies_go():
    sweep = small_sweep()
    fast = measured_row("fast", small_profile(), 0.1)  # 10.25 µs
    found = splits(replace(sweep, rows=(*sweep.rows, fast)))
    # Row CPU has no counters; those of the others are 10 + 5 + 3 of ops, 2 + 1 of reorders.
    assert [
        (label, parts["ops_us"], parts["reorders_us"], parts["counters_exceed_latency"])
        for label, _, parts in found
    ] == [(SPLIT, 18.0, 3.0, False), (SLOW, 18.0, 3.0, False), ("fast", 18.0, 3.0, True)]
    assert [parts["rest_us"] for _, _, parts in found] == pytest.approx([81.5, 184.0, 0.0])
