"""The accuracy of a sweep's rows: evaluated after measuring, stored as records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hetero_lab.accuracy.evaluate import Evaluation, ReadData, accuracy_columns
from hetero_lab.devices.bound import BoundModel
from hetero_lab.errors import HeteroLabError, shorten
from hetero_lab.progress import Progress
from hetero_lab.results.records import Accuracy, AnyRecord, Trial, Turn
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.reference import Answer, Reference, check_labels, judge

_ERRORS = ("relative_error", "cosine", "top1_agreement")
_FLAGS = ("right", "reference_right", "is_nan", "reference_is_nan")
_SIGN_OF = {True: "1", False: "0", None: "-"}
_FLAG_OF = {sign: flag for flag, sign in _SIGN_OF.items()}
_OF_SUMMARY = (
    "accuracy", "accuracy_ci95_low", "accuracy_ci95_high", "accuracy_drop",
    "accuracy_drop_ci95_low", "accuracy_drop_ci95_high", "mcnemar_p", "n_examples",
)  # fmt: skip


class SweepData:
    """The examples of a sweep, checked before anything is measured.

    The reference is the first variant on one real device in f32, so that the drop of a quantised
    variant is relative to the model it was made from. Raises ArgumentError or InputError if there
    are no examples, the first one does not fit the model, or a label does not fit its outputs.
    """

    def __init__(self, data: ReadData, models: Mapping[str, BoundModel]):
        self.examples, self.correct, self.metric, self.output = data
        self.models = models
        self.reference = Reference(next(iter(models.values())))
        self._judge(self.reference.compiled, self.examples[:1])
        if self.correct is not None:
            check_labels(self.reference, self.examples, self.correct)

    def evaluate(
        self,
        trials: Sequence[Trial],
        records: Sequence[AnyRecord],
        append: Callable[[AnyRecord], object],
        progress: bool,
    ) -> None:
        """Append an ``Accuracy`` record for each measured trial without one for this data."""
        measured = {r.entry for r in records if isinstance(r, Turn)}
        known = {r.entry for r in _evaluated(records) if self._is_mine(r)}
        wanted: dict[Any, list[Trial]] = {}
        for trial in {t.key: t for t in trials}.values():
            if trial.key in measured - known and not trial.problem:
                # Requests in flight and the executor do not change the outputs.
                properties = repr(sorted(trial.device_properties.items()))
                same = (trial.variant, trial.affinity, trial.direct, properties)
                wanted.setdefault(same, []).append(trial)
        with Progress("accuracy", show=progress, total=len(wanted), unit="placements") as bar:
            for several in wanted.values():
                self._evaluate(several, append)
                bar.advance()

    def _evaluate(self, several: Sequence[Trial], append: Callable[[AnyRecord], object]) -> None:
        first = several[0]
        try:
            run = compile_placed(first.placed(self.models[first.variant]))
            found: dict[str, Any] = _columns(self._judge(run, self.examples))
        except HeteroLabError as error:  # another variant may have other outputs
            found = {"problem": str(error)}
        for trial in several:
            append(Accuracy(entry=trial.key, **self._mark(), **found))

    def _judge(self, run: Any, examples: Sequence[Any]) -> tuple[Answer, ...]:
        return tuple(judge(run, self.reference, examples, correct=self.correct, output=self.output))

    def _mark(self) -> dict[str, Any]:
        return {"metric": self.metric, "output": self.output, "n": len(self.examples)}

    def _is_mine(self, record: Accuracy) -> bool:
        return all(getattr(record, name) == value for name, value in self._mark().items())


def evaluation_from(records: Sequence[AnyRecord], label: str) -> tuple[Evaluation | None, str]:
    """Read the last evaluation among the records of an entry, and why the last attempt failed."""
    tried = [r for r in records if isinstance(r, Accuracy)]
    problem = tried[-1].problem if tried else ""
    evaluated = _evaluated(records)
    if not evaluated:
        return None, problem
    last = evaluated[-1]
    columns: list[list[Any]] = [[_FLAG_OF[c] for c in getattr(last, name)] for name in _FLAGS]
    columns += [[math.nan if v is None else v for v in getattr(last, name)] for name in _ERRORS]
    answers = tuple(Answer(*row) for row in zip(*columns, strict=True))
    return Evaluation(label, str(last.metric), answers), problem


def nan_notes(rows: Iterable[Any]) -> list[str]:
    """Say which rows have NaN outputs."""
    return [
        f"{shorten(row.label)}: the outputs of {row.evaluation.n_nan} of {len(row.evaluation)} "
        "examples are not a number; they count as wrong."
        for row in rows
        if row.evaluation is not None and row.evaluation.n_nan
    ]


def _evaluated(records: Sequence[AnyRecord]) -> list[Accuracy]:
    return [r for r in records if isinstance(r, Accuracy) and not r.problem]


def summary_columns(found: Evaluation | None) -> dict[str, Any]:
    """Return the additional columns of a sweep with data."""
    columns = accuracy_columns(found)
    return {
        **{name: columns[name] for name in _OF_SUMMARY},
        "output_error": None if found is None else found.relative_error,
        "top1_agreement": None if found is None else found.top1_agreement,
        "n_nan": None if found is None else found.n_nan,
    }


def _columns(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return flags as strings and errors as tuples: a few bytes per example."""
    flags: dict[str, Any] = {n: "".join(_SIGN_OF[getattr(a, n)] for a in answers) for n in _FLAGS}
    errors = {n: tuple(_number(getattr(a, n)) for a in answers) for n in _ERRORS}
    return {**flags, **errors}


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
