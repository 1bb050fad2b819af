"""The partition that the runtime compiled: the header of an exported HETERO model.

It lists devices and wiring of the submodels, not their ops. These are known where the header
matches the predicted partition.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from typing import Any

import openvino as ov

from hetero_lab.errors import warn
from hetero_lab.placement.partition import Boundary, Partition, Subgraph, Wiring, reordered
from hetero_lab.runtime.run_frozen import header_text


@dataclass(frozen=True)
class ExportHeader:
    """The header of a compiled HETERO model, in execution order of the submodels.

    ``inputs`` and ``outputs`` map the model's to (submodel, its input or output); ``edges``
    maps (submodel, input) to (submodel, output).
    """

    devices: tuple[str, ...]
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    edges: dict[tuple[int, int], tuple[int, int]]


def observe(compiled: ov.CompiledModel, predicted: Partition) -> tuple[Partition, bool | None]:
    """Return the partition that was compiled, and whether it is the predicted one.

    The latter is ``None``, and the partition the predicted one, where the runtime does not tell.
    Warns where another one was compiled.
    """
    header = parse_header(header_text(compiled))
    if header is None:
        return predicted, None
    order = match_header(header, predicted)
    if order is not None:
        return reordered(predicted, order), True
    observed = _unnamed(header)
    warn(
        "The runtime compiled another partition than predicted: "
        f"{observed.n_subgraphs} subgraphs where {predicted.n_subgraphs} were expected. "
        "The observed one is reported; it does not show which op is in which subgraph."
    )
    return observed, False


def parse_header(text: str) -> ExportHeader | None:
    """Read the XML that an exported HETERO model begins with; ``None`` if there is none."""
    if not text:
        return None
    root = ET.fromstring(text)

    def pairs(tag: str) -> tuple[tuple[int, int], ...]:
        return tuple(
            (int(e.get("submodel_idx", -1)), int(e.get("node_idx", -1)))
            for e in root.iterfind(f"{tag}/pair")
        )

    edges = {
        (int(e.get("in_submodel_idx", -1)), int(e.get("in_node_idx", -1))): (
            int(e.get("out_submodel_idx", -1)),
            int(e.get("out_node_idx", -1)),
        )
        for e in root.iterfind("submodels_input_to_prev_output/record")
    }
    return ExportHeader(
        devices=tuple(
            e.get("device", "") for e in root.iterfind("compiled_submodels/compiled_submodel")
        ),
        inputs=pairs("inputs_to_submodels_inputs"),
        outputs=pairs("outputs_to_submodels_outputs"),
        edges=edges,
    )


def match_header(header: ExportHeader, predicted: Partition) -> list[int] | None:
    """Find, for each submodel of the header, the predicted subgraph that it is.

    Devices, the model's inputs and outputs, and every edge have to agree; ``None`` if they
    do not. Submodels are told apart by refining colours over the edges (Weisfeiler and
    Leman 1968), then assigned in execution order.
    """
    if Counter(header.devices) != Counter(s.device for s in predicted.subgraphs):
        return None
    seen = _ports_of_header(header)
    expected = _ports_of_wiring(predicted)
    if len(header.edges) != predicted.n_crossings:
        return None
    seen_colours = _colours(header.devices, *seen)
    expected_colours = _colours([s.device for s in predicted.subgraphs], *expected)
    if Counter(seen_colours) != Counter(expected_colours):
        return None
    candidates: dict[int, list[int]] = {}
    for index, colour in enumerate(expected_colours):
        candidates.setdefault(colour, []).append(index)
    order: list[int] = []
    for submodel, colour in enumerate(seen_colours):
        sources = {
            port: (kind if kind[0] == "model" else ("edge", order[int(kind[1])], kind[2]))
            for port, kind in seen[0][submodel].items()
            if kind[0] == "model" or int(kind[1]) < len(order)
        }
        fitting = [c for c in candidates[colour] if expected[0][c] == sources]
        if not fitting:
            return None
        order.append(fitting[0])
        candidates[colour].remove(fitting[0])
    return order


_Ports = list[dict[int, tuple[Any, ...]]]


def _ports_of_header(header: ExportHeader) -> tuple[_Ports, _Ports]:
    inputs: _Ports = [{} for _ in header.devices]
    outputs: _Ports = [{} for _ in header.devices]
    for number, (submodel, port) in enumerate(header.inputs):
        inputs[submodel][port] = ("model", number)
    for (submodel, port), (source, source_port) in header.edges.items():
        inputs[submodel][port] = ("edge", source, source_port)
    for number, (submodel, port) in enumerate(header.outputs):
        outputs[submodel][port] = ("model", number)
    return inputs, outputs


def _ports_of_wiring(partition: Partition) -> tuple[_Ports, _Ports]:
    made_at: dict[tuple[Any, ...], tuple[int, int]] = {}
    outputs: _Ports = []
    for index, wiring in enumerate(partition.wiring):
        ports: dict[int, tuple[Any, ...]] = {}
        for port, entry in enumerate(wiring.outputs):
            if entry[0] == "model":
                ports[port] = entry
            else:
                made_at[entry] = (index, port)
        outputs.append(ports)
    inputs: _Ports = [
        {
            port: entry if entry[0] == "model" else ("edge", *made_at[entry])
            for port, entry in enumerate(wiring.inputs)
        }
        for wiring in partition.wiring
    ]
    return inputs, outputs


def _colours(devices: Any, inputs: _Ports, outputs: _Ports) -> list[int]:
    colours = [
        hash((device, tuple(sorted(out.items())), len(ins)))
        for device, ins, out in zip(devices, inputs, outputs, strict=True)
    ]
    users: list[list[tuple[int, int, int]]] = [[] for _ in colours]
    for submodel, ports in enumerate(inputs):
        for port, kind in ports.items():
            if kind[0] == "edge":
                users[int(kind[1])].append((int(kind[2]), submodel, port))
    distinct = 0
    while len(set(colours)) > distinct:
        distinct = len(set(colours))
        colours = [
            hash(
                (
                    colours[submodel],
                    tuple(
                        (port, kind if kind[0] == "model" else (colours[int(kind[1])], kind[2]))
                        for port, kind in sorted(ports.items())
                    ),
                    tuple(sorted((p, colours[user], q) for p, user, q in users[submodel])),
                )
            )
            for submodel, ports in enumerate(inputs)
        ]
    return colours


def _unnamed(header: ExportHeader) -> Partition:
    """Build what a header tells without knowing the ops."""
    targets: dict[tuple[int, int], list[int]] = {}
    for (submodel, _), source in sorted(header.edges.items()):
        targets.setdefault(source, []).append(submodel)
    boundaries = tuple(
        Boundary(f"subgraph{s}:{port}", "", port, s, tuple(sorted(set(receivers))), None)
        for (s, port), receivers in targets.items()
    )
    return Partition(
        tuple(Subgraph(i, device, ()) for i, device in enumerate(header.devices)),
        boundaries,
        tuple(Wiring((), ()) for _ in header.devices),
        observed=True,
    )
