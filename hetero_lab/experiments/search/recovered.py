"""Recovered: a placement that keeps the accuracy, and how it was found."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hetero_lab.experiments.accuracy.evaluate import Evaluation, accuracy_columns
from hetero_lab.experiments.search.sensitivity import Tried, sensitivity_rows
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.tables import Tables, html_table, write_csv

if TYPE_CHECKING:
    import pandas as pd

ALL_FAST, ALL_ACCURATE = "all fast", "all accurate"


@dataclass(frozen=True)
class Candidate:
    """A placement that was tried; ``calibration`` on the calibration part, ``held_out`` after."""

    label: str
    placement: Placement
    predicted_us: float
    calibration: Evaluation
    held_out: Evaluation | None = None


@dataclass(frozen=True)
class Recovered:
    """The fastest placement that keeps the accuracy, and how it was found.

    Attributes
    ----------
    placement
        What to compile.
    fast, accurate
        The two devices.
    verdict
        In a sentence: what it costs and what it gains.
    chosen
        Label of the placement among the rows.
    max_drop
        The share of right answers that was allowed to be lost.
    finalists
        What was measured and verified on held-out examples; all fast and all accurate included.
    candidates
        All that was tried on the calibration part.
    tried
        The sensitivity of each chunk.
    sweep
        The latencies.
    costs
        The cost model that candidates were planned with.
    notes
        What the budget did not allow.
    """

    placement: Placement
    fast: str
    accurate: str
    verdict: str
    chosen: str
    max_drop: float
    finalists: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    tried: tuple[Tried, ...]
    sweep: Sweep
    costs: CostModel
    notes: tuple[str, ...] = ()

    @property
    def affinity(self) -> Affinity:
        """The affinity of the placement."""
        return self.placement.affinity

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a measured candidate; ratios are to all accurate, below 1 is faster."""
        import pandas as pd

        measured = self.sweep.summary.set_index("label")
        columns = [
            "status", "n_subgraphs", "median_us", "ci95_low_us", "ci95_high_us", "ratio",
            "ratio_ci95_low", "ratio_ci95_high", "weight_bytes",
        ]  # fmt: skip
        rows = []
        for candidate in self.finalists:
            calibrated = candidate.calibration
            rows.append(
                {
                    "label": candidate.label,
                    **measured.loc[candidate.label, columns].to_dict(),
                    **accuracy_columns(candidate.held_out),
                    "calibration_accuracy": calibrated.accuracy,
                    "calibration_error": calibrated.relative_error,
                    "predicted_us": candidate.predicted_us,
                    "chosen": candidate.label == self.chosen,
                }
            )
        return pd.DataFrame(rows)

    @cached_property
    def sensitivity(self) -> pd.DataFrame:
        """One row a part in topological order: error and accuracy with it alone on a device."""
        import pandas as pd

        fast = next(c.calibration for c in self.finalists if c.label == ALL_FAST)
        reference = {"error": fast.relative_error, "accuracy": fast.accuracy}
        return pd.DataFrame(sensitivity_rows(self.tried, reference))

    @cached_property
    def front(self) -> pd.DataFrame:
        """The rows of the summary that no other beats in both latency and held-out accuracy."""
        frame = self.summary.dropna(subset=["median_us", "accuracy"]).sort_values(
            ["median_us", "accuracy"], ascending=[True, False], kind="stable"
        )
        best_before = frame["accuracy"].cummax().shift(fill_value=-1.0)
        return frame.loc[frame["accuracy"] > best_before].reset_index(drop=True)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row a candidate that was tried on the calibration part, fast to slow as predicted."""
        import pandas as pd

        rows = [
            {
                "label": c.label,
                "predicted_us": c.predicted_us,
                "accuracy": c.calibration.accuracy,
                "accuracy_drop": c.calibration.paired.drop,
                "relative_error": c.calibration.relative_error,
                "top1_agreement": c.calibration.top1_agreement,
            }
            for c in sorted(self.candidates, key=lambda c: c.predicted_us)
        ]
        return pd.DataFrame(rows)

    @property
    def tables(self) -> Tables:
        """DataFrames by name: summary, sensitivity, front, trials."""
        return Tables(
            {
                "summary": self.summary,
                "sensitivity": self.sensitivity,
                "front": self.front,
                "trials": self.trials,
            }
        )

    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write the summary, whole or not at all."""
        write_csv(file, self.summary)

    def __repr__(self) -> str:
        return f"Recovered({self.placement.affinity!r}: {self.verdict})"

    def _repr_html_(self) -> str:
        shown = [
            "label", "median_us", "ratio", "accuracy", "accuracy_ci95_low", "accuracy_ci95_high",
            "accuracy_drop", "accuracy_drop_ci95_low", "accuracy_drop_ci95_high", "chosen",
        ]  # fmt: skip
        return html_table(self.summary.loc[:, shown], caption=" ".join([self.verdict, *self.notes]))
