"""Several compiled models at work at the same time: what each takes while the others run."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import openvino as ov

from hetero_lab import clock
from hetero_lab.runtime.timing import DISCARDED_PER_TURN, TIMED_PER_TURN


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

    def work(request: ov.InferRequest, mine: list[float]) -> None:
        try:
            for _ in range(DISCARDED_PER_TURN):
                request.infer()
            together.wait()
            while not ended.is_set():
                started = clock.now_ns()
                request.infer()
                mine.append((clock.now_ns() - started) / 1e3)
                if len(mine) == timed and all(len(s) >= timed for s in samples):
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
