"""Several requests in flight, of one model or of several: the time between results."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab import clock
from hetero_lab.runtime.compiled import CompiledPlacement
from hetero_lab.runtime.parallel import ParallelExecutor
from hetero_lab.runtime.tensors import to_tensor
from hetero_lab.runtime.timing import DISCARDED_PER_TURN, TIMED_PER_TURN
from hetero_lab.statistics import Latency

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Throughput:
    """What one executor did with several requests in flight, and with one at a time.

    Attributes
    ----------
    exclusive
        Whether ``EXCLUSIVE_ASYNC_REQUESTS`` held on every device; ``None`` where no device
        knows it.
    between
        Times from one result to the next, a turn each round.
    latency
        One request at a time, in the same rounds.
    """

    executor: str
    n_requests: int
    exclusive: bool | None
    between: Latency
    latency: Latency


def run_queue_turn(
    compiled: CompiledPlacement, arrays: list[np.ndarray], requests: int
) -> tuple[float, ...]:
    """Keep ``requests`` inferences of HETERO in flight; return times per inference in µs.

    A sample is the time from one result to the ``requests``-th after it, divided by
    ``requests``; the first ``requests`` results fill the pipeline and are not counted.
    """
    queue = ov.AsyncInferQueue(compiled.compiled_model, requests)
    types = [port.get_element_type() for port in compiled.compiled_model.inputs]

    def run(count: int, done: Callable[[], None]) -> None:
        queue.set_callback(lambda _request, _userdata: done())
        for _ in range(count):
            queue.start_async({i: to_tensor(a, types[i]) for i, a in enumerate(arrays)})
        queue.wait_all()

    return _between_results(run, requests)


def run_parallel_turn(
    executor: ParallelExecutor, arrays: list[np.ndarray], requests: int
) -> tuple[tuple[float, ...], Outputs]:
    """Do the same with an executor that has ``requests`` in flight; return the last outputs too."""
    last: deque[Future[Outputs]] = deque(maxlen=1)

    def run(count: int, done: Callable[[], None]) -> None:
        called = threading.Semaphore(0)
        failed: list[BaseException] = []

        def finished(future: Future[Outputs]) -> None:
            done()
            error = None if future.cancelled() else future.exception()
            failed.extend([error] if error is not None else [])
            called.release()

        for _ in range(count):
            last.append(executor.submit_bound(arrays, finished))
        # A future has its result before its callback was called.
        for _ in range(count):
            called.acquire()
        if failed:
            raise failed[0]

    return _between_results(run, requests), last[0].result()


def _between_results(
    run: Callable[[int, Callable[[], None]], Any], requests: int
) -> tuple[float, ...]:
    finished: list[int] = []
    run((TIMED_PER_TURN + 1) * requests, lambda: finished.append(clock.now_ns()))
    marks = np.sort(np.array(finished, dtype=np.int64))[requests - 1 :: requests]
    return tuple(float(gap) / 1e3 / requests for gap in np.diff(marks))


def run_side_by_side_turn(
    requests: Sequence[ov.InferRequest], timed: int = TIMED_PER_TURN
) -> list[tuple[float, ...]]:
    """Run requests of several models in threads of their own, each again and again.

    A turn lasts until each has ``timed`` samples, so that none is measured while another one has
    already ended; quick models have more samples.

    Returns
    -------
    list of tuple
        The durations of each request's inferences in µs.

    Raises
    ------
    RuntimeError
        What the runtime raised in one of them.
    """
    samples: list[list[float]] = [[] for _ in requests]
    failed: list[BaseException] = []
    together = threading.Barrier(len(requests))
    ended = threading.Event()

    def work(request: ov.InferRequest, own: list[float]) -> None:
        try:
            for _ in range(DISCARDED_PER_TURN):
                request.infer()
            together.wait()
            while not ended.is_set():
                started = clock.now_ns()
                request.infer()
                own.append((clock.now_ns() - started) / 1e3)
                if len(own) == timed and all(len(s) >= timed for s in samples):
                    ended.set()
        except threading.BrokenBarrierError:
            pass  # another one failed
        except BaseException as error:
            failed.append(error)
            together.abort()
            ended.set()

    threads = [
        threading.Thread(target=work, args=pair, name="hetero_lab side by side", daemon=True)
        for pair in zip(requests, samples, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        ended.set()  # Ctrl-C in the join: the threads end after the inference that they are in
    if failed:
        raise failed[0]
    return [tuple(s) for s in samples]
