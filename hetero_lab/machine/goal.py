"""The goal of a plan: what each model is to get, and how far a turn is from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.machine.demand import Demand
from hetero_lab.machine.race import Turn
from hetero_lab.measure.loads import Driven

SHARE, THROUGHPUT, DEADLINES = "share", "throughput", "deadlines"
OBJECTIVES = (SHARE, THROUGHPUT, DEADLINES)
_LEAST = 1e-4  # share, so that a cost is finite
HOLDS = 0.01  # of the requests may miss a deadline that holds


@dataclass(frozen=True)
class Alone:
    """A model on one of its ways, driven alone: its rate, and the latency of one request in µs.

    ``p99_us`` is that of requests by the clock of the demand, if it has one.
    """

    per_s: float
    median_us: float
    p99_us: float


@dataclass(frozen=True)
class Goal:
    """An objective over demands; ``alone_per_s`` are their rates, each alone on its best way."""

    objective: str
    demands: Mapping[str, Demand]
    alone_per_s: Mapping[str, float]

    def wanted_per_s(self, name: str) -> float:
        """Return the rate that is asked for, of a closed demand the one it has alone."""
        rate = self.demands[name].rate_per_s
        return self.alone_per_s[name] if rate is None else rate

    def share(self, name: str, rate_per_s: float) -> float:
        """Return a rate as a share of what is wanted."""
        return rate_per_s / self.wanted_per_s(name)

    def missed(self, name: str, driven: Driven) -> float:
        """Return the share of requests that missed their deadline, or were given up."""
        return driven.missed(self.demands[name].deadline_ms)

    def p99_us(self, name: str, driven: Driven) -> float:
        """Return the 99th percentile of the latency; what was given up counts as its patience."""
        return driven.p99_us(self.demands[name].load("").patience_s)

    def cost(self, turn: Turn) -> float:
        """Return how far a turn is from the goal; lower is better."""
        if self.objective == DEADLINES:
            used = [
                self.p99_us(name, driven) / (1e3 * deadline_ms) + self.missed(name, driven)
                for name, driven in turn.items()
                if (deadline_ms := self.demands[name].deadline_ms) is not None
            ]
            return min(max(used), 1.0 / _LEAST)
        return 1.0 / self._of_shares({n: self.share(n, d.rate_per_s) for n, d in turn.items()})

    def _of_shares(self, shares: Mapping[str, float]) -> float:
        values = [max(_LEAST, share) for share in shares.values()]
        return min(values) if self.objective == SHARE else float(np.mean(values))

    def foretold(self, could_per_s: Mapping[str, float], p99_us: Mapping[str, float]) -> float:
        """Return the cost of a set in which each model could reach a rate; lower is better.

        ``p99_us`` are the latencies that are foretold where there are deadlines. Among sets of one
        cost, the one whose models get more in all comes first.
        """
        shares = {name: self.share(name, rate) for name, rate in could_per_s.items()}
        served = {
            n: share if self.demands[n].rate_per_s is None else min(1.0, share)
            for n, share in shares.items()
        }
        spare = 1e-3 * float(np.mean([min(share, 10.0) for share in shares.values()]))
        if self.objective != DEADLINES:
            return 1.0 / (self._of_shares(served) + spare)
        return (
            max(
                p99_us[name] / (1e3 * demand.deadline_ms)
                for name, demand in self.demands.items()
                if demand.deadline_ms is not None
            )
            - spare / 1e3
        )


def foretold_p99_us(could_per_s: float, demand: Demand, alone: Alone, tail_s: float) -> float:
    """Foretell the 99th percentile of a demand that could be served at a rate.

    ``tail_s`` is what the others add to it. What waits makes it as much longer as in a queue with
    one server (M/M/1), by the share of the possible rate that is asked for.
    """
    full = (demand.rate_per_s or 0.0) / could_per_s
    return (alone.p99_us + 1e6 * tail_s) / max(1.0 - full, 1e-3)


def pooled(turns: Sequence[Driven]) -> Driven:
    """Return what several turns of one model were, as one."""
    return Driven(
        rate_per_s=float(np.median([one.rate_per_s for one in turns])),
        latencies_us=tuple(us for one in turns for us in one.latencies_us),
        n_due=sum(one.n_due for one in turns),
    )


def holds(missed: float) -> bool:
    """Tell whether a deadline holds that a share of the requests missed."""
    return not missed > HOLDS
