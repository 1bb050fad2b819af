"""What the explorer shows and does, in the kernel: no browser is needed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from widgets.hand_sweeps import ALONE, NASTY, SLOW, SPLIT, failed_row, small_sweep

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.statistics import Series
from hetero_lab.widgets.explorer.figures import points_figure
from hetero_lab.widgets.explorer.state import ExplorerState, matching, title_of


def labels(exploring):
    return list(exploring.shown["label"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("   ", [SPLIT, ALONE, SLOW]),
        ("cpu", [SPLIT, ALONE]),
        ("hetero acc", [SPLIT]),
        ("n_subgraphs<2", [ALONE]),
        ("acc  n_subgraphs<=3 ratio>0.5 executor!=parallel", [SPLIT]),
        ("n_subgraphs>=3 median_us<150", [SPLIT]),
        ("label=CPU", [ALONE]),
        ("label!=CPU", [SPLIT, SLOW]),
        ("ratio=2", [SLOW]),
    ],
)
def test_rows_that_match(text, expected):
    exploring = ExplorerState(small_sweep(failed=0))
    assert list(matching(exploring.frame, text)["label"]) == expected
    exploring.choose(group="none")
    exploring.choose(filter=text)
    assert labels(exploring) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_subgraph<2", "no column 'n_subgraph'.*Did you mean 'n_subgraphs'"),
        ("median_us<fast", "median_us holds numbers"),
        ("label<a", "label holds text"),
        ("nothing of that", "No measured row matches"),
    ],
)
def test_a_wrong_filter_says_why_and_changes_nothing(text, said):
    exploring = ExplorerState(small_sweep())
    exploring.choose(filter="cpu")
    before = exploring.choice
    with pytest.raises(ArgumentError, match=said):
        exploring.choose(filter=text)
    assert exploring.choice == before


def test_axes_are_columns_of_numbers():
    exploring = ExplorerState(small_sweep())
    assert {"median_us", "n_subgraphs", "boundary_bytes", "ratio", "share ACC"} <= set(
        exploring.axes
    )
    assert not {"label", "status", "baseline", "reference", "sustained_us"} & set(exploring.axes)
    exploring.choose(x="boundary_bytes", y="ratio")
    assert (exploring.choice.x, exploring.choice.y) == ("boundary_bytes", "ratio")
    with pytest.raises(ArgumentError, match="no axis 'label'"):
        exploring.choose(x="label", y="ratio")
    assert exploring.choice.x == "boundary_bytes"


def test_shares_and_devices_of_three_rows():
    frame = ExplorerState(small_sweep()).frame.set_index("label")
    shares = [(frame.loc[n, "share ACC"], frame.loc[n, "mostly on"]) for n in (SPLIT, ALONE)]
    assert shares == [(75.0, "ACC"), (0.0, "CPU")]
    assert math.isnan(frame.loc["broken 0", "share ACC"])


@pytest.mark.parametrize(
    ("column", "title"),
    [
        ("median_us", "median (µs)"), ("boundary_bytes", "boundary (bytes)"),
        ("compile_ms", "compile (ms)"), ("n_subgraphs", "number of subgraphs"),
        ("ratio", "ratio to the reference"), ("throughput_per_s", "throughput (1/s)"),
        ("share ACC", "share of the ops on ACC (%)"),
    ],
)  # fmt: skip
def test_titles_have_units(column, title):
    assert title_of(column) == title


def test_points_have_groups_and_colours_of_devices():
    exploring = ExplorerState(small_sweep())
    figure = points_figure(exploring)
    shown = {t.name: (t.marker.color, list(t.customdata), list(t.x)) for t in figure.data[:-1]}
    assert shown == {
        "mostly on ACC (emulated on CPU)": ("#E69F00", [SPLIT, SLOW], [3, 3]),
        "mostly on CPU": ("#0072B2", [ALONE], [1]),
    }
    assert figure.layout.yaxis.title.text == "median (µs)"
    exploring.choose(group="n_subgraphs")
    names = [trace.name for trace in points_figure(exploring).data[:-1]]
    assert names == ["n_subgraphs 1", "n_subgraphs 3"]
    exploring.choose(group="none")
    assert len(points_figure(exploring).data) == 2


def test_what_is_unknown_or_without_end_can_be_sent_to_the_browser():
    sweep = small_sweep()
    once, paired, alone, *failed = sweep.rows
    rows = (
        replace(once, series=Series({(0, 0): 100.0}, {(0, 0): 100.0}, once.series.noise)),
        paired,
        replace(alone, series=Series(alone.series.ours, {}, alone.series.noise)),  # it has no ratio
    )
    exploring = ExplorerState(replace(sweep, rows=(*rows, *failed)))
    exploring.choose(group="none")
    exploring.choose(a=SLOW)
    exploring.choose(x="ratio", y="ratio")
    points, rings = points_figure(exploring).data
    assert list(points.y) == [1.0, 1.5, None]
    assert list(points.error_y.array)[::2] == [0.0, 0.0]
    assert list(rings.x) == [None]
    json.dumps([points.to_plotly_json(), rings.to_plotly_json()], allow_nan=False)


def test_a_and_b_are_ringed():
    exploring = ExplorerState(small_sweep())
    exploring.choose(b=SLOW)
    rings = points_figure(exploring).data[-1]
    assert list(rings.text) == ["A", "B"]
    assert list(rings.y) == [exploring.frame["median_us"][0], exploring.frame["median_us"][2]]


def test_two_rows_are_compared():
    exploring = ExplorerState(small_sweep())
    assert exploring.difference() is None
    exploring.choose(b=ALONE)
    found = exploring.difference()
    assert set(found.ops["op"]) == {"matmul", "relu", "add"}
    assert found.timed.difference_us == pytest.approx(0.5 * found.timed.before_us, rel=1e-6)
    assert found.emulated == {"ACC": "CPU"}
    exploring.choose(b="")
    assert exploring.difference() is None


def test_a_row_that_failed_cannot_be_chosen():
    exploring = ExplorerState(small_sweep())
    with pytest.raises(ArgumentError, match="'broken 0' was not measured: compile failed"):
        exploring.choose(a="broken 0")
    with pytest.raises(ArgumentError, match="no row 'CPUU'"):
        exploring.choose(b="CPUU")
    assert exploring.choice.a == SPLIT


def test_something_else_is_refused():
    with pytest.raises(ArgumentError, match=r"hetero_lab\.read_sweep"):
        hl.SweepExplorer({"rows": 1})


def open_tab(explorer, name):
    tab = explorer.tab
    tab.selected_index = [tab.get_title(i) for i in range(len(tab.children))].index(name)
    return tab.children[tab.selected_index].children


def click(trace, place):
    """Click as plotly does it: the message of the browser goes to the trace's handlers."""
    from plotly.callbacks import InputDeviceState, Points

    points = Points([place], [trace.x[place]], [trace.y[place]], trace.name, 0)
    trace._dispatch_on_click(points, InputDeviceState())


def test_a_click_shows_graph_timeline_and_counters():
    explorer = hl.SweepExplorer(small_sweep())
    click(explorer.points.children[0].data[0], 1)
    assert explorer.exploring.choice.a == SLOW
    assert explorer.controls.a.value == SLOW
    (graph,) = explorer.graph.place.children
    assert graph.layout.title.text.startswith("small on slow")
    (lanes,) = open_tab(explorer, "Timeline")
    assert "Timeline of slow" in lanes.layout.title.text
    bars, listed = open_tab(explorer, "Counters")
    assert bars.layout.xaxis.title.text == "time (µs)"
    assert "matmul" in listed.value


def test_a_click_can_choose_b_and_compares():
    explorer = hl.SweepExplorer(small_sweep())
    (said,) = open_tab(explorer, "Compare A and B")
    assert "Choose two different placements" in said.value
    explorer.controls.click.value = "b"
    click(explorer.points.children[0].data[1], 0)
    assert (explorer.exploring.choice.a, explorer.exploring.choice.b) == (SPLIT, ALONE)
    words, waterfall, _, moved = explorer.tab.children[3].children
    assert "CPU" in words.value
    assert waterfall.data
    assert "matmul" in moved.value


def test_a_row_without_counters_says_so():
    explorer = hl.SweepExplorer(small_sweep())
    explorer.select(ALONE)
    (said,) = open_tab(explorer, "Timeline")
    assert "counters=True" in said.value


def test_controls_and_python_agree():
    explorer = hl.SweepExplorer(small_sweep())
    explorer.controls.filter.value = "cpu"
    assert [len(t.x) for t in explorer.points.children[0].data[:-1]] == [1, 1]
    explorer.choose_axes("boundary_bytes", "ratio")
    assert (explorer.controls.x.value, explorer.controls.y.value) == ("boundary_bytes", "ratio")
    explorer.controls.group.value = "none"
    assert explorer.exploring.choice.group == "none"
    explorer.controls.filter.value = "n_subgraph<2"
    assert "Did you mean &#x27;n_subgraphs&#x27;" in explorer.message
    assert explorer.exploring.choice.filter == "cpu"
    explorer.filter("")
    assert explorer.message == ""
    assert explorer.controls.filter.value == ""


def test_a_sweep_with_failed_rows_only_shows_a_message():
    explorer = hl.SweepExplorer(small_sweep(measured=False, failed=2))
    assert "None of the 2 placements was measured" in explorer.message
    listed = explorer.children[-1].value
    assert listed.count("no kernel") == 2
    explorer.filter("anything")  # nothing to filter, nothing breaks
    explorer.select("broken 0")
    assert "was not measured" in explorer.message


def test_a_row_without_accuracy_was_measured():
    sweep = small_sweep()
    sick = replace(sweep.rows[2], status="accuracy failed", detail="no output 'digit'")
    explorer = hl.SweepExplorer(replace(sweep, rows=(*sweep.rows[:2], sick, sweep.rows[3])))
    not_measured, not_evaluated = [child.value for child in explorer.children[-2:]]
    assert "Not measured: 1<" in not_measured
    assert "broken 0" in not_measured
    assert "accuracy failed" not in not_measured
    assert "Measured, but without accuracy: 1<" in not_evaluated
    assert "accuracy failed" in not_evaluated
    assert "no kernel" not in not_evaluated
    explorer.select(SLOW)  # it has a latency like any other
    assert explorer.message == ""
    assert explorer.exploring.choice.a == SLOW


def test_an_empty_sweep_shows_a_message():
    assert "has no rows" in hl.SweepExplorer(small_sweep(measured=False, failed=0)).message


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
def test_names_are_shown_as_text(name):
    sweep = small_sweep(nasty=name)
    broken = failed_row(f"broken {name}", detail=name)
    explorer = hl.SweepExplorer(
        type(sweep)((*sweep.rows, broken), name, sweep.environment, (name,))
    )
    explorer.compare_with(ALONE)
    for tab in ("Counters", "Compare A and B", "Rows"):
        open_tab(explorer, tab)
    explorer.filter(f"{name}<1")
    said = [w.value for w in walk(explorer) if type(w).__name__ == "HTML"]
    for text in said:
        assert not any(bad in text for bad in ("<script", "<img", "<a "))
    assert any("broken" in text for text in said)


def walk(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def test_a_stored_sweep_of_the_real_runtime(tmp_path):
    hl.emulate("EXACC", unsupported={"Softmax", "Concat"})
    hl.sweep(
        hl.load("digits_inception"), ["HETERO:EXACC,CPU", "CPU"], store=tmp_path / "s", turns=2,
        isolate=False, baselines=False, progress=False,
    )  # fmt: skip
    explorer = hl.SweepExplorer(hl.read_sweep(tmp_path / "s"))
    assert explorer.message == ""
    for tab in ("Graph", "Timeline", "Counters", "Rows"):
        assert open_tab(explorer, tab)
    explorer.compare_with("CPU")
    assert "EXACC" in open_tab(explorer, "Compare A and B")[0].value
    assert len(open_tab(explorer, "Compare A and B")) == 4
