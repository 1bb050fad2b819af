"""What the tweaker's panel says, as plain data: numbers, findings, measured placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero_lab.lint.context import Finding
from hetero_lab.placement.affinity import Affinity
from hetero_lab.tables import bytes_text
from hetero_lab.views.text import squeeze
from hetero_lab.widgets.tweaker.measurement import AUTOMATIC, Tried
from hetero_lab.widgets.tweaker.state import WhatIf

SHOWN_FINDINGS = 12
_LONGEST = 400


def number_rows(now: WhatIf, automatic: WhatIf) -> list[dict[str, str]]:
    """Return one row a number: ``key, name, now, automatic``."""
    rows = [
        ("subgraphs", "subgraphs", str(now.n_subgraphs), str(automatic.n_subgraphs)),
        ("boundaries", "boundaries", str(now.n_boundaries), str(automatic.n_boundaries)),
        ("bytes", "bytes", bytes_text(now.boundary_bytes), bytes_text(automatic.boundary_bytes)),
        (
            "predicted",
            "predicted latency, µs",
            us_text(now.predicted_us),
            us_text(automatic.predicted_us),
        ),
    ]
    return [dict(zip(("key", "name", "now", "automatic"), row, strict=True)) for row in rows]


def finding_rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return one row for each of the worst findings."""
    return [
        {
            "rule": finding.rule,
            "severity": finding.severity,
            "finding": squeeze(finding.finding, _LONGEST),
            "advice": squeeze(finding.advice, _LONGEST),
            "fix": bool(finding.remedy),
        }
        for finding in findings[:SHOWN_FINDINGS]
    ]


def tried_rows(history: Sequence[Tried], now: Affinity) -> list[dict[str, Any]]:
    """Return one row a measurement; ``is_here`` where it is of the present affinity."""
    return [_tried_row(tried, tried.affinity == now) for tried in history]


def _tried_row(tried: Tried, is_here: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "label": squeeze(tried.label, 100),
        "status": tried.status,
        "detail": squeeze(tried.detail, _LONGEST),
        "is_here": is_here,
    }
    if tried.median_us is None or tried.ci95_low_us is None or tried.ci95_high_us is None:
        return row
    low, high = tried.ci95_low_us, tried.ci95_high_us
    return row | {
        "subgraphs": "" if tried.n_subgraphs is None else str(tried.n_subgraphs),
        "median": tried.median_us,
        "low": low,
        "high": high,
        "latency": us_text(tried.median_us),
        "interval": f"{us_text(low)} to {us_text(high)} µs",
        "ratio": _ratio_text(tried),
        "predicted": us_text(tried.predicted_us),
    }


def us_text(us: float | None) -> str:
    """Write microseconds with three digits or all whole ones; a dash where none are known."""
    if us is None:
        return "–"
    return f"{us:,.0f}" if us >= 99.5 else f"{us:.3g}"


def _ratio_text(tried: Tried) -> str:
    if tried.ratio is None:
        return ""
    if tried.label == AUTOMATIC:
        return "1"
    if tried.ratio_ci95_low is None or tried.ratio_ci95_high is None:
        return f"{tried.ratio:.3f}"
    return f"{tried.ratio:.3f} ({tried.ratio_ci95_low:.3f} to {tried.ratio_ci95_high:.3f})"
