"""What a compiled placement answers to examples, judged and compared with f32."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.errors import ArgumentError, HeteroLabError, names_at_hand, shorten
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.runtime.compiled import CompiledPlacement, compile_placed
from hetero_lab.runtime.inputs import bind_inputs, digest_of
from hetero_lab.runtime.reference import compare, reference_device

Correct: TypeAlias = Callable[[Mapping[str, np.ndarray], Any], bool]

_MOST_BYTES = 256 << 20  # of f32 outputs that are kept for another time
_kept: OrderedDict[tuple[str, str, str], tuple[np.ndarray, ...]] = OrderedDict()
_kept_lock = threading.Lock()


@dataclass(frozen=True)
class Answer:
    """One example: whether it was right, and how far the outputs are from those in f32.

    ``right`` and ``reference_right`` are ``None`` without a label. The errors are the worst of
    all outputs that were looked at: Euclidean norm of the difference over that of f32, cosine,
    share of equal arg-max positions along the last axis. Errors are NaN where an output is.
    """

    right: bool | None
    reference_right: bool | None
    is_nan: bool
    reference_is_nan: bool
    relative_error: float
    cosine: float
    top1_agreement: float


class F32Reference:
    """The model on one real device in f32; its outputs are kept for as long as the process lives.

    Raises
    ------
    DeviceError
        No single device here supports the whole model.
    """

    def __init__(self, bound: BoundModel):
        self.bound = bound
        self.device = reference_device(bound)
        self._compiled: CompiledPlacement | None = None

    def __call__(self, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs for inputs in the model's order; not to be written into."""
        key = (self.bound.fingerprint, self.device, digest_of(arrays))
        with _kept_lock:
            found = _kept.get(key)
            if found is not None:
                _kept.move_to_end(key)
        if found is None:
            found = tuple(self.compiled(arrays).values())
            _keep(key, found)
        return dict(zip(self.bound.output_names, found, strict=True))

    @property
    def compiled(self) -> CompiledPlacement:
        """The model, compiled when it is first needed."""
        if self._compiled is None:
            placement = Placement(
                Affinity.on_one(self.bound.graph, self.device),
                label="f32",
                device_properties={self.device: {"INFERENCE_PRECISION_HINT": "f32"}},
                direct=True,
            )
            self._compiled = compile_placed(resolve(self.bound, placement))
        return self._compiled


def judge(
    run: CompiledPlacement,
    reference: F32Reference,
    examples: Iterable[Any],
    *,
    correct: Correct | None,
    output: str = "",
) -> Iterator[Answer]:
    """Run example by example and judge what comes out.

    Parameters
    ----------
    run, reference
        What is judged, and what it is compared with.
    examples
        ``(inputs, label)`` if ``correct`` is given, else inputs alone.
    correct
        From outputs and label to whether they fit.
    output
        The only output to look at; all of them if empty.

    Raises
    ------
    InputError
        Inputs that do not fit the model.
    ArgumentError
        Labels that do not fit, an output that is not there.
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
    """Return how many labelled examples are answered right, whatever runs the model.

    ``run`` goes from inputs in the model's order to outputs by name.

    Raises
    ------
    InputError, ArgumentError
        Inputs or labels that do not fit.
    """
    right = 0
    for number, example in enumerate(examples):
        inputs, label = _parts(example, number, True)
        found = run(bind_inputs(bound, inputs))
        right += not _has_nan(found.values()) and _is_right(correct, found, label, number)
    return right


def check_labels(reference: F32Reference, examples: Sequence[Any], correct: Correct) -> None:
    """Raise ArgumentError for a label that does not fit the outputs, which are inferred once."""
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
        # What is not a number answers nothing, whatever arg-max makes of it.
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
            f"({shapes}): {type(error).__name__}: {error}. metric= goes from outputs by name and "
            "a label to a bool."
        ) from error


def _parts(example: Any, number: int, is_labelled: bool) -> tuple[Any, Any]:
    is_pair = isinstance(example, tuple) and len(example) == 2
    if is_labelled and not is_pair:
        raise ArgumentError(
            f"Example {number} is no pair (inputs, label) but {type(example).__name__}. Without "
            "metric= examples are inputs alone."
        )
    if not is_labelled and is_pair and isinstance(example[0], Mapping):
        return example[0], None  # labelled examples of which only the outputs are compared
    return example if is_labelled else (example, None)


def _has_nan(arrays: Iterable[np.ndarray]) -> bool:
    return any(a.dtype.kind == "f" and bool(np.isnan(a).any()) for a in arrays)


def _keep(key: tuple[str, str, str], outputs: tuple[np.ndarray, ...]) -> None:
    with _kept_lock:
        _kept[key] = outputs
        total = sum(array.nbytes for kept in _kept.values() for array in kept)
        while total > _MOST_BYTES and len(_kept) > 1:
            _, dropped = _kept.popitem(last=False)
            total -= sum(array.nbytes for array in dropped)
