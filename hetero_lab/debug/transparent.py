"""A model with every tensor visible: its value, and the effect of an error in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT, OpGraph, op_graph
from hetero_lab.model.read import PreparedModel
from hetero_lab.runtime.pieces import (
    FLOATS,
    TensorKey,
    as_type,
    build_model,
    readable,
)
from hetero_lab.runtime.tensors import is_plain, set_inputs, to_array


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
