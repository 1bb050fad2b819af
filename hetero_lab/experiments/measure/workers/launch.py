"""Start worker processes, forked from a server that has imported the runtime or from scratch.

Importing OpenVINO takes longer than many measurements, so on Linux a fork server does it once.
Reading a model takes as long as compiling a small one, so the server forks a second server for
each set-up, which reads it once; the workers with this set-up are forked from that one.
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

ANSWER = struct.Struct("=q")  # a process id
EXIT_CODE = struct.Struct("=i")  # as in subprocess.Popen: negative is a signal
REFUSED = 0  # instead of a process id: forking is not safe
READY = b"r"  # sent by a server when it has imported everything, or set up
WORKER, SERVER = b"w", b"s"  # what to fork
_WORKER = "hetero_lab.experiments.measure.workers.worker"
FORK = "fork"  # the argument that makes it a server
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


class _Channel:
    """The socket to one server, which answers each request with the id of what it forked."""

    def __init__(self, of_caller: socket.socket, pid: int):
        self._socket = of_caller
        self._pid = pid
        self.has_said_ready = False

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for a server to import or to set up; raises TimeoutError or another OSError."""
        self._socket.settimeout(None if math.isinf(timeout_s) else timeout_s)
        if not self.has_said_ready:
            if self._socket.recv(len(READY)) != READY:
                raise ConnectionError("the fork server ended")
            self.has_said_ready = True

    def fork(self, what: bytes, descriptors: Sequence[int], timeout_s: float) -> int:
        """Return the id of a new process, or ``REFUSED``; raises OSError as above."""
        self.wait_until_ready(timeout_s)
        socket.send_fds(self._socket, [what], descriptors)
        answer = self._socket.recv(ANSWER.size, socket.MSG_WAITALL)
        if not answer:
            raise ConnectionError("the fork server ended")
        (pid,) = ANSWER.unpack(answer)
        return pid

    def close(self) -> None:
        """Let the server end after the last of its processes."""
        self._socket.close()

    def kill(self) -> None:
        """End the server now, which may hang in a set-up; its workers go on."""
        self.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self._pid).kill()


class ForkServer:
    """The server that this process forks its workers from; it ends with this process.

    It starts when it is needed, and again after a change of the environment, the directory, the
    CPUs or the priority of this process, which workers inherit.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._channel: _Channel | None = None
        self._set_up: tuple[SetUp, _Channel | None] | None = None  # None: it cannot be shared
        self._process: subprocess.Popen[bytes] | None = None
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
                if set_up is not None and set_up.models:
                    pid = self._fork_set_up(set_up, descriptors, timeout_s)
                pid = pid or self._fork(WORKER, descriptors, timeout_s)
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
                self._connect().wait_until_ready(max(1e-3, timeout_s))
            except TimeoutError:
                return False
            except OSError:  # it ended; the next fork tries to start it again
                self.close()
        return True

    def forget_set_up(self) -> None:
        """Let go of the last set-up and its models, after the last of its workers."""
        with self._lock:
            if self._set_up is not None and self._set_up[1] is not None:
                self._set_up[1].close()
            self._set_up = None

    def close(self) -> None:
        """End the server after its last worker."""
        with self._lock:
            self.forget_set_up()
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def _fork(self, what: bytes, descriptors: Sequence[int], timeout_s: float) -> int:
        for _ in range(2):  # a server that was idle for long may just have ended
            try:
                pid = self._connect().fork(what, descriptors, timeout_s)
            except TimeoutError:
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

    def _fork_set_up(self, set_up: SetUp, descriptors: Sequence[int], timeout_s: float) -> int:
        """Fork from the server of a set-up; ``REFUSED`` where a worker has to set up by itself."""
        if self._set_up is None or self._set_up[0] != set_up:
            self.forget_set_up()
            channel = self._serve_set_up(set_up, timeout_s)
            if self._channel is not None:
                self._set_up = set_up, channel
        channel = self._set_up[1] if self._set_up else None
        if channel is None or _conditions() != self._conditions:
            return REFUSED
        try:
            pid = channel.fork(WORKER, descriptors, timeout_s)
            ended = False
        except OSError:
            pid, ended = REFUSED, True
        except BaseException:
            self.forget_set_up()
            raise
        if pid == REFUSED:
            channel.kill()
            # A set-up that crashed or hangs, or that started threads, is not tried again; a server
            # that was idle for long is replaced for the next worker.
            self._set_up = None if ended and channel.has_said_ready else (set_up, None)
        return pid

    def _serve_set_up(self, set_up: SetUp, timeout_s: float) -> _Channel | None:
        own, its_end = socket.socketpair()
        with its_end, tempfile.TemporaryFile() as file:
            file.write(msgspec.json.encode(set_up))
            file.seek(0)
            if pid := self._fork(SERVER, [its_end.fileno(), file.fileno()], timeout_s):
                return _Channel(own, pid)
        own.close()
        return None

    def _connect(self) -> _Channel:
        conditions = _conditions()
        if self._channel is None or conditions != self._conditions:
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
            self._channel = _Channel(own, self._process.pid)
            self._conditions = conditions
        return self._channel


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
