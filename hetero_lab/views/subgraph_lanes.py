"""When subgraphs run: as measured, reconstructed from counters, or predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.experiments.results.profile.tables import critical_spans
from hetero_lab.planning.schedules import SchedulePlan
from hetero_lab.runtime.timeline import typical_request
from hetero_lab.views.theme import (
    GRID,
    TEXT,
    DeviceStyle,
    bar_axis,
    device_styles,
    finish,
    ink_on,
    plain,
)

_HALF_LANE = 0.33
_FADED = 0.4


@dataclass(frozen=True)
class Bar:
    """One run of a subgraph on its device's lane; times in µs from the start of the request.

    ``request`` is 0 for the request that is shown; others ran beside it. ``critical`` is ``None``
    where nothing was measured.
    """

    subgraph: int
    device: str
    start_us: float
    duration_us: float
    n_ops: int
    request: int = 0
    critical: bool | None = None


def bars(profile: Profile) -> list[Bar]:
    """Return the measured runs of the request of median duration, and of those beside it.

    Without measured spans, the subgraphs follow each other, as HETERO runs them. Raises
    MeasurementError if the profile has neither spans nor counters.
    """
    if profile.spans:
        return _measured(profile)
    if not profile.counters:
        raise MeasurementError(
            "A timeline needs counters, and this profile has none. Profile with counters=True."
        )
    found, at = [], 0.0
    for subgraph in profile.partition.subgraphs:
        took = sum(c.real_time_us for c in profile.counters if c.subgraph == subgraph.index)
        found.append(Bar(subgraph.index, subgraph.device, at, took, len(subgraph.ops)))
        at += took
    return found


def _measured(profile: Profile) -> list[Bar]:
    shown = typical_request(profile.spans)
    critical = critical_spans(profile)
    start_s = min(s.start_s for s in profile.spans if s.request == shown)
    end_s = max(s.end_s for s in profile.spans if s.request == shown)
    return [
        Bar(
            subgraph=span.subgraph,
            device=span.device,
            start_us=(span.start_s - start_s) * 1e6,
            duration_us=(span.end_s - span.start_s) * 1e6,
            n_ops=len(profile.partition.subgraphs[span.subgraph].ops),
            request=span.request - shown,
            critical=span.request == shown and span in critical,
        )
        for span in sorted(profile.spans, key=lambda s: s.start_s)
        if span.end_s > start_s and span.start_s < end_s
    ]


def timeline(profile: Profile) -> go.Figure:
    """Draw the subgraphs over time, one lane per device.

    Measured runs are drawn as they were. A line follows the critical path: the chain that
    determined the end of the request since it last waited for another one. Other runs are faded.
    Counters have no start times, so without measured spans the bars follow each other in
    execution order.

    Raises
    ------
    MeasurementError
        The profile has neither spans nor counters.
    """
    measured = bool(profile.spans)
    found = bars(profile)
    devices = list(dict.fromkeys(s.device for s in profile.partition.subgraphs))
    return lanes(
        found,
        device_styles(devices, dict(profile.environment.emulated)),
        title=f"Timeline of {plain(profile.label, 60)}{', measured' if measured else ''}",
        subtitle=_subtitle(profile, found),
        axis="time (µs)" if measured else "time by counters (µs)",
    )


def schedule(plan: SchedulePlan) -> go.Figure:
    """Draw when each subgraph is predicted to run, one lane per device (Gantt 1919)."""
    path = {entry.index for entry in plan.schedule.critical_path}
    found = [
        Bar(e.index, e.device, e.start_us, e.us, e.n_ops, critical=e.index in path)
        for e in plan.schedule.entries
    ]
    idle = ", ".join(f"{plain(d)} {us:,.0f}" for d, us in plan.schedule.idle_us.items())
    how = "Guessed" if plan.guessed_from else "Predicted"
    return lanes(
        found,
        device_styles(plan.schedule.devices, plan.emulated),
        title=f"{how} schedule, {plan.predicted_us:,.0f} µs",
        subtitle=f"by {plan.method}; idle µs: {idle}",
        axis="predicted time (µs)",
    )


def lanes(
    found: list[Bar], styles: Mapping[str, DeviceStyle], *, title: str, subtitle: str, axis: str
) -> go.Figure:
    """Draw runs of subgraphs, one lane per device; runs known not to be critical are faded."""
    devices = list(styles)
    figure = go.Figure()
    for device, style in styles.items():
        own = [bar for bar in found if bar.device == device]
        # The legend takes the colour of the first bar, which should not be a faded one.
        own.sort(key=lambda bar: bar.critical is False)
        figure.add_bar(
            orientation="h",
            y=[devices.index(device)] * len(own),
            base=[bar.start_us for bar in own],
            x=[bar.duration_us for bar in own],
            name=style.label,
            marker={
                "color": [style.faded(_FADED) if b.critical is False else style.colour
                          for b in own],
                "pattern": {"shape": style.pattern, "solidity": 0.2, "fillmode": "overlay"},
                "line": {"width": 1, "color": "rgba(255, 255, 255, 0.8)"},
            },
            text=["" if bar.request else str(bar.subgraph) for bar in own],
            textposition="inside",
            # Faded bars let the page shine through, which may be light or dark.
            insidetextfont={"color": [TEXT if b.critical is False else ink_on(style.colour)
                                      for b in own]},
            insidetextanchor="middle",
            hovertext=[_hover(bar, style) for bar in own],
            hoverinfo="text",
        )  # fmt: skip
    path = [bar for bar in found if bar.critical]
    if path:
        figure.add_scatter(
            x=[us for bar in path for us in (bar.start_us, bar.start_us + bar.duration_us)],
            y=[devices.index(bar.device) + _HALF_LANE for bar in path for _ in range(2)],
            mode="lines",
            line={"width": 3, "color": TEXT},
            name="critical path",
            hoverinfo="skip",
        )
    return finish(
        figure,
        title,
        subtitle,
        170 + 60 * len(devices),
        (20, 30, 100, 50),
        x={"title": axis, "gridcolor": GRID, "rangemode": "normal" if path else "tozero"},
        y=bar_axis([style.label for style in styles.values()])
        | {"autorange": None, "range": [len(devices) - 0.5, -0.5]},
        barmode="overlay",
        uniformtext={"minsize": 10, "mode": "hide"},
        bargap=1 - 2 * _HALF_LANE,
    )


def _subtitle(profile: Profile, found: list[Bar]) -> str:
    if not profile.spans:
        return "reconstructed from counters: order is real, start times are not measured"
    n = len({bar.request for bar in found}) - 1
    others = "1 other that was" if n == 1 else f"{n} others that were"
    return "the request of median duration" + (f", and {others} in flight" if n else "")


def _hover(bar: Bar, style: DeviceStyle) -> str:
    text = f"<b>subgraph {bar.subgraph}</b> · {style.label}<br>{bar.duration_us:,.1f} µs, "
    text += f"{bar.n_ops} ops"
    if bar.critical:
        text += "<br>on the critical path"
    return text if not bar.request else f"{text}<br>request {bar.request:+d}"
