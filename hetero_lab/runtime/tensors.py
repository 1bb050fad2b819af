"""Arrays and tensors: whether an array fits, and the conversion; a part of run.py as well.

The runtime exposes a tensor of a type that NumPy lacks as an array of the same width: bf16 as
float16, f8 and packed types as bytes. The numbers in that array are wrong, so values are widened
exactly instead. Only ml_dtypes could keep the type, and it is an optional package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

ov.Type.f32.to_dtype()  # of two threads that call it first, each would wait for the other, for ever
# The type of an element's bits, and the type's name in ml_dtypes.
_BITS: dict[str, tuple[type[np.unsignedinteger[Any]], str]] = {
    "bf16": (np.uint16, "bfloat16"),
    "f8e4m3": (np.uint8, "float8_e4m3fn"),
    "f8e5m2": (np.uint8, "float8_e5m2"),
    "f8e8m0": (np.uint8, "float8_e8m0fnu"),
}
# The smallest type of NumPy that holds the values of a type exactly.
_VALUES: dict[str, type[np.generic]] = {
    **dict.fromkeys((*_BITS, "nf4", "f4e2m1"), np.float32),
    **dict.fromkeys(("u1", "u2", "u3", "u4", "u6"), np.uint8),
    "i4": np.int8,
}


def array_type(element_type: ov.Type) -> np.dtype[Any] | None:
    """Return the dtype that tensors take, bits for bf16 and f8; None for packed types."""
    name = element_type.get_type_name()
    if name in _BITS:
        return np.dtype(_BITS[name][0])
    if element_type == ov.Type.string:
        return np.dtype(np.str_)
    return None if name in _VALUES else np.dtype(element_type.to_dtype())


def checked_input(name: str, shape: Any, kind: ov.Type, value: Any, error: Any) -> np.ndarray:
    """Return the array for an input; raise ``error`` if its shape or element type do not fit.

    ``shape`` is a tuple, or a PartialShape where sizes are unknown.
    """
    if (dtype := array_type(kind)) is None:
        raise error(
            f"Input {name!r:.120} has the element type {kind.get_type_name()}, which an array "
            "cannot have. Convert to it with openvino.preprocess.PrePostProcessor (u2, u4, i4, "
            "f4e2m1), or give the model an input of another type."
        )
    try:
        if isinstance(value, ov.Tensor):
            value = value.str_data if dtype.kind == "U" else value.data
        array = bits_of(np.asarray(value), kind)
    except ValueError as cause:  # lists of unequal length, or text that is no UTF-8
        raise error(f"Input {name!r:.120} is not an array: {cause}.") from cause
    sizes = list(array.shape)
    if array.shape != shape and not ov.PartialShape(shape).compatible(ov.PartialShape(sizes)):
        expected = list(shape) if isinstance(shape, tuple) else shape
        raise error(
            f"Input {name!r:.120} has the shape {expected}, the given array {sizes}. "
            "Another static shape: hetero_lab.load(source, shapes=…)."
        )
    if array.dtype != dtype and not array.dtype.kind == dtype.kind == "U":
        type_name = dtype if is_plain(kind) else kind.get_type_name()
        way_out = f"Convert it: array.astype('{dtype.name}')."
        if scalar := ml_dtypes_name(kind):
            way_out = f"Give an array of ml_dtypes.{scalar}, or its bits: array.view('{dtype}')."
        raise error(
            f"Input {name!r:.120} has the element type {type_name}, the given array {array.dtype}. "
            f"{way_out}"
        )
    return np.asarray(array, order="C")


def checked_inputs(
    names: Sequence[str], ports: Iterable[Any], inputs: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return the arrays for a model's inputs, in its order; ValueError if they do not fit."""
    if set(names) != set(inputs):
        raise ValueError(f"The inputs are {[*names]}, and the given arrays {[*inputs]}.")
    return [
        checked_input(name, p.get_partial_shape(), p.get_element_type(), inputs[name], ValueError)
        for name, p in zip(names, ports, strict=True)
    ]


def ml_dtypes_name(element_type: ov.Type) -> str:
    """Return the ml_dtypes name of a type that NumPy lacks; empty for all others."""
    return _BITS[name][1] if (name := element_type.get_type_name()) in _BITS else ""


def bits_of(array: np.ndarray, element_type: ov.Type) -> np.ndarray:
    """Return the bits of an ml_dtypes array of that type, and text as such; else the array."""
    dtype, name = array_type(element_type), ml_dtypes_name(element_type)
    if element_type == ov.Type.string:
        if array.dtype.kind == "O" and all(isinstance(one, str) for one in array.flat):
            return array.astype(np.str_)
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    # A file keeps only the width of such an array's type.
    if dtype is not None and name and array.dtype.name in (name, f"void{8 * dtype.itemsize}"):
        return array.view(dtype)
    return array


def to_tensor(array: np.ndarray, element_type: ov.Type) -> ov.Tensor:
    """Copy an array, of the dtype of :func:`array_type`, into a tensor with its own memory."""
    if element_type == ov.Type.string:
        return ov.Tensor(array)
    tensor = ov.Tensor(element_type, ov.Shape(array.shape))
    tensor.data.view(array.dtype)[...] = array
    return tensor


def set_inputs(
    request: ov.InferRequest, arrays: Sequence[np.ndarray], element_types: Sequence[ov.Type]
) -> None:
    """Copy arrays into new input tensors of a request."""
    for index, (array, element_type) in enumerate(zip(arrays, element_types, strict=True)):
        request.set_input_tensor(index, to_tensor(array, element_type))


def infer(request: ov.InferRequest, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Infer once; return the outputs, both in the model's order."""
    model = request.get_compiled_model()
    set_inputs(request, arrays, [port.get_element_type() for port in model.inputs])
    request.infer()
    return [to_array(request.get_output_tensor(index)) for index in range(len(model.outputs))]


def is_plain(element_type: ov.Type) -> bool:
    """Return whether NumPy has the type, so that a tensor's memory holds its values."""
    return element_type != ov.Type.string and element_type.get_type_name() not in _VALUES


def can_share(outputs: Iterable[Any]) -> bool:
    """Return whether outputs can be read without a copy: text cannot, and OpenVINO warns of it."""
    return all(port.get_element_type() != ov.Type.string for port in outputs)


def to_array(tensor: ov.Tensor) -> np.ndarray:
    """Copy a tensor into an array; types that NumPy lacks become float32, uint8 or int8."""
    if tensor.get_element_type() == ov.Type.string:
        return tensor.str_data.astype(np.str_)
    values = _VALUES.get(tensor.get_element_type().get_type_name())
    if values is None:
        return np.array(tensor.data)
    constant: Any = ov.opset13.constant(tensor, shared_memory=True)
    return constant.get_data(dtype=np.float32).astype(values)


def has_nan(arrays: Iterable[np.ndarray]) -> bool:
    return any(a.dtype.kind == "f" and bool(np.isnan(a).any()) for a in arrays)
