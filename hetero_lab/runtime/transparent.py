"""A model with every tensor in sight: what each is, and what rounding or an error does to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT, OpGraph
from hetero_lab.model.read import PreparedModel, op_graph
from hetero_lab.runtime.pieces import (
    FLOATS,
    TensorKey,
    as_type,
    build_model,
    incoming,
    readable,
)

# Relative rounding error of one value. That of f32 is 6e-8; functions such as exp and tanh are
# computed by approximations of about 1e-5, each device by its own.
UNIT = {"f32": 1e-5, "f16": 2.0**-11, "bf16": 2.0**-8, "i8": 2.0**-8, "u8": 2.0**-8}
_SMALLEST = {"f16": 2.0**-24}  # below, a value becomes zero
# Rounding is given this many times its size, and this many chances to go wrong.
_MARGIN = 4.0
_SAMPLES = 8


class TransparentModel:
    """A whole model with every tensor an output, and an offset that can be added to each.

    Running it tells the value of every tensor, and how an error at some of them goes on through
    the rest of the model. It is one compile, and slower than the model by itself, as nothing can
    be fused.

    Attributes
    ----------
    values
        Every tensor that ops make from the model's inputs, and the inputs themselves. Floating
        point is f32, whatever the model's own type.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        arrays: Sequence[np.ndarray],
        compile_model: Callable[[ov.Model], ov.CompiledModel],
    ):
        self._graph = prepared.graph
        for integers in (True, False):
            # An offset to what decides on a shape would make the shape unknown.
            model, self._keys, offsets = _transparent(prepared, integers=integers)
            if not any(output.get_partial_shape().is_dynamic for output in model.outputs):
                break
        self._request = compile_model(model).create_infer_request()
        self._zeros: dict[TensorKey, tuple[int, ov.Tensor]] = {}
        for index, array in enumerate(arrays):
            self._request.set_input_tensor(index, ov.Tensor(np.ascontiguousarray(array)))
        for index, key in enumerate(offsets, start=len(arrays)):
            port = model.inputs[index]
            zero = np.zeros(tuple(port.get_shape()), port.get_element_type().to_dtype())
            self._zeros[key] = (index, ov.Tensor(zero))
            self._request.set_input_tensor(*self._zeros[key])
        self.values = self.run({})

    def run(
        self,
        offsets: Mapping[TensorKey, np.ndarray],
        wanted: Collection[TensorKey] | None = None,
    ) -> dict[TensorKey, np.ndarray]:
        """Infer with offsets added to some tensors; return the wanted tensors, or all."""
        for key, offset in offsets.items():
            index, zero = self._zeros[key]
            array = np.ascontiguousarray(offset, dtype=zero.data.dtype)
            self._request.set_input_tensor(index, ov.Tensor(array))
        self._request.reset_state()
        self._request.infer()
        for key in offsets:
            self._request.set_input_tensor(*self._zeros[key])
        return {
            key: np.array(self._request.get_output_tensor(index).data)
            for index, key in enumerate(self._keys)
            if wanted is None or key in wanted
        }

    def takes_offset(self, key: TensorKey) -> bool:
        """Whether an offset can be added to a tensor."""
        return key in self._zeros

    def rounding(
        self,
        precisions: Mapping[str, str],
        wanted: Collection[TensorKey],
        seed: int = 0,
    ) -> dict[TensorKey, float]:
        """Return how far rounding in some ops can move tensors, as Euclidean norms.

        What the ops read and what they make is moved at random by up to four times the rounding
        error of their precision, eight times over; the farthest that each tensor went counts.
        This is Monte Carlo arithmetic (Parker 1997): it knows how the model amplifies rounding.

        Parameters
        ----------
        precisions
            Op → the precision that it is executed in.
        wanted
            The tensors in question.
        """
        lowest: dict[TensorKey, str] = {}
        for precision in sorted(set(precisions.values()), key=UNIT.__getitem__):
            ops = [op for op, own in precisions.items() if own == precision]
            touched = {*incoming(self._graph, ops), *_made(self._graph, ops)}
            lowest.update(dict.fromkeys(touched, precision))
        rng = np.random.default_rng(seed)
        noisy = sorted(
            key for key in lowest if key in self._zeros and self.values[key].dtype.kind == "f"
        )
        farthest = dict.fromkeys(wanted, 0.0)
        for _ in range(_SAMPLES):
            offsets = {key: _noise(self.values[key], lowest[key], rng) for key in noisy}
            for key, value in self.run(offsets, wanted).items():
                farthest[key] = max(farthest[key], distance(value, self.values[key]))
        return farthest


def distance(value: np.ndarray, reference: np.ndarray) -> float:
    """Return the Euclidean norm of a difference; infinite where only one of the two is finite."""
    if value.shape != reference.shape:
        return float("inf")
    if value.dtype.kind not in "fiub":  # strings
        return 0.0 if np.array_equal(value, reference) else float("inf")
    a, b = value.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    return float(np.linalg.norm(a[finite] - b[finite]))


def size(value: np.ndarray) -> float:
    """Return the Euclidean norm of what is finite in a tensor."""
    if value.dtype.kind not in "fiub":
        return 1.0
    wide = value.astype(np.float64)
    return float(np.linalg.norm(wide[np.isfinite(wide)]))


def _noise(value: np.ndarray, precision: str, rng: np.random.Generator) -> np.ndarray:
    largest = np.abs(value[np.isfinite(value)]).max(initial=0.0)
    # Eight-bit values lie evenly, so that a small one is as far off as a large one.
    relative_to = largest if precision in ("i8", "u8") else np.abs(value)
    scale = _MARGIN * (UNIT[precision] * relative_to + _SMALLEST.get(precision, 0.0))
    with np.errstate(invalid="ignore"):
        noise = rng.uniform(-1.0, 1.0, value.shape) * scale
    return np.where(np.isfinite(value), noise, 0.0)


def _made(graph: OpGraph, ops: Collection[str]) -> list[TensorKey]:
    return [
        (name, port)
        for name in ops
        for port in {use.source_port for use in graph.consumers[graph.index_of[name]]}
    ]


def _transparent(
    prepared: PreparedModel, *, integers: bool
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
            is_float = kind.get_type_name() in FLOATS
            shown = readable(output)
            movable = is_float or (integers and op.type != PARAMETER and kind != ov.Type.string)
            if movable and not output.get_partial_shape().is_dynamic:
                offset = ov.opset13.parameter(
                    list(output.get_shape()), shown.get_element_type(), name=f"offset{len(added)}"
                )
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
    """Return a model with some inner tensors as further outputs, in that order, and its graph."""
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
