"""Optimized: the best placement that was found and proven by measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.planner import Plan
from hetero_lab.tables import html_table
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import pandas as pd

OPTIMIZED = "optimized"


@dataclass(frozen=True)
class Proposal:
    """A placement that was planned and measured on the way; latencies in µs."""

    round: int
    label: str
    predicted_us: float
    measured_us: float
    n_subgraphs: int


@dataclass(frozen=True)
class Optimized:
    """The best placement that was found and proven by measurement.

    Attributes
    ----------
    placement
        What to compile: a planned placement, or the best baseline where none was faster.
    objective
        ``"latency"`` or ``"throughput"``.
    verdict
        In a sentence, how it compares with the best baseline.
    improved
        Whether it is faster than every baseline beyond the uncertainty.
    costs, plan
        The cost model with all that was learnt, and its plan.
    sweep
        The last measurement: rows ``optimized``, ``greedy`` and one a feasible single device.
    trials
        What was planned and measured on the way.
    notes
        What the budget did not allow.
    interrupted
        Whether Ctrl-C ended the proof: fewer turns, or fewer placements.
    """

    placement: Placement
    objective: str
    verdict: str
    improved: bool
    costs: CostModel
    plan: Plan
    sweep: Sweep
    trials: tuple[Proposal, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def affinity(self) -> Affinity:
        """The affinity of the placement."""
        return self.placement.affinity

    @property
    def summary(self) -> pd.DataFrame:
        """Columns as in ``sweep.summary``; ratios are to ``greedy``."""
        return self.sweep.summary

    @property
    def history(self) -> pd.DataFrame:
        """One row a planned placement that was measured on the way."""
        import pandas as pd

        columns = ["round", "label", "predicted_us", "measured_us", "n_subgraphs"]
        return pd.DataFrame(
            [[getattr(t, c) for c in columns] for t in self.trials], columns=columns
        )

    def __repr__(self) -> str:
        counts = self.placement.affinity.counts().items()
        placed = ", ".join(f"{count_of(n, 'op')} on {device}" for device, n in counts)
        return "\n".join([self.verdict, f"Placement: {placed}", *self.notes[:2], repr(self.sweep)])

    def _repr_html_(self) -> str:
        return html_table(self.summary, caption=" ".join([self.verdict, *self.notes]))
