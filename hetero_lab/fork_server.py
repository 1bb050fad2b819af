"""A server that forks processes: they need not import what it has imported.

Its standard input is a Unix socket. Each request is a letter and the name of a module, which the
server imports. To fork, it carries four file descriptors: the new process's standard input, output
and error, and a pipe for its exit code. The answer is its process id; the process calls the
module's ``serve``. To set up, it carries a file, which the module's ``prepare`` reads; what that
returns, the processes of this module that are forked from then on get as the argument of ``serve``.
The server ends with its caller, or when there was no request for a while.

Forking is safe only in a process with one thread: if another thread holds a lock while forking,
the lock stays locked in the child for ever. Importing OpenVINO starts no threads as long as BLAS
and telemetry start none, and neither does reading a model or loading the CPU plugin; compiling
does. As other versions and the devices of extensions may differ, a server counts its threads
before every fork. If there are several, it answers ``REFUSED`` and the caller starts its process
otherwise.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

from hetero_lab.processes import ANSWER, EXIT_CODE, FORK, IMPORT, READY, REFUSED, SET_UP

_N_DESCRIPTORS = 4  # of a new process: three streams, and the pipe for its exit code
_LONGEST = 1 << 10  # a request in bytes
_IDLE_S = 600.0  # longer than most pauses of a session; the next call starts it again


def serve_forks() -> None:
    """Fork what the caller asks for until it is gone and the last child has ended."""
    assert sys.platform == "linux"
    requests = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides what Ctrl-C means
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    prepared: dict[str, Any] = {}  # what a module has set up
    children: dict[int, int] = {}  # process id → pipe for its exit code
    callers: list[socket.socket] = [requests]
    while callers or children:
        ready, _, _ = select.select([*callers, woken], [], [], _IDLE_S)
        if woken in ready:
            os.read(woken, 1 << 10)
            _reap(children)
        if requests in ready:
            what, descriptors, _, _ = socket.recv_fds(requests, _LONGEST, _N_DESCRIPTORS)
            if not what:
                callers.clear()
                continue
            answer, kind, name = REFUSED, what[:1], what[1:].decode()
            if kind == IMPORT:
                with contextlib.suppress(Exception):  # the process that serves as it says why
                    importlib.import_module(name)
                gc.freeze()  # so that the modules stay in memory shared with the children
                answer = READY
            elif kind == SET_UP:
                gc.unfreeze()
                prepared.clear()  # before the next one is read: both may not fit into memory
                gc.collect()
                with os.fdopen(descriptors.pop(), "rb") as file:
                    if data := file.read():
                        prepared[name] = importlib.import_module(name).prepare(data)
                gc.freeze()
                answer = READY if n_threads() == 1 else REFUSED
            elif kind == FORK and n_threads() == 1:
                answer = os.fork()
                if not answer:
                    server_fds = [requests.detach(), woken, wake, *children.values()]
                    _become(name, descriptors, server_fds, prepared.get(name))
                children[answer] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                requests.sendall(ANSWER.pack(answer))
        elif not ready and not children:
            return


def n_threads() -> int:
    """Return the number of threads of this process, including those of native libraries."""
    return len(os.listdir("/proc/self/task"))


def _become(name: str, descriptors: list[int], server_fds: list[int], prepared: Any) -> None:
    """Serve as a module; never return."""
    assert sys.platform == "linux"
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, stream)
        for descriptor in (*server_fds, *descriptors):
            os.close(descriptor)
        importlib.import_module(name).serve(prepared)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(children: dict[int, int]) -> None:
    """Send the exit codes of ended children."""
    assert sys.platform == "linux"
    for pid, pipe in list(children.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del children[pid]
            with contextlib.suppress(OSError):  # the caller is gone
                os.write(pipe, EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))
            os.close(pipe)


if __name__ == "__main__":
    serve_forks()
