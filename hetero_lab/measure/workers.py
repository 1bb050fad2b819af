"""The limits of worker processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hetero_lab.arguments import check_positive
from hetero_lab.errors import ArgumentError
from hetero_lab.measure.requests import Compare, Compile, CompileCounted, ReadCounters, Request
from hetero_lab.placement.memory_limits import parse_bytes

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


def limit_s(workers: Workers, request: Request[Any]) -> float:
    """Return how long the answer to a request may take."""
    if isinstance(request, Compile | CompileCounted | ReadCounters | Compare):
        return workers.compile_timeout_s
    return workers.timeout_s


def available_cores() -> int:
    """Return how many cores this process may use."""
    cores = getattr(os, "sched_getaffinity", None)
    return len(cores(0)) if cores else os.cpu_count() or 1


def compiles_at_once() -> int:
    """Return how many processes may compile in parallel: one per two cores of this process."""
    return max(1, available_cores() // 2)
