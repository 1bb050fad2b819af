"""A model with every tensor visible: its value, and the effect of rounding or of an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.debug.rounding import (
    LARGEST,
    SUBNORMAL,
    UNIT,
    Rounding,
    distance,
    drawn_by_value,
    is_odd,
    noise,
    sums_of,
)
from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT, Op, OpGraph
from hetero_lab.model.read import PreparedModel, op_graph
from hetero_lab.runtime.inputs import to_tensor
from hetero_lab.runtime.pieces import (
    FLOATS,
    TensorKey,
    as_type,
    build_model,
    incoming,
    readable,
)

_SAMPLES = 12  # runs with exaggerated rounding
_MARGIN = 4.0  # the factor of exaggeration
# More runs, with rounding at its own size, if the exaggerated ones do not explain a tensor. If the
# effect of rounding is normally distributed, it exceeds _BEYOND times the root mean square of these
# runs in one case of 10,000: Student's t with 16 degrees of freedom.
_MORE_SAMPLES = 16
_BEYOND = 5.13
_CORRECTIONS = 4


class TransparentModel:
    """A model with every tensor as an output, and an offset that can be added to each.

    A run gives the value of every tensor, and shows how an error in some of them propagates through
    the model. It takes one compile, and is slower than the model, since nothing can be fused.
    ``fixed`` values replace some tensors.

    ``values`` holds the model's inputs and every tensor that depends on them; floating point is
    always f32. ``before_run`` is called before each inference (an estimate of rounding takes many);
    its errors end the estimate.
    """

    before_run: Callable[[], None] | None = None

    def __init__(
        self,
        prepared: PreparedModel,
        arrays: Sequence[np.ndarray],
        compile_model: Callable[[ov.Model], ov.CompiledModel],
        fixed: Mapping[TensorKey, np.ndarray] | None = None,
    ):
        self._graph = prepared.graph
        poles = {op.type for op in self._graph if _has_pole(self._graph, op)}
        self._has_poles, self._divides = bool(poles), not poles.isdisjoint({"Divide", "Power"})
        self._sums = {sum_.op: sum_ for sum_ in sums_of(prepared)}
        for integers in (True, False):
            # An integer may decide a shape; with an offset added, that shape would be unknown.
            model, self._keys, offsets = _transparent(prepared, fixed or {}, integers=integers)
            if not any(output.get_partial_shape().is_dynamic for output in model.outputs):
                break
        self._request = compile_model(model).create_infer_request()
        self._zeros: dict[TensorKey, tuple[int, ov.Tensor]] = {}
        for index, array in enumerate(arrays):
            element_type = model.inputs[index].get_element_type()
            self._request.set_input_tensor(index, to_tensor(array, element_type))
        for index, key in enumerate(offsets, start=len(arrays)):
            port = model.inputs[index]
            # If a shape depends on data, a single zero is broadcast to it.
            shape = [d.get_length() if d.is_static else 1 for d in port.get_partial_shape()]
            zero = np.zeros(shape, port.get_element_type().to_dtype())
            self._zeros[key] = (index, ov.Tensor(zero))
            self._request.set_input_tensor(*self._zeros[key])
        self.values = self.run({})

    def run(
        self,
        offsets: Mapping[TensorKey, np.ndarray],
        wanted: Collection[TensorKey] | None = None,
    ) -> dict[TensorKey, np.ndarray]:
        """Infer with offsets added to some tensors; return the wanted tensors, or all.

        RuntimeError if an offset changes the shape of a tensor that another offset is added to.
        """
        if self.before_run is not None:
            self.before_run()
        for key, offset in offsets.items():
            index, zero = self._zeros[key]
            array = np.asarray(offset, zero.data.dtype, order="C")
            self._request.set_input_tensor(index, ov.Tensor(array))
        self._request.reset_state()
        try:
            self._request.infer()
        finally:
            for key in offsets:
                self._request.set_input_tensor(*self._zeros[key])
        return {
            key: np.array(self._request.get_output_tensor(index).data)
            for index, key in enumerate(self._keys)
            if wanted is None or key in wanted
        }

    def _try(
        self, offsets: Mapping[TensorKey, np.ndarray], wanted: Collection[TensorKey]
    ) -> dict[TensorKey, np.ndarray]:
        """Do the same, without tensors whose shape has changed."""
        try:
            made = self.run(offsets, wanted)
        except RuntimeError:
            return {}
        return {key: made[key] for key in made if made[key].shape == self.values[key].shape}

    def takes_offset(self, key: TensorKey) -> bool:
        """Return whether an offset can be added to a tensor."""
        return key in self._zeros

    def rounding(
        self,
        precisions: Mapping[str, str],
        wanted: Collection[TensorKey],
        seen: Mapping[TensorKey, np.ndarray] | None = None,
    ) -> dict[TensorKey, Rounding]:
        """Return how far rounding can move the wanted tensors, given the precision of each op.

        Twelve runs move the tensors that the ops read and make at random, by up to four times the
        rounding error of their precision; the largest deviation of each tensor counts. This is
        Monte Carlo arithmetic (Parker 1997), which includes how the model amplifies rounding. One
        more run makes values infinite that are too large for a precision. Another one sets values
        to zero that are subnormal in it, or that rounding moved across zero.

        If a model scrambles numbers (the sine of a large number can be anything), more noise does
        not move a tensor farther, so exaggeration gives no margin. For tensors whose values in the
        placement were ``seen`` and are not explained yet, the distribution of rounding at its own
        size is then estimated, as in stochastic arithmetic (Vignes 1993).
        """
        noisy = self._touched(precisions)
        sums = {
            key: self._sums[key[0]].rounding(self.values, precisions[key[0]])
            if key[0] in self._sums and key[0] in precisions
            else (0.0, True)
            for key in noisy
        }
        # x/0 is infinite with the sign of the zero. Adding an offset to that zero loses its sign,
        # so these elements cannot be judged.
        lost = {
            key: np.isinf(self.values[key])
            if self._divides and self.values[key].dtype.kind == "f"
            else np.zeros(self.values[key].shape, bool)
            for key in wanted
        }

        def lose(infinite: Mapping[TensorKey, np.ndarray]) -> None:
            for key, value in self._try(infinite, wanted).items() if infinite else ():
                lost[key] |= ~_same(value, self.values[key])

        lose(self.beyond_range(precisions))
        far: dict[TensorKey, list[float]] = {key: [] for key in wanted}
        n_odd: dict[TensorKey, list[int]] = {key: [] for key in wanted}
        # Rounding may flush subnormals to zero, and also values that it moves across zero.
        zero = {
            key: np.abs(self.values[key]) < SUBNORMAL.get(precision, 0.0)
            for key, precision in noisy.items()
        }
        far_out: dict[TensorKey, np.ndarray] = {}  # out of range only with noise
        watched = {key for key, p in noisy.items() if p in LARGEST or self._has_poles}

        def look(offsets: Mapping[TensorKey, np.ndarray]) -> None:
            made = self._try(offsets, {*wanted, *watched})
            for key in watched & made.keys():
                if self._has_poles:
                    zero[key] |= np.sign(made[key]) * np.sign(self.values[key]) < 0
                beyond = np.abs(made[key]) > LARGEST.get(noisy[key], np.inf)
                if beyond.any():
                    far_out[key] = far_out.get(key, False) | beyond
            for key in wanted:
                reference = self.values[key]
                if key not in made:
                    far[key].append(np.inf)  # if the shape depends on rounding, so may all values
                    n_odd[key].append(0)
                    continue
                odd = is_odd(made[key], reference)
                n_odd[key].append(int(np.count_nonzero(odd)))
                lost[key] |= odd
                far[key].append(distance(made[key], reference, lost[key]))

        def moved(drawn: Mapping[TensorKey, np.ndarray], factor: float) -> None:
            kinds = noisy.items()
            look({k: noise(self.values[k], p, factor * drawn[k], *sums[k]) for k, p in kinds})

        rng = np.random.default_rng(0)
        for drawn in self._draws(noisy, _SAMPLES // 2, rng):
            # In both directions, so that values at the edge of a function's domain leave it.
            for factor in (_MARGIN, -_MARGIN):
                moved(drawn, factor)
        flushed = self._flushed(zero)
        if flushed:
            look(flushed)
        lose(self._infinite(far_out))
        known = {key: Rounding(max(far[key]), lost[key], max(n_odd[key])) for key in wanted}
        doubtful = {
            key: value
            for key, value in (seen or {}).items()
            if not known[key].explains(value, self.values[key])
        }
        # Exaggerated rounding bounds rounding at its own size. If even that bound leaves a tensor
        # unexplained, more runs are a waste of time.
        most = {
            key: replace(known[key], farthest=_BEYOND * known[key].farthest, most_odd=np.inf)
            for key in doubtful
        }
        hopeless = any(not most[key].explains(v, self.values[key]) for key, v in doubtful.items())
        if hopeless or not doubtful:
            return known
        for drawn in self._draws(noisy, _MORE_SAMPLES, rng):
            moved(drawn, 1.0)
        return {
            key: Rounding(_farthest(far[key]), lost[key], _farthest(n_odd[key])) for key in wanted
        }

    def _draws(
        self, noisy: Mapping[TensorKey, str], n: int, rng: np.random.Generator
    ) -> Iterator[dict[TensorKey, np.ndarray]]:
        """Draw numbers between -1 and 1 in three ways in turn.

        Rounding errors may be independent, all in one direction (truncation), or equal for equal
        values; each way adds up differently in a sum.
        """
        for turn in range(n):
            if turn % 3 == 0:
                yield {key: rng.uniform(-1.0, 1.0, self.values[key].shape) for key in noisy}
            elif turn % 3 == 1:
                yield {key: rng.choice([-1.0, 1.0]) * np.sign(self.values[key]) for key in noisy}
            else:
                table = rng.uniform(-1.0, 1.0, 2**16)
                shifts = rng.integers(table.size, size=len(noisy))
                yield {
                    key: drawn_by_value(self.values[key], precision, table, int(shift))
                    for (key, precision), shift in zip(noisy.items(), shifts, strict=True)
                }

    def _flushed(self, zero: Mapping[TensorKey, np.ndarray]) -> dict[TensorKey, np.ndarray]:
        """Return offsets that set the elements in the mask of each tensor to zero."""
        masks = {key: mask & (self.values[key] != 0) for key, mask in zero.items()}
        masks = {key: mask for key, mask in masks.items() if mask.any()}
        offsets = {key: np.where(mask, -self.values[key], 0.0) for key, mask in masks.items()}
        # Zeros upstream change a tensor before its own offset is added, so iterate a few times.
        for _ in range(_CORRECTIONS if masks else 0):
            made = self._try(offsets, masks.keys())
            if not made:
                break
            left = {
                key: np.where(mask & np.isfinite(made[key]), made[key], 0.0)
                for key, mask in masks.items()
            }
            if not any(rest.any() for rest in left.values()):
                break
            offsets = {key: offset - left[key] for key, offset in offsets.items()}
        return offsets

    def _touched(self, precisions: Mapping[str, str]) -> dict[TensorKey, str]:
        """Return the tensors that ops read and make, each with the lowest precision among them."""
        lowest: dict[TensorKey, str] = {}
        for precision in sorted(set(precisions.values()), key=UNIT.__getitem__):
            ops = [op for op, own in precisions.items() if own == precision]
            made = (
                (op, use.source_port)
                for op in ops
                for use in self._graph.consumers[self._graph.index_of[op]]
            )
            touched = {*incoming(self._graph, ops), *made}
            lowest.update(dict.fromkeys(touched, precision))
        return {
            key: lowest[key]
            for key in sorted(lowest)
            if key in self._zeros and self.values[key].dtype.kind == "f"
        }

    def beyond_range(self, precisions: Mapping[str, str]) -> dict[TensorKey, np.ndarray]:
        """Return offsets that make values infinite that overflow in the precision of some ops."""
        masks = {}
        for key, precision in self._touched(precisions).items():
            value = self.values[key]
            largest = np.abs(value)
            if key[0] in self._sums and key[0] in precisions:
                largest = np.maximum(largest, self._sums[key[0]].largest(self.values))
            beyond = np.isfinite(value) & (largest > LARGEST.get(precision, np.inf))
            if beyond.any():
                masks[key] = beyond
        return self._infinite(masks)

    def _infinite(self, masks: Mapping[TensorKey, np.ndarray]) -> dict[TensorKey, np.ndarray]:
        return {
            key: np.where(mask, np.copysign(np.inf, self.values[key]), 0.0)
            for key, mask in masks.items()
        }


def _has_pole(graph: OpGraph, op: Op) -> bool:
    """Return whether an op turns zeros, which rounding can make, into infinity or NaN."""
    if op.type == "Divide":
        return op.inputs[1][0] not in graph.constant_side
    return op.type in ("Log", "Power")


def _farthest(seen: Sequence[float]) -> float:
    """Return a bound that rounding rarely exceeds; only the last samples lack a margin."""
    unscaled = np.asarray(seen[-_MORE_SAMPLES:], float)
    return max(*seen, _BEYOND * float(np.sqrt(np.mean(unscaled * unscaled))))


def _same(value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    if reference.dtype.kind != "f":
        return value == reference
    return (value == reference) | (np.isnan(value) & np.isnan(reference))


def _transparent(
    prepared: PreparedModel, fixed: Mapping[TensorKey, np.ndarray], *, integers: bool
) -> tuple[ov.Model, list[TensorKey], list[TensorKey]]:
    graph = prepared.graph
    clone = prepared.model.clone()
    nodes = {node.get_friendly_name(): node for node in clone.get_ordered_ops()}
    keys: list[TensorKey] = []
    offsets: list[TensorKey] = []
    added: list[Any] = []
    results: list[Any] = []
    for op in graph:
        if op.index in graph.constant_side or op.type in (CONSTANT, RESULT):
            continue
        for port in sorted({use.source_port for use in graph.consumers[op.index]}):
            output = nodes[op.name].output(port)
            kind = output.get_element_type()
            uses = list(output.get_target_inputs())
            if (op.name, port) in fixed:
                constant = ov.opset13.constant(fixed[op.name, port])
                output = as_type(constant.output(0), kind)
                for use in uses:
                    use.replace_source_output(output)
            is_float = kind.get_type_name() in FLOATS
            shown = readable(output)
            movable = is_float or (integers and op.type != PARAMETER and kind != ov.Type.string)
            shape = output.get_partial_shape()
            if movable and (not shape.is_dynamic or (is_float and shape.rank.is_static)):
                name = f"offset{len(added)}"
                offset = ov.opset13.parameter(shape, shown.get_element_type(), name=name)
                join = ov.opset13.logical_xor if kind == ov.Type.boolean else ov.opset13.add
                shown = join(shown, offset).output(0)
                moved = as_type(shown, kind)
                for use in uses:
                    use.replace_source_output(moved)
                added.append(offset)
                offsets.append((op.name, port))
            results.append(ov.opset13.result(shown, name=f"tensor{len(keys)}"))
            keys.append((op.name, port))
    parameters = [*clone.get_parameters(), *added]
    name = f"{graph.name}_transparent"
    model = build_model(results, clone.get_sinks(), parameters, name)
    model.validate_nodes_and_infer_types()
    return model, keys, offsets


def with_tensors_as_outputs(
    model: ov.Model, shown: Collection[TensorKey]
) -> tuple[ov.Model, OpGraph]:
    """Return a model with some inner tensors as more outputs, in that order, and its graph."""
    clone = model.clone()
    nodes = {node.get_friendly_name(): node for node in clone.get_ordered_ops()}
    results = []
    for number, (name, port) in enumerate(shown):
        own = nodes[name].output(port)
        output = readable(own)
        if output.get_node() != own.get_node():
            output.get_node().set_friendly_name(f"{name}/f32_{number}")
        results.append(ov.opset13.result(output, name=f"{name}/shown{number}"))
    clone.add_results(results)
    return clone, op_graph(clone)
