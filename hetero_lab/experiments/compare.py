"""Before and after: two sweeps of the same placements, for instance around an upgrade."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hetero_lab.errors import ArgumentError, names_at_hand
from hetero_lab.experiments.results.evidence import finding, ratio_across, reason
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.result import Result
from hetero_lab.statistics import holm

if TYPE_CHECKING:
    import pandas as pd


_APART = (
    "The two were not measured in turn. The intervals include how far the machine drifted within "
    "each run; anything else that changed between the runs shows up as a difference."
)


@dataclass(frozen=True)
class Comparison(Result):
    """Two sweeps side by side.

    ``table`` has a row per label that both measured: ``median_us`` of each, ``ratio`` of after to
    before (below 1 is faster now) with its 95 % interval, ``finding`` (``faster``, ``slower``,
    ``as fast`` within 5 %, or ``undecided``) and its ``reason``.
    """

    _TABLES = ("table",)

    before: Sweep
    after: Sweep

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per label."""
        return _table(self.before, self.after)

    def __repr__(self) -> str:
        findings = self.table["finding"].value_counts()
        return f"Comparison({', '.join(f'{n} {finding}' for finding, n in findings.items())})"

    def _sentences(self) -> list[str]:
        names = [
            f"{sweep.environment.host}, OpenVINO {sweep.environment.openvino_version}"
            for sweep in (self.before, self.after)
        ]
        return [f"{names[0]} → {names[1]}", _APART, *self.before.notes, *self.after.notes]


def compare(before: Sweep, after: Sweep) -> Comparison:
    """Compare two sweeps by label, with intervals, for instance around an OpenVINO upgrade.

    Parameters
    ----------
    before, after
        Sweeps, for instance from :func:`hetero_lab.read_sweep`.

    Raises
    ------
    ArgumentError
        An argument is not a sweep, or no label was measured in both.

    Notes
    -----
    The runs are not paired, so the intervals are Welch's (1947) on the logarithms of the turns,
    widened by the noise between compiles and by the drift of the machine within each run. If the
    machine drifts further between the runs than within one, this shows up as a difference.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> options = {"turns": 2, "isolate": False, "counters": False, "progress": False}
    >>> before, after = (hl.sweep(model, ["CPU"], **options) for _ in range(2))
    >>> hl.compare(before, after)
    Comparison(...)
    """
    comparison = Comparison(before, after)
    if not len(comparison.table):
        raise ArgumentError(
            "No label was measured in both sweeps. Before: "
            f"{names_at_hand([r.label for r in before.rows])}; after: "
            f"{names_at_hand([r.label for r in after.rows])}."
        )
    return comparison


def _table(before: Sweep, after: Sweep) -> pd.DataFrame:
    import pandas as pd

    first, second = (
        {
            made.name_of(row): (row, row.latency, row.profile)
            for row in made.rows
            if row.latency is not None and row.profile is not None
        }
        for made in (before, after)
    )
    common = [label for label in first if label in second]
    ratios = [ratio_across(second[label][0], first[label][0]) for label in common]
    adjusted = holm([p for *_, p in ratios]) if ratios else []
    rows = [
        {
            "label": label,
            "median_us_before": first[label][1].us,
            "median_us_after": second[label][1].us,
            "ratio": ratio.middle,
            "ratio_ci95_low": ratio.low,
            "ratio_ci95_high": ratio.high,
            "finding": finding(ratio, p),
            "reason": reason(ratio),
            "n_subgraphs_before": first[label][2].partition.n_subgraphs,
            "n_subgraphs_after": second[label][2].partition.n_subgraphs,
        }
        for label, ratio, p in zip(common, ratios, adjusted, strict=True)
    ]
    return pd.DataFrame(rows)
