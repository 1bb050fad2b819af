"""Cut a model into the submodels of a partition, each an ov.Model of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import openvino as ov

from hetero_lab.errors import ArgumentError
from hetero_lab.model.read import PreparedModel
from hetero_lab.placement.partition import Partition


@dataclass(frozen=True)
class Submodel:
    """One subgraph as a model.

    ``inputs`` and ``outputs`` say for each port of ``model`` what it is: ``("model", index)`` of
    the whole model's ports, or ``("tensor", op, port)`` of a boundary.
    """

    index: int
    device: str
    model: ov.Model
    inputs: tuple[tuple[str | int, ...], ...]
    outputs: tuple[tuple[str | int, ...], ...]


def cut(prepared: PreparedModel, partition: Partition) -> tuple[Submodel, ...]:
    """Cut a clone of the model; the caller's stays as it is.

    Raises
    ------
    ArgumentError
        The partition does not say where every node belongs.
    """
    graph = prepared.graph
    if len(partition.home) != len(graph.ops):
        raise ArgumentError("This partition does not tell in which subgraph every op is.")
    clone = prepared.model.clone()
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
            parameter = ov.opset13.parameter(output.get_shape(), output.get_element_type())
            parameter.set_friendly_name(f"{boundary.tensor}/into{target}")
            parameters[target, entry] = parameter
            for use, home in uses:
                if home == target:
                    use.replace_source_output(parameter.output(0))
        results[entry] = ov.opset13.result(output, name=f"{boundary.tensor}/out")
    own_parameters, own_results = clone.get_parameters(), clone.get_results()
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
        model_results = [
            own_results[int(e[1])] if e[0] == "model" else results[e] for e in wiring.outputs
        ]
        name = f"{graph.name}_{index}"
        parts: list[Any] = [model_results, model_parameters, name]
        if index in sinks:
            parts.insert(1, sinks[index])
        build: Any = ov.Model  # its stubs do not know the form with sinks
        model = build(*parts)
        submodels.append(Submodel(index, subgraph.device, model, wiring.inputs, wiring.outputs))
    return tuple(submodels)
