"""Compare outputs with one device in f32: tell rounding from faults, judge labelled examples."""

from __future__ import annotations

import math
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from hetero_lab.devices.core import BoundModel, emulated_devices
from hetero_lab.devices.devices import device_names, supported_ops
from hetero_lab.devices.properties import PRECISION_HINT
from hetero_lab.errors import DeviceError, HeteroLabError, names_at_hand, shorten
from hetero_lab.model.opgraph import CONSTANT, RANDOM, Op, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import BoundPlacement, Placement, resolve
from hetero_lab.runtime.compiled import CompiledPlacement, compile_placed, property_values
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.inputs import MOVERS, digest_of
from hetero_lab.runtime.pieces import FLOATS

Verdict = Literal["equal", "rounding", "undecided", "different", "not a number"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # the worst last
Origin: TypeAlias = tuple[tuple[str, ...], bool]

# Relative error (Euclidean norm) up to which an output counts as the same computation. The
# machine epsilons are 6e-8, 5e-4 and 4e-3; a deep network amplifies them some thirty times.
TOLERANCE = {"f32": 1e-3, "f16": 2e-2, "bf16": 1.5e-1, "i8": 3e-1, "u8": 3e-1}
_LONG_NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_FEW_BITS = frozenset({"i8", "u8", "i4", "u4", "i2", "u2", "nf4"})
_MONOTONE = frozenset({"AvgPool", "Clamp", "MaxPool", "ReduceMax", "Relu"})
_LAYOUTS = frozenset({"Concat", "DepthToSpace", "Pad", "ShuffleChannels", "SpaceToDepth"})
# These ops keep 8-bit values in 8 bits.
_KEEPS_VALUES = MOVERS | _MONOTONE | _LAYOUTS
_CONVOLUTIONS = ("convolution", "deconvolution", "groupconvolution")
_PRODUCTS, _POOLINGS = ("fullyconnected", "gemm", "matmul"), ("avgpool", "maxpool", "pooling")
# Counters of nodes that compute with quantised values, not with indices, masks or conversions.
_ARITHMETIC = (*_CONVOLUTIONS, *_PRODUCTS, *_POOLINGS, "eltwise", "reduce", "subgraph")
_ROUNDING_FACTOR = 2.0  # of one device's error in that precision: others round in another order
_LARGE = 1e100  # its square, of any number of values, is far from the largest f64 (1.8e308)
_MUCH = 0.25  # a relative error that a user should hear of, although rounding explains it
ROUNDED = FLOATS | {"f8e4m3", "f8e5m2", "f8e8m0", "f4e2m1", "nf4"}  # others are equal or not
_MOST_BYTES = 256 << 20  # the largest total size of kept reference outputs
_outputs: OrderedDict[tuple[str, str, str, str], tuple[np.ndarray, ...]] = OrderedDict()
_outputs_lock = threading.Lock()


if TYPE_CHECKING:
    Number: TypeAlias = float
else:
    Number = float | None  # only in files, where null stands for NaN


@dataclass(frozen=True, slots=True)
class Agreement:
    """The comparison of one output with the reference.

    ``relative_error`` is the Euclidean norm of the difference over that of the reference;
    ``argmax_agreement`` is the share of equal arg-max positions along the last axis. ``verdict`` is
    ``equal`` within f32's tolerance, ``rounding`` within that of the executed ``precision``, and
    ``different`` beyond; it is ``not a number`` if infinities or NaNs differ, and ``undecided`` if
    both outputs have nothing else, are empty, or differ and depend on random ops. ``not_finite`` is
    the share of infinities and NaNs in the reference.

    Integers, booleans and text are equal or not; the relative error is the share that differs, and
    ``rounding`` only where numbers choose them, such as positions of the largest. ``detail`` says
    how many differ, or why nothing is decided.
    """

    output: str
    max_abs_difference: Number
    max_relative_difference: Number
    relative_error: Number
    cosine: Number
    argmax_agreement: Number
    precision: str
    tolerance: float
    verdict: Verdict
    not_finite: float = 0.0
    detail: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is None:
                object.__setattr__(self, field.name, math.nan)

    @property
    def is_wrong(self) -> bool:
        """Whether the output is further from the reference than rounding explains."""
        return self.verdict in ("different", "not a number")


def origins(graph: OpGraph) -> list[Origin]:
    """Return the random ops behind each output, and whether rounding may change it."""
    by_output: list[Origin] = []
    for result in graph.results:
        before = graph.reach([result], forward=False) - graph.constant_side
        ops = [graph.ops[index] for index in sorted(before)]
        rounded = any(not ROUNDED.isdisjoint(op.element_types) for op in ops)
        by_output.append((tuple(op.name for op in ops if op.is_any_of(RANDOM)), rounded))
    return by_output


def large_roundings(agreement: Iterable[Agreement]) -> list[float]:
    """Return the relative errors that rounding explains, and that a user should hear of."""
    return [
        a.relative_error for a in agreement if a.verdict == "rounding" and a.relative_error > _MUCH
    ]


def agreement_notes(agreement: Iterable[Agreement], argument: str = "inputs=") -> Iterator[str]:
    """Say which outputs are random, rounded a lot, have NaN in the reference, or no values at all.

    ``argument`` is the way to give other inputs.
    """
    entries = list(agreement)
    undecided = [a for a in entries if a.verdict == "undecided"]
    for a in {a.output: a for a in undecided if a.detail}.values():
        yield f"Output {shorten(a.output)} cannot be compared: {a.detail}."
    unknown = dict.fromkeys(a.output for a in undecided if not a.detail)
    if unknown:
        yield (
            f"Nothing to compare in {names_at_hand(unknown, 4)}: empty, or nothing but NaN and "
            f"infinities, in the reference, too. Give inputs that suit the model, with {argument}."
        )
    partly = [a for a in entries if a.not_finite and a.verdict in ("equal", "rounding")]
    if partly:
        worst = max(partly, key=lambda a: a.not_finite)
        yield (
            f"NaN or infinite in the reference, too: up to {worst.not_finite:.1%} of "
            f"{names_at_hand(dict.fromkeys(a.output for a in partly), 4)}. The rest was compared."
        )
    rounded = [a for a in entries if large_roundings([a])]
    if rounded:
        worst = max(rounded, key=lambda a: a.relative_error)
        yield (
            f"Rounding in {worst.precision} changes {shorten(worst.output)} by "
            f"{worst.relative_error:.0%}. Labelled data can tell whether that is right enough; "
            "f32 rounds less."
        )


class Reference:
    """A model on one real device in one precision, compiled when no outputs are kept."""

    def __init__(self, bound: BoundModel, precision: str = "f32"):
        self.bound = bound
        self._precision = precision
        self._placement = reference_placement(bound, precision)

    def __call__(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs for inputs in the model's order."""
        digest = digest_of(arrays)
        key = (self.bound.fingerprint, str(self._placement.devices), self._precision, digest)
        outputs = keep_reference(key, lambda: tuple(run_afresh(self.compiled, arrays).values()))
        # The fingerprint does not cover the names of outputs, so they are this model's own.
        return dict(zip(self.bound.output_names, outputs, strict=True))

    @cached_property
    def compiled(self) -> CompiledPlacement:
        return compile_placed(self._placement)


def run_afresh(compiled: CompiledPlacement, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Infer once from the initial states, whatever ran before; return the outputs by name."""
    compiled.reset_state()
    return compiled(list(arrays))


def reference_placement(
    bound: BoundModel, precision: str = "f32", properties: Mapping[str, Any] | None = None
) -> BoundPlacement:
    """Return the placement of a reference: one device in one precision, with more properties."""
    device = reference_device(bound)
    placement = Placement(
        Affinity.on_one(bound.graph, device),
        label="reference",
        device_properties={device: {**(properties or {}), PRECISION_HINT: precision}},
        direct=True,
    )
    return resolve(bound, placement)


def keep_reference(
    key: tuple[str, str, str, str], make: Callable[[], tuple[np.ndarray, ...]]
) -> tuple[np.ndarray, ...]:
    """Return copies of the kept outputs of a reference; make and keep them if there are none."""
    with _outputs_lock:
        outputs = _outputs.get(key)
    if outputs is None:
        outputs = make()
    with _outputs_lock:
        _outputs[key] = outputs
        _outputs.move_to_end(key)
        total = sum(array.nbytes for arrays in _outputs.values() for array in arrays)
        while total > _MOST_BYTES and len(_outputs) > 1:
            _, dropped = _outputs.popitem(last=False)
            total -= sum(array.nbytes for array in dropped)
    return tuple(array.copy() for array in outputs)


def compare_with_reference(
    bound: BoundModel,
    arrays: Sequence[np.ndarray],
    outputs: Mapping[str, np.ndarray],
    precision: str,
    *,
    expected: Mapping[str, np.ndarray] | None = None,
) -> tuple[Agreement, ...]:
    """Compare outputs with those of one device in f32, ``expected`` if they are known.

    Some models amplify rounding far more than others. If an output has a larger error than usual
    for its precision, the whole model runs in that precision on one device, and up to twice the
    error of that run counts as rounding.
    """
    if expected is None:
        expected = Reference(bound)(arrays)
    agreement = compare(outputs, expected, precision, bound.graph)
    if all(a.verdict != "different" for a in agreement) or precision not in ("f16", "bf16"):
        return agreement
    try:
        rounded = Reference(bound, precision)(arrays)
    except HeteroLabError:  # the reference device does not have that precision
        return agreement
    errors = {
        a.output: a.relative_error for a in compare(rounded, expected, precision, bound.graph)
    }
    return tuple(_forgive(a, _ROUNDING_FACTOR * errors[a.output]) for a in agreement)


def _forgive(agreement: Agreement, tolerance: float) -> Agreement:
    # An error as large as the result itself is never rounding, however low the precision.
    tolerance = max(agreement.tolerance, min(tolerance, 1.0))
    if agreement.verdict == "different" and agreement.relative_error <= tolerance:
        return replace(agreement, tolerance=tolerance, verdict="rounding")
    return agreement


def compare(
    outputs: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    precision: str = "f32",
    graph: OpGraph | None = None,
) -> tuple[Agreement, ...]:
    """Compare outputs by name; ``precision`` is the lowest executed one.

    With a model's ``graph`` and all its ``outputs`` in order, random ops count, and rounding.
    """
    origin = dict(zip(outputs, graph.derived(origins) if graph else (), strict=False))
    return tuple(
        _compare_one(name, outputs[name], reference[name], precision, origin.get(name, ((), False)))
        for name in reference
    )


def is_exact(array: np.ndarray) -> bool:
    """Tell whether values are equal or not, and never nearly: integers, booleans, text."""
    return array.dtype.kind not in "fc"


def executed_precision(rows: Sequence[Counter], compiled: CompiledPlacement) -> str:
    """Return the lowest executed precision, or the lowest requested one without counters."""
    placement = compiled.placed.placement
    hints: list[object] = [
        placement.device_properties.get(device, {}).get(PRECISION_HINT)
        for device in placement.devices
    ]
    for model in compiled.compiled_models if None in hints else ():
        hints += property_values(model, PRECISION_HINT).values()
    return lowest_precision(rows, compiled.placed.graph, hints)


def lowest_precision(rows: Sequence[Counter], graph: OpGraph, hints: Iterable[object]) -> str:
    """Return the lowest precision in the counters, else in the devices' hints.

    8 bits count where a quantised model computes in them: indices and masks may have 8 bits as
    well. The counters do not show the ops inside of others; these compute in what was asked for.
    """
    quantised = _rounds_to_8_bits(graph)
    executed = [
        row.precision
        for row in rows
        if row.status == "EXECUTED"
        and row.precision
        and (
            row.precision not in _FEW_BITS
            or (quantised and row.node_type.lower().startswith(_ARITHMETIC))
        )
    ]
    if executed and not any(op.bodies for op in graph):
        return _lowest(executed)
    hint = hinted_precision(hints)
    return _lowest([*executed, hint, *(["i8"] if quantised_ops(graph) else [])])


def hinted_precision(hints: Iterable[object]) -> str:
    """Return the lowest precision of devices' hints, f32 without hints."""
    texts = [str(hint) for hint in hints if hint is not None]
    return _lowest(
        next((short for long, short in _LONG_NAMES.items() if long in text), text) for text in texts
    )


def quantised_ops(graph: OpGraph, *, dynamic: bool = True) -> frozenset[str]:
    """Return the ops that may be computed in 8 bits, whatever the hint.

    These are FakeQuantize, the ops that read its values, and if quantisation is ``dynamic``,
    MatMuls with weights of at most 8 bits, whose other input the CPU plugin quantises at run time.
    Images in 8 bits and the weights of other ops are converted first.
    """
    carriers: set[int] = set()
    stored: set[int] = set()  # constants of at most 8 bits, and the constants made from them
    names: set[str] = set()
    for op in graph:
        producers = {producer for producer, _ in op.inputs}
        reads, reads_stored = bool(producers & carriers), bool(producers & stored)
        hands_on = op.type == "FakeQuantize" or (reads and op.type in _KEEPS_VALUES)
        is_constant = op.index in graph.constant_side
        if hands_on and not is_constant:
            carriers.add(op.index)
        few = reads_stored or any(tensor.element_type in _FEW_BITS for tensor in op.outputs)
        if few and (is_constant or op.type == CONSTANT):
            stored.add(op.index)
        if (
            reads
            or op.index in carriers
            or (dynamic and op.type == "MatMul" and reads_stored)
            or any(quantised_ops(body, dynamic=dynamic) for body in op.bodies)
        ):
            names.add(op.name)
    return frozenset(names)


def _rounds_to_8_bits(graph: OpGraph) -> bool:
    """Tell whether a model is quantised, or rounds values to 8 bits and reads them as numbers."""

    def converts(op: Op, few: bool) -> bool:
        return op.type == "Convert" and (op.outputs[0].element_type in _FEW_BITS) == few

    makers = (graph.ops[op.inputs[0][0]] for op in graph if converts(op, few=False))
    rounded = (op.inputs[0] for op in makers if converts(op, few=True))
    types = (graph.ops[producer].outputs[port].element_type for producer, port in rounded)
    inside = any(_rounds_to_8_bits(body) for op in graph for body in op.bodies)
    return inside or bool(quantised_ops(graph)) or not ROUNDED.isdisjoint(types)


def _lowest(precisions: Iterable[str]) -> str:
    candidates = [precision for precision in precisions if precision in TOLERANCE]
    return max(candidates, key=lambda precision: TOLERANCE[precision], default="f32")


def _compare_one(
    name: str, output: np.ndarray, expected: np.ndarray, precision: str, origin: Origin
) -> Agreement:
    nan, (random, is_rounded) = float("nan"), origin
    unknown = Agreement(name, nan, nan, nan, nan, nan, precision, TOLERANCE[precision], "undecided")
    if output.shape != expected.shape:
        detail = f"in shape, {list(output.shape)} instead of {list(expected.shape)}"
        all_of_it = {"relative_error": 1.0, "cosine": 0.0, "argmax_agreement": 0.0}
        agreement = replace(unknown, verdict="different", detail=detail, **all_of_it)
    elif is_exact(expected):
        agreement = _compare_exactly(unknown, output, expected, is_rounded)
    else:
        agreement = _compare_numbers(unknown, output, expected)
    if agreement.is_wrong and random:
        detail = f"it depends on {names_at_hand(random, 4)}, random by itself"
        return replace(unknown, detail=detail)
    return agreement


def _compare_exactly(
    unknown: Agreement, output: np.ndarray, expected: np.ndarray, is_rounded: bool
) -> Agreement:
    if not expected.size:
        return unknown
    differs = np.asarray(output != expected)
    n_different, far = int(np.count_nonzero(differs)), 0.0
    share, tolerance = n_different / expected.size, unknown.tolerance if is_rounded else 0.0
    if n_different:  # f64 cannot tell large integers apart
        a, b = (array[differs] if array.dtype.kind in "iu" else 0 for array in (output, expected))
        far = max(1.0, float(np.abs(np.subtract(a, b, dtype=np.float64)).max()))
    verdict: Verdict = "rounding" if share <= tolerance else "different"
    return replace(
        unknown,
        max_abs_difference=far,
        max_relative_difference=share,
        relative_error=share,
        cosine=1.0 - share,
        argmax_agreement=1.0 - share,
        tolerance=tolerance,
        verdict=verdict if n_different else "equal",
        detail=f"in {n_different:,} of {expected.size:,} values" if n_different else "",
    )


def _compare_numbers(unknown: Agreement, output: np.ndarray, expected: np.ndarray) -> Agreement:
    a, b = output.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    # Infinities and NaNs have to be in the same places.
    not_finite = 1.0 - float(np.isfinite(b).mean()) if b.size else 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    odd_ones_agree = bool(np.array_equal(a[~finite], b[~finite], equal_nan=True))
    if odd_ones_agree and not finite.any():
        return replace(unknown, not_finite=not_finite)
    a, b = a[finite], b[finite]
    # Sums of squares overflow with values near the largest f64, so scale them down first.
    unit = max(1.0, float(np.abs(np.concatenate([a, b])).max(initial=0.0)) / _LARGE)
    a, b = a / unit, b / unit
    gap = np.abs(a - b)
    norm_a, norm_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    error = float(np.linalg.norm(gap)) / norm_b if norm_b else float(np.linalg.norm(gap))
    scale = np.maximum(np.abs(b), np.finfo(np.float32).tiny)
    cosine = float(a @ b / (norm_a * norm_b)) if norm_a and norm_b else float(norm_a == norm_b)
    if not odd_ones_agree:
        verdict: Verdict = "not a number"
    elif error <= TOLERANCE["f32"]:
        verdict = "equal"
    else:
        verdict = "rounding" if error <= unknown.tolerance else "different"
    return replace(
        unknown,
        max_abs_difference=min(float(gap.max(initial=0.0)), sys.float_info.max / unit) * unit,
        max_relative_difference=float((gap / scale).max(initial=0.0)),
        relative_error=error,
        cosine=cosine,
        argmax_agreement=_argmax_agreement(output, expected),
        verdict=verdict,
        not_finite=not_finite,
    )


def _argmax_agreement(output: np.ndarray, expected: np.ndarray) -> float:
    if output.ndim == 0 or output.shape[-1] < 2 or output.size == 0:
        return float(np.mean(output == expected)) if output.size else 1.0
    return float(np.mean(output.argmax(-1) == expected.argmax(-1)))


def reference_device(bound: BoundModel) -> str:
    """Return the real device for f32 references, preferably CPU; DeviceError if there is none."""
    emulated = emulated_devices(bound.core)
    real = [device for device in device_names(bound.core) if device not in emulated]
    ops = set(Affinity.on_one(bound.graph, real[0]).ops) if real else set()
    for device in sorted(real, key=lambda name: name != "CPU"):
        if ops <= supported_ops(bound, device):
            return device
    raise DeviceError(
        f"No single device here ({', '.join(real)}) supports the whole model, so there is no "
        "reference to compare with. Pass reference=False."
    )
