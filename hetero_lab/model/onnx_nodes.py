"""The nodes of an ONNX file, noted in the model at reading, and which of them each op comes from.

OpenVINO's reader turns a node of ONNX into one op or several, and keeps of its names those of its
outputs, as names of tensors. These join the two. The note is text in the model itself, so it goes
along when the model is copied, or written for another process.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_lab.samples import onnx_wire

if TYPE_CHECKING:
    import openvino as ov

Attribute: TypeAlias = "float | str | tuple[int, ...] | None"

_NOTE = ["hetero_lab", "onnx"]
_SAME = ("Identity", "Dropout")  # their output is their input; OpenVINO takes them out
_NO_OPS = ("Parameter", "Constant", "Result")


@dataclass(frozen=True)
class OnnxNode:
    """A node of an ONNX file.

    ``attributes`` are those that the file gives: numbers, text, and lists of whole numbers; the
    value of any other kind is None. An input that the file leaves out is empty text, or missing at
    the end.
    """

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True)
class OnnxGraph:
    """The nodes of a file, and type (a number of ONNX's) and shape of its constants."""

    nodes: tuple[OnnxNode, ...]
    initialisers: Mapping[str, tuple[int, tuple[int, ...]]]

    def constants(self) -> set[str]:
        """Return the tensors that are computed from constants alone."""
        known = set(self.initialisers)
        for node in self.nodes:  # a file has them in topological order
            given = [name for name in node.inputs if name]
            if node.operator == "Constant" or (given and known.issuperset(given)):
                known.update(node.outputs)
        return known


def note_onnx_nodes(model: ov.Model, path: Path) -> None:
    """Note the nodes of an ONNX file in the model that was read from it; nothing if it is none."""
    if path.suffix.lower() != ".onnx":
        return
    # Where that fails, the ops are all that is known. Closed with the last view of it.
    with contextlib.suppress(OSError, ValueError, IndexError, struct.error), open(path, "rb") as f:
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        model.set_rt_info(json.dumps(_parsed(memoryview(data))), _NOTE)


def forget_onnx_nodes(model: ov.Model) -> None:
    """Take the note out of a model: it was changed, and is not the file's any more."""
    if model.has_rt_info(_NOTE):
        model.set_rt_info("", _NOTE)


def onnx_note(model: ov.Model) -> str:
    """Return the note as it is; empty if there is none."""
    return model.get_rt_info(_NOTE).astype(str) if model.has_rt_info(_NOTE) else ""


def onnx_graph(model: ov.Model) -> OnnxGraph | None:
    """Return the nodes of the ONNX file that a model was read from, if they were noted."""
    text = onnx_note(model)
    if not text:
        return None
    nodes, initialisers = json.loads(text)
    return OnnxGraph(
        tuple(
            OnnxNode(
                operator,
                name,
                tuple(inputs),
                tuple(outputs),
                {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()},
            )
            for operator, name, inputs, outputs, attributes in nodes
        ),
        {name: (kind, tuple(shape)) for name, (kind, shape) in initialisers.items()},
    )


def nodes_of_ops(model: ov.Model, graph: OnnxGraph) -> dict[str, OnnxNode]:
    """Return for each op, by friendly name, the node of the file that it comes from.

    An op comes from the node whose output it computes, or, if its outputs have no name in the
    file, from the node that the ops after it come from. Ops are left out where these, taken
    together, read something else than the node does: then the reader joined several nodes.
    """
    number_of = {out: at for at, node in enumerate(graph.nodes) for out in node.outputs if out}
    found: dict[str, int] = {}
    sources: dict[str, list[Any]] = {}
    for op in reversed(model.get_ordered_ops()):
        if op.get_type_name() in _NO_OPS:
            continue
        name = op.get_friendly_name()
        made = [number_of[t] for out in op.outputs() for t in out.get_names() if t in number_of]
        if made:
            found[name] = min(made)
        if name not in found:
            continue
        sources[name] = list(op.input_values())
        for source in sources[name]:
            before = source.get_node()
            if not _named(before, number_of):
                found.setdefault(before.get_friendly_name(), found[name])
    torn = {
        found[name]
        for name, number in found.items()
        for source in sources.get(name, ())
        if not _reads(graph.nodes[number], source, found, number)
    }
    return {
        name: graph.nodes[number]
        for name, number in found.items()
        if number not in torn and name in sources
    }


def _reads(node: OnnxNode, source: Any, found: Mapping[str, int], number: int) -> bool:
    """Whether a source of an op of a node is inside that node, constant, or one of its inputs."""
    before = source.get_node()
    if before.get_type_name() == "Constant" or found.get(before.get_friendly_name()) == number:
        return True
    return not source.get_names().isdisjoint(node.inputs)


def _named(op: Any, names: Mapping[str, int]) -> bool:
    return op.get_type_name() in _NO_OPS or any(
        name in names for out in op.outputs() for name in out.get_names()
    )


def _parsed(model: memoryview) -> tuple[list[Any], dict[str, Any]]:
    """Return the nodes and initialisers of an encoded model as plain data."""
    graph = onnx_wire.messages(model, 7)[0]
    same: dict[str, str] = {}
    nodes, initialisers = [], {}
    for node in onnx_wire.messages(graph, 1):
        inputs = [same.get(name, name) for name in onnx_wire.strings(node, 1)]
        outputs, operator = onnx_wire.strings(node, 2), onnx_wire.strings(node, 4)[0]
        domain = "".join(onnx_wire.strings(node, 7))
        if operator in _SAME and not domain and inputs and outputs:
            same[outputs[0]] = inputs[0]
            continue
        if operator == "Constant" and not domain:
            for attribute in onnx_wire.messages(node, 5):
                for tensor in onnx_wire.messages(attribute, 5):
                    initialisers[outputs[0]] = _type_and_shape(tensor)
        operator = operator if domain in ("", "ai.onnx") else f"{domain}.{operator}"
        attributes = dict(_attributes(node))
        nodes.append([operator, "".join(onnx_wire.strings(node, 3)), inputs, outputs, attributes])
    for tensor in onnx_wire.messages(graph, 5):
        initialisers["".join(onnx_wire.strings(tensor, 8))] = _type_and_shape(tensor)
    return nodes, initialisers


def _type_and_shape(tensor: memoryview) -> tuple[int, list[int]]:
    return sum(onnx_wire.integers(tensor, 2)), onnx_wire.integers(tensor, 1)


def _attributes(node: memoryview) -> Iterator[tuple[str, float | str | list[int] | None]]:
    real, integer, text, integers = 1, 2, 3, 7  # AttributeType
    for attribute in onnx_wire.messages(node, 5):
        name = onnx_wire.strings(attribute, 1)[0]
        kind = sum(onnx_wire.integers(attribute, 20))
        if kind == real:
            yield name, struct.unpack("<f", onnx_wire.messages(attribute, 2)[0])[0]
        elif kind == integer:
            yield name, (onnx_wire.integers(attribute, 3) or [0])[0]
        elif kind == text:
            yield name, "".join(onnx_wire.strings(attribute, 4))
        elif kind == integers:
            yield name, onnx_wire.integers(attribute, 8)
        else:
            yield name, None
