"""Conversion between arrays and tensors, including element types that NumPy lacks.

The runtime exposes such a tensor as an array of the same width: bf16 as float16, f8 and packed
types as bytes. The numbers in that array are wrong, so values are widened exactly instead. Only
ml_dtypes could keep the type, and it is an optional package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov

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
    """Return the dtype that :func:`to_tensor` takes; None for strings and packed types.

    It is NumPy's own type, or unsigned integers with the bits of bf16 or f8.
    """
    name = element_type.get_type_name()
    if name in _BITS:
        return np.dtype(_BITS[name][0])
    if name in _VALUES or element_type == ov.Type.string:
        return None
    return np.dtype(element_type.to_dtype())


def ml_dtypes_name(element_type: ov.Type) -> str:
    """Return the ml_dtypes name of a type that NumPy lacks; empty for all others."""
    return _BITS[name][1] if (name := element_type.get_type_name()) in _BITS else ""


def bits_of(array: np.ndarray, element_type: ov.Type) -> np.ndarray:
    """Return the bits of an ml_dtypes array of that type; any other array is returned as is."""
    dtype, name = array_type(element_type), ml_dtypes_name(element_type)
    return array.view(dtype) if dtype is not None and array.dtype.name == name else array


def encode(values: np.ndarray, element_type: ov.Type) -> np.ndarray:
    """Convert float values to the type, as an array for :func:`to_tensor`."""
    dtype = array_type(element_type)
    assert dtype is not None
    if element_type.get_type_name() not in _BITS:
        return values.astype(dtype)
    constant: Any = ov.opset13.constant(values.astype(np.float32), dtype=element_type)
    return np.array(constant.get_tensor_view().data).view(dtype)


def to_tensor(array: np.ndarray, element_type: ov.Type) -> ov.Tensor:
    """Copy an array, of the dtype of :func:`array_type`, into a tensor with its own memory."""
    tensor = ov.Tensor(element_type, ov.Shape(array.shape))
    tensor.data.view(array.dtype)[...] = array
    return tensor


def set_inputs(
    request: ov.InferRequest, arrays: Sequence[np.ndarray], element_types: Sequence[ov.Type]
) -> None:
    """Copy arrays into new input tensors of a request."""
    for index, (array, element_type) in enumerate(zip(arrays, element_types, strict=True)):
        request.set_input_tensor(index, to_tensor(array, element_type))


def memory_of(tensor: ov.Tensor, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Return a tensor's memory as an array of the dtype of :func:`array_type`; None of strings."""
    return None if tensor.element_type == ov.Type.string else tensor.data.view(dtype)


def is_plain(element_type: ov.Type) -> bool:
    """Return whether NumPy has the type, so that a tensor's memory holds its values."""
    return element_type != ov.Type.string and element_type.get_type_name() not in _VALUES


def to_array(tensor: ov.Tensor) -> np.ndarray:
    """Copy a tensor into an array; types that NumPy lacks become float32, uint8 or int8."""
    values = _VALUES.get(tensor.get_element_type().get_type_name())
    if values is None:
        return np.array(tensor.data)
    constant: Any = ov.opset13.constant(tensor, shared_memory=True)
    return constant.get_data(dtype=np.float32).astype(values)
