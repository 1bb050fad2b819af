"""The presentation of results: figures in a gallery; sentences, figures and tables on a page."""

from __future__ import annotations

import datetime
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import plotly.graph_objects as go

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.difference import Difference
from hetero_lab.errors import ArgumentError
from hetero_lab.lookup import annex, annex_for
from hetero_lab.planning.schedules import SchedulePlan
from hetero_lab.result import Displayed, Result
from hetero_lab.results.environment import Environment
from hetero_lab.results.profile_report import differing
from hetero_lab.results.profile_result import Profile
from hetero_lab.results.profile_tables import HEADLINE, summary_row
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.search.hotspots import hotspots
from hetero_lab.search.optimize import Optimized
from hetero_lab.tables import check_writable, table_cells, template, time_text, write_text
from hetero_lab.terminal import count_of
from hetero_lab.views.cost_figures import (
    difference,
    op_types_by_device,
    predicted_measured,
    time_by_op_type,
)
from hetero_lab.views.graph_drawing import placement_graph
from hetero_lab.views.sweep_figures import hosts, latency_ranking, placement_latency
from hetero_lab.views.theme import NOT_IN_TURN, squeeze
from hetero_lab.views.time_figures import (
    latency_samples,
    schedule,
    time_by_subgraph,
    timeline,
    where_time_goes,
)

Shown: TypeAlias = Displayed | pd.DataFrame | go.Figure


@dataclass(frozen=True)
class Contents:
    """The content of a page beyond what a notebook shows of a result.

    ``figures`` maps each view to what it draws, ``None`` where it does not apply. A ``heading``
    stands for a result that has no answer. ``tables`` are by title, folded up below the figures.
    """

    figures: Mapping[Callable[..., go.Figure], Any] = field(default_factory=dict)
    heading: str = ""
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)


def contents_of(result: Any) -> Contents:
    """Return what a page adds about a result; ArgumentError if it cannot be shown."""
    match result:
        case Profile():
            with_counters = result if result.counters else None
            split = with_counters if result.partition.n_subgraphs > 1 else None
            figures = {
                placement_graph: result,
                latency_samples: result,
                time_by_subgraph: split,
                time_by_op_type: with_counters,
                timeline: result if result.spans else split,
            }
            return Contents(figures, tables=_hotspots(with_counters))
        case Sweep():
            profiles = [row.profile for row in result.rows if row.profile is not None]
            measured = result if profiles else None
            with_counters = result if any(profile.counters for profile in profiles) else None
            figures = {
                latency_ranking: measured,
                placement_latency: measured,
                where_time_goes: with_counters,
                hosts: result if len(result.hosts) > 1 else None,
                **({annex("accuracy of a sweep"): result} if labelled(result) else {}),
            }
            tables = {"Summary": varying(result.summary), **_hotspots(with_counters)}
            return Contents(figures, tables=tables)
        case Optimized():
            # A single device has no picture, the best split has one even where it lost.
            profiles = {row.label: row.scaled_profile for row in result.sweep.rows}
            drawn = profiles.get((result.split or result.placement).label)
            if drawn is not None and result.split is not None:
                drawn = replace(drawn, label=f"{drawn.label}, not taken")
            figures = {
                latency_ranking: result.sweep,
                placement_graph: drawn,
                predicted_measured: _validated(result.costs),
            }
            return Contents(figures, f"Take {result.configuration}. {result.verdict}")
        case CostModel():
            figures = {op_types_by_device: result, predicted_measured: _validated(result)}
            heading = f"Costs of {result.graph.name} on {', '.join(result.devices)}"
            return Contents(
                figures, heading, {"Validation": result.validation, **_hotspots(result)}
            )
        case SchedulePlan():
            return Contents({schedule: result})
        case Difference():
            heading = f"From {result.before.label} to {result.after.label}"
            tables = {"Boundaries": result.boundaries, "Subgraphs": result.subgraphs}
            return Contents({difference: result}, heading, tables)
        case go.Figure():
            layout: Any = result.layout
            title = re.sub("<[^>]*>", " ", layout.title.text or "")
            return Contents({figure: result}, title.strip() or "Figure")
        case pd.DataFrame():
            heading = result.attrs.get("title") or count_of(len(result), "row")
            return Contents({}, heading, {"": result})
        case Displayed():
            contents_in_annex = annex_for("page", result)
            return contents_in_annex(result) if contents_in_annex else Contents()
    raise ArgumentError(f"There are no views of {type(result).__name__}, only of results.")


def _hotspots(source: Profile | Sweep | CostModel | None) -> dict[str, pd.DataFrame]:
    return {} if source is None else {"Hotspots": hotspots(source).summary}


def _validated(costs: CostModel | None) -> CostModel | None:
    return costs if costs is not None and costs.validation_rows else None


def figure(source: go.Figure) -> go.Figure:
    """Return a copy of a figure, to be drawn as it is."""
    return type(source)(source)


def labelled(sweep: Sweep) -> Sweep | None:
    """Return a sweep if it knows the accuracy of some row."""
    flags = (row.evaluation is not None and row.evaluation.is_labelled for row in sweep.rows)
    return sweep if any(flags) else None


def varying(summary: pd.DataFrame) -> pd.DataFrame:
    """Leave out columns that are the same in all rows."""
    varies = summary.astype("str").nunique() > 1
    return summary.loc[:, varies | (summary.columns == "configuration")]


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
    for view, subject in contents_of(result).figures.items():
        if subject is not None:
            yield view.__name__, view(subject)


_CONFIG = {"responsive": True, "displaylogo": False, "showSendToCloud": False}
_STYLE = Path(__file__).with_name("page.css")


def page(
    results: Shown | Iterable[Shown],
    file: str | os.PathLike[str],
    title: str = "",
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
        Its heading, by default with the names of the models.
    notes
        Sentences at the top of the page, before those of the results.

    Raises
    ------
    ArgumentError
        No result, or something that has no views.
    OutputPathError
        The file cannot be written.
    """
    check_writable(file)
    write_text(file, page_text(results, title, notes))


def page_text(results: Shown | Iterable[Shown], title: str = "", notes: Sequence[str] = ()) -> str:
    """Return the HTML of :func:`page`."""
    one: Any = results
    several = [one] if isinstance(one, Shown) or not isinstance(one, Iterable) else list(one)
    if not several:
        raise ArgumentError("Give at least one result to make a page of.")
    for result in several:
        contents_of(result)  # what has no views is refused before anything is drawn
    profiles = [result for result in several if isinstance(result, Profile)]
    numbers = itertools.count(1)
    sections: list[dict[str, Any]] = []
    if 1 < len(profiles) == len(several):
        sections.append(_section(_side_by_side(profiles), [latency_samples(profiles)], numbers))
    for index, result in enumerate(several):
        figures = (figure for _, figure in drawn(result))
        sections.append(_section(result, figures, numbers, f"result-{index}"))
    models = dict.fromkeys(_model_of(result) for result in several if isinstance(result, Displayed))
    return template("page.html").render(
        name=squeeze(title or " · ".join(filter(None, ["hetero_lab", *models])), 200),
        style=_STYLE.read_text(encoding="utf-8"),
        remarks=_notes([*notes, *itertools.islice(_apart(several), 4)]),
        sections=sections,
        links=[_link(result) for result in several] if len(several) > 1 else [],
    )


def _embedded(figure: go.Figure, number: int) -> dict[str, Any]:
    """Return a figure as HTML; the first one brings plotly.js along for all."""
    layout: Any = figure.layout
    least_px, layout.width = layout.width or 0, None  # narrower, labels would lie on each other
    drawn = figure.to_html(
        full_html=False, include_plotlyjs=number == 1, config=_CONFIG, div_id=f"figure-{number}"
    )
    return {"number": number, "least_px": least_px, "drawn": drawn}


def _side_by_side(profiles: Sequence[Profile]) -> pd.DataFrame:
    frame = pd.DataFrame([summary_row(profile) for profile in profiles], columns=HEADLINE)
    frame.attrs.update(title="Side by side", notes=[f"These were {NOT_IN_TURN}."])
    return frame


def _apart(results: Sequence[Any]) -> Iterator[str]:
    """Say what differs where a placement has another latency in another result."""
    earlier: list[tuple[Profile, str]] = []
    for result in results:
        sweep, kind = getattr(result, "sweep", result), type(result).__name__.lower()
        rows = sweep.rows if isinstance(sweep, Sweep) else ()
        current = [
            (profile, kind)
            for row in rows
            if row.requests == 1 and not row.same_as and (profile := row.scaled_profile)
        ]
        current = [(result, kind)] if isinstance(result, Profile) else current
        for both in itertools.product(earlier, current):
            one, other = (profile for profile, _ in both)
            lows, highs = zip(one.latency.ci95_us, other.latency.ci95_us, strict=True)
            is_same = one.label == other.label and one.affinity == other.affinity
            if is_same and max(lows) > min(highs):
                sentences = (
                    f"{squeeze(p.configuration, 80)} takes {time_text(p.latency.median_us)} in the "
                    f"{where}"
                    for p, where in both
                )
                differ = ", ".join(filter(None, [differing(one, other), "time and load"]))
                yield f"{', '.join(sentences)}. What differs: {differ}; {NOT_IN_TURN}."
        earlier += current


def _section(
    result: Any, figures: Iterable[go.Figure], numbers: Iterator[int], name: str = "all"
) -> dict[str, Any]:
    """Return the part of a page about one result: as in a notebook, with figures and more tables.

    The heading is the answer, else the first sentence. Below come the place, the table without a
    title, text and figures; the other tables are folded up, and so are the details.
    """
    contents, details = contents_of(result), ()
    heading, tables, environment = contents.heading, contents.tables, None
    sentences = getattr(result, "attrs", {}).get("notes", ())
    if isinstance(result, Displayed):
        environment = getattr(getattr(result, "sweep", result), "environment", None)
        environment = environment if isinstance(environment, Environment) else None
        emulated = dict(getattr(environment or result, "emulated", ()))
        heading, details = heading or result._answer(), result._details()
        sentences = [*result._sentences(), *getattr(result, "notes", ())]
        if not heading:
            heading, _, sentences[0] = sentences[0].partition("\n")
        sentences += [
            f"{name} is emulated on {base}: structure and numbers are real, its times say nothing "
            "about a real device."
            for name, base in emulated.items()
        ]
        front = (result.sweep if isinstance(result, Optimized) else result)._front_tables()
        if isinstance(result, CostModel):
            front = {"Units": result.to_frame()}
        frames = dict(result.tables) if isinstance(result, Result) else {}
        tables = {
            title[:1].upper() + title[1:].replace("_", " "): frame
            for title, frame in [*frames.items(), *tables.items(), *front.items()]
            if title in front or not any(frame is each for each in front.values())
        }
    tables = {title: frame for title, frame in tables.items() if len(frame)}
    first = tables.pop("", None)
    return {
        "id": name,
        "heading": squeeze(heading, 400),
        "where": "" if environment is None else _where(environment),
        "first": None if first is None else table_cells(first),
        "sentences": _notes(text for text in dict.fromkeys(sentences) if text != heading),
        "figures": list(map(_embedded, figures, numbers)),
        "details": _notes(details),
        "tables": [(title, table_cells(frame)) for title, frame in tables.items()],
    }


def _model_of(result: Any) -> str:
    """Return the name of the model of a result, or of the first placement of a sweep."""
    rows = getattr(getattr(result, "sweep", result), "rows", ())
    profiles = (profile for row in rows if (profile := getattr(row, "profile", None)))
    return getattr(getattr(next(profiles, result), "graph", None), "name", "")


_KINDS = {"CostModel": "Costs", "SchedulePlan": "Plan", "Optimized": "Answer"}


def _link(result: Any) -> str:
    """Return what the link to a section says: the name of a profile, the kind of another result."""
    if isinstance(result, Profile):
        return squeeze(result.configuration, 60)
    kind = type(result).__name__ if isinstance(result, Displayed) else contents_of(result).heading
    return squeeze(_KINDS.get(kind, kind), 60)


def _where(environment: Environment) -> str:
    """Name the machine and the date of a measurement."""
    emulated = dict(environment.emulated)
    devices = [f"{name}: {full}" for name, full in environment.devices if name not in emulated]
    measured = datetime.datetime.fromisoformat(environment.measured_at)
    version = environment.openvino_version.partition("-")[0]
    cpus = count_of(environment.n_cpus, "CPU")
    facts = [f"Measured on {environment.host}", cpus, *devices, f"{measured:%d %B %Y, %H:%M %Z}"]
    return " · ".join([*facts, f"OpenVINO {version}"])


def _notes(texts: Iterable[str]) -> list[str]:
    """Return texts as they are, and those of one line shortened."""
    return [text if "\n" in text else squeeze(text, 500) for text in texts if text.strip()]
