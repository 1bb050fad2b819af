"""Measure one placement: latency, throughput, counters, agreement with the reference."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.properties import check_properties
from hetero_lab.errors import MeasurementError, PropertyError, warn
from hetero_lab.experiments.measure.environment import current_environment
from hetero_lab.experiments.results.profile.data import ProfileData, Throughput
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.model.language import Scenario
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.progress import Progress
from hetero_lab.runtime import peak_memory
from hetero_lab.runtime.compiled import inference_errors
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.generation import TOKEN_IDS, Generation
from hetero_lab.runtime.reference import Agreement
from hetero_lab.runtime.runners import (
    HETERO,
    PARALLEL,
    Execution,
    Runner,
    TurnTimes,
    compare_run,
    measure_counters,
    open_runner,
)
from hetero_lab.runtime.timing import (
    TIMED_PER_TURN,
    Stopwatch,
    latency_of,
    run_turn,
    time_once,
    turns,
    warm_up,
)
from hetero_lab.statistics import Latency

if TYPE_CHECKING:
    import openvino as ov

_EXCLUSIVE = "EXCLUSIVE_ASYNC_REQUESTS"
_WARM_UP_S = 0.3
_ROUNDS = 10
_LEAST_GENERATIONS = 3


@dataclass(frozen=True)
class ProfileOptions:
    """How a placement is profiled; the fields are as the arguments of :func:`hetero_lab.profile`.

    ``iterations`` and ``budget_s`` are not both ``None``.
    """

    execution: Execution = field(default_factory=Execution)
    iterations: int | None = 100
    warmup: int | None = None
    budget_s: float | None = None
    counters: bool = True
    reference: bool = True


def measure_profile(
    placed: BoundPlacement,
    arrays: list[np.ndarray],
    options: ProfileOptions,
    watch: Stopwatch,
    *,
    progress: bool,
) -> Profile:
    """Measure a placement with inputs that are bound; errors as of :func:`hetero_lab.profile`."""
    bound = placed.bound
    peak_memory.reset_peak()
    execution, counters, reference = options.execution, options.counters, options.reference
    in_flight = execution.requests > 1
    stages = 2 + in_flight + counters + reference
    bar = Progress(f"compile {placed.label}", show=progress, total=stages, unit="steps")
    with bar, contextlib.closing(open_runner(placed, arrays, execution)) as runner:
        with inference_errors(placed.label):
            first_ms = time_once(runner.infer) / 1e3
        chosen = runner.chosen()
        _next(bar, "time")
        samples: list[tuple[float, ...]] = []
        first_us: list[tuple[float, ...]] = []
        interrupted = False
        try:
            for turn_us, first in _turns(runner, options, _left_s(watch, 1 + in_flight)):
                samples.append(turn_us)
                if first is not None:
                    first_us.append((first,))
                bar.note(f"{sum(map(len, samples))} inferences")
        except KeyboardInterrupt:
            if not samples:
                raise
            interrupted = True
            warn(f"Interrupted after {sum(map(len, samples))} inferences; they are kept.")
        peak_bytes = peak_memory.peak_bytes()  # not that of the counters and the reference
        _next(bar, "throughput" if in_flight else "counters" if counters else "reference")
        spans = runner.spans(len(samples[-1]))
        rows: tuple[Counter, ...] = ()
        agreement: tuple[Agreement, ...] = ()
        throughput: tuple[Throughput, ...] = ()
        try:
            if in_flight and not interrupted:
                n_inferences = options.iterations or _ROUNDS**2
                throughput = measure_throughput(
                    runner,
                    arrays,
                    execution,
                    rounds=min(_ROUNDS, max(1, n_inferences // TIMED_PER_TURN)),
                    budget_s=_left_s(watch),
                )
                spans = runner.spans((TIMED_PER_TURN + 1) * execution.requests)
                _next(bar, "counters" if counters else "reference")
            if counters:
                rows = _measure_counters(placed, arrays, execution)
                _next(bar, "reference")
            if reference:
                agreement = compare_run(runner, arrays, rows, execution.scenario)
                _next(bar, "done")
        except KeyboardInterrupt:
            interrupted = True
            warn("Interrupted after the timing; the latency is kept.")
    result = Profile(
        label=placed.label,
        model_fingerprint=bound.fingerprint,
        graph=bound.graph,
        affinity=placed.affinity,
        latency=latency_of(samples),
        partition=runner.partition,
        as_predicted=runner.as_predicted,
        counters=rows,
        agreement=agreement,
        compile_ms=runner.compile_ms,
        first_inference_ms=first_ms,
        peak_rss_bytes=peak_bytes,
        environment=current_environment(placed.devices, placed.core),
        interrupted=interrupted,
        executor=execution.executor,
        spans=spans,
        throughput=throughput,
        chosen=chosen,
        generation=_generation(runner, execution.scenario, first_us, samples),
    )
    for problem in _problems(result):
        warn(problem)
    return result


def _turns(runner: Runner, options: ProfileOptions, budget_s: float | None) -> Iterator[TurnTimes]:
    """Warm up, then yield turns until there are enough or the time is over."""
    scenario = options.execution.scenario
    if scenario is None:
        warm_up(runner.infer, options.warmup)
        for samples in turns(runner.infer, options.iterations, budget_s):
            yield samples, None
        return
    for _ in range(1 if options.warmup is None else options.warmup):
        runner.turn()
    watch = Stopwatch.start(budget_s)
    enough = _LEAST_GENERATIONS
    if options.iterations is not None:
        enough = max(enough, math.ceil(options.iterations / (scenario.new_tokens - 1)))
    for number in itertools.count(1):
        yield runner.turn()
        if watch.is_over or (options.iterations is not None and number >= enough):
            return


def _generation(
    runner: Runner,
    scenario: Scenario | None,
    first_us: Sequence[tuple[float, ...]],
    further_us: Sequence[tuple[float, ...]],
) -> Generation | None:
    if scenario is None:
        return None
    tokens = tuple(tuple(map(int, row)) for row in runner.outputs()[TOKEN_IDS])
    return Generation(scenario, Latency(tuple(first_us)), Latency(tuple(further_us)), tokens)


def _measure_counters(
    placed: BoundPlacement, arrays: list[np.ndarray], execution: Execution
) -> tuple[Counter, ...]:
    """Compile once more with counters; a device without them gives none and a warning."""
    try:
        return measure_counters(placed, arrays, execution)
    except MeasurementError as error:
        warn(str(error))
        return ()


def _left_s(watch: Stopwatch, parts: int = 1) -> float | None:
    """Return the time left, or one of so many equal parts of it."""
    if watch.budget_s is None:
        return None
    return max(1e-9, watch.budget_s - watch.elapsed_s) / parts


def _problems(result: ProfileData) -> Iterator[str]:
    wrong = [a for a in result.agreement if a.verdict in ("different", "not a number")]
    if wrong:
        worst = max(wrong, key=lambda a: a.relative_error)
        # It does not take a language model.
        search = " hetero_lab.find_wrong(model, placement) finds the ops to blame."
        yield (
            f"Output {worst.output!r} differs from the single-device f32 reference by "
            f"{worst.relative_error:.2g} (relative), more than {worst.precision} explains "
            f"({worst.tolerance:g}). See profile.tables['agreement']."
            f"{search if result.generation is None else ''}"
        )


def _next(bar: Progress, description: str) -> None:
    bar.advance()
    bar.step(description)


def measure_throughput(
    runner: Runner,
    arrays: list[np.ndarray],
    execution: Execution,
    *,
    rounds: int,
    budget_s: float | None,
) -> tuple[Throughput, ...]:
    """Measure HETERO with and without exclusive requests, and ``runner`` if it is not HETERO.

    In each round each has a turn of one request at a time and one with the requests in flight,
    so that a drift of the machine hits all alike; ``runner`` is the last in a round. All are
    compiled in this process; a sweep over executors measures each in a process of its own.

    Parameters
    ----------
    runner
        What is profiled, already warm.
    execution
        How it is run.
    rounds
        Turns of each; fewer when ``budget_s`` is over, but one at least.
    """
    own = execution.executor == PARALLEL
    measured: list[tuple[str, bool | None, Runner, list[Any], list[Any]]] = []
    with contextlib.ExitStack() as stack:
        for exclusive, changed in _with_exclusive(runner.placed):
            as_hetero = Execution(HETERO, execution.requests)
            other = open_runner(changed, arrays, as_hetero)
            stack.callback(other.close)
            warm_up(other.infer, at_most_s=_WARM_UP_S)
            measured.append((HETERO, exclusive, other, [], []))
        if own:
            measured.append((PARALLEL, _is_exclusive(runner.placed), runner, [], []))
        watch = Stopwatch.start(budget_s)
        for _ in range(rounds):
            for _, _, one, latency, between in measured:
                latency.append(run_turn(one.infer))
                between.append(one.queue_turn())
            if watch.is_over:
                break
    return tuple(
        Throughput(name, execution.requests, exclusive, Latency(tuple(b)), Latency(tuple(a)))
        for name, exclusive, _, a, b in measured
    )


def _with_exclusive(placed: BoundPlacement) -> Sequence[tuple[bool | None, BoundPlacement]]:
    """Return the placement with exclusive requests and without, where some device knows them."""
    able = [d for d in placed.devices if _knows(d, placed.core)]
    if not able:
        return [(None, placed)]
    found = []
    for value in (True, False):
        changed = placed.placement.with_properties({d: {_EXCLUSIVE: value} for d in able})
        found.append((value, BoundPlacement(placed.bound, changed)))
    return found


def _knows(device: str, core: ov.Core) -> bool:
    try:
        check_properties(device, {_EXCLUSIVE: False}, core=core)
    except PropertyError:
        return False
    return True


def _is_exclusive(placed: BoundPlacement) -> bool:
    values = [p.get(_EXCLUSIVE, False) for p in placed.properties.values()]
    return all(str(value).upper() in ("TRUE", "YES", "ON") for value in values)
