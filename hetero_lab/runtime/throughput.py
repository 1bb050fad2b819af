"""Several requests in flight: the time between results."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.runtime.compiled import CompiledPlacement
from hetero_lab.runtime.timing import TIMED_PER_TURN


def run_queue_turn(
    compiled: CompiledPlacement, arrays: list[np.ndarray], requests: int
) -> tuple[float, ...]:
    """Keep ``requests`` inferences in flight; return times per inference in microseconds.

    A sample is the time from one result to the ``requests``-th after it, divided by
    ``requests``; the first ``requests`` results fill the pipeline and are not counted.
    """
    queue = ov.AsyncInferQueue(compiled.compiled_model, requests)
    finished: list[int] = []
    clock = time.perf_counter_ns

    def done(_request: Any, _userdata: Any) -> None:
        finished.append(clock())

    queue.set_callback(done)
    inputs = dict(enumerate(arrays))
    for _ in range((TIMED_PER_TURN + 1) * requests):
        queue.start_async(inputs)
    queue.wait_all()
    marks = np.sort(np.array(finished, dtype=np.int64))[requests - 1 :: requests]
    return tuple(float(gap) / 1e3 / requests for gap in np.diff(marks))
