"""The inputs of a model, given or generated."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import openvino as ov

from hetero_lab.arguments import check_whole
from hetero_lab.errors import InputError, names_at_hand, shorten, unknown
from hetero_lab.model.opgraph import Tensor
from hetero_lab.model.read import PreparedModel, input_name, port_names
from hetero_lab.runtime.placed_model import read_npz
from hetero_lab.runtime.tensors import array_type, checked_input, ml_dtypes_name

Inputs: TypeAlias = (
    Mapping[Any, Any] | Sequence[Any] | np.ndarray | str | os.PathLike[str] | Callable[[], Any]
)

# Said once of a result, where inputs could have been given.
GENERATED = "The inputs were generated; give your own with inputs="

_SELECTIONS = frozenset({"Gather", "Slice", "Split", "StridedSlice", "VariadicSplit"})
MOVERS = _SELECTIONS | {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}  # they change no value
# Ops that pass the values of their first input on: an index is still an index behind them.
_CARRIERS = MOVERS | {"Broadcast", "Convert", "GatherElements", "Tile"}


def generate_inputs(model: PreparedModel, seed: int = 0) -> dict[str, np.ndarray]:
    """Make inputs from a seed, in the range of their element type and use.

    Floats are uniform in [0, 1), and bytes cover their range. Whole numbers that index a tensor
    (Gather, embeddings, OneHot) stay below its size; all others are 0 or 1, also as text. Dynamic
    shapes and types that arrays lack raise InputError.
    """
    check_whole("seed", seed, least=0)
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray] = {}
    for port in model.model.inputs:
        if port.get_partial_shape().is_dynamic:
            raise InputError(
                f"Input {shorten(input_name(port))} has the dynamic shape "
                f"{port.get_partial_shape()}, so its values cannot be generated. For a language "
                "model, hetero_lab.profile and sweep take scenario=hetero_lab.Scenario(…), and "
                "hetero_lab.llm.static_phases(model, scenario) makes static models of it."
            )
        name, kind, shape = input_name(port), port.get_element_type(), tuple(port.get_shape())
        dtype = array_type(kind)
        low, high = 0, 2
        if kind.is_real():
            array = encode(rng.random(shape), kind)
        else:
            if dtype is not None and dtype.kind in "iu":
                bound = _index_bound(port)
                if bound is not None:
                    high = max(1, min(bound, np.iinfo(dtype).max))
                elif dtype.itemsize == 1:
                    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1
            array = np.asarray(rng.integers(low, high, shape)).astype(dtype)
        inputs[name] = checked_input(name, shape, kind, array, InputError)
    return inputs


def arbitrary_array(tensor: Tensor, rng: np.random.Generator) -> np.ndarray | None:
    """Return normal numbers in f32, or ones of other types; ``None`` without shape or type."""
    element_type: ov.Type = getattr(ov.Type, tensor.element_type)
    dtype = array_type(element_type)
    if tensor.shape is None or dtype is None:
        return None
    if element_type.is_real():
        return rng.normal(size=tensor.shape).astype(np.float32)
    return np.ones(tensor.shape, dtype)


def input_arrays(model: PreparedModel, inputs: Inputs | None, seed: int = 0) -> list[np.ndarray]:
    """Return the arrays in the model's input order: those given, else those made from ``seed``."""
    return bind_inputs(model, generate_inputs(model, seed) if inputs is None else inputs)


def digest_of(arrays: Iterable[np.ndarray]) -> str:
    """Return a digest of shapes, element types and values."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def bind_inputs(model: PreparedModel, inputs: Inputs) -> list[np.ndarray]:
    """Return the arrays in the model's input order, checked for name, shape and element type.

    ``inputs`` is a mapping by input name (or index), a sequence in the model's order, one array for
    a model with one input, the path of an .npz file, or a callable that returns one of them.
    InputError if one is missing, unknown, or does not fit.
    """
    return Ports(model).bind(inputs)


class Ports:
    """The inputs of a model, queried once, since a query can take longer than an inference."""

    def __init__(self, model: PreparedModel):
        ports = model.model.inputs
        shapes = [port.get_partial_shape() for port in ports]
        self.element_types = [port.get_element_type() for port in ports]
        self._names = [input_name(port) for port in ports]
        self._all_names = [port_names(port) for port in ports]
        self._shapes = [s if s.is_dynamic else tuple(s.to_shape()) for s in shapes]

    def bind(self, inputs: Inputs) -> list[np.ndarray]:
        """Bind inputs as :func:`bind_inputs` does."""
        if callable(inputs):
            inputs = inputs()
        if isinstance(inputs, str | os.PathLike):
            try:
                return self.bind(read_npz(inputs))
            except (OSError, ValueError) as error:  # the latter as an InputError, too
                name = shorten(os.fspath(inputs))
                raise InputError(f"{name} cannot be read as .npz inputs: {error}") from error
        names = self._names
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if isinstance(inputs, Mapping):
            ordered = self._by_name(inputs)
        elif isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes):
            if len(inputs) != len(names):
                raise InputError(
                    f"The model has {len(names)} inputs ({names_at_hand(names)}), "
                    f"{len(inputs)} were given."
                )
            ordered = inputs
        else:
            raise InputError(
                "Inputs are a dict by name, a list in the model's order, an .npz file or a "
                f"callable, not {type(inputs).__name__}. Inputs: {names_at_hand(names)}."
            )
        ports = zip(names, self._shapes, self.element_types, ordered, strict=True)
        return [checked_input(*port, InputError) for port in ports]

    def _by_name(self, inputs: Mapping[Any, Any]) -> list[Any]:
        values: dict[int, Any] = {}
        for key, value in inputs.items():
            for index, names in enumerate(self._all_names):
                if (key == index or key in names) and not isinstance(key, bool):
                    values[index] = value
                    break
            else:
                raise InputError(unknown("The model has no input", key, self._names, "Inputs"))
        missing = [name for index, name in enumerate(self._names) if index not in values]
        if missing:
            raise InputError(
                f"The inputs {names_at_hand(missing)} are missing. "
                f"Inputs: {names_at_hand(self._names)}."
            )
        return [values[index] for index in range(len(self._names))]


def _index_bound(port: Any) -> int | None:
    """Return the size of the smallest axis that the values of an input index, if there is one."""
    bounds: list[int] = []
    visited: set[tuple[str, int]] = set()
    queue = [port]
    while queue:
        output = queue.pop()
        for use in output.get_target_inputs():
            node, index = use.get_node(), use.get_index()
            key = (node.get_friendly_name(), index)
            if key in visited:
                continue
            visited.add(key)
            kind, bound = node.get_type_name(), _bound_at(node, index)
            if bound is not None:
                bounds.append(bound)
            elif kind == "Concat" or (kind in _CARRIERS and index == 0):
                queue += node.outputs()
    return min(bounds, default=None)


def _bound_at(node: Any, index: int) -> int | None:
    kind = node.get_type_name()
    if kind == "Gather" and index == 1:
        return _axis_size(node, _constant(node.input_value(2)))
    if kind == "GatherElements" and index == 1:
        return _axis_size(node, int(node.get_attributes().get("axis", 0)))
    if kind.startswith("Embedding") and index > 0:
        return _axis_size(node, 0)
    return _constant(node.input_value(1)) if kind == "OneHot" and index == 0 else None


def _constant(output: Any) -> int | None:
    node = output.get_node()
    return int(np.ravel(node.get_data())[0]) if node.get_type_name() == "Constant" else None


def _axis_size(node: Any, axis: int | None) -> int | None:
    shape = node.input_value(0).get_partial_shape()
    if axis is None or shape.rank.is_dynamic or list(shape)[axis].is_dynamic:
        return None
    return int(list(shape)[axis].get_length())


def encode(values: np.ndarray, element_type: ov.Type) -> np.ndarray:
    """Convert float values to the type, as an array for :func:`to_tensor`."""
    dtype: Any = array_type(element_type)
    if not ml_dtypes_name(element_type):
        return values.astype(dtype)
    constant: Any = ov.opset13.constant(values.astype(np.float32), dtype=element_type)
    return np.array(constant.get_tensor_view().data).view(dtype)
