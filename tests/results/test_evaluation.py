"""What an evaluation says, by answers whose shares are worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hetero_lab.errors import ArgumentError
from hetero_lab.intervals import paired_drop, wilson_interval
from hetero_lab.results.evaluation import (
    Answer,
    Evaluation,
    answer_fields,
    evaluation_from,
    evaluations_of,
    nan_notes,
    summary_columns,
)
from hetero_lab.results.records import Accuracy

# Ten examples: 6 right (of the reference 8, two of them lost), one with NaN.
FINE = Answer(
    right=True, reference_right=True, is_nan=False, reference_is_nan=False,
    relative_error=0.1, cosine=0.9, top1_agreement=1.0,
)  # fmt: skip
LOST = replace(FINE, right=False, relative_error=0.4, cosine=0.5, top1_agreement=0.5)
WRONG = replace(LOST, reference_right=False)
NAN = replace(WRONG, is_nan=True, relative_error=math.nan, cosine=math.nan, top1_agreement=0.0)
FOUND = Evaluation("mine", "top-1", (*[FINE] * 6, LOST, LOST, WRONG, NAN))
UNLABELLED = replace(FOUND, metric="")


def test_shares_of_right_answers_and_means_of_errors():
    assert (len(FOUND), FOUND.n_nan) == (10, 1)
    assert (FOUND.accuracy, FOUND.reference_accuracy) == (0.6, 0.8)
    assert FOUND.accuracy_ci95 == wilson_interval(6, 10)
    low, high = FOUND.accuracy_ci95
    assert low == pytest.approx(0.3127, abs=1e-4)
    assert high == pytest.approx(0.8318, abs=1e-4)
    assert FOUND.paired.drop == pytest.approx(0.2)
    assert (FOUND.paired.lost, FOUND.paired.won, FOUND.paired.n) == (2, 0, 10)
    # An example with NaN counts as wrong, and says nothing of the other errors.
    assert FOUND.relative_error == pytest.approx((6 * 0.1 + 3 * 0.4) / 9)
    assert FOUND.cosine == pytest.approx((6 * 0.9 + 3 * 0.5) / 9)
    assert FOUND.top1_agreement == pytest.approx((6 + 3 * 0.5) / 10)
    assert math.isnan(replace(FOUND, answers=(NAN,)).cosine)


def test_columns_of_a_sweep():
    columns = summary_columns(FOUND)
    assert columns["accuracy"] == 0.6
    assert columns["accuracy_drop"] == pytest.approx(0.2)
    drop = paired_drop([True] * 8 + [False] * 2, [True] * 6 + [False] * 4)
    assert columns["mcnemar_p"] == drop.p
    assert (columns["n_examples"], columns["n_nan"]) == (10, 1)
    assert columns["output_error"] == FOUND.relative_error
    assert columns["top1_agreement"] == FOUND.top1_agreement
    without = summary_columns(UNLABELLED)
    assert without["accuracy"] is None
    assert (without["n_examples"], without["output_error"]) == (10, FOUND.relative_error)
    assert set(summary_columns(None)) == set(columns)
    assert set(summary_columns(None).values()) == {None}


def test_without_labels_there_is_no_accuracy():
    assert FOUND.is_labelled
    assert not UNLABELLED.is_labelled
    for name in ("accuracy", "accuracy_ci95", "reference_accuracy", "paired"):
        with pytest.raises(ArgumentError, match="had no labels"):
            getattr(UNLABELLED, name)
    assert "right" in FOUND.examples
    assert "right" not in UNLABELLED.examples
    assert list(FOUND.examples["example"]) == list(range(10))


def test_the_text():
    assert repr(FOUND) == (
        "Evaluation('mine': top-1 60.0% [31.3%, 83.2%], f32 80.0%, drop +20.00 points "
        f"[{100 * FOUND.paired.low:+.2f}, {100 * FOUND.paired.high:+.2f}], p = 0.5; "
        "10 examples, 1 of them with NaN)"
    )
    said = repr(replace(UNLABELLED, answers=(FINE, LOST), interrupted=True))
    assert said == (
        "Evaluation('mine': relative error 0.25, cosine 0.70000, top-1 agreement 75.0% with f32; "
        "2 examples; interrupted)"
    )


def record(found: Evaluation, **changes) -> Accuracy:
    fields = answer_fields(found.answers)
    return Accuracy(entry="a", metric=found.metric, output=0, n=len(found), **{**fields, **changes})


def test_stored_answers_come_back():
    stored = record(FOUND)
    assert (stored.right, stored.is_nan) == ("1111110000", "0000000001")
    assert stored.cosine == (*[0.9] * 6, *[0.5] * 3, None)
    back, problem = evaluation_from([stored], "mine")
    assert problem == ""
    assert back is not None
    assert back.answers[:9] == FOUND.answers[:9]
    assert math.isnan(back.answers[9].cosine)
    assert (back.accuracy, back.n_nan) == (0.6, 1)


def test_the_last_evaluation_counts_and_a_failed_one_is_told():
    first, failed = record(FOUND), record(FOUND, problem="no data")
    last = record(replace(FOUND, answers=(FINE,)))
    assert evaluation_from([], "x") == (None, "")
    assert evaluation_from([failed], "x") == (None, "no data")
    assert evaluations_of([first, failed, last]) == [first, last]
    found, problem = evaluation_from([first, failed], "x")
    assert found is not None
    assert (len(found), problem) == (10, "no data")
    found, problem = evaluation_from([first, failed, last], "x")
    assert found is not None
    assert (len(found), problem) == (1, "")


class Row:
    def __init__(self, label: str, evaluation: Evaluation | None):
        self.configuration, self.evaluation = label, evaluation


def test_rows_with_nan_are_named():
    rows = [Row("a", FOUND), Row("b", None), Row("c", replace(FOUND, answers=(FINE,)))]
    assert nan_notes(rows) == [
        "'a': the outputs of 1 of 10 examples are not a number; they count as wrong."
    ]
