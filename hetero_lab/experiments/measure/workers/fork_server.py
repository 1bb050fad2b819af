"""A process that has imported the runtime and forks workers, so that they need not import it.

Started as ``python -m hetero_lab.experiments.measure.workers.fork_server`` with a Unix socket as
its standard input. Each request carries four file descriptors: the worker's standard input,
output and error, and a pipe for its exit code. The answer is the worker's process id. The server
ends with its caller, or when there was no request for a while.

A request for a server carries a socket and a file with a set-up instead: the server forks one that
carries out the set-up and whose workers start with it.

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
import os
import select
import signal
import socket
import traceback
import warnings
from collections.abc import Callable

import msgspec

from hetero_lab.backend.core import shared_core
from hetero_lab.experiments.measure.workers.bench import Bench
from hetero_lab.experiments.measure.workers.launch import (
    ANSWER,
    EXIT_CODE,
    READY,
    REFUSED,
    WORKER,
)
from hetero_lab.experiments.measure.workers.requests import SetUp
from hetero_lab.experiments.measure.workers.worker import serve

_N_DESCRIPTORS = 4
_IDLE_S, _IDLE_SET_UP_S = 600.0, 5.0  # a set-up holds a model


def main() -> None:
    """Fork what the caller asks for until it is gone and the last worker has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides what Ctrl-C means
    gc.freeze()  # so that the imported modules stay in memory shared with the workers
    _serve_forks(socket.socket(fileno=os.dup(0)))


def _serve_forks(requests: socket.socket, bench: Bench | None = None) -> None:
    """Fork one process per request; workers start with ``bench``."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    children: dict[int, int | None] = {}  # process id → pipe for its exit code
    idle_s = _IDLE_S if bench is None else _IDLE_SET_UP_S
    requests.sendall(READY)
    asked: list[socket.socket] = [requests]
    while asked or children:
        ready, _, _ = select.select([*asked, woken], [], [], idle_s)
        if woken in ready:
            os.read(woken, 1 << 10)
            _reap(children)
        if requests in ready:
            what, descriptors, _, _ = socket.recv_fds(requests, 1, _N_DESCRIPTORS)
            if not what:
                asked.clear()
                continue
            pid = REFUSED
            if n_threads() == 1:
                pid = os.fork()
                if not pid:
                    told = [pipe for pipe in children.values() if pipe is not None]
                    own = [requests.detach(), woken, wake, *told]
                    _become(_worker if what == WORKER else _server, descriptors, own, bench)
                children[pid] = descriptors.pop() if what == WORKER else None
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                requests.sendall(ANSWER.pack(pid))
        elif not ready and not children:
            return


def n_threads() -> int:
    """Return the number of threads of this process, including those of native libraries."""
    return len(os.listdir("/proc/self/task"))


def _become(
    run: Callable[[list[int], Bench | None], None],
    descriptors: list[int],
    own: list[int],
    bench: Bench | None,
) -> None:
    """Run a forked child; never return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in own:
            os.close(descriptor)
        run(descriptors, bench)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _worker(descriptors: list[int], bench: Bench | None) -> None:
    for stream, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, stream)
    for descriptor in descriptors:
        os.close(descriptor)
    serve(set_up=bench)


def _server(descriptors: list[int], _: Bench | None) -> None:
    channel, file = descriptors
    bench = None
    with os.fdopen(file, "rb") as stored, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(Exception):  # a worker that sets up by itself says what is wrong
            bench = Bench.of(msgspec.json.decode(stored.read(), type=SetUp))
            shared_core().get_versions("CPU")  # loads the plugin, which takes 10 ms
    gc.freeze()
    _serve_forks(socket.socket(fileno=channel), None if caught else bench)


def _reap(children: dict[int, int | None]) -> None:
    """Send the exit codes of ended workers."""
    for pid, told in list(children.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del children[pid]
            if told is None:
                continue
            with contextlib.suppress(OSError):  # the caller is gone
                os.write(told, EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)


if __name__ == "__main__":
    main()
