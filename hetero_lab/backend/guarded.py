"""The process of a first question about a model: where OpenVINO crashes, only this process ends.

It is forked or started with one JSON object as its input, and writes what it knows into a file of
the directory that the question names, before and after the step that may crash. It imports little,
so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import openvino as ov

MODEL, ANSWER = "model.xml", "answer.json"


def serve(_: Any = None) -> None:
    """Answer one question: which ops a device supports, or whether it compiles the model."""
    with contextlib.suppress(ImportError):  # of Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file behind
    with os.fdopen(0, "r", encoding="utf-8") as stream:
        question = json.load(stream)
    directory = Path(question["directory"])
    try:
        _tell(directory, step="read")
        core, model = _read(question, directory / MODEL)
        _tell(directory, step=question["step"])
        asked = model, question["device"], question["properties"]
        if question["step"] == "compile":
            core.compile_model(*asked)
            _tell(directory, answer={})
        else:
            nodes = [node.get_friendly_name() for node in model.get_ordered_ops()]
            _tell(directory, answer=dict(core.query_model(*asked)), nodes=nodes)
    except Exception as error:
        no_memory = isinstance(error, MemoryError) or "bad_alloc" in str(error)
        _tell(directory, error=str(error), no_memory=no_memory)
    os._exit(0)  # its end would only let go of memory


def _read(question: dict[str, Any], path: Path) -> tuple[ov.Core, ov.Model]:
    """Return a Core like the asker's, and the model with its affinities."""
    core = ov.Core()
    for library, name, properties in question["plugins"]:
        core.register_plugin(library, name, properties)
    for device, properties in question["settings"].items():
        core.set_property(device, properties)
    model = core.read_model(path)
    if question["affinities"] is not None:  # a file keeps none
        for node in model.get_ordered_ops():
            node.get_rt_info()["affinity"] = question["affinities"][node.get_friendly_name()]
    return core, model


def _tell(directory: Path, **facts: Any) -> None:
    """Write facts whole, so that a crash leaves those before it."""
    draft = directory / f"{ANSWER}.draft"
    draft.write_text(json.dumps(facts), encoding="utf-8")
    draft.replace(directory / ANSWER)


if __name__ == "__main__":
    serve()
