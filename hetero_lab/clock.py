"""The one clock of the project: monotonic, and replaceable in a test.

A test puts another function in the place of ``clock.now_ns``; everything that waits, times or has
a deadline then follows that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hetero_lab.errors import ArgumentError

now_ns: Callable[[], int] = time.perf_counter_ns


def now() -> float:
    """Return a monotonic time in seconds."""
    return now_ns() * 1e-9


def unix_now() -> float:
    """Return the Unix time in seconds, which all processes share."""
    return time.time()


@dataclass(frozen=True)
class Stopwatch:
    """A wall-time budget that has started."""

    budget_s: float | None
    started: float

    @classmethod
    def start(cls, budget_s: float | None) -> Stopwatch:
        """Start one; ``None`` never runs out."""
        number = isinstance(budget_s, int | float) and not isinstance(budget_s, bool)
        if budget_s is not None and not (number and 0 < budget_s < float("inf")):
            raise ArgumentError(
                f"A time budget is more than 0 seconds, or None for no limit, not {budget_s!r}."
            )
        return cls(budget_s, now())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return now() - self.started

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent."""
        return self.budget_s is not None and self.elapsed_s >= self.budget_s

    @property
    def left_s(self) -> float:
        """The rest of the budget in seconds, infinite without one."""
        return float("inf") if self.budget_s is None else max(self.budget_s - self.elapsed_s, 0.0)
