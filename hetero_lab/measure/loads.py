"""Loads: what keeps a compiled model busy, and how that went; a part of run_machine.py as well."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MOST_RATE = 1e5  # arrivals per second, more than a process can produce
_BEHIND = 1.0  # of a period, by which a driving process may be late
_GOLDEN = 0.618  # phases of clocks, so that equal rates do not arrive together
_PATIENCE_S = 1.0  # without a deadline


@dataclass(frozen=True, kw_only=True)
class Load:
    """What drives a compiled trial: so many requests in flight, or with a rate arrivals by a clock.

    Arrivals are served by at most ``requests`` at once, first come, first served; what has not
    begun within ``patience_s`` is given up. ``phase`` is the share of a period that the clock
    waits at first.
    """

    key: str
    requests: int = 1
    rate_per_s: float | None = None
    patience_s: float = 0.0
    phase: float = 0.0


def load_for(
    key: str, requests: int, rate_per_s: float | None, deadline_ms: float | None, number: int = 0
) -> Load:
    """Return the load of a demand, the ``number``-th of its machine."""
    return Load(
        key=key,
        requests=requests,
        rate_per_s=rate_per_s,
        patience_s=_PATIENCE_S if deadline_ms is None else deadline_ms / 1e3,
        phase=number * _GOLDEN % 1.0,
    )


@dataclass(frozen=True, kw_only=True)
class Driven:
    """How a load went.

    ``rate_per_s`` counts what was served within the window, parts of it at both ends included.
    Latencies are in µs, from the arrival on where arrivals have a clock; of ``n_due`` arrivals in
    the window, those without a latency were given up. ``behind_us`` is how late the driving thread
    itself was, in the median. ``n_wrong`` counts outputs that differ from those alone.
    """

    rate_per_s: float
    latencies_us: tuple[float, ...]
    n_due: int = 0
    behind_us: float = 0.0
    n_wrong: int = 0

    def missed(self, deadline_ms: float | None) -> float:
        """Return the share of requests that missed their deadline, or were given up."""
        if deadline_ms is None:
            return math.nan
        in_time = sum(us <= 1e3 * deadline_ms for us in self.latencies_us)
        return 1.0 - in_time / self.n_due if self.n_due else 0.0

    def p99_us(self, patience_s: float) -> float:
        """Return the 99th percentile of the latency; what was given up counts as its patience."""
        given_up = max(0, self.n_due - len(self.latencies_us))
        longest_us = max(1e6 * patience_s, *self.latencies_us, 0.0)
        waited = [*self.latencies_us, *[longest_us] * given_up]
        return float(np.percentile(waited, 99)) if waited else math.inf

    def is_behind(self, rate_per_s: float | None) -> bool:
        """Tell whether the driving process could not produce a rate."""
        return rate_per_s is not None and self.behind_us * rate_per_s > 1e6 * _BEHIND
