"""Runners: a compiled placement with its inputs, ready to run, whichever executor runs it.

``hetero`` is OpenVINO's own HETERO (or the plain device), ``parallel`` the lab's
:class:`~hetero_lab.runtime.parallel.ParallelExecutor`. Whoever measures asks a runner and need
not know which it is.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from hetero_lab.errors import ArgumentError, HeteroLabWarning, did_you_mean, shorten
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.runtime.chosen import Chosen, chosen_by, settle
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.counters import Counter, read_counters
from hetero_lab.runtime.parallel import ParallelExecutor, cuts
from hetero_lab.runtime.reference import executed_precision, lowest_precision
from hetero_lab.runtime.throughput import run_parallel_turn, run_queue_turn
from hetero_lab.runtime.timeline import Span
from hetero_lab.runtime.timing import run_turn

HETERO, PARALLEL = "hetero", "parallel"
EXECUTORS = (HETERO, PARALLEL)
_COUNTER_TURNS = 3  # the counters are a running mean; a few turns settle it


@dataclass(frozen=True)
class Execution:
    """How a placement is run: by which executor, and how many requests are in flight at most.

    ``split_branches`` cuts independent branches on one device apart, which only ``parallel`` can.

    Raises
    ------
    ArgumentError
        An unknown executor, no request, or branches split for an executor that cannot.
    """

    executor: str = HETERO
    requests: int = 1
    split_branches: bool = False

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
        if self.split_branches and self.executor != PARALLEL:
            raise ArgumentError(
                "HETERO decides by itself what a subgraph is; split_branches=True needs "
                "executor='parallel'."
            )

    def check(self, placed: BoundPlacement) -> None:
        """Raise for what could not run, before anything is compiled.

        Raises
        ------
        AffinityError
            A cut tensor has no known shape, or a stateful path would be torn.
        ArgumentError
            Several requests in flight of a model with states.
        """
        virtual = placed.placement.virtual
        if self.executor == PARALLEL and virtual:
            raise ArgumentError(
                f"{virtual} runs a whole model by itself: executor='parallel' takes an "
                "affinity over devices."
            )
        if self.executor == PARALLEL:
            cuts(
                placed,
                requests=self.requests,
                split_branches=self.split_branches,
            )


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
    properties: Mapping[str, Any] | None = None,
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
    properties
        More properties of each compile call, for instance ``{"CACHE_DIR": …}``.

    Raises
    ------
    AffinityError, ArgumentError
        The executor cannot run it; nothing was compiled.
    CompileError
        The runtime refused.
    """
    kind = _HeteroRunner if execution.executor == HETERO else _ParallelRunner
    return kind(placed, arrays, execution, counters, dict(properties or {}))


def measure_counters(
    placed: BoundPlacement,
    arrays: list[np.ndarray],
    execution: Execution,
    *,
    properties: Mapping[str, Any] | None = None,
) -> tuple[Counter, ...]:
    """Compile a placement once more with counters, run it and read them.

    Raises
    ------
    MeasurementError
        Its devices have no counters.
    """
    one = replace(execution, requests=1)
    with warnings.catch_warnings():
        # A partition that differs from the prediction was already said of the first compile.
        warnings.simplefilter("ignore", HeteroLabWarning)
        runner = open_runner(placed, arrays, one, counters=True, properties=properties)
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
        properties: dict[str, Any],
    ):
        self._compiled = compile_placed(placed, counters=counters, properties=properties)
        self.placed = placed
        self.partition = self._compiled.partition
        self.as_predicted = self._compiled.as_predicted
        self.compile_ms = self._compiled.compile_ms
        self._arrays = arrays
        self._n_requests = execution.requests
        self._request = self._compiled.new_request(arrays)
        # Nothing in between that would be timed too, and no copy of the outputs.
        self.infer = partial(self._request.infer, share_outputs=True)

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
        properties: dict[str, Any],
    ):
        self._executor = ParallelExecutor.of(
            placed,
            requests=execution.requests,
            split_branches=execution.split_branches,
            properties={**properties, **({"PERF_COUNT": True} if counters else {})},
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
        for model in self._executor.compiled_models:
            with contextlib.suppress(Exception):  # not every device has the property
                yield model.get_property("INFERENCE_PRECISION_HINT")
