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
import warnings
from collections.abc import Callable
from typing import IO, Any

import msgspec

from hetero_lab.backend.core import shared_core
from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.measure.workers.bench import Bench
from hetero_lab.experiments.measure.workers.requests import (
    MEMORY,
    AnyRequest,
    Compare,
    Compile,
    CompileCounted,
    Expect,
    Hold,
    InferFile,
    MeasureMemory,
    ReadCounters,
    ReadSpans,
    Release,
    Reply,
    RunTurn,
    SetUp,
    WarmUp,
)
from hetero_lab.runtime.pieces import infer_file


def answer(bench: Bench, request: AnyRequest) -> Any:
    """Carry out a request on a bench and return the answer."""
    match request:
        case Compile(trial=trial, compare=compare):
            return bench.compile(trial, compare=compare)
        case Expect(trial=trial):
            return bench.expect(trial)
        case WarmUp(key=key, at_most_s=at_most_s, inferences=inferences):
            return bench.warm_up(key, at_most_s, inferences)
        case RunTurn():
            return bench.turn(request)
        case Hold(key=key, seconds=seconds):
            return bench.hold(key, seconds)
        case CompileCounted(trial=trial):
            return bench.compile_counted(trial)
        case ReadCounters(trial=trial):
            return bench.counters(trial)
        case Compare(trial=trial, rows=rows):
            return bench.compare(trial, rows)
        case ReadSpans(key=key, requests=n):
            return bench.spans(key, n)
        case MeasureMemory():
            return bench.memory(request)
        case Release(key=key):
            return bench.release(key)
        case InferFile():
            return infer_file(**msgspec.structs.asdict(request), core=shared_core())
        case SetUp():
            raise RuntimeError("a worker is set up once")


def serve(
    answer: Callable[[Bench, AnyRequest], Any] = answer, *, set_up: Bench | None = None
) -> None:
    """Answer requests until the input ends.

    The first one sets up the bench, unless that is what ``set_up`` was set up with.
    """
    requests, replies = _private_streams()
    # Ctrl-C in a terminal also reaches this process, but the caller decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench: Bench | None = None
    for line in requests:
        value, error, kind = None, None, ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                request: AnyRequest = msgspec.convert(json.loads(line), AnyRequest)
                if bench is not None:
                    value = answer(bench, request)
                elif isinstance(request, SetUp):
                    is_done = set_up is not None and set_up.set_up == request
                    bench = set_up if is_done else Bench.of(request)
                else:
                    raise RuntimeError("the first request to a worker sets it up")
            except MemoryError:
                error, kind = "out of memory", MEMORY
            except HeteroLabError as problem:
                error, kind = str(problem), type(problem).__name__
            except Exception as problem:
                kind = MEMORY if "bad_alloc" in str(problem) else type(problem).__name__
                error = f"{type(problem).__name__}: {problem}"
        told = tuple(str(w.message) for w in caught)
        reply = Reply(value=value, error=error, kind=kind, warnings=told)
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
