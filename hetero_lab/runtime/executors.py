"""Executors: what runs a compiled placement with its inputs, and times it in turns.

``hetero`` is OpenVINO's HETERO (or one device), ``parallel`` is
:class:`~hetero_lab.parallel.executor.ParallelExecutor`. A runner infers requests, or generates with
a language model. A turn is a few discarded inferences followed by the timed ones, without a pause:
single inferences in between others find cold caches and look up to 40 % slower.
"""

from __future__ import annotations

import contextlib
import gc
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import openvino as ov

from hetero_lab import clock
from hetero_lab.arguments import EXECUTORS, HETERO, PARALLEL, check_whole
from hetero_lab.clock import now
from hetero_lab.devices.core import BoundModel, storable
from hetero_lab.devices.devices import named_by_plugin
from hetero_lab.devices.properties import PRECISION_HINT
from hetero_lab.errors import ArgumentError, HeteroLabWarning, unknown
from hetero_lab.lookup import annex
from hetero_lab.model.language import Scenario, check_scenario, language_model
from hetero_lab.model.opgraph import grouped
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.planning.timeline import Span
from hetero_lab.runtime.compiled import (
    CompiledPlacement,
    ask,
    compile_placed,
    inference_errors,
    property_values,
    warn_of_ignored,
)
from hetero_lab.runtime.counters import Counter, raw_counter, read_counters
from hetero_lab.runtime.inputs import Inputs, input_arrays
from hetero_lab.runtime.reference import (
    Agreement,
    Reference,
    compare_with_reference,
    executed_precision,
)
from hetero_lab.runtime.tensors import can_share, infer, set_inputs, to_tensor

DISCARDED_PER_TURN = 2  # after the turn of another placement, these find cold caches
TIMED_PER_TURN = 10  # a turn counts with their median, which a few slow ones do not move
_STABLE = 0.05  # warm-up ends once two consecutive turns differ by less than this
MOST_WARM_UP_S = 2.0  # turns that do not agree by then are timed as they are
_MIN_WARMUP_TURNS = 3  # so that the first, a cold one, is never among the two compared
_COUNTER_TURNS = 3  # counters are a running mean, which needs a few turns to settle
_SWITCH_S = 20.0  # AUTO gets at most this long to prepare its device


def check_executor(executor: str, requests: int, scenario: Scenario | None) -> None:
    """Raise ArgumentError for an unknown executor, or a number of requests that it cannot run."""
    if executor not in EXECUTORS:
        raise ArgumentError(unknown("There is no executor", executor, EXECUTORS, "Executors"))
    check_whole("requests", requests, least=1)
    if scenario is not None and requests > 1:
        raise ArgumentError(
            "A language model has its states in its request: several in flight would mix them. "
            "Use requests=1, and batch= of the scenario for several sequences."
        )


def check_placed(
    bound_placement: BoundPlacement,
    executor: str = HETERO,
    requests: int = 1,
    scenario: Scenario | None = None,
) -> None:
    """Raise for a placement that cannot run like this; warn of ignored properties."""
    check_scenario(bound_placement.bound.model, scenario)
    if executor != PARALLEL:
        warn_of_ignored(bound_placement)
    elif virtual := bound_placement.placement.virtual:
        raise ArgumentError(
            f"{virtual} runs a whole model by itself: executor='parallel' takes an "
            "affinity over devices."
        )
    else:
        annex(PARALLEL).check(bound_placement, requests)


class CompiledSession:
    """A request of OpenVINO, to HETERO or one device, with its states.

    The session of another executor has the same methods. ``step`` is one of a language model; its
    logits are valid until the next step.
    """

    def __init__(self, compiled: CompiledPlacement):
        self.compiled = compiled
        self._types = [port.get_element_type() for port in compiled.compiled_model.inputs]
        self._request = compiled.compiled_model.create_infer_request()
        # A partial adds no Python frame to a timed call; sharing saves the copy of the outputs.
        can = can_share(compiled.compiled_model.outputs)
        self.infer = partial(self._request.infer, share_outputs=can)

    @cached_property
    def _logits(self) -> int:
        return language_model(self.compiled.prepared.model).logits

    def give(self, arrays: Sequence[np.ndarray]) -> None:
        set_inputs(self._request, arrays, self._types)

    def outputs(self) -> dict[str, np.ndarray]:
        return self.compiled.read_outputs(self._request)

    def reset(self) -> None:
        self._request.reset_state()

    def step(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        with inference_errors(self.compiled.placed.label):
            self.give(arrays)
            self.infer()
        return self._request.get_output_tensor(self._logits).data

    def profiling_info(self) -> Sequence[object]:
        return self._request.profiling_info

    def queue_turn(self, arrays: Sequence[np.ndarray], requests: int) -> tuple[float, ...]:
        compiled = self.compiled.compiled_model
        queue = ov.AsyncInferQueue(compiled, requests)

        def run(count: int, on_result: Callable[[], None]) -> None:
            queue.set_callback(lambda _request, _userdata: on_result())
            for _ in range(count):
                queue.start_async({i: to_tensor(a, self._types[i]) for i, a in enumerate(arrays)})
            queue.wait_all()

        return times_between_results(run, requests)

    def close(self) -> None:
        """OpenVINO lets go of it by itself."""


# The durations of a turn in µs: of each inference, and None; or, if it was a generation, of each
# further token, and of the first one.
TurnTimes: TypeAlias = "tuple[tuple[float, ...], float | None]"


class Runner:
    """A compiled placement with its inputs; ``as_predicted`` is ``None`` if nothing is reported."""

    def __init__(self, session: CompiledSession, arrays: list[np.ndarray], requests: int = 1):
        self._session = session
        self._compiled = compiled = session.compiled
        self._arrays = arrays
        self._n_requests = requests
        self.infer: Callable[[], object] = session.infer
        self.placed = compiled.placed
        self.partition = compiled.partition
        self.as_predicted = compiled.as_predicted
        self.compile_ms = compiled.compile_ms

    def outputs(self) -> dict[str, np.ndarray]:
        """Return copies of the outputs of the last inference; with states, of one from afresh."""
        if self.placed.graph.stateful_paths:
            self._session.reset()
            self.infer()
        return self._session.outputs()

    def another(self) -> Runner:
        """Return a runner of the same compiled placement with a request of its own."""
        session = CompiledSession(self._compiled)
        session.give(self._arrays)
        return Runner(session, self._arrays)

    def queue_turn(self) -> tuple[float, ...]:
        """Run one turn with all requests in flight; return the times per result in µs."""
        return self._session.queue_turn(self._arrays, self._n_requests)

    def turn(self, timed: int = TIMED_PER_TURN, discarded: int = DISCARDED_PER_TURN) -> TurnTimes:
        """Run one turn: some inferences, or one generation of a language model."""
        return run_turn(self.infer, timed=timed, discarded=discarded), None

    def counters(self) -> tuple[Counter, ...]:
        """Return the counters of the last inference; MeasurementError if there are none."""
        return read_counters(self._session.profiling_info(), self.partition, self.placed.graph)

    def compare(
        self, rows: Sequence[Counter] = (), expected: Mapping[str, np.ndarray] | None = None
    ) -> tuple[Agreement, ...]:
        """Compare the last outputs with f32, ``expected`` if known; counters show the precision."""
        precision = executed_precision(rows, self._compiled)
        outputs = self.outputs()
        return compare_with_reference(
            self.placed.bound, self._arrays, outputs, precision, expected=expected
        )

    def choices(self) -> Chosen:
        """Return the runtime's choices, after the first inference."""
        if self.placed.placement.virtual:
            settle(self._compiled.compiled_models[0], self.infer)
        return choices_of(self._compiled.compiled_models, self.placed.core)

    def spans(self, requests: int) -> tuple[Span, ...]:
        """Return when the subgraphs of the last requests ran; empty for HETERO, which hides it."""
        spans: Sequence[Span] = getattr(self._compiled, "timeline", ())
        first = max((span.request for span in spans), default=0) - requests + 1
        runs = grouped((span.request, span) for span in spans if span.request >= first)
        # A request with some spans already dropped would look as if it had waited.
        whole = (run for run in runs.values() if len(run) == self.partition.n_subgraphs)
        return tuple(span for run in whole for span in run)

    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each sequence in the last turn; empty without a generation."""
        return ()

    def close(self) -> None:
        """Close the executor, if there is one."""
        self._session.close()


def open_runner(
    placement: BoundPlacement,
    arrays: list[np.ndarray],
    *,
    executor: str = HETERO,
    requests: int = 1,
    scenario: Scenario | None = None,
    counters: bool = False,
    compile_properties: Mapping[str, Any] | None = None,
) -> Runner:
    """Compile a placement for an executor and give it its bound inputs; close it after use.

    With ``counters``, it has OpenVINO's performance counters, is slower, and runs one request at a
    time. ``compile_properties`` are more properties of each compile call.
    """
    check_executor(executor, requests, scenario)
    requests = 1 if counters else requests
    # The compile without counters has already given the same warnings.
    quiet = warnings.catch_warnings(action="ignore", category=HeteroLabWarning)
    with quiet if counters else contextlib.nullcontext():
        properties = compile_properties or {}
        if executor == PARALLEL:
            session = annex(PARALLEL).open(placement, requests, counters, properties)
        else:
            compiled = compile_placed(placement, counters=counters, compile_properties=properties)
            session = CompiledSession(compiled)
    if scenario is not None:
        return annex("scenario")(session, arrays, scenario, counters)
    session.give(arrays)
    return Runner(session, arrays, requests)


def read_counted(runner: Runner) -> tuple[Counter, ...]:
    """Run a runner with counters, read and close it; MeasurementError if it has none."""
    with contextlib.closing(runner):
        for _ in range(_COUNTER_TURNS):
            run_turn(runner.infer)
        return runner.counters()


def inputs_for(
    bound: BoundModel, inputs: Inputs | None, seed: int, scenario: Scenario | None
) -> list[np.ndarray]:
    """Return the arrays to open a runner with: the model's inputs, or a prompt."""
    if scenario is None:
        return input_arrays(bound, inputs, seed)
    return annex("prompt")(bound, inputs, scenario, seed)


def expected_outputs(
    placement: BoundPlacement, arrays: Sequence[np.ndarray], scenario: Scenario | None
) -> dict[str, np.ndarray]:
    """Return the outputs of one device in f32 for a runner's inputs."""
    if scenario is None:
        return Reference(placement.bound)(arrays)
    return annex("expected tokens")(placement.bound, arrays[0], scenario)


def infer_once(
    model: ov.Model,
    target: str,
    properties: Mapping[str, Any],
    arrays: Sequence[np.ndarray],
    core: ov.Core,
) -> tuple[list[np.ndarray], dict[str, str], tuple[Counter, ...]]:
    """Compile and infer once, or several times in a row if there are arrays for that.

    The states are kept in between. Return the outputs in order, those of each inference after the
    other, the precision hint of each device and, with PERF_COUNT among the properties, the counters
    of submodels, which are not joined to ops.
    """
    compiled = core.compile_model(model, target, dict(properties))
    request = compiled.create_infer_request()
    outputs: list[np.ndarray] = []
    n_inputs = len(compiled.inputs)
    for start in range(0, len(arrays) or 1, n_inputs or 1):
        outputs += infer(request, arrays[start : start + n_inputs])
    hints = property_values(compiled, PRECISION_HINT)
    by_device = {device or target: str(hint) for device, hint in hints.items() if hint is not None}
    infos = request.get_profiling_info() if properties.get("PERF_COUNT") else ()
    return outputs, by_device, tuple(raw_counter(info, hetero=True) for info in infos)


# -- the runtime's choices -----------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """The runtime's choices for a compiled placement, as it reports them.

    ``devices`` execute it (EXECUTION_DEVICES); ``n_streams`` is the number of inferences that all
    devices together run in parallel, ``n_requests`` the advised number of requests in flight
    (OPTIMAL_NUMBER_OF_INFER_REQUESTS). ``from_cache`` tells whether it was loaded from the model
    cache. ``None`` stands for a value that was not reported. ``precisions`` are those of the
    devices (INFERENCE_PRECISION_HINT), "" where one is not reported.
    """

    devices: tuple[str, ...] = ()
    n_streams: int | None = None
    n_requests: int | None = None
    from_cache: bool | None = None
    precisions: Mapping[str, str] = field(default_factory=dict)


def choices_of(models: Sequence[ov.CompiledModel], core: ov.Core) -> Chosen:
    """Read the runtime's choices from the compiled models of one placement."""
    behind = named_by_plugin(core)
    devices: dict[str, None] = {}
    precisions: dict[str, str] = {}

    def plain(name: object) -> str:
        # Until the chosen device is ready, AUTO runs on another one and puts its name in brackets.
        bare = str(name).strip("()")
        return behind.get(bare, bare)

    for model in models:
        names = [plain(name) for name in ask(model, "EXECUTION_DEVICES") or ()]
        devices.update(dict.fromkeys(names))
        for name, value in property_values(model, PRECISION_HINT).items():
            device = plain(name) if name else next(iter(names), "")
            precisions[device] = str(storable({"": value})[""] or "")
    streams: list[Any] = [
        n for model in models for n in property_values(model, "NUM_STREAMS").values() or [None]
    ]
    requests = [ask(model, "OPTIMAL_NUMBER_OF_INFER_REQUESTS") for model in models]
    cached = [ask(model, "LOADED_FROM_CACHE") for model in models]
    return Chosen(
        tuple(devices),
        sum(map(int, streams)) if None not in streams else None,
        min((int(n) for n in requests if n), default=None),
        all(cached) if None not in cached else None,
        precisions,
    )


def settle(model: ov.CompiledModel, infer: Callable[[], object]) -> None:
    """Infer until AUTO has switched to its chosen device."""
    until = now() + _SWITCH_S
    while now() < until and any(
        str(name).startswith("(") for name in ask(model, "EXECUTION_DEVICES") or ()
    ):
        infer()


# -- steady-state latency ------------------------------------------------------------------------

Run: TypeAlias = Callable[[], object]


def time_once(run: Run) -> float:
    """Time one call in microseconds."""
    started = clock.now_ns()
    run()
    return (clock.now_ns() - started) / 1e3


def run_turn(
    run: Run, timed: int = TIMED_PER_TURN, discarded: int = DISCARDED_PER_TURN
) -> tuple[float, ...]:
    """Run one turn and return the timed durations in microseconds."""
    now_ns = clock.now_ns
    samples = [0] * timed
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle would count as the model's time
    try:
        for _ in range(discarded):
            run()
        for index in range(timed):
            started = now_ns()
            run()
            samples[index] = now_ns() - started
    finally:
        if collecting:
            gc.enable()
    return tuple(sample / 1e3 for sample in samples)


def warm_up(run: Run, inferences: int | None = None, at_most_s: float = MOST_WARM_UP_S) -> int:
    """Run until two turns agree within 5 %, or ``inferences`` times; return the number of runs."""
    if inferences is not None:
        for _ in range(inferences):
            run()
        return inferences
    started, n_runs, medians = now(), 0, [float("inf")]
    while now() - started < at_most_s:
        medians.append(float(np.median(run_turn(run, discarded=0))))
        n_runs += TIMED_PER_TURN
        before, after = medians[-2:]
        if len(medians) > _MIN_WARMUP_TURNS and abs(after - before) < _STABLE * before:
            break
    return n_runs


def turn_lengths(inferences: int | None) -> Iterator[int]:
    """Yield the number of timed inferences of each turn, endlessly if no number is given."""
    rest = math.inf if inferences is None else inferences
    while rest:
        # A small remainder joins the last turn, so that no turn is too short.
        size = int(rest) if rest < 2 * TIMED_PER_TURN else TIMED_PER_TURN
        yield size
        rest -= size


def times_between_results(
    run: Callable[[int, Callable[[], None]], Any], requests: int
) -> tuple[float, ...]:
    """Keep ``requests`` inferences in flight; return the times per inference in µs.

    ``run`` infers so many times and calls a function at each result. A sample is the time from one
    result to the ``requests``-th after it, divided by ``requests``. The first ``requests`` results
    fill the pipeline and do not count.
    """
    finished: list[int] = []
    run((TIMED_PER_TURN + 1) * requests, lambda: finished.append(clock.now_ns()))
    marks = np.sort(np.array(finished, dtype=np.int64))[requests - 1 :: requests]
    return tuple(float(gap) / 1e3 / requests for gap in np.diff(marks))
