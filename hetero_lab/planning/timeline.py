"""Runs of subgraphs, measured or simulated, and the critical path and idle times in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """One run of one subgraph, in seconds of a monotonic clock, or of the simulation."""

    request: int
    subgraph: int
    device: str
    start_s: float
    end_s: float

    @property
    def start_us(self) -> float:
        """When it starts, in µs, to the nanosecond."""
        return round(1e6 * self.start_s, 3)

    @property
    def end_us(self) -> float:
        """When it ends, likewise."""
        return round(1e6 * self.end_s, 3)


def critical_path(
    spans: Sequence[Span], request: int, sources: Sequence[frozenset[int]]
) -> tuple[Span, ...]:
    """Return the chain of spans that determined the end of a request, first to last.

    ``request`` has at least one of the spans; ``sources`` are those of :func:`sources`. The walk
    goes back from the span that ended last. The predecessor of a span is the last to end among the
    subgraphs that it waited for and the previous span on its device. If that is a span of another
    request, the chain begins here, since the request only waited until then.
    """
    span_of = {span.subgraph: span for span in spans if span.request == request}
    last_on: dict[str, Span] = {}
    before_on_device: dict[Span, Span] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        if span.device in last_on:
            before_on_device[span] = last_on[span.device]
        last_on[span.device] = span
    at = max(span_of.values(), key=lambda span: (span.end_s, span.start_s))
    chain = [at]
    while True:
        before = [span_of[index] for index in sources[at.subgraph] if index in span_of]
        before += [before_on_device[at]] if at in before_on_device else []
        if not before:
            break
        at = max(before, key=lambda span: span.end_s)
        if at.request != request:
            break
        chain.append(at)
    return tuple(reversed(chain))


def idle_times(spans: Iterable[Span], devices: Iterable[str]) -> list[dict[str, Any]]:
    """Return each device's busy and idle time during requests, and the idle ``share``, 0 to 1."""
    spans = list(spans)
    requests: dict[int, tuple[float, float]] = {}
    for span in spans:
        start, end = requests.get(span.request, (span.start_s, span.end_s))
        requests[span.request] = (min(start, span.start_s), max(end, span.end_s))
    in_flight_s, until = 0.0, float("-inf")
    for start, end in sorted(requests.values()):
        in_flight_s += max(0.0, end - max(start, until))
        until = max(until, end)
    rows = []
    for device in devices:
        busy_s = sum(span.end_s - span.start_s for span in spans if span.device == device)
        idle_s = max(0.0, in_flight_s - busy_s)
        share = idle_s / (busy_s + idle_s) if busy_s + idle_s else 0.0
        times = {"busy_us": busy_s * 1e6, "idle_us": idle_s * 1e6, "share": share}
        rows.append({"device": device, **times})
    return rows


def typical_request(spans: Sequence[Span]) -> int:
    """Return the request with the median time from first start to last end."""
    took: dict[int, list[float]] = defaultdict(list)
    for span in spans:
        took[span.request] += [span.start_s, span.end_s]
    ranked = sorted(took, key=lambda request: (max(took[request]) - min(took[request]), request))
    return ranked[(len(ranked) - 1) // 2]
