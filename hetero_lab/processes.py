"""Child processes: programs that run to their end, and processes that a server forks.

Importing OpenVINO takes longer than many measurements, so on Linux a fork server does it once.
Reading a model takes as long as compiling a small one, so the server also carries out the set-up
that workers share, before it forks them.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, TypeAlias

import psutil

from hetero_lab.interrupts import interruptible

GUARD = "HETERO_LAB_GUARD"  # set to 0, it turns off the guard: see hetero_lab.devices.guard
ANSWER = struct.Struct("=q")  # a process id, or READY
EXIT_CODE = struct.Struct("=i")  # as in subprocess.Popen: negative is a signal
REFUSED = 0  # instead of a process id: forking is not safe
READY = 1  # told by a server when it has imported a module, and when it has set up
# Requests, each followed by the name of a module: import it; let it set up; fork a process of it.
IMPORT, SET_UP, FORK = b"i", b"s", b"f"
SERVER = "hetero_lab.fork_server"
_NOTHING = b""
_OF_WINDOWS = 0xC0000000  # exit codes from here on are exceptions of the system


def environment_of_a_child(**more: str) -> dict[str, str]:
    """Return this process's environment and ``more``, for a process that imports openvino.

    ``CI`` turns OpenVINO's telemetry off. With telemetry, ``import openvino`` forks a child that
    reports the import to Google Analytics. It can hang in a lock that was held when it was forked,
    and if its parent dies first, it keeps the parent's pipes open, so that readers wait forever.
    Python writes UTF-8 into pipes, whatever the code page of the system.
    """
    return {**os.environ, "CI": "true", "PYTHONIOENCODING": "utf-8", **more}


def crash_of(code: int) -> str:
    """Name the signal, or the exception of Windows, that ended a process; empty if none did."""
    if code < 0:
        return signal.Signals(-code).name
    return f"0x{code:08X}" if code >= _OF_WINDOWS else ""


def run_child(
    command: Sequence[str],
    *,
    timeout_s: float,
    cwd: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without a keyboard, and return its output as text.

    After the time limit or Ctrl-C, the programs that it has started are killed, too.
    """
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment_of_a_child() if environment is None else environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            output = interruptible(child.communicate, timeout=timeout_s)
        except BaseException:
            if sys.platform != "win32":
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, *output)


def launch(
    module: str,
    errors: IO[bytes],
    timeout_s: float,
    *,
    command: Sequence[str] | None = None,
    set_up: bytes = _NOTHING,
) -> Launched:
    """Start a process that serves as ``module``; OSError if its command cannot be started.

    Without a command it is forked where that is safe, which may take ``timeout_s``, and may begin
    with what the module's ``prepare`` made of ``set_up``. ``errors`` is the file for its standard
    error.
    """
    if command is None:
        forked = FORK_SERVER.fork(module, errors, timeout_s, set_up)
        if forked is not None:
            return forked
    return subprocess.Popen(
        list(command or [sys.executable, "-m", module]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=_environment(),
        encoding="utf-8",
    )


class ForkedProcess:
    """A process that the fork server started, with the interface of :class:`subprocess.Popen`.

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
                content = self._status.read(EXIT_CODE.size)
                self._status.close()
                self._status = None
                if content:
                    (self._code,) = EXIT_CODE.unpack(content)
        if self._status is None and self._code is None and self._process is not None:
            psutil.wait_procs([self._process], timeout)  # the server ended before it
        if self._code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return self._code

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()


Launched: TypeAlias = "subprocess.Popen[str] | ForkedProcess"


class ForkServer:
    """The server that this process forks others from; it ends with this process.

    It starts when it is needed, and again after a change of the environment, the directory, the
    CPUs or the priority of this process, which its children inherit. It imports the modules that
    they serve as, and has one set-up at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._imported: set[str] = set()
        self._importing = ""  # the module that it was told to import, until it answers
        self._set_up = _NOTHING  # what the server has set up
        self._failing = _NOTHING  # a set-up that crashed or hung, which is not tried again
        self._conditions: object = None
        self._is_refused = sys.platform != "linux"

    def fork(
        self, module: str, errors: IO[bytes], timeout_s: float, set_up: bytes = _NOTHING
    ) -> ForkedProcess | None:
        """Return a new process, or ``None`` if forking is not possible."""
        if self._is_refused:
            return None
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        (its_in, stdin), (stdout, its_out), (status, its_status) = pipes
        descriptors = [its_in, its_out, errors.fileno(), its_status]
        pid = REFUSED
        try:
            with self._lock:
                pid = self._fork(module, descriptors, timeout_s, set_up)
            return ForkedProcess(pid, stdin, stdout, status) if pid else None
        finally:
            for descriptor in (its_in, its_out, its_status):
                os.close(descriptor)
            if not pid:
                for descriptor in (stdin, stdout, status):
                    os.close(descriptor)

    def is_ready(self, module: str, timeout_s: float) -> bool:
        """Start the server; tell whether it has imported a module within ``timeout_s``.

        If not, it goes on importing. Where forking is not possible, this is true at once.
        """
        if self._is_refused:
            return True
        with self._lock:
            try:
                self._connect(module, max(1e-3, timeout_s))
            except TimeoutError:
                return False
            except OSError:  # it ended; the next fork tries to start it again
                self.close()
        return True

    def forget_set_up(self) -> None:
        """Let go of what the server has set up."""
        with self._lock:
            if self._set_up != _NOTHING:
                try:
                    self._send_set_up("", _NOTHING)
                except OSError:
                    self.close()

    def close(self) -> None:
        """End the server after its last child."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket, self._set_up = None, _NOTHING
            self._imported, self._importing = set(), ""

    def _fork(
        self, module: str, descriptors: Sequence[int], timeout_s: float, set_up: bytes
    ) -> int:
        for _ in range(2):  # once more without a set-up that ended the server
            try:
                self._connect(module, timeout_s)
                if set_up and set_up not in (self._set_up, self._failing):
                    before, self._failing = self._failing, set_up
                    self._send_set_up(module, set_up)
                    self._failing = before
                pid = self._ask(FORK, module, descriptors)
            except TimeoutError:
                if self._process is not None and not self._importing:  # a set-up hangs
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

    def _connect(self, module: str, timeout_s: float) -> None:
        """Start the server if necessary and wait for its import; TimeoutError or OSError."""
        conditions = _conditions()
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it was idle for long
        if self._socket is None or conditions != self._conditions:
            self.close()
            our_end, its_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with its_end:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", SERVER],
                    stdin=its_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment(OPENBLAS_NUM_THREADS="1"),  # else its import starts threads
                )
            self._socket, self._conditions = our_end, conditions
        self._socket.settimeout(None if math.isinf(timeout_s) else timeout_s)
        while module not in self._imported:
            if not self._importing:
                self._socket.send(IMPORT + module.encode())
                self._importing = module
            self._answer()
            self._imported.add(self._importing)
            self._importing = ""

    def _send_set_up(self, module: str, set_up: bytes) -> None:
        """Let the server set up; one that fails is told by the worker that tries it once more."""
        with tempfile.TemporaryFile() as file:
            file.write(set_up)
            file.seek(0)
            if self._ask(SET_UP, module, [file.fileno()]) == REFUSED:
                raise ConnectionError("the set-up started threads, so nothing can be forked")
        self._set_up = set_up

    def _ask(self, what: bytes, module: str, descriptors: Sequence[int]) -> int:
        assert sys.platform == "linux"
        assert self._socket is not None
        socket.send_fds(self._socket, [what + module.encode()], descriptors)
        return self._answer()

    def _answer(self) -> int:
        assert self._socket is not None
        answer = self._socket.recv(ANSWER.size, socket.MSG_WAITALL)
        if not answer:
            raise ConnectionError("the fork server ended")
        return ANSWER.unpack(answer)[0]


def available_cores() -> int:
    """Return how many cores this process may use."""
    cores = getattr(os, "sched_getaffinity", None)
    return len(cores(0)) if cores else os.cpu_count() or 1


FORK_SERVER = ForkServer()
atexit.register(FORK_SERVER.close)


def _conditions() -> tuple[Any, ...]:
    """Return all that a child inherits from the process that forks it."""
    assert sys.platform == "linux"
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = ""
    cpus = os.sched_getaffinity(0)
    return os.getpid(), dict(os.environ), directory, cpus, os.getpriority(os.PRIO_PROCESS, 0)


def _environment(**more: str) -> dict[str, str]:
    """Return the environment of a child, in which it finds this package even if not installed."""
    here = str(Path(__file__).resolve().parents[1])
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([here, before]) if before else here
    return environment_of_a_child(PYTHONPATH=path, PYTHONUNBUFFERED="1", **{GUARD: "0", **more})
