"""Evaluate: the accuracy of a placement, and its loss against f32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero_lab.devices.bound import bind
from hetero_lab.errors import ArgumentError, shorten
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.intervals import PairedDrop, paired_drop, wilson_interval
from hetero_lab.model.read import Source
from hetero_lab.placement.placement import PlacementLike, resolve
from hetero_lab.progress import Progress
from hetero_lab.result import Result
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.reference import Answer, Correct, Reference, judge
from hetero_lab.samples.datasets import Dataset, Metric
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


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
    """

    _TABLES = ("summary", "examples")

    label: str
    metric: str
    answers: tuple[Answer, ...]
    interrupted: bool = False

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
        return float(np.mean(self._answered("right")))

    @property
    def accuracy_ci95(self) -> tuple[float, float]:
        """95 % interval of the accuracy (Wilson 1927)."""
        right = self._answered("right")
        return wilson_interval(sum(right), len(right))

    @property
    def reference_accuracy(self) -> float:
        """The share of right answers of the model on one device in f32."""
        return float(np.mean(self._answered("reference_right")))

    @cached_property
    def paired(self) -> PairedDrop:
        """The drop of accuracy from f32, example by example, with interval and p-value."""
        return paired_drop(self._answered("reference_right"), self._answered("right"))

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
        if not self.is_labelled:
            return (
                f"Evaluation({shorten(self.label)}: relative error {self.relative_error:.2g}, "
                f"cosine {self.cosine:.5f}, top-1 agreement {self.top1_agreement:.1%} with f32; "
                f"{n})"
            )
        low, high = self.accuracy_ci95
        drop = self.paired
        return (
            f"Evaluation({shorten(self.label)}: {self.metric} {self.accuracy:.1%} "
            f"[{low:.1%}, {high:.1%}], f32 {self.reference_accuracy:.1%}, drop "
            f"{100 * drop.drop:+.2f} points [{100 * drop.low:+.2f}, {100 * drop.high:+.2f}], "
            f"p = {drop.p:.2g}; {n})"
        )

    def _answered(self, name: str) -> list[bool]:
        if not self.is_labelled:
            raise ArgumentError(
                "The examples had no labels, so there is no accuracy. Give a labelled data set, "
                "or (inputs, label) pairs with metric=."
            )
        return [bool(getattr(answer, name)) for answer in self.answers]

    def _mean(self, name: str) -> float:
        values = [getattr(a, name) for a in self.answers if not (a.is_nan or a.reference_is_nan)]
        return float(np.mean(values)) if values else float("nan")


def accuracy_columns(found: Evaluation | None) -> dict[str, Any]:
    """Return the columns about accuracy; all ``None`` if it was not evaluated."""
    if found is None or not found.is_labelled:
        columns: dict[str, Any] = dict.fromkeys(_COLUMNS)
        return columns if found is None else {**columns, "n_examples": len(found)}
    drop = found.paired
    values = (
        found.metric, found.accuracy, *found.accuracy_ci95, found.reference_accuracy, drop.drop,
        drop.low, drop.high, drop.p, drop.lost, drop.won, drop.n,
    )  # fmt: skip
    return dict(zip(_COLUMNS, values, strict=True))


_COLUMNS = (
    "metric", "accuracy", "accuracy_ci95_low", "accuracy_ci95_high", "reference_accuracy",
    "accuracy_drop", "accuracy_drop_ci95_low", "accuracy_drop_ci95_high", "mcnemar_p", "n_lost",
    "n_won", "n_examples",
)  # fmt: skip


def evaluate(
    model: Source,
    placement: PlacementLike,
    data: Dataset | Sequence[Any],
    *,
    metric: Metric | Correct | None = None,
    reference_model: Source | None = None,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Evaluation:
    """Run a placement on examples: accuracy, and how its outputs differ from f32.

    The same examples go through the model on one real device in f32. Those outputs are kept, so
    the next evaluation in this process is faster.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    data
        A labelled data set (its evaluation part and its metric are used), or ``(inputs, label)``
        pairs with ``metric=``, or inputs alone, which give only output errors.
    metric
        A :class:`~hetero_lab.samples.datasets.Metric`, or a function from outputs by name and
        a label to whether they fit.
    reference_model
        The model in f32: for a quantised model, the one that it was made from. By default the
        model itself, so a drop is due to the placement.
    progress
        Show progress, if it takes more than two seconds.

    Returns
    -------
    Evaluation
        After Ctrl-C (:func:`hetero_lab.last_interrupted`): of the examples evaluated by then.

    Raises
    ------
    ArgumentError
        There are no examples, or labels do not fit outputs.
    InputError
        Inputs that do not fit the model.
    DeviceError, AffinityError, PropertyError, CompileError
        As for :func:`hetero_lab.compile`, or no single device can run the model in f32.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> found = hl.evaluate(model, "CPU", hl.dataset("digits"))
    >>> len(found), found.accuracy > 0.95
    (597, True)
    """
    examples, correct, name, output = read_data(data, metric)
    placed = resolve(bind(model, core), placement)
    exact = Reference(placed.bound if reference_model is None else bind(reference_model, core))
    run = compile_placed(placed)
    answers: list[Answer] = []
    with (
        Progress("evaluate", show=progress, total=len(examples), unit="examples") as bar,
        UntilInterrupted(lambda: answers) as until,
    ):
        for answer in judge(run, exact, examples, correct=correct, output=output):
            answers.append(answer)
            bar.advance()
    return Evaluation(run.placement.label, name, tuple(answers), until.interrupted)


class ReadData(NamedTuple):
    """Examples, the criterion for a right answer, its name, and the output that it looks at."""

    examples: Sequence[Any]
    correct: Correct | None
    metric: str
    output: str


def read_optional_data(data: Any, metric: Metric | Correct | None) -> ReadData | None:
    """Read the arguments ``data=`` and ``metric=``; ``None`` if neither is given."""
    if metric is not None and data is None:
        raise ArgumentError("metric= says how answers to data= are judged: give data=, too")
    return None if data is None else read_data(data, metric)


def read_data(data: Any, metric: Metric | Correct | None = None) -> ReadData:
    """Read the arguments ``data=`` and ``metric=``; ArgumentError if they make no sense."""
    output = ""
    if isinstance(data, Dataset):
        metric, output, data = metric or data.metric, data.output, data.evaluation
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise ArgumentError(
            "data= is a labelled data set (hetero_lab.dataset('digits')), a list of (inputs, "
            f"label) with metric=, or a list of inputs, not {type(data).__name__}."
        )
    examples = data if isinstance(data, Sequence) else list(data)
    if not len(examples):
        raise ArgumentError("data= has no examples. Give at least one; hundreds are better.")
    if metric is None:
        return ReadData(examples, None, "", output)
    if isinstance(metric, Metric):
        return ReadData(examples, metric.correct, metric.name, output)
    if not callable(metric):
        raise ArgumentError(
            "metric= is a function from outputs by name and a label to a bool, not "
            f"{type(metric).__name__}."
        )
    return ReadData(examples, metric, getattr(metric, "__name__", "accuracy"), output)
