"""An op in ONNX's terms: the operator that it comes from and what is known about that use of it.

Tables of what a device supports are written in terms of ONNX; a model here is in OpenVINO's. The
two differ in names, and in what is an input and what an attribute. What an op of OpenVINO does not
tell (whether a file left an attribute out or wrote its default) is left open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Facts: TypeAlias = "dict[str, frozenset[Any]]"

ELEMENT_TYPES = {
    "f32": "FLOAT", "f16": "FLOAT16", "f64": "DOUBLE", "bf16": "BFLOAT16",
    "i4": "INT4", "i8": "INT8", "i16": "INT16", "i32": "INT32", "i64": "INT64",
    "u4": "UINT4", "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64",
    "boolean": "BOOL", "string": "STRING",
}  # fmt: skip
TENSOR_PROTO = {
    "f32": 1, "u8": 2, "i8": 3, "u16": 4, "i16": 5, "i32": 6, "i64": 7, "string": 8,
    "boolean": 9, "f16": 10, "f64": 11, "u32": 12, "u64": 13, "bf16": 16, "u4": 21, "i4": 22,
}  # fmt: skip
_AUTO_PAD = {
    "explicit": "NOTSET",
    "same_upper": "SAME_UPPER",
    "same_lower": "SAME_LOWER",
    "valid": "VALID",
}
# OpenVINO's type → ONNX's operator, where the inputs correspond one to one.
_ONE_INPUT = {
    **{name: name for name in (
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Elu", "Erf",
        "Exp", "Floor", "IsInf", "IsNaN", "Log", "NonZero", "Relu", "Round", "Sigmoid", "Sign",
        "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
    )},
    "Ceiling": "Ceil", "HSigmoid": "HardSigmoid", "HSwish": "HardSwish", "HardSigmoid":
    "HardSigmoid", "LogicalNot": "Not", "Negative": "Neg", "SoftPlus": "Softplus",
    "SoftSign": "Softsign", "Selu": "Selu",
}  # fmt: skip
_TWO_INPUTS = {
    "Add": "Add", "Divide": "Div", "Equal": "Equal", "FloorMod": "Mod", "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual", "Less": "Less", "LessEqual": "LessOrEqual",
    "LogicalAnd": "And", "LogicalOr": "Or", "Mod": "Mod", "Multiply": "Mul", "Power": "Pow",
    "PRelu": "PRelu", "Subtract": "Sub",
}  # fmt: skip
_REDUCTIONS = {
    f"Reduce{name}": f"Reduce{name}" for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")
}


@dataclass(frozen=True)
class OnnxUse:
    """A use of an ONNX operator: for each property, the values that it may have here."""

    operator: str
    facts: Mapping[str, frozenset[Any]]
    element_type: str
    rank: int | None


@dataclass(frozen=True)
class _ReadNode:
    """What the functions below ask of a node of OpenVINO."""

    type: str
    version: str
    attributes: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...] | None]
    ranks: Sequence[int | None]
    types: Sequence[str]
    constant: Sequence[bool]
    values: Sequence[np.ndarray | None]
    out_shapes: Sequence[tuple[int, ...] | None]
    out_types: Sequence[str]

    @classmethod
    def of(cls, node: Any, constant_side: Collection[str]) -> _ReadNode:
        version = node.get_type_info().version_id
        sources = node.input_values()
        if node.get_type_name() == "BatchNormInference" and version == "opset1":
            sources = [sources[2], *sources[:2], *sources[3:]]  # data came third at first
        producers = [source.get_node() for source in sources]
        return cls(
            node.get_type_name(),
            version,
            node.get_attributes(),
            [_shape(source) for source in sources],
            [_rank(source) for source in sources],
            [source.get_element_type().get_type_name() for source in sources],
            [producer.get_friendly_name() in constant_side for producer in producers],
            [
                _small_value(producer) if producer.get_type_name() == "Constant" else None
                for producer in producers
            ],
            [_shape(output) for output in node.outputs()],
            [output.get_element_type().get_type_name() for output in node.outputs()],
        )

    def inputs(self, *names: str, absent: Sequence[str] = ()) -> Facts:
        """Return what is known of ONNX's inputs, which are this node's, in order."""
        facts: Facts = {}
        for index, name in enumerate(names[: len(self.shapes)]):
            facts.update(self.input(name, index))
        facts.update({f"{name}_is_none": frozenset([True]) for name in absent})
        return facts

    def input(self, name: str, index: int) -> Facts:
        """Return what is known of one input, under ONNX's name of it."""
        return input_facts(name, self.shapes[index], self.ranks[index], self.constant[index])

    def settled(self, index: int) -> list[int] | None:
        """Return the whole numbers of a constant input, None if there is no such input."""
        if index >= len(self.values):
            return None
        value = self.values[index]
        return None if value is None else [int(v) for v in value.reshape(-1)]


def onnx_use(node: Any, constant_side: Collection[str]) -> OnnxUse | None:
    """Say in ONNX's terms what a node of a model is; None if that cannot be said.

    Then no operator is known for its type, or its version of it has other attributes or inputs.

    Parameters
    ----------
    node
        A node of an ``ov.Model``.
    constant_side
        Names of the nodes that are computed from constants alone.
    """
    read = _ReadNode.of(node, constant_side)
    try:
        found = _translate(read)
    except LookupError:
        return None
    if found is None:
        return None
    operator, facts = found
    element_type, types = type_facts(operator, read.types or read.out_types)
    rank = read.ranks[0] if read.ranks else None
    return OnnxUse(operator, {**types, **facts}, element_type, rank)


def type_facts(operator: str, types: Sequence[str]) -> tuple[str, Facts]:
    """Return the element type that a use is named by, and what is known of ONNX's type variables.

    ``types`` are the element types of its inputs, as OpenVINO calls them.
    """
    typed = {"T_": types[0], "T1_": types[0], "V_": types[0]}
    if operator in ("Where", "Pow") and len(types) > 1:
        typed = {"T_": types[1 if operator == "Where" else 0], "T1_": types[1]}
    if operator in ("Gather", "GatherElements") and len(types) > 1:
        typed["Tind_"] = types[1]
    facts = {
        f"{variable}{operator}": frozenset([ELEMENT_TYPES.get(name, name)])
        for variable, name in typed.items()
    }
    return typed["T_"], facts


def input_facts(
    name: str, shape: tuple[int, ...] | None, rank: int | None, constant: bool | None
) -> Facts:
    """Return what is known of an input under ONNX's name of it; ``constant`` may be unknown."""
    facts = {f"{name}_is_none": _is(False), f"{name}_is_fixed_shape": _is(shape is not None)}
    if constant is not None:
        facts[f"{name}_is_constant"] = _is(constant)
    if rank is not None:
        facts[f"{name}_dim"] = _is(rank)
    if shape is not None:
        facts[f"{name}_dynamic_axes"] = _is(())
        facts[f"{name}_is_single_element"] = _is(int(np.prod(shape)) == 1)
    return facts


def _translate(node: _ReadNode) -> tuple[str, Facts] | None:
    if node.type in _ONE_INPUT:
        return _ONE_INPUT[node.type], _one_input(node)
    if node.type in _TWO_INPUTS:
        return _TWO_INPUTS[node.type], _two_inputs(node)
    if node.type in _REDUCTIONS:
        return _REDUCTIONS[node.type], _reduction(node)
    if node.type in _OTHERS:
        return _OTHERS[node.type](node)
    return None


def _one_input(node: _ReadNode) -> Facts:
    facts = {**node.inputs("X"), **node.inputs("input"), **node.inputs("data")}
    if node.type == "IsInf":
        for which in ("negative", "positive"):
            facts[f"attr_detect_{which}"] = _is(int(node.attributes[f"detect_{which}"]))
    return facts


def _two_inputs(node: _ReadNode) -> Facts:
    facts = {
        **node.inputs("A", "B"),
        **node.inputs("X", "Y"),
        **node.inputs("X", "slope"),
        "attr_fmod": _is(int(node.type == "Mod")),
    }
    first, second = node.shapes[:2]
    if first is not None and second is not None:
        # "x is broadcast" is said where any of its axes is shorter, whether it is 1 or not.
        facts["x_broadcasting_to_y"] = _is(_shorter(first, second))
        facts["y_broadcasting_to_x"] = _is(_shorter(second, first))
    return facts


def _reduction(node: _ReadNode) -> Facts:
    facts = node.inputs("data", "axes")
    facts["attr_keepdims"] = _is(int(node.attributes["keep_dims"]))
    facts["attr_noop_with_empty_axes"] = _is(0)
    shape, axes = node.shapes[0], node.settled(1)
    if shape is not None and axes is not None:
        rank = len(shape)
        axes = [axis % rank for axis in axes] if rank else axes
        facts["single_axis"] = _is(len(axes) == 1)
        facts["axes_has_zero"] = facts["has_first_axis"] = _is(0 in axes)
        facts["has_last_axis"] = _is(rank - 1 in axes)
        facts["full_reduction"] = _is(len(axes) == rank)
    return facts


def _convolution(node: _ReadNode) -> tuple[str, Facts]:
    grouped = node.type.startswith("Group")
    backwards = node.type.endswith("BackpropData")
    facts = node.inputs("X", "W", absent=("B",))
    if node.ranks[0] is not None:
        facts["W_dim"] = _is(node.ranks[0])  # grouped ones have an axis more here
    attributes = node.attributes
    strides, dilations = list(attributes["strides"]), list(attributes["dilations"])
    pads = [*attributes["pads_begin"], *attributes["pads_end"]]
    automatic = _AUTO_PAD[attributes["auto_pad"]]
    facts.update(
        attr_group_is_one=_is(not grouped),
        attr_auto_pad=_is(automatic),
        strides_all_ones=_is(set(strides) <= {1}),
        is_strides_uniform=_is(len(set(strides)) <= 1),
        dilations_all_ones=_is(set(dilations) <= {1}),
        is_dilations_uniform=_is(len(set(dilations)) <= 1),
    )
    if automatic == "NOTSET":
        facts["pads_all_zeros"] = _is(set(pads) <= {0})
    if not backwards:
        return "Conv", facts
    weights = node.shapes[1]
    if weights is not None:
        kernel = list(weights[-len(strides) :])
        facts["kernel_all_even"] = _is(all(size % 2 == 0 for size in kernel))
        facts["kernel_equals_stride"] = _is(kernel == strides)
    facts["attr_output_shape_is_none"] = _is(len(node.shapes) < 3)
    return "ConvTranspose", facts


def _pooling(node: _ReadNode) -> tuple[str, Facts]:
    attributes = node.attributes
    strides = list(attributes["strides"])
    pads = [*attributes["pads_begin"], *attributes["pads_end"]]
    facts = node.inputs("X")
    facts.update(
        attr_auto_pad=_is(_AUTO_PAD[attributes["auto_pad"]]),
        attr_ceil_mode=_is(int(str(attributes["rounding_type"]).startswith("ceil"))),
        strides_all_ones=_is(set(strides) <= {1}),
    )
    if node.type == "MaxPool":
        facts["dilations_all_ones"] = _is(set(attributes.get("dilations", [1])) <= {1})
        facts["attr_pads_all_zeros"] = _is(not any(pads))
        facts["attr_storage_order"] = _is(0)
        return "MaxPool", facts
    facts["attr_count_include_pad"] = _is(int(not attributes["exclude-pad"]))
    # A file that leaves an attribute out has none of the value that is derived from it.
    facts["has_padding"] = _is(True) if any(pads) else frozenset([False, None])
    facts["has_stride_gt1"] = _is(True) if max(strides) > 1 else frozenset([False, None])
    return "AveragePool", facts


def _softmax(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("input")
    axis, shape = int(node.attributes["axis"]), node.shapes[0]
    if shape:
        facts["attr_axis"] = frozenset([axis % len(shape), axis % len(shape) - len(shape)])
        facts["axis_size_is_one"] = _is(shape[axis] == 1)
    return node.type, facts


def _clip(node: _ReadNode) -> tuple[str, Facts]:
    """A Clamp; or a Maximum or Minimum with one value, of which OpenVINO makes a Clip."""
    data = 0
    if node.type != "Clamp":
        data = 1 if node.constant[0] else 0
        limit = node.shapes[1 - data]
        if not node.constant[1 - data] or limit is None or int(np.prod(limit)) != 1:
            return "Min" if node.type == "Minimum" else "Max", {}
    facts = node.input("input", data)
    facts["min_is_none"] = _is(node.type == "Minimum")
    facts["max_is_none"] = _is(node.type == "Maximum")
    for bound in ("min", "max"):
        facts[f"{bound}_is_constant"] = _is(True)
    return "Clip", facts


def _concat(node: _ReadNode) -> tuple[str, Facts]:
    facts: Facts = {"num_inputs": _is(len(node.shapes)), "inputs_is_none": _is(False)}
    facts["inputs_is_constant"] = _is(tuple(node.constant))
    facts["inputs_is_fixed_shape"] = _is(tuple(shape is not None for shape in node.shapes))
    rank = node.ranks[0]
    if rank:
        axis = int(node.attributes["axis"]) % rank
        facts["inputs_dim"] = _is(rank)
        facts["first_axis"] = _is(axis == 0)
        facts["last_axis"] = _is(axis == rank - 1)
    return "Concat", facts


def _reshape(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("data", "shape")
    target = node.settled(1)
    if target is not None:
        facts["shape_len"] = _is(len(target))
        facts["shape_has_zero"] = _is(0 in target)
        facts["shape_all_zeros"] = _is(not any(target))
        facts["shape_is_constant_or_empty"] = _is(True)
    facts["attr_allowzero"] = _is(int(not node.attributes["special_zero"]))
    return "Reshape", facts


def _transpose(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("data")
    facts["attr_perm_is_none"] = _is(False)
    facts["data_shape_is_2_3"] = _is(node.shapes[0] == (2, 3))
    return "Transpose", facts


def _squeeze(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("data", "axes", absent=("axes",) if len(node.shapes) < 2 else ())
    axes, shape = node.settled(1), node.shapes[0]
    if axes is not None:
        facts["axes_is_empty"] = _is(not axes)
        facts["axes_len_greater_than_one"] = _is(len(axes) > 1)
    if shape is not None:
        facts["data_single_entry"] = _is(set(shape) <= {1})
    return "Squeeze", facts


def _unsqueeze(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("data", "axes")
    axes, shape = node.settled(1), node.shapes[0]
    if axes is not None:
        facts["num_axes"] = _is(len(axes))
        if shape is not None:
            facts["output_dim"] = _is(len(shape) + len(axes))
    return "Unsqueeze", facts


def _matmul(node: _ReadNode) -> tuple[str, Facts]:
    return "MatMul", node.inputs("A", "B")


def _convert(node: _ReadNode) -> tuple[str, Facts]:
    to = TENSOR_PROTO.get(node.out_types[0], 0)
    return "Cast", {**node.inputs("input"), "attr_to": _is(to), "attr_saturate": _is(1)}


def _batch_norm(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("X", "scale", "B", "input_mean", "input_var")
    # Types T1, T2 are those of the parameters.
    for number, index in (("1", 1), ("2", 3)):
        known = ELEMENT_TYPES.get(node.types[index], node.types[index])
        facts[f"T{number}_BatchNormalization"] = _is(known)
    return "BatchNormalization", {**facts, "attr_training_mode": _is(0)}


def _mean_variance(node: _ReadNode) -> tuple[str, Facts]:
    """An MVN over the last axis is the core of a LayerNormalization."""
    shape, axes = node.shapes[0], node.settled(1)
    facts = node.inputs("X")
    if shape and axes is not None and [axis % len(shape) for axis in axes] == [len(shape) - 1]:
        axis = len(shape) - 1
        facts.update(
            axis_is_last=_is(True), axis_eq_zero=_is(axis == 0), attr_stash_type=_is(1),
            Scale_is_constant=_is(True), B_is_constant=_is(True),
        )  # fmt: skip
        return "LayerNormalization", facts
    return "MeanVarianceNormalization", facts


def _interpolate(node: _ReadNode) -> tuple[str, Facts]:
    attributes = node.attributes
    facts = node.inputs("X", absent=("roi",))
    by_scales = attributes.get("shape_calculation_mode") == "scales"
    facts.update(
        attr_mode=_is(str(attributes["mode"]).removesuffix("_onnx")),
        attr_antialias=_is(int(attributes["antialias"])),
        uses_sizes=_is(not by_scales),
        uses_scales=_is(by_scales),
        scales_is_none=_is(not by_scales),
        sizes_is_none=_is(by_scales),
    )
    if "coordinate_transformation_mode" in attributes:  # the first version has none
        how = str(attributes["coordinate_transformation_mode"])
        facts["attr_coordinate_transformation_mode"] = _is(how)
    if by_scales:  # the fourth version has sizes and scales, both
        facts["scales_is_constant"] = _is(node.constant[2 if node.version == "opset4" else 1])
    else:
        facts["sizes_is_constant"] = _is(node.constant[1])
    before, after = node.shapes[0], node.out_shapes[0]
    if by_scales and before is not None and after is not None:
        facts["scales_up"] = _is(all(a >= b for a, b in zip(after, before, strict=True)))
        facts["scales_down"] = _is(all(a <= b for a, b in zip(after, before, strict=True)))
    return "Resize", facts


def _gather(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("data", "indices")
    axis = node.settled(2) if node.type == "Gather" else [int(node.attributes.get("axis", 0))]
    data, indices = node.shapes[:2]
    if node.type != "GatherND" and axis and data:
        facts["attr_axis_is_zero"] = _is(int(axis[0] % len(data) == 0))
        facts["attr_axis_is_one"] = _is(int(axis[0] % len(data) == 1))
    if node.type == "Gather" and data is not None and indices is not None:
        facts["output_dim"] = _is(len(data) + len(indices) - 1)
    if node.type == "GatherND" and indices:
        facts["last_index_dimension"] = _is(indices[-1])
        facts["attr_batch_dims_is_zero"] = _is(int(node.attributes["batch_dims"] == 0))
    return node.type, facts


def _select(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("condition", "X", "Y")
    condition, first, second = node.shapes[:3]
    if condition is not None and first is not None and second is not None:
        for name, shape, other, to in (
            ("condition", condition, first, "x"),
            ("x", first, condition, "condition"),
            ("x", first, second, "y"),
            ("y", second, first, "x"),
        ):
            facts[f"{name}_broadcasting_to_{to}"] = _is(_shorter(shape, other))
    return "Where", facts


def _broadcast(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("input", "shape")
    target = node.settled(1)
    if target is not None:
        facts["shape_len"] = _is(len(target))
        if node.shapes[0] is not None:
            facts["input_broadcasting_to_shape"] = _is(_shorter(node.shapes[0], tuple(target)))
            facts["shape_broadcasting_to_input"] = _is(_shorter(tuple(target), node.shapes[0]))
    return "Expand", facts


def _pad(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("data")
    begin, end = node.settled(1), node.settled(2)
    mode = str(node.attributes["pad_mode"])
    facts["attr_mode"] = _is(mode)
    facts["pads_is_constant"] = _is(node.constant[1] and node.constant[2])
    facts["constant_value_is_constant"] = _is(True)
    if begin is not None and end is not None:
        facts["pads_all_zeros"] = _is(not any([*begin, *end]))
        facts["pads_is_symmetric"] = _is(begin == end)
    return "Pad", facts


def _slice(node: _ReadNode) -> tuple[str, Facts]:
    absent = ("axes",) if len(node.shapes) < 5 else ()
    facts = node.inputs("data", "starts", "ends", "steps", "axes", absent=absent)
    steps, axes = node.settled(3), node.settled(4)
    if steps is not None:
        facts["steps_all_ones"] = _is(set(steps) <= {1})
        facts["steps_is_neg_one"] = _is(set(steps) == {-1})
        facts.pop("steps_is_none")  # one is the default, and may have been left out of the file
    if axes is not None:
        facts["axes_is_single"] = _is(len(axes) == 1)
    starts, ends, shape = node.settled(1), node.settled(2), node.shapes[0]
    open_axes = len(node.shapes) > 4 and axes is None
    if starts is not None and ends is not None and shape is not None and not open_axes:
        over = list(range(len(starts))) if axes is None else axes
        sizes = [shape[axis] for axis in over]
        begun = [s + n if s < 0 else s for s, n in zip(starts, sizes, strict=True)]
        ended = [e + n if e < 0 else e for e, n in zip(ends, sizes, strict=True)]
        facts["starts_equal_shape"] = _is(begun == [n - 1 for n in sizes])
        whole = all(e >= n for e, n in zip(ended, sizes, strict=True))
        facts["slice_all"] = _is(not any(begun) and whole)
    return "Slice", facts


def _split(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("input")
    axis = node.settled(1)
    if axis and node.shapes[0]:
        facts["axis_is_zero"] = _is(axis[0] % len(node.shapes[0]) == 0)
    facts["split_is_none"] = _is(node.type == "Split")
    return "Split", facts


def _top_k(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("X", "K")
    facts["attr_largest"] = _is(int(node.attributes["mode"] == "max"))
    axis, shape, most = int(node.attributes["axis"]), node.shapes[0], node.settled(1)
    if shape:
        facts["attr_axis"] = frozenset([axis % len(shape), axis % len(shape) - len(shape)])
        if most:
            facts["K_is_max"] = _is(most[0] == shape[axis])
    return "TopK", facts


def _gelu(node: _ReadNode) -> tuple[str, Facts]:
    mode = str(node.attributes.get("approximation_mode", "ERF"))  # the first version had no other
    how = {"ERF": "none", "TANH": "tanh"}.get(mode.upper())
    return "Gelu", {**node.inputs("X"), **({"attr_approximate": _is(how)} if how else {})}


def _lrn(node: _ReadNode) -> tuple[str, Facts]:
    return "LRN", {**node.inputs("X"), "attr_size": _is(int(node.attributes["size"]))}


def _cumulative(node: _ReadNode) -> tuple[str, Facts]:
    facts = node.inputs("x", "axis")
    for name in ("exclusive", "reverse"):
        facts[f"attr_{name}"] = _is(int(node.attributes[name]))
    axis = node.settled(1)
    if axis and node.shapes[0]:
        rank = len(node.shapes[0])
        facts["axis_value"] = frozenset([axis[0] % rank, axis[0] % rank - rank])
    return "CumSum", facts


_OTHERS: dict[str, Callable[[_ReadNode], tuple[str, Facts]]] = {
    **dict.fromkeys(
        (
            "Convolution",
            "GroupConvolution",
            "ConvolutionBackpropData",
            "GroupConvolutionBackpropData",
        ),
        _convolution,
    ),
    **dict.fromkeys(("MaxPool", "AvgPool"), _pooling),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("Clamp", "Maximum", "Minimum"), _clip),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _gather),
    **dict.fromkeys(("Split", "VariadicSplit"), _split),
    "BatchNormInference": _batch_norm,
    "Broadcast": _broadcast,
    "Concat": _concat,
    "Convert": _convert,
    "CumSum": _cumulative,
    "Gelu": _gelu,
    "Interpolate": _interpolate,
    "LRN": _lrn,
    "MVN": _mean_variance,
    "MatMul": _matmul,
    "Pad": _pad,
    "Reshape": _reshape,
    "Select": _select,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


def _is(value: Any) -> frozenset[Any]:
    return frozenset([value])


def _shorter(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether a shape has fewer axes than another, or an axis that is shorter."""
    if len(shape) != len(other):
        padded = (1,) * (len(other) - len(shape)) + shape
        return len(shape) < len(other) or any(
            a < b for a, b in zip(padded, (1,) * (len(shape) - len(other)) + other, strict=True)
        )
    return any(a < b for a, b in zip(shape, other, strict=True))


def _shape(port: Any) -> tuple[int, ...] | None:
    partial = port.get_partial_shape()
    return None if partial.is_dynamic else tuple(int(size) for size in partial.to_shape())


def _rank(port: Any) -> int | None:
    rank = port.get_partial_shape().rank
    return None if rank.is_dynamic else int(rank.get_length())


def _small_value(constant: Any) -> np.ndarray | None:
    """Return the value of a constant that could be a shape, axes or indices."""
    kind = constant.get_element_type().get_type_name()
    if kind not in ("i32", "i64", "u32", "u64") or int(np.prod(constant.get_output_shape(0))) > 64:
        return None
    return np.asarray(constant.get_data())
