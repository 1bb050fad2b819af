"""Deploy a machine: each model frozen with its contract, and a program that runs all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_lab.deploy import machine_file
from hetero_lab.deploy.contract import check_vacant
from hetero_lab.deploy.freeze import freeze_placed
from hetero_lab.devices.core import emulated_devices
from hetero_lab.errors import warn
from hetero_lab.fetch import file_digest
from hetero_lab.interop.nearest_recipe import recipe_for
from hetero_lab.machine import run_machine
from hetero_lab.machine.demand import Demand
from hetero_lab.machine.ways import Way
from hetero_lab.runtime.stored_placement import standalone
from hetero_lab.tables import write_json, write_text


def deploy(
    directory: str | os.PathLike[str],
    ways: Mapping[str, Way],
    demands: Mapping[str, Demand],
    *,
    processes: int | None,
    tolerance: float | None,
) -> Path:
    """Freeze models on their ways; nothing is written where one of the directories is refused."""
    target, models = Path(directory), dict[str, dict[str, Any]]()
    for name, way in ways.items():
        check_vacant(target / name, way.placed.bound.model)
    for name, way in ways.items():
        freeze_placed(way.placed, target / name, tolerance=tolerance)
        keys = "requests", "rate_per_s", "deadline_ms"
        models[name] = {"way": way.label, **{key: getattr(demands[name], key) for key in keys}}
    _write_for_server(target, ways, models)
    program = target / machine_file.PROGRAM
    write_text(program, standalone(run_machine))
    about = {**machine_file.ABOUT, "processes": processes, "program": file_digest(program)}
    write_json(target / machine_file.FILE, {**about, "models": models})
    return target


def _write_for_server(
    target: Path, ways: Mapping[str, Way], models: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the configuration for Model Server, with a note of what it cannot carry over."""
    configs, lost = list[dict[str, Any]](), list[str]()
    for name, way in ways.items():
        placed = way.placed
        remarks, brace, config = recipe_for(placed, "ovms").partition("{")
        (known,) = json.loads(brace + config)["model_config_list"]
        own = {"name": name, "base_path": f"/models/{name}", "nireq": models[name]["requests"]}
        configs.append({"config": {**known["config"], **own}})
        lost += [f"{name}: {remark[3:]}" for remark in remarks.splitlines()[:-1]]
        emulated = [d for d in emulated_devices(placed.core) if d in placed.devices]
        lost += [f"{name}: {device} is emulated, and not there." for device in emulated]
    for loss in lost:
        warn(f"OpenVINO Model Server cannot run the plan as it is. {loss}")
    command = [
        "docker run --rm -p 9000:9000",
        *(f'-v "$PWD/{name}:/models/{name}/1:ro"' for name in ways),
        f'-v "$PWD/{machine_file.SERVER_FILE}:/config.json:ro"',
        "openvino/model_server --config_path /config.json --port 9000",
    ]
    write_json(target / machine_file.SERVER_FILE, {"model_config_list": configs})
    note = [" \\\n    ".join(command), "", *lost, "All models are in one process there.", ""]
    write_text(target / machine_file.SERVER_NOTE, "\n".join(note))
