"""Run a frozen placement as it lies there and measure it like any other."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from hetero_lab.clock import now
from hetero_lab.devices.core import BoundModel
from hetero_lab.devices.devices import peak_bytes, reset_peak
from hetero_lab.errors import CompileError, StoredFileError, last_line, shorten
from hetero_lab.intervals import Latency
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.results.environment import current_environment
from hetero_lab.results.profile_result import Profile
from hetero_lab.runtime.compiled import CompiledPlacement
from hetero_lab.runtime.inputs import Inputs, given_or_generated
from hetero_lab.runtime.placed_model import load
from hetero_lab.runtime.runners import (
    CompiledSession,
    Runner,
    run_turn,
    time_once,
    turn_lengths,
    warm_up,
)
from hetero_lab.runtime.stored_placement import MODEL_FILE, StoredPlacement, read_stored


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
    placed = BoundPlacement(bound, frozen.placement(bound.graph))
    arrays = given_or_generated(bound, inputs)
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
    partition, as_predicted = partition_of(placed), None
    # Of a split the runtime is not asked: its Core is gone with the code that compiled it, and
    # OpenVINO 2026.4 crashes when a model that has lost its Core is exported.
    if placed.direct:
        partition, as_predicted = replace(partition, observed=True), True
    whole = CompiledPlacement(placed, compiled, partition, as_predicted, compile_ms)
    session = CompiledSession(whole)
    session.give(arrays)
    runner = Runner(session, arrays)
    first_ms = time_once(runner.infer) / 1e3
    warm_up(runner.infer)
    samples = [run_turn(runner.infer, timed=n) for n in turn_lengths(iterations)]
    peak_rss_bytes = peak_bytes()
    return Profile(
        label=placed.label,
        model_fingerprint=bound.fingerprint,
        graph=bound.graph,
        affinity=placed.affinity,
        latency=Latency(tuple(samples)),
        partition=partition,
        as_predicted=as_predicted,
        counters=(),
        agreement=runner.compare(),
        compile_ms=compile_ms,
        first_inference_ms=first_ms,
        peak_rss_bytes=peak_rss_bytes,
        # It brings its own emulated devices along, whatever is registered here.
        environment=replace(
            current_environment(placed.devices, bound.core),
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
