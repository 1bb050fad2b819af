"""A process that has imported the runtime and forks workers, so that they need not import it.

Started as ``python -m hetero_lab.experiments.measure.workers.fork_server`` with a Unix socket as
its standard input. Each request carries four file descriptors: the worker's standard input,
output and error, and a pipe for its exit code. The answer is the worker's process id. The server
ends with its caller, or when there was no request for a while.

Forking is safe only in a process with one thread: if another thread holds a lock while forking,
the lock stays locked in the child for ever. Importing OpenVINO starts no threads as long as BLAS
and telemetry start none, and the server makes no Core. As other versions may differ, the server
counts its threads before every fork. If there are several, it answers ``REFUSED`` and the caller
starts its worker without forking.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import traceback

from hetero_lab.experiments.measure.workers.launch import ANSWER, EXIT_CODE, READY, REFUSED
from hetero_lab.experiments.measure.workers.worker import serve

_N_DESCRIPTORS = 4
_IDLE_S = 600.0


def main() -> None:
    """Fork one worker per request until the caller is gone and the last worker has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides what Ctrl-C means
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    gc.freeze()  # so that the imported modules stay in memory shared with the workers
    workers: dict[int, int] = {}  # process id → pipe for its exit code
    requests = socket.socket(fileno=os.dup(0))
    requests.sendall(READY)
    asked: list[socket.socket] = [requests]
    while asked or workers:
        ready, _, _ = select.select([*asked, woken], [], [], _IDLE_S)
        if woken in ready:
            os.read(woken, 1 << 10)
            _reap(workers)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, _N_DESCRIPTORS)
            if not message:
                asked.clear()
                continue
            pid = REFUSED
            if n_threads() == 1:
                pid = os.fork()
                if not pid:
                    own = [requests.detach(), woken, wake, *workers.values()]
                    _become_worker(descriptors, own)
                workers[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                requests.sendall(ANSWER.pack(pid))
        elif not ready and not workers:
            return


def n_threads() -> int:
    """Return the number of threads of this process, including those of native libraries."""
    return len(os.listdir("/proc/self/task"))


def _become_worker(descriptors: list[int], own: list[int]) -> None:
    """Serve in a forked child; never return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, stream)
        for descriptor in [*descriptors, *own]:
            os.close(descriptor)
        serve()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(workers: dict[int, int]) -> None:
    """Send the exit codes of ended workers."""
    for pid, told in list(workers.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del workers[pid]
            with contextlib.suppress(OSError):  # the caller is gone
                os.write(told, EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)


if __name__ == "__main__":
    main()
