"""Read arrays and models, and compile a model as its file says, with openvino and numpy alone.

The source is also part of programs that run without the package.
"""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.model.extension_ops import core_with_ops
from hetero_lab.runtime.place_ops import noted, place_ops

MOST_XML, _MOST_UNPACKED = 1 << 26, 1 << 28  # bytes


def load(directory: str | os.PathLike[str]) -> tuple[ov.CompiledModel, dict[str, Any]]:
    """Compile the frozen placement; return it with what the model's file says of it."""
    model, plan = read_noted(directory)
    return compile_noted(model, core_for(plan)), plan


def file_of(path: str | os.PathLike[str], most: int | None = None) -> Path:
    """Return a path; ValueError unless it is a regular file of its directory, not too large."""
    file, real = Path(path), Path(os.path.realpath(path))
    if file.suffix == ".xml" and os.path.lexists(weights := file.with_suffix(".bin")):
        file_of(weights)
    size = real.stat().st_size  # FileNotFoundError, if there is none
    if not real.is_file() or not real.is_relative_to(os.path.realpath(file.parent)):
        raise ValueError(f"{file.name!r} is no regular file of its directory.")
    if most is not None and size > most:
        raise ValueError(f"{file.name!r} is larger than {most >> 20} MiB.")
    return file


def read_npz(path: str | os.PathLike[str], begin: str = "") -> dict[str, np.ndarray]:
    """Return the arrays whose names ``begin`` so; ValueError if far larger than their file."""
    file = file_of(path)
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        there = os.stat(file)  # a file with holes takes less room than its size
        room = min(there.st_size, 512 * getattr(there, "st_blocks", there.st_size))
        if unpacked > max(room, _MOST_UNPACKED):
            raise ValueError(f"it unpacks to {unpacked >> 20} MiB; write it with numpy.savez")
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if name.startswith(begin)}
    except Exception as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{file.name!r} cannot be read as .npz: {why}") from error


def read_placed(file: str | os.PathLike[str]) -> ov.Model:
    """Read a model with the placement that its file carries."""
    return core_with_ops().read_model(file_of(file, MOST_XML))


def read_noted(directory: str | os.PathLike[str]) -> tuple[ov.Model, dict[str, Any]]:
    """Read the model of a directory, and what its file says of the placement."""
    model = read_placed(Path(directory) / "model.xml")
    return model, noted(model)


# Cores stay: a CPU plugin that is unloaded can leave a thread without its signal stack, and then
# Ctrl-C ends the process.
@cache
def kept_core(_use: str, *emulated: tuple[str, str, str]) -> ov.Core:
    """Return the Core for a use, with these emulated devices."""
    core = ov.Core()
    for name, plugin, internal in emulated:
        proxy = {"ALIAS": name, "PRIORITY": "0", "INTERNAL_NAME": internal}
        core.register_plugin(
            plugin, internal, {f"PROXY_CONFIGURATION_{k}": v for k, v in proxy.items()}
        )
    return core


def core_for(plan: Mapping[str, Any]) -> ov.Core:
    """Return the Core with the emulated devices of a placement."""
    return kept_core("models", *((name, *plugin) for name, plugin in plan["emulated"].items()))


def compile_noted(model: ov.Model, core: ov.Core) -> ov.CompiledModel:
    """Compile a model as its file says."""
    return core.compile_model(model, *place_ops(model, core))


def header_text(compiled: ov.CompiledModel) -> str:
    """Return the XML at the start of HETERO's export, the submodels' wiring; empty without it."""
    stream = _HeaderOnly()
    # The export always ends in an error: the stream refuses the weights after the header, or the
    # device cannot export.
    with contextlib.suppress(Exception):
        compiled.export_model(stream)
    raw = stream.getvalue()
    start, end = raw.find(b"<hetero"), raw.find(b"</hetero>")
    return raw[start : end + 9].decode(errors="replace") if 0 <= start < end else ""


class _HeaderOnly(io.BytesIO):
    def write(self, data: Any) -> int:
        if b"</hetero>" in self.getvalue():
            raise BufferError("the header is whole")
        return super().write(data)
