"""The effect of rounding on values and on long sums, and the range of each precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_lab.model.opgraph import CONVOLUTIONS
from hetero_lab.model.read import PreparedModel
from hetero_lab.runtime.pieces import TensorKey
from hetero_lab.runtime.reference import is_exact

# Relative rounding error of one value. For f32 it is 6e-8, but each device approximates functions
# such as exp and tanh in its own way, to about 1e-5.
UNIT = {"f32": 1e-5, "f16": 2.0**-11, "bf16": 2.0**-8, "i8": 2.0**-8, "u8": 2.0**-8}
# Values below SUBNORMAL may be flushed to zero; subnormals are _SMALLEST apart. Values above
# LARGEST may become infinite: a tenth below the largest number, since operands are rounded as well.
SUBNORMAL = {"f16": 2.0**-14}
_SMALLEST = {"f16": 2.0**-24}
LARGEST = {"f16": 0.9 * 65504}

_MEANS = frozenset({"ReduceMean", "AvgPool"})
_REDUCTIONS = frozenset(
    {"ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}
)
_SUMS = _REDUCTIONS | CONVOLUTIONS | {"MatMul", "CumSum", "AvgPool"}


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
        """Return whether rounding alone may explain a tensor."""
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

    def rounding(
        self, values: Mapping[TensorKey, np.ndarray], precision: str
    ) -> tuple[np.ndarray | float, bool]:
        """Return the error from rounding each partial sum, and whether sums keep their sign."""
        value = values[self.op, 0].astype(np.float64)
        one_sided = self._terms_have_one_sign(values)
        if self.op_type == "CumSum":
            return self._running_sum(values, precision), one_sided
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
    def _running_sum(self, values: Mapping[TensorKey, np.ndarray], precision: str) -> np.ndarray:
        def forward(array: np.ndarray) -> np.ndarray:
            return np.flip(array, self.axis) if self.reverse else array

        sums = forward(values[self.op, 0].astype(np.float64))
        error = UNIT[precision] * np.sqrt(np.cumsum(sums * sums, self.axis))
        terms = values.get(self.source)
        if precision in ("f16", "bf16") and terms is not None:
            # Equal terms are rounded alike, so their errors add up instead of cancelling. Simulate
            # the sum in the precision: rounded to nearest and, as in some kernels, towards zero.
            exact = np.moveaxis(forward(terms).astype(np.float64), self.axis, 0)
            for towards_zero in (False, True):
                totals, total = np.empty_like(exact), np.zeros(exact.shape[1:])
                for place, term in enumerate(exact):
                    term = _rounded(term, precision, towards_zero)
                    totals[place] = total = _rounded(total + term, precision, towards_zero)
                far = np.moveaxis(np.abs(totals - np.cumsum(exact, 0)), 0, self.axis)
                error = np.fmax(error, np.where(np.isfinite(far), far, 0.0))
        return forward(error)

    def largest(self, values: Mapping[TensorKey, np.ndarray]) -> np.ndarray:
        """Return the largest partial sum of each element, if its terms have one sign."""
        value = np.abs(values[self.op, 0].astype(np.float64))
        if self.op_type in _MEANS:
            return value * self.n_terms
        return value * value if self.op_type == "ReduceL2" else value

    def _terms_have_one_sign(self, values: Mapping[TensorKey, np.ndarray]) -> bool:
        if self.op_type in ("ReduceL1", "ReduceL2"):
            return True
        if self.op_type == "MatMul" or self.op_type in CONVOLUTIONS:
            return False  # their weights have both signs
        terms = values.get(self.source)
        return terms is not None and bool((terms >= 0).all() or (terms <= 0).all())


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


def size(value: np.ndarray) -> float:
    """Return the norm of the finite elements of a tensor; their number, if they are exact."""
    if is_exact(value):
        return float(value.size)
    wide = value.astype(np.float64)
    return float(np.linalg.norm(wide[np.isfinite(wide)]))


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    """Return the relative error of a tensor (Euclidean norm); the share that differs, if exact."""
    return relative_to(distance(value, reference), reference)


def relative_to(far: float, reference: np.ndarray) -> float:
    """Return a distance relative to the norm of the reference, unless that is zero."""
    norm = size(reference)
    return far / norm if norm else far


def noise(
    value: np.ndarray,
    precision: str,
    drawn: np.ndarray,
    summed: np.ndarray | float,
    keeps_sign: bool,
) -> np.ndarray:
    """Scale random numbers to the size of rounding errors; ``summed`` is the error of a sum."""
    largest = np.abs(value[np.isfinite(value)]).max(initial=0.0)
    # Eight-bit values are evenly spaced, so small ones have the same error as large ones.
    relative_to = largest if precision in ("i8", "u8") else np.abs(value)
    with np.errstate(invalid="ignore"):
        scale = np.maximum(
            UNIT[precision] * relative_to, np.maximum(_SMALLEST.get(precision, 0.0), summed)
        )
        offsets = drawn * scale
    if keeps_sign:  # rounding a single value never crosses zero, and keeps zero
        offsets = np.where(value < 0, np.minimum(offsets, -value), np.maximum(offsets, -value))
        offsets = np.where(value == 0, 0.0, offsets)
    return np.where(np.isfinite(value), offsets, 0.0)


def drawn_by_value(value: np.ndarray, precision: str, table: np.ndarray, shift: int) -> np.ndarray:
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


def _rounded(value: np.ndarray, precision: str, towards_zero: bool) -> np.ndarray:
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
        op_type = node.get_type_name()
        if op_type not in _SUMS:
            continue
        if any(p.get_partial_shape().is_dynamic for p in (*node.inputs(), *node.outputs())):
            continue
        name = node.get_friendly_name()
        producer, port = graph.ops[graph.index_of[name]].inputs[0]
        attributes = node.get_attributes()
        axis = 0
        if op_type == "CumSum":
            constant = node.input_value(1).get_node()
            if constant.get_type_name() != "Constant":
                continue
            axis = int(np.array(constant.get_data()).reshape(-1)[0])
        yield Sum(
            name,
            op_type,
            _n_terms(node, attributes, axis),
            (graph.ops[producer].name, port),
            axis,
            bool(attributes.get("reverse")),
        )


def _n_terms(node: Any, attributes: Mapping[str, Any], axis: int) -> int:
    op_type = node.get_type_name()
    shape = [int(n) for n in node.input(0).get_shape()]
    if op_type == "CumSum":
        return shape[axis]
    if op_type == "AvgPool":
        return int(np.prod(attributes["kernel"]))
    if op_type == "MatMul":
        return shape[-2 if attributes["transpose_a"] and len(shape) > 1 else -1]
    if op_type in CONVOLUTIONS:
        weights = [int(n) for n in node.input(1).get_shape()]
        inner = int(np.prod(weights)) // int(node.output(0).get_shape()[1])
        return max(inner, 1)
    return max(int(np.prod(shape)) // max(int(np.prod(list(node.output(0).get_shape()))), 1), 1)


def offset_from(value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return what is added to a reference to make a value of the same shape."""
    if reference.dtype.kind == "b":
        return value ^ reference
    same = value == reference
    with np.errstate(invalid="ignore", over="ignore"):
        # Equal infinities have no difference to propagate.
        return np.where(same, 0, value - reference).astype(reference.dtype)
