"""One progress bar for a search that makes several sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from hetero_lab.experiments.sweep.control import SweepControl
from hetero_lab.runtime.timing import Stopwatch

_TIMED_BAR = "{desc} |{bar}| {n:.0f} of {total:.0f} s {postfix}"
_OPEN_BAR = "{desc}: {n:.0f} s {postfix}"
_DOING = {"compiled": "compile", "turn": "measure", "counters": "read counters"}


class Progress:
    """Shows the step of a search, the time used, and how many placements were measured."""

    def __init__(self, watch: Stopwatch, *, show: bool):
        self._watch = watch
        self._step = ""
        self._n_measured = 0
        self._bar = tqdm(
            total=watch.budget_s,
            disable=not show,
            delay=2,
            leave=False,
            bar_format=_OPEN_BAR if watch.budget_s is None else _TIMED_BAR,
        )

    def step(self, name: str) -> None:
        """Begin a step of the search."""
        self._step = name
        self._show(name)

    def measured(self) -> None:
        """Count a placement."""
        self._n_measured += 1
        self._bar.set_postfix_str(f"{self._n_measured} placements measured", refresh=False)
        self._show(self._step)

    def control(self) -> SweepControl:
        """Return what tells this bar how far a sweep is."""
        return SweepControl(self._on_record)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def _on_record(self, record: Mapping[str, Any]) -> None:
        if record["type"] == "finished":
            self.measured()
        elif record["type"] in _DOING:
            self._show(f"{self._step}: {_DOING[record['type']]}")

    def _show(self, what: str) -> None:
        self._bar.set_description_str(what, refresh=False)
        elapsed_s = self._watch.elapsed_s
        self._bar.n = min(elapsed_s, self._watch.budget_s or elapsed_s)
        self._bar.update(0)
