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
from hetero_lab.runtime.pieces import (
    FLOATS,
    TensorKey,
    as_type,
    build_model,
    incoming,
    readable,
)
from hetero_lab.runtime.tensors import is_plain, set_inputs, to_array

_SAMPLES = 12  # runs with exaggerated rounding: each way of drawing twice, in both directions
_MARGIN = 4.0  # the factor of exaggeration, so that the largest of a few samples is a bound
# More runs, with rounding at its own size, if the exaggerated ones do not explain a tensor. If the
# effect of rounding is normally distributed, it exceeds _BEYOND times the root mean square of these
# runs in one case of 10,000: Student's t with 16 degrees of freedom.
_MORE_SAMPLES = 16
_BEYOND = 5.13
_CORRECTIONS = 4  # a few: each one costs a run, and follows zeros one op further


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
        self.has_poles, self.divides = bool(poles), not poles.isdisjoint({"Divide", "Power"})
        self.sums = {sum_.op: sum_ for sum_ in sums_of(prepared)}
        for integers in (True, False):
            # An integer may decide a shape; with an offset added, that shape would be unknown.
            model, self._keys, offsets = _transparent(prepared, fixed or {}, integers=integers)
            if not any(output.get_partial_shape().is_dynamic for output in model.outputs):
                break
        self._request = compile_model(model).create_infer_request()
        self._zeros: dict[TensorKey, tuple[int, ov.Tensor]] = {}
        types = [port.get_element_type() for port in model.inputs[: len(arrays)]]
        set_inputs(self._request, arrays, types)
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
            key: to_array(self._request.get_output_tensor(index))
            for index, key in enumerate(self._keys)
            if wanted is None or key in wanted
        }

    def try_run(
        self, offsets: Mapping[TensorKey, np.ndarray], wanted: Collection[TensorKey]
    ) -> dict[TensorKey, np.ndarray]:
        """Do the same, without tensors whose shape has changed."""
        try:
            tensors = self.run(offsets, wanted)
        except RuntimeError:
            return {}
        return {k: tensor for k, tensor in tensors.items() if tensor.shape == self.values[k].shape}

    def takes_offset(self, key: TensorKey) -> bool:
        """Return whether an offset can be added to a tensor."""
        return key in self._zeros

    def unfused(self, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return a model's outputs as they are without fused ops, where these are known."""
        graph = self._graph
        makers = (graph.ops[index].inputs[0] for index in graph.results)
        return [
            self.values.get((graph.ops[index].name, port), output).astype(output.dtype)
            for (index, port), output in zip(makers, outputs, strict=True)
        ]

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
        runs = _NoisyRuns(self, precisions, wanted)
        runs.lose(self.beyond_range(precisions))
        rng = np.random.default_rng(0)
        for draws in self._draws(runs.precisions, _SAMPLES // 2, rng):
            # In both directions, so that values at the edge of a function's domain leave it.
            for factor in (_MARGIN, -_MARGIN):
                runs.add_noise(draws, factor)
        if flushed := self._flushed(runs.zero):
            runs.add(flushed)
        runs.lose(self._infinite(runs.beyond))
        bounds = {key: runs.rounding(key, max) for key in wanted}
        doubtful = {
            key: value
            for key, value in (seen or {}).items()
            if not bounds[key].explains(value, self.values[key])
        }
        # Exaggerated rounding bounds rounding at its own size. If even that bound leaves a tensor
        # unexplained, more runs are a waste of time.
        widest = {
            key: replace(bounds[key], farthest=_BEYOND * bounds[key].farthest, most_odd=np.inf)
            for key in doubtful
        }
        if not doubtful or not all(
            widest[key].explains(value, self.values[key]) for key, value in doubtful.items()
        ):
            return bounds
        for draws in self._draws(runs.precisions, _MORE_SAMPLES, rng):
            runs.add_noise(draws, 1.0)
        return {key: runs.rounding(key, _farthest) for key in wanted}

    def _draws(
        self, precisions: Mapping[TensorKey, str], n: int, rng: np.random.Generator
    ) -> Iterator[dict[TensorKey, np.ndarray]]:
        """Draw numbers between -1 and 1 in three ways in turn.

        Rounding errors may be independent, all in one direction (truncation), or equal for equal
        values; each way adds up differently in a sum.
        """
        for turn in range(n):
            if turn % 3 == 0:
                yield {key: rng.uniform(-1.0, 1.0, self.values[key].shape) for key in precisions}
            elif turn % 3 == 1:
                yield {
                    key: rng.choice([-1.0, 1.0]) * np.sign(self.values[key]) for key in precisions
                }
            else:
                table = rng.uniform(-1.0, 1.0, 2**16)
                shifts = rng.integers(table.size, size=len(precisions))
                yield {
                    key: drawn_by_value(self.values[key], precision, table, int(shift))
                    for (key, precision), shift in zip(precisions.items(), shifts, strict=True)
                }

    def _flushed(self, zero: Mapping[TensorKey, np.ndarray]) -> dict[TensorKey, np.ndarray]:
        """Return offsets that set the elements in the mask of each tensor to zero."""
        masks = {key: mask & (self.values[key] != 0) for key, mask in zero.items()}
        masks = {key: mask for key, mask in masks.items() if mask.any()}
        offsets = {key: np.where(mask, -self.values[key], 0.0) for key, mask in masks.items()}
        # Zeros upstream change a tensor before its own offset is added, so iterate a few times.
        for _ in range(_CORRECTIONS if masks else 0):
            tensors = self.try_run(offsets, masks.keys())
            if not tensors:
                break
            left = {
                key: np.where(mask & np.isfinite(tensors[key]), tensors[key], 0.0)
                for key, mask in masks.items()
            }
            if not any(rest.any() for rest in left.values()):
                break
            offsets = {key: offset - left[key] for key, offset in offsets.items()}
        return offsets

    def touched(self, precisions: Mapping[str, str]) -> dict[TensorKey, str]:
        """Return the tensors that ops read and make, each with the lowest precision among them.

        That of its own type counts, too: a CPU without bf16 cuts bits off where it converts to it.
        """
        lowest: dict[TensorKey, str] = {}
        for precision in sorted(set(precisions.values()), key=UNIT.__getitem__):
            ops = [op for op in precisions if precisions[op] == precision]
            outgoing = (
                (op, use.source_port)
                for op in ops
                for use in self._graph.consumers[self._graph.index_of[op]]
            )
            for op, port in {*incoming(self._graph, ops), *outgoing}:
                own = self._graph.ops[self._graph.index_of[op]].outputs[port].element_type
                lowest[op, port] = max(precision, own, key=lambda each: UNIT.get(each, 0.0))
        return {
            key: lowest[key]
            for key in sorted(lowest)
            if key in self._zeros and self.values[key].dtype.kind == "f"
        }

    def beyond_range(self, precisions: Mapping[str, str]) -> dict[TensorKey, np.ndarray]:
        """Return offsets that make values infinite that overflow in the precision of some ops."""
        masks = {}
        for key, precision in self.touched(precisions).items():
            value = self.values[key]
            largest = np.abs(value)
            if key[0] in self.sums and key[0] in precisions:
                largest = np.maximum(largest, self.sums[key[0]].largest(self.values))
            beyond = np.isfinite(value) & (largest > LARGEST.get(precision, np.inf))
            if beyond.any():
                masks[key] = beyond
        return self._infinite(masks)

    def _infinite(self, masks: Mapping[TensorKey, np.ndarray]) -> dict[TensorKey, np.ndarray]:
        return {
            key: np.where(mask, np.copysign(np.inf, self.values[key]), 0.0)
            for key, mask in masks.items()
        }


class _NoisyRuns:
    """Runs of a transparent model with offsets, and how far they moved the ``wanted`` tensors.

    ``precisions`` are those of the tensors that get noise. Elements that left the range of their
    precision are ``beyond`` it; those that may be flushed to ``zero`` are subnormal, or rounding
    moved them across it. ``lost`` are elements that cannot be judged.
    """

    def __init__(
        self,
        model: TransparentModel,
        precisions: Mapping[str, str],
        wanted: Collection[TensorKey],
    ):
        self._model, self._values, self._wanted = model, model.values, wanted
        self.precisions = model.touched(precisions)
        self._sums = {
            key: model.sums[key[0]].rounding(self._values, precisions[key[0]])
            if key[0] in model.sums and key[0] in precisions
            else (0.0, True)
            for key in self.precisions
        }
        # x/0 is infinite with the sign of the zero. Adding an offset to that zero loses its sign,
        # so these elements cannot be judged.
        self.lost = {
            key: np.isinf(self._values[key])
            if model.divides and self._values[key].dtype.kind == "f"
            else np.zeros(self._values[key].shape, bool)
            for key in wanted
        }
        self.zero = {
            key: np.abs(self._values[key]) < SUBNORMAL.get(precision, 0.0)
            for key, precision in self.precisions.items()
        }
        self.beyond: dict[TensorKey, np.ndarray] = {}
        self._watched = {k for k, p in self.precisions.items() if p in LARGEST or model.has_poles}
        self._distances: dict[TensorKey, list[float]] = {key: [] for key in wanted}
        self._n_odd: dict[TensorKey, list[int]] = {key: [] for key in wanted}

    def lose(self, infinite: Mapping[TensorKey, np.ndarray]) -> None:
        """Give up the elements that depend on those that become infinite."""
        tensors = self._model.try_run(infinite, self._wanted) if infinite else {}
        for key, tensor in tensors.items():
            self.lost[key] |= ~_same(tensor, self._values[key])

    def add_noise(self, draws: Mapping[TensorKey, np.ndarray], factor: float) -> None:
        """Move each tensor by random numbers, scaled to so many times its rounding error."""
        self.add(
            {
                key: noise(self._values[key], precision, factor * draws[key], *self._sums[key])
                for key, precision in self.precisions.items()
            }
        )

    def add(self, offsets: Mapping[TensorKey, np.ndarray]) -> None:
        """Run with offsets, and note what they move."""
        tensors = self._model.try_run(offsets, {*self._wanted, *self._watched})
        for key in self._watched & tensors.keys():
            if self._model.has_poles:
                self.zero[key] |= np.sign(tensors[key]) * np.sign(self._values[key]) < 0
            beyond = np.abs(tensors[key]) > LARGEST.get(self.precisions[key], np.inf)
            if beyond.any():
                self.beyond[key] = self.beyond.get(key, False) | beyond
        for key in self._wanted:
            if key not in tensors:  # if the shape depends on rounding, so may all values
                self._distances[key].append(np.inf)
                self._n_odd[key].append(0)
                continue
            odd = is_odd(tensors[key], self._values[key])
            self._n_odd[key].append(int(np.count_nonzero(odd)))
            self.lost[key] |= odd
            self._distances[key].append(distance(tensors[key], self._values[key], self.lost[key]))

    def rounding(self, key: TensorKey, bound: Callable[[Sequence[float]], float]) -> Rounding:
        """Return how far rounding can move a tensor, by a bound of what the runs showed."""
        return Rounding(bound(self._distances[key]), self.lost[key], bound(self._n_odd[key]))


def _has_pole(graph: OpGraph, op: Op) -> bool:
    """Return whether an op turns zeros, which rounding can make, into infinity or NaN."""
    if op.type == "Divide":
        return op.inputs[1][0] not in graph.constant_side
    return op.type in ("Log", "Power")


def _farthest(samples: Sequence[float]) -> float:
    """Return a bound that rounding rarely exceeds; only the last samples lack a margin."""
    unscaled = np.asarray(samples[-_MORE_SAMPLES:], float)
    return max(*samples, _BEYOND * float(np.sqrt(np.mean(unscaled * unscaled))))


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
            movable = is_float or (integers and op.type != PARAMETER and is_plain(kind))
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
        tensor = nodes[name].output(port)
        output = readable(tensor)
        if output.get_node() != tensor.get_node():
            output.get_node().set_friendly_name(f"{name}/f32_{number}")
        results.append(ov.opset13.result(output, name=f"{name}/shown{number}"))
    clone.add_results(results)
    return clone, op_graph(clone)
