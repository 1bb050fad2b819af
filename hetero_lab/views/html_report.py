"""All figures of some results on one page that opens without a network."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import ArgumentError
from hetero_lab.tables import check_writable, html_table, write_text
from hetero_lab.views.result_views import KINDS, Kind, Listing, Result, drawn, kind_of
from hetero_lab.views.text import squeeze

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_CONFIG = {"responsive": True, "displaylogo": False, "showSendToCloud": False}
_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2129; --faint: #5c6470;
  --rule: #8884; --note: #f4f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171c; --ink: #e4e7ec; --faint: #a3abb8; --note: #1e232b; } }
body { font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial,
  sans-serif; margin: 0 auto; max-width: 1280px; padding: 2rem 1.5rem 4rem;
  background: var(--paper); color: var(--ink); }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 1.5rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .75rem; }
h1, h2 { overflow-wrap: anywhere; }
section { border-top: 1px solid var(--rule); padding: 1.75rem 0 1rem; }
p.note { background: var(--note); border-radius: 6px; padding: .5rem .8rem; margin: .5rem 0;
  font-size: .9rem; color: var(--faint); }
.figure, .table { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th { font-weight: 600; color: var(--faint); white-space: nowrap; }
td { max-width: 26rem; overflow-wrap: break-word; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--faint); }
.js-plotly-plot :is(.gtitle, .legendtext, .xtitle, .ytitle, .x2title, .y2title,
  .xtick text, .ytick text, .x2tick text, .y2tick text,
  .textpoint text, .annotation-text, .heatmap-label text, .bartext-outside) {
  fill: var(--ink) !important; }
.js-plotly-plot .gtitle-subtitle { fill: var(--faint) !important; }
"""


def page(
    results: Result | Iterable[Result],
    file: str | os.PathLike[str],
    title: str = "hetero_lab",
    notes: Sequence[str] = (),
) -> None:
    """Write the figures and tables of some results to one self-contained HTML file.

    Several results of one kind are compared at the top of the page.

    Parameters
    ----------
    results
        What a call returned: a Profile, a Sweep, a Verification, a table; or several. The
        ``attrs`` of a table may have its ``title`` and ``notes``.
    file
        The file; it needs no network and no other file.
    title
        Its heading.
    notes
        Sentences that the page begins with, before those of the results.

    Raises
    ------
    ArgumentError
        No result, or something that has no views.
    OutputPathError
        The file cannot be written.
    """
    one: Any = results
    if isinstance(one, tuple(kind.takes for kind in KINDS)) or not isinstance(one, Iterable):
        one = [one]
    several = list(one)
    if not several:
        raise ArgumentError("Give at least one result to make a page of.")
    check_writable(file)
    kinds = [kind_of(result) for result in several]
    figures = _Figures()
    parts = [*_notes(notes)]
    for kind in KINDS:
        same = [result for result, other in zip(several, kinds, strict=True) if other is kind]
        if len(same) > 1 and kind.several_views:
            parts += _comparison(kind, same, figures)
    for kind, result in zip(kinds, several, strict=True):
        parts += _section(kind, result, figures)
    name = html.escape(squeeze(title, 200))
    write_text(
        file,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><h1>{name}</h1>\n{''.join(parts)}</body></html>\n",
    )


class _Figures:
    """Turns figures into HTML; the first one brings plotly.js along for all."""

    def __init__(self) -> None:
        self.n_figures = 0

    def embed(self, figure: go.Figure) -> str:
        drawn = figure.to_html(
            full_html=False,
            include_plotlyjs=self.n_figures == 0,
            config=_CONFIG,
            div_id=f"figure-{self.n_figures + 1}",
        )
        self.n_figures += 1
        return f'<div class="figure" tabindex="0">{drawn}</div>\n'  # it may scroll: by keys, too


def _comparison(kind: Kind, results: Sequence[Any], figures: _Figures) -> Iterator[str]:
    yield "<section><h2>Side by side</h2>\n"
    if kind.several_note:
        yield from _notes([kind.several_note])
    views = (view.draw(results) for view in kind.several_views if view.applies(results))
    yield from _content(kind.several_listings, views, results, figures)
    yield "</section>\n"


def _section(kind: Kind, result: Any, figures: _Figures) -> Iterator[str]:
    yield f"<section><h2>{html.escape(squeeze(kind.heading(result), 200))}</h2>\n"
    yield from _notes(kind.notes(result))
    views = (figure for _, figure in drawn(result))
    yield from _content(kind.listings, views, result, figures)
    yield "</section>\n"


def _notes(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in filter(str.strip, sentences):
        yield f'<p class="note">{html.escape(squeeze(sentence, 500))}</p>\n'


def _content(
    listings: Sequence[Listing], views: Iterable[go.Figure], result: Any, figures: _Figures
) -> Iterator[str]:
    """Give the headline tables, then the figures, then the other tables folded up."""
    chosen = [listing for listing in listings if listing.applies(result)]
    for listing in chosen:
        if not listing.is_detail:
            yield _table(listing.frame(result))
    for view in views:
        yield figures.embed(view)
    for listing in chosen:
        if listing.is_detail:
            title = html.escape(listing.title)
            yield f"<details><summary>{title}</summary>{_table(listing.frame(result))}</details>\n"


def _table(frame: pd.DataFrame) -> str:
    return f'<div class="table" tabindex="0">{html_table(frame)}</div>\n'
