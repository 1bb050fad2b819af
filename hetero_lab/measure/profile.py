"""Profile: one placement of one model, measured in this process or in a worker process.

The bench answers with the same records as in a sweep, but a profile has no rounds. The outputs
are compared only after the turns: a process that has compiled a second model, such as the
reference, runs the first one faster.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hetero_lab.arguments import HETERO, PARALLEL, check_whole
from hetero_lab.devices.core import bind
from hetero_lab.devices.properties import check_properties
from hetero_lab.errors import MeasurementError, PropertyError, shorten, warn
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.intervals import Latency
from hetero_lab.measure.bench import Bench, limit_s
from hetero_lab.measure.session import Conditions, Session
from hetero_lab.measure.trial_grid import by_name, trial_of
from hetero_lab.measure.worker_process import Request, WorkerError, Workers
from hetero_lab.model.language import Scenario
from hetero_lab.model.read import Source
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.planning.simplify import simplify_bound
from hetero_lab.progress import Progress, Stopwatch
from hetero_lab.results.environment import OtherWork, current_environment
from hetero_lab.results.profile_data import Throughput
from hetero_lab.results.profile_result import Profile, profile_of
from hetero_lab.results.records import Compiled, Trial, Turn
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.executors import (
    TIMED_PER_TURN,
    check_executor,
    check_placed,
    turn_lengths,
)
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.runtime.reference import agreement_notes

if TYPE_CHECKING:
    import openvino as ov

_EXCLUSIVE = "EXCLUSIVE_ASYNC_REQUESTS"
_MOST_WARM_UP_S, _WARM_UP_IN_FLIGHT_S = 2.0, 0.3
_ROUNDS = 10
_LEAST_GENERATIONS = 3

Ask: TypeAlias = "Callable[..., Any]"  # of a method of Bench and its arguments


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
    workers: Workers | None = None,
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
        besides the latency, and compared with HETERO with and without
        ``EXCLUSIVE_ASYNC_REQUESTS``: ``profile.tables["throughput"]``.
    iterations
        Timed inferences, in turns of 10 with 2 discarded before each; 100 if neither this nor
        ``budget_s`` is given.
    warmup
        Inferences before the first turn; ``None`` runs until two turns agree within 5 %.
    budget_s
        Wall time after which no further turn begins.
    inputs
        Mapping by name, sequence, .npz file or callable; ``None`` generates them from ``seed``.
    scenario
        The prompt and length that a language model generates, greedily and with its real states:
        ``profile.generation`` has the times and the tokens, and the latency is the time per
        further token. Turns are then generations, as many as ``iterations`` further tokens take,
        at least three. ``inputs`` is the prompt, ids of shape ``[batch, prompt_tokens]``.
    counters, reference
        Whether to compile a second time for the counters, and to compare the outputs with a
        single-device f32 reference.
    isolate, workers
        Whether to measure in a process of its own, and its limits. Worth it for new drivers, whose
        crash would take the notebook with it.
    progress
        Show a progress bar if it takes more than two seconds.

    Returns
    -------
    Profile
        After Ctrl-C in the timing or later it holds the turns so far and has ``interrupted`` set.

    Raises
    ------
    ArgumentError
        An argument is wrong; raised before anything is compiled.
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
    digits_inception takes ... on HETERO:ACC,CPU (...); outputs ...
    Partition:  2 subgraphs, 1 boundary, ... B (observed)
    ...
    """
    check_executor(executor, requests, scenario)
    if iterations is None and budget_s is None:
        iterations = 100
    for name, value, least in (("iterations", iterations, 1), ("warmup", warmup, 0)):
        if value is not None:
            check_whole(name, value, least=least)
    watch = Stopwatch.start(budget_s)
    placed = resolve(bind(model, core), placement)
    run_as = {"executor": executor, "requests": requests, "scenario": scenario}
    check_placed(placed, **run_as)
    models = by_name(placed.bound)  # as in a sweep, so that the inputs have the same digest
    trial = trial_of(placed, placed.label, next(iter(models)), **run_as)
    in_flight = requests > 1
    n_steps = 2 + in_flight + counters + reference
    turns: list[Turn] = []
    timing, after = UntilInterrupted(lambda: turns), UntilInterrupted()
    rows: tuple[Counter, ...] = ()
    throughput: tuple[Throughput, ...] = ()
    conditions = Conditions(inputs, seed, scenario, isolate=isolate, workers=workers or Workers())
    with (
        Session(models, conditions) as session,
        Progress(f"compile {placed.label}", show=progress, total=n_steps, unit="steps") as bar,
        opened_bench(session, placed.label) as ask,
    ):
        others = OtherWork()
        compiled: Compiled = ask(Bench.compile, trial=trial)
        _next(bar, "time")
        with timing:
            for turn in _turns(ask, trial, iterations, warmup, watch):
                turns.append(turn)
                bar.note(f"{_n_samples(turns)} inferences")
        foreign_cpus = others.cpus()
        # After Ctrl-C, a worker still has to answer its last request, so it cannot be used.
        usable = not (isolate and timing.interrupted)
        with after:
            if usable:
                compiled = _with_spans(compiled, ask, len(turns[-1].samples_us))
            if in_flight and not timing.interrupted:
                _next(bar, "throughput")
                throughput = _throughput(ask, placed, trial, iterations, watch)
                compiled = _with_spans(compiled, ask, (TIMED_PER_TURN + 1) * requests)
            if usable and counters:
                _next(bar, "counters")
                rows = ask(Bench.read_counters, trial=trial).rows
            if usable and reference:
                _next(bar, "reference")
                agreement = ask(Bench.compare, trial=trial, rows=rows)
                compiled = msgspec.structs.replace(compiled, agreement=agreement)
            _next(bar, "done")
    if timing.interrupted:
        warn(f"Interrupted after {_n_samples(turns)} inferences; they are kept.")
    elif after.interrupted:
        warn("Interrupted after the timing; the latency is kept.")
    result = profile_of(
        trial,
        compiled,
        turns,
        graph=placed.graph,
        fingerprint=placed.bound.fingerprint,
        environment=current_environment(placed.devices, placed.core),
        counters=rows,
        throughput=throughput,
        generated=conditions.are_generated,
        inputs_digest=session.inputs_digest,
        foreign_cpus=foreign_cpus,
        few_subgraphs=simplify_bound(placed.bound, placed.placement).remark,
        interrupted=timing.interrupted or after.interrupted,
    )
    _warn_of_wrong_outputs(result)
    return result


@contextlib.contextmanager
def opened_bench(session: Session, label: str) -> Generator[Ask, None, None]:
    """Open a bench; yields a function that calls its methods and passes its warnings on.

    MeasurementError, if a worker process crashed, hung, ran out of memory or could not compile.
    """
    conditions = session.conditions

    def ask(method: Callable[..., Any], **arguments: Any) -> Any:
        request = partial(method, **arguments)
        answer = bench.ask(request, timeout_s=limit_s(conditions.workers, request))
        for text in bench.warnings:
            warn(text)
        return answer

    try:
        with contextlib.closing(session.start()) as bench:
            yield ask
    except WorkerError as error:
        cause = error.__cause__
        if not conditions.isolate and cause is not None:  # the error of this process itself
            raise cause from cause.__cause__
        raise MeasurementError(
            f"The placement {shorten(label)} could not be profiled in a process of its own: {error}"
        ) from error


def _turns(
    ask: Ask, trial: Trial, iterations: int | None, warmup: int | None, watch: Stopwatch
) -> Iterator[Turn]:
    """Warm up, then yield turns until there are enough or the time is over."""
    # The other half of the time is for several requests in flight.
    end_s = watch.elapsed_s + watch.left_s / (2 if trial.requests > 1 else 1)
    lengths: Iterator[int] = turn_lengths(iterations)
    if trial.scenario is not None:
        n = None
        if iterations is not None:
            n = max(_LEAST_GENERATIONS, math.ceil(iterations / (trial.scenario.new_tokens - 1)))
        lengths = itertools.islice(itertools.repeat(TIMED_PER_TURN), n)
    ask(Bench.warm_up, key=trial.key, at_most_s=_MOST_WARM_UP_S, inferences=warmup)
    for number, timed in enumerate(lengths):
        yield ask(_alone(trial, number, timed))
        if watch.elapsed_s >= end_s:
            return


def _alone(trial: Trial, number: int, timed: int = TIMED_PER_TURN) -> Request[Turn]:
    """Return the request for a turn with one inference at a time."""
    return partial(
        Bench.run_turn,
        key=trial.key,
        round=number,
        timed=timed,
        alone=True,
    )


def _with_spans(compiled: Compiled, ask: Ask, n_last: int) -> Compiled:
    spans = ask(Bench.read_spans, key=compiled.entry, requests=n_last)
    return msgspec.structs.replace(compiled, spans=spans)


def _throughput(
    ask: Ask, placed: BoundPlacement, trial: Trial, iterations: int | None, watch: Stopwatch
) -> tuple[Throughput, ...]:
    """Measure HETERO with and without exclusive requests, and the trial if it is not HETERO.

    In each round, each has a turn with one request at a time and one with all requests in flight,
    so that a drift of the machine affects all alike; the trial itself, already warm, comes last.
    All are compiled on one bench, unlike in a sweep over executors. At least one round is measured,
    however short the time.
    """
    measured: list[tuple[Trial, bool | None]] = []
    for exclusive, changed in _with_exclusive(placed):
        other = trial_of(changed, placed.label, trial.variant, requests=trial.requests)
        measured.append((other, exclusive))
        if other.key != trial.key:
            ask(Bench.compile, trial=other)
            ask(Bench.warm_up, key=other.key, at_most_s=_WARM_UP_IN_FLIGHT_S)
    if trial.executor == PARALLEL:
        measured.append((trial, _is_exclusive(placed)))
    latency: dict[str, list[tuple[float, ...]]] = {one.key: [] for one, _ in measured}
    between: dict[str, list[tuple[float, ...]]] = {one.key: [] for one, _ in measured}
    n_rounds = min(_ROUNDS, max(1, (iterations or _ROUNDS**2) // TIMED_PER_TURN))
    for number in range(n_rounds):
        for one, _ in measured:
            alone = _alone(one, number)
            latency[one.key].append(ask(alone).samples_us)
            between[one.key].append(ask(alone, alone=False).samples_us)
        if watch.is_over:
            break
    return tuple(
        Throughput(
            one.executor,
            one.requests,
            exclusive,
            between=Latency(tuple(between[one.key])),
            latency=Latency(tuple(latency[one.key])),
        )
        for one, exclusive in measured
    )


def _with_exclusive(placed: BoundPlacement) -> Sequence[tuple[bool | None, BoundPlacement]]:
    """Return the placement with and without exclusive requests, if a device supports them."""
    able = [d for d in placed.devices if _knows(d, placed.core)]
    if not able:
        return [(None, placed)]
    changed = (
        (value, placed.placement.with_properties({device: {_EXCLUSIVE: value} for device in able}))
        for value in (True, False)
    )
    return [(value, BoundPlacement(placed.bound, placement)) for value, placement in changed]


def _knows(device: str, core: ov.Core) -> bool:
    try:
        check_properties(device, {_EXCLUSIVE: False}, core=core)
    except PropertyError:
        return False
    return True


def _is_exclusive(placed: BoundPlacement) -> bool:
    values = [p.get(_EXCLUSIVE, False) for p in placed.properties.values()]
    return all(str(value).upper() in ("TRUE", "YES", "ON") for value in values)


def _warn_of_wrong_outputs(result: Profile) -> None:
    for note in agreement_notes(a for a in result.agreement if a.verdict == "undecided"):
        warn(note)
    wrong = [a for a in result.agreement if a.is_wrong]
    if wrong:
        worst = max(wrong, key=lambda a: a.relative_error)
        far = f"by {worst.relative_error:.2g} (relative)"
        # find_wrong does not take language models.
        search = " hetero_lab.find_wrong(model, placement) finds the ops to blame."
        warn(
            f"Output {worst.output!r} differs from the single-device f32 reference "
            f"{worst.detail or far}, more than {worst.precision} explains ({worst.tolerance:g}). "
            f"See profile.tables['agreement']."
            f"{search if result.generation is None else ''}"
        )


def _n_samples(turns: Sequence[Turn]) -> int:
    return sum(len(turn.samples_us) for turn in turns)


def _next(bar: Progress, description: str) -> None:
    bar.advance()
    bar.step(description)
