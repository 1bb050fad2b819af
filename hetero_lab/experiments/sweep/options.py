"""The arguments of a sweep in groups: what is crossed, under what conditions, for how long."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.workers.set_up import Limits
from hetero_lab.model.language import Scenario
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.runtime.runners import HETERO

GROUP_SIZE = 8
LEAST_TURNS = 8


@dataclass(frozen=True)
class Dimensions:
    """What placements are crossed with; the fields are as the arguments of a sweep."""

    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    executor: str | Sequence[str] = HETERO
    requests: Sequence[int] = (1,)
    model_cache: Sequence[bool] = (False,)
    dedupe: bool = True
    baselines: bool = True
    scenario: Scenario | None = None


@dataclass(frozen=True)
class Conditions:
    """Under what placements are measured; the fields are as the arguments of a sweep."""

    inputs: Inputs | None = None
    seed: int = 0
    reference: bool = True
    store: str | os.PathLike[str] | None = None
    cache_dir: str | os.PathLike[str] | None = None
    isolate: bool = True
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class RunOptions:
    """How long to measure, and what besides turns.

    With ``apart``, the first placement on a device that nothing was compiled for yet begins a new
    group: its compile may take all the time that is left, and what is there is measured before.

    Raises
    ------
    ArgumentError
        A number that is too small, or none.
    """

    precision: float = 0.02
    turns: int | None = None
    group_size: int = GROUP_SIZE
    sustained_s: float | None = None
    counters: bool = True
    timeout_s: float = 60.0
    compile_timeout_s: float = 600.0
    apart: bool = False

    def __post_init__(self) -> None:
        for name in ("precision", "timeout_s", "compile_timeout_s", "sustained_s"):
            value = getattr(self, name)
            if value is not None or name != "sustained_s":
                positive(name, value)
        for name in ("turns", "group_size"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 2):
                raise ArgumentError(f"{name}= is a whole number of at least 2, not {value!r}.")

    @property
    def target(self) -> int:
        """How many turns each placement is to have at least."""
        return self.turns or LEAST_TURNS


def positive(name: str, value: Any) -> float:
    """Return a number above 0; ArgumentError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError(f"{name}= is a number above 0, not {value!r}.")
    return float(value)
