"""How far rounding can move tensors, and whether that explains what a device computes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_lab.debug.placed_runs import Tensors, TransparentModel
from hetero_lab.model.opgraph import CONVOLUTIONS
from hetero_lab.model.read import PreparedModel
from hetero_lab.runtime.pieces import TensorKey, incoming, outgoing
from hetero_lab.runtime.reference import is_exact

# Relative rounding error of one value. For f32 it is 6e-8, but each device approximates functions
# such as exp and tanh in its own way, to about 1e-5.
UNIT = {"f32": 1e-5, "f16": 2.0**-11, "bf16": 2.0**-8, "i8": 2.0**-8, "u8": 2.0**-8}
# Values below _SUBNORMAL may be flushed to zero; subnormals are _SMALLEST apart. Values above
# _LARGEST may become infinite: a tenth below the largest number, since operands are rounded, too.
_SUBNORMAL = {"f16": 2.0**-14}
_SMALLEST = {"f16": 2.0**-24}
_LARGEST = {"f16": 0.9 * 65504}
_SAMPLES = 12  # runs with exaggerated rounding: each way of drawing twice, in both directions
_MARGIN = 4.0  # the factor of exaggeration, so that the largest of a few samples is a bound
# More runs, with rounding at its own size, if the exaggerated ones do not explain a tensor. If the
# effect of rounding is normally distributed, it exceeds _BEYOND times the root mean square of these
# runs in one case of 10,000.
_MORE_SAMPLES = 16
_BEYOND = 5.13  # Student's t with 16 degrees of freedom
_CORRECTIONS = 4  # a few: each one costs a run, and follows zeros one op further

_REDUCTIONS = {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSum"}
_SUMS = CONVOLUTIONS | _REDUCTIONS | {"AvgPool", "CumSum", "MatMul"}


@dataclass(frozen=True)
class Rounding:
    """How far rounding can move a tensor.

    ``farthest`` is the largest Euclidean norm of the deviation, without elements that are ``lost``:
    those that depend on a number outside the range of its precision, or on one that rounding turns
    into infinity or NaN. They cannot be judged. ``most_odd`` elements at most become infinite or
    NaN at once.
    """

    farthest: float
    lost: np.ndarray
    most_odd: float

    def explains(self, value: np.ndarray, reference: np.ndarray) -> bool:
        if value.shape != reference.shape:
            return self.farthest == np.inf
        odd = is_odd(value, reference) & ~self.lost
        if np.count_nonzero(odd) > self.most_odd:
            return False
        return distance(value, reference, self.lost | odd) <= self.farthest


@dataclass(frozen=True)
class Sum:
    """An op whose elements are sums of ``n_terms`` terms.

    If each partial sum is rounded and the errors are independent, the error of a sum of n terms
    grows with the square root of n (Higham 2002, section 4.2).
    """

    op: str
    op_type: str
    n_terms: int
    source: TensorKey  # the terms, or their factors if there are weights
    axis: int = 0  # of CumSum
    reverse: bool = False

    def rounding(self, values: Tensors, precision: str) -> tuple[np.ndarray | float, bool]:
        """Return the error from rounding each partial sum, and whether sums keep their sign."""
        value, terms = values[self.op, 0].astype(np.float64), values.get(self.source)
        one_sided = self.op_type in ("ReduceL1", "ReduceL2") or (
            terms is not None
            and self.op_type not in CONVOLUTIONS | {"MatMul"}  # their weights have both signs
            and bool((terms >= 0).all() or (terms <= 0).all())
        )
        if self.op_type == "CumSum":
            return self._running_sum(value, terms, precision), one_sided
        # All hardware with bf16 or eight bits accumulates them in f32.
        if precision != "f16":
            return 0.0, True
        finite = value[np.isfinite(value)]
        usual = float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0
        # If terms have both signs, partial sums may be larger than their result: estimate them by
        # the size of the other elements.
        partial = np.abs(value) if one_sided else np.hypot(value, usual)
        return UNIT[precision] * np.sqrt(self.n_terms) * partial, one_sided

    @np.errstate(over="ignore", invalid="ignore")
    def _running_sum(
        self, sums: np.ndarray, terms: np.ndarray | None, precision: str
    ) -> np.ndarray:
        def along(array: np.ndarray) -> np.ndarray:  # the first axis, forwards
            array = np.moveaxis(array, self.axis, 0)
            return array[::-1] if self.reverse else array

        sums = along(sums)
        error = UNIT[precision] * np.sqrt(np.cumsum(sums * sums, 0))
        if precision in ("f16", "bf16") and terms is not None:
            # Equal terms are rounded alike, so their errors add up instead of cancelling. Simulate
            # the sum in the precision: rounded to nearest and, as in some kernels, towards zero.
            exact = along(terms).astype(np.float64)
            for towards_zero in (False, True):
                totals, total = np.empty_like(exact), np.zeros(exact.shape[1:])
                for place, term in enumerate(exact):
                    term = _round(term, precision, towards_zero)
                    totals[place] = total = _round(total + term, precision, towards_zero)
                far = np.abs(totals - np.cumsum(exact, 0))
                error = np.fmax(error, np.where(np.isfinite(far), far, 0.0))
        return np.moveaxis(error[::-1] if self.reverse else error, 0, self.axis)

    def largest(self, values: Tensors) -> np.ndarray:
        """Return the largest partial sum of each element, if its terms have one sign."""
        value = np.abs(values[self.op, 0].astype(np.float64))
        if self.op_type in ("ReduceMean", "AvgPool"):
            return value * self.n_terms
        return value * value if self.op_type == "ReduceL2" else value


def _round(value: np.ndarray, precision: str, towards_zero: bool) -> np.ndarray:
    """Round to f16, or to bf16, which is the upper half of f32."""
    if precision == "f16":
        narrow = value.astype(np.float16)
        if towards_zero:
            too_large = np.abs(narrow) > np.abs(value)
            narrow = np.where(too_large, np.nextafter(narrow, np.float16(0)), narrow)
        return narrow.astype(np.float64)
    bits = np.asarray(value, np.float32).view(np.uint32)
    if not towards_zero:  # to nearest, ties to even: the carry moves up into the upper half
        bits = bits + 0x7FFF + (bits >> 16 & 1)
    bits = bits & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def sums_of(prepared: PreparedModel) -> Iterator[Sum]:
    """Yield the ops of a model that add up many terms, if their shapes are static."""
    graph = prepared.graph
    for node in prepared.model.get_ordered_ops():
        kind, axis = node.get_type_name(), 0
        ports = [*node.inputs(), *node.outputs()]
        if kind not in _SUMS or any(port.get_partial_shape().is_dynamic for port in ports):
            continue
        if kind == "CumSum":
            constant = node.input_value(1).get_node()
            if constant.get_type_name() != "Constant":
                continue
            axis = int(np.array(constant.get_data()).item())
        name, is_reversed = node.get_friendly_name(), bool(node.get_attributes().get("reverse"))
        producer, port = graph.op(name).inputs[0]
        source = graph.ops[producer].name, port
        yield Sum(name, kind, _n_terms(node, axis), source, axis, is_reversed)


def _n_terms(node: Any, axis: int) -> int:
    attributes, kind = node.get_attributes(), node.get_type_name()
    shape, shape_out = ([*port.get_shape()] for port in (node.input(0), node.output(0)))
    if kind == "CumSum":
        return shape[axis]
    if kind == "AvgPool":
        return int(np.prod(attributes["kernel"]))
    if kind == "MatMul":
        return shape[-2 if attributes["transpose_a"] and len(shape) > 1 else -1]
    if kind in CONVOLUTIONS:
        return max(int(np.prod([*node.input(1).get_shape()])) // shape_out[1], 1)
    return max(int(np.prod(shape)) // max(int(np.prod(shape_out)), 1), 1)


class RoundingEstimates:
    """How far rounding can move the tensors of a model, whatever the precisions of its ops."""

    def __init__(self, prepared: PreparedModel, model: TransparentModel):
        graph = prepared.graph
        # Ops that turn zeros, which rounding can make, into infinity or NaN.
        poles = {
            op.type
            for op in graph
            if op.type in ("Log", "Power")
            or (op.type == "Divide" and op.inputs[1][0] not in graph.constant_side)
        }
        self.has_poles, self.divides = bool(poles), not poles.isdisjoint({"Divide", "Power"})
        self.sums = {each.op: each for each in sums_of(prepared)}
        self.graph, self.model = graph, model

    def of(
        self, precisions: Mapping[str, str], tensors: Mapping[TensorKey, np.ndarray | None]
    ) -> dict[TensorKey, Rounding]:
        """Return how far rounding can move some tensors, given the precision of each op.

        Twelve runs move the tensors that the ops read and make at random, by up to four times the
        rounding error of their precision; the largest deviation of each tensor counts. This is
        Monte Carlo arithmetic (Parker 1997), which includes how the model amplifies rounding. One
        more run makes values infinite that are too large for a precision. Another one sets values
        to zero that are subnormal in it, or that rounding moved across zero.

        If a model scrambles numbers (the sine of a large number can be anything), more noise does
        not move a tensor farther, so exaggeration gives no margin. For tensors whose values in the
        placement are given and not explained yet, the distribution of rounding at its own size is
        then estimated, as in stochastic arithmetic (Vignes 1993).
        """
        runs, rng = _NoisyRuns(self, precisions, tensors), np.random.default_rng(0)
        runs.lose(self.beyond_range(precisions))
        for draws in runs.draws(_SAMPLES // 2, rng):
            # In both directions, so that values at the edge of a function's domain leave it.
            for factor in (_MARGIN, -_MARGIN):
                runs.add_noise(draws, factor)
        runs.flush()
        runs.lose(runs.beyond)
        bounds = runs.bounds(max)
        values = {key: value for key, value in tensors.items() if value is not None}
        doubtful = self._unexplained(bounds, values)
        # Exaggerated rounding bounds rounding at its own size. If even that bound leaves a tensor
        # unexplained, more runs are a waste of time.
        widest = {
            key: replace(bounds[key], farthest=_BEYOND * bounds[key].farthest, most_odd=np.inf)
            for key in doubtful
        }
        if not doubtful or self._unexplained(widest, doubtful):
            return bounds
        for draws in runs.draws(_MORE_SAMPLES, rng):
            runs.add_noise(draws, 1.0)
        return runs.bounds(_farthest)

    def _unexplained(self, bounds: Mapping[TensorKey, Rounding], tensors: Tensors) -> Tensors:
        values = self.model.values
        return {k: t for k, t in tensors.items() if not bounds[k].explains(t, values[k])}

    def beyond_range(self, precisions: Mapping[str, str]) -> Tensors:
        """Return masks of the values that overflow in the precision of some ops."""
        masks, values = {}, self.model.values
        for key, precision in self.touched(precisions).items():
            largest = np.abs(values[key])
            if key[0] in self.sums and key[0] in precisions:
                largest = np.maximum(largest, self.sums[key[0]].largest(values))
            masks[key] = np.isfinite(values[key]) & (largest > _LARGEST.get(precision, np.inf))
        return {key: mask for key, mask in masks.items() if mask.any()}

    def touched(self, precisions: Mapping[str, str]) -> dict[TensorKey, str]:
        """Return the tensors that ops read and make, each with the lowest precision among them.

        That of its own type counts, too: a CPU without bf16 cuts bits off where it converts to it.
        """
        lowest: dict[TensorKey, str] = {}
        for op, precision in precisions.items():
            for key in {*incoming(self.graph, [op]), *outgoing(self.graph, [op])}:
                kind = self.graph.op(key[0]).outputs[key[1]].element_type
                among = (precision, lowest.get(key, kind), kind)
                lowest[key] = max(among, key=lambda each: UNIT.get(each, 0.0))
        return {
            key: lowest[key]
            for key in sorted(lowest)
            if self.model.takes_offset(key) and self.model.values[key].dtype.kind == "f"
        }


class _NoisyRuns:
    """Runs of a transparent model with offsets, and how far they moved the tensors of ``keys``.

    Tensors that the ops touch get noise of their precision. Elements that left the range of that
    are ``beyond`` it; those that may be flushed to zero are subnormal, or rounding moved them
    across it. Elements that are lost cannot be judged.
    """

    def __init__(
        self,
        estimates: RoundingEstimates,
        precisions: Mapping[str, str],
        keys: Collection[TensorKey],
    ):
        self._model, self._keys, self._has_poles = estimates.model, keys, estimates.has_poles
        values, sums = estimates.model.values, estimates.sums
        self._values, self._precisions = values, estimates.touched(precisions)
        self._sums = {
            op: sums[op].rounding(values, precisions[op])
            for op in {op for op, _ in self._precisions} & sums.keys() & precisions.keys()
        }
        # x/0 is infinite with the sign of the zero. Adding an offset to that zero loses its sign,
        # so these elements cannot be judged.
        self._lost = {
            key: np.isinf(values[key])
            if estimates.divides and values[key].dtype.kind == "f"
            else np.zeros(values[key].shape, bool)
            for key in keys
        }
        self._zero = {
            key: np.abs(values[key]) < _SUBNORMAL.get(precision, 0.0)
            for key, precision in self._precisions.items()
        }
        self.beyond: dict[TensorKey, np.ndarray] = {}
        self._watched = {k for k, p in self._precisions.items() if p in _LARGEST or self._has_poles}
        self._distances: dict[TensorKey, list[float]] = {key: [] for key in keys}
        self._n_odd: dict[TensorKey, list[int]] = {key: [] for key in keys}

    def draws(self, n: int, rng: np.random.Generator) -> Iterator[Tensors]:
        """Draw numbers between -1 and 1 in three ways in turn.

        Rounding errors may be independent, all in one direction (truncation), or equal for equal
        values; each way adds up differently in a sum.
        """
        values, precisions = self._values, self._precisions
        for turn in range(n):
            if turn % 3 == 0:
                yield {key: rng.uniform(-1.0, 1.0, values[key].shape) for key in precisions}
            elif turn % 3 == 1:
                yield {key: rng.choice([-1.0, 1.0]) * np.sign(values[key]) for key in precisions}
            else:
                table = rng.uniform(-1.0, 1.0, 2**16)
                shifts = rng.integers(table.size, size=len(precisions))
                yield {
                    key: draw_by_value(values[key], precision, table, int(shift))
                    for (key, precision), shift in zip(precisions.items(), shifts, strict=True)
                }

    def lose(self, masks: Tensors) -> None:
        """Give up the elements that depend on some that become infinite."""
        infinite = {
            key: np.where(mask, np.copysign(np.inf, self._values[key]), 0.0)
            for key, mask in masks.items()
        }
        tensors = self._model.try_run(infinite, self._keys) if infinite else {}
        for key, tensor in tensors.items():
            value = self._values[key]
            same = tensor == value
            if tensor.dtype.kind == "f":
                same |= np.isnan(tensor) & np.isnan(value)
            self._lost[key] |= ~same

    def add_noise(self, draws: Tensors, factor: float) -> None:
        """Move each tensor by random numbers, scaled to so many times its rounding error."""
        offsets = {}
        for key, precision in self._precisions.items():
            error, keeps_sign = self._sums.get(key[0], (0.0, True))
            draw = factor * draws[key]
            offsets[key] = noise(self._values[key], precision, draw, error, keeps_sign)
        self._add(offsets)

    def flush(self) -> None:
        values = self._values
        masks = {key: mask & (values[key] != 0) for key, mask in self._zero.items()}
        masks = {key: mask for key, mask in masks.items() if mask.any()}
        if not masks:
            return
        offsets = {key: np.where(mask, -values[key], 0.0) for key, mask in masks.items()}
        # Zeros upstream change a tensor before its own offset is added, so iterate a few times.
        for _ in range(_CORRECTIONS):
            tensors = self._model.try_run(offsets, masks)
            rests = {
                key: np.where(masks[key] & np.isfinite(tensor), tensor, 0.0)
                for key, tensor in tensors.items()
            }
            if not any(rest.any() for rest in rests.values()):
                break
            offsets |= {key: offsets[key] - rest for key, rest in rests.items()}
        self._add(offsets)

    def _add(self, offsets: Tensors) -> None:
        """Run with offsets, and note what they move."""
        tensors = self._model.try_run(offsets, {*self._keys, *self._watched})
        for key in self._watched & tensors.keys():
            if self._has_poles:
                self._zero[key] |= np.sign(tensors[key]) * np.sign(self._values[key]) < 0
            beyond = np.abs(tensors[key]) > _LARGEST.get(self._precisions[key], np.inf)
            if beyond.any():
                self.beyond[key] = self.beyond.get(key, False) | beyond
        for key in self._keys:
            n_odd, far = 0, np.inf  # if the shape depends on rounding, so may all values
            if key in tensors:
                odd = is_odd(tensors[key], self._values[key])
                self._lost[key] |= odd
                n_odd = int(np.count_nonzero(odd))
                far = distance(tensors[key], self._values[key], self._lost[key])
            self._n_odd[key].append(n_odd)
            self._distances[key].append(far)

    def bounds(self, of: Callable[[Sequence[float]], float]) -> dict[TensorKey, Rounding]:
        """Return how far rounding can move each tensor, by a bound of what the runs showed."""
        return {
            key: Rounding(of(self._distances[key]), self._lost[key], of(self._n_odd[key]))
            for key in self._keys
        }


def _farthest(samples: Sequence[float]) -> float:
    """Return a bound that rounding rarely exceeds; only the last samples lack a margin."""
    unscaled = np.asarray(samples[-_MORE_SAMPLES:], float)
    return max(*samples, _BEYOND * float(np.sqrt(np.mean(unscaled * unscaled))))


def noise(
    value: np.ndarray,
    precision: str,
    draw: np.ndarray,
    sum_error: np.ndarray | float,
    keeps_sign: bool,
) -> np.ndarray:
    """Scale random numbers to the size of rounding errors, at least to ``sum_error``."""
    largest = np.abs(value[np.isfinite(value)]).max(initial=0.0)
    # Eight-bit values are evenly spaced, so small ones have the same error as large ones.
    relative_to = largest if precision in ("i8", "u8") else np.abs(value)
    with np.errstate(invalid="ignore"):
        scale = np.maximum(
            UNIT[precision] * relative_to, np.maximum(_SMALLEST.get(precision, 0.0), sum_error)
        )
        offsets = draw * scale
    if keeps_sign:  # rounding a single value never crosses zero, and keeps zero
        offsets = np.where(value < 0, np.minimum(offsets, -value), np.maximum(offsets, -value))
        offsets = np.where(value == 0, 0.0, offsets)
    return np.where(np.isfinite(value), offsets, 0.0)


def draw_by_value(value: np.ndarray, precision: str, table: np.ndarray, shift: int) -> np.ndarray:
    """Look up a number for each element by its value, with the element's sign.

    Values that are equal in the precision are rounded alike, so that their errors add up in a sum
    instead of cancelling. ``table`` has 2¹⁶ numbers; a tensor begins at ``shift``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if precision == "f16":
            cells = np.abs(value).astype(np.float16).view(np.uint16)
        else:
            bits = np.abs(value).astype(np.float32).view(np.uint32)
            # bf16: the upper half of f32, rounded to nearest. f32: a hash of all its bits.
            cells = (bits ^ bits >> 16) & 0xFFFF if precision == "f32" else bits + 0x8000 >> 16
        return table[(cells.astype(np.int64) + shift) % table.size] * np.sign(value)


def distance(value: np.ndarray, reference: np.ndarray, without: np.ndarray | None = None) -> float:
    """Return the norm of a difference, or how many exact values differ, ``without`` some."""
    if value.shape != reference.shape:
        return float("inf")
    if without is not None:
        value, reference = value[~without], reference[~without]
    if is_exact(reference):
        return float(np.count_nonzero(value != reference))
    a, b = value.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    return float(np.linalg.norm(a[finite] - b[finite]))


def is_odd(value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return where one of two tensors of equal shape is infinite or NaN and the other differs."""
    if reference.dtype.kind != "f":
        return np.zeros(reference.shape, bool)
    both_finite = np.isfinite(value) & np.isfinite(reference)
    return ~(both_finite | (value == reference) | (np.isnan(value) & np.isnan(reference)))


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    """Return the relative error of a tensor (Euclidean norm); the share that differs, if exact."""
    return relative_to(distance(value, reference), reference)


def relative_to(far: float, reference: np.ndarray) -> float:
    """Return a distance relative to the reference: its norm or, if exact, size, unless zero."""
    if is_exact(reference):
        return far / (reference.size or 1)
    wide = reference.astype(np.float64)
    return far / (float(np.linalg.norm(wide[np.isfinite(wide)])) or 1.0)


def offset_from(value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return what is added to a reference to make a value of the same shape."""
    if reference.dtype.kind == "b":
        return value ^ reference
    same = value == reference
    with np.errstate(invalid="ignore", over="ignore"):
        # Equal infinities have no difference to propagate.
        return np.where(same, 0, value - reference).astype(reference.dtype)
