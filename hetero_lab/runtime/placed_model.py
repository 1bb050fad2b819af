"""Read and compile a model that carries its placement, with openvino and numpy alone.

The source is also part of programs that run without the package.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov

from hetero_lab.npz_files import file_of
from hetero_lab.runtime.place_ops import noted, place_ops

MOST_XML = 1 << 26  # bytes


def load(directory: str | os.PathLike[str]) -> tuple[ov.CompiledModel, dict[str, Any]]:
    """Compile the frozen placement; return it with what the model's file says of it."""
    model, plan = read_noted(directory)
    return compile_noted(model, core_for(plan)), plan


def read_placed(file: str | os.PathLike[str]) -> ov.Model:
    """Read a model with the placement that its file carries."""
    return kept_core("models").read_model(file_of(file, MOST_XML))


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
    return raw[start : end + 9].decode() if 0 <= start < end else ""


class _HeaderOnly(io.BytesIO):
    def write(self, data: Any) -> int:
        if b"</hetero>" in self.getvalue():
            raise BufferError("the header is whole")
        return super().write(data)
