"""A sweep with data: accuracy beside latency, kept in the store."""

from __future__ import annotations

import warnings

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from small_models import chain

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.tables import read_csv

QUICK = {"isolate": False, "progress": False, "turns": 2, "budget_s": None, "counters": False}
N = 60


@pytest.fixture(scope="module")
def digits():
    data = hl.dataset("digits")
    return hl.load("digits_inception"), [data.evaluation[i] for i in range(N)], data.metric


def test_each_row_has_its_accuracy_and_the_store_keeps_it(digits, own_core, tmp_path):
    model, part, metric = digits
    options = {**QUICK, "data": part, "metric": metric, "core": own_core}
    made = hl.sweep(model, ["HETERO:ACC,CPU", "CPU"], store=tmp_path / "s", **options)
    alone = hl.evaluate(model, "CPU", part, metric=metric, core=own_core)
    row = made.summary.set_index("label").loc["CPU"]
    assert row["accuracy"] == alone.accuracy
    assert row["accuracy_ci95_low"] == pytest.approx(alone.accuracy_ci95[0])
    assert row["accuracy_drop"] == alone.paired.drop
    assert row["accuracy_drop_ci95_high"] == pytest.approx(alone.paired.high)
    assert row["n_examples"] == N
    assert row["output_error"] == pytest.approx(alone.relative_error, rel=1e-3)
    assert made.summary["accuracy"].notna().all()  # rows that share a measurement too

    assert "accuracy" in made.ranking
    assert f"{row['accuracy']:.2%}" in str(made)
    assert "<th>accuracy</th>" in made._repr_html_()

    again = hl.read_sweep(tmp_path / "s")
    assert again.summary.equals(made.summary)
    again.to_csv(tmp_path / "s.csv")
    assert read_csv(tmp_path / "s.csv")["accuracy"].tolist() == made.summary["accuracy"].tolist()

    before = own_core.n_compiled
    hl.sweep(model, ["HETERO:ACC,CPU", "CPU"], store=tmp_path / "s", **options)
    assert own_core.n_compiled - before <= 1  # f32, to check the first example


def test_without_data_there_are_no_such_columns(core):
    made = hl.sweep(chain("relu"), ["CPU"], core=core, **QUICK)
    assert "accuracy" not in made.summary
    assert "accuracy" not in made.ranking
    assert "accuracy" not in made._repr_html_()


def test_inputs_alone_give_output_errors(core):
    inputs = [{"x": np.full((1, 4), v, np.float32)} for v in (1.0, 2.0)]
    made = hl.sweep(chain("relu", "b"), ["CPU"], data=inputs, core=core, **QUICK)
    row = made.summary.iloc[0]
    assert row["n_examples"] == 2
    assert row["output_error"] < 0.02
    assert made.summary["accuracy"].isna().all()


@pytest.mark.parametrize("data", [[], [({"x": np.zeros((1, 4), np.float32)}, 1)] * 2])
def test_bad_data_is_refused_before_anything_is_measured(data, core, tmp_path):
    with pytest.raises(ArgumentError), warnings.catch_warnings():
        warnings.simplefilter("error")
        hl.sweep(
            chain("relu"), ["CPU"], data=data, metric=lambda o, label: o["nowhere"],
            store=tmp_path / "s", core=core, **QUICK,
        )  # fmt: skip
    assert not (tmp_path / "s").exists()


def test_a_label_that_does_not_fit_is_found_before_anything_is_measured(digits, core, tmp_path):
    model, part, metric = digits
    wrong = [*part[:3], (part[3][0], 10)]
    with pytest.raises(ArgumentError, match=r"Example 3: The label '10' does not fit.*0 to 9"):
        hl.sweep(
            model, ["CPU"], data=wrong, metric=metric, core=core, store=tmp_path / "s", **QUICK
        )
    assert not (tmp_path / "s").exists()


def test_a_variant_with_other_outputs_is_a_failed_row(digits, core, tmp_path):
    model, part, metric = digits
    other = model.clone()
    other.outputs[0].get_tensor().set_names({"number"})
    made = hl.sweep(
        {"f32": model, "renamed": other}, ["CPU"], data=part, metric=metric, baselines=False,
        core=core, store=tmp_path / "s", **QUICK,
    )  # fmt: skip
    for sweep in (made, hl.read_sweep(tmp_path / "s")):
        rows = sweep.summary.set_index("variant")
        assert list(rows["status"]) == ["ok", "accuracy failed"]
        assert "'number'" in rows.loc["renamed", "detail"]
        assert rows.loc["renamed", "median_us"] > 0
        assert np.isnan(rows.loc["renamed", "accuracy"])
        assert "accuracy failed" in str(sweep)


def test_outputs_that_are_not_a_number_are_reported(core):
    def data(*values):
        return [({"x": np.full((1, 4), v, np.float32)}, 0) for v in values]

    x = op.parameter([1, 4], np.float32, name="x")
    made = hl.sweep(
        ov.Model([op.log(x, name="log")], [x], "log"), ["CPU"], data=data(1.0, -1.0),
        metric=lambda outputs, label: True, baselines=False, core=core, **QUICK,
    )  # fmt: skip
    row = made.summary.iloc[0]
    assert (row["n_nan"], row["accuracy"]) == (1, 0.5)
    (note,) = [note for note in made.notes if "not a number" in note]
    assert "1 of 2 examples" in note
    assert note in str(made)
