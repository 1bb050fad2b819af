"""The timeline view: measured runs with their critical path, or what counters tell."""

from __future__ import annotations

import pytest
from views.hand_made import small_profile

import hetero_lab as hl
from hetero_lab.errors import MeasurementError
from hetero_lab.planning.schedules import Schedule, ScheduledTask, SchedulePlan
from hetero_lab.planning.timeline import Span
from hetero_lab.views.time_figures import bars

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
    found = bars(small_profile(spans=spans))
    assert [bar.critical for bar in found] == [True, True, True]
    # Now add has its data at 50 µs, but its device ran another request's subgraph until 60.
    late = (*spans, Span(1, 0, "ACC", 4e-5, 6e-5), Span(1, 1, "CPU", 2e-4, 3e-4))
    profile = small_profile(spans=late)
    acc = hl.views.timeline(profile).data[0]
    assert [colour.endswith(", 0.4)") for colour in acc.marker.color] == [False, True, True]


def test_requests_beside_are_there_without_a_number():
    profile = small_profile(spans=BESIDE)
    acc, _cpu, _path = hl.views.timeline(profile).data
    assert sorted(acc.text) == ["", "0", "2"]
    assert any("request +1" in text for text in acc.hovertext)
    assert "1 others" not in hl.views.timeline(profile).layout.title.subtitle.text
    assert "1 other that was" in hl.views.timeline(profile).layout.title.subtitle.text


def test_without_spans_it_is_reconstructed():
    figure = hl.views.timeline(small_profile())
    assert "reconstructed from counters" in figure.layout.title.subtitle.text
    assert [list(trace.base) for trace in figure.data] == [[0, 17], [12]]
    assert all(not str(trace.name).startswith("critical") for trace in figure.data)


def test_spans_or_counters_are_needed():
    with pytest.raises(MeasurementError, match="counters=True"):
        hl.views.timeline(small_profile(counters=()))
    assert "timeline" in hl.views.gallery(small_profile(counters=(), spans=ALONE))


def test_a_predicted_schedule_is_drawn_as_it_is_planned():
    entries = (
        ScheduledTask(0, "subgraph0", "ACC", 5.0, 25.0, 3),
        ScheduledTask(1, "subgraph1", "CPU", 5.0, 15.0, 1),
        ScheduledTask(2, "subgraph2", "ACC", 25.0, 40.0, 2),
    )
    made = SchedulePlan(
        small_profile().affinity,
        Schedule(("ACC", "CPU"), entries, (entries[0], entries[2])),
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
