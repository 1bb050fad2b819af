"""Run the subgraphs of a placement as soon as their inputs are there, devices side by side.

HETERO runs the subgraphs of a request strictly one after another. This executor cuts the model
itself and compiles each subgraph on its device; a device runs one subgraph at a time, the most
urgent first. There are as many threads as devices, and they belong to none: who ends a subgraph
goes on with what is ready, and wakes another thread only for what can run beside it; a chain
runs in the thread that calls. All sleep while there is nothing to do.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.backend.core import shared_core
from hetero_lab.clock import now
from hetero_lab.errors import ArgumentError, HeteroLabError
from hetero_lab.model.opgraph import PARAMETER
from hetero_lab.model.read import PreparedModel, Source, output_names, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, predict, predict_by_branch
from hetero_lab.placement.placement import Placement, PlacementLike, compile_properties, resolve
from hetero_lab.runtime.compiled import check_cuts
from hetero_lab.runtime.cores import cores_of_their_own, stay_on
from hetero_lab.runtime.cut import cut
from hetero_lab.runtime.inputs import Inputs, bind_inputs
from hetero_lab.runtime.submodels import Slot, Wires, compile_submodels, named_rows
from hetero_lab.runtime.timeline import Span

_KEPT_SPANS = 100_000
_RANKED_AFTER = 3  # requests after which urgency follows measured times


class ClosedError(HeteroLabError, RuntimeError):
    """The executor was closed."""


def cuts(
    prepared: PreparedModel,
    affinity: Affinity,
    *,
    n_requests: int = 1,
    separate_branches: bool = False,
) -> Partition:
    """Return the partition that a :class:`ParallelExecutor` makes, without compiling anything.

    Raises
    ------
    AffinityError
        The affinity cuts a tensor of unknown shape, or tears a stateful path.
    ArgumentError
        Less than one request, or several of a model with states.
    """
    if isinstance(n_requests, bool) or not isinstance(n_requests, int) or n_requests < 1:
        raise ArgumentError(f"n_requests= is a whole number of at least 1, not {n_requests!r}.")
    graph = prepared.graph
    if graph.stateful_paths and n_requests > 1:
        raise ArgumentError(
            "A model with states has them in its request: several in flight would mix them. "
            "Use n_requests=1."
        )
    cut_up = predict_by_branch if separate_branches else predict
    partition = cut_up(graph, affinity)
    check_cuts(prepared, partition)
    return partition


class ParallelExecutor:
    """Run independent subgraphs at the same time, with several requests in flight.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    affinity
        An Affinity, a Placement, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    device_properties
        Properties of each device; they win over those of a Placement. On CPU devices that
        share the cores, ``EXCLUSIVE_ASYNC_REQUESTS: False``, ``ENABLE_CPU_PINNING: False`` and a
        number of threads each let them really run side by side.
    n_requests
        How many requests are in flight at most; each has tensors of its own.
    separate_branches
        Cut in addition where independent branches on one device would be one subgraph.
    properties
        More properties of every compile call, for instance ``{"PERF_COUNT": True}``.

    Attributes
    ----------
    placement, partition
        What is run, and how the model was cut for it.
    compile_ms
        Time of all compile calls.

    Raises
    ------
    AffinityError, DeviceError, PropertyError
        The placement does not fit, cuts a tensor of unknown shape, or tears a stateful path.
    ArgumentError
        Less than one request, or several of a model with states.
    CompileError
        A device refuses its subgraph.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> import numpy as np
    >>> with hl.ParallelExecutor(model, "HETERO:ACC,CPU", n_requests=2) as executor:
    ...     image = [np.zeros((1, 1, 8, 8), np.float32)]
    ...     waiting = [executor.submit(image) for _ in range(2)]
    ...     [sorted(future.result()) for future in waiting]
    [['digit', 'parity'], ['digit', 'parity']]
    """

    def __init__(
        self,
        model: Source,
        affinity: PlacementLike,
        *,
        device_properties: Mapping[str, Mapping[str, Any]] | None = None,
        n_requests: int = 1,
        separate_branches: bool = False,
        properties: Mapping[str, Any] | None = None,
        core: ov.Core | None = None,
    ):
        core = core or shared_core()
        self._prepared = prepare(model)
        placement = resolve(self._prepared, affinity, core=core)
        if device_properties is not None:
            merged = {**placement.device_properties, **device_properties}
            placement = Placement(placement.affinity, placement.label, merged)
            placement = resolve(self._prepared, placement, core=core)
        graph = self._prepared.graph
        self.placement = placement
        self.partition: Partition = cuts(
            self._prepared,
            placement.affinity,
            n_requests=n_requests,
            separate_branches=separate_branches,
        )
        self.output_names: tuple[str, ...] = tuple(output_names(self._prepared.model))
        self._submodels = cut(self._prepared, self.partition)
        by_device = {
            device: {**own, **(properties or {})}
            for device, own in compile_properties(placement, core).items()
        }
        started = now()
        self.compiled_models: list[ov.CompiledModel] = compile_submodels(
            self._submodels, by_device, core
        )
        self.compile_ms: float = (now() - started) * 1e3
        self._wires = Wires(
            self._submodels,
            {
                graph.ops[i].name: n
                for n, i in enumerate(graph.parameters)
                if graph.ops[i].type == PARAMETER
            },
        )
        self._free = [Slot(self.compiled_models, self._wires) for _ in range(n_requests)]
        self._waiting: deque[_Job] = deque()
        self._ready: dict[str, list[tuple[float, int, _Job, int]]] = {
            device: [] for device in dict.fromkeys(s.device for s in self._submodels)
        }
        self._resting = set(self._ready)  # devices that run nothing
        self._state = threading.RLock()
        self._wake = threading.Condition(self._state)
        self._idle = threading.Condition(self._state)
        self._running: set[_Job] = set()
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._urgency = [0.0] * len(self._submodels)
        self._spent = [0.0] * len(self._submodels)
        self._spans: deque[Span] = deque(maxlen=_KEPT_SPANS)
        self._finished = 0
        self._closing = self._stopped = False
        users = self._wires.users
        self._is_chain = all(i in users[i - 1] for i in range(1, len(self._submodels)))
        self._threads = [
            threading.Thread(target=self._work, args=(core,), name=f"hetero_lab executor {i}")
            for i, core in enumerate(cores_of_their_own(len(self._ready), self.compiled_models))
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def __call__(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Infer once; return name → fresh array in the model's own output order.

        Raises
        ------
        InputError
            An input is missing, unknown, or has the wrong shape or element type.
        ClosedError
            The executor was closed.
        """
        job = self._put(bind_inputs(self._prepared, inputs), None)
        with self._state:
            # Nothing can run beside a chain, so that waking somebody would only cost time.
            taken = self._take() if self._is_chain and self._running == {job} else None
            self._wake.notify(self._n_possible())
        while taken is not None:
            taken = self._run(*taken, until=job)
        return job.future.result()

    def submit(self, inputs: Inputs) -> Future[dict[str, np.ndarray]]:
        """Put a request in line; the future gives what a call would return, or raises.

        Raises
        ------
        InputError
            An input is missing, unknown, or has the wrong shape or element type.
        ClosedError
            The executor was closed.
        """
        return self.submit_bound(bind_inputs(self._prepared, inputs))

    def submit_bound(
        self, arrays: list[np.ndarray], done: Callable[[Future[Any]], object] | None = None
    ) -> Future[dict[str, np.ndarray]]:
        """Put a request in line as :meth:`submit` does, with arrays that were bound already.

        ``done`` is called with the future when it is done, by the thread that did it.
        """
        job = self._put(arrays, done)
        with self._state:
            self._wake.notify(self._n_possible())
        return job.future

    def _put(self, arrays: list[np.ndarray], done: Callable[[Future[Any]], object] | None) -> _Job:
        """Put a request in line and wake nobody."""
        job = _Job(next(self._numbers), arrays, Future())
        if done is not None:
            job.future.add_done_callback(done)
        with self._state:
            if self._closing:
                raise ClosedError("The executor was closed; make a new ParallelExecutor.")
            self._running.add(job)
            self._waiting.append(job)
            started = self._start_waiting()
        for first in started:
            self._begin(first)
        return job

    @property
    def timeline(self) -> tuple[Span, ...]:
        """What ran when, the last 100,000 runs of subgraphs."""
        with self._state:
            return tuple(self._spans)

    def profiling_info(self) -> list[object]:
        """Return the counters of what ran last, named as HETERO names them; nothing may run.

        The executor has to be made with ``properties={"PERF_COUNT": True}``.
        """
        with self._state:
            slot = self._free[-1]
        return [
            row
            for submodel, request in zip(self._submodels, slot.requests, strict=True)
            for row in named_rows(submodel, request.profiling_info)
        ]

    def close(self, cancel: bool = False) -> None:
        """Wait for what was submitted, or cancel what has not begun; leave no thread behind."""
        with self._state:
            self._closing = True
            if cancel:
                for job in self._waiting:
                    job.future.cancel()
                    job.future.set_running_or_notify_cancel()  # wakes concurrent.futures.wait
                    self._running.discard(job)
                self._waiting.clear()
            self._idle.wait_for(lambda: not self._running)
            self._stopped = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()
        self._free.clear()

    def __enter__(self) -> ParallelExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ParallelExecutor({self.placement.label!r}, {self.partition!r})"

    def _start_waiting(self) -> list[_Job]:
        started = []
        while self._waiting and self._free:
            job = self._waiting.popleft()
            if not job.future.set_running_or_notify_cancel():
                self._running.discard(job)
                continue
            job.slot = self._free.pop()
            started.append(job)
        return started

    def _begin(self, job: _Job) -> None:
        assert job.slot is not None
        try:
            job.slot.set_inputs(job.arrays)
        except BaseException as error:
            self._finish(job, error)
            return
        job.missing = list(self._wires.n_sources)
        job.left = len(self._submodels)
        if not job.left:
            self._finish(job, None)
        for index in self._wires.first:
            self._make_ready(job, index)

    def _make_ready(self, job: _Job, index: int) -> None:
        # Older requests first, then what the most work hangs on.
        urgency = float(job.number) - 1e-9 * self._urgency[index]
        entry = (urgency, next(self._order), job, index)
        with self._state:
            heapq.heappush(self._ready[self._submodels[index].device], entry)

    def _n_possible(self) -> int:
        """Return how many subgraphs could start now; the state is locked."""
        return sum(bool(self._ready[device]) for device in self._resting)

    def _take(self) -> tuple[_Job, int] | None:
        """Take the most urgent subgraph whose device rests; the state is locked."""
        able = [device for device in self._resting if self._ready[device]]
        if not able:
            return None
        device = min(able, key=lambda device: self._ready[device][0][:2])
        self._resting.remove(device)
        _, _, job, index = heapq.heappop(self._ready[device])
        return job, index

    def _work(self, core: int | None) -> None:
        """Run what is ready until the executor closes."""
        stay_on(core)
        while True:
            with self._state:
                taken = self._take()
                while taken is None:
                    if self._stopped:
                        return
                    self._wake.wait()
                    taken = self._take()
            while taken is not None:
                taken = self._run(*taken)

    def _run(self, job: _Job, index: int, until: _Job | None = None) -> tuple[_Job, int] | None:
        """Run a subgraph; return what this thread goes on with, None after the end of ``until``."""
        assert job.slot is not None
        error: BaseException | None = None
        started = now()
        if not job.failed:
            try:
                job.slot.requests[index].infer(share_outputs=True)  # without a copy
            except BaseException as raised:  # Ctrl-C too: nobody else gives the device back
                error = raised
        interrupted = error is not None and not isinstance(error, Exception)
        ended = now()
        device = self._submodels[index].device
        with self._state:
            self._resting.add(device)
            if not job.failed and error is None:
                self._spans.append(Span(job.number, index, device, started, ended))
                self._spent[index] += ended - started
            if error is not None and job.error is None:
                job.error = error
            job.failed = job.error is not None
            job.left -= 1
            done = job.left == 0
            for user in self._wires.users[index]:
                job.missing[user] -= 1
                if not job.missing[user]:
                    self._make_ready(job, user)
            taken = None if interrupted or (done and job is until) else self._take()
            self._wake.notify(self._n_possible())
        if done:
            self._finish(job, job.error)
        if interrupted and error is not None:
            raise error
        return taken

    def _finish(self, job: _Job, error: BaseException | None) -> None:
        slot = job.slot
        assert slot is not None
        outputs: dict[str, np.ndarray] = {}
        if error is None:
            try:
                outputs = slot.outputs(self.output_names)
            except BaseException as raised:
                error = raised
        with self._state:
            self._free.append(slot)
            job.slot = None
            self._finished += 1
            if self._finished == _RANKED_AFTER:
                self._urgency = self._wires.urgency(self._spent)
            started = self._start_waiting()
        for first in started:
            self._begin(first)
        with self._state:
            self._wake.notify(self._n_possible())
        if error is None:
            job.future.set_result(outputs)
        else:
            job.future.set_exception(error)
        with self._state:
            self._running.discard(job)
            self._idle.notify_all()


class _Job:
    """One request on its way through the subgraphs."""

    def __init__(self, number: int, arrays: list[np.ndarray], future: Future[Any]):
        self.number = number
        self.arrays = arrays
        self.future = future
        self.slot: Slot | None = None
        self.missing: list[int] = []
        self.left = 0
        self.error: BaseException | None = None
        self.failed = False
