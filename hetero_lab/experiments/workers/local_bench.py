"""A bench in this process, asked as a worker process is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.experiments.workers.bench import Bench
from hetero_lab.experiments.workers.process import WorkerError
from hetero_lab.experiments.workers.worker import HANDLERS


class LocalBench:
    """The same questions as to a worker process, without the protection of one."""

    start_s = 0.0

    def __init__(
        self,
        models: Mapping[str, BoundModel],
        arrays: Mapping[str, Sequence[np.ndarray]],
    ):
        self._bench = Bench(models, inputs={name: list(a) for name, a in arrays.items()})

    def ask(self, do: str, *, timeout_s: float, **args: Any) -> Any:
        """Do it here; ``timeout_s`` cannot be kept without a process of its own."""
        del timeout_s
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return HANDLERS[do](self._bench, args)
            except MemoryError as error:
                raise WorkerError("out of memory", str(error), died=False) from error
            except Exception as error:
                raise WorkerError("failed", f"{error}", died=False) from error

    def close(self) -> None:
        """Let go of all compiled placements."""
        self._bench.release_all()
