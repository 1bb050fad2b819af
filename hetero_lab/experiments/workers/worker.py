"""The worker process: a bench behind standard input and output, one JSON object a line.

Started as ``python -m hetero_lab.experiments.workers.worker``, so nothing of the caller's main
module is imported again: scripts need no main guard and notebooks work. It ends when its input
ends, so it cannot outlive a caller that was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import IO, Any

import msgspec

from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.profile.measure import ProfileOptions
from hetero_lab.experiments.workers.bench import Bench
from hetero_lab.experiments.workers.job import Job
from hetero_lab.experiments.workers.set_up import SetUp

Handler = Callable[[Bench, Mapping[str, Any]], Any]

HANDLERS: dict[str, Handler] = {
    "compile": lambda bench, args: bench.compile(_job(args)),
    "warm_up": lambda bench, args: bench.warm_up(args["key"], args["at_most_s"]),
    "turn": lambda bench, args: bench.turn(args["key"], args["discarded"], args["timed"]),
    "hold": lambda bench, args: bench.hold(args["key"], args["seconds"]),
    "counters": lambda bench, args: bench.counters(_job(args)),
    "profile": lambda bench, args: bench.profile(
        _job(args), msgspec.convert(args["options"], ProfileOptions)
    ),
    "release": lambda bench, args: bench.release(args["key"]),
}


def _job(args: Mapping[str, Any]) -> Job:
    return msgspec.convert(args["job"], Job)


def serve(handlers: Mapping[str, Handler] = HANDLERS) -> None:
    """Answer requests until the input ends."""
    requests, replies = _private_streams()
    # Ctrl-C in a terminal reaches this process too; the caller decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench: Bench | None = None
    for line in requests:
        request = json.loads(line)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                if request["do"] == "set_up":
                    bench, value = Bench.of(msgspec.convert(request["args"], SetUp)), None
                elif bench is None:
                    raise RuntimeError("the first request to a worker is set_up")
                else:
                    value = handlers[request["do"]](bench, request["args"])
                reply: dict[str, Any] = {"value": value}
            except MemoryError:
                reply = {"error": "out of memory", "kind": "memory"}
            except HeteroLabError as error:
                reply = {"error": str(error), "kind": type(error).__name__}
            except Exception as error:
                kind = "memory" if "bad_alloc" in str(error) else type(error).__name__
                reply = {"error": f"{type(error).__name__}: {error}", "kind": kind}
        reply["warnings"] = [str(w.message) for w in caught]
        replies.write(json.dumps(reply, default=msgspec.to_builtins) + "\n")
        replies.flush()


def _private_streams() -> tuple[IO[str], IO[str]]:
    """Keep the two pipes for the protocol; what libraries print goes to standard error."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, replies


if __name__ == "__main__":
    serve()
