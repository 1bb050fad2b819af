"""A symptom that openvino and numpy alone show: model, inputs, script, and the text of an issue."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.debug import show_fault
from hetero_lab.devices.core import storable
from hetero_lab.model.read import save
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.results.environment import Environment
from hetero_lab.tables import make_directory, move, scratch_directory, write_json, write_text

if TYPE_CHECKING:
    import openvino as ov

FAULT_FILES = ["model.xml", "model.bin", "inputs.npz", "README.md", "show_fault.py", "fault.json"]
_TIMEOUT_S = 100.0  # of each side; bisect gives both of them 300 s
_SHOWN = 20  # ops in the text: more are no reading


# What PlacedRuns says of a run without outputs: the devices, then the worker's status.
_FAILED = re.compile(r"[^:]*: (crashed|timed out|out of memory)")
# SIGKILL is the only trace of the kernel's out-of-memory killer.
_OUT_OF_MEMORY = re.compile(
    r"out.of.(\w+.)?memory|bad_alloc|failed to allocate|crashed \(signal 9\)", re.I
)


class Symptom(StrEnum):
    """What a user sees of a fault, in the order of severity."""

    OK = "ok"
    SLOWER = "slower"
    WRONG = "wrong"
    NAN = "NaN"
    REFUSED = "refused"
    MEMORY = "out of memory"
    HANG = "hang"
    CRASH = "crash"

    @property
    def has_outputs(self) -> bool:
        """Whether the device answers."""
        return self in (Symptom.OK, Symptom.SLOWER, Symptom.WRONG, Symptom.NAN)

    @property
    def title(self) -> str:
        return {"wrong": "wrong numbers", "hang": "no answer"}.get(self, self.value)


def failure(text: str) -> Symptom:
    """Return the symptom of a run without outputs, from the text of its CompileError."""
    if _OUT_OF_MEMORY.search(text):
        return Symptom.MEMORY
    match = _FAILED.match(text)
    how = match[1] if match else ""
    return {"crashed": Symptom.CRASH, "timed out": Symptom.HANG}.get(how, Symptom.REFUSED)


@dataclass(frozen=True)
class CompileCall:
    """A call of ``compile_model``; ``affinities`` are those of all nodes, for HETERO."""

    device: str
    properties: Mapping[str, Any]
    affinities: Mapping[str, str] | None = None

    @classmethod
    def of(cls, bound: BoundPlacement) -> CompileCall:
        return cls(*bound.compile_call, None if bound.direct else dict(bound.affinity))

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", storable(self.properties))


@dataclass(frozen=True, kw_only=True)
class Reproducer:
    """Everything that a script needs to show a symptom.

    ``inputs`` are the model's inputs in its order, of one inference or of several in a row.
    ``right`` is the side to compare with; without one, the ``wrong`` side runs alone. ``ops`` are
    pairs of name and type, ``outputs`` the names of the outputs, ``why`` says what the model holds,
    ``settings`` which settings are to blame.
    """

    symptom: Symptom
    told: str
    model: ov.Model
    inputs: Sequence[np.ndarray]
    wrong: CompileCall
    right: CompileCall | None
    ops: Sequence[tuple[str, str]]
    outputs: Sequence[str]
    why: str
    environment: Environment
    plugins: Mapping[str, tuple[str, str]]
    settings: str = ""
    error: float = 1.0
    ratio: float = 1.0

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Write the files, each whole or not at all; OutputPathError if that is not possible."""
        place = make_directory(directory)
        arrays: dict[str, Any] = {f"in{index}": array for index, array in enumerate(self.inputs)}
        fault = {
            "symptom": self.symptom.value,
            "right": asdict(self.right) if self.right else None,
            "wrong": asdict(self.wrong),
            "ops": [f"{op} ({kind})" for op, kind in self.ops],
            "outputs": list(self.outputs),
            # JSON has no infinity, and an infinite error is as bad as any.
            "relative_error": min(self.error, 1.0) if isfinite(self.error) else 1.0,
            "ratio": self.ratio if isfinite(self.ratio) else 1.0,
            "told": self.told,
            "timeout_s": _TIMEOUT_S,
            "openvino_version": self.environment.openvino_version,
            "emulated": {device: list(plugin) for device, plugin in self.plugins.items()},
        }
        with scratch_directory(place, ".hetero_lab-") as draft:
            save(self.model, draft / "model.xml")
            np.savez(draft / "inputs.npz", **arrays)
            write_json(draft / "fault.json", fault)
            write_text(draft / "README.md", self.report())
            shutil.copyfile(show_fault.__file__, draft / "show_fault.py")
            for file in sorted(draft.iterdir()):
                move(file, place / file.name)

    def report(self) -> str:
        """Return the text in the form of OpenVINO's bug report."""
        here, device = self.environment, self.wrong.device
        kinds = [kind for _, kind in self.ops]
        sorts = " + ".join(kinds[:6]) + (" + …" if len(kinds) > 6 else "") or "A model"
        against = f", and on {self.right.device} to compare" if self.right else ""
        if against and self.symptom in (Symptom.WRONG, Symptom.NAN):
            against += ", in f32 and with every tensor as an output, so that no ops are fused"
        rows = [f"| `{op}` | {kind} |" for op, kind in self.ops[:_SHOWN]]
        if len(self.ops) > _SHOWN:
            rows.append(f"| … {len(self.ops) - _SHOWN} more | |")
        table = "\n".join(["| op | type |", "| --- | --- |", *rows])
        sections = {
            "OpenVINO Version": here.openvino_version,
            "Operating System": f"{here.system}, Python {here.python_version}",
            "Device used for inference": "\n".join(f"- {n}: {full}" for n, full in here.devices),
            "Framework": "None: OpenVINO IR and numpy.",
            "Model used": f"`model.xml`, beside this text. {self.why}\n\n{table}",
            "Issue description": f"{self.told}\n\n"
            + f"{self.settings} Properties of {device}: ".lstrip()
            + f"`{self.wrong.properties}`.",
            "Step-by-step reproduction": f"`python show_fault.py` runs `model.xml` on {device} "
            f"with the inputs in `inputs.npz`{against}. It needs openvino and numpy.",
            "Relevant log output": "`python show_fault.py` prints it.",
        }
        title = f"# {sorts} on {device}: {self.symptom.title}"
        return "\n\n".join([title, *(f"### {name}\n\n{t}" for name, t in sections.items()), ""])
