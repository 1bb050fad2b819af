"""Figures of time: latency samples, where the time goes, and when subgraphs run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hetero_lab.errors import ArgumentError, MeasurementError
from hetero_lab.planning.schedules import SchedulePlan
from hetero_lab.planning.timeline import Span, typical_request
from hetero_lab.results.profile_result import Profile
from hetero_lab.results.profile_tables import critical_spans, time_parts
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.runtime.counters import Counter
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import (
    BOUNDARY,
    GRID,
    NOT_IN_TURN,
    STACKED,
    TEXT,
    TIME_AXIS,
    DeviceStyle,
    ThemedFigure,
    device_styles,
    escape,
    finish,
    hover,
    ink_on,
    latency_axis,
    latency_text,
    plain,
    row_axis,
    time_text,
)

_MOST_ROWS = 40  # more subgraphs than this have thinner bars without names
_SUBGRAPH_PX = 24  # a bar with its name beside it
_SUBGRAPH_PARTS = (("ops", 1.0), ("reorders", 0.4))


def counters_of(profile: Profile) -> tuple[Counter, ...]:
    """Return the counters of a profile; MeasurementError if it has none."""
    if not profile.counters:
        why = "Profile with counters=True; some op must take at least 1 µs."
        raise MeasurementError(f"This profile has no counters. {why}")
    return profile.counters


def styles_of(profile: Profile) -> dict[str, DeviceStyle]:
    """Return the styles of the devices of a profile, in the order of their first subgraphs."""
    devices = (subgraph.device for subgraph in profile.partition.subgraphs)
    return device_styles(devices, dict(profile.environment.emulated))


def time_by_subgraph(profile: Profile) -> go.Figure:
    """Draw one bar per subgraph: its ops in the device's colour, then its reorders, faded.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    counters_of(profile)
    rows = profile.tables["subgraphs"].to_dict("records")
    has_names = len(rows) <= _MOST_ROWS
    figure = ThemedFigure()
    for device, style in styles_of(profile).items():
        of_device = [row for row in rows if row["device"] == device]
        for part, opacity in _SUBGRAPH_PARTS:
            values = [row[f"{part}_us"] for row in of_device]
            if not any(values) and part == "reorders":
                continue
            figure.add_bar(
                orientation="h",
                y=[row["subgraph"] for row in of_device],
                x=values,
                name=f"{style.label}: {part}",
                marker=style.bar(opacity),
                hovertext=[
                    f"<b>subgraph {row['subgraph']}</b> on {style.label}<br>"
                    f"{part} take {time_text(value)}<br>{count_of(row['n_ops'], 'op')}"
                    for row, value in zip(of_device, values, strict=True)
                ],
            )
    names = [f"{r['subgraph']} · {plain(r['device'], 20)}" if has_names else "" for r in rows]
    return finish(
        figure,
        f"Time by subgraph of {plain(profile.configuration, 80)}",
        "by counters, measured in a separate compile · hatched: emulated",
        160 + _SUBGRAPH_PX * min(len(rows), _MOST_ROWS),
        (20, 20, 100, 50),
        x=TIME_AXIS,
        y=row_axis(names) | ({} if has_names else {"title": "subgraphs, in execution order"}),
        **STACKED,
    )


_BINS = 60  # so that a bar is some ten pixels wide
_FAR = 6.0  # samples farther than this many quartile ranges above the third quartile are not drawn
_SAMPLES_PX, _BARS_SHARE = 118, 0.62  # height of a row, and how much of it the bars may take


def histograms(profiles: Sequence[Profile]) -> tuple[list[float], list[list[int]]]:
    """Count samples by bins that suit all profiles.

    Returns the edges of the bins in µs, and for each profile the number of samples in each bin. A
    few far outliers lie beyond the edges, since they would hide the rest.
    """
    runs = [profile.latency.samples_us for profile in profiles]
    low, high = min(float(samples.min()) for samples in runs), max(map(_end, runs))
    width = _round_width(max((high - low) / _BINS, low * 1e-3, 1e-3))
    # A sample on an edge belongs to the bin above, whatever rounding says.
    low, high = low / width + 1e-9, high / width + 1e-9
    edges = width * np.arange(np.floor(low), np.floor(high) + 2)
    counts = [np.histogram(samples + 1e-9 * width, edges)[0].tolist() for samples in runs]
    return edges.tolist(), counts


def _end(samples: np.ndarray) -> float:
    """Return the end of the drawn samples: the fence for far outliers (Tukey 1977), widened."""
    lower, upper = np.percentile(samples, [25, 75])
    fence = upper + _FAR * (upper - lower)
    return float(samples[samples <= fence].max())


def _round_width(least: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 … and their fractions."""
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(power * step for step in (1, 2, 5, 10) if power * step >= least * 0.999))


def latency_samples(profiles: Profile | Sweep | Iterable[Profile]) -> go.Figure:
    """Draw the latency samples of one or more placements, each with its median.

    Parameters
    ----------
    profiles
        A Profile, or several on one scale. An interval is that of its own run. Profiles are not
        measured in turn, so intervals do not tell which placement is faster. A Sweep is measured
        in turn: its placements are drawn from fast to slow, with the latencies of its ranking.

    Raises
    ------
    ArgumentError
        No profile.
    """
    in_turn = isinstance(profiles, Sweep)
    if isinstance(profiles, Sweep):
        profiles = [p for row in profiles.ranked.rows if (p := row.scaled_profile) is not None]
    several = [profiles] if isinstance(profiles, Profile) else list(profiles)
    if not several:
        raise ArgumentError("Give at least one profile to draw the latency samples of.")
    edges, tallies = histograms(several)
    styles = device_styles(
        [device for profile in several for device in profile.affinity.devices],
        {name: base for profile in several for name, base in profile.environment.emulated},
    )
    scale, axis = latency_axis([(edges[-1], edges[-1], edges[-1])])
    low, high = scale * edges[0], scale * edges[-1]
    margin = 0.02 * (high - low)
    wide = {"x0": low - margin, "x1": high + margin}
    beside = {"xref": "paper", "x": 0, "xanchor": "left", "yanchor": "middle", "showarrow": False}
    bins = list(pairwise(edges))
    tallest = max(max(n) / len(p.latency) for p, n in zip(several, tallies, strict=True))
    figure = ThemedFigure()
    for place, (profile, counts) in enumerate(zip(several, tallies, strict=True)):
        base, latency = -float(place), profile.latency
        n_samples, tall = len(latency), {"y0": base, "y1": base + 0.68}
        median, start, end = (scale * us for us in (latency.median_us, *latency.ci95_us))
        figure.add_bar(
            x=[scale * (a + b) / 2 for a, b in bins],
            y=[_BARS_SHARE * n / n_samples / tallest for n in counts],
            base=base,
            width=scale * (edges[1] - edges[0]),
            marker={"color": BOUNDARY, "line": {"width": 0}},
            hovertext=[
                f"<b>{plain(profile.configuration)}</b><br>{n} of {n_samples} samples<br>"
                f"from {a:,.6g} to {b:,.6g} µs"
                for n, (a, b) in zip(counts, bins, strict=True)
            ],
        )
        figure.add_shape(type="line", **wide, y0=base, y1=base, line={"width": 1, "color": GRID})
        figure.add_shape(
            type="rect", **tall, x0=start, x1=end, fillcolor=TEXT, opacity=0.3, line_width=0
        )
        figure.add_shape(
            type="line", **tall, x0=median, x1=median, line={"width": 2, "color": TEXT}
        )
        squares = " ".join(
            f'<span style="color:{styles[d].colour}">■</span> {styles[d].label}'
            for d in profile.affinity.devices
        )
        for text, height in (
            (f"<b>{plain(profile.configuration, 80)}</b>   {squares}", 0.9),
            (escape(_numbers(profile, n_samples - sum(counts))), 0.76),
        ):
            figure.add_annotation(text=text, y=base + height, **beside)
    return finish(
        figure,
        "Latency samples",
        "line: median · band: its 95 % interval in this run · height: share of samples"
        + (f" · {NOT_IN_TURN}" if len(several) > 1 and not in_turn else ""),
        _SAMPLES_PX * len(several) + 134,
        (16, 16, 84, 50),
        x={**axis, "range": [*wide.values()], "zeroline": False, "showline": False},
        y={"visible": False, "range": [0.96 - len(several), 1.0], "fixedrange": True},
        bargap=0,
        showlegend=False,
    )


def _numbers(profile: Profile, n_beyond: int) -> str:
    latency = profile.latency
    median = latency_text((latency.median_us, *latency.ci95_us))
    beyond = f" · {n_beyond} beyond the right edge" if n_beyond else ""
    return f"median {median} · p90 {time_text(latency.p90_us)}{beyond}"


# Not colours that stand for devices.
_LATENCY_PARTS = (
    ("ops", "ops", "#5b6472"),
    ("reorders", "reorders (layout, precision)", "#b0413e"),
    ("rest", "rest (boundaries, runtime)", "#c3c7ce"),
)
_EXCEEDS = "<br>the counters add up to more than the latency"


def splits(results: Sweep | Profile | Sequence[Profile]) -> list[tuple[str, float, dict[str, Any]]]:
    """Return name, latency in µs and its parts of each profile that has counters."""
    if isinstance(results, Sweep):
        latencies = [
            (results.shown_name(row), row.latency.us, row.profile.counters)
            for row in results.rows
            if row.profile and row.latency and not row.same_as
        ]
    else:
        profiles = [results] if isinstance(results, Profile) else results
        latencies = [(p.configuration, p.latency.median_us, p.counters) for p in profiles]
    return [(label, us, time_parts(counters, us)) for label, us, counters in latencies if counters]


def where_time_goes(results: Sweep | Profile | Sequence[Profile]) -> go.Figure:
    """Draw each latency as a stacked bar of ops, reorders and rest.

    Counters come from a separate compile. Where they add up to more than the wall-clock latency,
    by overlapping kernels or noise, the bar is longer than the marked latency and has no rest.
    """
    bars = splits(results)
    places = list(range(len(bars)))
    figure = ThemedFigure()
    for key, name, colour in _LATENCY_PARTS:
        figure.add_bar(
            orientation="h",
            y=places,
            x=[parts[f"{key}_us"] for _, _, parts in bars],
            name=name,
            marker={"color": colour},
            hovertext=[
                f"<b>{plain(label, 200)}</b><br>{name}: {parts[f'{key}_us']:,.1f} µs of "
                f"{us:,.1f} µs{_EXCEEDS * parts['counters_exceed_latency']}"
                for label, us, parts in bars
            ],
        )
    figure.add_scatter(
        x=[us for _, us, _ in bars],
        y=places,
        mode="markers",
        name="wall-clock latency",
        marker={"symbol": "line-ns", "size": 22, "line": {"width": 3, "color": TEXT}},
    )
    apart = not isinstance(results, Sweep | Profile) and len(results) > 1
    return finish(
        figure,
        "Where the latency goes",
        "by counters, measured in a separate compile" + (f" · {NOT_IN_TURN}" if apart else ""),
        150 + 36 * max(1, len(bars)),
        (20, 30, 100, 50),
        x=TIME_AXIS,
        y=row_axis([plain(name, 60) for name, _, _ in bars]),
        barmode="stack",
        bargap=0.35,
    )


_HALF_LANE = 0.33  # a third of a lane stays free between bars
_FADED = 0.4  # opacity at which a colour is still that of its device


def runs(profile: Profile) -> list[Span]:
    """Return the measured runs of the request of median duration, and of those beside it.

    Their requests count from that one, and their times from its start. Without measured spans, the
    subgraphs follow each other, as HETERO runs them. Raises MeasurementError if the profile has
    neither spans nor counters.
    """
    if not profile.spans:
        counters, spans, at_s = counters_of(profile), list[Span](), 0.0
        for s in profile.partition.subgraphs:
            begin_s = at_s
            at_s += sum(c.real_time_us for c in counters if c.subgraph == s.index) / 1e6
            spans.append(Span(0, s.index, s.device, begin_s, at_s))
        return spans
    request = typical_request(profile.spans)
    start_s = min(s.start_s for s in profile.spans if s.request == request)
    end_s = max(s.end_s for s in profile.spans if s.request == request)
    return [
        Span(s.request - request, s.subgraph, s.device, s.start_s - start_s, s.end_s - start_s)
        for s in sorted(profile.spans, key=lambda s: s.start_s)
        if s.end_s > start_s and s.start_s < end_s
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
    spans, title = runs(profile), f"Timeline of {plain(profile.configuration, 80)}"
    critical: set[int] | None = None
    subtitle = "reconstructed from counters: order is real, start times are not measured"
    axis = "time by counters (µs)"
    if profile.spans:
        request = typical_request(profile.spans)
        critical = {s.subgraph for s in critical_spans(profile) if s.request == request}
        n = len({span.request for span in spans}) - 1
        others = "1 other that was" if n == 1 else f"{n} others that were"
        subtitle = "the request of median duration" + (f", and {others} in flight" if n else "")
        title, axis = f"{title}, measured", "time (µs)"
    n_ops = {s.index: len(s.ops) for s in profile.partition.subgraphs}
    styles = styles_of(profile)
    return lanes(spans, critical, n_ops, styles, title=title, subtitle=subtitle, axis=axis)


def schedule(plan: SchedulePlan) -> go.Figure:
    """Draw when each subgraph is predicted to run, one lane per device (Gantt 1919)."""
    idle = ", ".join(f"{plain(d)} {us:,.0f}" for d, us in plan.schedule.idle_us.items())
    return lanes(
        plan.schedule.entries,
        {entry.subgraph for entry in plan.schedule.critical_path},
        {s.index: len(s.ops) for s in plan.schedule.partition.subgraphs},
        device_styles(plan.schedule.devices, plan.emulated),
        title=f"Predicted schedule, {plan.predicted_us:,.0f} µs",
        subtitle=f"by {plan.method}; idle µs: {idle}",
        axis="predicted time (µs)",
    )


def lanes(
    spans: Sequence[Span],
    critical: Collection[int] | None,
    n_ops: Mapping[int, int],
    styles: Mapping[str, DeviceStyle],
    *,
    title: str,
    subtitle: str,
    axis: str,
) -> go.Figure:
    """Draw runs of subgraphs, one lane per device.

    Request 0 is the one shown. Unless nothing is known of its ``critical`` subgraphs, all other
    runs are faded.
    """
    devices = list(styles)
    path = [span for span in spans if critical and not span.request and span.subgraph in critical]
    on_path = set(path)
    faded = set(spans) - on_path if critical is not None else set()
    figure = ThemedFigure()
    for device, style in styles.items():
        # The legend takes the colour of the first bar, which should not be a faded one.
        lane = sorted((s for s in spans if s.device == device), key=faded.__contains__)
        figure.add_bar(
            orientation="h",
            y=[devices.index(device)] * len(lane),
            base=[span.start_us for span in lane],
            x=[_duration_us(span) for span in lane],
            name=style.label,
            marker={
                "color": [style.faded(_FADED) if s in faded else style.colour for s in lane],
                "pattern": {"shape": style.pattern, "solidity": 0.2, "fillmode": "overlay"},
                "line": {"width": 1, "color": "rgba(255, 255, 255, 0.8)"},
            },
            text=["" if span.request else str(span.subgraph) for span in lane],
            textposition="inside",
            # Faded bars let the page shine through, which may be light or dark.
            insidetextfont={"color": [TEXT if s in faded else ink_on(style.colour) for s in lane]},
            insidetextanchor="middle",
            hovertext=[
                hover(
                    f"<b>subgraph {span.subgraph}</b> · {style.label}",
                    f"{_duration_us(span):,.1f} µs, {n_ops[span.subgraph]} ops",
                    "on the critical path" if span in on_path else "",
                    f"request {span.request:+d}" if span.request else "",
                )
                for span in lane
            ],
        )
    if path:
        figure.add_scatter(
            x=[us for span in path for us in (span.start_us, span.end_us)],
            y=[devices.index(span.device) + _HALF_LANE for span in path for _ in range(2)],
            mode="lines",
            line={"width": 3, "color": TEXT},
            name="critical path",
        )
    return finish(
        figure,
        title,
        subtitle,
        170 + 60 * len(devices),
        (20, 30, 100, 50),
        x={"title": axis, "gridcolor": GRID, "rangemode": "normal" if path else "tozero"},
        y=row_axis([style.label for style in styles.values()]),
        barmode="overlay",
        uniformtext={"minsize": 10, "mode": "hide"},
        bargap=1 - 2 * _HALF_LANE,
    )


def _duration_us(span: Span) -> float:
    return span.end_us - span.start_us
