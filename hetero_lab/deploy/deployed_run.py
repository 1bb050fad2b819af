"""Run a deployed directory here: in a process that needs openvino and numpy alone, or in this one.

Turns within a process agree far better than processes do, so a process is one value here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from hetero_lab.clock import now
from hetero_lab.deploy import run_frozen
from hetero_lab.devices.core import BoundModel
from hetero_lab.devices.devices import peak_bytes, reset_peak
from hetero_lab.errors import (
    CompileError,
    MeasurementError,
    StoredFileError,
    last_line,
    shorten,
)
from hetero_lab.intervals import Latency, turn_level
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.processes import crash_of, run_child
from hetero_lab.results.environment import OtherWork, current_environment, is_busy
from hetero_lab.results.profile_result import Profile
from hetero_lab.runtime.compiled import CompiledPlacement
from hetero_lab.runtime.executors import (
    CompiledSession,
    Runner,
    run_turn,
    time_once,
    turn_lengths,
    warm_up,
)
from hetero_lab.runtime.inputs import Inputs, input_arrays
from hetero_lab.runtime.placed_model import load, read_npz
from hetero_lab.runtime.reference import Agreement, compare
from hetero_lab.runtime.stored_placement import (
    MODEL_FILE,
    StoredPlacement,
    read_stored,
    standalone,
)
from hetero_lab.tables import scratch_directory

PROGRAM = "run.py"
TURNS, _EACH_S = 10, 3.0  # of one process; more would not replace another process
_TIMEOUT_S = 900.0  # of a process that compiles a model and its reference: large ones take minutes
_MESSAGE_END = 400  # characters of what a process wrote, for the last lines of a traceback
REFERENCE = "reference"  # the step of a run that compiles the reference
QUIET_S = 2.0  # the longest wait for a quiet machine

Reference: TypeAlias = tuple[str, Mapping[str, Any]]  # a device and its properties


class ObservedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of ``run.py --observe``, up to the ``step`` that failed with an ``error``."""

    openvino_version: str = ""
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
    python: str = sys.executable,
    turns: int = TURNS,
) -> ObservedRun:
    """Run a deployed directory with an interpreter that has openvino and numpy.

    Placement and reference have so many turns; fewer if three seconds end, at least three.
    MeasurementError, if the interpreter does not start or has no openvino.
    """
    options = {"turns": turns, "budget_s": _EACH_S, "reference": reference}
    others = OtherWork()
    with scratch_directory() as scratch:
        (scratch / PROGRAM).write_text(standalone(run_frozen), encoding="utf-8")
        # -P: openvino must not import the modules that lie beside the program.
        command = [python, "-P", str(scratch / PROGRAM), "--observe"]
        arguments = [os.path.abspath(directory), str(scratch), json.dumps(options)]
        try:
            child = run_child([*command, *arguments], timeout_s=_TIMEOUT_S, cwd=scratch)
        except subprocess.TimeoutExpired:
            return ObservedRun(step="compile", error=f"no end after {_TIMEOUT_S:.0f} s")
        except OSError as error:
            raise MeasurementError(f"{shorten(python)} does not start: {error}") from error
        if crash := crash_of(child.returncode):
            return ObservedRun(step="compile", error=f"died of {crash}")
        if child.returncode:
            last = child.stderr.strip()[-_MESSAGE_END:]
            raise MeasurementError(f"The deployed program cannot run: {last}")
        findings = json.loads((scratch / "observed.json").read_text(encoding="utf-8"))
        outputs = run_frozen.by_request(read_npz(scratch / "outputs.npz"), "out")
    findings["foreign_cpus"] = others.cpus()
    return msgspec.structs.replace(msgspec.convert(findings, ObservedRun), outputs=outputs)


def disturbance(runs: Sequence[ObservedRun]) -> str:
    """Say how many CPUs other processes kept busy; nothing if that matters little."""
    cpus, n_cpus = max(run.foreign_cpus for run in runs), runs[0].n_cpus or os.cpu_count() or 1
    busy = is_busy(cpus, n_cpus)
    return f"other processes kept {cpus:.1f} of {n_cpus} CPUs busy" if busy else ""


def expected_outputs(directory: str | os.PathLike[str]) -> list[list[np.ndarray]]:
    """Return the outputs that a deployed directory promises."""
    path = Path(directory) / "requests.npz"
    try:
        return run_frozen.by_request(read_npz(path, "out"), "out")
    except (OSError, ValueError) as error:
        raise StoredFileError(f"{shorten(os.fspath(path))} cannot be read: {error}") from error


def compare_requests(
    outputs: Sequence[Sequence[np.ndarray]],
    expected: Sequence[Sequence[np.ndarray]],
    names: Sequence[str],
    precision: str = "f32",
    graph: OpGraph | None = None,
) -> list[Agreement]:
    """Compare the outputs of each request with those promised; ``names`` may be more than these."""

    def by_name(arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, arrays, strict=False))

    pairs = zip(map(by_name, outputs), map(by_name, expected), strict=True)
    return [agreement for pair in pairs for agreement in compare(*pair, precision, graph)]


def profile_frozen(
    bound: BoundModel,
    directory: str | os.PathLike[str],
    *,
    inputs: Inputs | None = None,
    iterations: int = 100,
) -> Profile:
    """Measure a directory of :func:`hetero_lab.freeze` with the code that lies in it.

    ``bound`` is the model that was frozen: its f32 outputs are the reference. There are no
    counters. StoredFileError, if the directory is not a frozen placement of this model;
    CompileError, if the runtime refuses it, for instance because a device is not here.
    """
    frozen = _read(directory, bound)
    bound_placement = BoundPlacement(bound, frozen.placement(bound.graph))
    arrays = input_arrays(bound, inputs)
    reset_peak()
    started = now()
    try:
        # The model is read again within this time.
        compiled, _ = load(directory)
    except ValueError as error:
        raise StoredFileError(f"{shorten(os.fspath(directory))} was changed: {error}") from error
    except RuntimeError as error:
        raise CompileError(
            f"The runtime cannot compile the frozen placement {shorten(os.fspath(directory))} on "
            f"{frozen.target}: {last_line(error)}."
        ) from error
    compile_ms = (now() - started) * 1e3
    partition, as_predicted = partition_of(bound_placement), None
    # Of a split the runtime is not asked: its Core is gone with the code that compiled it, and
    # OpenVINO 2026.4 crashes when a model that has lost its Core is exported.
    if bound_placement.direct:
        partition, as_predicted = replace(partition, observed=True), True
    whole = CompiledPlacement(bound_placement, compiled, partition, as_predicted, compile_ms)
    session = CompiledSession(whole)
    session.give(arrays)
    runner = Runner(session, arrays)
    first_ms = time_once(runner.infer) / 1e3
    warm_up(runner.infer)
    turns = tuple(run_turn(runner.infer, timed=n) for n in turn_lengths(iterations))
    peak_rss_bytes = peak_bytes()  # before the comparison with the reference
    return Profile(
        label=bound_placement.label,
        model_fingerprint=bound.fingerprint,
        graph=bound.graph,
        affinity=bound_placement.affinity,
        latency=Latency(turns),
        partition=partition,
        as_predicted=as_predicted,
        counters=(),
        agreement=runner.compare(),
        compile_ms=compile_ms,
        first_inference_ms=first_ms,
        peak_rss_bytes=peak_rss_bytes,
        # It brings its own emulated devices along, whatever is registered here.
        environment=replace(
            current_environment(bound_placement.devices, bound.core),
            emulated=tuple(
                (device, internal.removeprefix(f"{device}_"))
                for device, (_, internal) in frozen.emulated.items()
            ),
        ),
    )


def _read(directory: str | os.PathLike[str], bound: BoundModel) -> StoredPlacement:
    name = shorten(os.fspath(directory))
    if not (Path(directory) / MODEL_FILE).is_file():
        raise StoredFileError(
            f"{name} is no frozen placement: it has no {MODEL_FILE}. "
            "hetero_lab.freeze(model, placement, directory) writes one."
        )
    stored = read_stored(directory)
    if stored.model_fingerprint != bound.fingerprint:
        raise StoredFileError(
            f"{name} was frozen from another model than {shorten(bound.graph.name)}, or from "
            "other weights or shapes. Freeze this model, or name the one that was frozen."
        )
    return stored
