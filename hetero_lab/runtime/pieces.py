"""Parts of a model, cut out and run by themselves: the submodels of a partition, or sets of ops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import openvino as ov

from hetero_lab.devices.core import BoundModel
from hetero_lab.errors import ArgumentError, CompileError, last_line, names_at_hand
from hetero_lab.model.opgraph import NOT_OPS, OpGraph, grouped
from hetero_lab.placement.partition import Partition
from hetero_lab.processes import available_cores

# An op's name and the number of its output.
TensorKey: TypeAlias = tuple[str, int]

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
# Ports at boundaries are numbered from here, above the model's own "Parameter_N".
_FIRST_PORT = 1_000_000
_THREADS = "INFERENCE_NUM_THREADS"
_LEFT_CORES, _FEW_CORES = 2, 8  # measured, see leave_cores; of fewer cores two are a large share


@dataclass(frozen=True)
class Submodel:
    """One subgraph as a model, with an entry of its :class:`Wiring` for each port."""

    index: int
    device: str
    model: ov.Model
    inputs: tuple[tuple[str | int, ...], ...]
    outputs: tuple[tuple[str | int, ...], ...]


def cut(
    bound: BoundModel, partition: Partition, *, hand_inputs_on: bool = True
) -> tuple[Submodel, ...]:
    """Cut a clone of the model; the caller's model stays unchanged.

    HETERO passes inputs of the model on: the first subgraph that reads one has it as an output,
    which a GPU copies back to the host. Without ``hand_inputs_on`` it is no output, for callers
    that give it to each reader; only a subgraph without another output keeps it.
    """
    graph = bound.graph
    if len(partition.home) != len(graph.ops):
        raise ArgumentError("This partition does not map every op to a subgraph.")
    clone = bound.model.clone()
    nodes = {node.get_friendly_name(): node for node in clone.get_ordered_ops()}
    parameters: dict[tuple[int, tuple[Any, ...]], Any] = {}
    results: dict[tuple[Any, ...], Any] = {}
    for boundary in partition.boundaries:
        entry = ("tensor", boundary.op, boundary.port)
        output = nodes[boundary.op].output(boundary.port)
        uses = [
            (use, partition.home[graph.index_of[use.get_node().get_friendly_name()]])
            for use in output.get_target_inputs()
        ]
        for target in boundary.targets:
            parameter = ov.opset13.parameter(output.get_partial_shape(), output.get_element_type())
            parameters[target, entry] = parameter
            for use, home in uses:
                if home == target:
                    use.replace_source_output(parameter.output(0))
        results[entry] = ov.opset13.result(output)
    own_parameters, own_results = clone.get_parameters(), clone.get_results()
    inputs = {graph.ops[i].name for i in graph.parameters}
    sinks = grouped(
        (partition.home[graph.index_of[sink.get_friendly_name()]], sink)
        for sink in clone.get_sinks()
    )
    submodels = []
    for subgraph, wiring in zip(partition.subgraphs, partition.wiring, strict=True):
        index = subgraph.index
        model_parameters = [
            own_parameters[int(e[1])] if e[0] == "model" else parameters[index, e]
            for e in wiring.inputs
        ]
        outputs = wiring.outputs
        if not hand_inputs_on:
            outputs = tuple(e for e in outputs if e[0] == "model" or e[1] not in inputs) or outputs
        model_results = [own_results[int(e[1])] if e[0] == "model" else results[e] for e in outputs]
        # As HETERO names them, so that counters of both are read alike.
        for kind, nodes, entries in (
            ("Parameter", model_parameters, wiring.inputs),
            ("Result", model_results, outputs),
        ):
            for number, (node, entry) in enumerate(zip(nodes, entries, strict=True), _FIRST_PORT):
                if entry[0] == "tensor":
                    node.set_friendly_name(f"{kind}_{number}")
        name = f"{graph.name}_{index}"
        model = build_model(model_results, sinks.get(index, []), model_parameters, name)
        submodels.append(Submodel(index, subgraph.device, model, wiring.inputs, outputs))
    return tuple(submodels)


def compile_submodels(
    submodels: tuple[Submodel, ...], by_device: Mapping[str, dict[str, Any]], core: ov.Core
) -> list[ov.CompiledModel]:
    """Compile each submodel on its device; CompileError names a refused one and its device."""
    compiled = []
    for submodel in submodels:
        try:
            compiled.append(
                core.compile_model(submodel.model, submodel.device, by_device[submodel.device])
            )
        except Exception as error:
            nodes = submodel.model.get_ordered_ops()
            ops = [n.get_friendly_name() for n in nodes if n.get_type_name() not in NOT_OPS]
            raise CompileError(
                f"{submodel.device} claims each op, but refuses subgraph {submodel.index} "
                f"({len(ops)} ops: {names_at_hand(ops)}): {last_line(error)}. "
                "hetero_lab.find_refused(model, affinity) finds the ops to move."
            ) from error
    return compiled


def leave_cores(
    by_device: Mapping[str, dict[str, Any]], core: ov.Core, n_left: int = _LEFT_CORES
) -> dict[str, dict[str, Any]]:
    """Return properties with which the CPU leaves cores to the threads that drive other devices.

    With a thread on every core, a GPU's thread delays one of them, and all others wait for it: two
    branches in parallel took 1.66 ms with 16 threads on 16 cores, and 1.04 ms with 14. A given
    number of threads stays.

    A GPU with several requests in flight has as many such threads: with four requests over both
    devices and 16 cores, a result took 0.46 ms with 12 threads, and 0.73 ms with 14 or 16.
    """
    on_cores = [
        device
        for device in by_device
        if _THREADS in core.get_property(device, "SUPPORTED_PROPERTIES")
    ]
    properties = dict(by_device)
    n_cores = available_cores()
    if len(on_cores) == len(by_device) or n_cores < _FEW_CORES:
        return properties
    for device in on_cores:
        config = by_device[device]
        if _THREADS not in config and not core.get_property(device, _THREADS):
            x = ov.opset13.parameter([1])
            model = build_model([ov.opset13.result(ov.opset13.relu(x))], [], [x], "threads")
            some = core.compile_model(model, device, config)
            if int(some.get_property(_THREADS)) > n_cores - n_left:
                properties[device] = {**config, _THREADS: n_cores - n_left}
    return properties


# -- sets of ops, run once on given tensors ------------------------------------------------------


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
    sources = {
        source
        for index in inside
        for source in graph.ops[index].inputs
        if source[0] not in inside and source[0] not in graph.constant_side
    }
    return tuple((graph.ops[index].name, port) for index, port in sorted(sources))


def cut_pieces(
    bound: BoundModel,
    pieces: Sequence[Collection[str]],
    values: Mapping[TensorKey, np.ndarray],
) -> tuple[ov.Model, list[TensorKey], list[tuple[int, TensorKey]]]:
    """Cut disjoint sets of ops, each given by names, out of a clone of the model.

    Return one model of them all, which share only constants there, with its inputs and outputs:
    the tensors of the whole model, of an output also the number of its piece.

    Each tensor that a piece reads from other ops becomes an input of its own, so that the pieces
    stay unconnected; its shape is dynamic where it is so in the model, since that may be the fault.
    Each tensor that other ops read becomes an output. A set need not be connected. Ops keep their
    friendly names.
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
        feeds: dict[TensorKey, Any] = {}
        for key in incoming(graph, inside):
            source = nodes[key[0]].output(key[1])
            kind, shape = source.get_element_type(), source.get_partial_shape()
            port_type = ov.Type.f32 if kind.get_type_name() in FLOATS else kind
            if shape.rank.is_dynamic:
                shape = ov.PartialShape(values[key].shape)
            parameter = ov.opset13.parameter(shape, port_type, name=f"in{len(inputs)}")
            feeds[key] = as_type(parameter.output(0), kind)
            parameters.append(parameter)
            inputs.append(key)
        for name in inside:
            for port, (producer, source_port) in enumerate(graph.op(name).inputs):
                key = (graph.ops[producer].name, source_port)
                if key in feeds:
                    nodes[name].input(port).replace_source_output(feeds[key])
    every = frozenset().union(*map(frozenset, pieces))
    sinks = [sink for sink in clone.get_sinks() if sink.get_friendly_name() in every]
    model = build_model(results, sinks, parameters, f"{graph.name}_pieces")
    return model, inputs, outputs


def new_states(model: ov.Model) -> dict[str, TensorKey]:
    """Return the tensor that becomes the next value of each state, by the op that reads it."""
    nodes = model.get_ops()
    reads = {n.get_variable_id(): n for n in nodes if n.get_type_name() == "ReadValue"}
    values = {n.get_variable_id(): n.input_value(0) for n in model.get_sinks()}
    keys = {name: (v.get_node().get_friendly_name(), v.index) for name, v in values.items()}
    return {read.get_friendly_name(): keys[name] for name, read in reads.items()}


def at_step(
    model: ov.Model, arrays: Sequence[np.ndarray], states: Mapping[str, np.ndarray]
) -> tuple[ov.Model, list[np.ndarray]]:
    """Return a stateful model at one step, static and without states, and its inputs.

    ``arrays`` are the inputs of that step in order, ``states`` the values of all states by the op
    that reads them. They become inputs; without any, the model is at its first step.
    """
    clone, added, inputs = model.clone(), list[Any](), list(arrays)
    for parameter, array in zip(clone.get_parameters(), arrays, strict=True):
        parameter.set_partial_shape(ov.PartialShape(array.shape))
    for node in clone.get_ordered_ops():
        if node.get_type_name() != "ReadValue":
            continue
        name, kind = node.get_friendly_name(), node.get_output_element_type(0)
        if name in states:
            state = ov.opset13.parameter(states[name].shape, states[name].dtype, name=name)
            added.append(state)
            inputs.append(states[name])
            value = as_type(state.output(0), kind)
        elif node.get_input_size():
            value = node.input_value(0)
        else:
            sizes = node.get_output_partial_shape(0)
            shape = [size.get_length() if size.is_static else 0 for size in sizes]
            value = ov.opset13.constant(np.zeros(shape, kind.to_dtype())).output(0)
        node.output(0).replace(value)
    parameters = [*clone.get_parameters(), *added]
    step = build_model(clone.get_results(), [], parameters, model.get_friendly_name())
    step.validate_nodes_and_infer_types()
    return step, inputs


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
