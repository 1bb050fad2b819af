"""Arrays into tensors and back, also of element types that NumPy lacks.

The runtime presents such a tensor as an array of the same width: bf16 as float16, f8 and packed
types as bytes. Read that way, the numbers are wrong. They come back widened instead, exactly: only
ml_dtypes could keep the type, and not every installation has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov

# The bits of an element, and what ml_dtypes calls the type.
_BITS: dict[str, tuple[type[np.unsignedinteger[Any]], str]] = {
    "bf16": (np.uint16, "bfloat16"),
    "f8e4m3": (np.uint8, "float8_e4m3fn"),
    "f8e5m2": (np.uint8, "float8_e5m2"),
    "f8e8m0": (np.uint8, "float8_e8m0fnu"),
}
# What the values of a type fit into.
_VALUES: dict[str, type[np.generic]] = {
    **dict.fromkeys((*_BITS, "nf4", "f4e2m1"), np.float32),
    **dict.fromkeys(("u1", "u2", "u3", "u4", "u6"), np.uint8),
    "i4": np.int8,
}


def array_type(element_type: ov.Type) -> np.dtype[Any] | None:
    """Return the type of arrays for :func:`to_tensor`; None for strings and packed types.

    It is NumPy's own type, or unsigned integers with the bits of a bf16 or f8.
    """
    name = element_type.get_type_name()
    if name in _BITS:
        return np.dtype(_BITS[name][0])
    if name in _VALUES or element_type == ov.Type.string:
        return None
    return np.dtype(element_type.to_dtype())


def ml_dtypes_name(element_type: ov.Type) -> str:
    """Return the name in ml_dtypes of a type that NumPy does not have; empty for all others."""
    return _BITS[name][1] if (name := element_type.get_type_name()) in _BITS else ""


def bits_of(array: np.ndarray, element_type: ov.Type) -> np.ndarray:
    """Return an array of ml_dtypes as its bits if it is of that type, else as it is."""
    dtype, name = array_type(element_type), ml_dtypes_name(element_type)
    return array.view(dtype) if dtype is not None and array.dtype.name == name else array


def encode(values: np.ndarray, element_type: ov.Type) -> np.ndarray:
    """Return float values, rounded or cut off to the type, as an array for :func:`to_tensor`."""
    dtype = array_type(element_type)
    assert dtype is not None
    if element_type.get_type_name() not in _BITS:
        return values.astype(dtype)
    constant: Any = ov.opset13.constant(values.astype(np.float32), dtype=element_type)
    return np.array(constant.get_tensor_view().data).view(dtype)


def to_tensor(array: np.ndarray, element_type: ov.Type) -> ov.Tensor:
    """Copy an array into a tensor of its own memory.

    Parameters
    ----------
    array
        Of the type that :func:`array_type` gives.
    """
    tensor = ov.Tensor(element_type, ov.Shape(array.shape))
    tensor.data.view(array.dtype)[...] = array
    return tensor


def memory_of(tensor: ov.Tensor, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Return a tensor's memory as arrays for :func:`to_tensor` have it; None of strings."""
    return None if tensor.element_type == ov.Type.string else tensor.data.view(dtype)


def is_plain(element_type: ov.Type) -> bool:
    """Return whether a tensor's memory is an array with its values, of a type that NumPy has."""
    return element_type != ov.Type.string and element_type.get_type_name() not in _VALUES


def to_array(tensor: ov.Tensor) -> np.ndarray:
    """Copy a tensor into an array with its shape and values.

    A type that NumPy does not have becomes the smallest of float32, uint8 and int8 that holds its
    values exactly.
    """
    values = _VALUES.get(tensor.get_element_type().get_type_name())
    if values is None:
        return np.array(tensor.data)
    constant: Any = ov.opset13.constant(tensor, shared_memory=True)
    return constant.get_data(dtype=np.float32).astype(values)
