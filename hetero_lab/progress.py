"""Progress of a long call: its time budget, and one line that appears after two seconds.

Where a line cannot be redrawn (a file, a pipe, the log of a CI), one is printed every half minute.

The working thread draws the line between its steps, so that drawing does not disturb its
measurements. Only during a long step (a compile, an integer program) does a second thread update
the time.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from tqdm.auto import tqdm

from hetero_lab.clock import now
from hetero_lab.errors import ArgumentError

_APPEARS_S = 2.0  # a shorter call shows nothing
_EVERY_S = 0.5  # often enough to be seen to move
_STUCK_S = 1.5  # time without a step after which the other thread draws
_EVERY_IN_A_LOG_S = 30.0  # there, every line stays
_COUNTED = "{desc} |{bar}| {n:.0f} of {total:.0f} {unit}, {elapsed}{postfix}"
_TIMED = "{desc} |{bar}| {n:.0f} of {total:.0f} s{postfix}"
_OPEN = "{desc}: {elapsed}{postfix}"
_BAR, _NO_BAR = " |{bar}|", ":"


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


class Progress(AbstractContextManager["Progress"]):
    """A line with the current step and the share of the whole that is done.

    Parameters
    ----------
    what
        The step, in a word or two.
    show
        ``False`` draws nothing.
    total, unit
        The number of steps, each counted by :meth:`advance`, and the noun for one.
    budget_s
        Replaces ``total``: the bar shows the time used from now on.
    """

    def __init__(
        self,
        what: str,
        *,
        show: bool,
        total: int | None = None,
        unit: str = "",
        budget_s: float | None = None,
    ):
        self._began = self._drawn = now()
        self.budget_s = budget_s
        form = _OPEN if total is None else _COUNTED
        self._bar = tqdm(
            desc=what,
            total=total if budget_s is None else budget_s,
            unit=unit,
            disable=not show,
            delay=_APPEARS_S,
            leave=False,
            bar_format=form if budget_s is None else _TIMED,
        )
        if show:
            self._bar.leave = self._bar.gui  # a notebook keeps it, full and green
        self._in_a_log = show and not self._bar.gui and not sys.stderr.isatty()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="hetero_lab progress", daemon=True)
        if show:
            self._ticker.start()

    def step(self, what: str, total: int | None = None) -> None:
        """Name the current step; ``total`` restarts the count with its own steps."""
        if total is not None:
            self._bar.n, self._bar.bar_format = 0, _COUNTED
            self._set_total(total)
        self._bar.set_description_str(what if len(what) <= 60 else what[:59] + "…", refresh=False)
        self._draw(_EVERY_S)

    def limit(self, budget_s: float) -> None:
        """Show the time used as a part of so many seconds, counted from the beginning."""
        self.budget_s, self._bar.bar_format = budget_s, _TIMED
        self._set_total(budget_s)

    def advance(self) -> None:
        """Count a finished step."""
        self._bar.n += 1
        self._draw(_EVERY_S)

    def note(self, text: str) -> None:
        """Show the findings so far."""
        self._bar.set_postfix_str(text, refresh=False)
        self._draw(_EVERY_S)

    def close(self, *, failed: bool = False) -> None:
        """Remove the line; a notebook keeps it, full unless the call failed."""
        self._closed.set()
        with self._lock:
            if not (failed or self._bar.disable or self._bar.total is None):
                if self.budget_s is not None:
                    self._bar.n = min(now() - self._began, self.budget_s)
                self._set_total(max(self._bar.n, 1e-9))  # less than planned may be enough
                self._bar.n = self._bar.total
            self._bar.close()

    def _set_total(self, total: float) -> None:
        self._bar.total = total
        if not self._bar.disable and self._bar.gui:
            _, bar, _ = cast(Any, self._bar).container.children
            bar.max, bar.layout.width = total, None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def _tick(self) -> None:
        while not self._closed.wait(_EVERY_S):
            self._draw(_STUCK_S)

    def _draw(self, every_s: float) -> None:
        if self._in_a_log:
            every_s = _EVERY_IN_A_LOG_S
        if self._bar.disable or now() < max(self._began + _APPEARS_S, self._drawn + every_s):
            return
        with self._lock:
            if self._closed.is_set():
                return
            self._drawn = now()
            if self.budget_s is not None:
                self._bar.n = min(self._drawn - self._began, self.budget_s)
            if self._in_a_log:
                self._bar.bar_format = self._bar.bar_format.replace(_BAR, _NO_BAR)
                print(str(self._bar).rstrip(), file=sys.stderr, flush=True)  # noqa: T201
            else:
                self._bar.refresh()
                self._bar.delay = 0  # else tqdm believes that it has no line to remove
