"""How long to measure and what besides turns, and under what conditions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.measure.workers.set_up import Workers, positive
from hetero_lab.runtime.inputs import Inputs

LEAST_TURNS = 8


@dataclass(frozen=True)
class Conditions:
    """Under what placements are measured; the fields are as the arguments of a sweep."""

    inputs: Inputs | None = None
    seed: int = 0
    cache_dir: str | os.PathLike[str] | None = None
    isolate: bool = True
    workers: Workers = field(default_factory=Workers)


@dataclass(frozen=True)
class RunOptions:
    """How long to measure, and what besides turns; the fields are as the arguments of a sweep.

    With ``apart``, the first placement on a device that nothing was compiled for yet begins a new
    group: its compile may take all the time that is left, and what is there is measured before.

    Raises
    ------
    ArgumentError
        A number that is too small, or none.
    """

    precision: float = 0.02
    turns: int | None = None
    sustained_s: float | None = None
    counters: bool = True
    reference: bool = True
    apart: bool = False

    def __post_init__(self) -> None:
        positive("precision", self.precision)
        if self.sustained_s is not None:
            positive("sustained_s", self.sustained_s)
        turns: Any = self.turns
        if turns is not None and (type(turns) is not int or turns < 2):
            raise ArgumentError(f"turns= is a whole number of at least 2, not {turns!r}.")

    @property
    def target(self) -> int:
        """How many turns each placement is to have at least."""
        return self.turns or LEAST_TURNS
