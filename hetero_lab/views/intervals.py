"""Intervals in figures: error bars and the text of a latency with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hetero_lab.statistics import Estimate
from hetero_lab.views.text import time_text

_WIDEST = 2.0  # times the largest value: an interval of a few turns would squeeze all the rest


def error_bars(triples: Sequence[tuple[float, float, float]], **style: Any) -> dict[str, Any]:
    """Return plotly's error bars of ``(value, low, high)``; none where there is no end."""

    def lengths(ends: list[tuple[float, float]]) -> list[float]:
        return [abs(end - value) if math.isfinite(end) else 0.0 for value, end in ends]

    return {
        "type": "data",
        "symmetric": False,
        "array": lengths([(value, high) for value, _, high in triples]),
        "arrayminus": lengths([(value, low) for value, low, _ in triples]),
        **style,
    }


def latency_bars(latencies: Sequence[Estimate], **style: Any) -> dict[str, Any]:
    """Return the error bars of latencies."""
    return error_bars([(x.us, x.low_us, x.high_us) for x in latencies], **style)


def latency_end_us(latencies: Sequence[Estimate]) -> float:
    """Return up to where an axis of latencies goes; a very wide interval runs out of it."""
    largest = max((x.us for x in latencies), default=1.0)
    ends = [x.high_us for x in latencies if math.isfinite(x.high_us)]
    return 1.05 * max(largest, min(max(ends, default=0.0), _WIDEST * largest))


def latency_text(latency: Estimate) -> str:
    """Write a latency with its interval."""
    if not math.isfinite(latency.high_us):
        return f"{time_text(latency.us)}, from too few turns for an interval"
    low, high = (time_text(end).removesuffix(" µs") for end in (latency.low_us, latency.high_us))
    return f"{time_text(latency.us)} [{low}, {high}]"
