"""Start worker processes, forked from a server that has imported the runtime or from scratch.

Importing OpenVINO takes longer than many measurements, so on Linux a fork server does it once.
Reading a model takes as long as compiling a small one, so the server also carries out the set-up
that workers share, before it forks them.
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
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, TypeAlias

import msgspec
import psutil

from hetero_lab.backend.core import environment_of_a_child
from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.measure.workers.requests import (
    Compare,
    Compile,
    CompileCounted,
    ReadCounters,
    Request,
    SetUp,
)
from hetero_lab.planning.memory import parse_bytes

ANSWER = struct.Struct("=q")  # a process id, or READY
EXIT_CODE = struct.Struct("=i")  # as in subprocess.Popen: negative is a signal
REFUSED = 0  # instead of a process id: forking is not safe
READY = 1  # told by a server when it has imported everything, and when it has set up
WORKER, SET_UP = b"w", b"s"  # requests: fork a worker; read a set-up from a file
_WORKER = "hetero_lab.experiments.measure.workers.worker"
FORK = "fork"  # the argument that makes it a server
_NOTHING = SetUp(models={})
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


def positive(name: str, value: Any) -> float:
    """Return a number above 0; raise ArgumentError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError(f"{name}= is a number above 0, not {value!r}.")
    return float(value)


def limit_s(workers: Workers, request: Request[Any]) -> float:
    """Return how long the answer to a request may take."""
    if isinstance(request, Compile | CompileCounted | ReadCounters | Compare):
        return workers.compile_timeout_s
    return workers.timeout_s


def compiles_at_once() -> int:
    """Return how many processes may compile in parallel: one per two cores of this process."""
    cores = getattr(os, "sched_getaffinity", None)
    n_cores = len(cores(0)) if cores else os.cpu_count() or 1
    return max(1, n_cores // 2)


def launch(
    command: Sequence[str] | None, errors: IO[bytes], timeout_s: float, set_up: SetUp | None = None
) -> Launched:
    """Start a worker process; OSError if its command cannot be started.

    Without a command it is forked where that is safe, which may take ``timeout_s``, and may have
    carried out ``set_up``, its first request. ``errors`` is the file for its standard error.
    """
    if command is None:
        forked = FORK_SERVER.fork(errors, timeout_s, set_up)
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
        """Return the exit code; TimeoutExpired if it runs, or its code was lost with the server."""
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
    """The server that this process forks its workers from; it ends with this process.

    It starts when it is needed, and again after a change of the environment, the directory, the
    CPUs or the priority of this process, which workers inherit. It has one set-up at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._set_up = _NOTHING  # what the server has set up
        self._failing = _NOTHING  # a set-up that crashed or hung, which is not tried again
        self._conditions: object = None
        self._is_refused = sys.platform != "linux"

    def fork(
        self, errors: IO[bytes], timeout_s: float, set_up: SetUp | None = None
    ) -> ForkedProcess | None:
        """Return a new worker, or ``None`` if forking is not possible."""
        if self._is_refused:
            return None
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        (its_in, stdin), (stdout, its_out), (status, its_status) = pipes
        descriptors = [its_in, its_out, errors.fileno(), its_status]
        pid = REFUSED
        try:
            with self._lock:
                pid = self._fork(descriptors, timeout_s, set_up or _NOTHING)
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
                self._connect(max(1e-3, timeout_s))
            except TimeoutError:
                return False
            except OSError:  # it ended; the next fork tries to start it again
                self.close()
        return True

    def forget_set_up(self) -> None:
        """Let go of the models that the server has read."""
        with self._lock:
            if self._set_up != _NOTHING:
                try:
                    self._send_set_up(_NOTHING)
                except OSError:
                    self.close()

    def close(self) -> None:
        """End the server after its last worker."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket, self._set_up = None, _NOTHING

    def _fork(self, descriptors: Sequence[int], timeout_s: float, set_up: SetUp) -> int:
        for _ in range(2):  # once more without a set-up that ended the server
            try:
                self._connect(timeout_s)
                if set_up.models and set_up not in (self._set_up, self._failing):
                    before, self._failing = self._failing, set_up
                    self._send_set_up(set_up)
                    self._failing = before
                pid = self._ask(WORKER, descriptors)
            except TimeoutError:
                if self._process is not None and self._is_ready:  # a set-up hangs
                    self._process.kill()
                self.close()
                return REFUSED
            except OSError:
                self.close()
            except BaseException:  # else the next request would read this one's answer
                self.close()
                raise
            else:
                self._is_refused = pid == REFUSED
                return pid
        self._is_refused = True
        return REFUSED

    def _connect(self, timeout_s: float) -> None:
        """Start the server if necessary and wait for its imports; TimeoutError or OSError."""
        conditions = _conditions()
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it was idle for long
        if self._socket is None or conditions != self._conditions:
            self.close()
            own, its_end = socket.socketpair()
            with its_end:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _WORKER, FORK],
                    stdin=its_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment(OPENBLAS_NUM_THREADS="1"),  # else its import starts threads
                )
            self._socket, self._conditions, self._is_ready = own, conditions, False
        self._socket.settimeout(None if math.isinf(timeout_s) else timeout_s)
        self._is_ready = self._is_ready or self._answer() == READY

    def _send_set_up(self, set_up: SetUp) -> None:
        """Let the server set up; one that fails is told by the worker that tries it once more."""
        with tempfile.TemporaryFile() as file:
            file.write(msgspec.json.encode(set_up))
            file.seek(0)
            if self._ask(SET_UP, [file.fileno()]) == REFUSED:
                raise ConnectionError("the set-up started threads, so nothing can be forked")
        self._set_up = set_up

    def _ask(self, what: bytes, descriptors: Sequence[int]) -> int:
        assert self._socket is not None
        socket.send_fds(self._socket, [what], descriptors)
        return self._answer()

    def _answer(self) -> int:
        assert self._socket is not None
        answer = self._socket.recv(ANSWER.size, socket.MSG_WAITALL)
        if not answer:
            raise ConnectionError("the fork server ended")
        return ANSWER.unpack(answer)[0]


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
