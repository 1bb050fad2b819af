"""Runners: a compiled placement with its inputs, ready to run, whichever executor runs it.

``hetero`` is OpenVINO's own HETERO (or the plain device), ``parallel`` the lab's
:class:`~hetero_lab.runtime.parallel.ParallelExecutor`. Whoever measures asks a runner and need
not know which it is.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.errors import ArgumentError, HeteroLabWarning, did_you_mean, shorten
from hetero_lab.model.language import Scenario, check_scenario, language_model
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.runtime.chosen import Chosen, chosen_by, settle
from hetero_lab.runtime.compiled import CompiledPlacement, compile_placed, warn_of_ignored
from hetero_lab.runtime.counters import Counter, read_counters
from hetero_lab.runtime.generation import (
    CompiledSession,
    ExecutorSession,
    Generated,
    TokenSession,
    compare_generation,
    generate,
    generation_precision,
    given_or_random_prompt,
    outputs_of,
    reference_generation,
    steps,
)
from hetero_lab.runtime.inputs import Inputs, given_or_generated
from hetero_lab.runtime.parallel import ParallelExecutor, cuts
from hetero_lab.runtime.reference import (
    Agreement,
    compare_with_reference,
    executed_precision,
    lowest_precision,
    reference_outputs,
)
from hetero_lab.runtime.throughput import run_parallel_turn, run_queue_turn
from hetero_lab.runtime.timeline import Span
from hetero_lab.runtime.timing import DISCARDED_PER_TURN, TIMED_PER_TURN, run_turn

HETERO, PARALLEL = "hetero", "parallel"
EXECUTORS = (HETERO, PARALLEL)
_COUNTER_TURNS = 3  # the counters are a running mean; a few turns settle it


@dataclass(frozen=True)
class Execution:
    """How a placement is run: by which executor, and how many requests are in flight at most.

    ``scenario`` is what a language model is asked to generate.

    Raises
    ------
    ArgumentError
        An unknown executor, no request, or several requests of a language model.
    """

    executor: str = HETERO
    requests: int = 1
    scenario: Scenario | None = None

    def __post_init__(self) -> None:
        n = self.requests
        if self.executor not in EXECUTORS:
            name = str(self.executor)
            raise ArgumentError(
                f"There is no executor {shorten(name)}.{did_you_mean(name, EXECUTORS)} "
                f"Executors: {', '.join(EXECUTORS)}."
            )
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ArgumentError(f"requests= is a whole number of at least 1, not {n!r}.")
        if self.scenario is not None and n > 1:
            raise ArgumentError(
                "A language model has its states in its request: several in flight would mix them. "
                "Use requests=1, and batch= of the scenario for several sequences."
            )

    def check(self, placed: BoundPlacement) -> None:
        """Raise for what could not run, before anything is compiled; warn of what is ignored.

        Raises
        ------
        AffinityError
            A cut tensor has no known shape, or a stateful path would be torn.
        ArgumentError
            Several requests in flight of a model with states, a language model without a scenario,
            or one that does not fit into its context.
        ModelError
            A scenario for what is no language model.
        """
        check_scenario(placed.bound.model, self.scenario)
        virtual = placed.placement.virtual
        if self.executor == PARALLEL and virtual:
            raise ArgumentError(
                f"{virtual} runs a whole model by itself: executor='parallel' takes an "
                "affinity over devices."
            )
        if self.executor == PARALLEL:
            cuts(placed, requests=self.requests)
        else:
            warn_of_ignored(placed)


# What a turn took: each inference in µs, and the first token if it was a generation, whose
# samples are the further tokens.
TurnTimes: TypeAlias = "tuple[tuple[float, ...], float | None]"


class Runner(Protocol):
    """A compiled placement with its inputs.

    ``partition`` is what was compiled; ``as_predicted`` whether that was foreseen, ``None``
    where it cannot be told.
    """

    placed: BoundPlacement
    partition: Partition
    as_predicted: bool | None
    compile_ms: float

    def infer(self) -> object:
        """Infer once and wait for it."""
        ...

    def turn(self, timed: int = TIMED_PER_TURN, discarded: int = DISCARDED_PER_TURN) -> TurnTimes:
        """Run one turn: so many inferences, or one generation of a language model."""
        ...

    def outputs(self) -> dict[str, np.ndarray]:
        """Return copies of the outputs of the last inference."""
        ...

    def queue_turn(self) -> tuple[float, ...]:
        """Keep the requests in flight; return the times per result in µs."""
        ...

    def precision(self, rows: Sequence[Counter]) -> str:
        """Return the lowest precision that counters saw, or that was asked for."""
        ...

    def counters(self) -> tuple[Counter, ...]:
        """Return the counters joined to the model; MeasurementError if there are none."""
        ...

    def chosen(self) -> Chosen:
        """Return what the runtime chose, after the first inference."""
        ...

    def spans(self, requests: int) -> tuple[Span, ...]:
        """Return when the subgraphs of the last requests ran; empty where it is not known."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def open_runner(
    placed: BoundPlacement,
    arrays: list[np.ndarray],
    execution: Execution,
    *,
    counters: bool = False,
    compile_properties: Mapping[str, Any] | None = None,
) -> Runner:
    """Compile a placement for an executor and give it its inputs; close it after use.

    Parameters
    ----------
    placed
        What :func:`~hetero_lab.placement.placement.resolve` returned.
    arrays
        The inputs, bound, in the model's order.
    counters
        Compile with OpenVINO's performance counters (slower to run).
    compile_properties
        More properties of each compile call, for instance ``{"CACHE_DIR": …}``.

    Raises
    ------
    AffinityError, ArgumentError
        The executor cannot run it; nothing was compiled.
    CompileError
        The runtime refused.
    """
    if execution.scenario is not None:
        return _GenerationRunner(
            placed, arrays, execution, counters, dict(compile_properties or {})
        )
    kind = _HeteroRunner if execution.executor == HETERO else _ParallelRunner
    return kind(placed, arrays, execution, counters, dict(compile_properties or {}))


def measure_counters(
    placed: BoundPlacement,
    arrays: list[np.ndarray],
    execution: Execution,
    *,
    compile_properties: Mapping[str, Any] | None = None,
) -> tuple[Counter, ...]:
    """Compile a placement once more with counters, run it and read them.

    Raises
    ------
    MeasurementError
        Its devices have no counters.
    """
    return read_counted(
        open_counted(placed, arrays, execution, compile_properties=compile_properties)
    )


def open_counted(
    placed: BoundPlacement,
    arrays: list[np.ndarray],
    execution: Execution,
    *,
    compile_properties: Mapping[str, Any] | None = None,
) -> Runner:
    """Compile a placement once more, with counters."""
    one = replace(execution, requests=1)
    with warnings.catch_warnings():
        # A partition that differs from the prediction was already said of the first compile.
        warnings.simplefilter("ignore", HeteroLabWarning)
        return open_runner(
            placed, arrays, one, counters=True, compile_properties=compile_properties
        )


def read_counted(runner: Runner) -> tuple[Counter, ...]:
    """Run what was compiled with counters, read them and close it.

    Raises
    ------
    MeasurementError
        Its devices have no counters.
    """
    with contextlib.closing(runner):
        for _ in range(_COUNTER_TURNS):
            run_turn(runner.infer)
        return runner.counters()


class _HeteroRunner:
    def __init__(
        self,
        placed: BoundPlacement,
        arrays: list[np.ndarray],
        execution: Execution,
        counters: bool,
        compile_properties: dict[str, Any],
    ):
        self._compiled = compile_placed(
            placed, counters=counters, compile_properties=compile_properties
        )
        self.placed = placed
        self.partition = self._compiled.partition
        self.as_predicted = self._compiled.as_predicted
        self.compile_ms = self._compiled.compile_ms
        self._arrays = arrays
        self._n_requests = execution.requests
        self._request = self._compiled.new_request(arrays)
        # Nothing in between that would be timed too, and no copy of the outputs.
        self.infer = partial(self._request.infer, share_outputs=True)

    def turn(self, timed: int = TIMED_PER_TURN, discarded: int = DISCARDED_PER_TURN) -> TurnTimes:
        return run_turn(self.infer, timed=timed, discarded=discarded), None

    def outputs(self) -> dict[str, np.ndarray]:
        return self._compiled.read_outputs(self._request)

    def queue_turn(self) -> tuple[float, ...]:
        return run_queue_turn(self._compiled, self._arrays, self._n_requests)

    def precision(self, rows: Sequence[Counter]) -> str:
        return executed_precision(rows, self._compiled)

    def counters(self) -> tuple[Counter, ...]:
        return read_counters(self._request.profiling_info, self.partition, self.placed.graph)

    def chosen(self) -> Chosen:
        if self.placed.placement.virtual:
            settle(self._compiled.compiled_model, self.infer)
        return chosen_by([self._compiled.compiled_model], self.placed.core)

    def spans(self, requests: int) -> tuple[Span, ...]:
        del requests  # HETERO does not tell when a subgraph started
        return ()

    def close(self) -> None:
        pass


class _ParallelRunner:
    """The time of an inference includes copies of its inputs and outputs, as every call has."""

    def __init__(
        self,
        placed: BoundPlacement,
        arrays: list[np.ndarray],
        execution: Execution,
        counters: bool,
        compile_properties: dict[str, Any],
    ):
        self._executor = ParallelExecutor.of(
            placed,
            requests=execution.requests,
            compile_properties={**compile_properties, **({"PERF_COUNT": True} if counters else {})},
        )
        self.placed = placed
        self.partition = replace(self._executor.partition, observed=True)
        self.as_predicted: bool | None = True
        self.compile_ms = self._executor.compile_ms
        self._arrays = arrays
        self._n_requests = execution.requests
        self._outputs: dict[str, np.ndarray] = {}

    def infer(self) -> None:
        self._outputs = self._executor.submit_bound(self._arrays).result()

    def turn(self, timed: int = TIMED_PER_TURN, discarded: int = DISCARDED_PER_TURN) -> TurnTimes:
        return run_turn(self.infer, timed=timed, discarded=discarded), None

    def outputs(self) -> dict[str, np.ndarray]:
        return dict(self._outputs)

    def queue_turn(self) -> tuple[float, ...]:
        samples, self._outputs = run_parallel_turn(self._executor, self._arrays, self._n_requests)
        return samples

    def precision(self, rows: Sequence[Counter]) -> str:
        return lowest_precision(rows, self.placed.graph, self._hints())

    def counters(self) -> tuple[Counter, ...]:
        rows = self._executor.profiling_info()
        return read_counters(rows, self.partition, self.placed.graph)

    def chosen(self) -> Chosen:
        return chosen_by(self._executor.compiled_models, self.placed.core)

    def spans(self, requests: int) -> tuple[Span, ...]:
        kept = self._executor.timeline
        first = max((span.request for span in kept), default=0) - requests + 1
        n_subgraphs = self.partition.n_subgraphs
        # A request that is kept in part only would look as if it had waited.
        runs: dict[int, list[Span]] = {}
        for span in kept:
            if span.request >= first:
                runs.setdefault(span.request, []).append(span)
        return tuple(s for run in runs.values() if len(run) == n_subgraphs for s in run)

    def close(self) -> None:
        self._executor.close(cancel=True)

    def _hints(self) -> Iterable[object]:
        return _hints(self._executor)


class _GenerationRunner:
    """A language model at work: a turn is a generation, an inference the next token of one."""

    def __init__(
        self,
        placed: BoundPlacement,
        arrays: list[np.ndarray],
        execution: Execution,
        counters: bool,
        compile_properties: dict[str, Any],
    ):
        assert execution.scenario is not None
        self.placed = placed
        (prompt,) = arrays
        # Counters are running means, or of the last inference: a long prompt among the further
        # steps would be no step's time.
        self._prompt = prompt[:, :1] if counters else prompt
        self._n_new = execution.scenario.new_tokens
        self._model = language_model(placed.bound.model)
        self._compiled: CompiledPlacement | None = None
        self._executor: ParallelExecutor | None = None
        if execution.executor == HETERO:
            self._compiled = compile_placed(
                placed, counters=counters, compile_properties=compile_properties
            )
            self.partition = self._compiled.partition
            self.as_predicted = self._compiled.as_predicted
            self.compile_ms = self._compiled.compile_ms
            self._session: TokenSession = CompiledSession(self._compiled)
        else:
            counted = {"PERF_COUNT": True} if counters else {}
            self._executor = ParallelExecutor.of(
                placed, compile_properties={**compile_properties, **counted}
            )
            self.partition = replace(self._executor.partition, observed=True)
            self.as_predicted = True
            self.compile_ms = self._executor.compile_ms
            self._session = ExecutorSession(self._executor, self._model)
        self._last: Generated | None = None
        self._steps: Iterator[object] = iter(())

    def infer(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._steps = steps(self._session, self._model, self._prompt, self._n_new)
            next(self._steps)

    def turn(self, timed: int = 0, discarded: int = 0) -> TurnTimes:
        del timed, discarded  # a generation has the length that the scenario says
        self._steps = iter(())
        self._last = generate(self._session, self._model, self._prompt, self._n_new)
        first_us, *further_us = self._last.step_us
        return tuple(further_us), first_us

    def outputs(self) -> dict[str, np.ndarray]:
        if self._last is None:
            self.turn()
        assert self._last is not None
        return outputs_of(self._last)

    def queue_turn(self) -> tuple[float, ...]:
        raise ArgumentError("A language model has one request in flight.")

    def precision(self, rows: Sequence[Counter]) -> str:
        if self._compiled is not None:
            return executed_precision(rows, self._compiled)
        assert self._executor is not None
        return lowest_precision(rows, self.placed.graph, _hints(self._executor))

    def counters(self) -> tuple[Counter, ...]:
        if self._executor is not None:
            rows = self._executor.profiling_info()
        else:
            assert isinstance(self._session, CompiledSession)
            rows = self._session.request.profiling_info
        return read_counters(rows, self.partition, self.placed.graph)

    def chosen(self) -> Chosen:
        if self._executor is not None:
            return chosen_by(self._executor.compiled_models, self.placed.core)
        assert self._compiled is not None
        return chosen_by([self._compiled.compiled_model], self.placed.core)

    def spans(self, requests: int) -> tuple[Span, ...]:
        del requests
        return ()

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close(cancel=True)


def inputs_for(
    bound: BoundModel, inputs: Inputs | None, seed: int, scenario: Scenario | None
) -> list[np.ndarray]:
    """Return the arrays that a runner is opened with: the model's inputs, or a prompt.

    Raises
    ------
    InputError
        They do not fit the model, or the scenario.
    """
    if scenario is None:
        return given_or_generated(bound, inputs, seed)
    return given_or_random_prompt(bound, inputs, scenario, seed)


def expected_outputs(
    placed: BoundPlacement, arrays: Sequence[np.ndarray], scenario: Scenario | None
) -> dict[str, np.ndarray]:
    """Return what one device in f32 makes of a runner's inputs.

    Raises
    ------
    DeviceError
        No single device here supports the whole model.
    """
    if scenario is None:
        return reference_outputs(placed.bound, arrays)
    return reference_generation(placed.bound, arrays[0], scenario)


def compare_run(
    runner: Runner,
    arrays: Sequence[np.ndarray],
    rows: Sequence[Counter],
    scenario: Scenario | None,
    expected: Mapping[str, np.ndarray] | None = None,
) -> tuple[Agreement, ...]:
    """Compare what a runner made with one device in f32; ``rows`` are its counters, if known."""
    bound, precision = runner.placed.bound, runner.precision(rows)
    if scenario is None:
        outputs = runner.outputs()
        return compare_with_reference(bound, arrays, outputs, precision, expected=expected)
    if expected is None:
        expected = expected_outputs(runner.placed, arrays, scenario)
    precision = generation_precision(runner.placed, precision)
    return compare_generation(runner.outputs(), expected, precision)


def _hints(executor: ParallelExecutor) -> Iterator[object]:
    for model in executor.compiled_models:
        with contextlib.suppress(Exception):  # not every device has the property
            yield model.get_property("INFERENCE_PRECISION_HINT")
