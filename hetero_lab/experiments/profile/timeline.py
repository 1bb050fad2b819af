"""The measured timeline of a Profile as rows: spans, the critical path, idle devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetero_lab.runtime.timeline import Span, critical_path, idle_times, sources

if TYPE_CHECKING:
    from hetero_lab.experiments.profile.profile import Profile


def critical_spans(profile: Profile) -> frozenset[Span]:
    """Return the spans that determined the end of their own request."""
    waits = sources(profile.partition, profile.graph)
    requests = {span.request for span in profile.spans}
    return frozenset(s for r in requests for s in critical_path(profile.spans, r, waits))


def timeline(profile: Profile) -> list[dict[str, Any]]:
    """Return a row a span, times since the first start; ``request`` counts from 0."""
    critical = critical_spans(profile)
    first_s = min(span.start_s for span in profile.spans)
    number = {r: i for i, r in enumerate(sorted({span.request for span in profile.spans}))}
    return [
        {
            "request": number[span.request],
            "subgraph": span.subgraph,
            "device": span.device,
            "start_us": (span.start_s - first_s) * 1e6,
            "end_us": (span.end_s - first_s) * 1e6,
            "critical": span in critical,
        }
        for span in sorted(profile.spans, key=lambda s: (s.start_s, s.end_s, s.subgraph))
    ]


def idle(profile: Profile) -> list[dict[str, Any]]:
    """Return a row a device: busy and idle while a request was in flight, and the idle share."""
    devices = dict.fromkeys(subgraph.device for subgraph in profile.partition.subgraphs)
    return [
        {
            "device": found.device,
            "busy_us": found.busy_us,
            "idle_us": found.idle_us,
            "share": found.share,
        }
        for found in idle_times(profile.spans, devices)
    ]
