"""The rows of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from hetero_lab.intervals import Estimate, Latency, Series, centred
from hetero_lab.results.evaluation import Evaluation
from hetero_lab.results.profile_result import Profile
from hetero_lab.runtime.runners import HETERO

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
    by the budget are expected to take; 0 for a measured row.
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

    @property
    def was_left_out(self) -> bool:
        """Whether Ctrl-C or the end of the budget came before the row was measured."""
        return self.status in (INTERRUPTED, BUDGET_ENDED)

    @cached_property
    def latency(self) -> Estimate | None:
        """The latency used for ranks: the reference's latency times the paired ratio to it.

        The median of a row's own turns depends on the minute in which they ran as much as on the
        placement; the ratio to the reference's turns beside them does not. The interval is that of
        the ratio, for the reference that of its own latency, which all rows share. Without a
        common round with the reference, the latency is the median of the row's own turns.
        """
        if self.profile is None:
            return None
        own = self.profile.latency.estimate
        if self.series.ratio is None or self.reference_latency is None:
            return own
        level_us = self.reference_latency.median_us
        if self.series.ours == self.series.reference:
            scale = level_us / own.us
            return Estimate(level_us, scale * own.low_us, scale * own.high_us)
        ratio, low, high, _ = self.series.ratio
        return Estimate(level_us * ratio, level_us * low, level_us * high)

    @cached_property
    def scaled_profile(self) -> Profile | None:
        """The profile with its samples on the scale of the latency: a report tells one number."""
        if self.profile is None:
            return None
        assert self.latency  # as any row with a profile has one
        scale = self.latency.us / self.profile.latency.median_us
        turns = tuple(tuple(scale * s for s in turn) for turn in self.profile.latency.turns)
        return replace(self.profile, latency=Latency(turns))

    @property
    def levels_us(self) -> list[float]:
        """The levels of the turns, on the scale of the latency."""
        levels = list(self.series.ours.values())
        return centred(levels, self.latency.us) if self.latency and levels else []

    @property
    def measured_on(self) -> str | None:
        """The host that measured the row, under its name in tables."""
        return self.profile.environment.host if self.profile else self.host or None
