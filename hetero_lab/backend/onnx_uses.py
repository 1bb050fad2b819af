"""Which use of an ONNX operator each op of a model is.

A model that was read from an ONNX file knows the nodes of that file: their operator and attributes
are what tables of support are written in. Any other op is put in terms of ONNX from what OpenVINO
made of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.onnx_mapping import (
    TENSOR_PROTO,
    Facts,
    OnnxUse,
    input_facts,
    onnx_use,
    type_facts,
)
from hetero_lab.model.onnx_nodes import OnnxGraph, OnnxNode, nodes_of_ops, onnx_graph

# Names of the inputs, in ONNX's order; where only one is of interest, all that it may be called.
_ONE = ("X",), ("input",), ("data",)
_INPUTS = {
    operator: (names,) for operator, names in {
    **dict.fromkeys((
        "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "MatMul",
        "Mod", "Mul", "Or", "Sub",
    ), ("A", "B")),
    **dict.fromkeys((
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
        "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Squeeze", "Unsqueeze",
    ), ("data", "axes")),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), ("data", "indices")),
    **dict.fromkeys(("BitShift", "Pow"), ("X", "Y")),
    **dict.fromkeys(("Conv", "ConvTranspose"), ("X", "W", "B")),
    "BatchNormalization": ("X", "scale", "B", "input_mean", "input_var"),
    "CastLike": ("input", "target_type"),
    "Clip": ("input", "min", "max"),
    "CumSum": ("x", "axis"),
    "Expand": ("input", "shape"),
    "Gemm": ("A", "B", "C"),
    "InstanceNormalization": ("input", "scale", "B"),
    "LayerNormalization": ("X", "Scale", "B"),
    "PRelu": ("X", "slope"),
    "Pad": ("data", "pads", "constant_value"),
    "Reshape": ("data", "shape"),
    "Resize": ("X", "roi", "scales", "sizes"),
    "ScatterND": ("data", "indices", "updates"),
    "Slice": ("data", "starts", "ends", "axes", "steps"),
    "Split": ("input", "split"),
    "TopK": ("X", "K"),
    "Where": ("condition", "X", "Y"),
    }.items()
}  # fmt: skip
_TYPE_NAMES = {number: name for name, number in TENSOR_PROTO.items()}


@dataclass(frozen=True)
class Use:
    """What an op is in ONNX's terms.

    ``of_op`` is what OpenVINO's op says, None where no operator is known for it; ``of_file`` what
    the node of the file says that it comes from, None where there is no file or no such node.
    """

    of_op: OnnxUse | None
    of_file: OnnxUse | None

    def best(self, operators: Collection[str]) -> OnnxUse | None:
        """Return the one to look up: that of the file, if there is a table of its operator."""
        known = self.of_file is not None and self.of_file.operator in operators
        return self.of_file if known else self.of_op


@dataclass(frozen=True)
class _FileTensor:
    """What is known of an input of a node."""

    element_type: str
    shape: tuple[int, ...] | None
    rank: int | None
    constant: bool | None


def onnx_uses(bound: BoundModel) -> dict[str, Use]:
    """Say of each op of a model whose device can be chosen what it is in ONNX's terms."""
    graph = bound.graph
    constant = {graph.ops[index].name for index in graph.constant_side}
    placeable = {graph.ops[index].name for index in graph.placeable}
    nodes = {
        node.get_friendly_name(): node
        for node in bound.model.get_ordered_ops()
        if node.get_friendly_name() in placeable
    }
    of_op = {name: onnx_use(node, constant) for name, node in nodes.items()}
    file = onnx_graph(bound.model)
    if file is None:
        return {name: Use(use, None) for name, use in of_op.items()}
    from_node = nodes_of_ops(bound.model, file)
    tensors = _tensors(bound, file, constant)
    return {
        name: Use(use, _of_file(from_node[name], use, tensors) if name in from_node else None)
        for name, use in of_op.items()
    }


def _of_file(
    node: OnnxNode, mapped: OnnxUse | None, tensors: Mapping[str, _FileTensor]
) -> OnnxUse | None:
    """Say what a node of a file is; what its op says fills in, if it is of the same operator."""
    given = [tensors[name] for name in node.inputs if name in tensors]
    if not given or len(given) < sum(map(bool, node.inputs)):
        return None
    of_op = mapped.facts if mapped is not None and mapped.operator == node.operator else {}
    facts: Facts = {}
    for names in _INPUTS.get(node.operator, _ONE):
        for name, tensor in zip_longest(names, node.inputs[: len(names)], fillvalue=""):
            if tensor:
                known = tensors[tensor]
                facts |= input_facts(name, known.shape, known.rank, known.constant)
            elif name not in node.attributes and f"{name}_dim" not in of_op:
                # Else it was an attribute in that opset, or the reader filled in its default.
                facts[f"{name}_is_none"] = frozenset([True])
    for name, value in node.attributes.items():
        facts[f"attr_{name}_is_none"] = frozenset([False])
        if value is not None:
            facts[f"attr_{name}"] = frozenset([value])
    element_type, typed = type_facts(node.operator, [tensor.element_type for tensor in given])
    return OnnxUse(node.operator, {**typed, **of_op, **facts}, element_type, given[0].rank)


def _tensors(
    bound: BoundModel, file: OnnxGraph, constant: Collection[str]
) -> dict[str, _FileTensor]:
    """Return what is known of each tensor of a file: of initialisers what the file says."""
    computed = file.constants()
    found: dict[str, _FileTensor] = {}
    for node in bound.model.get_ordered_ops():
        for output in node.outputs():
            partial = output.get_partial_shape()
            rank = None if partial.rank.is_dynamic else int(partial.rank.get_length())
            shape = None if partial.is_dynamic else tuple(int(size) for size in partial.to_shape())
            kind = output.get_element_type().get_type_name()
            for name in output.get_names():
                known = name in computed or node.get_friendly_name() in constant
                found[name] = _FileTensor(kind, shape, rank, known)
    for name, (number, shape) in file.initialisers.items():
        kind = _TYPE_NAMES.get(number, "")
        found[name] = _FileTensor(kind, shape, len(shape), True)
    return found
