"""The contract of a deployed directory: the facts at the time it was written, as data."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from hetero_lab.devices.properties import PRECISION_HINT
from hetero_lab.errors import OutputPathError, StoredFileError, names_at_hand, shorten
from hetero_lab.fetch import file_digest
from hetero_lab.model.read import Source, input_name, prepare
from hetero_lab.results.environment import Environment
from hetero_lab.results.evidence import TOLERANCE
from hetero_lab.runtime.compiled import parse_header
from hetero_lab.runtime.place_ops import check_plugins, check_properties
from hetero_lab.runtime.placed_model import read_placed
from hetero_lab.runtime.reference import TOLERANCE as TOLERANCE_OF
from hetero_lab.runtime.stored_placement import MODEL_FILE
from hetero_lab.tables import SCHEMA_VERSION, check_directory, read_json, reading, write_json

FILE_NAME, KIND = "contract.json", "contract"
# Standard deviation of the log ratio from one time to another, at least: that of 39 measurements of
# seven unchanged deployments, without that of processes, by median absolute deviations.
DRIFT = 0.02
# Of the directory and a file on Windows, too, where some names are devices.
_FILE = re.compile(r"(?!(?i:con|prn|aux|nul|(com|lpt)\d)(\.|$))\w[\w.-]*(?<!\.)")
_NOTE = re.compile(rb'<placement value="[^"]*" />')


class LatencyPromise(msgspec.Struct, frozen=True, kw_only=True):
    """The latency relative to the same model on a reference, measured in several processes.

    Attributes
    ----------
    reference_device, reference_properties
        The reference: a device alone.
    ratio
        Latency over reference, with its 95 % interval; below 1 is faster.
    ratios
        The ratio in each process; contracts of older versions have none.
    spread
        Standard deviation of the logarithm of the ratio from process to process, at least.
    drift
        The same from one time to another, which all processes of a time share.
    tolerance
        The share by which the ratio may be worse.
    """

    reference_device: str
    reference_properties: dict[str, Any]
    ratio: float
    ratio_ci95_low: float
    ratio_ci95_high: float
    ratios: tuple[float, ...] = ()
    spread: float = 0.0
    drift: float = DRIFT
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        """Raise ValueError for numbers that nothing can be held to."""
        above = min(self.ratio_ci95_low, self.tolerance, *self.ratios) > 0.0
        holds = self.ratio_ci95_low <= self.ratio <= self.ratio_ci95_high < math.inf
        if not (above and holds and min(self.spread, self.drift) >= 0.0):
            raise ValueError("a promised latency has positive numbers and a finite interval")
        check_properties(self.reference_properties)

    @property
    def reference(self) -> str:
        """The reference in words: ``in f32 on one core of CPU``."""
        precision = self.reference_properties.get(PRECISION_HINT)
        alone = self.reference_properties.get("INFERENCE_NUM_THREADS") == 1
        core = f"one core of {self.reference_device}" if alone else self.reference_device
        return f"in {precision} on {core}" if precision else f"on {core}"

    def __str__(self) -> str:
        return (
            f"{self.ratio:.3f} ({self.ratio_ci95_low:.3f} to {self.ratio_ci95_high:.3f}) of the "
            f"time {self.reference}"
        )


# A promise, why there is none although one was asked for, or nothing.
Promise: TypeAlias = LatencyPromise | str | None


@dataclass(frozen=True, kw_only=True)
class AccuracyPromise:
    """The accuracy measured on labelled examples, and its drop from f32."""

    accuracy: float
    drop: float
    n_examples: int


class Contract(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content and behaviour of a deployed directory when it was written.

    Attributes
    ----------
    files
        SHA-256 of each file, of an IR without its placement, which is compared part by part.
    target, properties, affinity, emulated
        As in the placement.
    devices
        Device → full name, of the devices that it needs.
    execution_devices, header
        The compiled model's devices as OpenVINO names them, and the wiring of HETERO's submodels.
    precision
        The lowest precision that was executed, which sets the tolerance of the outputs.
    generated
        Whether the inputs of the requests were generated.
    latency
        The promise; or why there is none, although one was asked for.
    """

    label: str
    model_fingerprint: str
    files: dict[str, str]
    target: str
    properties: dict[str, Any]
    affinity: dict[str, str]
    emulated: dict[str, tuple[str, str]]
    devices: dict[str, str]
    execution_devices: list[str]
    header: str
    precision: str
    n_requests: int
    environment: Environment
    latency: Promise = None
    accuracy: AccuracyPromise | None = None
    generated: bool = False
    kind: str = KIND
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Raise ValueError for what only somebody else can have written."""
        check_plugins(self.emulated)
        check_properties(self.properties)
        parse_header(self.header)
        if self.precision not in TOLERANCE_OF:
            raise ValueError(f"{self.precision!r} is no precision")
        for name, digest in self.files.items():
            if not re.fullmatch(_FILE, name) or not re.fullmatch("[0-9a-f]{64}", digest):
                raise ValueError(f"{name!r} is no file that was frozen")


def check_files(
    directory: str | os.PathLike[str], names: Iterable[str], by: str, way: str = ""
) -> None:
    """Raise StoredFileError for a file that is none of ``names``, those that ``by`` describes."""
    if extra := sorted({*os.listdir(directory)} - {*names}):
        raise StoredFileError(
            f"{shorten(os.fspath(directory))} holds {names_at_hand(extra)}, which its {by} does "
            f"not know. Take that out of the directory{way}."
        )


def frozen_digest(file: Path) -> str:
    """Return the SHA-256 of a file, of an IR without its placement; empty if it is unreadable."""
    if file.suffix != ".xml" or not file.is_file():
        return file_digest(file)
    *before, after = _NOTE.split(file.read_bytes())
    content = b"".join([*(part.rstrip() for part in before), after])
    return hashlib.sha256(content).hexdigest()


def write_contract(directory: str | os.PathLike[str], contract: Contract) -> None:
    """Write a contract with a digest of itself, which reveals edits by hand."""
    data = msgspec.to_builtins(contract)
    write_json(Path(directory) / FILE_NAME, {**data, "digest": _digest(data)})


def read_contract(directory: str | os.PathLike[str]) -> Contract:
    """Read the contract of a deployed directory.

    StoredFileError, if there is none, it is of a newer version, or it was changed afterwards.
    """
    path = Path(directory) / FILE_NAME
    name = shorten(os.fspath(path))
    if not path.is_file():
        fact = "is a file, not a directory"
        if not os.path.isfile(directory):
            fact = f"has no {FILE_NAME}" if path.parent.is_dir() else "does not exist"
        raise StoredFileError(
            f"{shorten(os.fspath(directory))} {fact}. "
            "hetero_lab.freeze(model, placement, directory) writes a directory with a contract."
        )
    check_directory(directory)
    data = read_json(path, kind=KIND)
    digest = data.pop("digest", None)
    if digest != _digest(data):
        raise StoredFileError(
            f"{name} was changed after it was written, so it proves nothing. Freeze the placement "
            "again, or restore the file."
        )
    with reading(path, KIND):
        return msgspec.convert(data, Contract)


def check_vacant(directory: str | os.PathLike[str], source: Source) -> None:
    """Raise OutputPathError where another model is deployed."""
    with contextlib.suppress(StoredFileError):  # nothing is promised there
        if read_contract(directory).model_fingerprint == prepare(source).fingerprint:
            return
        with reading(directory, "model"):
            models = read_placed(Path(directory) / MODEL_FILE), prepare(source).model
        there, here = (
            f"{shorten(model.get_friendly_name())} with "
            f"{names_at_hand(map(input_name, [*model.inputs, *model.outputs]))}"
            for model in models
        )
        if there != here:
            raise OutputPathError(
                f"{shorten(os.fspath(directory))} holds another model: {there}, not {here}. "
                "Name another directory, or delete that one."
            )


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
