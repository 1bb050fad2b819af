"""Write a placement as a directory that runs by itself: model, affinities, properties, program."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetero_lab.backend.core import runtime_version
from hetero_lab.backend.emulation import emulated_devices, plugin_of
from hetero_lab.model.read import input_name, save
from hetero_lab.placement.partition import predict
from hetero_lab.runtime import run_frozen
from hetero_lab.runtime.compiled import CompiledPlacement, labelled_clone
from hetero_lab.tables import SCHEMA_VERSION, write_json

PROGRAM = Path(run_frozen.__file__)


def write_frozen(
    target: Path, compiled: CompiledPlacement, requests: Sequence[list[np.ndarray]]
) -> None:
    """Write the files of a frozen placement into an empty directory.

    Parameters
    ----------
    compiled
        What is frozen; its outputs are stored beside the inputs.
    requests
        Inputs in the model's order, at least one.
    """
    placed, bound = compiled.placed, compiled.placed.bound
    model, _ = labelled_clone(placed, predict(placed.graph, placed.affinity))
    compile_on, properties = placed.compile_call
    specs = emulated_devices(placed.core)
    # Saving drops the labels from the model, so they stand in placement.json.
    affinity = {
        node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str)
        for node in model.get_ordered_ops()
    }
    save(model, target / "model.xml")
    names = [input_name(port) for port in bound.model.inputs]
    write_json(
        target / "placement.json",
        {
            "kind": "frozen placement",
            "schema_version": SCHEMA_VERSION,
            "label": placed.label,
            "openvino_version": runtime_version(),
            "model_fingerprint": bound.fingerprint,
            "target": compile_on,
            "properties": _plain(properties),
            "inputs": names,
            "outputs": list(bound.output_names),
            "emulated": {d: list(plugin_of(specs[d])) for d in placed.devices if d in specs},
            "affinity": affinity,
        },
    )
    first: dict[str, Any] = dict(zip(names, requests[0], strict=True))
    np.savez(target / "inputs.npz", **first)
    every: dict[str, Any] = {}
    for number, arrays in enumerate(requests):
        outputs = compiled(list(arrays)).values()
        every |= {f"in{number}.{index}": array for index, array in enumerate(arrays)}
        every |= {f"out{number}.{index}": array for index, array in enumerate(outputs)}
    np.savez(target / "requests.npz", **every)
    shutil.copyfile(PROGRAM, target / "run.py")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value if isinstance(value, bool | int | float | str) else str(value)
