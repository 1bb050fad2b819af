"""Accuracy: the answers of a placement to examples, compared with f32, and their records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.errors import ArgumentError, shorten
from hetero_lab.intervals import PairedDrop, paired_drop, wilson_interval
from hetero_lab.result import Result
from hetero_lab.results.records import Accuracy, AnyRecord
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

_ERRORS = ("relative_error", "cosine", "top1_agreement")
_FLAGS = ("right", "reference_right", "is_nan", "reference_is_nan")
_SIGN_OF = {True: "1", False: "0", None: "-"}
_FLAG_OF = {sign: flag for flag, sign in _SIGN_OF.items()}


@dataclass(frozen=True)
class Answer:
    """The result of one example: whether it is right, and its errors against f32.

    ``right`` and ``reference_right`` are ``None`` without a label. The errors are those of the
    worst output: Euclidean norm of the difference over that of f32, cosine, share of equal arg-max
    positions along the last axis. They are NaN if an output has NaN.
    """

    right: bool | None
    reference_right: bool | None
    is_nan: bool
    reference_is_nan: bool
    relative_error: float
    cosine: float
    top1_agreement: float


@dataclass(frozen=True)
class Evaluation(Result):
    """The answers of a placement to examples, compared with a single device in f32.

    Shares are from 0 to 1; a drop is f32's share less the placement's, so above 0 is worse.
    Without labels there are only output errors.

    Attributes
    ----------
    label
        The placement's label.
    metric
        The name of the criterion for a right answer; empty without labels.
    answers
        One for each example.
    interrupted
        Whether Ctrl-C ended it before the last example.
    configuration
        The label with the precision of its devices: ``CPU (bf16, default)``.
    """

    _TABLES = ("summary", "examples")

    label: str
    metric: str
    answers: tuple[Answer, ...]
    interrupted: bool = False
    configuration: str = ""

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def is_labelled(self) -> bool:
        """Whether there is an accuracy."""
        return bool(self.metric)

    @property
    def accuracy(self) -> float:
        """The share of right answers.

        Raises
        ------
        ArgumentError
            The examples had no labels.
        """
        return float(np.mean(self._flags("right")))

    @property
    def accuracy_ci95(self) -> tuple[float, float]:
        """95 % interval of the accuracy (Wilson 1927)."""
        right = self._flags("right")
        return wilson_interval(sum(right), len(right))

    @property
    def reference_accuracy(self) -> float:
        """The share of right answers of the model on one device in f32."""
        return float(np.mean(self._flags("reference_right")))

    @cached_property
    def paired(self) -> PairedDrop:
        """The drop of accuracy from f32, example by example, with interval and p-value."""
        return paired_drop(self._flags("reference_right"), self._flags("right"))

    @property
    def n_nan(self) -> int:
        """The number of examples with NaN in an output; they count as wrong."""
        return sum(answer.is_nan for answer in self.answers)

    @property
    def relative_error(self) -> float:
        """Mean relative error of the outputs against f32; NaN if every example has NaN."""
        return self._mean("relative_error")

    @property
    def cosine(self) -> float:
        """Mean cosine between the outputs and those in f32."""
        return self._mean("cosine")

    @property
    def top1_agreement(self) -> float:
        """Share of arg-max positions that agree with f32."""
        return float(np.mean([answer.top1_agreement for answer in self.answers]))

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row: accuracy with interval, drop with interval and p, output errors, NaNs."""
        errors = ("relative_error", "cosine", "top1_agreement", "n_nan")
        row = {
            "label": self.label,
            "configuration": self.configuration or self.label,
            **accuracy_columns(self),
            **{name: getattr(self, name) for name in errors},
            "n_reference_nan": sum(answer.reference_is_nan for answer in self.answers),
        }
        return frame_of([row])

    @cached_property
    def examples(self) -> pd.DataFrame:
        """One row an example."""
        frame = frame_of(list(map(asdict, self.answers)))
        if not self.is_labelled:
            frame = frame.drop(columns=["right", "reference_right"])
        frame.insert(0, "example", range(len(frame)))
        return frame

    def __repr__(self) -> str:
        nan = f", {self.n_nan} of them with NaN" if self.n_nan else ""
        n = f"{len(self)} examples{nan}{'; interrupted' if self.interrupted else ''}"
        name = shorten(self.configuration or self.label)
        if not self.is_labelled:
            return (
                f"Evaluation({name}: relative error "
                f"{self.relative_error:.2g}, cosine {self.cosine:.5f}, top-1 agreement "
                f"{self.top1_agreement:.1%} with f32; {n})"
            )
        low, high = self.accuracy_ci95
        drop = self.paired
        return (
            f"Evaluation({name}: {self.metric} {self.accuracy:.1%} "
            f"[{low:.1%}, {high:.1%}], f32 {self.reference_accuracy:.1%}, drop "
            f"{100 * drop.drop:+.2f} points [{100 * drop.low:+.2f}, {100 * drop.high:+.2f}], "
            f"p = {drop.p:.2g}; {n})"
        )

    def _flags(self, name: str) -> list[bool]:
        if not self.is_labelled:
            raise ArgumentError(
                "The examples had no labels, so there is no accuracy. Give a labelled data set, "
                "or (inputs, label) pairs with metric=."
            )
        return [bool(getattr(answer, name)) for answer in self.answers]

    def _mean(self, name: str) -> float:
        values = [getattr(a, name) for a in self.answers if not (a.is_nan or a.reference_is_nan)]
        return float(np.mean(values)) if values else float("nan")


def accuracy_columns(evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the columns about accuracy; all ``None`` if it was not evaluated."""
    if evaluation is None or not evaluation.is_labelled:
        columns: dict[str, Any] = dict.fromkeys(_COLUMNS)
        return columns if evaluation is None else {**columns, "n_examples": len(evaluation)}
    return {name: value_of(evaluation) for name, value_of in _COLUMNS.items()}


_COLUMNS: dict[str, Callable[[Evaluation], Any]] = {
    "metric": lambda e: e.metric,
    "accuracy": lambda e: e.accuracy,
    "accuracy_ci95_low": lambda e: e.accuracy_ci95[0],
    "accuracy_ci95_high": lambda e: e.accuracy_ci95[1],
    "reference_accuracy": lambda e: e.reference_accuracy,
    "accuracy_drop": lambda e: e.paired.drop,
    "accuracy_drop_ci95_low": lambda e: e.paired.low,
    "accuracy_drop_ci95_high": lambda e: e.paired.high,
    "mcnemar_p": lambda e: e.paired.p,
    "n_lost": lambda e: e.paired.lost,
    "n_won": lambda e: e.paired.won,
    "n_examples": lambda e: e.paired.n,
}
RANKED_ACCURACY = tuple(name for name in _COLUMNS if name.startswith("accuracy"))


def evaluation_from(
    records: Sequence[AnyRecord], label: str, configuration: str = ""
) -> tuple[Evaluation | None, str]:
    """Read the last evaluation among the records of an entry, and why the last attempt failed."""
    attempts = [r for r in records if isinstance(r, Accuracy)]
    problem = attempts[-1].problem if attempts else ""
    evaluated = evaluations_of(records)
    if not evaluated:
        return None, problem
    last = evaluated[-1]
    columns: list[list[Any]] = [[_FLAG_OF[c] for c in getattr(last, name)] for name in _FLAGS]
    columns += [[math.nan if v is None else v for v in getattr(last, name)] for name in _ERRORS]
    answers = tuple(Answer(*row) for row in zip(*columns, strict=True))
    return Evaluation(label, str(last.metric), answers, configuration=configuration), problem


def nan_notes(rows: Iterable[Any]) -> list[str]:
    """Say which rows have NaN outputs."""
    return [
        f"{shorten(row.configuration)}: the outputs of {row.evaluation.n_nan} of "
        f"{len(row.evaluation)} examples are not a number; they count as wrong."
        for row in rows
        if row.evaluation is not None and row.evaluation.n_nan
    ]


def evaluations_of(records: Sequence[AnyRecord]) -> list[Accuracy]:
    """Return the evaluations that did not fail."""
    return [r for r in records if isinstance(r, Accuracy) and not r.problem]


def summary_columns(evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the additional columns of a sweep with data."""
    columns = accuracy_columns(evaluation)
    return {
        **{name: columns[name] for name in (*RANKED_ACCURACY, "mcnemar_p", "n_examples")},
        "output_error": None if evaluation is None else evaluation.relative_error,
        "top1_agreement": None if evaluation is None else evaluation.top1_agreement,
        "n_nan": None if evaluation is None else evaluation.n_nan,
    }


def answer_fields(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return fields of an Accuracy record: flags as strings, errors as tuples, a few bytes each."""
    flags: dict[str, Any] = {n: "".join(_SIGN_OF[getattr(a, n)] for a in answers) for n in _FLAGS}
    errors = {n: tuple(_number(getattr(a, n)) for a in answers) for n in _ERRORS}
    return {**flags, **errors}


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
