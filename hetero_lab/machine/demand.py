"""Demands: what each model of a machine is asked for, and how far turns are from the goal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from hetero_lab.arguments import check_positive, check_whole
from hetero_lab.errors import ArgumentError, names_at_hand, shorten
from hetero_lab.measure.loads import MOST_RATE, Driven, Load, load_for
from hetero_lab.model.read import Source
from hetero_lab.placement.placement import PlacementLike

SHARE, THROUGHPUT, DEADLINES = "share", "throughput", "deadlines"
OBJECTIVES = (SHARE, THROUGHPUT, DEADLINES)
MAY_MISS = 0.01  # of the requests, where a deadline holds; so the slowest of the others decides
_LEAST = 1e-4  # share, so that a cost is finite
Turn: TypeAlias = Mapping[str, Driven]  # how each model fared in a window
# A directory's name on Windows, too, where some names are devices.
_NAME = re.compile(r"(?!(con|prn|aux|nul|(com|lpt)\d)$)[a-z0-9_][a-z0-9_-]*", re.I | re.A)


@dataclass(frozen=True)
class Demand:
    """What one model is asked for.

    With a rate it is open: requests arrive by a clock, and late ones count as late. Without one it
    is closed: so many requests are in flight, and each begins when its last one ends.

    Attributes
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    rate_per_s
        Requests that arrive each second.
    deadline_ms
        How long a request may take, from its arrival on.
    requests
        How many are in flight; with a rate, at most.
    ways
        The placements to choose from, by default each device that runs the whole model, the CPU
        with fewer threads, AUTO and MULTI. A split that :func:`hetero_lab.advise` found for the
        model belongs here.

    Raises
    ------
    ArgumentError
        A number is not above 0, or a deadline has no rate.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> hl.Demand("digits_inception", rate_per_s=30, deadline_ms=40).requests
    1
    """

    model: Source
    rate_per_s: float | None = None
    deadline_ms: float | None = None
    requests: int = 1
    ways: Sequence[PlacementLike] | None = None

    def __post_init__(self) -> None:
        check_whole("requests", self.requests, least=1)
        for name in ("rate_per_s", "deadline_ms"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.rate_per_s is not None and self.rate_per_s > MOST_RATE:
            raise ArgumentError(
                f"rate_per_s={self.rate_per_s:g} is more than a process can produce "
                f"({MOST_RATE:g})."
            )
        if self.deadline_ms is not None and self.rate_per_s is None:
            raise ArgumentError(
                "deadline_ms= needs rate_per_s=: a deadline counts from the arrival of a request."
            )
        if self.ways is not None and (isinstance(self.ways, str) or not len(self.ways)):
            raise ArgumentError('ways= is a list of placements, for instance ["GPU", "CPU"].')

    def load(self, key: str, number: int = 0, times: float = 1.0) -> Load:
        """Return the load of the demand on a way; ``times`` multiplies its rate."""
        rate = None if self.rate_per_s is None else times * self.rate_per_s
        return load_for(key, self.requests, rate, self.deadline_ms, number)

    def closed(self, key: str) -> Load:
        """Return the load that keeps a way as busy as its requests can."""
        return Load(key=key, requests=self.requests)


def check_demands(demands: Mapping[str, Demand], objective: str) -> None:
    """Raise ArgumentError for names that no directory can have, or demands without a meaning."""
    if not demands:
        raise ArgumentError("A machine needs models by name: {'detect': hl.Demand(model), …}.")
    for name in demands:
        if not _NAME.fullmatch(name):
            raise ArgumentError(
                f"{shorten(repr(name))} cannot name a model: deploy() names a directory after it. "
                "Use letters, digits, - and _ only."
            )
    if len({name.lower() for name in demands}) < len(demands):
        raise ArgumentError("Names that differ in case are one directory on Windows. Rename one.")
    timed = [name for name, demand in demands.items() if demand.rate_per_s is not None]
    without = [name for name in timed if demands[name].deadline_ms is None]
    if objective == "deadlines" and (without or not timed):
        raise ArgumentError(
            'objective="deadlines" needs rate_per_s= and deadline_ms=, which '
            f"{names_at_hand(without or demands)} lacks."
        )


@dataclass(frozen=True)
class Goal:
    """An objective over demands; ``alone_per_s`` are their rates, each alone on its best way."""

    objective: str
    demands: Mapping[str, Demand]
    alone_per_s: Mapping[str, float]

    @cached_property
    def deadlines_us(self) -> dict[str, float]:
        """The deadlines of the models that have one."""
        deadlines_ms = {name: demand.deadline_ms for name, demand in self.demands.items()}
        return {name: 1e3 * ms for name, ms in deadlines_ms.items() if ms is not None}

    def share(self, name: str, rate_per_s: float) -> float:
        """Return a rate as a share of the one asked for, of a closed demand of the one alone."""
        return rate_per_s / (self.demands[name].rate_per_s or self.alone_per_s[name])

    def served(self, name: str, could_per_s: float) -> float:
        """Return the share that a model gets which could reach a rate."""
        share = self.share(name, could_per_s)
        return share if self.demands[name].rate_per_s is None else min(1.0, share)

    def missed(self, name: str, driven: Driven) -> float:
        """Return the share of requests that missed their deadline, or were given up."""
        return driven.missed(self.demands[name].deadline_ms)

    def late(self, turn: Turn) -> dict[str, float]:
        """Return what was missed of each deadline that did not hold."""
        missed = {name: self.missed(name, turn[name]) for name in self.deadlines_us}
        return {name: share for name, share in missed.items() if not holds(share)}

    def p99_us(self, name: str, driven: Driven) -> float:
        """Return the 99th percentile of the latency; what was given up counts as its patience."""
        return driven.p99_us(self.demands[name].load("").patience_s)

    def cost(self, turn: Turn) -> float:
        """Return how far a turn is from the goal; lower is better."""
        if self.objective == DEADLINES:
            parts = [
                self.p99_us(name, turn[name]) / deadline_us + self.missed(name, turn[name])
                for name, deadline_us in self.deadlines_us.items()
            ]
            return min(max(parts), 1.0 / _LEAST)
        return 1.0 / self._gain([self.share(name, d.rate_per_s) for name, d in turn.items()])

    def _gain(self, shares: Sequence[float]) -> float:
        values = np.maximum(shares, _LEAST)
        return float(values.min() if self.objective == SHARE else values.mean())

    def foretold(self, could_per_s: Mapping[str, float], p99_us: Mapping[str, float]) -> float:
        """Return the cost of a set in which each model could reach a rate; lower is better.

        ``p99_us`` are the latencies that are foretold where there are deadlines. Among sets of one
        cost, the one whose models get more in all comes first.
        """
        shares = [self.share(name, rate) for name, rate in could_per_s.items()]
        spare = 1e-3 * float(np.mean(np.minimum(shares, 10.0)))
        if self.objective == DEADLINES:
            part = max(p99_us[name] / us for name, us in self.deadlines_us.items())
            return part - spare / 1e3
        served = [self.served(name, rate) for name, rate in could_per_s.items()]
        return 1.0 / (self._gain(served) + spare)


def holds(missed: float) -> bool:
    """Tell whether a deadline holds that a share of the requests missed."""
    return not missed > MAY_MISS
