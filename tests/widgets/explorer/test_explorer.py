"""What the explorer shows and does, in the kernel: no browser is needed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from slices import sliced
from small_models import convolutions
from views.hand_made import NASTY
from widgets.hand_sweeps import ALONE, LEVELS, SLOW, SPLIT, big_sweep, failed_row, small_sweep

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.intervals import Series
from hetero_lab.views.sweep_figures import title_of
from hetero_lab.widgets.explorer.explorer import points_figure, table_of
from hetero_lab.widgets.explorer.explorer_state import ExplorerState


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("   ", [SPLIT, ALONE, SLOW]),
        ("cpu", [SPLIT, ALONE, SLOW]),  # also those that use it
        ("acc", [SPLIT, SLOW]),
        ("latency<150 subgraphs>=3", [SPLIT]),
        ("Latency>0.15ms", [ALONE, SLOW]),
        ("hetero acc", [SPLIT]),
        ("n_subgraphs<2", [ALONE]),
        ("acc  n_subgraphs<=3 ratio<1.5 executor!=parallel", [SPLIT]),
        ("n_subgraphs>=3 median_us<150", [SPLIT]),
        ("label=CPU", [ALONE]),
        ("label!=CPU", [SPLIT, SLOW]),
        ("ratio=2", [SLOW]),
    ],
)
def test_rows_that_match(text, expected):
    exploring = ExplorerState(small_sweep(failed=0))
    exploring.choose(filter=text)
    assert list(exploring.shown["label"]) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_subgraph<2", "no column 'n_subgraph'.*Did you mean 'n_subgraphs'"),
        ("latncy<2", "no column 'latncy'.*Did you mean 'latency'"),
        ("median_us<fast", "median_us holds numbers"),
        ("label<a", "label holds text"),
        ("nothing of that", "No measured row matches.*; 1 of 3 are still shown"),
    ],
)
def test_a_wrong_filter_says_why_and_changes_nothing(text, said):
    exploring = ExplorerState(small_sweep())
    exploring.choose(filter="label=CPU")
    before = exploring.filter
    with pytest.raises(ArgumentError, match=said):
        exploring.choose(filter=text)
    assert exploring.filter == before


def test_axes_are_columns_of_numbers_and_their_titles_have_units():
    exploring = ExplorerState(small_sweep())
    axes = set(exploring.axes)
    assert {"median_us", "n_subgraphs", "boundary_bytes", "ratio", "share ACC"} <= axes
    assert not {"label", "status", "baseline", "reference", "sustained_us"} & axes
    exploring.choose(x="boundary_bytes", y="ratio")
    with pytest.raises(ArgumentError, match="no axis 'label'"):
        exploring.choose(x="label", y="ratio")
    assert (exploring.x, exploring.y) == ("boundary_bytes", "ratio")
    titles = {
        "median_us": "median (µs)", "boundary_bytes": "boundary (bytes)",
        "compile_ms": "compile (ms)", "n_subgraphs": "number of subgraphs",
        "ratio": "ratio to the reference", "throughput_per_s": "throughput (1/s)",
        "share ACC": "share of the ops on ACC (%)",
    }  # fmt: skip
    assert {column: title_of(column) for column in titles} == titles


def test_points_have_groups_and_colours_of_devices():
    exploring = ExplorerState(small_sweep())
    figure = points_figure(exploring)
    shown = {t.name: (t.marker.color, list(t.customdata), list(t.x)) for t in figure.data[:-1]}
    assert shown == {
        "mostly on ACC (emulated on CPU)": ("#E69F00", [SPLIT, SLOW], [3, 3]),
        "mostly on CPU": ("#0072B2", [ALONE], [1]),
    }
    assert figure.layout.yaxis.title.text == "median (µs)"
    exploring.choose(group="n_subgraphs", b=SLOW)
    *groups, rings = points_figure(exploring).data
    assert [trace.name for trace in groups] == ["n_subgraphs 1", "n_subgraphs 3"]
    assert list(rings.text) == ["A", "B"]
    assert list(rings.y) == [exploring.frame["median_us"][0], exploring.frame["median_us"][2]]
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
    exploring.choose(group="none", a=SLOW, x="ratio", y="ratio")
    points, rings = points_figure(exploring).data
    assert list(points.y) == [1.0, 1.5, None]
    assert list(points.error_y.array)[::2] == [0.0, 0.0]
    assert list(rings.x) == [None]
    json.dumps([points.to_plotly_json(), rings.to_plotly_json()], allow_nan=False)


def test_two_rows_are_compared_unless_one_failed():
    exploring = ExplorerState(small_sweep())
    found = exploring.difference(SPLIT, ALONE)
    assert set(found.ops["op"]) == {"matmul", "relu", "add"}
    assert found.timed.difference_us == pytest.approx(0.5 * found.timed.before_us, rel=1e-6)
    assert found.emulated == {"ACC": "CPU"}
    assert exploring.difference(SPLIT, "") is None
    with pytest.raises(ArgumentError, match="'broken 0' was not measured: compile failed"):
        exploring.choose(a="broken 0")
    with pytest.raises(ArgumentError, match="no row 'CPUU'"):
        exploring.choose(b="CPUU")
    assert exploring.a == SPLIT


def test_the_table_has_the_rows_by_rank_with_units_and_what_to_sort_by():
    exploring = ExplorerState(small_sweep())
    texts = {heading: texts for heading, texts, _ in table_of(exploring)}
    assert [texts[name] for name in ("rank", "placement", "finding")] == [
        ["1", "2", "3"], [SPLIT, ALONE, SLOW], ["best", "slower", "slower"],
    ]  # fmt: skip
    assert texts["latency  [95 %]"][0].startswith("102 µs")
    assert table_of(exploring)[0][2] == [1, 2, 3]
    exploring.choose(filter="rank>1")
    assert next(texts for heading, texts, _ in table_of(exploring)) == ["2", "3"]


def of_another_day(sweep):
    there = replace(
        sweep.environment, host="elsewhere", openvino_version="2027.0", measured_at="2027-01-01"
    )
    reference = {(0, n): us + 0.1 for n, us in enumerate(LEVELS)}
    rows = [replace(row, series=replace(row.series, reference=reference)) for row in sweep.rows]
    return replace(sweep, rows=tuple(rows), environment=there, clock_mhz=2100.0)


def test_two_runs_stand_side_by_side_with_what_differs_between_the_machines():
    now = small_sweep()
    explorer = hl.SweepExplorer(now, of_another_day(now))
    exploring = explorer.exploring
    assert list(exploring.shown["label"]) == [
        SPLIT, ALONE, SLOW, *(f"before: {n}" for n in (SPLIT, ALONE, SLOW)),
    ]  # fmt: skip
    assert exploring.group == "run"
    facts = exploring.comparison.machines.set_index("fact")
    assert dict(facts["before"]) == {
        "measured at": "2027-01-01", "host": "elsewhere", "clock": "2,100 MHz",
        "OpenVINO": "2027.0",
    }  # fmt: skip
    assert facts["after"]["host"] == now.environment.host
    shown = open_tab(explorer, "Before and after")
    assert "were not measured in turn" in shown.value
    assert "3 undecided. Not measured in turn." in explorer.children[2].value
    explorer.compare_with(f"before: {SPLIT}")
    assert "not measured in the same turns" in texts_of(open_tab(explorer, "Compare A and B"))


@pytest.mark.parametrize("made", [big_sweep, lambda n: small_sweep(nasty="other")])
def test_two_runs_that_share_no_placement_are_refused(made):
    other = made(60)
    rows = [replace(row, label=SPLIT) for row in other.rows]  # of another model
    if made is not big_sweep:
        rows = [row for row in other.rows if row.label == "other"]
    with pytest.raises(ArgumentError, match=r"No label was measured in both .* the same model"):
        hl.SweepExplorer(small_sweep(), replace(other, rows=tuple(rows)))


def open_tab(explorer, name):
    explorer.tab.selected_index = explorer.tab.titles.index(name)
    return explorer.tab.children[explorer.tab.selected_index]


def texts_of(pane):
    return "".join(child.value for child in pane.children if type(child).__name__ == "HTML")


def title_in(figure):
    return re.sub("<[^>]*>", "", json.loads(figure.drawn)["layout"]["title"]["text"])


def click(figure, label, shift=False):
    """Click as the browser does it."""
    figure._handle_custom_msg({"chosen": label, "shift": shift}, [])


def test_a_click_shows_graph_timeline_and_counters():
    explorer = hl.SweepExplorer(small_sweep())
    points, graph = explorer.points.model_id, explorer.graph.figure.model_id
    click(explorer.points, SLOW)
    assert explorer.exploring.a == SLOW
    assert explorer.rows.a == SLOW
    assert title_in(explorer.graph.figure).startswith("small on slow: 205 µs")
    assert (points, graph) == (explorer.points.model_id, explorer.graph.figure.model_id)
    _, lanes, _ = open_tab(explorer, "Timeline").children
    assert "Timeline of slow" in title_in(lanes)
    _, bars, listed = open_tab(explorer, "Counters").children
    assert "time (µs)" in json.loads(bars.drawn)["layout"]["xaxis"]["title"]["text"]
    assert "matmul" in listed.value


def test_shift_and_a_click_choose_b_which_is_compared():
    explorer = hl.SweepExplorer(small_sweep())
    assert "Choose two different placements" in texts_of(open_tab(explorer, "Compare A and B"))
    click(explorer.points, ALONE, shift=True)
    assert (explorer.exploring.a, explorer.exploring.b) == (SPLIT, ALONE)
    words, waterfall, tables = open_tab(explorer, "Compare A and B").children
    assert "CPU" in words.value
    assert json.loads(waterfall.drawn)["data"]
    assert "matmul" in tables.value
    explorer.rows.b = ""  # in the table, a second click on B ends it
    assert waterfall.drawn == ""


def test_a_row_without_counters_says_so():
    explorer = hl.SweepExplorer(small_sweep())
    explorer.select(ALONE)
    pane = open_tab(explorer, "Timeline")
    assert "counters=True" in texts_of(pane)
    assert pane.children[1].drawn == ""
    # Of a recording, it does not advise what cannot be done.
    label = f"{ALONE} (recorded)"
    rows = tuple(replace(row, label=f"{row.label} (recorded)") for row in small_sweep().rows)
    explorer = hl.SweepExplorer(replace(small_sweep(), rows=rows, reference=label))
    explorer.select(label)
    for tab in ("Timeline", "Counters"):
        assert "The recording holds no counters." in texts_of(open_tab(explorer, tab))


def test_controls_and_python_agree():
    explorer = hl.SweepExplorer(small_sweep())
    explorer.controls.filter.value = "median_us<160"
    assert explorer.rows.labels == [SPLIT, ALONE]
    assert title_in(explorer.points) == "2 of 3 measured placements"
    explorer.choose_axes("boundary_bytes", "ratio")
    assert (explorer.controls.x.value, explorer.controls.y.value) == ("boundary_bytes", "ratio")
    explorer.controls.group.value = "none"
    assert explorer.exploring.group == "none"
    explorer.controls.filter.value = "n_subgraph<2"
    assert "Did you mean &#x27;n_subgraphs&#x27;" in explorer.message
    assert explorer.exploring.filter == "median_us<160"
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
    assert ("broken 0" in not_measured, "accuracy failed" in not_measured) == (True, False)
    assert "Measured, but without accuracy: 1<" in not_evaluated
    assert ("accuracy failed" in not_evaluated, "no kernel" in not_evaluated) == (True, False)
    explorer.select(SLOW)  # it has a latency like any other
    assert explorer.message == ""
    assert explorer.exploring.a == SLOW


def test_an_empty_sweep_shows_a_message_and_something_else_is_refused():
    assert "has no rows" in hl.SweepExplorer(small_sweep(measured=False, failed=0)).message
    with pytest.raises(ArgumentError, match=r"hetero_lab\.read_sweep"):
        hl.SweepExplorer({"rows": 1})


@pytest.mark.parametrize("name", sliced(NASTY, quick=3), ids=range(len(NASTY)))
def test_names_are_shown_as_text(name):
    sweep = small_sweep(nasty=name)
    broken = failed_row(f"broken {name}", detail=name)
    rows = (*sweep.rows, broken)
    explorer = hl.SweepExplorer(replace(sweep, rows=rows, reference=name, notes=(name,)))
    explorer.compare_with(ALONE)
    for tab in ("Counters", "Compare A and B"):
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
    hl.emulate("EXACC", unsupported={"Softmax"})
    hl.sweep(
        convolutions(16), ["HETERO:EXACC,CPU", "CPU"], store=tmp_path / "s", turns=2,
        isolate=False, baselines=False, progress=False,
    )  # fmt: skip
    explorer = hl.SweepExplorer(hl.read_sweep(tmp_path / "s"))
    assert explorer.message == ""
    explorer.select("HETERO:EXACC,CPU")
    explorer.compare_with("CPU")
    for tab in ("Timeline", "Counters", "Compare A and B"):
        assert "HETERO:EXACC,CPU" in open_tab(explorer, tab).children[1].drawn, tab
    assert "EXACC" in texts_of(open_tab(explorer, "Compare A and B"))
