"""Profile: one placement of one model, measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.backend.bound import bind
from hetero_lab.errors import ArgumentError, MeasurementError, shorten, warn
from hetero_lab.experiments.measure.trial import trial_of
from hetero_lab.experiments.measure.workers.process import WorkerError, WorkerProcess
from hetero_lab.experiments.measure.workers.requests import MeasureProfile
from hetero_lab.experiments.measure.workers.set_up import write_set_up
from hetero_lab.experiments.profile.measure import ProfileOptions, measure_profile
from hetero_lab.experiments.results.profile.result import Profile, profile_from
from hetero_lab.model.language import Scenario
from hetero_lab.model.read import Source
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.runtime.runners import HETERO, Execution, inputs_for
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.tables import scratch_directory

if TYPE_CHECKING:
    import openvino as ov


def profile(
    model: Source,
    placement: PlacementLike,
    *,
    executor: str = HETERO,
    requests: int = 1,
    iterations: int | None = None,
    warmup: int | None = None,
    budget_s: float | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    scenario: Scenario | None = None,
    counters: bool = True,
    reference: bool = True,
    isolate: bool = False,
    timeout_s: float = 600.0,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Profile:
    """Compile a placement, measure its latency, read its counters, compare its outputs.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    executor
        ``"hetero"``, or ``"parallel"`` for :class:`hetero_lab.ParallelExecutor`, which tells when
        each subgraph ran.
    requests
        With more than one, the time between results with that many in flight is measured
        besides the latency, next to that of HETERO with and without
        ``EXCLUSIVE_ASYNC_REQUESTS``: ``profile.tables["throughput"]``.
    iterations
        Timed inferences, in turns of 10 with 2 discarded before each; 100 if neither this nor
        ``budget_s`` is given.
    warmup
        Inferences before the first turn; ``None`` runs until two turns agree within 5 %.
    budget_s
        Wall time after which no further turn is begun.
    inputs
        Mapping by name, sequence, .npz file or callable; ``None`` generates them from ``seed``.
    scenario
        What a language model is asked to generate, greedily and with its real states:
        ``profile.generation`` has the times and the tokens, and the latency is the time per
        further token. Turns are then generations, as many as ``iterations`` further tokens take,
        three at least. ``inputs`` is the prompt, ids of shape ``[batch, prompt_tokens]``.
    counters, reference
        Whether to compile a second time for the counters, and to compare the outputs with a
        single-device f32 reference.
    isolate, timeout_s
        Whether to do it in a process of its own, ended after ``timeout_s``; worth it for new
        drivers, whose crash would take the notebook with it.
    progress
        Show a bar if it takes more than two seconds.

    Returns
    -------
    Profile
        After Ctrl-C in the timing or later: what is there, with ``interrupted`` set.

    Raises
    ------
    ArgumentError
        Anything about the arguments, before something is compiled.
    CompileError
        The runtime refused the placement.
    MeasurementError
        With ``isolate``: the process crashed, hung or could not compile the placement.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> hl.profile(model, "HETERO:ACC,CPU", iterations=20, progress=False)
    digits_inception takes ... µs on HETERO:ACC,CPU; outputs ...
    Partition:  2 subgraphs, 1 boundary, ... B (observed)
    ...
    """
    execution = Execution(executor, requests, scenario)
    iterations, warmup = _check_counts(iterations, warmup, budget_s)
    watch = Stopwatch.start(budget_s)
    placed = resolve(bind(model, core), placement)
    execution.check(placed)
    arrays = inputs_for(placed.bound, inputs, seed, scenario)
    options = ProfileOptions(execution, iterations, warmup, budget_s, counters, reference)
    if isolate:
        return _isolated(placed, arrays, options, timeout_s)
    return measure_profile(placed, arrays, options, watch, progress=progress)


def _isolated(
    placed: BoundPlacement, arrays: list[np.ndarray], options: ProfileOptions, timeout_s: float
) -> Profile:
    """Profile in a process of its own: a driver's crash or hang costs no notebook.

    Raises
    ------
    MeasurementError
        The worker crashed, hung, ran out of memory or could not compile the placement.
    """
    trial = trial_of(placed, placed.label, "model", options.execution)
    with scratch_directory() as directory:
        set_up = write_set_up(directory, {"model": placed.bound}, {"model": arrays}, 0)
        try:
            worker = WorkerProcess(set_up)
            try:
                asked = MeasureProfile(trial=trial, options=options)
                data = worker.ask(asked, timeout_s=timeout_s)
                for text in worker.warnings:
                    warn(text)
            finally:
                worker.close()
        except WorkerError as error:
            raise MeasurementError(
                f"The placement {shorten(placed.label)} could not be profiled in a process of "
                f"its own: {error}"
            ) from error
    return replace(profile_from(data, "worker"), model_fingerprint=placed.bound.fingerprint)


def _check_counts(
    iterations: int | None, warmup: int | None, budget_s: float | None
) -> tuple[int | None, int | None]:
    for name, value, least in (("iterations", iterations, 1), ("warmup", warmup, 0)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ArgumentError(f"{name}= is a whole number of at least {least}, not {value!r}.")
    if iterations is None and budget_s is None:
        iterations = 100
    return iterations, warmup
