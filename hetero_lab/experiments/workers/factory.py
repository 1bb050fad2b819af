"""Where benches come from: worker processes with the models in files, or this process."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Protocol, cast

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.experiments.workers.bench import Bench
from hetero_lab.experiments.workers.launch import FORK_SERVER
from hetero_lab.experiments.workers.process import WorkerError, WorkerProcess
from hetero_lab.experiments.workers.requests import Answer, AnyRequest, Request, SetUp
from hetero_lab.experiments.workers.set_up import Limits, write_set_up
from hetero_lab.experiments.workers.worker import answer
from hetero_lab.tables import scratch_directory


class LocalBench:
    """The same questions as to a worker process, without the protection of one."""

    start_s = 0.0

    def __init__(
        self,
        models: Mapping[str, BoundModel],
        arrays: Mapping[str, Sequence[np.ndarray]],
    ):
        self._bench = Bench(models, inputs={name: list(a) for name, a in arrays.items()})

    def ask(self, request: Request[Answer], *, timeout_s: float) -> Answer:
        """Do it here; ``timeout_s`` cannot be kept without a process of its own."""
        del timeout_s
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return answer(self._bench, cast("AnyRequest", request))
            except MemoryError as error:
                raise WorkerError("out of memory", str(error), died=False) from error
            except Exception as error:
                raise WorkerError("failed", f"{error}", died=False) from error

    def close(self) -> None:
        """Let go of all compiled placements."""
        self._bench.release_all()


class AnyBench(Protocol):
    """A bench, in this process or in one of its own; ``start_s`` is what starting another takes."""

    start_s: float

    def ask(self, request: Request[Answer], *, timeout_s: float) -> Answer: ...

    def close(self) -> None: ...


@dataclass
class BenchFactory:
    """Starts benches for the variants of a model and their inputs.

    Files for workers are written when the first one is started, and removed at the end.
    """

    models: Mapping[str, BoundModel]
    arrays: Mapping[str, Sequence[np.ndarray]]
    seed: int = 0
    isolate: bool = True
    limits: Limits = field(default_factory=Limits)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self) -> AnyBench:
        """Start a bench.

        Raises
        ------
        WorkerError
            The process cannot be started.
        """
        if self.isolate:
            return WorkerProcess(self.set_up, self.limits)
        return LocalBench(self.models, self.arrays)

    def is_ready(self, timeout_s: float) -> bool:
        """Tell whether a bench can be started soon, after waiting for that at most so long."""
        return not self.isolate or bool(self.limits.command) or FORK_SERVER.is_ready(timeout_s)

    @cached_property
    def set_up(self) -> SetUp:
        """What sets a worker up; the files are written.

        Raises
        ------
        OutputPathError
            They cannot be written.
        """
        directory = self._open.enter_context(scratch_directory())
        return write_set_up(directory, self.models, self.arrays, self.seed)

    def __enter__(self) -> BenchFactory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)  # which tells a full disk from other errors
