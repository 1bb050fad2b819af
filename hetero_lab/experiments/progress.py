"""The line of progress of a search that makes several sweeps."""

from __future__ import annotations

from hetero_lab import progress
from hetero_lab.experiments.measure.records import AnyRecord, Compiled, Counters, Finished, Turn
from hetero_lab.experiments.session import SweepControl
from hetero_lab.runtime.timing import Stopwatch

_DOING = {Compiled: "compile", Turn: "measure", Counters: "read counters"}


class SearchProgress(progress.Progress):
    """Shows the step of a search, the time used, and how many placements were measured."""

    def __init__(self, watch: Stopwatch, *, show: bool):
        super().__init__("prepare", show=show, budget_s=watch.budget_s)
        self._begun = ""
        self._n_measured = 0

    def begin(self, name: str) -> None:
        """Begin a step of the search."""
        self._begun = name
        self.step(name)

    def measured(self) -> None:
        """Count a placement."""
        self._n_measured += 1
        self.note(f"{self._n_measured} placements measured")

    def control(self) -> SweepControl:
        """Return what tells this line how far a sweep is."""
        return SweepControl(self._on_record)

    def _on_record(self, record: AnyRecord) -> None:
        if isinstance(record, Finished):
            self.measured()
        elif type(record) in _DOING:
            self.step(f"{self._begun}: {_DOING[type(record)]}")
