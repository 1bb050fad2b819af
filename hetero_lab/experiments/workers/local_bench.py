"""A bench in this process, asked as a worker process is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.experiments.workers.bench import Bench
from hetero_lab.experiments.workers.process import WorkerError
from hetero_lab.experiments.workers.worker import HANDLERS
from hetero_lab.model.read import PreparedModel

if TYPE_CHECKING:
    import openvino as ov


class LocalBench:
    """The same questions as to a worker process, without the protection of one."""

    start_s = 0.0

    def __init__(
        self,
        prepared: Mapping[str, PreparedModel],
        arrays: Mapping[str, Sequence[np.ndarray]],
        core: ov.Core,
    ):
        self._bench = Bench(
            prepared, inputs={name: list(a) for name, a in arrays.items()}, core=core
        )

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
