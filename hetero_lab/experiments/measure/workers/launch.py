"""Start worker processes: forked from a server that has imported the runtime, or from nothing."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, Protocol

import psutil

from hetero_lab.backend.core import environment_of_a_child

ANSWER = struct.Struct("=q")  # a process id
EXIT_CODE = struct.Struct("=i")  # as in subprocess.Popen: negative is a signal
REFUSED = 0  # in place of a process id: forking is not safe
READY = b"r"  # what the server says when it has imported everything
_SERVER = "hetero_lab.experiments.measure.workers.fork_server"
_WORKER = "hetero_lab.experiments.measure.workers.worker"


def compiles_at_once() -> int:
    """Return how many processes may compile at once: one for two of this process's cores."""
    cores = getattr(os, "sched_getaffinity", None)
    n_cores = len(cores(0)) if cores else os.cpu_count() or 1
    return max(1, n_cores // 2)


class Launched(Protocol):
    """A process that was started, as :class:`subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[str] | None: ...

    @property
    def stdout(self) -> IO[str] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def launch(command: Sequence[str] | None, errors: IO[bytes], timeout_s: float) -> Launched:
    """Start a worker process.

    Parameters
    ----------
    command
        How to start it; ``None`` forks it where that is safe.
    errors
        File of its standard error.
    timeout_s
        How long the server may take to fork.

    Raises
    ------
    OSError
        The command cannot be started.
    """
    if command is None:
        forked = FORK_SERVER.fork(errors, timeout_s)
        if forked is not None:
            return forked
    return subprocess.Popen(
        list(command or [sys.executable, "-m", _WORKER]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=_environment(),
        encoding="utf-8",
    )


class ForkedProcess:
    """A worker that the fork server started: its parent, which is told how it ends."""

    def __init__(self, pid: int, stdin: int, stdout: int, status: int):
        self.pid = pid
        self.stdin = os.fdopen(stdin, "w", encoding="utf-8")
        self.stdout = os.fdopen(stdout, "r", encoding="utf-8")
        self._status: IO[bytes] | None = os.fdopen(status, "rb", buffering=0)
        self._code: int | None = None
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            # Knows it from another process that gets the same id later.
            self._process = psutil.Process(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` if the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code.

        Raises
        ------
        subprocess.TimeoutExpired
            It still runs, or ended after the server, which alone is told how.
        """
        with self._lock:
            if self._status is not None and wait([self._status.fileno()], timeout):
                told = self._status.read(EXIT_CODE.size)
                self._status.close()
                self._status = None
                if told:
                    (self._code,) = EXIT_CODE.unpack(told)
        if self._status is None and self._code is None and self._process is not None:
            psutil.wait_procs([self._process], timeout)  # the server is gone
        if self._code is None:
            raise subprocess.TimeoutExpired(_WORKER, timeout or 0.0)
        return self._code

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()


class ForkServer:
    """The server that this process forks its workers from; started when it is first needed.

    It is started anew when the environment, the directory, the CPUs or the priority of this
    process have changed, since workers inherit them from it. It ends with this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._conditions: object = None
        self._has_said_ready = False
        self._is_refused = sys.platform != "linux"

    def fork(self, errors: IO[bytes], timeout_s: float) -> ForkedProcess | None:
        """Return a new worker, or ``None`` if it has to be started in another way."""
        if self._is_refused:
            return None
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        (its_in, stdin), (stdout, its_out), (status, its_status) = pipes
        pid: int | None = None
        try:
            pid = self._ask([its_in, its_out, errors.fileno(), its_status], timeout_s)
            return ForkedProcess(pid, stdin, stdout, status) if pid else None
        finally:
            for descriptor in (its_in, its_out, its_status):
                os.close(descriptor)
            if not pid:
                for descriptor in (stdin, stdout, status):
                    os.close(descriptor)

    def is_ready(self, timeout_s: float) -> bool:
        """Start the server; tell whether it has imported the runtime within that time.

        If not it goes on importing. Where nothing can be forked there is nothing to wait for.
        """
        if self._is_refused:
            return True
        with self._lock:
            try:
                self._await(self._connect(), max(1e-3, timeout_s))
            except TimeoutError:
                return False
            except OSError:  # it ended; forking finds out whether it can be started again
                self._disconnect()
        return True

    def close(self) -> None:
        """End the server."""
        with self._lock:
            self._disconnect()

    def _ask(self, descriptors: Sequence[int], timeout_s: float) -> int | None:
        with self._lock:
            for _ in range(2):  # a server that was idle for long may just have ended
                channel = self._connect()
                try:
                    self._await(channel, timeout_s)
                    socket.send_fds(channel, [b"f"], descriptors)
                    answer = channel.recv(ANSWER.size, socket.MSG_WAITALL)
                except TimeoutError:
                    self._disconnect()
                    return None
                except OSError:
                    answer = b""
                except BaseException:  # an answer that nobody read would be taken for the next
                    self._disconnect()
                    raise
                if answer:
                    (pid,) = ANSWER.unpack(answer)
                    self._is_refused = pid == REFUSED
                    return pid
                self._disconnect()
            self._is_refused = True
        return None

    def _await(self, channel: socket.socket, timeout_s: float) -> None:
        channel.settimeout(None if math.isinf(timeout_s) else timeout_s)
        if not self._has_said_ready:
            if channel.recv(len(READY)) != READY:
                raise ConnectionError("the fork server ended")
            self._has_said_ready = True

    def _connect(self) -> socket.socket:
        conditions = _conditions()
        if self._channel is None or conditions != self._conditions:
            self._disconnect()
            self._channel, its_end = socket.socketpair()
            with its_end:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _SERVER],
                    stdin=its_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment(OPENBLAS_NUM_THREADS="1"),  # else importing it starts threads
                )
            self._conditions = conditions
            self._has_said_ready = False
        return self._channel

    def _disconnect(self) -> None:
        """Let the server end, which it does after the last of its workers."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


FORK_SERVER = ForkServer()
atexit.register(FORK_SERVER.close)


def _conditions() -> tuple[Any, ...]:
    """Return what a worker inherits from the process that forks it."""
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = ""
    cpus = os.sched_getaffinity(0)
    return os.getpid(), dict(os.environ), directory, cpus, os.getpriority(os.PRIO_PROCESS, 0)


def _environment(**more: str) -> dict[str, str]:
    """Let the worker find this very package, also in a checkout that is not installed."""
    here = str(Path(__file__).resolve().parents[4])
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([here, before]) if before else here
    return environment_of_a_child(PYTHONPATH=path, PYTHONUNBUFFERED="1", **more)
