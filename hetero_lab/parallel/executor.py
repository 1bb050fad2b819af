"""Run independent subgraphs of a placement in parallel, with several requests in flight.

HETERO runs the subgraphs of a request one after another. This executor cuts the model itself,
compiles each subgraph on its device, and runs each as soon as its inputs are ready.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.arguments import check_whole, checked
from hetero_lab.clock import now
from hetero_lab.devices.core import bind
from hetero_lab.errors import ArgumentError
from hetero_lab.model.language import language_model
from hetero_lab.model.read import Source
from hetero_lab.parallel.scheduler import Dataflow, Done, Outputs, Scheduler
from hetero_lab.placement.overlap import predict_overlapping
from hetero_lab.placement.partition import Partition, partition_of
from hetero_lab.placement.placement import BoundPlacement, Placement, PlacementLike, resolve
from hetero_lab.planning.timeline import Span
from hetero_lab.runtime.compiled import (
    COUNTED,
    check_crash,
    check_states,
    labelled_clone,
    valid_submodels,
)
from hetero_lab.runtime.executors import times_between_results
from hetero_lab.runtime.inputs import Inputs, Ports
from hetero_lab.runtime.pieces import compile_submodels, cut, leave_cores


def cuts(placement: BoundPlacement, *, requests: int = 1) -> Partition:
    """Return the partition that a :class:`ParallelExecutor` makes, without a compile."""
    check_whole("requests", requests, least=1)
    graph = placement.graph
    if graph.stateful_paths and requests > 1:
        raise ArgumentError(
            "A model with states has them in its request: several in flight would mix them. "
            "Use requests=1."
        )
    partition = predict_overlapping(graph, placement.affinity)
    check_states(graph, partition)
    valid_submodels(placement.bound, partition)
    return partition


class ParallelExecutor:
    """Run independent subgraphs in parallel, with several requests in flight.

    After :meth:`close`, methods raise ClosedError. In a done callback, those that wait raise
    HeteroLabError instead: the callback's thread would wait for itself.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        An Affinity, a Placement, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    device_properties
        Properties of each device, which override those of a Placement one by one. CPU devices
        that share the cores run in parallel with ``EXCLUSIVE_ASYNC_REQUESTS: False``,
        ``ENABLE_CPU_PINNING: False`` and a number of threads each. Beside a GPU or NPU, the CPU
        leaves two of eight or more cores to the threads that drive it, unless
        ``INFERENCE_NUM_THREADS`` is given.
    requests
        The largest number of requests in flight; each has tensors of its own.
    compile_properties
        More properties of every compile call, for all devices, for instance
        ``{"PERF_COUNT": True}``.

    Attributes
    ----------
    placed, placement
        The placement, with and without its model and Core.
    partition
        The subgraphs of the cut model, always ``as_predicted``.
    compile_ms
        Duration of all compile calls.

    Raises
    ------
    AffinityError, DeviceError, PropertyError
        The placement does not fit, tears a stateful path, or leaves a submodel that is not valid,
        because it does not know its shapes.
    ArgumentError
        Less than one request, or several for a model with states.
    CompileError
        A device refuses its subgraph.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> import numpy as np
    >>> with hl.ParallelExecutor(model, "HETERO:ACC,CPU", requests=2) as executor:
    ...     image = [np.zeros((1, 1, 8, 8), np.float32)]
    ...     waiting = [executor.submit(image) for _ in range(2)]
    ...     [sorted(future.result()) for future in waiting]
    [['digit', 'parity'], ['digit', 'parity']]
    """

    @checked
    def __init__(
        self,
        model: Source,
        placement: PlacementLike,
        *,
        device_properties: Mapping[str, Mapping[str, Any]] | None = None,
        requests: int = 1,
        compile_properties: Mapping[str, Any] | None = None,
        core: ov.Core | None = None,
    ):
        base = resolve(bind(model, core), placement)
        if device_properties is not None:
            base = resolve(base.bound, base.placement.with_properties(device_properties))
        self._open(base, requests, compile_properties or {})

    @classmethod
    def of(
        cls,
        placed: BoundPlacement,
        *,
        requests: int = 1,
        compile_properties: Mapping[str, Any] | None = None,
    ) -> ParallelExecutor:
        """Make an executor from a bound placement; arguments and errors as for the class."""
        executor = cls.__new__(cls)
        executor._open(placed, requests, compile_properties or {})
        return executor

    def _open(
        self,
        bound_placement: BoundPlacement,
        requests: int,
        compile_properties: Mapping[str, Any],
    ) -> None:
        """Cut the model, compile its parts and start the threads."""
        self._ports = Ports(bound_placement.bound)
        bound_placement = replace(bound_placement, placement=bound_placement.placement.labelled())
        self.placed: BoundPlacement = bound_placement
        self.placement: Placement = bound_placement.placement
        self.as_predicted: bool | None = True
        self.partition: Partition = replace(cuts(bound_placement, requests=requests), observed=True)
        self.output_names: tuple[str, ...] = bound_placement.bound.output_names
        self._submodels = cut(bound_placement.bound, self.partition, hand_inputs_on=False)
        by_device = {d: {**p, **compile_properties} for d, p in bound_placement.properties.items()}
        whole = bound_placement.bound.model
        if not bound_placement.direct:
            whole, _ = labelled_clone(bound_placement, partition_of(bound_placement))
        check_crash(bound_placement, whole)
        started = now()
        self.compiled_models: list[ov.CompiledModel] = compile_submodels(
            self._submodels, leave_cores(by_device, bound_placement.core), bound_placement.core
        )
        self.compile_ms: float = (now() - started) * 1e3
        graph = bound_placement.graph
        parameters = {graph.ops[i].name: number for number, i in enumerate(graph.parameters)}
        self._scheduler = Scheduler(
            Dataflow(self._submodels, parameters),
            self.compiled_models,
            [s.device for s in self._submodels],
            self.output_names,
            requests,
        )
        # Threads refer only to the scheduler, so an executor that nobody closed is collected.
        weakref.finalize(self, self._scheduler.stop).atexit = False

    def __call__(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Infer once; return name → fresh array in the model's own output order.

        Element types that NumPy lacks are widened exactly, for instance bf16 to float32.

        Raises
        ------
        InputError
            An input is missing, unknown, or has the wrong shape or element type.
        """
        return self._scheduler.call(self._ports.bind(inputs))

    def submit(self, inputs: Inputs) -> Future[dict[str, np.ndarray]]:
        """Queue a request; the future has the result of a call, or its error.

        Raises InputError as a call does.
        """
        return self.submit_bound(self._ports.bind(inputs))

    def submit_bound(
        self, arrays: Sequence[np.ndarray], done: Done | None = None
    ) -> Future[Outputs]:
        """Queue a request with bound arrays, which ends by calling ``done`` with its future."""
        return self._scheduler.submit(arrays, done)

    def reset_state(self) -> None:
        """Wait for submitted requests, then reset the states of the model."""
        with self._scheduler.idle() as slot:
            for request in slot.requests:
                request.reset_state()

    @property
    def timeline(self) -> tuple[Span, ...]:
        """Start and end of the last 100,000 runs of subgraphs."""
        return self._scheduler.timeline

    def profiling_info(self) -> list[object]:
        """Wait for submitted requests; return the last one's counters, with HETERO's names.

        They need ``compile_properties={"PERF_COUNT": True}``.
        """
        with self._scheduler.idle() as slot:
            infos = [request.profiling_info for request in slot.requests]
        for submodel, rows in zip(self._submodels, infos, strict=True):
            for row in rows:
                row.node_name = f"subgraph{submodel.index}: {row.node_name}"
        return [row for rows in infos for row in rows]

    def close(self, cancel: bool = False) -> None:
        """Wait for submitted requests, or cancel those not begun; leave no thread behind.

        In a done callback it does not wait: requests in flight end by themselves, and the threads
        after them.
        """
        self._scheduler.close(cancel)

    def __enter__(self) -> ParallelExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ParallelExecutor({self.placement.label!r}, {self.partition!r})"


class ExecutorSession:
    """The requests of a ParallelExecutor, one at a time; each copies its inputs and outputs."""

    def __init__(self, compiled: ParallelExecutor):
        self.compiled = compiled
        self.last: dict[str, np.ndarray] = {}
        self._arrays: Sequence[np.ndarray] = ()

    @cached_property
    def _logits(self) -> str:
        bound = self.compiled.placed.bound
        return bound.output_names[language_model(bound.model).logits]

    def give(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays

    def infer(self) -> None:
        self.last = self.compiled.submit_bound(self._arrays).result()

    def outputs(self) -> dict[str, np.ndarray]:
        return dict(self.last)

    def reset(self) -> None:
        self.compiled.reset_state()

    def step(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        self.give(arrays)
        self.infer()
        return self.last[self._logits]

    def profiling_info(self) -> Sequence[object]:
        return self.compiled.profiling_info()

    def queue_turn(self, arrays: Sequence[np.ndarray], requests: int) -> tuple[float, ...]:
        latest: deque[Future[Outputs]] = deque(maxlen=1)

        def run(count: int, on_result: Callable[[], None]) -> None:
            errors: SimpleQueue[BaseException | None] = SimpleQueue()

            def on_end(future: Future[Outputs]) -> None:
                on_result()
                errors.put(None if future.cancelled() else future.exception())

            for _ in range(count):
                latest.append(self.compiled.submit_bound(arrays, on_end))
            # A future has its result before its callback is called.
            failed = [e for e in [errors.get() for _ in range(count)] if e is not None]
            if failed:
                raise failed[0]

        samples = times_between_results(run, requests)
        self.last = latest[0].result()
        return samples

    def close(self) -> None:
        self.compiled.close(cancel=True)

    @staticmethod
    def check(placement: BoundPlacement, requests: int) -> None:
        cuts(placement, requests=requests)

    @classmethod
    def open(
        cls, placement: BoundPlacement, requests: int, counters: bool, properties: Mapping[str, Any]
    ) -> ExecutorSession:
        config = {**properties, **(COUNTED if counters else {})}
        return cls(ParallelExecutor.of(placement, requests=requests, compile_properties=config))
