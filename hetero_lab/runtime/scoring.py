"""Judge the outputs of a compiled placement for examples, and compare them with f32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.errors import ArgumentError, HeteroLabError, names_at_hand, shorten
from hetero_lab.runtime.compiled import CompiledPlacement
from hetero_lab.runtime.inputs import bind_inputs
from hetero_lab.runtime.reference import Reference, compare

Correct: TypeAlias = Callable[[Mapping[str, np.ndarray], Any], bool]


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


def judge(
    run: CompiledPlacement,
    reference: Reference,
    examples: Iterable[Any],
    *,
    correct: Correct | None,
    output: str = "",
) -> Iterator[Answer]:
    """Run example by example and judge the outputs, or only ``output`` if it is not empty.

    Examples are ``(inputs, label)`` if ``correct`` is given, which maps outputs and a label to
    whether they fit; else inputs alone. InputError if inputs do not fit the model; ArgumentError if
    a label does not fit, or the output does not exist.
    """
    for number, example in enumerate(examples):
        inputs, label = _parts(example, number, correct is not None)
        arrays = bind_inputs(run.placed.bound, inputs)
        expected, found = reference(arrays), run(arrays)
        yield _judge_one(found, expected, label, correct, output, number)


def count_right(
    run: Callable[[list[np.ndarray]], dict[str, np.ndarray]],
    bound: BoundModel,
    examples: Sequence[Any],
    correct: Correct,
) -> int:
    """Return the number of labelled examples with right answers.

    ``run`` maps inputs in the model's order to outputs by name.
    """
    right = 0
    for number, example in enumerate(examples):
        inputs, label = _parts(example, number, True)
        found = run(bind_inputs(bound, inputs))
        right += not _has_nan(found.values()) and _is_right(correct, found, label, number)
    return right


def check_labels(reference: Reference, examples: Sequence[Any], correct: Correct) -> None:
    """Raise ArgumentError for a label that does not fit the outputs of the first example."""
    outputs: dict[str, np.ndarray] = {}
    for number, example in enumerate(examples):
        inputs, label = _parts(example, number, True)
        outputs = outputs or reference(bind_inputs(reference.bound, inputs))
        _is_right(correct, outputs, label, number)


def _judge_one(
    found: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    label: Any,
    correct: Correct | None,
    output: str,
    number: int,
) -> Answer:
    if output and output not in found:
        raise ArgumentError(
            f"The data looks at the output {shorten(output)}, which is not there. Outputs: "
            f"{names_at_hand(found)}. Does it belong to another model?"
        )
    names = [output] if output else list(found)
    for name in names:
        if name not in expected or found[name].shape != expected[name].shape:
            reference = ", ".join(f"{shorten(n, 40)} {list(a.shape)}" for n, a in expected.items())
            raise ArgumentError(
                f"The output {shorten(name)} {list(found[name].shape)} has nothing to be compared "
                f"with. Outputs in f32: {reference}. Is it another model?"
            )
    is_nan = _has_nan(found[name] for name in names)
    reference_is_nan = _has_nan(expected[name] for name in names)
    right = reference_right = None
    if correct is not None:
        # NaN is never a right answer, although arg-max may find the right place.
        right = not is_nan and _is_right(correct, found, label, number)
        reference_right = not reference_is_nan and _is_right(correct, expected, label, number)
    if is_nan or reference_is_nan:
        nan = float("nan")
        return Answer(right, reference_right, is_nan, reference_is_nan, nan, nan, 0.0)
    gaps = compare({n: found[n] for n in names}, {n: expected[n] for n in names})
    return Answer(
        right=right,
        reference_right=reference_right,
        is_nan=False,
        reference_is_nan=False,
        relative_error=max(gap.relative_error for gap in gaps),
        cosine=min(gap.cosine for gap in gaps),
        top1_agreement=min(gap.argmax_agreement for gap in gaps),
    )


def _is_right(correct: Correct, outputs: dict[str, np.ndarray], label: Any, number: int) -> bool:
    try:
        found = correct(outputs, label)
        if np.ndim(found):
            raise TypeError(f"the metric returned an array of shape {np.shape(found)}, not a bool")
        return bool(found)
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


def _has_nan(arrays: Iterable[np.ndarray]) -> bool:
    return any(a.dtype.kind == "f" and bool(np.isnan(a).any()) for a in arrays)
