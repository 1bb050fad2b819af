"""Run the subgraphs of several requests, each as soon as its inputs are there.

A device runs one subgraph at a time: one of the oldest request, and among those the one with the
longest path to the end. There is one thread more than there are devices. No thread belongs to a
device, and a caller works too, in its own thread.

Waking a thread takes long, so the hand-over between subgraphs avoids it in two ways. The thread
that finishes a subgraph starts everything that can start now, asynchronously on other devices, and
runs one subgraph itself: no device idles until a thread wakes up. And a started run is handed to a
waiting thread only if its end lets another subgraph start. Otherwise the caller keeps the run and
waits for it once it has nothing else to do. All threads sleep while there is nothing to do.
"""

from __future__ import annotations

import atexit
import contextlib
import heapq
import itertools
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import numpy as np
import openvino as ov

from hetero_lab import interrupts
from hetero_lab.clock import now
from hetero_lab.errors import ClosedError, HeteroLabError
from hetero_lab.model.opgraph import PARAMETER, grouped
from hetero_lab.planning.timeline import Span
from hetero_lab.runtime.compiled import ask, failed_inference
from hetero_lab.runtime.pieces import Submodel
from hetero_lab.runtime.tensors import can_share, is_plain, to_array, to_tensor

Outputs: TypeAlias = dict[str, np.ndarray]
Done: TypeAlias = Callable[[Future[Outputs]], object]

_LOG = logging.getLogger(__name__)
_KEPT_SPANS = 100_000  # as timeline promises; an executor that runs for days keeps no more
_RANKED_AFTER = 3  # after this many requests, measured times decide the urgency


class Dataflow:
    """The tensors that each submodel reads, and the submodels that make them.

    ``submodels`` are in execution order; ``parameters`` maps the names of the model's Parameters
    to the indices of its inputs.
    """

    def __init__(self, submodels: Sequence[Submodel], parameters: Mapping[str, int]):
        producer_of = {
            entry: (s.index, port) for s in submodels for port, entry in enumerate(s.outputs)
        }
        # (subgraph, port, model input) and (subgraph, port, producing subgraph, its port).
        self.from_model: list[tuple[int, int, int]] = []
        self.from_others: list[tuple[int, int, int, int]] = []
        for submodel in submodels:
            for port, entry in enumerate(submodel.inputs):
                if entry[0] == "model":
                    self.from_model.append((submodel.index, port, int(entry[1])))
                elif str(entry[1]) in parameters:
                    # HETERO passes a model input on through its first user; this reads it directly.
                    self.from_model.append((submodel.index, port, parameters[str(entry[1])]))
                else:
                    self.from_others.append((submodel.index, port, *producer_of[entry]))
        self.to_model = sorted(
            (int(entry[1]), s.index, port)
            for s in submodels
            for port, entry in enumerate(s.outputs)
            if entry[0] == "model"
        )
        # If an output is also an input, the CPU plugin leaves all preset output tensors empty.
        self.with_own_outputs = {
            s.index
            for s in submodels
            for result in s.model.get_results()
            if result.input_value(0).get_node().get_type_name() == PARAMETER
        }
        edges = sorted({(source, target) for target, _, source, _ in self.from_others})
        self.users: list[list[int]] = [[] for _ in submodels]
        self.n_sources = [0] * len(submodels)
        for source, target in edges:
            self.users[source].append(target)
            self.n_sources[target] += 1
        self.first = [index for index, n in enumerate(self.n_sources) if not n]

    def upward_ranks(self, spent_s: Sequence[float]) -> list[float]:
        """Return the time of the longest path from each subgraph to the end, itself included."""
        rank = [0.0] * len(spent_s)
        for index in reversed(range(len(spent_s))):
            rank[index] = spent_s[index] + max((rank[u] for u in self.users[index]), default=0.0)
        return rank


class Slot:
    """The infer requests of one request in flight, chained by shared tensors."""

    def __init__(self, compiled: Sequence[ov.CompiledModel], dataflow: Dataflow):
        self.requests = [model.create_infer_request() for model in compiled]
        self._can_share = [can_share(model.outputs) for model in compiled]
        self._dataflow = dataflow
        self._readers = grouped(
            (number, (subgraph, port)) for subgraph, port, number in dataflow.from_model
        )
        self._input_types = {
            number: compiled[readers[0][0]].inputs[readers[0][1]].get_element_type()
            for number, readers in self._readers.items()
        }
        # The current input tensors, and the arrays whose memory they share: a request does not
        # keep that memory alive.
        self._set: dict[int, tuple[ov.Tensor, np.ndarray | None]] = {}
        self._copies: dict[int, tuple[ov.Tensor, np.ndarray | None]] = {}
        # A tensor of unknown shape exists only once its producer has run.
        self._late: list[list[tuple[int, int, int]]] = [[] for _ in compiled]
        for target, port, source, source_port in dataflow.from_others:
            if compiled[source].outputs[source_port].get_partial_shape().is_dynamic:
                self._late[target].append((port, source, source_port))
            else:
                tensor = self.requests[source].get_output_tensor(source_port)
                self.requests[target].set_input_tensor(port, tensor)
        # Outputs written by the host's cores go straight into memory that the caller keeps.
        self._fresh: dict[tuple[int, int], ov.Tensor] = {}
        self._given = {
            (subgraph, port): (output.get_element_type(), output.get_shape())
            for _, subgraph, port in dataflow.to_model
            if subgraph not in dataflow.with_own_outputs
            and n_threads(compiled[subgraph])
            and not (output := compiled[subgraph].outputs[port]).get_partial_shape().is_dynamic
            and is_plain(output.get_element_type())
        }

    def prepare(self, arrays: Sequence[np.ndarray], share: bool) -> None:
        """Set the inputs, and memory for the outputs.

        With ``share``, arrays are read in place where possible, and must not change meanwhile.
        """
        for number, readers in self._readers.items():
            array = arrays[number]
            current, shared = self._set.get(number, (None, None))
            if share and array.dtype.kind != "U" and array.flags.carray and array.size:
                # A caller that refills the same array needs no new tensor.
                if array is shared and current is not None and current.shape == array.shape:
                    continue
                tensor = ov.Tensor(array, array.shape, self._input_types[number])
                shared = array
            else:
                tensor, shared = self._copy(number, array), None
            if tensor is not current:
                for subgraph, port in readers:
                    self.requests[subgraph].set_input_tensor(port, tensor)
                self._set[number] = tensor, shared
        for (subgraph, port), (element_type, shape) in self._given.items():
            if (subgraph, port) not in self._fresh:
                tensor = self._fresh[subgraph, port] = ov.Tensor(element_type, shape)
                self.requests[subgraph].set_output_tensor(port, tensor)

    def _copy(self, number: int, array: np.ndarray) -> ov.Tensor:
        # Memory is reused: page faults in fresh memory would take longer than the copy.
        tensor, memory = self._copies.get(number, (None, None))
        if tensor is None or memory is None or memory.shape != array.shape:
            tensor = to_tensor(array, self._input_types[number])
            is_text = tensor.element_type == ov.Type.string  # it has no memory to write to
            self._copies[number] = tensor, None if is_text else tensor.data.view(array.dtype)
        else:
            memory[...] = array
        return tensor

    def run(self, index: int) -> None:
        """Run a subgraph whose inputs are ready."""
        self._take_late_inputs(index)
        self.requests[index].infer(share_outputs=self._can_share[index])  # sharing saves a copy

    def start(self, index: int) -> None:
        """Start a subgraph whose inputs are ready; :meth:`wait` ends it."""
        self._take_late_inputs(index)
        self.requests[index].start_async()

    def wait(self, index: int) -> None:
        """Wait for a subgraph that was started."""
        self.requests[index].wait()

    def _take_late_inputs(self, index: int) -> None:
        for port, source, source_port in self._late[index]:
            tensor = self.requests[source].get_output_tensor(source_port)
            self.requests[index].set_input_tensor(port, tensor)

    def outputs(self, names: Sequence[str]) -> Outputs:
        """Return the outputs, in memory that no other request changes."""
        return {
            names[number]: self._fresh.pop((subgraph, port)).data
            if (subgraph, port) in self._fresh
            else to_array(self.requests[subgraph].get_output_tensor(port))
            for number, subgraph, port in self._dataflow.to_model
        }


class Scheduler:
    """Threads, priorities and requests in flight of one executor.

    Methods raise ClosedError after :meth:`close`, and HeteroLabError if a done callback would wait
    for its own thread. ``compiled`` and ``devices`` are those of each submodel; ``n_requests`` is
    the largest number of requests in flight, each with tensors of its own.
    """

    def __init__(
        self,
        dataflow: Dataflow,
        compiled: Sequence[ov.CompiledModel],
        devices: Sequence[str],
        output_names: Sequence[str],
        n_requests: int,
    ):
        self._dataflow = dataflow
        self._devices = devices
        self._output_names = output_names
        self._free = [Slot(compiled, dataflow) for _ in range(n_requests)]
        self._waiting: deque[_InFlight] = deque()
        self._ready: dict[str, list[tuple[int, float, int, _InFlight, int]]] = {
            d: [] for d in devices
        }
        self._resting = set(self._ready)  # idle devices
        self._hosts = {d for d, c in zip(devices, compiled, strict=True) if n_threads(c)}
        self._started: deque[_Run] = deque()  # the next thread that wakes up waits for these
        self._kept: deque[_Run] = deque()  # started, too; the caller waits for these itself, later
        self._state = threading.RLock()
        self._wake = threading.Condition(self._state)
        self._idle = threading.Condition(self._state)
        self._running: set[_InFlight] = set()
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._urgency_s = [0.0] * len(devices)
        self._spent_s = [0.0] * len(devices)
        self._spans: deque[tuple[int, int, str, float, float]] = deque(maxlen=_KEPT_SPANS)
        self._finished = 0
        self._closing = False
        self._local = threading.local()
        self._threads = [
            threading.Thread(
                target=self._work, args=(core,), name=f"hetero_lab executor {i}", daemon=True
            )
            for i, core in enumerate([*_separate_cores(len(self._ready), compiled), None])
        ]
        for thread in self._threads:
            thread.start()
        # A thread that infers while the interpreter shuts down would crash.
        atexit.register(self.close, cancel=True)

    @property
    def timeline(self) -> tuple[Span, ...]:
        with self._state:
            spans = list(self._spans)
        return tuple(Span(*span) for span in spans)

    def call(self, arrays: Sequence[np.ndarray]) -> Outputs:
        """Infer once, partly in the caller's own thread."""
        self._refuse_in_callback("called")
        # Ctrl-C waits until a run has ended, or the run of this thread would be lost.
        with interrupts.deferred() as interrupted:
            job = self._put(arrays, None, share=True)
            with self._state:
                run = self._take(job)
            self._start_others(job)
            while (run := run or self._take_kept(job)) is not None and not interrupted():
                with self._state:
                    self._hand_over()
                run = self._run(run, job)
            if run is not None:  # Ctrl-C came: other threads end the run of this one
                with self._state:
                    job.error = KeyboardInterrupt()
                    self._kept.append(run)
                    self._hand_over(every=True)
        return job.future.result()

    def submit(self, arrays: Sequence[np.ndarray], callback: Done | None = None) -> Future[Outputs]:
        """Queue a request; the thread that ends it calls ``callback`` with its future."""
        with interrupts.deferred():
            job = self._put(arrays, callback)
            self._start_others()
        return job.future

    @contextlib.contextmanager
    def idle(self) -> Iterator[Slot]:
        """Wait until nothing runs, and hold back new requests; yield the slot that ran last."""
        self._refuse_in_callback("asked for counters")
        with self._state:
            self._idle.wait_for(lambda: not self._running)
            self._refuse_closed()
            yield self._free[-1]

    def close(self, cancel: bool = False) -> None:
        """Close as :meth:`ParallelExecutor.close` does."""
        self.stop()
        with self._state:
            cancelled = list(self._waiting) if cancel else []
            if cancel:
                self._waiting.clear()
        for job in cancelled:
            self._settle(job, job.cancel)
        if self._is_calling_back:
            return
        with self._state:
            self._idle.wait_for(lambda: not self._running)
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Refuse new requests, without waiting: threads end after the requests in flight."""
        atexit.unregister(self.close)
        with self._state:
            self._closing = True
            self._retire_if_over()

    def _put(
        self, arrays: Sequence[np.ndarray], callback: Done | None, *, share: bool = False
    ) -> _InFlight:
        """Queue a request without starting the subgraphs that could start now."""
        job = _InFlight(next(self._numbers), arrays, share)
        if callback is not None:
            job.future.add_done_callback(callback)
        with self._state:
            self._refuse_closed()
            self._running.add(job)
            # With several requests in flight, a caller may return before the runs of others end.
            self._hand_over(every=len(self._running) > 1)
            self._waiting.append(job)
        self._begin_waiting()
        return job

    def _begin_waiting(self) -> None:
        """Give free slots to the requests that wait for one, and begin these."""
        started = []
        with self._state:
            while self._waiting and self._free:
                job = self._waiting.popleft()
                if not job.future.set_running_or_notify_cancel():
                    self._forget(job)
                    continue
                job.slot = self._free.pop()
                started.append(job)
        for job in started:
            self._begin(job)

    def _begin(self, job: _InFlight) -> None:
        assert job.slot is not None
        try:
            job.slot.prepare(job.arrays, job.share)
        except BaseException as error:
            self._finish(job, error)
            return
        job.missing = list(self._dataflow.n_sources)
        job.left = len(self._devices)
        if not job.left:
            self._finish(job, None)
        for index in self._dataflow.first:
            self._make_ready(job, index)

    def _make_ready(self, job: _InFlight, index: int) -> None:
        entry = (job.number, -self._urgency_s[index], next(self._order), job, index)
        with self._state:
            heapq.heappush(self._ready[self._devices[index]], entry)

    def _take(self, caller_job: _InFlight | None = None) -> _Run | None:
        """Take the most urgent subgraph whose device is idle; the state is locked.

        Given a caller's own job, take one of that job: a caller that worked for others could not
        return as soon as its result is ready. One on the host's cores comes first, since on another
        device the thread would only wait.
        """
        able = [device for device in self._resting if self._ready[device]]
        if caller_job is not None:
            able = [device for device in able if self._ready[device][0][3] is caller_job]
            able = [device for device in able if device in self._hosts] or able
        if not able:
            return None
        device = min(able, key=lambda device: self._ready[device][0][:3])
        self._resting.remove(device)
        *_, job, index = heapq.heappop(self._ready[device])
        return _Run(job, index, device)

    def _start_others(self, caller_job: _InFlight | None = None) -> None:
        """Start everything that can start now; the caller, or a thread, waits for it."""
        while True:
            with self._state:
                run = self._take()
            if run is None:
                return
            run.start()
            with self._state:
                self._kept.append(run)
                self._hand_over(every=run.job is not caller_job or len(self._running) > 1)

    def _hand_over(self, every: bool = False) -> None:
        """Have threads wait for kept runs whose end lets something start; the state is locked.

        These are runs whose device has more to do, and runs that a subgraph waits for alone. The
        caller may be busy with another run when they end, and the device would idle.
        """
        if not self._kept:
            return
        for run in [
            run
            for run in self._kept
            if every
            or self._ready[self._devices[run.index]]
            or any(run.job.missing[user] == 1 for user in self._dataflow.users[run.index])
        ]:
            self._kept.remove(run)
            self._started.append(run)
            self._wake.notify()

    def _take_kept(self, caller_job: _InFlight) -> _Run | None:
        with self._state:
            return self._kept.popleft() if self._kept and self._kept[0].job is caller_job else None

    def _work(self, core: int | None) -> None:
        """Wait for started runs and run ready subgraphs, until the executor is closed."""
        if core is not None and sys.platform == "linux":
            os.sched_setaffinity(0, {core})
        while True:
            with self._state:
                while not self._started:
                    if self._closing and not self._running:
                        return
                    self._wake.wait()
                run: _Run | None = self._started.popleft()
            while run is not None:
                run = self._run(run)

    def _run(self, run: _Run, caller_job: _InFlight | None = None) -> _Run | None:
        """Run a subgraph; return the thread's next run, of ``caller_job`` if that is given.

        The next run is taken before anything is started on other devices, so that a chain on one
        device goes on in this thread, which is awake and has warm caches.
        """
        job, index = run.job, run.index
        run.finish()
        device = self._devices[index]
        with self._state:
            self._resting.add(device)
            if job.error is None and run.error is None:
                self._spans.append((job.number, index, device, run.started_s, run.ended_s))
                self._spent_s[index] += run.ended_s - run.started_s
            job.error = job.error or run.error
            job.left -= 1
            is_over = job.left == 0
            for user in self._dataflow.users[index]:
                job.missing[user] -= 1
                if not job.missing[user]:
                    self._make_ready(job, user)
            following = None if is_over else self._take(caller_job)
            if caller_job is None:
                self._hand_over()
            more = any(self._ready[device] for device in self._resting)
        if more:
            self._start_others(caller_job)
        if is_over:
            # Other runs were started above, so no device idles while outputs are copied.
            self._finish(job, job.error)
            if caller_job is None:
                with self._state:
                    following = self._take()
        return following

    def _finish(self, job: _InFlight, error: BaseException | None) -> None:
        slot = job.slot
        assert slot is not None
        outputs: Outputs = {}
        if error is None:
            try:
                outputs = slot.outputs(self._output_names)
            except BaseException as raised:
                error = raised
        with self._state:
            self._free.append(slot)
            job.slot = None
            self._finished += 1
            if self._finished == _RANKED_AFTER:
                self._urgency_s = self._dataflow.upward_ranks(self._spent_s)
        self._begin_waiting()
        self._start_others()
        if error is None:
            self._settle(job, lambda: job.future.set_result(outputs))
        else:
            self._settle(job, lambda: job.future.set_exception(error))

    def _settle(self, job: _InFlight, settle: Callable[[], object]) -> None:
        """Settle the future of a request, which runs its callbacks; then forget the request."""
        outside, self._local.is_calling_back = self._is_calling_back, True
        try:
            settle()
        except BaseException:  # sys.exit() in a callback must not end this thread or a request
            _LOG.exception("A done callback of request %d failed", job.number)
        finally:
            self._local.is_calling_back = outside
            with self._state:
                self._forget(job)

    def _forget(self, job: _InFlight) -> None:
        """Count a request as over; the state is locked."""
        self._running.discard(job)
        self._idle.notify_all()
        self._retire_if_over()

    def _retire_if_over(self) -> None:
        """After the last request, end the threads and free the slots; the state is locked."""
        if self._closing and not self._running:
            self._free.clear()
            self._wake.notify_all()

    @property
    def _is_calling_back(self) -> bool:
        """Whether this thread is in the done callback of a request."""
        return getattr(self._local, "is_calling_back", False)

    def _refuse_closed(self) -> None:
        if self._closing:
            raise ClosedError("The executor was closed; make a new ParallelExecutor.")

    def _refuse_in_callback(self, what: str) -> None:
        if self._is_calling_back:
            raise HeteroLabError(
                f"The executor cannot be {what} in a done callback: the thread would wait for "
                "itself. Call submit() there, or wait for the future in another thread."
            )


class _InFlight:
    """One request on its way through the subgraphs."""

    def __init__(self, number: int, arrays: Sequence[np.ndarray], share: bool):
        self.number = number
        self.arrays = arrays
        self.share = share  # its caller waits, so the arrays do not change
        self.future: Future[Outputs] = Future()
        self.slot: Slot | None = None
        self.missing: list[int] = []
        self.left = 0
        self.error: BaseException | None = None

    def cancel(self) -> None:
        """Cancel it before it begins."""
        self.future.cancel()
        self.future.set_running_or_notify_cancel()  # wakes concurrent.futures.wait


class _Run:
    """One run of a subgraph; its error is kept for :meth:`Scheduler._run`."""

    def __init__(self, job: _InFlight, index: int, device: str):
        assert job.slot is not None
        self.job = job
        self.index = index
        self.started_s = self.ended_s = 0.0
        self.error: BaseException | None = None
        self._slot = job.slot
        self._device = device
        self._is_started = False

    def start(self) -> None:
        """Start it, unless its request has failed."""
        if self.job.error is None:
            self.started_s = now()
            self._attempt(self._slot.start)
            self._is_started = self.error is None

    def finish(self) -> None:
        """Wait for it, or run it here if it was not started and nothing has failed."""
        if self._is_started:
            self._attempt(self._slot.wait)
        elif self.error is None and self.job.error is None:
            self.started_s = now()
            self._attempt(self._slot.run)
        else:  # a start that failed may still have begun the subgraph
            with contextlib.suppress(RuntimeError):
                self._slot.wait(self.index)
        self.ended_s = now()

    def _attempt(self, act: Callable[[int], object]) -> None:
        try:
            act(self.index)
        except RuntimeError as error:
            self.error = failed_inference(f"subgraph {self.index} on {self._device}", error)
            self.error.__cause__ = error
        except BaseException as error:  # the device has to be released after any error
            self.error = error


def _separate_cores(n: int, compiled: Sequence[ov.CompiledModel]) -> list[int | None]:
    """Return a core to bind each of ``n`` threads to, or None for each to leave it free.

    Linux tends to start a thread on the core of the thread that wakes it, and a few milliseconds of
    work are over before it moves one of them. Threads are bound only if every model runs on a
    single thread, since threads that the runtime starts inherit the core of their starter.
    """
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    if n > len(cores) or any(n_threads(model) != 1 for model in compiled):
        return [None] * n
    return list(cores[:n])


def n_threads(compiled: ov.CompiledModel) -> int:
    """Return the number of host threads that a model runs on; 0 if it runs elsewhere."""
    return int(ask(compiled, "INFERENCE_NUM_THREADS") or 0)
