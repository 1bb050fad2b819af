"""The process of a first question about a model: where OpenVINO crashes, only this process ends.

It reads one JSON object, and writes what it knows into a file of the directory that this names,
before and after the step that may crash. It imports little, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from hetero_lab.model.extension_ops import core_with_ops

MODEL, ANSWER = "model.xml", "answer.json"


def serve(_: Any = None) -> None:
    """Answer one question: which ops a device supports, or whether it compiles the model."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file behind
    with os.fdopen(0, "r", encoding="utf-8") as stream:
        question = json.load(stream)
    directory = Path(question["directory"])

    def tell(**facts: Any) -> None:
        (directory / ANSWER).write_text(json.dumps(facts), encoding="utf-8")

    try:
        tell(step="read")
        core = core_with_ops()
        model = core.read_model(directory / MODEL)
        for plugin in question["plugins"]:
            core.register_plugin(*plugin)
        nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
        for name, home in (question.get("affinities") or {}).items():  # a file keeps none
            nodes[name].get_rt_info()["affinity"] = home
        tell(step=question["step"])
        arguments = model, question["device"], question["properties"]
        if question["step"] == "compile":
            core.compile_model(*arguments)
        else:
            tell(answer=core.query_model(*arguments), nodes=[*nodes])
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}")
    os._exit(0)  # its end would only let go of memory


if __name__ == "__main__":
    serve()
