"""The worker process: a bench behind standard input and output, one JSON object per line.

Started as ``python -m hetero_lab.experiments.measure.workers.worker``, so the caller's main module
is not imported again: scripts need no main guard and notebooks work. It ends when its input ends,
so it cannot outlive a caller that was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import IO, Any

import msgspec

from hetero_lab.experiments.measure.workers.bench import Bench
from hetero_lab.experiments.measure.workers.process import WorkerError, as_worker_errors
from hetero_lab.experiments.measure.workers.requests import AnyRequest, Reply, SetUp


def serve(
    answer: Callable[[Bench, AnyRequest], Any] = Bench.answer, *, set_up: Bench | None = None
) -> None:
    """Answer requests until the input ends.

    The first one sets up the bench, unless that is what ``set_up`` was set up with.
    """
    requests, replies = _private_streams()
    # Ctrl-C in a terminal also reaches this process, but the caller decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench: Bench | None = None
    for line in requests:
        value, error, status, told = None, None, "", list[str]()
        try:
            with as_worker_errors(told):
                request: AnyRequest = msgspec.convert(json.loads(line), AnyRequest)
                if bench is not None:
                    value = answer(bench, request)
                elif isinstance(request, SetUp):
                    is_done = set_up is not None and set_up.set_up == request
                    bench = set_up if is_done else Bench.of(request)
                else:
                    raise RuntimeError("the first request to a worker sets it up")
        except WorkerError as failure:
            error, status = failure.detail, failure.status
        reply = Reply(value=value, error=error, status=status, warnings=tuple(told))
        replies.write(json.dumps(msgspec.to_builtins(reply)) + "\n")
        replies.flush()


def _private_streams() -> tuple[IO[str], IO[str]]:
    """Reserve the two pipes for the protocol; output of libraries goes to standard error."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, replies


if __name__ == "__main__":
    serve()
