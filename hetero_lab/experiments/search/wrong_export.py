"""Files of a search: what was found, and what shows each fault without hetero_lab."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.model.read import save
from hetero_lab.runtime import show_fault
from hetero_lab.tables import (
    SCHEMA_VERSION,
    make_directory,
    scratch_directory,
    write_csv,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    from hetero_lab.experiments.search.wrong import Wrong, WrongSet
    from hetero_lab.placement.placement import Placement


FILE_NAME, MENDED, GIVEN = "wrong.json", "affinity.json", "given.json"
_FAULT_FILES = (
    "model.xml", "model.bin", "inputs.npz", "README.md", "show_fault.py", "fault.json",
)  # fmt: skip


def write_wrong(wrong: Wrong, directory: str | os.PathLike[str]) -> None:
    """Write the affinities, the tables, a directory for each set of wrong ops, and wrong.json."""
    target = make_directory(directory)
    wrong.affinity.to_json(target / MENDED)
    wrong.given.affinity.to_json(target / GIVEN)
    write_json(target / "devices.json", dict(wrong.affinity))
    write_csv(target / "errors.csv", wrong.errors)
    write_csv(target / "culprits.csv", wrong.culprits)
    for number_, found in enumerate(wrong.sets, start=1):
        place = make_directory(target / f"fault_{number_}")
        with scratch_directory(place, ".hetero_lab-") as draft:
            _write_fault(draft, wrong, found)
            for file in sorted(draft.iterdir()):
                os.replace(file, place / file.name)
    write_json(target / FILE_NAME, _to_json(wrong))
    _remove_faults(target, after=len(wrong.sets))


def _remove_faults(target: Path, after: int) -> None:
    """Remove the faults of an earlier export into the same directory, but no other files."""
    for place in target.glob("fault_*"):
        number = place.name.removeprefix("fault_")
        if number.isdecimal() and int(number) > after and (place / "fault.json").is_file():
            for name in _FAULT_FILES:
                (place / name).unlink(missing_ok=True)
            if not any(place.iterdir()):
                place.rmdir()


def _to_json(wrong: Wrong) -> dict[str, Any]:
    sets = [
        {
            "device": found.device,
            "ops": list(found.ops),
            "error": _plain(found.error),
            "damage": _plain(found.damage),
            "minimal": found.minimal,
            "makers": list(found.makers),
            "untried": list(found.untried),
            "refusal": found.refusal,
        }
        for found in wrong.sets
    ]
    return {
        "kind": "wrong",
        "schema_version": SCHEMA_VERSION,
        "found": wrong.kind,
        "verdict": wrong.verdict,
        "proven": wrong.proven,
        "complete": wrong.complete,
        "interrupted": wrong.interrupted,
        "n_compiles": wrong.n_compiles,
        "elapsed_s": wrong.elapsed_s,
        "trusted": wrong.trusted,
        "before": _plain(wrong.before),
        "after": _plain(wrong.after),
        "given": _placement(wrong.given),
        "mended": _placement(wrong.placement),
        "device_properties": {d: dict(own) for d, own in wrong.device_properties.items()},
        "precisions": dict(wrong.precisions),
        "plugins": {device: list(plugin) for device, plugin in wrong.plugins.items()},
        "notes": list(wrong.notes),
        "sets": sets,
        "op_errors": [
            {name: _plain(value) for name, value in asdict(error).items()}
            for error in wrong.op_errors
        ],
        "environment": asdict(wrong.environment),
    }


def _placement(placement: Placement) -> dict[str, Any]:
    own = {device: dict(properties) for device, properties in placement.device_properties.items()}
    return {"label": placement.label, "device_properties": own, "direct": placement.direct}


def _plain(value: Any) -> Any:
    """Return what JSON can hold: it knows neither infinity nor NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _write_fault(draft: Path, wrong: Wrong, found: WrongSet) -> None:
    save(found.model, draft / "model.xml")
    arrays: dict[str, Any] = {f"in{index}": array for index, array in enumerate(found.inputs)}
    np.savez(draft / "inputs.npz", **arrays)
    sides = {
        "right": {"device": wrong.trusted, "properties": {"INFERENCE_PRECISION_HINT": "f32"}},
        "wrong": {
            "device": found.device,
            "properties": dict(wrong.device_properties[found.device]),
        },
    }
    types = {error.op: error.op_type for error in wrong.op_errors}
    write_json(
        draft / "fault.json",
        {
            **sides,
            "ops": [f"{op} ({types[op]})" for op in found.ops],
            "outputs": list(found.makers),
            # JSON knows no infinity; one is as bad as any error.
            "relative_error": min(found.error, 1.0) if math.isfinite(found.error) else 1.0,
            "refusal": found.refusal,
            "openvino_version": wrong.environment.openvino_version,
            "emulated": {
                device: list(plugin)
                for device, plugin in wrong.plugins.items()
                if device in (found.device, wrong.trusted)
            },
        },
    )
    write_text(draft / "README.md", _report(wrong, found, types))
    shutil.copyfile(show_fault.__file__, draft / "show_fault.py")


def _report(wrong: Wrong, found: WrongSet, types: dict[str, str]) -> str:
    devices = dict(wrong.environment.devices)
    what = "refused, or the device crashes" if found.refusal else "wrong numbers"
    lines = [
        f"# {_sorts(found.ops, types)} on {found.device}: {what}",
        "",
        f"`python show_fault.py` runs `model.xml` on {found.device} and on {wrong.trusted} with "
        f"the same inputs and compares the outputs; it needs openvino and numpy. {_needed(found)}",
        "",
        f"- {found.device} says: {found.refusal}"
        if found.refusal
        else f"- relative error of the outputs (Euclidean norm): {found.error:.2g}",
        f"- OpenVINO {wrong.environment.openvino_version}, {wrong.environment.system}, Python "
        f"{wrong.environment.python_version}",
        *(f"- {device}: {devices[device]}" for device in (found.device, wrong.trusted)),
        f"- properties of {found.device}: `{dict(wrong.device_properties[found.device])}`; "
        f"executed in {wrong.precisions[found.device]}",
        "",
        "| op | type |",
        "| --- | --- |",
        *(f"| `{op}` | {types[op]} |" for op in found.ops),
        "",
    ]
    return "\n".join(lines)


def _needed(found: WrongSet) -> str:
    """Say what is known of the ops, and no more."""
    if found.untried:
        names = ", ".join(f"`{op}`" for op in found.untried)
        return (
            "It is not known whether all of its ops are needed: without "
            f"{names}, {found.device} refuses to run the others."
        )
    if not found.minimal:
        return "It is not known whether all of its ops are needed: the search ended before."
    if len(found.ops) == 1:
        return "The model holds the op in question."
    bad, good = ("refused", "accepted") if found.refusal else ("wrong", "right")
    return (
        f"The model holds the ops that are {bad} only together: without any one of them, the "
        f"others are {good}."
    )


def _sorts(ops: Sequence[str], types: dict[str, str]) -> str:
    return " + ".join(types[op] for op in ops[:6]) + (" + …" if len(ops) > 6 else "")
