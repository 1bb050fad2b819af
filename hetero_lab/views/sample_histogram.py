"""The latency samples of one or several profiles as histograms, a row each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.profile.profile import Profile
from hetero_lab.views.colours import BOUNDARY, GRID, TEXT, device_styles
from hetero_lab.views.text import NOT_IN_TURN, escape, plain, time_text
from hetero_lab.views.theme import base_layout

_BINS = 60
_FAR = 6.0  # samples farther than this many quartile ranges above the third quartile are not drawn
_ROW_PX, _ROW_SHARE = 118, 0.62  # height of a row, and how much of it the bars may take


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
            x=middles, y=[_ROW_SHARE * n / row.n_samples / tallest for n in row.counts],
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
        for text, x, anchor in (
            (f"<b>{plain(row.label, 60)}</b>   {squares}", 0, "left"),
            (escape(_numbers(row)), 1, "right"),
        ):
            figure.add_annotation(
                text=text, xref="paper", x=x, xanchor=anchor, y=base + 0.84, yanchor="middle",
                showarrow=False,
            )  # fmt: skip
    figure.update_layout(
        **base_layout(
            "Latency samples",
            "line: median · band: its 95 % interval in this run · height: share of samples"
            + (f" · {NOT_IN_TURN}" if len(data.rows) > 1 else ""),
        ),
        height=_ROW_PX * len(data.rows) + 134,
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
