"""The worker process: a bench behind standard input and output, one JSON object per line.

Started as ``python -m hetero_lab.measure.worker_program``, so the caller's main module
is not imported again: scripts need no main guard and notebooks work. It ends when its input ends,
so it cannot outlive a caller that was killed.

It is usually forked from a server (:mod:`hetero_lab.fork_server`), which may have carried out its
set-up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import IO, Any

import msgspec

from hetero_lab.devices.core import shared_core
from hetero_lab.measure.bench import Bench
from hetero_lab.measure.worker_process import (
    Reply,
    Request,
    SetUp,
    WorkerError,
    as_worker_errors,
    types_of,
)


def serve(
    set_up: Bench | None = None,
    answer: Callable[[Bench, Request[Any]], Any] = lambda bench, request: request(bench),
) -> None:
    """Answer requests until the input ends; the first line sets up, unless ``set_up`` is that."""
    requests, replies = _private_streams()
    # Ctrl-C in a terminal also reaches this process, but the caller decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench: Bench | None = None
    for line in requests:
        value, error, status, messages = None, None, "", list[str]()
        try:
            with as_worker_errors(messages):
                if bench is not None:
                    value = answer(bench, _request(**json.loads(line)))
                else:
                    wanted = msgspec.convert(json.loads(line), SetUp)
                    is_done = set_up is not None and set_up.set_up == wanted
                    bench = set_up if is_done else Bench.of(wanted)
        except WorkerError as failure:
            error, status = failure.detail, failure.status
        reply = Reply(value=value, error=error, status=status, warnings=tuple(messages))
        replies.write(json.dumps(msgspec.to_builtins(reply)) + "\n")
        replies.flush()


def _request(method: str, arguments: dict[str, Any]) -> Request[Any]:
    function = getattr(Bench, method)
    types = types_of(function)
    values = {name: msgspec.convert(value, types[name]) for name, value in arguments.items()}
    return partial(function, **values)


def _private_streams() -> tuple[IO[str], IO[str]]:
    """Reserve the two pipes for the protocol; output of libraries goes to standard error."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, replies


def prepare(set_up: bytes) -> Bench | None:
    """Carry out a set-up; ``None`` if a worker had better do it, and tell of it."""
    bench = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(Exception):
            bench = Bench.of(msgspec.json.decode(set_up, type=SetUp))
            shared_core().get_versions("CPU")  # loads the plugin, which takes 10 ms
    return None if caught else bench


if __name__ == "__main__":
    serve()
