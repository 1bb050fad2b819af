"""Run a deployed directory here, in a process of its own that needs openvino and numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hetero_lab.backend.core import run_child
from hetero_lab.errors import MeasurementError, StoredFileError, shorten
from hetero_lab.experiments.deployment.contract import LatencyPromise
from hetero_lab.runtime.frozen_placement import PROGRAM
from hetero_lab.statistics import Noise, paired_ratio, turn_level
from hetero_lab.tables import scratch_directory

# The yardstick runs on one free core, so that a busy device does not slow it down. OpenVINO's own
# pinning could choose a busy core.
REFERENCE_DEVICE = "CPU"
REFERENCE_PROPERTIES: dict[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "INFERENCE_NUM_THREADS": 1,
    "ENABLE_CPU_PINNING": False,
}
TURNS, BUDGET_S = 30, 10.0
_TIMEOUT_S = 900.0
_LAST_LINES = 400


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

    def latency(self, noise: Noise) -> LatencyPromise | None:
        """Return the latency relative to the reference; ``None`` if it was not measured.

        ``noise`` is how much two compiles differ on the devices of both.
        """
        if len(self.turns_us) < 2:
            return None
        levels, reference = (list(map(turn_level, t)) for t in (self.turns_us, self.reference_us))
        ratio, low, high, _ = paired_ratio(levels, reference, noise)
        return LatencyPromise(
            reference_device=REFERENCE_DEVICE,
            reference_properties=dict(REFERENCE_PROPERTIES),
            median_us=float(np.median(levels)),
            reference_us=float(np.median(reference)),
            ratio=ratio,
            ratio_ci95_low=low,
            ratio_ci95_high=high,
        )


def observe(
    directory: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] = sys.executable,
    turns: int = TURNS,
    budget_s: float = BUDGET_S,
) -> ObservedRun:
    """Run a deployed directory with an interpreter that has openvino and numpy.

    Placement and reference have so many turns; fewer if the budget ends, at least three.
    MeasurementError, if the interpreter does not start or has no openvino.
    """
    options = {
        "turns": turns,
        "budget_s": budget_s,
        "reference": [REFERENCE_DEVICE, REFERENCE_PROPERTIES],
    }
    with scratch_directory() as scratch:
        # -P: openvino must not import the modules that lie beside the program.
        command = [os.fspath(python), "-P", os.fspath(PROGRAM), "--observe"]
        arguments = [os.path.abspath(directory), os.fspath(scratch), json.dumps(options)]
        try:
            done = run_child([*command, *arguments], timeout_s=_TIMEOUT_S, cwd=scratch)
        except subprocess.TimeoutExpired:
            return ObservedRun(step="compile", error=f"no end after {_TIMEOUT_S:.0f} s")
        except OSError as error:
            raise MeasurementError(
                f"{shorten(os.fspath(python))} does not start: {error}"
            ) from error
        if done.returncode < 0:
            return ObservedRun(step="compile", error=f"died of signal {-done.returncode}")
        if done.returncode:
            last = done.stderr.strip()[-_LAST_LINES:]
            raise MeasurementError(f"The deployed program cannot run: {last}")
        seen = json.loads((scratch / "observed.json").read_text(encoding="utf-8"))
        with np.load(scratch / "outputs.npz") as file:
            outputs = stored_outputs({key: file[key] for key in file.files})
    return msgspec.structs.replace(msgspec.convert(seen, ObservedRun), outputs=outputs)


def stored_outputs(arrays: dict[str, Any]) -> list[list[np.ndarray]]:
    """Return the outputs of each request from arrays called ``out0.0``, ``out0.1``, ``out1.0``…"""
    names = [key for key in arrays if key.startswith("out")]
    keys = {tuple(map(int, name.removeprefix("out").split("."))): name for name in names}
    requests = groupby(sorted(keys), itemgetter(0))
    return [[arrays[keys[key]] for key in request] for _, request in requests]


def expected_outputs(directory: str | os.PathLike[str]) -> list[list[np.ndarray]]:
    """Return the outputs that a deployed directory promises."""
    path = Path(directory) / "requests.npz"
    try:
        with np.load(path) as file:
            return stored_outputs({key: file[key] for key in file.files if key[:3] == "out"})
    except (OSError, ValueError, KeyError) as error:
        raise StoredFileError(f"{shorten(os.fspath(path))} cannot be read: {error}") from error
