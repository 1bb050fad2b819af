"""A row of a sweep: one placement, measured or not.

Its columns are made in ``sweep_tables``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from hetero_lab.arguments import HETERO
from hetero_lab.intervals import Estimate, Latency, Series, centred
from hetero_lab.results.environment import emulation
from hetero_lab.results.evaluation import Evaluation
from hetero_lab.results.profile_result import Profile

INTERRUPTED, BUDGET_ENDED = "not measured: interrupted", "not measured: time budget used up"


@dataclass(frozen=True)
class Row:
    """One row: a label, its placement, and its measurements.

    Without a measurement, ``profile`` is ``None``; its latency is that of the row's own turns,
    while ``series`` has them beside the turns of the reference. ``reference_latency`` is the
    reference's on the same ``host`` of a fleet in the whole run, if it was measured. ``same_as`` is
    the row that was measured instead, since it is the same placement.

    ``run`` is the run of the row, if rows of several runs are shown that cannot be ranked together,
    and ``evaluation`` the accuracy, in a sweep with data. ``needs_s`` is how long all rows left out
    by the budget are expected to take; 0 for a measured row. ``name`` is what its configuration
    says in place of the label.
    """

    label: str
    key: str
    variant: str
    requests: int
    baseline: bool
    status: str
    detail: str
    same_as: str
    profile: Profile | None
    series: Series
    sustained_us: tuple[float, ...]
    executor: str = HETERO
    reference_latency: Latency | None = None
    run: str = ""
    host: str = ""
    evaluation: Evaluation | None = None
    needs_s: float = 0.0
    name: str = ""

    @property
    def configuration(self) -> str:
        """The name with the precision of its devices, if it was measured."""
        name = self.name or self.label
        return self.scaled_profile.configuration if self.scaled_profile else name

    @property
    def emulation(self) -> str:
        """What marks a claim about it: the emulated devices in use."""
        return emulation([*dict(self.profile.environment.emulated)]) if self.profile else ""

    @property
    def was_left_out(self) -> bool:
        """Whether Ctrl-C or the end of the budget came before the row was measured."""
        return self.status in (INTERRUPTED, BUDGET_ENDED)

    @property
    def latency(self) -> Estimate | None:
        """The latency used for ranks: the reference's latency times the paired ratio to it.

        The median of a row's own turns depends on the minute in which they ran as much as on the
        placement; the ratio to the reference's turns beside them does not. The interval is that of
        the own turns, on the same scale; the ratio has its own. Without a common round with the
        reference, the latency is the median of the own turns.
        """
        return self.scaled_profile.latency.estimate if self.scaled_profile else None

    @cached_property
    def scaled_profile(self) -> Profile | None:
        """The profile with its samples on the scale of the latency: a report tells one number."""
        ratio, level = self.series.ratio, self.reference_latency
        if self.profile is None or ratio is None or level is None:
            return self.profile and replace(self.profile, label=self.name or self.label)
        raw = self.profile.latency
        latency = raw.scaled(level.median_us * ratio.middle / raw.median_us)
        return replace(self.profile, label=self.name or self.label, latency=latency)

    @property
    def levels_us(self) -> list[float]:
        """The levels of the turns, on the scale of the latency."""
        levels = list(self.series.ours.values())
        return centred(levels, self.latency.us) if self.latency and levels else []

    @property
    def measured_on(self) -> str | None:
        """The host that measured the row, under its name in tables."""
        return self.profile.environment.host if self.profile else self.host or None
