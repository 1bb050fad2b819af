"""The files that workers are set up with, how workers are started, and their memory limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.measure.workers.requests import (
    Compare,
    Compile,
    CompileCounted,
    Hold,
    ReadCounters,
    Request,
    SetUp,
)
from hetero_lab.model.read import save
from hetero_lab.planning.memory import parse_bytes

GROUP_SIZE = 8
_MOST_AT_ONCE = 10_000


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The limits of worker processes, and the command that starts them.

    Attributes
    ----------
    command
        What starts a worker instead of forking it from a process that has imported the runtime,
        for instance with ``taskset`` or a driver's wrapper in front.
    memory_limit
        The resident memory at which a worker is ended: bytes, or ``"2GiB"``; by default 90 % of
        the machine's.
    timeout_s, compile_timeout_s
        How long an answer may take, and how long one that compiles.
    group
        How many placements are compiled and alive at once, the reference included. With more, a
        drift of the machine hits more of them alike; memory and threads are needed for all.

    Raises
    ------
    ArgumentError
        A limit that is not above 0, or a group of fewer than two.

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
        if type(self.group) is not int or not 2 <= self.group <= _MOST_AT_ONCE:
            raise ArgumentError(
                f"group= is a whole number from 2 to {_MOST_AT_ONCE}, not {self.group!r}."
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
        """The limit in bytes."""
        return None if self.memory_limit is None else int(parse_bytes(self.memory_limit))

    def limit_s(self, request: Request[Any]) -> float:
        """Return how long the answer to a request may take."""
        if isinstance(request, Compile | CompileCounted | ReadCounters | Compare):
            return self.compile_timeout_s
        return self.timeout_s + (request.seconds if isinstance(request, Hold) else 0.0)


def positive(name: str, value: Any) -> float:
    """Return a number above 0; ArgumentError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError(f"{name}= is a number above 0, not {value!r}.")
    return float(value)


def write_set_up(
    directory: Path,
    bound: Mapping[str, BoundModel],
    arrays: Mapping[str, Sequence[np.ndarray]],
    seed: int,
) -> SetUp:
    """Write models and inputs where a worker can read them; return what sets a worker up."""
    models, inputs, ops = {}, {}, {}
    core = next(iter(bound.values())).core
    for index, variant in enumerate(bound):
        path = directory / f"model{index}.xml"
        save(bound[variant].model, path)
        models[variant] = str(path)
        ops[variant] = tuple(op.name for op in bound[variant].graph)
        named: dict[str, Any] = {f"{i:04d}": array for i, array in enumerate(arrays[variant])}
        inputs[variant] = str(directory / f"inputs{index}.npz")
        np.savez(inputs[variant], **named)
    return SetUp(
        models=models,
        ops=ops,
        inputs=inputs,
        emulated=[spec.to_json() for spec in emulated_devices(core).values()],
        seed=seed,
        directory=str(directory),
    )
