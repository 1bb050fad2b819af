"""Accuracy with its interval, the drop from f32, and what happens to bad data."""

from __future__ import annotations

import signal
import warnings

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from small_models import chain

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, InputError
from hetero_lab.intervals import paired_drop, wilson_interval
from hetero_lab.tables import read_csv

DIGITS = hl.dataset("digits")
RELU_POSITIVE = [({"x": np.full((1, 4), v, np.float32)}, v > 0) for v in (-1.0, 2.0, 3.0, -4.0)]
NAN = [({"x": np.full((1, 4), v, np.float32)}, True) for v in (4.0, -1.0)]  # by a square root


def is_positive(outputs, label) -> bool:
    return bool(next(iter(outputs.values())).max() > 0) == label


def in_f32(model: ov.Model) -> hl.Placement:
    f32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    return hl.Placement(hl.Affinity.uniform(model, "CPU"), device_properties=f32)


def square_root() -> ov.Model:
    x = op.parameter([1, 4], np.float32, name="x")
    return ov.Model([op.result(op.sqrt(x, name="root"), name="out")], [x], "root")


def test_digits_in_two_precisions(digits, own_core):
    part = [DIGITS.evaluation[i] for i in range(40)]
    found = hl.evaluate(digits, "HETERO:ACC,CPU", part, metric=DIGITS.metric, core=own_core)
    compiled = hl.compile(digits, in_f32(digits))
    right = [DIGITS.metric.correct(compiled(inputs), label) for inputs, label in part]
    assert found.reference_accuracy == pytest.approx(np.mean(right))
    assert found.accuracy == found.reference_accuracy  # ACC of this core is in f32
    assert found.relative_error < 1e-4
    low, high = found.accuracy_ci95
    assert low < found.accuracy <= high
    assert found.paired.lost == found.paired.won == found.n_nan == 0
    row = found.summary.iloc[0]
    assert (row["n_examples"], row["metric"]) == (40, "accuracy")
    assert row["accuracy_drop_ci95_low"] < 0 < row["accuracy_drop_ci95_high"]
    before = own_core.n_compiled  # f32 outputs are computed once
    hl.evaluate(digits, "HETERO:ACC,CPU", part[:3], metric=DIGITS.metric, core=own_core)
    assert own_core.n_compiled == before + 1


def test_a_quantised_model_is_compared_with_the_one_that_it_was_made_from(digits, own_core):
    small = hl.quantize(digits, DIGITS.calibration, subset_size=20, progress=False)
    part = [DIGITS.evaluation[i] for i in range(10)]
    options = {"metric": DIGITS.metric, "core": own_core}
    with_itself = hl.evaluate(small, in_f32(small), part, **options)
    found = hl.evaluate(small, in_f32(small), part, reference_model=digits, **options)
    assert with_itself.relative_error < 1e-6 < 1e-3 < found.relative_error
    assert found.accuracy == with_itself.accuracy
    f32 = hl.evaluate(digits, "CPU", part, **options)
    assert found.reference_accuracy == f32.reference_accuracy


def test_without_labels_there_are_output_errors_only(tmp_path):
    found = hl.evaluate(chain("a", "b"), "CPU", [inputs for inputs, _ in RELU_POSITIVE])
    assert not found.is_labelled
    assert len(found) == 4
    assert found.relative_error < 0.02
    assert found.top1_agreement > 0.9
    found.to_csv(tmp_path / "e.csv")
    row = read_csv(tmp_path / "e.csv").iloc[0]
    assert row["n_examples"] == 4
    assert row["relative_error"] == pytest.approx(found.relative_error)


def test_labels_and_a_function_as_metric():
    found = hl.evaluate(chain("relu"), "CPU", RELU_POSITIVE, metric=is_positive)
    assert found.accuracy == 1.0
    assert found.metric == "is_positive"
    wrong = [(inputs, not label) for inputs, label in RELU_POSITIVE]
    assert hl.evaluate(chain("relu"), "CPU", wrong, metric=is_positive).accuracy == 0.0


def test_what_is_not_a_number_is_wrong_and_reported():
    found = hl.evaluate(square_root(), "CPU", NAN, metric=lambda outputs, label: True)
    assert (found.accuracy, found.n_nan) == (0.5, 1)
    assert found.relative_error < 1e-2  # of the one that is a number
    assert list(found.examples["is_nan"]) == [False, True]
    assert "1 of them with NaN" in repr(found)


@pytest.mark.parametrize(
    ("data", "metric", "error", "message"),
    [
        ("digits", None, ArgumentError, "data= is"),
        (RELU_POSITIVE, "accuracy", ArgumentError, "metric= is a function"),
        ([np.zeros((1, 4), np.float32)], is_positive, ArgumentError, "not a pair"),
        (RELU_POSITIVE, lambda o, label: o["nowhere"], ArgumentError, "does not fit"),
        (RELU_POSITIVE, lambda o, label: next(iter(o.values())) > 0, ArgumentError, "does not fit"),
        ([np.zeros((1, 5), np.float32)], None, InputError, "shape"),
        (DIGITS, None, InputError, "no input 'image'"),  # a data set of another model
    ],
)
def test_bad_data_is_an_error_that_says_so(data, metric, error, message):
    with pytest.raises(error, match=message):
        hl.evaluate(chain("relu"), "CPU", data, metric=metric)


def test_an_interrupt_keeps_the_examples_until_then(digits, own_core):
    examples, asked = list(DIGITS.evaluation[:12]), []

    def right(outputs, label) -> bool:
        asked.append(label)
        if len(asked) == 20:  # each example is judged twice: on the placement and in f32
            signal.raise_signal(signal.SIGINT)
        return DIGITS.metric.correct(outputs, label)

    with pytest.raises(KeyboardInterrupt, match="returns the Evaluation"):
        hl.evaluate(digits, "CPU", examples, metric=right, core=own_core)
    kept = hl.last_interrupted()
    whole = hl.evaluate(digits, "CPU", examples, metric=DIGITS.metric, core=own_core)
    assert kept.interrupted
    assert not whole.interrupted
    assert len(kept) == 9
    assert [a.right for a in kept.answers] == [a.right for a in whole.answers[:9]]
    assert "9 examples; interrupted" in repr(kept)


# -- shares of right answers and their paired differences ---------------------------------------


def test_wilson_interval_is_that_of_the_book():
    # Wilson's interval of 7 of 10, as SciPy has it.
    from scipy import stats

    for right, n in ((7, 10), (0, 5), (5, 5), (480, 500)):
        expected = stats.binomtest(right, n).proportion_ci(method="wilson")
        assert wilson_interval(right, n) == pytest.approx(tuple(expected), abs=1e-9)
    assert wilson_interval(5, 5)[1] == 1.0
    with pytest.raises(ArgumentError):
        wilson_interval(0, 0)


def test_paired_drop_counts_what_changed():
    before = [True] * 8 + [False] * 2
    after = [True] * 5 + [False] * 3 + [True] + [False]
    found = paired_drop(before, after)
    assert (found.n, found.lost, found.won) == (10, 3, 1)
    assert found.drop == pytest.approx(0.2)
    # 2 / 12 ± 1.96 · sqrt(4 + 1 − 4/12) / 12 (Agresti and Min 2005)
    half = 1.959964 * np.sqrt(5 - 4 / 12) / 12
    assert (found.low, found.high) == pytest.approx((2 / 12 - half, 2 / 12 + half), abs=1e-6)
    # 3 or more of 4 on one side, twice: 2 · (4 + 1) / 16
    assert found.p == pytest.approx(0.625)
    same = paired_drop([True, False], [True, False])
    assert (same.drop, same.p) == (0.0, 1.0)
    assert same.low < 0.0 < same.high
    for sizes in ((0, 0), (2, 3)):
        with pytest.raises(ArgumentError, match="Paired answers"):
            paired_drop(*([True] * n for n in sizes))


def test_the_interval_holds_what_it_promises():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        u = rng.random(300)
        before, after = u > 0.03, u < 0.94  # 3 % won, 6 % lost: a drop of 3 %
        found = paired_drop(before, after)
        held += found.low <= 0.03 <= found.high
    assert held / 400 >= 0.92


# -- a sweep with data: accuracy beside latency, kept in the store ------------------------------


QUICK = {"isolate": False, "progress": False, "turns": 2, "budget_s": None, "counters": False}
N = 60


def test_each_row_has_its_accuracy_and_the_store_keeps_it(digits, own_core, tmp_path):
    part, metric = DIGITS.evaluation[:N], DIGITS.metric
    options = {**QUICK, "data": part, "metric": metric, "core": own_core}
    made = hl.sweep(digits, ["HETERO:ACC,CPU", "CPU"], store=tmp_path / "s", **options)
    alone = hl.evaluate(digits, "CPU", part, metric=metric, core=own_core)
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
    assert "accuracy_front" in hl.views.gallery(made)

    again = hl.read_sweep(tmp_path / "s")
    assert again.summary.equals(made.summary)
    again.to_csv(tmp_path / "s.csv")
    assert read_csv(tmp_path / "s.csv")["accuracy"].tolist() == made.summary["accuracy"].tolist()

    before = own_core.n_compiled
    hl.sweep(digits, ["HETERO:ACC,CPU", "CPU"], store=tmp_path / "s", **options)
    assert own_core.n_compiled - before <= 1  # f32, to check the first example


def test_inputs_alone_give_output_errors_and_without_data_there_is_nothing(core):
    inputs = [{"x": np.full((1, 4), v, np.float32)} for v in (1.0, 2.0)]
    made = hl.sweep(chain("relu", "b"), ["CPU"], data=inputs, core=core, **QUICK)
    row = made.summary.iloc[0]
    assert row["n_examples"] == 2
    assert row["output_error"] < 0.02
    assert made.summary["accuracy"].isna().all()
    made = hl.sweep(chain("relu"), ["CPU"], core=core, **QUICK)
    assert not any(
        "accuracy" in shown for shown in (made.summary, made.ranking, made._repr_html_())
    )


@pytest.mark.parametrize(
    ("data", "metric", "message"),
    [
        ([], None, "no examples"),
        (DIGITS.evaluation[:2], lambda o, label: o["nowhere"], "does not fit"),
        ([*DIGITS.evaluation[:3], (DIGITS.evaluation[3][0], 10)], DIGITS.metric,
         r"Example 3: The label '10' does not fit.*0 to 9"),
    ],
)  # fmt: skip
def test_bad_data_is_refused_before_anything_is_measured(data, metric, message, core, tmp_path):
    options = {"metric": metric, "store": tmp_path / "s", "core": core, **QUICK}
    with pytest.raises(ArgumentError, match=message), warnings.catch_warnings():
        warnings.simplefilter("error")
        hl.sweep("digits_inception", ["CPU"], data=data, **options)
    assert not (tmp_path / "s").exists()


def test_a_variant_with_other_outputs_is_a_failed_row(digits, core, tmp_path):
    other = digits.clone()
    other.outputs[0].get_tensor().set_names({"number"})
    made = hl.sweep(
        {"f32": digits, "renamed": other}, ["CPU"], data=DIGITS.evaluation[:N],
        metric=DIGITS.metric, baselines=False, core=core, store=tmp_path / "s", **QUICK,
    )  # fmt: skip
    for sweep in (made, hl.read_sweep(tmp_path / "s")):
        rows = sweep.summary.set_index("variant")
        assert list(rows["status"]) == ["ok", "accuracy failed"]
        assert "'number'" in rows.loc["renamed", "detail"]
        assert rows.loc["renamed", "median_us"] > 0
        assert np.isnan(rows.loc["renamed", "accuracy"])
        assert "accuracy failed" in str(sweep)


def test_outputs_that_are_not_a_number_are_reported(core):
    made = hl.sweep(
        square_root(), ["CPU"], data=NAN, metric=lambda outputs, label: True, baselines=False,
        core=core, **QUICK,
    )  # fmt: skip
    row = made.summary.iloc[0]
    assert (row["n_nan"], row["accuracy"]) == (1, 0.5)
    (note,) = [note for note in made.notes if "not a number" in note]
    assert "1 of 2 examples" in note
    assert note in str(made)
