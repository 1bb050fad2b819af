"""Worker processes: their limits; how one is started, asked, and ended, and how it died.

``processes`` launches it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar, get_type_hints

import msgspec
import psutil

from hetero_lab.arguments import check_positive
from hetero_lab.clock import now
from hetero_lab.devices.core import EmulatedDevice
from hetero_lab.errors import ArgumentError, HeteroLabError, shorten
from hetero_lab.placement.memory_limits import parse_bytes
from hetero_lab.processes import available_cores, launch
from hetero_lab.tables import number

WORKER = "hetero_lab.measure.worker_program"
GROUP_SIZE = 8  # the reference and seven: many share its turns, few need memory and threads at once
_MOST_IN_GROUP = 10_000  # no machine holds so many models: a larger number is a mistake
_POLL_S = 0.2  # between two looks at whether a worker lives, and at its memory
_START_S = 120.0  # for a process to start and to be set up
_END_S = 5.0  # for a process to end by itself after its output has ended
_LAST_LINE_S = 1.0  # to read the last line of a process that has ended
_GIB = float(1 << 30)

Answer = TypeVar("Answer")
# A call of a method of Bench, which lacks nothing but the bench; its arguments have names.
Request: TypeAlias = partial[Answer]


class SetUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is set up with, before its first request.

    ``models`` and ``inputs`` map the names of variants to files in ``directory``; missing inputs
    are generated. Workers keep the reference outputs for each other there. ``ops`` names the ops of
    each model in the order of the trials' affinities, since a worker reads its graph from a file
    and may get another order. ``blobs`` maps keys of trials to directories of OpenVINO's model
    cache.
    """

    models: dict[str, str]
    inputs: dict[str, str] = {}
    ops: dict[str, tuple[str, ...]] = {}
    emulated: tuple[EmulatedDevice, ...] = ()
    directory: str = ""
    blobs: dict[str, str] = {}


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's answer, one line: a value, or the text of an error and its status."""

    value: Any = None
    error: str | None = None
    status: str = ""
    warnings: tuple[str, ...] = ()


@cache
def types_of(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the arguments of a method and of what it returns."""
    return get_type_hints(method)


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
        check_positive("timeout_s", self.timeout_s)
        check_positive("compile_timeout_s", self.compile_timeout_s)
        if type(self.group) is not int or not 2 <= self.group <= _MOST_IN_GROUP:
            raise ArgumentError(
                f"group= is a whole number from 2 to {_MOST_IN_GROUP}, not {self.group!r}."
            )
        if self.memory_limit is not None:
            check_positive("memory_limit", self.memory_limit_bytes)
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


def compiles_at_once() -> int:
    """Return how many processes may compile in parallel: one per two cores of this process."""
    return max(1, available_cores() // 2)


class WorkerError(HeteroLabError):
    """A request that a worker could not answer, with the ``status`` of its row.

    ``died`` says that the process is gone, ``crashed`` that it ended by itself: a retry may help.
    """

    def __init__(self, status: str, detail: str = "", *, died: bool, crashed: bool = False):
        super().__init__(f"{status}: {detail}" if detail else status)
        self.status = status
        self.detail = detail
        self.died = died
        self.crashed = crashed


@contextlib.contextmanager
def as_worker_errors(messages: list[str]) -> Iterator[None]:
    """Raise any error as a WorkerError from it; put the texts of warnings into ``messages``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except Exception as error:
            no_memory = isinstance(error, MemoryError) or "bad_alloc" in str(error)
            detail = str(error)
            if not isinstance(error, HeteroLabError):
                detail = f"{type(error).__name__}: {error}"
            status = "out of memory" if no_memory else "failed"
            raise WorkerError(status, detail, died=False) from error
        finally:
            messages[:] = [str(warning.message) for warning in caught]


class WorkerProcess:
    """A process that runs a :class:`~hetero_lab.measure.bench.Bench`.

    ``workers`` gives the command that starts it and the resident memory at which it is killed.
    ``start_s`` is the time that its set-up took.
    """

    def __init__(self, set_up: SetUp, workers: Workers | None = None):
        workers = workers or Workers()
        command = workers.command
        self._limit = workers.memory_limit_bytes or int(psutil.virtual_memory().total * 0.9)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        try:
            shared = msgspec.json.encode(set_up) if set_up.models else b""
            self._process = launch(WORKER, self._errors, _START_S, command=command, set_up=shared)
        except OSError as error:
            self._errors.close()
            name = shorten(str(command[0])) if command else "process"
            detail = f"the worker {name} cannot be started: {error}"
            raise WorkerError("failed", detail, died=True) from error
        self.warnings: Sequence[str] = ()  # of the last answer
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        began = now()
        try:
            self._exchange("set_up", set_up, None, _START_S)
        except BaseException:
            self.kill()
            raise
        self.start_s = now() - began

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, request: Request[Answer], *, timeout_s: float) -> Answer:
        """Send a request and wait for its answer; WorkerError if there is no good one in time."""
        assert not request.args  # only what is named is sent
        method = request.func.__name__
        call = {"method": method, "arguments": request.keywords}
        return self._exchange(method, call, types_of(request.func)["return"], timeout_s)

    def _exchange(self, method: str, sent: Any, answer: Any, timeout_s: float) -> Any:
        """Send a line and wait for its answer, which is converted to the type ``answer``."""
        assert self._process.stdin is not None
        # If it has ended or was killed, its last answer is read below.
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(msgspec.to_builtins(sent)) + "\n")
            self._process.stdin.flush()
        until = now() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=_POLL_S)
                break
            except queue.Empty:
                if self._process.poll() is not None:
                    line = self._last_line()
                    break
                self._check_memory()
                if now() > until:
                    self.kill()
                    what = method.title().replace("_", "")
                    raise WorkerError(f"timed out after {timeout_s:g} s", what, died=True) from None
        if line is None:
            raise self._death()
        if method != "run_turn":  # which takes no memory, and whose time counts
            self._check_memory()
        try:
            reply = msgspec.convert(json.loads(line), Reply)
            self.warnings = reply.warnings
            if reply.error is None:
                return msgspec.convert(reply.value, answer)
        except ValueError as error:
            self.kill()
            detail = f"the worker answered {shorten(line.strip())}, which is not a valid reply"
            raise WorkerError("failed", detail, died=True) from error
        raise WorkerError(reply.status, reply.error, died=False)

    def _check_memory(self) -> None:
        resident_bytes = self._resident_bytes()
        if resident_bytes > self._limit:
            self.kill()
            used, limit = (number(n_bytes / _GIB) for n_bytes in (resident_bytes, self._limit))
            detail = f"it used {used} GiB, the limit is {limit} GiB"
            raise WorkerError("out of memory", detail, died=True) from None

    def close(self) -> None:
        """End the process and so free its models."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its children."""
        started: list[psutil.Process] = []
        if self._process.poll() is None:
            with contextlib.suppress(psutil.Error):
                started = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # its server is gone
            self._process.wait(timeout=_END_S)
        for child in started:
            with contextlib.suppress(psutil.Error):
                child.kill()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._errors.close()

    def _read(self) -> None:
        # The output is closed here, by its reader: closing it elsewhere would wait for its end,
        # which never comes while a child left behind by the process holds it open.
        stream = self._process.stdout
        assert stream is not None
        with contextlib.suppress(ValueError, OSError), stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put(None)

    def _last_line(self) -> str | None:
        """Return the last line of an ended process, whose output a child may still hold open."""
        with contextlib.suppress(queue.Empty):
            return self._lines.get(timeout=_LAST_LINE_S)
        return None

    def _resident_bytes(self) -> int:
        try:
            return psutil.Process(self._process.pid).memory_info().rss
        except psutil.Error:
            return 0

    def _death(self) -> WorkerError:
        code = None  # stays None if the process hangs at its end or only closed its output
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=_END_S)
        detail = ""
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            detail = lines[-1][:400] if lines else ""
        self.kill()
        status = f"crashed (exit code {code})"
        if code is None:
            status = "crashed (no more answers)"
        elif code < 0:
            status = f"crashed (signal {-code})"
            name = ""
            with contextlib.suppress(ValueError):
                name = f" {signal.Signals(-code).name}"
            # SIGKILL is the only trace of the kernel's out-of-memory killer.
            hint = ", perhaps for lack of memory" if "SIGKILL" in name else ""
            detail = f"{name}{hint} {detail}".strip()
        return WorkerError(status, detail, died=True, crashed=True)
