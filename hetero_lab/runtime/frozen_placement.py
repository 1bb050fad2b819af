"""Write a placement as a self-contained directory: model, affinities, properties, program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov

from hetero_lab.backend.core import runtime_version
from hetero_lab.backend.emulation import emulated_devices, plugin_of
from hetero_lab.model.language import (
    forget_notes,
    is_language_model,
    language_model,
    tokenizer_files,
)
from hetero_lab.model.read import input_name, save
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.runtime import run_frozen
from hetero_lab.runtime.compiled import CompiledPlacement, labelled_clone
from hetero_lab.runtime.generation import CompiledSession, generate
from hetero_lab.runtime.pieces import affinities_of
from hetero_lab.tables import SCHEMA_VERSION, read_json, reading, write_json

PROGRAM = Path(run_frozen.__file__)
PROMISED_TOKENS = 8  # the length of a generation in a contract, whose logits are compared
PLACEMENT_FILE, KIND = "placement.json", "frozen placement"


class FrozenGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a language model that ``run.py`` needs; inputs are (name, element type)."""

    inputs: list[tuple[str, str]]
    logits: int
    context_tokens: int | None


class FrozenPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``placement.json`` in a frozen directory, which ``run.py`` reads.

    ``target`` and ``properties`` are as ``core.compile_model`` takes them; ``inputs`` and
    ``outputs`` are names in the model's order. ``emulated`` has the library and the internal name
    of the plugin behind each emulated device, ``affinity`` the device of each node.
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
    kind: str = KIND
    schema_version: int = SCHEMA_VERSION


def read_frozen(directory: str | os.PathLike[str]) -> FrozenPlacement:
    """Read ``placement.json`` of a frozen directory."""
    path = Path(directory) / PLACEMENT_FILE
    with reading(path, KIND):
        return msgspec.convert(read_json(path, KIND), FrozenPlacement)


def write_frozen(
    target: Path, compiled: CompiledPlacement, requests: Sequence[list[np.ndarray]]
) -> FrozenPlacement:
    """Write the files of a frozen placement, with the outputs for some requests.

    ``target`` is an empty directory. ``requests`` has at least one list of inputs in the model's
    order, or of one prompt for a language model.
    """
    frozen = write_program(target, compiled.placed, requests[0])
    every: dict[str, Any] = {}
    for number, arrays in enumerate(requests):
        if is_language_model(compiled.placed.bound.model):
            inputs, outputs = _generate(compiled, arrays)
        else:
            inputs, outputs = arrays, list(compiled(arrays).values())
        every |= {f"in{number}.{index}": array for index, array in enumerate(inputs)}
        every |= {f"out{number}.{index}": array for index, array in enumerate(outputs)}
    np.savez(target / "requests.npz", **every)
    return frozen


def write_program(
    target: Path, placed: BoundPlacement, arrays: Sequence[np.ndarray]
) -> FrozenPlacement:
    """Write model, placement, inputs and program, without a compile."""
    bound = placed.bound
    model, _ = labelled_clone(placed, predict(placed.graph, placed.affinity))
    compile_on, properties = BoundPlacement(bound, placed.placement.labelled()).compile_call
    specs = emulated_devices(placed.core)
    # A saved model has no affinities, so placement.json has them.
    affinity = affinities_of(model)
    forget_notes(model)  # the path of the original model stays private
    save(model, target / "model.xml")
    frozen = FrozenPlacement(
        label=placed.label,
        openvino_version=runtime_version(),
        model_fingerprint=bound.fingerprint,
        target=compile_on,
        properties=properties,
        inputs=[input_name(port) for port in bound.model.inputs],
        outputs=list(bound.output_names),
        emulated={d: plugin_of(specs[d]) for d in placed.devices if d in specs},
        affinity=affinity,
        generation=_generation(bound.model),
    )
    write_json(target / PLACEMENT_FILE, msgspec.to_builtins(frozen, enc_hook=str))
    asked = ["input_ids"] if frozen.generation else frozen.inputs
    first: dict[str, Any] = dict(zip(asked, arrays, strict=True))
    np.savez(target / "inputs.npz", **first)
    shutil.copyfile(PROGRAM, target / "run.py")
    for file in tokenizer_files(bound.model):
        shutil.copyfile(file, target / file.name)
    return frozen


def _generate(
    compiled: CompiledPlacement, arrays: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return a prompt and the tokens after it, and the logits behind each token."""
    (prompt,) = arrays
    model = language_model(compiled.prepared.model)
    made = generate(CompiledSession(compiled), model, prompt, PROMISED_TOKENS)
    return [prompt, made.token_ids], [made.logits]


def _generation(model: ov.Model) -> FrozenGeneration | msgspec.UnsetType:
    if not is_language_model(model):
        return msgspec.UNSET
    known = language_model(model)
    return FrozenGeneration(
        inputs=[(n, t.name) for n, t in zip(known.inputs, known.types, strict=True)],
        logits=known.logits,
        context_tokens=known.context_tokens,
    )
