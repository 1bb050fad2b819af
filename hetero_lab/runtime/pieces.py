"""Sets of ops cut out of a model and run once by themselves, on given tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import openvino as ov

from hetero_lab.backend.bound import BoundModel
from hetero_lab.model.opgraph import OpGraph

# An op's name and the number of its output.
TensorKey: TypeAlias = tuple[str, int]

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_HINT = "INFERENCE_PRECISION_HINT"


@dataclass(frozen=True)
class Pieces:
    """Disjoint sets of ops in one model, which share only constants.

    ``inputs`` and ``outputs`` have the whole model's tensor for each port of ``model``;
    ``outputs`` also has the number of the piece that makes it.
    """

    model: ov.Model
    inputs: tuple[TensorKey, ...]
    outputs: tuple[tuple[int, TensorKey], ...]


def outgoing(graph: OpGraph, ops: Collection[str]) -> tuple[TensorKey, ...]:
    """Return the tensors of a set of ops that other ops read."""
    inside = {graph.index_of[name] for name in ops}
    return tuple(
        (graph.ops[index].name, port)
        for index in sorted(inside)
        for port in sorted(
            {use.source_port for use in graph.consumers[index] if use.index not in inside}
        )
    )


def incoming(graph: OpGraph, ops: Collection[str]) -> tuple[TensorKey, ...]:
    """Return the tensors of other ops that a set of ops reads, except constants."""
    inside = {graph.index_of[name] for name in ops}
    read = {
        source
        for index in inside
        for source in graph.ops[index].inputs
        if source[0] not in inside and source[0] not in graph.constant_side
    }
    return tuple((graph.ops[index].name, port) for index, port in sorted(read))


def cut_pieces(
    bound: BoundModel,
    pieces: Sequence[Collection[str]],
    values: Mapping[TensorKey, np.ndarray],
) -> Pieces:
    """Cut disjoint sets of ops, each given by names, out of a clone of the model.

    Each tensor that a piece reads from other ops becomes an input of its own, with the shape in
    ``values``, so that the pieces stay unconnected. Each tensor that other ops read becomes an
    output. A set need not be connected. Ops keep their friendly names.
    """
    graph = bound.graph
    clone = bound.model.clone()
    nodes = {node.get_friendly_name(): node for node in clone.get_ordered_ops()}
    outputs = [(number, key) for number, ops in enumerate(pieces) for key in outgoing(graph, ops)]
    results = [
        ov.opset13.result(readable(nodes[name].output(port)), name=f"out{number}")
        for number, (_, (name, port)) in enumerate(outputs)
    ]
    parameters: list[Any] = []
    inputs: list[TensorKey] = []
    for ops in pieces:
        inside = frozenset(ops)
        fed: dict[TensorKey, Any] = {}
        for key in incoming(graph, inside):
            kind = nodes[key[0]].output(key[1]).get_element_type()
            own = ov.Type.f32 if kind.get_type_name() in FLOATS else kind
            parameter = ov.opset13.parameter(list(values[key].shape), own, name=f"in{len(inputs)}")
            fed[key] = as_type(parameter.output(0), kind)
            parameters.append(parameter)
            inputs.append(key)
        for name in inside:
            for port, (producer, source_port) in enumerate(graph.ops[graph.index_of[name]].inputs):
                key = (graph.ops[producer].name, source_port)
                if key in fed:
                    nodes[name].input(port).replace_source_output(fed[key])
    every = frozenset().union(*map(frozenset, pieces))
    sinks = [sink for sink in clone.get_sinks() if sink.get_friendly_name() in every]
    model = build_model(results, sinks, parameters, f"{graph.name}_pieces")
    return Pieces(model, tuple(inputs), tuple(outputs))


def readable(output: Any) -> Any:
    """Return a tensor that NumPy can read: any floating point as f32."""
    wide = output.get_element_type().get_type_name() in FLOATS
    return as_type(output, ov.Type.f32) if wide else output


def as_type(output: Any, kind: ov.Type) -> Any:
    """Return a tensor converted to an element type, if it has another one."""
    if output.get_element_type() == kind:
        return output
    return ov.opset13.convert(output, kind.to_string()).output(0)


def build_model(results: list[Any], sinks: list[Any], parameters: list[Any], name: str) -> ov.Model:
    """Build a model; the runtime has another constructor for one with sinks."""
    parts: list[Any] = [results, *([sinks] if sinks else []), parameters, name]
    build: Any = ov.Model  # its stubs lack the form with sinks
    return build(*parts)


def infer_once(
    model: ov.Model,
    target: str,
    properties: Mapping[str, Any],
    arrays: Sequence[np.ndarray],
    core: ov.Core,
) -> tuple[list[np.ndarray], dict[str, str]]:
    """Compile a model for a device or for HETERO and infer once.

    Return the outputs in the model's order, and the precision hint of each device that reports it.
    """
    compiled = core.compile_model(model, target, dict(properties))
    request = compiled.create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, ov.Tensor(np.ascontiguousarray(array)))
    request.infer()
    outputs = [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]
    return outputs, _hints(compiled, target)


def _hints(compiled: ov.CompiledModel, target: str) -> dict[str, str]:
    hints: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # not every device has the property
        if target.startswith("HETERO:"):
            by_device = compiled.get_property("DEVICE_PROPERTIES")
            hints = {d: own[_HINT] for d, own in by_device.items() if _HINT in own}
        else:
            hints = {target: compiled.get_property(_HINT)}
    return {device: str(hint) for device, hint in hints.items()}


def infer_file(
    path: str,
    target: str,
    properties: Mapping[str, Any],
    affinities: Mapping[str, str] | None,
    inputs: str,
    outputs: str,
    core: ov.Core,
) -> dict[str, str]:
    """Run :func:`infer_once` on a model and arrays from files; write the outputs to a file.

    ``affinities`` maps every node to a device, since model files do not keep it.
    """
    model = core.read_model(path)
    if affinities is not None:
        for node in model.get_ordered_ops():
            node.get_rt_info()["affinity"] = affinities[node.get_friendly_name()]
    with np.load(inputs) as stored:
        arrays = [stored[f"in{index}"] for index in range(len(model.inputs))]
    made, hints = infer_once(model, target, properties, arrays, core)
    named: dict[str, Any] = {f"out{index}": array for index, array in enumerate(made)}
    np.savez(outputs, **named)
    return hints


def affinities_of(model: ov.Model) -> dict[str, str]:
    """Return the affinity of each node of a model, as stored on the node."""
    return {
        node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str)
        for node in model.get_ordered_ops()
    }
