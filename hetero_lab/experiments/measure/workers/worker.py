"""The worker process: a bench behind standard input and output, one JSON object per line.

Started as ``python -m hetero_lab.experiments.measure.workers.worker``, so the caller's main module
is not imported again: scripts need no main guard and notebooks work. It ends when its input ends,
so it cannot outlive a caller that was killed.

With the argument ``fork``, the process has imported the runtime and forks workers, so that they
need not import it. Its standard input is then a Unix socket. Each request carries four file
descriptors: the worker's standard input, output and error, and a pipe for its exit code. The
answer is the worker's process id. The server ends with its caller, or when there was no request
for a while.

Another request carries a file with a set-up: the server carries it out, and the workers that it
forks from then on start with it.

Forking is safe only in a process with one thread: if another thread holds a lock while forking,
the lock stays locked in the child for ever. Importing OpenVINO starts no threads as long as BLAS
and telemetry start none, and neither does reading a model or loading the CPU plugin; compiling
does. As other versions and the devices of extensions may differ, a server counts its threads
before every fork. If there are several, it answers ``REFUSED`` and the caller starts its worker
otherwise.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import IO, Any

import msgspec

from hetero_lab.backend.core import shared_core
from hetero_lab.experiments.measure.workers.bench import Bench
from hetero_lab.experiments.measure.workers.launch import (
    ANSWER,
    EXIT_CODE,
    FORK,
    READY,
    REFUSED,
    SET_UP,
)
from hetero_lab.experiments.measure.workers.process import WorkerError, as_worker_errors
from hetero_lab.experiments.measure.workers.requests import AnyRequest, Reply, Request, SetUp

_N_DESCRIPTORS = 4
_IDLE_S = 600.0


def serve(
    answer: Callable[[Bench, Request[Any]], Any] = Bench.answer, *, set_up: Bench | None = None
) -> None:
    """Answer requests until the input ends; the first one sets up, unless ``set_up`` is that."""
    requests, replies = _private_streams()
    # Ctrl-C in a terminal also reaches this process, but the caller decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench: Bench | None = None
    for line in requests:
        value, error, status, told = None, None, "", list[str]()
        try:
            with as_worker_errors(told):
                request: Request[Any] = msgspec.convert(json.loads(line), AnyRequest)
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


# -- the server that forks workers -------------------------------------------------------------


def serve_forks() -> None:
    """Fork what the caller asks for until it is gone and the last worker has ended."""
    requests = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides what Ctrl-C means
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    bench: Bench | None = None
    children: dict[int, int] = {}  # process id → pipe for its exit code
    gc.freeze()  # so that the imported modules stay in memory shared with the workers
    requests.sendall(ANSWER.pack(READY))
    asked: list[socket.socket] = [requests]
    while asked or children:
        ready, _, _ = select.select([*asked, woken], [], [], _IDLE_S)
        if woken in ready:
            os.read(woken, 1 << 10)
            _reap(children)
        if requests in ready:
            what, descriptors, _, _ = socket.recv_fds(requests, 1, _N_DESCRIPTORS)
            if not what:
                asked.clear()
                continue
            answer = REFUSED
            if what == SET_UP:
                bench = None  # before the next one is read: both may not fit into memory
                bench = _set_up(descriptors.pop())
                answer = READY if n_threads() == 1 else REFUSED
            elif n_threads() == 1:
                answer = os.fork()
                if not answer:
                    _become_worker(
                        descriptors, [requests.detach(), woken, wake, *children.values()], bench
                    )
                children[answer] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                requests.sendall(ANSWER.pack(answer))
        elif not ready and not children:
            return


def _set_up(file: int) -> Bench | None:
    """Carry out the set-up in a file; ``None`` if a worker had better do it, and tell of it."""
    gc.unfreeze()
    gc.collect()
    bench = None
    with os.fdopen(file, "rb") as stored, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(Exception):
            bench = Bench.of(msgspec.json.decode(stored.read(), type=SetUp))
            shared_core().get_versions("CPU")  # loads the plugin, which takes 10 ms
    gc.freeze()
    return None if caught else bench


def n_threads() -> int:
    """Return the number of threads of this process, including those of native libraries."""
    return len(os.listdir("/proc/self/task"))


def _become_worker(descriptors: list[int], own: list[int], bench: Bench | None) -> None:
    """Serve as a forked worker; never return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, stream)
        for descriptor in (*own, *descriptors):
            os.close(descriptor)
        serve(set_up=bench)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(children: dict[int, int]) -> None:
    """Send the exit codes of ended workers."""
    for pid, told in list(children.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del children[pid]
            with contextlib.suppress(OSError):  # the caller is gone
                os.write(told, EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)


if __name__ == "__main__":
    (serve_forks if sys.argv[1:] == [FORK] else serve)()
