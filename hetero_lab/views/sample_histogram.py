"""The histogram of latency samples of one or several profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from hetero_lab.experiments.profiling import Profile
from hetero_lab.views.colours import GRID, TEXT
from hetero_lab.views.text import plain
from hetero_lab.views.theme import base_layout

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_BINS = 60
_SHOWN_TO = 99.0  # percentile up to which samples are drawn; the rest is said in the title


def shown_samples(profiles: Sequence[Profile]) -> tuple[list[np.ndarray], int]:
    """Return each profile's samples up to the 99th percentile of all, and the number beyond."""
    every = [profile.latency.samples_us for profile in profiles]
    limit = float(np.percentile(np.concatenate(every), _SHOWN_TO))
    return [s[s <= limit] for s in every], sum(int((s > limit).sum()) for s in every)


def latency_samples(profiles: Profile | Sequence[Profile]) -> go.Figure:
    """Draw the latency samples of one or several profiles, each with its median.

    Parameters
    ----------
    profiles
        A Profile, or several to compare.
    """
    chosen = [profiles] if isinstance(profiles, Profile) else list(profiles)
    shown, beyond = shown_samples(chosen)
    low = min(float(s.min()) for s in shown if len(s))
    high = max(float(s.max()) for s in shown if len(s))
    size = max((high - low) / _BINS, 1e-3)
    figure = go.Figure()
    for index, (profile, samples) in enumerate(zip(chosen, shown, strict=True)):
        colour = _COLOURS[index % len(_COLOURS)]
        figure.add_histogram(
            x=samples,
            name=plain(profile.label, 48),
            marker={"color": colour},
            opacity=0.65,
            xbins={"start": low, "end": high + size, "size": size},
            hovertemplate="%{x} µs: %{y} samples<extra></extra>",
        )
        figure.add_vline(
            x=profile.latency.median_us, line={"color": colour, "width": 2, "dash": "dot"}
        )
    more = f" · {beyond} slower samples are not shown" if beyond else ""
    figure.update_layout(
        **base_layout("Latency samples", f"dotted: median{more}"),
        barmode="overlay",
        height=400,
        margin={"l": 70, "r": 30, "t": 100, "b": 60},
        showlegend=True,
    )
    figure.update_xaxes(title="latency (µs)", gridcolor=GRID, zeroline=False, color=TEXT)
    figure.update_yaxes(title="samples", gridcolor=GRID)
    return figure
