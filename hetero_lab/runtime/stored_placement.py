"""The placement that a model's own file carries: write it, read it."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import openvino as ov

from hetero_lab.devices.core import bind, emulated_devices, plugin_of, runtime_version
from hetero_lab.errors import (
    AffinityError,
    ArgumentError,
    ModelError,
    PropertyError,
    StoredFileError,
    names_at_hand,
    shorten,
)
from hetero_lab.model.language import forget_notes, is_language_model, language_model
from hetero_lab.model.opgraph import CONSTANT, OpGraph
from hetero_lab.model.read import Source, input_name, prepare, save as save_ir
from hetero_lab.placement.affinity import Affinity, labels_of
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import BoundPlacement, Placement, PlacementLike, resolve
from hetero_lab.runtime import place_ops
from hetero_lab.runtime.compiled import checked_partition, labelled_clone
from hetero_lab.runtime.place_ops import NOTE, check_plugins, check_properties
from hetero_lab.runtime.placed_model import read_placed
from hetero_lab.tables import SCHEMA_VERSION, check_writable, move, reading, scratch_directory

LOADER = "place_ops.py"
MODEL_FILE = "model.xml"  # of a frozen directory
_KIND = "placement"
_IMPORTED = re.compile(r"^from (hetero_lab\.[\w.]+) import (?:\([^)]*\)|.+)\n", re.M)


class FrozenGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a language model that ``run.py`` needs; inputs are (name, element type)."""

    inputs: list[tuple[str, str]]
    logits: int
    context_tokens: int | None


class StoredPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A placement as a model's file carries it, for whoever compiles that file.

    ``target`` and ``properties`` are as ``core.compile_model`` takes them; ``inputs`` and
    ``outputs`` are names in the model's order. ``emulated`` has the library and the internal name
    of the plugin behind each emulated device, ``affinity`` the device of each node. Constants are
    not in it: they go with their users, and compression renames them.
    """

    label: str
    openvino_version: str
    model_fingerprint: str
    target: str
    properties: dict[str, Any]
    inputs: list[str]
    outputs: list[str]
    emulated: dict[str, tuple[str, str]]
    affinity: dict[str, str]
    generation: FrozenGeneration | msgspec.UnsetType = msgspec.UNSET
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Raise ValueError for a version that this release does not read."""
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"it has schema version {self.schema_version}, this release reads {SCHEMA_VERSION}"
            )
        if not self.affinity:
            raise ValueError("it places no op")
        check_plugins(self.emulated)
        check_properties(self.properties)

    def placement(self, graph: OpGraph) -> Placement:
        """Return the placement for the model that it was stored with."""
        leader_of = {op.name: graph.ops[graph.leader[op.index]].name for op in graph}
        # A constant that is an output has its device from that output.
        leaders = {leader_of.get(name, name): device for name, device in self.affinity.items()}
        device_of, anywhere = {**leaders, **self.affinity}, next(iter(self.affinity.values()))
        return Placement(
            Affinity.from_graph(graph, lambda name: device_of.get(name, anywhere)),
            label=self.label,
            device_properties={d: p for d, p in self._by_device().items() if p},
            direct=not self.target.startswith("HETERO:"),
        )

    def _by_device(self) -> dict[str, dict[str, Any]]:
        """Return the properties of each device, under the name that it has in the lab."""
        inner: dict[str, dict[str, Any]] = self.properties.get("DEVICE_PROPERTIES", {})
        if self.target.startswith("HETERO:"):
            return inner
        outer = {k: v for k, v in self.properties.items() if k != "DEVICE_PROPERTIES"}
        behind = {internal: device for device, (_, internal) in self.emulated.items()}
        devices = {behind.get(device, device): properties for device, properties in inner.items()}
        return {self.target.partition(":")[0]: outer, **devices}


def save(
    model: Source,
    placement: PlacementLike,
    file: str | os.PathLike[str],
    *,
    core: ov.Core | None = None,
) -> Path:
    """Write a model as an IR that carries a placement, for any program that uses OpenVINO.

    Beside it lies ``place_ops.py``, a short function that labels the ops, with openvino alone. The
    placement is a note in the file. OpenVINO itself ignores it, and keeps it when the model is
    saved again, compressed or reshaped. All files are written, or none.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes; it is written as prepared, weights as they are.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"``, ``"CPU"`` or ``"AUTO:GPU,CPU"``.
    file
        The path of an ``.xml`` file; the weights go to the ``.bin`` beside it. Files of the same
        names are replaced.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    AffinityError, DeviceError, PropertyError
        The placement does not fit the model or the devices, or HETERO cannot run it.
    ArgumentError
        The file is no ``.xml``.
    OutputPathError
        A file cannot be written.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     file = hl.save(model, "HETERO:ACC,CPU", f"{scratch}/placed.xml")
    ...     hl.read_placement(file)
    Placement('HETERO:ACC,CPU', Affinity(92 ops; ACC: 91, CPU: 1))
    """
    target = Path(file)
    if target.suffix != ".xml":
        raise ArgumentError(
            f"{shorten(str(target))} has to end in .xml: a placement is kept in OpenVINO's IR."
        )
    # The weights come first, as they may be in use, and the model last, so it never lies beside
    # those of another one.
    files = [target.with_suffix(".bin"), target.with_name(LOADER), target]
    for path in files:
        check_writable(path)
    bound_placement = resolve(bind(model, core), placement)
    checked_partition(bound_placement)
    with scratch_directory(target.parent, ".hetero_lab-") as draft:
        write_placed(draft / target.name, bound_placement)
        (draft / LOADER).write_text(standalone(place_ops), encoding="utf-8")
        for path in files:
            move(draft / path.name, path)
    return target


def read_placement(file: str | os.PathLike[str]) -> Placement:
    """Read the placement that a model's file carries.

    Parameters
    ----------
    file
        An IR of :func:`hetero_lab.save`, which other tools may have saved again, or a directory of
        :func:`hetero_lab.freeze`.

    Returns
    -------
    Placement
        It fits the model in the file, ``hetero_lab.load(file)``. Its devices may be absent here;
        :func:`hetero_lab.compile` then says so before it compiles anything.

    Raises
    ------
    ModelError
        The file is missing or cannot be read.
    StoredFileError
        It carries no placement, or one of a newer release.
    AffinityError
        The model was changed since it was placed: ops are missing or new.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     file = hl.save("digits_inception", "CPU", f"{scratch}/placed.xml")
    ...     placement = hl.read_placement(file)
    ...     compiled = hl.compile(hl.load(file), placement)
    >>> compiled.partition.n_subgraphs
    1
    """
    if not os.path.exists(file):
        raise ModelError(
            f"{shorten(os.fspath(file))} does not exist. Name a file of hetero_lab.save, or a "
            "directory of hetero_lab.freeze."
        )
    graph = prepare(_model_file(file)).graph  # refuses a file that is no model
    stored = read_stored(file)
    affinity, weights = stored.affinity, graph.constant_side
    lacks = [name for name in affinity if name not in graph.index_of]
    new = [op.name for op in graph if op.name not in affinity and op.index not in weights]
    if lacks or new:
        raise AffinityError(
            f"{shorten(os.fspath(file))} was changed after its ops were placed. Missing ops: "
            f"{names_at_hand(lacks, 4) or 'none'}. New ops: {names_at_hand(new, 4) or 'none'}. "
            "Place the model anew."
        )
    with reading(file, _KIND):
        return stored.placement(graph)


def read_stored(file: str | os.PathLike[str]) -> StoredPlacement:
    """Read the placement in a model's file or a frozen directory, without its model.

    StoredFileError, if there is none.
    """
    with reading(file, _KIND):
        model = read_placed(_model_file(file))
        if not model.has_rt_info(NOTE):
            raise StoredFileError(
                f"{shorten(os.fspath(file))} carries no placement. "
                "hetero_lab.save(model, placement, file) writes a file that does."
            )
        text = model.get_rt_info(NOTE).astype(str)
        return msgspec.json.decode(text, type=StoredPlacement)


def _model_file(file: str | os.PathLike[str]) -> Path:
    return Path(file) / MODEL_FILE if os.path.isdir(file) else Path(file)


def write_placed(file: Path, placement: BoundPlacement) -> StoredPlacement:
    """Write a model with its placement, without a compile."""
    model, _ = labelled_clone(placement, predict(placement.graph, placement.affinity))
    stored = note_placement(model, placement)
    save_ir(model, file)
    return stored


def note_placement(model: ov.Model, bound_placement: BoundPlacement) -> StoredPlacement:
    """Note the placement in a labelled model, whose labels are not saved."""
    bound, specs = bound_placement.bound, emulated_devices(bound_placement.core)
    # A file has labels in any case, beside which HETERO's own ratios have no effect.
    labelled = BoundPlacement(bound, bound_placement.placement.labelled())
    compile_on, properties = labelled.compile_call
    types = {node.get_friendly_name(): node.get_type_name() for node in model.get_ops()}
    try:
        check_properties(properties)
    except ValueError as error:
        raise PropertyError(
            f"{shorten(labelled.label)} cannot be stored, since {error}: it could name a path. "
            "Take it out of the placement, and give it to OpenVINO where the model is compiled."
        ) from error
    stored = StoredPlacement(
        label=bound_placement.label,
        openvino_version=runtime_version(),
        model_fingerprint=bound.fingerprint,
        target=compile_on,
        properties=properties,
        inputs=[input_name(port) for port in bound.model.inputs],
        outputs=list(bound.output_names),
        emulated={d: plugin_of(specs[d]) for d in bound_placement.devices if d in specs},
        affinity={n: d for n, d in labels_of(model).items() if types[n] != CONSTANT},
        generation=_generation(bound.model),
    )
    forget_notes(model)  # the path of the original model stays private
    text = json.dumps(msgspec.to_builtins(stored, enc_hook=str))
    model.set_rt_info(text, NOTE)
    return stored


def _generation(model: ov.Model) -> FrozenGeneration | msgspec.UnsetType:
    if not is_language_model(model):
        return msgspec.UNSET
    language = language_model(model)
    return FrozenGeneration(
        inputs=[(n, t.name) for n, t in zip(language.inputs, language.types, strict=True)],
        logits=language.logits,
        context_tokens=language.context_tokens,
    )


def standalone(module: ModuleType, inside: set[str] | None = None) -> str:
    """Return the source of a module, with the modules of this package that it imports in it."""
    there = set[str]() if inside is None else inside

    def put_in(line: re.Match[str]) -> str:
        if line[1] in there:
            return ""
        there.add(line[1])
        source = standalone(importlib.import_module(line[1]), there)
        return source.partition("import annotations\n")[2]

    return _IMPORTED.sub(put_in, inspect.getsource(module))
