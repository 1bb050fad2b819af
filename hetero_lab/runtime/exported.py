"""The partition that the runtime compiled, read from the header of an exported HETERO model.

The header lists devices and wiring of the submodels, but not their ops. Those are known if the
header matches the predicted partition.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeAlias

import openvino as ov

from hetero_lab.errors import warn
from hetero_lab.placement.partition import Boundary, Partition, Subgraph, Wiring, reordered
from hetero_lab.runtime.run_frozen import header_text

# A submodel and the number of its input or output; and, for each submodel, port → connection.
_Place: TypeAlias = tuple[int, int]
_Ports: TypeAlias = list[dict[int, tuple[Any, ...]]]


@dataclass(frozen=True)
class ExportHeader:
    """The wiring of a HETERO model, with its submodels in execution order.

    ``inputs`` and ``outputs`` map the model's to (submodel, its input or output); ``edges``
    maps (submodel, input) to (submodel, output).
    """

    devices: tuple[str, ...]
    inputs: tuple[_Place, ...]
    outputs: tuple[_Place, ...]
    edges: dict[_Place, _Place]


def observe(compiled: ov.CompiledModel, predicted: Partition) -> tuple[Partition, bool | None]:
    """Return the compiled partition, and whether it is the predicted one.

    If the runtime does not report it, return the predicted one and ``None``. Warns if another one
    was compiled.
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

    def places(path: str, prefix: str = "") -> tuple[_Place, ...]:
        idx, node = f"{prefix}submodel_idx", f"{prefix}node_idx"
        found = root.iterfind(path)
        return tuple((int(e.get(idx, -1)), int(e.get(node, -1))) for e in found)

    links = "submodels_input_to_prev_output/record"
    submodels = root.iterfind("compiled_submodels/compiled_submodel")
    return ExportHeader(
        devices=tuple(e.get("device", "") for e in submodels),
        inputs=places("inputs_to_submodels_inputs/pair"),
        outputs=places("outputs_to_submodels_outputs/pair"),
        edges=dict(zip(places(links, "in_"), places(links, "out_"), strict=True)),
    )


def match_header(header: ExportHeader, predicted: Partition) -> list[int] | None:
    """Find the predicted subgraph of each submodel of the header.

    Devices, the model's inputs and outputs, and every edge have to agree; ``None`` if they
    do not. Submodels are told apart by refining colours over the edges (Weisfeiler and
    Leman 1968), then assigned in execution order.
    """
    expected = _expected_header(predicted)
    if len(header.edges) != len(expected.edges):
        return None
    seen_colours, expected_colours = _colours(header), _colours(expected)
    if Counter(seen_colours) != Counter(expected_colours):
        return None
    candidates: dict[int, list[int]] = {}
    for index, colour in enumerate(expected_colours):
        candidates.setdefault(colour, []).append(index)
    expected_inputs, _ = _ports(expected)
    order: list[int] = []
    for ports, colour in zip(_ports(header)[0], seen_colours, strict=True):
        # Submodels of equal colours differ only in their producers, which are assigned already.
        sources = {
            port: (kind if kind[0] == "model" else ("edge", order[kind[1]], kind[2]))
            for port, kind in ports.items()
            if kind[0] == "model" or kind[1] < len(order)
        }
        fitting = [c for c in candidates[colour] if expected_inputs[c] == sources]
        if not fitting:
            return None
        order.append(fitting[0])
        candidates[colour].remove(fitting[0])
    return order


def _expected_header(partition: Partition) -> ExportHeader:
    """Return the header that a partition would have, with its subgraphs in their own order."""
    read, made = (
        [
            (entry, (index, port))
            for index, wiring in enumerate(partition.wiring)
            for port, entry in enumerate(getattr(wiring, side))
        ]
        for side in ("inputs", "outputs")
    )
    made_at = dict(made)
    inputs, outputs = (
        tuple(place for _, place in sorted((e, place) for e, place in side if e[0] == "model"))
        for side in (read, made)
    )
    edges = {place: made_at[entry] for entry, place in read if entry[0] == "tensor"}
    return ExportHeader(tuple(s.device for s in partition.subgraphs), inputs, outputs, edges)


def _ports(header: ExportHeader) -> tuple[_Ports, _Ports]:
    """Return the connections of the inputs and of the outputs of each submodel."""
    inputs: _Ports = [{} for _ in header.devices]
    outputs: _Ports = [{} for _ in header.devices]
    for number, (submodel, port) in enumerate(header.inputs):
        inputs[submodel][port] = ("model", number)
    for (submodel, port), source in header.edges.items():
        inputs[submodel][port] = ("edge", *source)
    for number, (submodel, port) in enumerate(header.outputs):
        outputs[submodel][port] = ("model", number)
    return inputs, outputs


def _colours(header: ExportHeader) -> list[int]:
    """Return a number for each submodel; equal numbers have equal surroundings."""
    inputs, outputs = _ports(header)
    colours = [
        hash((device, tuple(sorted(out.items())), len(ins)))
        for device, ins, out in zip(header.devices, inputs, outputs, strict=True)
    ]
    users: list[list[tuple[int, int, int]]] = [[] for _ in colours]
    for (submodel, port), (source, source_port) in header.edges.items():
        users[source].append((source_port, submodel, port))
    distinct = 0
    while len(set(colours)) > distinct:
        distinct = len(set(colours))
        read = [
            tuple(
                (port, kind if kind[0] == "model" else (colours[kind[1]], kind[2]))
                for port, kind in sorted(ports.items())
            )
            for ports in inputs
        ]
        given = [tuple(sorted((p, colours[user], q) for p, user, q in own)) for own in users]
        colours = list(map(hash, zip(colours, read, given, strict=True)))
    return colours


def _unnamed(header: ExportHeader) -> Partition:
    """Build the partition of a header, without ops."""
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
