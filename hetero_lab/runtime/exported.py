"""What a compiled model reports: its properties, and the partition in the header of its export.

The header of an exported HETERO model lists devices and wiring of the submodels, but not their ops.
Those are known if the header matches the predicted partition.
"""

from __future__ import annotations

import contextlib
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from typing import Any, TypeAlias

import openvino as ov

from hetero_lab.errors import warn
from hetero_lab.model.opgraph import grouped
from hetero_lab.placement.partition import Boundary, Partition, Subgraph, Wiring, reordered
from hetero_lab.runtime.placed_model import header_text

# For each submodel and each of its inputs: ("model", number), or ("edge", submodel, its output).
_Sources: TypeAlias = list[list[tuple[Any, ...]]]
# Control characters in the model's name, which the header holds and nobody needs.
_NO_XML = re.compile("&#[^;]*;|[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def ask(model: ov.CompiledModel, key: str) -> Any:
    """Return a property of a compiled model, or ``None`` if it has none of that name."""
    with contextlib.suppress(Exception):  # not every device has every property
        return model.get_property(key)
    return None


def reported(model: ov.CompiledModel, key: str) -> dict[str, Any]:
    """Return a property of a compiled model under ``""``, or else that of each of its devices."""
    own = ask(model, key)
    if own is not None:
        return {"": own}
    return {d: p.get(key) for d, p in (ask(model, "DEVICE_PROPERTIES") or {}).items()}


def observe(compiled: ov.CompiledModel, predicted: Partition) -> tuple[Partition, bool | None]:
    """Return the compiled partition, and whether it is the predicted one.

    It is the predicted one and ``None`` if none is reported. Another one gives a warning.
    """
    header = parse_header(header_text(compiled))
    if header is None:
        return predicted, None
    order = match_header(header, predicted)
    if order is not None:
        return reordered(predicted, order), True
    warn(
        "The runtime compiled another partition than predicted: "
        f"{header.n_subgraphs} subgraphs where {predicted.n_subgraphs} were expected. "
        "The observed one is reported; it does not show which op is in which subgraph."
    )
    return replace(header, wiring=tuple(Wiring((), ()) for _ in header.wiring)), False


def parse_header(text: str) -> Partition | None:
    """Read the XML that an exported HETERO model begins with; ``None`` if there is none.

    The submodels are in execution order. The header names no ops: tensors are
    ``("tensor", "subgraphN", port)`` in the wiring.
    """
    if not text:
        return None
    root = ET.fromstring(_NO_XML.sub("", text))

    def places(path: str, prefix: str = "") -> list[tuple[int, int]]:
        idx, node = f"{prefix}submodel_idx", f"{prefix}node_idx"
        return [(int(e.get(idx, -1)), int(e.get(node, -1))) for e in root.iterfind(path)]

    submodels = root.iterfind("compiled_submodels/compiled_submodel")
    devices = [e.get("device", "") for e in submodels]
    inputs: list[dict[int, tuple[str | int, ...]]] = [{} for _ in devices]
    outputs: list[dict[int, tuple[str | int, ...]]] = [{} for _ in devices]
    for number, (submodel, port) in enumerate(places("inputs_to_submodels_inputs/pair")):
        inputs[submodel][port] = ("model", number)
    for number, (submodel, port) in enumerate(places("outputs_to_submodels_outputs/pair")):
        outputs[submodel][port] = ("model", number)
    receivers: dict[tuple[int, int], list[int]] = {}
    links = "submodels_input_to_prev_output/record"
    for (target, port), source in sorted(
        zip(places(links, "in_"), places(links, "out_"), strict=True)
    ):
        submodel, source_port = source
        entry = ("tensor", f"subgraph{submodel}", source_port)
        inputs[target][port] = outputs[submodel][source_port] = entry
        receivers.setdefault(source, []).append(target)
    return Partition(
        subgraphs=tuple(Subgraph(device, ()) for device in devices),
        boundaries=tuple(
            Boundary(f"subgraph{s}:{port}", "", port, s, tuple(sorted(set(targets))), None)
            for (s, port), targets in receivers.items()
        ),
        wiring=tuple(
            Wiring(*(tuple(entry for _, entry in sorted(side.items())) for side in sides))
            for sides in zip(inputs, outputs, strict=True)
        ),
        observed=True,
    )


def match_header(header: Partition, predicted: Partition) -> list[int] | None:
    """Find the predicted subgraph of each submodel of the header.

    Devices, the model's inputs and outputs, and every edge have to agree; ``None`` if they
    do not. Submodels are told apart by refining colours over the edges (Weisfeiler and
    Leman 1968), then assigned in execution order.
    """
    seen, expected = _sources(header), _sources(predicted)
    seen_colours, expected_colours = _colours(header, seen), _colours(predicted, expected)
    if Counter(seen_colours) != Counter(expected_colours):
        return None
    candidates = grouped((colour, index) for index, colour in enumerate(expected_colours))
    order: dict[int, int] = {}
    for submodel, colour in enumerate(seen_colours):
        # Submodels of equal colours differ only in their producers, which are assigned already.
        sources = [e if e[0] == "model" else (e[0], order.get(e[1]), e[2]) for e in seen[submodel]]
        fitting = [c for c in candidates[colour] if expected[c] == sources]
        if not fitting:
            return None
        order[submodel] = fitting[0]
        candidates[colour].remove(fitting[0])
    return list(order.values())


def _sources(partition: Partition) -> _Sources:
    made_at = {
        entry: (index, port)
        for index, wiring in enumerate(partition.wiring)
        for port, entry in enumerate(wiring.outputs)
    }
    return [
        [entry if entry[0] == "model" else ("edge", *made_at[entry]) for entry in wiring.inputs]
        for wiring in partition.wiring
    ]


def _colours(partition: Partition, sources: _Sources) -> list[int]:
    """Return a number for each submodel; equal numbers have equal surroundings."""
    colours = [
        hash((s.device, *((port, e) for port, e in enumerate(w.outputs) if e[0] == "model")))
        for s, w in zip(partition.subgraphs, partition.wiring, strict=True)
    ]
    users: list[list[tuple[int, int, int]]] = [[] for _ in colours]
    for submodel, entries in enumerate(sources):
        for port, entry in enumerate(entries):
            if entry[0] == "edge":
                users[entry[1]].append((entry[2], submodel, port))
    distinct = 0
    while len(set(colours)) > distinct:
        distinct = len(set(colours))
        read = [tuple(e if e[0] == "model" else (colours[e[1]], e[2]) for e in s) for s in sources]
        given = [tuple(sorted((p, colours[user], q) for p, user, q in own)) for own in users]
        colours = list(map(hash, zip(colours, read, given, strict=True)))
    return colours
