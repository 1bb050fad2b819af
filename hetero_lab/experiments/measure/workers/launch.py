"""Start worker processes, forked from a server that has imported the runtime or from scratch.

Importing OpenVINO takes longer than many measurements, so on Linux a fork server does it once.
"""

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
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, TypeAlias

import psutil

from hetero_lab.backend.core import environment_of_a_child
from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.measure.workers.requests import (
    Compare,
    Compile,
    CompileCounted,
    Hold,
    ReadCounters,
    Request,
)
from hetero_lab.planning.memory import parse_bytes

ANSWER = struct.Struct("=q")  # a process id
EXIT_CODE = struct.Struct("=i")  # as in subprocess.Popen: negative is a signal
REFUSED = 0  # instead of a process id: forking is not safe
READY = b"r"  # sent by the server when it has imported everything
_SERVER = "hetero_lab.experiments.measure.workers.fork_server"
_WORKER = "hetero_lab.experiments.measure.workers.worker"
GROUP_SIZE = 8
_MOST_IN_GROUP = 10_000


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The limits of worker processes, and the command that starts them.

    Attributes
    ----------
    command
        The command that starts a worker, for instance with ``taskset`` or a driver's wrapper in
        front; by default workers are forked from a process that has imported the runtime.
    memory_limit
        The resident memory at which a worker is killed: bytes, or ``"2GiB"``; by default 90 % of
        the machine's memory.
    timeout_s, compile_timeout_s
        How long an answer may take, without and with a compile.
    group
        How many placements are compiled and alive at once, the reference included. In larger
        groups, a drift of the machine affects more placements alike, but all of them need memory
        and threads.

    Raises
    ------
    ArgumentError
        A limit is not above 0, or a group has fewer than two placements.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> hl.Workers(timeout_s=120, memory_limit="2GiB").memory_limit_bytes
    2147483648
    """

    command: Sequence[str] | None = None
    memory_limit: int | str | None = None
    timeout_s: float = 60.0
    compile_timeout_s: float = 600.0
    group: int = GROUP_SIZE

    def __post_init__(self) -> None:
        positive("timeout_s", self.timeout_s)
        positive("compile_timeout_s", self.compile_timeout_s)
        if type(self.group) is not int or not 2 <= self.group <= _MOST_IN_GROUP:
            raise ArgumentError(
                f"group= is a whole number from 2 to {_MOST_IN_GROUP}, not {self.group!r}."
            )
        if self.memory_limit is not None:
            positive("memory_limit", self.memory_limit_bytes)
        if self.command is not None:
            if isinstance(self.command, str) or not self.command:
                raise ArgumentError(
                    f"command= is a list of texts, for instance ['taskset', '-c', '0', …], "
                    f"not {self.command!r}."
                )
            object.__setattr__(self, "command", tuple(self.command))

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory limit in bytes, ``None`` for the default."""
        return None if self.memory_limit is None else int(parse_bytes(self.memory_limit))

    def limit_s(self, request: Request[Any]) -> float:
        """Return how long the answer to a request may take."""
        if isinstance(request, Compile | CompileCounted | ReadCounters | Compare):
            return self.compile_timeout_s
        return self.timeout_s + (request.seconds if isinstance(request, Hold) else 0.0)


def positive(name: str, value: Any) -> float:
    """Return a number above 0; raise ArgumentError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError(f"{name}= is a number above 0, not {value!r}.")
    return float(value)


def compiles_at_once() -> int:
    """Return how many processes may compile in parallel: one per two cores of this process."""
    cores = getattr(os, "sched_getaffinity", None)
    n_cores = len(cores(0)) if cores else os.cpu_count() or 1
    return max(1, n_cores // 2)


def launch(command: Sequence[str] | None, errors: IO[bytes], timeout_s: float) -> Launched:
    """Start a worker process.

    Parameters
    ----------
    command
        The command line; with ``None`` the worker is forked where that is safe.
    errors
        The file for its standard error.
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
    """A worker that the fork server started, with the interface of :class:`subprocess.Popen`.

    Only the server, its parent, can wait for it; the server sends the exit code through a pipe.
    """

    def __init__(self, pid: int, stdin: int, stdout: int, status: int):
        self.pid = pid
        self.stdin = os.fdopen(stdin, "w", encoding="utf-8")
        self.stdout = os.fdopen(stdout, "r", encoding="utf-8")
        self._status: IO[bytes] | None = os.fdopen(status, "rb", buffering=0)
        self._code: int | None = None
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            # Unlike a bare id, it is not confused with a later process of the same id.
            self._process = psutil.Process(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code.

        Raises
        ------
        subprocess.TimeoutExpired
            It still runs, or it ended after the server, so that its exit code is lost.
        """
        with self._lock:
            if self._status is not None and wait([self._status.fileno()], timeout):
                told = self._status.read(EXIT_CODE.size)
                self._status.close()
                self._status = None
                if told:
                    (self._code,) = EXIT_CODE.unpack(told)
        if self._status is None and self._code is None and self._process is not None:
            psutil.wait_procs([self._process], timeout)  # the server ended before it
        if self._code is None:
            raise subprocess.TimeoutExpired(_WORKER, timeout or 0.0)
        return self._code

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()


Launched: TypeAlias = "subprocess.Popen[str] | ForkedProcess"


class ForkServer:
    """The server that this process forks its workers from; started when it is first needed.

    It is restarted when the environment, the directory, the CPUs or the priority of this process
    have changed, since workers inherit them from it. It ends with this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._conditions: object = None
        self._has_said_ready = False
        self._is_refused = sys.platform != "linux"

    def fork(self, errors: IO[bytes], timeout_s: float) -> ForkedProcess | None:
        """Return a new worker, or ``None`` if forking is not possible."""
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
        """Start the server; tell whether it has imported the runtime within ``timeout_s``.

        If not, it goes on importing. Where forking is not possible, this is true at once.
        """
        if self._is_refused:
            return True
        with self._lock:
            try:
                self._await(self._connect(), max(1e-3, timeout_s))
            except TimeoutError:
                return False
            except OSError:  # it ended; the next fork tries to start it again
                self._disconnect()
        return True

    def close(self) -> None:
        """End the server after its last worker."""
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
                except BaseException:  # else the next request would read this one's answer
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
                    env=_environment(OPENBLAS_NUM_THREADS="1"),  # else its import starts threads
                )
            self._conditions = conditions
            self._has_said_ready = False
        return self._channel

    def _disconnect(self) -> None:
        """Close the channel, so that the server ends after the last of its workers."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


FORK_SERVER = ForkServer()
atexit.register(FORK_SERVER.close)


def _conditions() -> tuple[Any, ...]:
    """Return all that a worker inherits from the process that forks it."""
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = ""
    cpus = os.sched_getaffinity(0)
    return os.getpid(), dict(os.environ), directory, cpus, os.getpriority(os.PRIO_PROCESS, 0)


def _environment(**more: str) -> dict[str, str]:
    """Return the environment of a worker, in which it finds this package even if not installed."""
    here = str(Path(__file__).resolve().parents[4])
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([here, before]) if before else here
    return environment_of_a_child(PYTHONPATH=path, PYTHONUNBUFFERED="1", **more)
