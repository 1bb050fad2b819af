"""Evaluate: the accuracy of a placement or of a sweep's rows, and its loss against f32."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.errors import ArgumentError, HeteroLabError, names_at_hand, shorten
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.read import Source
from hetero_lab.placement.placement import PlacementLike, resolve
from hetero_lab.progress import Progress
from hetero_lab.results.configuration import configuration
from hetero_lab.results.evaluation import Answer, Evaluation, answer_fields, evaluations_of
from hetero_lab.results.records import Accuracy, AnyRecord, Trial, Turn
from hetero_lab.runtime.compiled import CompiledPlacement, compile_placed
from hetero_lab.runtime.executors import choices_of
from hetero_lab.runtime.inputs import bind_inputs
from hetero_lab.runtime.reference import Reference, compare, run_afresh
from hetero_lab.runtime.tensors import has_nan
from hetero_lab.samples.datasets import Correct, Dataset, Metric, ReadData, read_data

if TYPE_CHECKING:
    import openvino as ov


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
    test_data = read_data(data, metric)
    bound = bind(model, core)
    bound_placement = resolve(bound, placement)
    exact = Reference(bound if reference_model is None else bind(reference_model, core))
    run = compile_placed(bound_placement)
    answers: list[Answer] = []
    with (
        Progress("evaluate", show=progress, total=len(test_data.examples), unit="examples") as bar,
        UntilInterrupted(lambda: answers) as until,
    ):
        for answer in judge(run, exact, test_data):
            answers.append(answer)
            bar.advance()
    settings = choices_of(run.compiled_models, bound_placement.core)
    label = bound_placement.label
    name = configuration(label, settings.precisions, bound_placement.properties)
    return Evaluation(label, test_data.metric, tuple(answers), until.interrupted, name)


def judge(run: CompiledPlacement, reference: Reference, data: ReadData) -> Iterator[Answer]:
    """Run example by example and judge the outputs that the data looks at.

    Examples are ``(inputs, label)`` if there is a criterion; else inputs alone. InputError if
    inputs do not fit the model; ArgumentError if a label does not fit, or the output does not
    exist.
    """
    bound, (examples, correct, _, output) = run.placed.bound, data
    is_other = reference.bound.fingerprint != bound.fingerprint
    for number, example in enumerate(examples):
        inputs, label = _parts(example, number, correct is not None)
        arrays = bind_inputs(bound, inputs)
        expected, outputs = reference(arrays), run_afresh(run, arrays)
        names = _names_to_compare(outputs, expected, output, is_other)
        is_nan = has_nan(outputs[name] for name in names)
        reference_is_nan = has_nan(expected[name] for name in names)
        right = reference_right = None
        if correct is not None:
            # NaN is never a right answer, although arg-max may find the right place.
            right = not is_nan and _is_right(correct, outputs, label, number)
            reference_right = not reference_is_nan and _is_right(correct, expected, label, number)
        flags = (right, reference_right, is_nan, reference_is_nan)
        if is_nan or reference_is_nan:
            yield Answer(*flags, relative_error=math.nan, cosine=math.nan, top1_agreement=0.0)
            continue
        every = compare(outputs, {name: expected[name] for name in names}, graph=bound.graph)
        # If every output is random, the errors are NaN.
        gaps = [gap for gap in every if gap.verdict != "undecided"] or [
            g for g in every if g.detail
        ]
        yield Answer(
            *flags,
            relative_error=max((gap.relative_error for gap in gaps), default=0.0),
            cosine=min((gap.cosine for gap in gaps), default=1.0),
            top1_agreement=min((gap.argmax_agreement for gap in gaps), default=1.0),
        )


def count_right(
    run: Callable[[list[np.ndarray]], dict[str, np.ndarray]],
    bound: BoundModel,
    examples: Sequence[Any],
    correct: Correct,
) -> int:
    """Count right answers to labelled examples; ``run`` maps inputs in order to outputs by name."""
    right = 0
    for number, example in enumerate(examples):
        inputs, label = _parts(example, number, True)
        outputs = run(bind_inputs(bound, inputs))
        right += not has_nan(outputs.values()) and _is_right(correct, outputs, label, number)
    return right


def _names_to_compare(
    outputs: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], output: str, is_other: bool
) -> list[str]:
    """Return the names of the outputs that are compared.

    ArgumentError if one is not there, has no counterpart, or another shape in another model. A
    device that changes the shape of an output of the same model is wrong instead.
    """
    if output and output not in outputs:
        raise ArgumentError(
            f"The data looks at the output {shorten(output)}, which is not there. Outputs: "
            f"{names_at_hand(outputs)}. Does it belong to another model?"
        )
    names = [output] if output else list(outputs)
    for name in names:
        if name not in exact or (is_other and outputs[name].shape != exact[name].shape):
            reference = ", ".join(f"{shorten(n, 40)} {list(a.shape)}" for n, a in exact.items())
            raise ArgumentError(
                f"The output {shorten(name)} {list(outputs[name].shape)} has nothing to be "
                f"compared with. Outputs in f32: {reference}. Is it another model?"
            )
    return names


def _is_right(correct: Correct, outputs: dict[str, np.ndarray], label: Any, number: int) -> bool:
    try:
        answer = correct(outputs, label)
        if np.ndim(answer):
            raise TypeError(f"the metric returned an array of shape {np.shape(answer)}, not a bool")
        return bool(answer)
    except ArgumentError as error:
        raise ArgumentError(f"Example {number}: {error}") from error
    except HeteroLabError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{shorten(n, 40)} {list(a.shape)}" for n, a in outputs.items())
        raise ArgumentError(
            f"Example {number}: its label {shorten(str(label), 60)} does not fit the outputs "
            f"({shapes}): {type(error).__name__}: {error}. metric= maps outputs by name and "
            "a label to a bool."
        ) from error


def _parts(example: Any, number: int, is_labelled: bool) -> tuple[Any, Any]:
    is_pair = isinstance(example, tuple) and len(example) == 2
    if is_labelled and not is_pair:
        raise ArgumentError(
            f"Example {number} is not a pair (inputs, label) but {type(example).__name__}. Without "
            "metric=, examples are inputs alone."
        )
    if not is_labelled and is_pair and isinstance(example[0], Mapping):
        return example[0], None  # without a metric, only the outputs are compared
    return example if is_labelled else (example, None)


class SweepData:
    """The examples of a sweep, checked before anything is measured.

    The reference is the first variant on one real device in f32, so that the drop of a quantised
    variant is relative to the model it was made from. Raises ArgumentError or InputError if there
    are no examples, the first one does not fit the model, or a label does not fit its outputs.
    """

    def __init__(self, data: ReadData, models: Mapping[str, BoundModel]):
        self.data, self.models = data, models
        self.mark = {"metric": data.metric, "output": data.output, "n": len(data.examples)}
        self.reference = Reference(next(iter(models.values())))
        first = data._replace(examples=data.examples[:1])
        list(judge(self.reference.compiled, self.reference, first))
        if data.correct is None:
            return
        outputs: dict[str, np.ndarray] = {}
        for number, example in enumerate(data.examples):
            inputs, label = _parts(example, number, True)
            outputs = outputs or self.reference(bind_inputs(self.reference.bound, inputs))
            _is_right(data.correct, outputs, label, number)

    def evaluate(
        self,
        trials: Sequence[Trial],
        records: Sequence[AnyRecord],
        append: Callable[[AnyRecord], object],
        progress: bool,
    ) -> None:
        """Append an ``Accuracy`` record for each measured trial without one for this data."""
        measured = {r.entry for r in records if isinstance(r, Turn)}
        done = {
            r.entry
            for r in evaluations_of(records)
            if all(getattr(r, name) == value for name, value in self.mark.items())
        }
        groups = defaultdict[Any, list[Trial]](list)
        for trial in {t.key: t for t in trials}.values():
            if trial.key in measured - done and not trial.problem:
                # Requests in flight and the executor do not change the outputs.
                properties = repr(sorted(trial.device_properties.items()))
                same = (trial.variant, trial.affinity, trial.direct, properties)
                groups[same].append(trial)
        with Progress("accuracy", show=progress, total=len(groups), unit="placements") as bar:
            for several in groups.values():
                answers = self._answers(several[0])
                for trial in several:
                    append(Accuracy(entry=trial.key, **self.mark, **answers))
                bar.advance()

    def _answers(self, trial: Trial) -> dict[str, Any]:
        try:
            run = compile_placed(trial.resolve(self.models[trial.variant]))
            return answer_fields(tuple(judge(run, self.reference, self.data)))
        except HeteroLabError as error:  # another variant may have other outputs
            return {"problem": str(error)}
