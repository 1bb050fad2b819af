"""Figures of measured time: latency samples, and where the time of a profile goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from hetero_lab.errors import ArgumentError, MeasurementError
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.experiments.results.profile.tables import time_parts
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.views.text import NOT_IN_TURN, escape, plain, time_text
from hetero_lab.views.theme import BOUNDARY, GRID, TEXT, base_layout, device_styles, row_axis

_MOST_ROWS = 40  # more subgraphs than this stand side by side, without names
_SUBGRAPH_PX = 24
_SUBGRAPH_PARTS = (("ops_us", "ops", 1.0), ("reorders_us", "reorders", 0.4))


@dataclass(frozen=True)
class SubgraphTime:
    """The counters of one subgraph, in µs."""

    subgraph: int
    device: str
    n_ops: int
    ops_us: float
    reorders_us: float


def subgraph_times(profile: Profile) -> list[SubgraphTime]:
    """Return the times of each subgraph in execution order.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    if not profile.counters:
        raise MeasurementError("This profile has no counters. Profile with counters=True.")
    found = []
    for subgraph in profile.partition.subgraphs:
        own = [c for c in profile.counters if c.subgraph == subgraph.index]
        found.append(
            SubgraphTime(
                subgraph.index,
                subgraph.device,
                len(subgraph.ops),
                float(sum(c.real_time_us for c in own if c.kind in ("op", "other"))),
                float(sum(c.real_time_us for c in own if c.kind == "reorder")),
            )
        )
    return found


def time_by_subgraph(profile: Profile) -> go.Figure:
    """Draw one bar per subgraph: its ops in the device's colour, then its reorders, faded.

    Raises
    ------
    MeasurementError
        The profile has no counters.
    """
    found = subgraph_times(profile)
    styles = device_styles([row.device for row in found], dict(profile.environment.emulated))
    rows = len(found) <= _MOST_ROWS
    figure = go.Figure()
    for device, style in styles.items():
        own = [row for row in found if row.device == device]
        for key, part, opacity in _SUBGRAPH_PARTS:
            places, values = [row.subgraph for row in own], [getattr(row, key) for row in own]
            if not any(values) and part == "reorders":
                continue
            figure.add_bar(
                **({"y": places, "x": values} if rows else {"x": places, "y": values}),
                orientation="h" if rows else "v",
                name=f"{style.label}: {part}",
                marker=style.bar(opacity),
                hovertext=[
                    f"<b>subgraph {row.subgraph}</b> on {style.label}<br>"
                    f"{part} take {time_text(value)}<br>{row.n_ops} op{'s' * (row.n_ops != 1)}"
                    for row, value in zip(own, values, strict=True)
                ],
                hoverinfo="text",
            )  # fmt: skip
    figure.update_layout(
        **base_layout(
            f"Time by subgraph of {plain(profile.label, 60)}",
            "by the counters of a compile of their own · hatched: emulated",
        ),
        barmode="stack",
        bargap=0.25,
        height=160 + _SUBGRAPH_PX * len(found) if rows else 420,
        margin={"l": 20, "r": 20, "t": 100, "b": 50},
        showlegend=True,
        legend_traceorder="normal",
    )
    along = {"title": "time (µs)", "gridcolor": GRID, "rangemode": "tozero", "zeroline": False}
    if rows:
        figure.update_xaxes(**along)
        names = [f"{row.subgraph} · {plain(row.device, 20)}" for row in found]
        figure.update_yaxes(row_axis(names))
    else:
        figure.update_yaxes(**along, automargin=True)
        figure.update_xaxes(
            title="subgraph, in execution order", showgrid=False, zeroline=False, automargin=True
        )
    return figure


_BINS = 60
_FAR = 6.0  # samples farther than this many quartile ranges above the third quartile are not drawn
_SAMPLES_PX, _BARS_SHARE = 118, 0.62  # height of a row, and how much of it the bars may take


@dataclass(frozen=True)
class SampleRow:
    """The samples of one profile: how many fall into each bin, and how many lie beyond the last."""

    label: str
    devices: tuple[str, ...]
    median_us: float
    ci95_us: tuple[float, float]
    p90_us: float
    n_samples: int
    counts: tuple[int, ...]
    n_beyond: int


@dataclass(frozen=True)
class Samples:
    """Rows over the same bins, which lie between ``edges_us``."""

    edges_us: tuple[float, ...]
    rows: tuple[SampleRow, ...]
    emulated: dict[str, str]


def samples_of(profiles: Sequence[Profile]) -> Samples:
    """Count samples by bins that suit all profiles; a few far outliers would hide the rest."""
    low = min(float(profile.latency.samples_us.min()) for profile in profiles)
    high = max(_end(profile.latency.samples_us) for profile in profiles)
    width = _round_width(max((high - low) / _BINS, low * 1e-3, 1e-3))
    first = int(_places(np.array([low]), width)[0])
    last = int(_places(np.array([high]), width)[0]) + 1
    edges = [k * width for k in range(first, last + 1)]
    rows = []
    for profile in profiles:
        samples = profile.latency.samples_us
        places = _places(samples, width) - first
        inside = places[places < len(edges) - 1]
        rows.append(
            SampleRow(
                label=profile.label,
                devices=profile.affinity.devices,
                median_us=profile.latency.median_us,
                ci95_us=profile.latency.ci95_us,
                p90_us=profile.latency.p90_us,
                n_samples=len(samples),
                counts=tuple(int(n) for n in np.bincount(inside, minlength=len(edges) - 1)),
                n_beyond=len(samples) - len(inside),
            )
        )
    emulated = {name: base for p in profiles for name, base in p.environment.emulated}
    return Samples(tuple(edges), tuple(rows), emulated)


def _places(samples: np.ndarray, width: float) -> np.ndarray:
    """Return the number of the bin of each sample, counted from 0 µs."""
    # A sample on an edge belongs to the bin above, whatever the rounding of the division says.
    return np.floor(samples / width + 1e-9).astype(int)


def _end(samples: np.ndarray) -> float:
    """Return up to where samples are drawn: the fence for far outliers (Tukey 1977), widened."""
    lower, upper = np.percentile(samples, [25, 75])
    fence = upper + _FAR * (upper - lower)
    return float(samples[samples <= fence].max())


def _round_width(least: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 … and their fractions."""
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(power * step for step in (1, 2, 5, 10) if power * step >= least * 0.999))


def latency_samples(profiles: Profile | Iterable[Profile]) -> go.Figure:
    """Draw the latency samples of one or several profiles, each with its median.

    Parameters
    ----------
    profiles
        A Profile, or several on one scale. An interval is that of its own run: profiles are not
        measured in turn, so that it does not tell which placement is faster.

    Raises
    ------
    ArgumentError
        No profile.
    """
    chosen = [profiles] if isinstance(profiles, Profile) else list(profiles)
    if not chosen:
        raise ArgumentError("Give at least one profile to draw the latency samples of.")
    data = samples_of(chosen)
    styles = device_styles([d for row in data.rows for d in row.devices], data.emulated)
    low, high = data.edges_us[0], data.edges_us[-1]
    margin = 0.02 * (high - low)
    middles = [(a + b) / 2 for a, b in zip(data.edges_us, data.edges_us[1:], strict=False)]
    tallest = max(max(row.counts) / row.n_samples for row in data.rows)
    figure = go.Figure()
    for place, row in enumerate(data.rows):
        base = -float(place)
        figure.add_bar(
            x=middles, y=[_BARS_SHARE * n / row.n_samples / tallest for n in row.counts],
            base=base, width=data.edges_us[1] - data.edges_us[0],
            marker={"color": BOUNDARY, "line": {"width": 0}}, hoverinfo="text",
            hovertext=[
                f"<b>{plain(row.label)}</b><br>{n} of {row.n_samples} samples<br>"
                f"from {a:,.6g} to {b:,.6g} µs"
                for n, a, b in zip(row.counts, data.edges_us, data.edges_us[1:], strict=False)
            ],
        )  # fmt: skip
        figure.add_shape(
            type="line", x0=low - margin, x1=high + margin, y0=base, y1=base,
            line={"width": 1, "color": GRID},
        )  # fmt: skip
        figure.add_shape(
            type="rect", x0=row.ci95_us[0], x1=row.ci95_us[1], y0=base, y1=base + 0.68,
            fillcolor=TEXT, opacity=0.3, line={"width": 0},
        )  # fmt: skip
        figure.add_shape(
            type="line", x0=row.median_us, x1=row.median_us, y0=base, y1=base + 0.68,
            line={"width": 2, "color": TEXT},
        )  # fmt: skip
        squares = " ".join(
            f'<span style="color:{styles[d].colour}">■</span> {styles[d].label}'
            for d in row.devices
        )
        for text, height in (
            (f"<b>{plain(row.label, 60)}</b>   {squares}", 0.9),
            (escape(_numbers(row)), 0.76),
        ):
            figure.add_annotation(
                text=text, xref="paper", x=0, xanchor="left", y=base + height, yanchor="middle",
                showarrow=False,
            )  # fmt: skip
    figure.update_layout(
        **base_layout(
            "Latency samples",
            "line: median · band: its 95 % interval in this run · height: share of samples"
            + (f" · {NOT_IN_TURN}" if len(data.rows) > 1 else ""),
        ),
        height=_SAMPLES_PX * len(data.rows) + 134,
        margin={"l": 16, "r": 16, "t": 84, "b": 50},
        bargap=0,
        showlegend=False,
    )
    figure.update_xaxes(
        title="latency (µs)", range=[low - margin, high + margin], gridcolor=GRID, zeroline=False,
        showline=False,
    )  # fmt: skip
    figure.update_yaxes(visible=False, range=[0.96 - len(data.rows), 1.0], fixedrange=True)
    return figure


def _numbers(row: SampleRow) -> str:
    low, high = (time_text(v).removesuffix(" µs") for v in row.ci95_us)
    text = f"median {time_text(row.median_us)} [{low}, {high}] · p90 {time_text(row.p90_us)}"
    return text + (f" · {row.n_beyond} beyond the right edge" if row.n_beyond else "")


# Not colours that stand for devices.
_LATENCY_PARTS = (
    ("ops", "ops", "#5b6472"),
    ("reorders", "reorders (layout, precision)", "#b0413e"),
    ("rest", "rest (boundaries, runtime)", "#c3c7ce"),
)


@dataclass(frozen=True)
class TimeSplit:
    """One latency in parts, in µs; ``exceeds`` where the counters add up to more than it."""

    label: str
    latency_us: float
    ops_us: float
    reorders_us: float
    rest_us: float
    exceeds: bool


def splits(results: Sweep | Profile | Sequence[Profile]) -> list[TimeSplit]:
    """Return the parts of each profile that has counters."""
    if isinstance(results, Sweep):
        named = [
            (results.name_of(row), row.profile, row.latency.us)
            for row in results.rows
            if row.profile and row.latency and not row.same_as
        ]
    else:
        profiles = [results] if isinstance(results, Profile) else list(results)
        named = [(profile.label, profile, profile.latency.median_us) for profile in profiles]
    found = []
    for label, profile, latency_us in named:
        if profile.counters:
            parts = time_parts(profile.counters, latency_us)
            exceeds = parts.pop("counters_exceed_latency")
            found.append(TimeSplit(label, latency_us, **parts, exceeds=exceeds))
    return found


def _subtitle(results: Sweep | Profile | Sequence[Profile]) -> str:
    apart = not isinstance(results, Sweep | Profile) and len(results) > 1
    return "counters of a compile of their own" + (f" · {NOT_IN_TURN}" if apart else "")


def where_time_goes(results: Sweep | Profile | Sequence[Profile]) -> go.Figure:
    """Draw each latency as a stacked bar of ops, reorders and rest.

    Counters come from a compile of their own. Where they add up to more than the wall-clock
    latency (kernels overlap, or noise), the bar is longer than the latency, which is marked,
    and there is no rest.
    """
    found = splits(results)
    places = list(range(len(found)))
    figure = go.Figure()
    for key, name, colour in _LATENCY_PARTS:
        values = [getattr(split, f"{key}_us") for split in found]
        figure.add_bar(
            orientation="h",
            y=places,
            x=values,
            name=name,
            marker={"color": colour},
            hovertext=[
                f"<b>{plain(split.label, 200)}</b><br>{name}: {value:,.1f} µs of "
                f"{split.latency_us:,.1f} µs"
                + ("<br>the counters add up to more than the latency" if split.exceeds else "")
                for split, value in zip(found, values, strict=True)
            ],
            hoverinfo="text",
        )
    figure.add_scatter(
        x=[split.latency_us for split in found],
        y=places,
        mode="markers",
        name="wall-clock latency",
        marker={"symbol": "line-ns", "size": 22, "line": {"width": 3, "color": TEXT}},
        hoverinfo="skip",
    )
    figure.update_layout(
        **base_layout("Where the latency goes", _subtitle(results)),
        barmode="stack",
        height=150 + 36 * max(1, len(found)),
        margin={"l": 20, "r": 30, "t": 100, "b": 50},
        bargap=0.35,
    )
    figure.update_xaxes(title="time (µs)", gridcolor=GRID, rangemode="tozero")
    figure.update_yaxes(
        tickvals=places, ticktext=[plain(split.label, 48) for split in found],
        autorange="reversed", automargin=True, showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure
