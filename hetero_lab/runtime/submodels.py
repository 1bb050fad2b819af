"""The submodels of a partition: cut out of a model, each compiled on its device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import openvino as ov

from hetero_lab.backend.bound import BoundModel
from hetero_lab.errors import ArgumentError, CompileError, last_line, names_at_hand
from hetero_lab.model.opgraph import NOT_OPS, PARAMETER
from hetero_lab.placement.partition import Partition
from hetero_lab.runtime.pieces import build_model

# Ports at boundaries are numbered from here, above the model's own "Parameter_N".
_FIRST_PORT = 1_000_000
_THREADS = "INFERENCE_NUM_THREADS"
_LEFT_CORES, _FEW_CORES = 2, 8


@dataclass(frozen=True)
class Submodel:
    """One subgraph as a model.

    ``inputs`` and ``outputs`` have an entry for each port of ``model``: ``("model", index)`` of the
    whole model's ports, or ``("tensor", op, port)`` of a boundary.
    """

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
            parameter.set_friendly_name(f"{boundary.tensor}/into{target}")
            parameters[target, entry] = parameter
            for use, home in uses:
                if home == target:
                    use.replace_source_output(parameter.output(0))
        results[entry] = ov.opset13.result(output, name=f"{boundary.tensor}/out")
    own_parameters, own_results = clone.get_parameters(), clone.get_results()
    given = {graph.ops[i].name for i in graph.parameters if graph.ops[i].type == PARAMETER}
    sinks: dict[int, list[Any]] = {}
    for sink in clone.get_sinks():
        home = partition.home[graph.index_of[sink.get_friendly_name()]]
        sinks.setdefault(home, []).append(sink)
    submodels = []
    for subgraph, wiring in zip(partition.subgraphs, partition.wiring, strict=True):
        index = subgraph.index
        model_parameters = [
            own_parameters[int(e[1])] if e[0] == "model" else parameters[index, e]
            for e in wiring.inputs
        ]
        outputs = wiring.outputs
        if not hand_inputs_on:
            outputs = tuple(e for e in outputs if e[0] == "model" or e[1] not in given) or outputs
        model_results = [own_results[int(e[1])] if e[0] == "model" else results[e] for e in outputs]
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
    found = dict(by_device)
    n_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        n_cores = len(os.sched_getaffinity(0))
    if len(on_cores) == len(by_device) or n_cores < _FEW_CORES:
        return found
    for device in on_cores:
        own = by_device[device]
        if _THREADS not in own and not core.get_property(device, _THREADS):
            x = ov.opset13.parameter([1])
            model = build_model([ov.opset13.result(ov.opset13.relu(x))], [], [x], "threads")
            some = core.compile_model(model, device, own)
            if int(some.get_property(_THREADS)) > n_cores - n_left:
                found[device] = {**own, _THREADS: n_cores - n_left}
    return found


def named_rows(submodel: Submodel, rows: Iterable[Any]) -> Iterator[object]:
    """Yield profiling info with the names that HETERO would give it, for the same reader.

    Names begin with the subgraph, and ports at boundaries are ``Parameter_N`` and ``Result_N`` in
    their order.
    """
    ports: dict[str, str] = {}
    for kind, nodes, entries in (
        ("Parameter", submodel.model.get_parameters(), submodel.inputs),
        ("Result", submodel.model.get_results(), submodel.outputs),
    ):
        for number, (node, entry) in enumerate(zip(nodes, entries, strict=True)):
            if entry[0] == "tensor":
                ports[node.get_friendly_name()] = f"{kind}_{_FIRST_PORT + number}"
    for row in rows:
        name = str(row.node_name)
        for port, numbered in ports.items():
            if name == port or name.startswith(f"{port}_") or name.endswith(f"_{port}"):
                name = name.replace(port, numbered)
                break
        others = ("node_type", "exec_type", "status", "real_time", "cpu_time")
        rest = {other: getattr(row, other) for other in others}
        yield SimpleNamespace(node_name=f"subgraph{submodel.index}: {name}", **rest)
