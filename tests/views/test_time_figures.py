"""Latency samples, the time of each subgraph, where the latency goes, and when subgraphs run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views.hand_made import counter, small_profile
from widgets.hand_sweeps import SLOW, SPLIT, measured_row, small_sweep

import hetero_lab as hl
from hetero_lab.errors import MeasurementError
from hetero_lab.intervals import Latency
from hetero_lab.placement.partition import Partition, Subgraph
from hetero_lab.planning.schedules import Schedule, SchedulePlan
from hetero_lab.planning.timeline import Span
from hetero_lab.tables import time_text
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
    for samples in ((50.0, 50.0, 50.0), (50.0,)):  # they have no range
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


def test_the_axis_has_its_unit_and_each_row_its_numbers():
    figure = hl.views.latency_samples([small_profile(), with_samples(100.0, 110.0)])
    assert "not measured in turn" in figure.layout.title.subtitle.text
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


# relu feeds softmax (1) and add (2), softmax feeds add; 7 starts while 6 is in flight.
ALONE = (
    Span(5, 0, "ACC", 1.0, 1.00001),
    Span(5, 1, "CPU", 1.00002, 1.00005),
    Span(5, 2, "ACC", 1.00006, 1.00007),
)
BESIDE = (
    Span(6, 0, "ACC", 2.0, 2.00001),
    Span(7, 0, "ACC", 2.00002, 2.00003),
    Span(6, 1, "CPU", 2.00002, 2.00005),
    Span(6, 2, "ACC", 2.00006, 2.00007),
    Span(7, 1, "CPU", 2.00005, 2.00009),
    Span(7, 2, "ACC", 2.00010, 2.00011),
)


def test_measured_runs_are_drawn_where_they_were():
    figure = hl.views.timeline(small_profile(spans=ALONE, executor="parallel"))
    assert figure.layout.title.text == "Timeline of HETERO:ACC,CPU, measured"
    assert figure.layout.title.subtitle.text == "the request of median duration"
    acc, cpu, path = figure.data
    assert list(acc.base) == pytest.approx([0, 60])
    assert list(acc.x) == pytest.approx([10, 10])
    assert list(acc.text) == ["0", "2"]
    assert list(cpu.base) == pytest.approx([20])
    assert list(cpu.x) == pytest.approx([30])
    assert path.name == "critical path"
    assert list(path.x) == pytest.approx([0, 10, 20, 50, 60, 70])
    assert [round(y) for y in path.y] == [0, 0, 1, 1, 0, 0]
    assert "on the critical path" in acc.hovertext[0]


def test_what_is_not_critical_is_faded():
    spans = (
        Span(0, 0, "ACC", 0.0, 4e-5),
        Span(0, 1, "CPU", 4e-5, 5e-5),
        Span(0, 2, "ACC", 6e-5, 7e-5),
    )
    *lanes, _path = hl.views.timeline(small_profile(spans=spans)).data
    assert not any(colour.endswith(", 0.4)") for lane in lanes for colour in lane.marker.color)
    # Now add has its data at 50 µs, but its device ran another request's subgraph until 60.
    late = (*spans, Span(1, 0, "ACC", 4e-5, 6e-5), Span(1, 1, "CPU", 2e-4, 3e-4))
    acc = hl.views.timeline(small_profile(spans=late)).data[0]
    assert [colour.endswith(", 0.4)") for colour in acc.marker.color] == [False, True, True]


def test_requests_beside_are_there_without_a_number():
    figure = hl.views.timeline(small_profile(spans=BESIDE))
    acc, _cpu, _path = figure.data
    assert sorted(acc.text) == ["", "0", "2"]
    assert any("request +1" in text for text in acc.hovertext)
    assert ", and 1 other that was in flight" in figure.layout.title.subtitle.text


def test_without_spans_it_is_reconstructed():
    figure = hl.views.timeline(small_profile())
    assert "reconstructed from counters" in figure.layout.title.subtitle.text
    assert [list(trace.base) for trace in figure.data] == [[0, 17], [12]]
    assert all(not str(trace.name).startswith("critical") for trace in figure.data)


def test_spans_or_counters_are_needed():
    for view in (hl.views.timeline, hl.views.time_by_subgraph, hl.views.time_by_op_type):
        with pytest.raises(MeasurementError, match="counters=True"):
            view(small_profile(counters=()))
    assert "timeline" in hl.views.gallery(small_profile(counters=(), spans=ALONE))


def test_a_predicted_schedule_is_drawn_as_it_is_planned():
    runs = (("ACC", 5e-6, 25e-6), ("CPU", 5e-6, 15e-6), ("ACC", 25e-6, 40e-6))
    entries = tuple(Span(0, number, *run) for number, run in enumerate(runs))
    subgraphs = tuple(Subgraph(d, (d,) * n) for d, n in (("ACC", 3), ("CPU", 1), ("ACC", 2)))
    made = SchedulePlan(
        small_profile().affinity,
        Schedule(("ACC", "CPU"), Partition(subgraphs, ()), entries, (entries[0], entries[2])),
        "greedy, improved",
        (),
        {"ACC": "CPU"},
    )
    figure = hl.views.schedule(made)
    assert figure.layout.title.text == "Predicted schedule, 40 µs"
    assert figure.layout.title.subtitle.text == "by greedy, improved; idle µs: ACC 5, CPU 30"
    acc, cpu, path = figure.data
    assert "emulated on CPU" in acc.name
    assert list(acc.base) == [5, 25]
    assert list(acc.x) == [20, 15]
    assert list(cpu.x) == [10]
    assert list(path.x) == [5, 25, 25, 40]
    assert list(hl.views.gallery(made)) == ["schedule"]
