"""The presentation of results: figures in a gallery; sentences, figures and tables on a page.

To give another kind of result a place in galleries and pages, register a function with
:func:`contents_of`. Views of other packages follow those of their kind.
"""

from __future__ import annotations

import datetime
import html
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from types import UnionType
from typing import Any, TypeAlias

import pandas as pd
import plotly.graph_objects as go

from hetero_lab import views
from hetero_lab.arguments import hints_of
from hetero_lab.errors import ArgumentError, shorten
from hetero_lab.experiments.accuracy.classify import Classification
from hetero_lab.experiments.accuracy.evaluate import Evaluation
from hetero_lab.experiments.advise.advice import BEST, Advice, ranking
from hetero_lab.experiments.faults.wrong import Wrong
from hetero_lab.experiments.hotspots import hotspots
from hetero_lab.experiments.measure.environment import Environment
from hetero_lab.experiments.optimize import Optimized
from hetero_lab.experiments.recover import Recovered
from hetero_lab.experiments.results.profile.report import cause, cautions
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.experiments.results.profile.tables import headline
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.results.sweep.tables import shown, verdict
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.difference import Difference
from hetero_lab.planning.language_plans import BlockCurve
from hetero_lab.planning.schedules import SchedulePlan
from hetero_lab.result import Displayed, told
from hetero_lab.runtime.inputs import GENERATED
from hetero_lab.tables import check_writable, html_table, number, time_text, write_text
from hetero_lab.terminal import count_of
from hetero_lab.views.accuracy import accuracy_front, errors_along_model, sensitivity
from hetero_lab.views.graph.drawing import placement_graph
from hetero_lab.views.op_types import op_types_by_device, time_by_op_type
from hetero_lab.views.predictions import block_curve, difference, predicted_measured
from hetero_lab.views.sweeps import hosts, latency_ranking, placement_latency
from hetero_lab.views.theme import NOT_IN_TURN, squeeze
from hetero_lab.views.times import (
    latency_samples,
    schedule,
    time_by_subgraph,
    timeline,
    where_time_goes,
)

Shown: TypeAlias = Displayed | pd.DataFrame | go.Figure
_HEADLINE = ""  # the title of the table that stands above the figures


@dataclass(frozen=True)
class Contents:
    """The content of a page about one result.

    The ``heading`` is the answer, if there is one. ``tables`` are by title, folded up below the
    figures unless the title is ``_HEADLINE``. ``figures`` maps each view to what it draws. ``None``
    in either marks what does not apply. ``details`` are more sentences, folded up as well.
    """

    heading: str
    notes: Sequence[str]
    tables: Mapping[str, pd.DataFrame | None]
    figures: Mapping[Callable[..., go.Figure], Any] = field(default_factory=dict)
    environment: Environment | None = None
    details: Sequence[str] = ()


@singledispatch
def contents_of(result: Any) -> Contents:
    """Return the content of a page about a result; ArgumentError if it cannot be shown.

    A kind of result without views is shown as in a notebook.
    """
    if not isinstance(result, Displayed):
        known = ", ".join(kind.__name__ for kind in contents_of.registry if kind is not object)
        raise ArgumentError(f"There are views of {known}, not of {type(result).__name__}.")
    answer, sentences, tables = result._answer(), result._sentences(), dict(result._shown())
    headline = {_HEADLINE: tables.pop(next(iter(tables)))} if tables else {}
    return Contents(
        answer or type(result).__name__,
        [*sentences, *_emulation_notes(dict(getattr(result, "emulated", {})).items())],
        {**headline, **tables},
        details=result._details(),
    )


@contents_of.register
def _(profile: Profile) -> Contents:
    tables, partition, emulated = profile.tables, profile.partition, profile.environment.emulated
    us, one = profile.latency.median_us, not (profile.throughput or profile.generation)
    per_second = f" ({number(1e6 / us)} a second)" * one
    counted = profile if profile.counters else None
    split = counted if partition.n_subgraphs > 1 else None
    transitions = tables["transitions"] if counted else None
    notes = [*_emulation_notes(emulated), *cautions(profile), cause(profile)]
    if profile.generated:
        notes.append(f"{GENERATED}.")
    if profile.interrupted:
        notes.append("The measurement was interrupted; the results up to then are valid.")
    if not partition.observed:
        notes.append("The subgraphs are predicted: the compiled ones could not be observed.")
    return Contents(
        f"{profile.graph.name} on {profile.label}: {time_text(us)}{per_second}",
        notes,
        {
            _HEADLINE: headline(profile),
            "Subgraphs": tables["subgraphs"].drop(columns="ops"),
            "Boundaries": tables["boundaries"] if partition.boundaries else None,
            "Precision transitions": None if transitions is None or transitions.empty
            else transitions,
            "Throughput": tables.get("throughput"),
            "Idle devices": tables.get("idle"),
            "Hotspots": hotspots(profile).summary if counted else None,
            "Agreement": tables["agreement"] if profile.agreement else None,
        },
        {
            placement_graph: profile,
            latency_samples: profile,
            time_by_subgraph: split,
            time_by_op_type: counted,
            timeline: profile if profile.spans else split,
        },
        profile.environment,
    )  # fmt: skip


@contents_of.register
def _(sweep: Sweep) -> Contents:
    profiles = [p for row in sweep.rows if (p := row.scaled_profile) is not None]
    measured = sweep if profiles else None
    n_placements = count_of(sum(not row.same_as for row in sweep.rows), "placement")
    return Contents(
        verdict(sweep.tables) or f"Sweep of {n_placements}",
        [
            f"{n_placements}, ratios to {shorten(sweep.reference)} (below 1 is faster).",
            *_sweep_notes(sweep),
        ],
        {
            _HEADLINE: shown(sweep.tables)[_HEADLINE] if profiles else None,
            "Every placement": _varying(sweep.summary),
            "Hotspots": hotspots(sweep).summary if any(p.counters for p in profiles) else None,
        },
        {
            latency_ranking: measured,
            placement_latency: measured,
            where_time_goes: sweep if any(profile.counters for profile in profiles) else None,
            hosts: sweep if len(sweep.hosts) > 1 else None,
            accuracy_front: _labelled(sweep),
        },
        sweep.environment,
    )


@contents_of.register
def _(advice: Advice) -> Contents:
    sweep = advice.sweep
    answer, reasons, details = told(advice.verdict)
    return Contents(
        answer,
        reasons,
        {_HEADLINE: ranking(advice.summary), "Every candidate": _varying(advice.summary)},
        {
            latency_ranking: advice if any(row.profile for row in sweep.rows) else None,
            placement_graph: next(
                (c.row.scaled_profile for c in advice.candidates if c.judgement == BEST), None
            ),
            accuracy_front: _labelled(sweep),
        },
        sweep.environment,
        details,
    )


@contents_of.register
def _(best: Optimized) -> Contents:
    profiles = [p for row in best.sweep.rows if (p := row.scaled_profile) is not None]
    return Contents(
        f"Take {best.placement.label}. {best.verdict}",
        [*best.notes, *_sweep_notes(best.sweep)],
        {_HEADLINE: shown(best.sweep.tables)[_HEADLINE], "Tried on the way": best.history},
        {
            latency_ranking: best.sweep,
            placement_graph: next((p for p in profiles if p.affinity == best.affinity), None),
            predicted_measured: best.costs,
        },
        best.sweep.environment,
    )


@contents_of.register
def _(wrong: Wrong) -> Contents:
    return Contents(
        "What is wrong" if wrong.kind != "none" else "Nothing is wrong",
        repr(wrong).splitlines(),
        {_HEADLINE: wrong.culprits},
        {errors_along_model: wrong if wrong.op_errors else None},
    )


@contents_of.register
def _(costs: CostModel) -> Contents:
    notes = [*costs.notes]
    if not costs.validation_rows:
        notes.append(
            "Not validated: no placement was kept out of the fit. Calibrate with more time."
        )
    return Contents(
        f"Costs of {costs.graph.name} on {', '.join(costs.devices)}",
        notes,
        {"Validation": costs.validation, "Hotspots": hotspots(costs).summary},
        {op_types_by_device: costs, predicted_measured: costs},
    )


@contents_of.register
def _(curve: BlockCurve) -> Contents:
    return Contents(
        f"What each further layer on {curve.device} buys",
        [repr(curve), *_emulation_notes(curve.emulated.items())],
        {_HEADLINE: curve.to_frame()},
        {block_curve: curve},
    )


@contents_of.register
def _(plan: SchedulePlan) -> Contents:
    return Contents(
        "A plan for the parallel executor",
        _emulation_notes(plan.emulated.items()),
        {_HEADLINE: plan.to_frame(), "Schedule": plan.schedule.to_frame()},
        {schedule: plan},
    )


@contents_of.register
def _(found: Difference) -> Contents:
    return Contents(
        f"From {found.before.label} to {found.after.label}",
        [*repr(found).splitlines(), *_emulation_notes(found.emulated.items())],
        {
            _HEADLINE: found.summary,
            "Ops that move": found.ops,
            "Boundaries": found.boundaries,
            "Subgraphs": found.subgraphs,
            "Parts of the prediction": None if found.predicted_ns is None else found.parts,
        },
        {difference: found},
    )


@contents_of.register
def _(found: Evaluation) -> Contents:
    heading = f"Accuracy of {found.label}" if found.is_labelled else found.label
    return Contents(heading, [repr(found)], {_HEADLINE: found.summary, "Examples": found.examples})


@contents_of.register
def _(found: Recovered) -> Contents:
    tried = any(tried.only_fast is not None for tried in found.tried)
    return Contents(
        found.verdict,
        _sweep_notes(found.sweep),
        {
            _HEADLINE: found.summary,
            "Front": found.front,
            "Sensitivity": found.sensitivity,
            "Tried on calibration examples": found.trials,
        },
        {accuracy_front: found, sensitivity: found if tried else None},
        found.sweep.environment,
    )


@contents_of.register
def _(found: Classification) -> Contents:
    notes = _emulation_notes(found.emulated)
    return Contents(f"{found.image} on {found.placement}", notes, {_HEADLINE: found.table})


@contents_of.register
def _(frame: pd.DataFrame) -> Contents:
    heading = frame.attrs.get("title") or count_of(len(frame), "row")
    return Contents(heading, frame.attrs.get("notes", ()), {_HEADLINE: frame})


@contents_of.register
def _(given: go.Figure) -> Contents:
    layout: Any = given.layout
    title = re.sub("<[^>]*>", " ", layout.title.text or "")
    return Contents(title.strip() or "Figure", [], {}, {figure: given})


def figure(given: go.Figure) -> go.Figure:
    """Return a copy of a figure, to be drawn as it is."""
    return go.Figure(given)


def _labelled(sweep: Sweep) -> Sweep | None:
    """Return a sweep if it knows the accuracy of some row."""
    known = (row.evaluation is not None and row.evaluation.is_labelled for row in sweep.rows)
    return sweep if any(known) else None


def _varying(summary: pd.DataFrame) -> pd.DataFrame:
    """Leave out columns that are the same in all rows."""
    text = summary.astype("str")
    return summary.loc[:, [n for n in summary if n == "label" or text[n].nunique() > 1]]


def _sweep_notes(sweep: Sweep) -> list[str]:
    return [*_emulation_notes(sweep.environment.emulated), *sweep.notes]


def _emulation_notes(emulated: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{name} is emulated on {base}: structure and numbers are real, its times say nothing "
        "about a real device."
        for name, base in emulated
    ]


def gallery(result: Shown) -> dict[str, go.Figure]:
    """Return every view that applies to a result, by name.

    Raises
    ------
    ArgumentError
        Something that has no views.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> measured = hl.profile(model, "CPU", iterations=20, progress=False)
    >>> "placement_graph" in hl.views.gallery(measured)
    True
    """
    return dict(drawn(result))


def drawn(result: Any) -> Iterator[tuple[str, go.Figure]]:
    """Draw every view that applies to a result; views of other packages come last."""
    for view, subject in contents_of(result).figures.items():
        if subject is not None:
            yield view.__name__, view(subject)
    for name, extension in views.extensions().items():
        figure = extension.attempt(lambda view: view(result) if _takes(view, result) else None)
        if figure is not None:
            yield name, figure


def _takes(view: Callable[..., Any], result: Any) -> bool:
    """Whether a result is of the type that annotates the first parameter of a view."""
    kind = next(iter(hints_of(view).values()), None)
    return isinstance(kind, type | UnionType) and isinstance(result, kind)


_CONFIG = {"responsive": True, "displaylogo": False, "showSendToCloud": False}
_STYLE = Path(__file__).with_name("page.css")


def page(
    results: Shown | Iterable[Shown],
    file: str | os.PathLike[str],
    title: str = "hetero_lab",
    notes: Sequence[str] = (),
) -> None:
    """Write the figures and tables of some results to one self-contained HTML file.

    It begins with the answer; details are folded up. A page of several profiles alone begins with
    their comparison.

    Parameters
    ----------
    results
        A result: a Profile, a Sweep, a Verification, a table, a figure; or several of them. The
        ``attrs`` of a table may have its ``title`` and ``notes``.
    file
        The file; it needs no network and no other file.
    title
        Its heading.
    notes
        Sentences at the top of the page, before those of the results.

    Raises
    ------
    ArgumentError
        No result, or something that has no views.
    OutputPathError
        The file cannot be written.
    """
    one: Any = results
    several = [one] if isinstance(one, Shown) or not isinstance(one, Iterable) else list(one)
    if not several:
        raise ArgumentError("Give at least one result to make a page of.")
    check_writable(file)
    contents = [contents_of(result) for result in several]
    profiles = [result for result in several if isinstance(result, Profile)]
    numbers = itertools.count(1)
    parts = [*_notes(notes)]
    if 1 < len(profiles) == len(several):
        parts += _section(_side_by_side(profiles), [latency_samples(profiles)], numbers)
    if len(several) > 1:
        parts.append(_links(contents))
    for index, (result, about) in enumerate(zip(several, contents, strict=True)):
        figures = (figure for _, figure in drawn(result))
        parts += _section(about, figures, numbers, f"result-{index}")
    style = _STYLE.read_text(encoding="utf-8")
    name = html.escape(squeeze(title, 200))
    write_text(
        file,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head>\n<body><main><h1>{name}</h1>\n{''.join(parts)}</main></body>"
        "</html>\n",
    )


def _embedded(figure: go.Figure, number: int) -> str:
    """Return a figure as HTML; the first one brings plotly.js along for all."""
    layout: Any = figure.layout
    least, layout.width = layout.width or 0, None  # narrower, labels would lie on each other
    drawn = figure.to_html(
        full_html=False,
        include_plotlyjs=number == 1,
        config=_CONFIG,
        div_id=f"figure-{number}",
    )
    # It may scroll: by keys, too.
    held = f'<div style="min-width:{least}px">{drawn}</div>'
    label = f"figure {number}"
    return f'<div class="figure" tabindex="0" role="group" aria-label="{label}">{held}</div>\n'


def _side_by_side(profiles: Sequence[Profile]) -> Contents:
    frame = pd.concat([headline(profile) for profile in profiles], ignore_index=True)
    frame.insert(0, "label", [profile.label for profile in profiles])
    return Contents("Side by side", [f"These were {NOT_IN_TURN}."], {_HEADLINE: frame})


def _section(
    contents: Contents, figures: Iterable[go.Figure], numbers: Iterator[int], name: str = "all"
) -> Iterator[str]:
    """Give the answer, where it was measured, the headline, notes and figures; the rest folded."""
    tables = {title: frame for title, frame in contents.tables.items() if frame is not None}
    yield f"<section id={name}><h2>{html.escape(squeeze(contents.heading, 400))}</h2>\n"
    if contents.environment is not None:
        yield f'<p class="where">{html.escape(_where(contents.environment))}</p>\n'
    if _HEADLINE in tables:
        yield _table(tables.pop(_HEADLINE))
    yield from _notes(contents.notes)
    yield from map(_embedded, figures, numbers)
    if contents.details:
        yield f"<details><summary>Details</summary>{''.join(_notes(contents.details))}</details>\n"
    for title, frame in tables.items():
        yield f"<details><summary>{html.escape(title)}</summary>{_table(frame)}</details>\n"
    yield "</section>\n"


def _links(several: Sequence[Contents]) -> str:
    links = (
        f'<a href="#result-{index}">{html.escape(squeeze(contents.heading, 60))}</a>'
        for index, contents in enumerate(several)
    )
    return f"<nav>{' '.join(links)}</nav>\n"


def _where(environment: Environment) -> str:
    """Name the machine and the date of a measurement."""
    emulated = dict(environment.emulated)
    devices = [f"{name}: {full}" for name, full in environment.devices if name not in emulated]
    measured = datetime.datetime.fromisoformat(environment.measured_at)
    version = environment.openvino_version.partition("-")[0]
    cpus = count_of(environment.n_cpus, "CPU")
    facts = [f"Measured on {environment.host}", cpus, *devices, f"{measured:%d %B %Y, %H:%M %Z}"]
    return " · ".join([*facts, f"OpenVINO {version}"])


def _notes(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in filter(str.strip, sentences):
        yield f'<p class="note">{html.escape(squeeze(sentence, 500))}</p>\n'


def _table(frame: pd.DataFrame) -> str:
    table = html_table(frame)
    return f'<div class="table" tabindex="0" role="group" aria-label="table">{table}</div>\n'
