"""Op types by device, predictions beside measurements, and the waterfall of a difference."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from costs.test_difference import MEASURED, chain_costs, chain_difference
from hand_costs import flat_costs
from views.hand_made import small_graph, small_profile

import hetero_lab as hl
from hetero_lab.costs.cost_model import CostModel, Unit, ValidationRow
from hetero_lab.errors import ArgumentError
from hetero_lab.views.cost_figures import REORDERS, moved_types, steps, type_cells, type_times


def support_table():
    rows = [("a", "Relu", True, True), ("b", "Softmax", False, True), ("c", "Relu", False, True)]
    return pd.DataFrame(rows, columns=["op", "op_type", "ACC", "CPU"])


def small_costs():
    units = (
        Unit(("matmul", "relu"), (8.0, 20.0), (0.75, 0.25)),
        Unit(("softmax",), (None, 5.0)),
        Unit(("add",), (3.0, 4.0)),
    )
    return replace(flat_costs(small_graph()), units=units)


def cells_of(*sources):
    """Return how many ops are supported, of how many, and their time, by op type and device."""
    return {
        (r["op_type"], r["device"]): (
            r["n_supported"], r["n_ops"], r["time_us"] if r["time_us"] >= 0 else None
        )
        for r in type_cells(*sources).to_dict("records")
    }  # fmt: skip


def test_support_of_three_rows_and_the_times_of_a_profile():
    counts = {
        ("Relu", "ACC"): (1, 2, None), ("Relu", "CPU"): (2, 2, None),
        ("Softmax", "ACC"): (0, 1, None), ("Softmax", "CPU"): (1, 1, None),
    }  # fmt: skip
    assert cells_of(support_table()) == counts
    timed = cells_of(support_table(), small_profile())
    assert timed == {**counts, ("Softmax", "CPU"): (1, 1, 5.0)}
    assert next(iter(timed))[0] == "Relu"  # the most frequent type first
    with pytest.raises(ArgumentError, match=r"hetero_lab\.support"):
        hl.views.op_types_by_device(pd.DataFrame({"a": [1]}))


def test_a_unit_of_a_cost_model_is_divided_by_its_shares():
    assert cells_of(small_costs()) == {
        ("MatMul", "ACC"): (1, 1, 6.0), ("MatMul", "CPU"): (1, 1, 15.0),
        ("Relu", "ACC"): (1, 1, 2.0), ("Relu", "CPU"): (1, 1, 5.0),
        ("Softmax", "ACC"): (0, 1, None), ("Softmax", "CPU"): (1, 1, 5.0),
        ("Add", "ACC"): (1, 1, 3.0), ("Add", "CPU"): (1, 1, 4.0),
    }  # fmt: skip


def test_figures_of_op_types_have_colours_labels_and_units():
    assert type_times(small_profile()).to_numpy().tolist() == [
        ["MatMul", "ACC", 1, 10.0], ["Softmax", "CPU", 1, 5.0],
        ["Add", "ACC", 1, 3.0], [REORDERS, "ACC", 0, 3.0],
    ]  # fmt: skip
    bars = hl.views.time_by_op_type(small_profile())
    assert {t.name: (t.marker.color, t.marker.pattern.shape) for t in bars.data} == {
        "ACC (emulated on CPU)": ("#E69F00", "/"), "CPU": ("#0072B2", ""),
    }  # fmt: skip
    assert bars.layout.xaxis.title.text == "time (µs)"
    cells = hl.views.op_types_by_device(support_table(), small_profile())
    assert list(cells.layout.xaxis.ticktext) == ["ACC (emulated on CPU)", "CPU"]
    assert [row[0] for row in cells.data[1].text] == ["2 of 2", "1 of 1 · 5 µs"]
    # As it is drawn, each cell is a text of its own.
    assert cells.to_dict()["data"][1]["text"][1][0].endswith(">1 of 1 · 5 µs</span>")
    assert "op_types_by_device" in hl.views.gallery(small_costs())


def validated(*rows: tuple[str, float, float]) -> CostModel:
    return replace(chain_costs(), validation_rows=tuple(ValidationRow(*row) for row in rows))


def test_predictions_say_how_good_they_are():
    costs = validated(("<b>1</b>", 110.0, 100.0), ("2", 190.0, 200.0), ("3", 300.0, 300.0))
    figure = hl.views.predicted_measured(costs)
    # (10 % + 5 % + 0 %) / 3
    assert figure.layout.title.text == "Predicted, measured: MAPE 5.0%"
    points, diagonal = figure.data[-1], figure.data[0]
    assert list(points.x) == [100.0, 200.0, 300.0]
    assert list(points.y) == [110.0, 190.0, 300.0]
    assert "&lt;b&gt;1&lt;/b&gt;" in points.hovertext[0]
    assert "(+10.0%)" in points.hovertext[0]
    assert list(diagonal.x) == list(diagonal.y) == [84.0, 316.0]
    assert "(µs)" in figure.layout.xaxis.title.text
    assert "predicted_measured" in hl.views.gallery(costs)
    low, high = figure.layout.yaxis.range
    ends = zip(points.y, points.error_y.array, points.error_y.arrayminus, strict=True)
    assert all(low < y - down and y + up < high for y, up, down in ends)


def test_r2_is_left_out_where_it_is_not_defined():
    exact = [(str(n), 10.0 + n, 10.0 + n) for n in range(4)]
    for rows, has_r2 in (
        ([*exact, ("5", 20.0, 20.0)], True), (exact, False), ([("same", 10.0, 10.0)] * 5, False),
    ):  # fmt: skip
        title = hl.views.predicted_measured(validated(*rows)).layout.title.text
        assert "MAPE 0.0%" in title
        assert ("R² 1.000" in title, "R²" in title) == (has_r2, has_r2)


def test_what_was_not_validated_is_drawn_and_says_so():
    figure = hl.views.predicted_measured(chain_costs())
    assert "not validated" in figure.layout.title.text
    (note,) = figure.layout.annotations
    assert note.text == "Not validated: calibrate with a larger budget"
    assert len(figure.data[-1].x) == 0
    assert "predicted_measured" not in hl.views.gallery(chain_costs())  # nothing to look at


def test_steps_lead_from_a_to_b():
    found = steps(chain_difference(measurement=MEASURED))
    assert [(s.label, s.device, s.start_us, s.difference_us) for s in found] == [
        ("ops A → B", "B", 0.0, -15.0),
        ("lost fusion", "", -15.0, 0.7),
        ("subgraphs on A", "A", -14.3, 1.0),
        ("subgraphs on B", "B", -13.3, 2.0),
        ("boundaries A → B", "B", -11.3, 3.0),
        ("boundaries B → A", "A", -8.3, 3.0),
        ("predicted difference", "", 0.0, -5.3),
        ("measured difference", "", 0.0, -6.0),
    ]
    assert found[-1].interval_us == (-7.5, -4.5)
    assert found[0].details == ["'b' on B instead of A: −15.0 µs"]


def test_without_costs_or_profiles_there_are_no_steps_but_still_a_figure():
    unpriced = chain_difference(priced=False)
    assert steps(unpriced) == []
    figure = hl.views.difference(replace(unpriced, after=unpriced.before))
    assert list(figure.layout.yaxis.ticktext) == ["no op moves"]
    wide = replace(MEASURED, high_us=float("inf"))
    (only,) = steps(chain_difference(priced=False, measurement=wide))
    assert (only.kind, only.interval_us) == ("measured", None)


def test_bars_have_the_colour_of_the_device_that_does_the_work():
    assert moved_types(chain_difference()) == {("Relu", "B"): ["b"]}
    figure = hl.views.difference(chain_difference(emulated={"B": "CPU"}))
    legend = {t.name: t.marker.color for t in figure.data if t.showlegend is None}
    bars = [t for t in figure.data if t.type == "bar" and t.showlegend is False]
    assert set(legend) == {"A", "B (emulated on CPU)"}
    ops, moved = bars[0], bars[-1]
    assert ops.marker.color == moved.marker.color == legend["B (emulated on CPU)"]
    assert ops.marker.pattern.shape == "/"
    assert (list(ops.base), list(ops.x)) == ([0.0], [-15.0])
    assert list(moved.x) == [1]
    assert "µs" in figure.layout.xaxis.title.text


def test_the_page_of_a_difference(tmp_path):
    difference = chain_difference(measurement=MEASURED)
    assert list(hl.views.gallery(difference)) == ["difference"]
    hl.views.page(difference, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "From one to other" in text
    assert "After is predicted 5.30 µs faster" in text
