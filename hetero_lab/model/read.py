"""Any source → a prepared ov.Model, and the names of its nodes, inputs and outputs.

A prepared model has static input shapes, folded constants (compressed weights stay compressed) and
unique friendly names. Otherwise most placements of real models could not be compiled. A language
model keeps its dynamic shapes.

Names are the same at every reading of a file. The runtime numbers nameless nodes consecutively
across all models of a process (``Constant_4711``), so anything stored under such a name would fit
one reading only.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
from openvino import passes
from openvino.frontend import FrontEnd, FrontEndManager, InputModel

from hetero_lab.errors import (
    ModelError,
    did_you_mean,
    names_at_hand,
    reason,
    shorten,
    unknown,
    warn,
)
from hetero_lab.model.extension_ops import FILES, core_with_ops, unknown_op
from hetero_lab.model.language import forget_notes, is_language_model, note_surroundings
from hetero_lab.model.opgraph import (
    CONSTANT,
    NOT_CONSTANT_SOURCES,
    PARAMETER,
    RESULT,
    OpGraph,
    bodies_of,
    fingerprint_of,
    op_graph,
)
from hetero_lab.samples.catalogue import sample, sample_names, sample_path
from hetero_lab.terminal import pasted, text_of

Shapes: TypeAlias = Mapping[str, Sequence[int]] | Sequence[int]

_MARK, _GUARD = ["hetero_lab", "prepared"], ["hetero_lab", "guard"]
_EXPORTED = "openvino_model.xml"  # in the directory of an exported language model
_MODEL_FILES = (".xml", ".onnx", ".tflite", ".pb", ".pdmodel")
_COMPRESSED = re.compile(r"^(f16|bf16|[iu][1-8]|nf4|f8\w*|f4\w*)$")
_SAVED_MODEL = "saved_model.pb"  # in the directory of a model of TensorFlow
_UNREADABLE = "Unable to read the model"
_UNCONVERTED = "OpConversionFailure"
_STRUCTURE_BYTES = 1 << 20  # more than the XML of most models
# Sizes of dynamic inputs, tried for an example: of pictures, and of others.
_LIKELY_SIZES = ((224, 128), (128, 128), (512, 512), (16, 16), (1, 1), ("N", "N"))
_NONE = (None, {})  # no shapes; [] is that of a scalar
_NUMBERED = re.compile(r"^[A-Za-z]\w*_\d+$", re.ASCII)
_NUMBER = re.compile(rb"_\d")  # part of every numbered name
_IN_A_NAME = frozenset(byte for byte in range(256) if re.match(rb"\w", bytes([byte])))


@dataclass(frozen=True)
class PreparedModel:
    """A prepared model with its graph and a hash of structure and weights."""

    model: ov.Model
    graph: OpGraph
    fingerprint: str


Source: TypeAlias = str | os.PathLike[str] | ov.Model | PreparedModel


def load(source: Source, shapes: Shapes | None = None, *, guard: bool = True) -> ov.Model:
    """Read and prepare a model.

    Parameters
    ----------
    source
        The name of a sample (see :func:`hetero_lab.samples`), the path of a model file that
        OpenVINO reads (.xml, .onnx, .tflite, .pb, …), the directory of an exported language
        model, or an ``ov.Model``, which is not changed.
    shapes
        Static shape of each input whose shape is dynamic, by tensor name; for a model with one
        input the shape alone will do. If only the batch is dynamic, it becomes 1 and a warning
        says so. A language model with states needs none: it stays dynamic.
    guard
        Ask a device about it first in a process of its own, where a crash of OpenVINO's ends
        nothing else. False saves up to a second, or the time of the first compile, once a model.

    Returns
    -------
    openvino.Model
        A copy with static inputs (but of a language model), folded constants (compressed weights
        stay compressed) and unique friendly names. Names that are already unique, and the number
        and order of inputs and outputs, are kept.

    Raises
    ------
    ModelError
        The file is missing or cannot be read, a shape is dynamic and not given, or a given
        shape does not fit.
    SampleError
        A sample could not be fetched.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> model.input("image").shape
    <Shape: [1,1,8,8]>
    """
    if isinstance(source, ov.Model) and shapes in _NONE and _prepared_mark(source) is not None:
        model = source.clone()
    else:
        model = prepare(source, shapes).model
    if guard != is_guarded(model):
        model.set_rt_info(str(guard), _GUARD)
    return model


def prepare(source: Source, shapes: Shapes | None = None) -> PreparedModel:
    """Do as :func:`load`, with graph and fingerprint; a prepared model passes through."""
    if isinstance(source, PreparedModel):
        return source
    try:
        return _prepare(source, shapes)
    except UnicodeDecodeError as error:  # OpenVINO hands on the bytes of any file
        name = shorten(repr(error.object))
        message = f"A name in the model is no text in UTF-8: {name}. Rename it in the source."
        raise ModelError(message) from error


def _prepare(source: str | os.PathLike[str] | ov.Model, shapes: Shapes | None) -> PreparedModel:
    if isinstance(source, ov.Model):
        fingerprint = _prepared_mark(source) if shapes in _NONE else None
        if fingerprint is not None:
            return PreparedModel(source, op_graph(source), fingerprint)
        model = source.clone()
        names = {node.get_friendly_name() for node in model.get_ordered_ops()}
    else:
        path, usual = _path(source)
        model = _read(path, {**usual, **shapes} if isinstance(shapes, Mapping) else shapes)
        names = names_of_file(model.get_ordered_ops(), path)
        if shapes is None or isinstance(shapes, Mapping):  # anything else is refused below
            shapes = {**usual, **(shapes or {})}
        if model.get_friendly_name().endswith("_Frontend_IR"):
            # Frontends give every model the same name; the file's name says more.
            model.set_friendly_name(Path(text_of(source)).stem)
        forget_notes(model)
        if path.name == _EXPORTED and is_language_model(model):
            note_surroundings(model, path.parent)
    if not (model.get_results() or model.get_sinks()):
        raise ModelError(f"{shorten(model.get_friendly_name())} has no outputs: nothing to run.")
    if is_language_model(model):
        _keep_broadcast_sizes(model)
    if shapes not in _NONE or not is_language_model(model):
        _set_static_shapes(model, {} if shapes is None else shapes)
    # Only now, because reshaping can create nodes.
    name_the_nameless(model.get_ordered_ops(), names)
    _bypass_identities(model)
    _fold_constants(model)
    _copy_shared_decompression(model)
    make_names_unique(model.get_ordered_ops())
    fingerprint = fingerprint_of(model)
    model.set_rt_info(f"{fingerprint}:{fingerprint_of(model, sampled=True)}", _MARK)
    return PreparedModel(model, op_graph(model), fingerprint)


def is_guarded(model: ov.Model) -> bool:
    """Return whether devices are asked about a model first in a process of its own."""
    return not model.has_rt_info(_GUARD) or model.get_rt_info(_GUARD).astype(str) != "False"


def weight_bytes(model: ov.Model) -> int:
    return sum(n.get_data().nbytes for n in model.get_ops() if n.get_type_name() == CONSTANT)


def save(model: ov.Model, path: Path) -> None:
    """Write a model as IR with its weights as they are; OSError if the disk is full."""
    try:
        ov.save_model(model, path, compress_to_fp16=False)
    except Exception as error:
        # The runtime does not say why ("iostream error").
        if shutil.disk_usage(path.parent).free < 2 * weight_bytes(model) + _STRUCTURE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def _path(source: str | os.PathLike[str]) -> tuple[Path, dict[str, Sequence[int]]]:
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"A model is a sample's name, a path or an openvino.Model, not {type(source).__name__}."
        )
    text = os.fspath(source)
    if isinstance(source, str) and text in sample_names():
        return sample_path(text), {**sample(text).shapes}
    if os.path.isdir(text) and os.path.isfile(os.path.join(text, _EXPORTED)):
        return Path(text) / _EXPORTED, {}
    text = text.removesuffix(_SAVED_MODEL) if os.path.isfile(text) else text
    if os.path.isfile(os.path.join(text, _SAVED_MODEL)):
        return Path(text), {}
    if not os.path.isfile(text):  # Path.is_file raises for a name that is too long
        kind = "does not exist"
        if os.path.isdir(text):
            kind = f"is a directory, not a model file: it has no {_EXPORTED} or {_SAVED_MODEL},"
            if os.path.isfile(stored := os.path.join(text, "model.xml")):
                raise ModelError(
                    f"{shorten(text)} is a frozen placement. Name its model, and the placement as "
                    f"--affinity {stored}, or hetero_lab.read_placement({stored!r}) in Python."
                )
        raise ModelError(
            f"{shorten(text)} {kind} and no sample has that name."
            f"{did_you_mean(os.path.basename(text), [*sample_names(), *_models_beside(text)])} "
            f"Samples: {names_at_hand(sample_names(), most=20)}."
        )
    return Path(text), {}


def _models_beside(path: str) -> list[str]:
    """Return the names of the model files in the directory that a path is in."""
    try:
        files = sorted(os.listdir(os.path.dirname(path) or "."))
    except (OSError, ValueError):
        return []
    return [file for file in files if file.lower().endswith(_MODEL_FILES)]


def _read(path: Path, shapes: Shapes | None) -> ov.Model:
    weights = path.with_suffix(".bin")
    if path.suffix == ".xml" and os.path.lexists(weights) and not weights.is_file():
        raise ModelError(f"{shorten(str(weights))}, the weights of the model, is no file.")
    try:
        return core_with_ops().read_model(path)
    except Exception as error:
        converted = _convert(path, shapes) if shapes and _UNCONVERTED in str(error) else None
        if converted is not None:
            return converted
        # A message that only repeats the file's name says nothing about the cause.
        why = reason(error)
        fact = "" if why.startswith(_UNREADABLE) else f": {why.rstrip('.')}"
        raise ModelError(
            f"OpenVINO cannot read {shorten(str(path))}{fact}. {_way_out(path, str(error), shapes)}"
        ) from error


def _convert(path: Path, shapes: Shapes | None) -> ov.Model | None:
    """Read a model whose ops can only be converted once the shapes of the inputs are known."""
    frontend, unconverted = _frontend_model(path)
    inputs = unconverted.get_inputs()
    places = {name: place for place in inputs for name in place.get_names()}
    if not isinstance(shapes, Mapping):
        shapes = dict.fromkeys(places, shapes or ()) if len(inputs) == 1 else {}
    for name in shapes:
        if name not in places:
            raise ModelError(unknown("The model has no input", name, places, "Inputs"))
    try:
        for name, shape in shapes.items():
            unconverted.set_partial_shape(places[name], ov.PartialShape([*shape]))
        return frontend.convert(unconverted)
    except Exception:
        return None  # the error without shapes says more about the model


def _frontend_model(path: Path) -> tuple[FrontEnd, InputModel]:
    frontend = FrontEndManager().load_by_model(str(path))
    return frontend, frontend.load(path)


def _way_out(path: Path, error: str, shapes: Shapes | None) -> str:
    if way_out := unknown_op(error):
        return way_out
    if "No conversion rule found" in error:
        return (
            "Export the model without these ops (those of com.microsoft: before ONNX Runtime's "
            f"optimizer), or name the library of an extension that has them, {FILES}=FILE."
        )
    if _UNCONVERTED not in error:
        return (
            "Is the file complete, with its data beside it (no links of a hub's cache, no pointer "
            "of Git LFS), and in a format that it reads (.xml with its .bin, .onnx, .tflite, .pb, "
            ".pdmodel)? A model of PyTorch, Keras or PaddlePaddle 3 is loaded by that package: "
            "hetero_lab.load(openvino.convert_model(model))."
        )
    if shapes:
        return (
            "An If whose condition is known can be folded away beforehand: 'A model cannot be "
            "loaded' in docs/howto/troubleshooting.md shows how."
        )
    _, model = _frontend_model(path)
    inputs = {place.get_names()[0]: model.get_partial_shape(place) for place in model.get_inputs()}
    sizes = names_at_hand(f"{name} {shape}" for name, shape in inputs.items())
    examples = {name: _example_shape(shape, *_LIKELY_SIZES[0]) for name, shape in inputs.items()}
    return (
        f"Some ops need the shapes of all inputs: {sizes}, where ? is any size. "
        f"{_how_to_give(examples)}"
    )


def _how_to_give(shapes: Mapping[str, Sequence[Any]]) -> str:
    """Say how to give shapes, in words that can be pasted."""
    example = ", ".join(f'"{name}": {[*shape]}' for name, shape in shapes.items())
    each = ((name, ",".join(map(str, shape)) or "[]") for name, shape in shapes.items())
    options = pasted([w for name, sizes in each for w in ("--shape", f"{name}={sizes}")])
    return (
        f"Give them, for instance load(source, shapes={{{example}}}), or on the command line "
        f"{options}."
    )


def _set_static_shapes(model: ov.Model, shapes: Shapes) -> None:
    sizes_of: dict[int, list[int]] = {}
    names = [input_name(port) for port in model.inputs]
    if not isinstance(shapes, Mapping):
        if len(names) != 1 or isinstance(shapes, str) or not isinstance(shapes, Sequence):
            example = names[0] if names else "input"
            raise ModelError(
                f'shapes= maps inputs to shapes, for instance {{"{example}": [1, 3, 224, 224]}}, '
                "and is a list of sizes only for a model with one input. "
                f"Inputs: {_describe_inputs(model)}."
            )
        shapes = {names[0]: shapes}
    partials = [port.get_partial_shape() for port in model.inputs]
    for key, shape in shapes.items():
        index = next((i for i, p in enumerate(model.inputs) if key in port_names(p)), None)
        if index is None:
            raise ModelError(
                f"The model has no input {shorten(str(key))}."
                f"{did_you_mean(str(key), names)} Inputs: {_describe_inputs(model)}."
            )
        sizes_of[index] = _checked_shape(names[index], partials[index], shape)
    new = {index: ov.PartialShape(shape) for index, shape in sizes_of.items()}
    open_ends = {i: p for i, p in enumerate(partials) if p.is_dynamic and i not in sizes_of}
    if any(
        partial.rank.is_dynamic or any(size.is_dynamic for size in list(partial)[1:])
        for partial in open_ends.values()
    ):
        raise ModelError(
            f"The model has dynamic inputs: {_describe_inputs(model)}. HETERO needs static "
            f"shapes. {_how_to_give(_example_shapes(model, sizes_of))}"
        )
    if open_ends:
        batches = [_nearest(1, next(iter(partial))) for partial in open_ends.values()]
        for batch, (index, partial) in zip(batches, open_ends.items(), strict=True):
            new[index] = ov.PartialShape([batch, *list(partial)[1:]])
        sizes = batches if len({*batches}) > 1 else batches[:1]
        warn(
            f"The batch of {names_at_hand(names[i] for i in open_ends)} is dynamic and was set to "
            f"{', '.join(map(str, sizes))}. To set another, load the model with shapes=."
        )
    if not new:
        return
    try:
        model.reshape(new)
    except Exception as error:
        by_name = {names[i]: shape for i, shape in sizes_of.items()}
        why = reason(error).partition(". ")[0].rstrip(".")
        raise ModelError(
            f"The model cannot take the shapes {by_name}: {why}. Inputs: {_describe_inputs(model)}."
        ) from error


def _checked_shape(name: str, partial: ov.PartialShape, shape: Sequence[int]) -> list[int]:
    try:
        sizes = [int(size) for size in shape]
        whole = all(size == float(value) for size, value in zip(sizes, shape, strict=True))
    except (TypeError, ValueError):
        sizes, whole = [], False
    if not whole or any(size < 0 for size in sizes):
        raise ModelError(
            f"The shape of input {shorten(name)} must be whole numbers of at least 0, not {shape}."
        )
    # A static size may become another one, but bounds are those of the model's ops.
    bounds = list(partial) if partial.rank.is_static else [ov.Dimension()] * len(sizes)
    if len(bounds) != len(sizes) or any(
        d.is_dynamic and _nearest(size, d) != size for size, d in zip(sizes, bounds, strict=True)
    ):
        raise ModelError(f"Input {shorten(name)} takes {partial}, the given shape is {sizes}.")
    return sizes


def _describe_inputs(model: ov.Model) -> str:
    return names_at_hand(f"{input_name(p)} {p.get_partial_shape()}" for p in model.inputs)


def _example_shapes(model: ov.Model, sizes_of: Mapping[int, list[int]]) -> dict[str, list[Any]]:
    """Return shapes of the dynamic inputs that the model takes, with N where none is found."""
    partials = {i: p.get_partial_shape() for i, p in enumerate(model.inputs) if i not in sizes_of}
    open_ends = {i: shape for i, shape in partials.items() if shape.is_dynamic}
    for sizes in _LIKELY_SIZES:
        examples = {i: _example_shape(shape, *sizes) for i, shape in open_ends.items()}
        with contextlib.suppress(Exception):
            shapes = {**sizes_of, **examples}
            model.clone().reshape({i: ov.PartialShape(s) for i, s in shapes.items()})
            break
    return {input_name(model.inputs[i]): shape for i, shape in examples.items()}


def _example_shape(partial: ov.PartialShape, of_picture: Any, size: Any) -> list[Any]:
    """Return a shape with a batch of 1, the channels of a picture, and one size elsewhere."""
    if partial.rank.is_dynamic:
        return [size]
    sizes = list(partial)
    first = next((i for i, d in enumerate(sizes) if d.is_dynamic), None)
    likely = [1 if i == first else size for i in range(len(sizes))]
    if len(sizes) == 4 and sizes[-1].is_dynamic:
        likely = [1, 3, of_picture, of_picture]
    return list(map(_nearest, likely, sizes))


def _nearest(size: Any, dimension: ov.Dimension) -> Any:
    """Return the size that a dimension takes, nearest to another one; ``"N"`` if unknown."""
    low, high = dimension.get_min_length(), dimension.get_max_length()
    if isinstance(size, str):
        return low if low == high else size
    return max(low, size if high < 0 else min(size, high))


def _keep_broadcast_sizes(model: ov.Model) -> None:
    """Replace 0 by 1 in the sizes of bidirectional broadcasts, where both are to keep the size.

    OpenVINO's reader of GGUF writes 0. Only the CPU plugin understands it that way: the GPU plugin
    refuses it, and shape inference makes it an empty tensor.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Broadcast" or node.get_attributes()["mode"] != "bidirectional":
            continue
        sizes = node.input_value(1).get_node()
        if sizes.get_type_name() != "Concat":
            continue
        parts = [_one_for_zero(value) for value in sizes.input_values()]
        if parts != sizes.input_values():
            joined = ov.opset13.concat(parts, 0, name=sizes.get_friendly_name())
            node.input(1).replace_source_output(joined.output(0))
    model.validate_nodes_and_infer_types()


def _one_for_zero(value: ov.Output) -> Any:
    node: Any = value.get_node()
    if node.get_type_name() != CONSTANT or np.any(node.data):
        return value
    return ov.opset13.constant(np.ones_like(node.data)).output(0)


def _bypass_identities(model: ov.Model) -> None:
    """Remove the Identity ops of new ONNX exports: they stop the folding of constants."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Identity":
            continue
        source, output = node.input_value(0), node.output(0)
        from_input = source.get_node().get_type_name() == PARAMETER
        for target in output.get_target_inputs():
            # A Result brings its names along; an input must not get an output's.
            if not (from_input and target.get_node().get_type_name() == RESULT):
                target.replace_source_output(source)


def _fold_constants(model: ov.Model) -> None:
    """Fold constants, but leave compressed weights (f16, int8, …) as they are.

    A compressed constant, or one that is quantised by a FakeQuantize, is replaced by a
    Parameter while the pass runs, so that the pass has nothing to decompress.
    """
    shields = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != CONSTANT:
            continue
        uses = list(node.output(0).get_target_inputs())
        quantised = any(
            u.get_node().get_type_name() in ("FakeQuantize", "FakeConvert") and u.get_index() == 0
            for u in uses
        )
        if not (quantised or _COMPRESSED.match(node.get_element_type().get_type_name())):
            continue
        shield = ov.opset13.parameter(node.get_output_shape(0), node.get_element_type())
        for use in uses:
            use.replace_source_output(shield.output(0))
        shields.append((shield, node))
    if shields:
        model.add_parameters([shield for shield, _ in shields])
    manager = passes.Manager()
    manager.register_pass(passes.ConstantFolding())
    manager.run_passes(model)
    for shield, constant in shields:
        for use in shield.output(0).get_target_inputs():
            use.replace_source_output(constant.output(0))
        model.remove_parameter(shield)
    model.validate_nodes_and_infer_types()


def _copy_shared_decompression(model: ov.Model) -> None:
    """Give each op that reads decompressed weights a decompression of its own.

    An op is in one subgraph only. Weights that are decompressed for two ops, such as the token
    table of a language model, would be handed over at every inference if the two are apart. The
    copies share the memory of the compressed weights.
    """
    names = {node.get_friendly_name() for node in model.get_ops()}
    reader_of: dict[str, str | None] = {}  # node of the constant side → the first that reads it
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), [s.get_node() for s in node.input_values()]
        if kind in (CONSTANT, RESULT):
            continue
        constant = [s.get_type_name() == CONSTANT or s.get_name() in reader_of for s in sources]
        if sources and all(constant) and kind not in NOT_CONSTANT_SOURCES and not bodies_of(node):
            reader_of[node.get_name()] = None
            continue
        for port, source in enumerate(node.input_values()):
            chain = _upstream(source.get_node(), reader_of)
            if any(reader_of[name] not in (None, node.get_name()) for name in chain):
                build: Any = ov.Model  # its stubs do not know Results made in Python
                copy = build([ov.opset13.result(source)], [], "decompression").clone()
                for copied in copy.get_ordered_ops():
                    copied.set_friendly_name(unique(copied.get_friendly_name(), names))
                    names.add(copied.get_friendly_name())
                    for output in copied.outputs():
                        output.get_tensor().set_names(set())  # they are unique in a model
                node.input(port).replace_source_output(copy.get_results()[0].input_value(0))
            else:
                reader_of.update(dict.fromkeys(chain, node.get_name()))


def _upstream(node: Any, among: Collection[str]) -> set[str]:
    """Return the names of a node and of the nodes that it is computed from, as far as known."""
    if node.get_name() not in among:
        return set()
    return {node.get_name()}.union(
        *(_upstream(source.get_node(), among) for source in node.input_values())
    )


def _prepared_mark(model: ov.Model) -> str | None:
    if not model.has_rt_info(_MARK):
        return None
    fingerprint, _, structure = model.get_rt_info(_MARK).astype(str).rpartition(":")
    return fingerprint if structure == fingerprint_of(model, sampled=True) else None


def names_of_file(nodes: Iterable[Any], path: Path) -> set[str]:
    """Return the friendly names that the file itself holds, not those made up while reading it."""
    names = {node.get_friendly_name() for node in nodes}
    path = path / "saved_model.pb" if path.is_dir() else path
    # OpenVINO's own format names every node; other files hold the names that they give.
    numbered = {name for name in names if _NUMBERED.match(name)}
    if path.suffix.lower() == ".xml" or not numbered or not os.path.getsize(path):
        return names
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return names - numbered | _strings_in(data, numbered)


def name_the_nameless(nodes: Iterable[Any], stable: set[str]) -> None:
    """Number the nodes whose name is made up and not ``stable``, type by type, in order."""
    nameless, others = [], set()
    for node in nodes:
        name = node.get_friendly_name()
        if "\0" in name:  # where a file would end it
            name = name.replace("\0", "\N{SYMBOL FOR NULL}")
            node.set_friendly_name(name)
        if _NUMBERED.match(name) and name not in stable:
            nameless.append(node)
        else:
            others.add(name)
    numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)
    for node in nameless:
        kind = node.get_type_name()
        # The runtime never makes up a name with a dot, so it is not taken for one later.
        names = (f"{kind}.{number}" for number in numbers[kind])
        node.set_friendly_name(next(name for name in names if name not in others))


def make_names_unique(nodes: Iterable[Any]) -> None:
    """Number repeated names; the first node keeps its own."""
    every = list(nodes)
    names = {node.get_friendly_name() for node in every}
    earlier: set[str] = set()
    for node in every:
        name = node.get_friendly_name()
        if name in earlier:
            name = unique(name, names)
            node.set_friendly_name(name)
            names.add(name)
        earlier.add(name)


def unique(name: str, others: set[str]) -> str:
    """Return the name, with a number appended if it is taken."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(new for new in names if new not in others)


def input_name(port: Any) -> str:
    """Name an input or output: its first tensor name, else the friendly name of its node.

    A Result without a tensor name of its own would show the runtime's made-up one. Files keep no
    tensor name that is empty.
    """
    return min(filter(None, port.get_names()), default=port.get_node().get_friendly_name())


def port_names(port: Any) -> set[str]:
    """Return all names by which an input or output may be called."""
    return {*port.get_names(), port.get_node().get_friendly_name()}


def output_names(model: ov.Model) -> list[str]:
    """Name the outputs in order: first tensor name, else the Result's, made unique."""
    names: list[str] = []
    for port in model.outputs:
        names.append(unique(input_name(port), set(names)))
    return names


def _strings_in(data: mmap.mmap, names: set[str]) -> set[str]:
    """Return the names that a file holds as strings of their own, with their lengths before them.

    All names are sought in one pass: files are large, and models have thousands of nodes.
    """
    encoded, strings = {name.encode() for name in names}, set[bytes]()
    lengths = {len(name) for name in encoded}
    for number in _NUMBER.finditer(data):
        at = number.start()
        for start in range(at - 1, max(at - max(lengths), 0), -1):
            if data[start] not in _IN_A_NAME:
                break
            # Protobuf puts one byte before a short string, flatbuffers four: mostly zeros.
            length = data[start - 1] or int.from_bytes(data[max(start - 4, 0) : start], "little")
            if length in lengths and data[start : start + length] in encoded:
                strings.add(data[start : start + length])
    return {name.decode() for name in strings}
