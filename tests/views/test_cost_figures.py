from __future__ import annotations

import pandas as pd
import pytest
from views.hand_made import small_graph, small_profile

import hetero_lab as hl
from hetero_lab.costs.cost_model import BoundaryCost, CostModel, Unit
from hetero_lab.errors import ArgumentError, MeasurementError
from hetero_lab.views.op_type_figures import REORDERS, type_cells, type_times


def support_table():
    rows = [("a", "Relu", True, True), ("b", "Softmax", False, True), ("c", "Relu", False, True)]
    return pd.DataFrame(rows, columns=["op", "op_type", "ACC", "CPU"])


def costs():
    return CostModel(
        graph=small_graph(),
        devices=("ACC", "CPU"),
        units=(
            Unit(("matmul", "relu"), (8.0, 20.0), (0.75, 0.25)),
            Unit(("softmax",), (None, 5.0)),
            Unit(("add",), (3.0, 4.0)),
        ),
        boundaries={("ACC", "CPU"): BoundaryCost(1.0), ("CPU", "ACC"): BoundaryCost(1.0)},
        subgraph_us={"ACC": 1.0, "CPU": 1.0},
    )


def cells_of(*sources):
    """Return how many ops are supported, of how many, and their time, by op type and device."""
    rows = type_cells(*sources).to_dict("records")
    return {
        (r["op_type"], r["device"]): (
            r["n_supported"], r["n_ops"], r["time_us"] if r["time_us"] >= 0 else None
        )
        for r in rows
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


def test_a_unit_of_a_cost_model_is_divided_by_its_shares():
    assert cells_of(costs()) == {
        ("MatMul", "ACC"): (1, 1, 6.0), ("MatMul", "CPU"): (1, 1, 15.0),
        ("Relu", "ACC"): (1, 1, 2.0), ("Relu", "CPU"): (1, 1, 5.0),
        ("Softmax", "ACC"): (0, 1, None), ("Softmax", "CPU"): (1, 1, 5.0),
        ("Add", "ACC"): (1, 1, 3.0), ("Add", "CPU"): (1, 1, 4.0),
    }  # fmt: skip


def test_times_of_three_rows_and_the_reorders():
    assert type_times(small_profile()).to_numpy().tolist() == [
        ["MatMul", "ACC", 1, 10.0], ["Softmax", "CPU", 1, 5.0],
        ["Add", "ACC", 1, 3.0], [REORDERS, "ACC", 0, 3.0],
    ]  # fmt: skip


def test_figures_have_colours_labels_and_units():
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
    assert "op_types_by_device" in hl.views.gallery(costs())
    assert "time_by_op_type" in hl.views.gallery(small_profile())


def test_what_cannot_be_drawn():
    with pytest.raises(MeasurementError, match="counters=True"):
        hl.views.time_by_op_type(small_profile(counters=()))
    with pytest.raises(ArgumentError, match=r"hetero_lab\.support"):
        hl.views.op_types_by_device(pd.DataFrame({"a": [1]}))
