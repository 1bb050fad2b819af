"""All figures of some results on one page that opens without a network."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import ArgumentError, names_at_hand
from hetero_lab.experiments.profile_tables import headline
from hetero_lab.experiments.profiling import Profile
from hetero_lab.experiments.sweep_result import Sweep
from hetero_lab.tables import html_table, write_text
from hetero_lab.views.graph_drawing import placement_graph
from hetero_lab.views.latency_split import where_time_goes
from hetero_lab.views.ranking_bars import latency_ranking
from hetero_lab.views.sample_histogram import latency_samples
from hetero_lab.views.structure_scatter import placement_latency
from hetero_lab.views.subgraph_bars import time_by_subgraph
from hetero_lab.views.subgraph_lanes import timeline

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

View = Callable[[Any], "go.Figure"]

# What applies to which kind of result. The second table needs counters as well.
_VIEWS: Mapping[type, Mapping[str, View]] = {
    Profile: {"placement_graph": placement_graph, "latency_samples": latency_samples},
    Sweep: {"latency_ranking": latency_ranking, "placement_latency": placement_latency},
}
_WITH_COUNTERS: Mapping[type, Mapping[str, View]] = {
    Profile: {"time_by_subgraph": time_by_subgraph, "timeline": timeline},
    Sweep: {"where_time_goes": where_time_goes},
}

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; margin: 0 auto;
  max-width: 1320px; padding: 2rem 1.5rem 4rem; background: #ffffff; color: #1d2129; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin: 3rem 0 .5rem; }
section { border-top: 1px solid #8883; }
.figure { overflow-x: auto; margin: 1rem 0; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #8884; text-align: left; }
th { font-weight: 600; } caption { text-align: left; padding: .3rem 0; color: #777; }
@media (prefers-color-scheme: dark) { body { background: #15181d; color: #e6e8ec; } }
"""


def gallery(result: Profile | Sweep) -> dict[str, go.Figure]:
    """Return every view that applies to a result, by name.

    Raises
    ------
    ArgumentError
        Something that has no views.
    """
    kind = type(result)
    if kind not in _VIEWS:
        known = sorted(k.__name__ for k in _VIEWS)
        raise ArgumentError(f"There are views of {names_at_hand(known)}, not of {kind.__name__}.")
    chosen = dict(_VIEWS[kind])
    profiles = [result] if isinstance(result, Profile) else [r.profile for r in result.rows]
    if any(profile is not None and profile.counters for profile in profiles):
        chosen.update(_WITH_COUNTERS[kind])
    return {name: view(result) for name, view in chosen.items()}


def page(
    results: Profile | Sweep | Sequence[Profile | Sweep],
    path: str | os.PathLike[str],
    title: str = "hetero_lab",
) -> None:
    """Write the figures and headline tables of some results to one self-contained HTML file.

    Parameters
    ----------
    results
        A Profile or Sweep, or several.
    path
        The file; it needs no network and no other file.
    title
        Its heading.

    Raises
    ------
    ArgumentError
        Something that has no views.
    OutputPathError
        The file cannot be written.
    """
    several = [results] if isinstance(results, Profile | Sweep) else list(results)
    parts: list[str] = []
    first = True
    for result in several:
        figures = gallery(result)
        parts.append(f"<section><h2>{html.escape(_heading(result))}</h2>")
        parts.append(f'<div class="table">{html_table(_headline(result))}</div>')
        for figure in figures.values():
            drawn = figure.to_html(
                full_html=False, include_plotlyjs=first, config={"responsive": True}
            )
            parts.append(f'<div class="figure">{drawn}</div>')
            first = False
        parts.append("</section>")
    name = html.escape(title)
    write_text(
        path,
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{name}</h1>{''.join(parts)}</body></html>\n",
    )


def _heading(result: Profile | Sweep) -> str:
    if isinstance(result, Sweep):
        return f"Sweep of {len(result.rows)} placements"
    return f"{result.graph.name} on {result.label}"[:200]


def _headline(result: Profile | Sweep) -> pd.DataFrame:
    if isinstance(result, Sweep):
        return result.ranking.drop(columns=["labels"])
    return headline(result)
