"""Run a frozen placement: python run.py [inputs.npz [outputs.npz]]. Needs openvino and numpy."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov


def load(directory: str | os.PathLike[str]) -> tuple[ov.CompiledModel, dict[str, Any]]:
    """Compile the frozen placement; return it with what placement.json says."""
    plan = json.loads((Path(directory) / "placement.json").read_text(encoding="utf-8"))
    core = ov.Core()
    for name, (plugin, internal) in plan["emulated"].items():
        proxy = {"ALIAS": name, "PRIORITY": "0", "INTERNAL_NAME": internal}
        core.register_plugin(
            plugin, internal, {f"PROXY_CONFIGURATION_{k}": v for k, v in proxy.items()}
        )
    model = core.read_model(Path(directory) / "model.xml")
    for node in model.get_ordered_ops():
        node.get_rt_info()["affinity"] = plan["affinity"][node.get_friendly_name()]
    return core.compile_model(model, plan["target"], plan["properties"]), plan


def run(directory: str | os.PathLike[str], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Infer once: input name → array in, output name → array out."""
    compiled, plan = load(directory)
    results = compiled([np.asarray(inputs[name]) for name in plan["inputs"]])
    return {name: np.array(results[index]) for index, name in enumerate(plan["outputs"])}


def main() -> None:
    """Run on the inputs of the first argument; write the outputs to the second."""
    here = Path(__file__).parent
    outputs = run(here, np.load(sys.argv[1] if len(sys.argv) > 1 else here / "inputs.npz"))
    for name, value in outputs.items():
        print(name, value.shape, value.dtype, value.ravel()[:5])
    if len(sys.argv) > 2:
        np.savez(sys.argv[2], **outputs)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
