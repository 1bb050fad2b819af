"""Run a deployed directory here, in a process of its own that needs openvino and numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from hetero_lab.deploy import run_frozen
from hetero_lab.errors import MeasurementError, StoredFileError, shorten
from hetero_lab.intervals import turn_level
from hetero_lab.processes import crash_of, run_child
from hetero_lab.results.environment import OtherWork
from hetero_lab.runtime.placed_model import read_npz
from hetero_lab.runtime.stored_placement import standalone
from hetero_lab.tables import scratch_directory

PROGRAM = "run.py"
TURNS, EACH_S = 10, 3.0  # of one process
_TIMEOUT_S = 900.0
_LAST_LINES = 400


Reference: TypeAlias = tuple[str, Mapping[str, Any]]  # a device and its properties


class ObservedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of ``run.py --observe``, up to the ``step`` that failed with an ``error``."""

    openvino_version: str = ""
    python_version: str = ""
    system: str = ""
    host: str = ""
    n_cpus: int = 0
    step: str = ""
    error: str = ""
    devices: dict[str, str] = {}
    execution_devices: list[str] = []
    header: str = ""
    turns_us: list[list[float]] = []
    reference_us: list[list[float]] = []
    outputs: list[list[np.ndarray]] = []
    foreign_cpus: float = 0.0  # kept busy by other processes meanwhile

    @property
    def ratio(self) -> float | None:
        """The latency over that of the reference; ``None`` if they were not measured."""
        if len(self.turns_us) < 2:
            return None
        ours, reference = (list(map(turn_level, t)) for t in (self.turns_us, self.reference_us))
        return float(np.exp(np.median(np.log(ours) - np.log(reference))))


def observe(
    directory: str | os.PathLike[str],
    *,
    reference: Reference | None = None,
    python: str | os.PathLike[str] = sys.executable,
    turns: int = TURNS,
    budget_s: float = EACH_S,
) -> ObservedRun:
    """Run a deployed directory with an interpreter that has openvino and numpy.

    Placement and reference have so many turns; fewer if the budget ends, at least three.
    MeasurementError, if the interpreter does not start or has no openvino.
    """
    options = {"turns": turns, "budget_s": budget_s, "reference": reference}
    others = OtherWork()
    with scratch_directory() as scratch:
        (scratch / PROGRAM).write_text(standalone(run_frozen), encoding="utf-8")
        # -P: openvino must not import the modules that lie beside the program.
        command = [os.fspath(python), "-P", os.fspath(scratch / PROGRAM), "--observe"]
        arguments = [os.path.abspath(directory), os.fspath(scratch), json.dumps(options)]
        try:
            done = run_child([*command, *arguments], timeout_s=_TIMEOUT_S, cwd=scratch)
        except subprocess.TimeoutExpired:
            return ObservedRun(step="compile", error=f"no end after {_TIMEOUT_S:.0f} s")
        except OSError as error:
            raise MeasurementError(
                f"{shorten(os.fspath(python))} does not start: {error}"
            ) from error
        if crash := crash_of(done.returncode):
            return ObservedRun(step="compile", error=f"died of {crash}")
        if done.returncode:
            last = done.stderr.strip()[-_LAST_LINES:]
            raise MeasurementError(f"The deployed program cannot run: {last}")
        seen = json.loads((scratch / "observed.json").read_text(encoding="utf-8"))
        outputs = run_frozen.by_request(read_npz(scratch / "outputs.npz"), "out")
    seen["foreign_cpus"] = others.cpus()
    return msgspec.structs.replace(msgspec.convert(seen, ObservedRun), outputs=outputs)


def expected_outputs(directory: str | os.PathLike[str]) -> list[list[np.ndarray]]:
    """Return the outputs that a deployed directory promises."""
    path = Path(directory) / "requests.npz"
    try:
        return run_frozen.by_request(read_npz(path, "out"), "out")
    except (OSError, ValueError) as error:
        raise StoredFileError(f"{shorten(os.fspath(path))} cannot be read: {error}") from error
