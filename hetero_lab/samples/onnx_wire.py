"""Read and write the few parts of an ONNX file that the samples need, as bytes.

ONNX is Protocol Buffers, whose wire format is small: a message is a sequence of fields, a field is
a number, a wire type and a value. Written by hand because a sample is checked by its SHA-256: its
bytes must not depend on a version of ``onnx`` or ``protobuf``, and loading it needs neither.
Field numbers are those of onnx.proto (Apache-2.0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

FLOAT, INT64 = 1, 7  # ONNX's numbers of element types
_IR_VERSION = 8  # of the ONNX format
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
_SIZES = {_FIXED64: 8, _FIXED32: 4}  # of values without a length of their own
_ELEMENT_TYPES = {"<f4": FLOAT, "<i8": INT64}


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of every field of a message: an ``int`` for a varint, else bytes.

    The message is trusted: files are compared with their SHA-256 before they are read.
    """
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, kind = key >> 3, key & 7
        size = _SIZES.get(kind)
        if size is None:
            size, position = _read_varint(message, position)
        if kind == _VARINT:
            yield number, size
        else:
            yield number, message[position : position + size]
            position += size


def strings(message: bytes, number: int) -> list[str]:
    """Return every value of one text field."""
    return [value.decode() for value in messages(message, number)]


def messages(message: bytes, number: int) -> list[bytes]:
    """Return every value of one field that holds messages."""
    return [value for n, value in fields(message) if n == number and not isinstance(value, int)]


def metadata(model: bytes) -> dict[str, str]:
    """Return the metadata of an encoded model."""
    pairs = [(strings(entry, 1), strings(entry, 2)) for entry in messages(model, 14)]
    return {key[0]: value[0] if value else "" for key, value in pairs if key}


def encode(*parts: tuple[int, int | float | str | bytes]) -> bytes:
    """Return the message of some fields: number and value each."""
    encoded = bytearray()
    for number, value in parts:
        if isinstance(value, float):
            encoded += _varint(number << 3 | _FIXED32) + struct.pack("<f", value)
        elif isinstance(value, int):
            encoded += _varint(number << 3 | _VARINT) + _varint(value & (2**64 - 1))
        else:
            content = value.encode() if isinstance(value, str) else value
            encoded += _varint(number << 3 | _BYTES) + _varint(len(content)) + content
    return bytes(encoded)


def tensor(name: str, values: np.ndarray) -> bytes:
    """Return a TensorProto of f32 or i64 values."""
    little = values.astype(values.dtype.newbyteorder("<"))
    element_type = _ELEMENT_TYPES[little.dtype.str]
    dimensions = [(1, int(n)) for n in little.shape]
    return encode(*dimensions, (2, element_type), (8, name), (9, little.tobytes()))


def node(
    op_type: str,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Mapping[str, int | float | Sequence[int]] | None = None,
) -> bytes:
    """Return a NodeProto."""
    parts: list[tuple[int, str | bytes]] = [(1, i) for i in inputs]
    parts += [(2, o) for o in outputs]
    parts += [(3, name), (4, op_type)]
    for key, value in (attributes or {}).items():
        if isinstance(value, float):
            attribute = encode((1, key), (2, value), (20, 1))
        elif isinstance(value, int):
            attribute = encode((1, key), (3, value), (20, 2))
        else:
            attribute = encode((1, key), *[(8, v) for v in value], (20, 7))
        parts.append((5, attribute))
    return encode(*parts)


def value_info(name: str, shape: Sequence[int]) -> bytes:
    """Return the ValueInfoProto of an f32 tensor."""
    dimensions = encode(*[(1, encode((1, n))) for n in shape])
    return encode((1, name), (2, encode((1, encode((1, FLOAT), (2, dimensions))))))


def model(graph: bytes, opset: int) -> bytes:
    """Return a ModelProto around an encoded GraphProto."""
    opset_id = encode((1, ""), (2, opset))
    return encode((1, _IR_VERSION), (2, "hetero_lab"), (7, graph), (8, opset_id))


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
