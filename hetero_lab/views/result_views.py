"""The views and tables of each kind of result.

To give another kind of result a place in galleries and pages, add an entry to ``KINDS``. Views
of other packages follow those of their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from hetero_lab import views
from hetero_lab.arguments import hints_of
from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.accuracy.classify import Classification
from hetero_lab.experiments.accuracy.evaluate import Evaluation
from hetero_lab.experiments.advise.advice import BEST, Advice
from hetero_lab.experiments.deployment.releases import Across
from hetero_lab.experiments.deployment.verification import Verification
from hetero_lab.experiments.faults.wrong import Wrong
from hetero_lab.experiments.optimize import Optimized
from hetero_lab.experiments.pipeline import PipelineAdvice
from hetero_lab.experiments.recover import Recovered
from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.experiments.results.profile.tables import headline
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.difference import Difference
from hetero_lab.planning.language_plans import BlockCurve
from hetero_lab.planning.list_scheduling import SchedulePlan
from hetero_lab.terminal import count_of
from hetero_lab.views.accuracy import accuracy_front, errors_along_model, sensitivity
from hetero_lab.views.block_curves import block_curve
from hetero_lab.views.graph.drawing import placement_graph
from hetero_lab.views.op_types import op_types_by_device, time_by_op_type
from hetero_lab.views.predictions import difference, predicted_measured
from hetero_lab.views.subgraph_lanes import schedule, timeline
from hetero_lab.views.sweeps import hosts, latency_ranking, placement_latency
from hetero_lab.views.text import NOT_IN_TURN
from hetero_lab.views.times import latency_samples, time_by_subgraph, where_time_goes

if TYPE_CHECKING:
    import plotly.graph_objects as go

Result: TypeAlias = (
    Profile
    | Sweep
    | Optimized
    | Advice
    | PipelineAdvice
    | CostModel
    | BlockCurve
    | SchedulePlan
    | Difference
    | Evaluation
    | Recovered
    | Wrong
    | Classification
    | Verification
    | Across
    | pd.DataFrame
)


def _always(_: Any) -> bool:
    return True


def _itself(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class View:
    """A figure of a result, or of a part of it, for those to which it applies."""

    name: str
    figure: Callable[[Any], go.Figure]
    applies: Callable[[Any], bool] = _always
    part: Callable[[Any], Any] = _itself

    def draw(self, result: Any) -> go.Figure:
        """Draw the figure."""
        return self.figure(self.part(result))


@dataclass(frozen=True)
class Listing:
    """A table of a result; ``is_detail`` if a page shows it only when asked."""

    title: str
    frame: Callable[[Any], pd.DataFrame]
    is_detail: bool = True
    applies: Callable[[Any], bool] = _always


@dataclass(frozen=True)
class Kind:
    """What is shown of one kind of result, and of ``several`` of them side by side."""

    takes: type
    heading: Callable[[Any], str]
    notes: Callable[[Any], Sequence[str]]
    views: tuple[View, ...]
    listings: tuple[Listing, ...]
    several_views: tuple[View, ...] = ()
    several_listings: tuple[Listing, ...] = ()
    several_note: str = ""


def gallery(result: Result) -> dict[str, go.Figure]:
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
    """Draw every view that applies to a result, last those of other packages."""
    for view in kind_of(result).views:
        if view.applies(result):
            yield view.name, view.draw(result)
    for name, extension in views.extensions().items():
        figure = extension.attempt(lambda view: view(result) if _takes(view, result) else None)
        if figure is not None:
            yield name, figure


def _takes(view: Callable[..., Any], result: Any) -> bool:
    """Whether a result is of the type that annotates the first parameter of a view."""
    kind = next(iter(hints_of(view).values()), None)
    return isinstance(kind, type | UnionType) and isinstance(result, kind)


def kind_of(result: Any) -> Kind:
    """Return what is shown of a result.

    Raises
    ------
    ArgumentError
        Something that has no views.
    """
    for kind in KINDS:
        if isinstance(result, kind.takes):
            return kind
    known = ", ".join(kind.takes.__name__ for kind in KINDS)
    raise ArgumentError(f"There are views of {known}, not of {type(result).__name__}.")


def _has_counters(profile: Profile) -> bool:
    return bool(profile.counters)


def _has_transitions(profile: Profile) -> bool:
    return bool(profile.counters) and len(profile.tables["transitions"]) > 0


def _is_split(profile: Profile) -> bool:
    return bool(profile.counters) and profile.partition.n_subgraphs > 1


def _has_timeline(profile: Profile) -> bool:
    return bool(profile.spans) or _is_split(profile)


def _any_counters(sweep: Sweep) -> bool:
    return any(row.profile is not None and row.profile.counters for row in sweep.rows)


def _any_measured(sweep: Sweep) -> bool:
    return any(row.profile is not None for row in sweep.rows)


def _has_accuracy(sweep: Sweep) -> bool:
    return any(row.evaluation is not None and row.evaluation.is_labelled for row in sweep.rows)


def _any_tried(found: Recovered) -> bool:
    return any(tried.only_fast is not None for tried in found.tried)


def _several_hosts(sweep: Sweep) -> bool:
    return len(sweep.hosts) > 1


def _profile_notes(profile: Profile) -> list[str]:
    notes = _emulation_notes(profile.environment.emulated)
    if profile.interrupted:
        notes.append("The measurement was interrupted; what is here is sound.")
    if not profile.partition.observed:
        notes.append("The subgraphs are predicted: what was compiled could not be observed.")
    return notes


def _sweep_notes(sweep: Sweep) -> list[str]:
    return [*_emulation_notes(sweep.environment.emulated), *sweep.notes]


def _costs_notes(costs: CostModel) -> list[str]:
    if costs.validation_rows:
        return list(costs.notes)
    return [
        *costs.notes,
        "Not validated: no placement was kept out of the fit. Calibrate with more time.",
    ]


def _difference_notes(difference: Difference) -> list[str]:
    return [*repr(difference).splitlines(), *_emulation_notes(list(difference.emulated.items()))]


def _emulation_notes(emulated: Sequence[tuple[str, str]]) -> list[str]:
    return [
        f"{name} is emulated on {base}: structure and numbers are real, its times say nothing "
        "about a real device."
        for name, base in emulated
    ]


def _slowest(profile: Profile) -> pd.DataFrame:
    frame = profile.tables["counters"]
    frame = frame.loc[frame["status"] == "EXECUTED"]
    columns = [
        "subgraph", "device", "kind", "op", "node_name", "node_type", "exec_type", "precision",
        "real_time_us",
    ]  # fmt: skip
    return frame.sort_values("real_time_us", ascending=False, kind="stable").loc[:, columns]


def _final(advice: Advice) -> Sweep:
    return advice.sweep


def _advised(advice: Advice) -> Profile | None:
    """Return the profile of what is advised, if anything was measured."""
    return next((c.row.profile for c in advice.candidates if c.judgement == BEST), None)


def _judged(advice: Advice) -> pd.DataFrame:
    columns = ["label", "judgement", "why", "stage", "median_us", "ratio", "execution_devices"]
    return advice.summary.loc[:, columns]


def _best(best: Optimized) -> Profile | None:
    """Return the profile of the placement that was chosen."""
    for row in best.sweep.rows:
        if row.profile is not None and row.profile.affinity == best.affinity:
            return row.profile
    return None


def _ranking(sweep: Sweep) -> pd.DataFrame:
    return sweep.ranking.drop(columns=["labels", "variant"], errors="ignore")


def _table(name: str) -> Callable[[Any], pd.DataFrame]:
    return lambda result: result.tables[name]


def _rows(profiles: Sequence[Profile]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.concat([headline(profile) for profile in profiles], ignore_index=True)
    frame.insert(0, "label", [profile.label for profile in profiles])
    return frame


KINDS = (
    Kind(
        takes=Profile,
        heading=lambda profile: f"{profile.graph.name} on {profile.label}",
        notes=_profile_notes,
        views=(
            View("placement_graph", placement_graph),
            View("latency_samples", latency_samples),
            View("time_by_subgraph", time_by_subgraph, _is_split),
            View("time_by_op_type", time_by_op_type, _has_counters),
            View("timeline", timeline, _has_timeline),
        ),
        listings=(
            Listing("Summary", headline, is_detail=False),
            Listing("Subgraphs", lambda profile: profile.tables["subgraphs"].drop(columns="ops")),
            Listing("Boundaries", _table("boundaries"), applies=lambda p: p.partition.boundaries),
            Listing("Precision transitions", _table("transitions"), applies=_has_transitions),
            Listing("Throughput", _table("throughput"), applies=lambda p: bool(p.throughput)),
            Listing("Idle devices", _table("idle"), applies=lambda p: bool(p.spans)),
            Listing("Slowest nodes", _slowest, applies=_has_counters),
            Listing("Agreement", _table("agreement"), applies=lambda p: bool(p.agreement)),
        ),
        several_views=(View("latency_samples", latency_samples),),
        several_listings=(Listing("Summary", _rows, is_detail=False),),
        several_note=f"These were {NOT_IN_TURN}.",
    ),
    Kind(
        takes=Sweep,
        heading=lambda sweep: f"Sweep of {sum(not row.same_as for row in sweep.rows)} placements",
        notes=_sweep_notes,
        views=(
            View("latency_ranking", latency_ranking, _any_measured),
            View("placement_latency", placement_latency, _any_measured),
            View("where_time_goes", where_time_goes, _any_counters),
            View("hosts", hosts, _several_hosts),
            View("accuracy_front", accuracy_front, _has_accuracy),
        ),
        listings=(
            Listing("Ranking", _ranking, is_detail=False, applies=_any_measured),
            Listing("Summary", _table("summary")),
        ),
    ),
    Kind(
        takes=Advice,
        heading=lambda advice: f"What to deploy: {advice.best.label}",
        notes=lambda advice: advice.verdict.splitlines(),
        views=(
            View("latency_ranking", latency_ranking, lambda a: _any_measured(a.sweep), _final),
            View("placement_graph", placement_graph, lambda a: bool(_advised(a)), _advised),
            View("accuracy_front", accuracy_front, lambda a: _has_accuracy(a.sweep), _final),
        ),
        listings=(
            Listing("Candidates", _judged, is_detail=False),
            Listing("Summary", lambda advice: advice.summary),
        ),
    ),
    Kind(
        takes=PipelineAdvice,
        heading=lambda advice: f"What to deploy: {', '.join(advice.best)} together",
        notes=lambda advice: advice.verdict.splitlines(),
        views=(),
        listings=(Listing("Combinations", lambda advice: advice.summary, is_detail=False),),
    ),
    Kind(
        takes=Optimized,
        heading=lambda best: f"The best placement of {best.costs.graph.name}",
        notes=lambda best: [best.verdict, *best.notes, *_sweep_notes(best.sweep)],
        views=(
            View("latency_ranking", latency_ranking, part=lambda best: best.sweep),
            View("placement_graph", placement_graph, lambda best: bool(_best(best)), part=_best),
            View("predicted_measured", predicted_measured, part=lambda best: best.costs),
        ),
        listings=(
            Listing("Ranking", lambda best: _ranking(best.sweep), is_detail=False),
            Listing("Tried on the way", lambda best: best.history),
        ),
    ),
    Kind(
        takes=Wrong,
        heading=lambda wrong: "What is wrong" if wrong.kind != "none" else "Nothing is wrong",
        notes=lambda wrong: repr(wrong).splitlines(),
        views=(View("errors_along_model", errors_along_model, lambda w: bool(w.op_errors)),),
        listings=(Listing("Culprits", lambda wrong: wrong.culprits, is_detail=False),),
    ),
    Kind(
        takes=CostModel,
        heading=lambda costs: f"Costs of {costs.graph.name} on {', '.join(costs.devices)}",
        notes=_costs_notes,
        views=(
            View("op_types_by_device", op_types_by_device),
            View("predicted_measured", predicted_measured),
        ),
        listings=(
            Listing("Validation", lambda costs: costs.validation),
            Listing("Units", lambda costs: costs.to_frame()),
        ),
    ),
    Kind(
        takes=BlockCurve,
        heading=lambda curve: f"What each further layer on {curve.device} buys",
        notes=lambda curve: [repr(curve), *_emulation_notes(list(curve.emulated.items()))],
        views=(View("block_curve", block_curve),),
        listings=(Listing("Layers", lambda curve: curve.to_frame(), is_detail=False),),
    ),
    Kind(
        takes=SchedulePlan,
        heading=lambda _: "A plan for the parallel executor",
        notes=lambda plan: _emulation_notes(list(plan.emulated.items())),
        views=(View("schedule", schedule),),
        listings=(
            Listing("Against the baselines", lambda plan: plan.to_frame(), is_detail=False),
            Listing("Schedule", lambda plan: plan.schedule.to_frame()),
        ),
    ),
    Kind(
        takes=Difference,
        heading=lambda found: f"From {found.before.label} to {found.after.label}",
        notes=_difference_notes,
        views=(View("difference", difference),),
        listings=(
            Listing("Summary", lambda found: found.summary, is_detail=False),
            Listing("Ops that move", lambda found: found.ops),
            Listing("Boundaries", lambda found: found.boundaries),
            Listing("Subgraphs", lambda found: found.subgraphs),
            Listing(
                "Parts of the prediction",
                lambda found: found.parts,
                applies=lambda found: found.predicted_parts is not None,
            ),
        ),
    ),
    Kind(
        takes=Evaluation,
        heading=lambda found: f"Accuracy of {found.label}" if found.is_labelled else found.label,
        notes=lambda found: [repr(found)],
        views=(),
        listings=(
            Listing("Summary", lambda found: found.summary, is_detail=False),
            Listing("Examples", lambda found: found.examples),
        ),
    ),
    Kind(
        takes=Recovered,
        heading=lambda found: f"{found.costs.graph.name}: accuracy and latency",
        notes=lambda found: [
            found.verdict,
            *_emulation_notes(found.sweep.environment.emulated),
            *found.sweep.notes,
        ],
        views=(
            View("accuracy_front", accuracy_front),
            View("sensitivity", sensitivity, _any_tried),
        ),
        listings=(
            Listing("Summary", lambda found: found.summary, is_detail=False),
            Listing("Front", lambda found: found.front),
            Listing("Sensitivity", lambda found: found.sensitivity),
            Listing("Tried on calibration examples", lambda found: found.trials),
        ),
    ),
    Kind(
        takes=Classification,
        heading=lambda found: f"{found.image} on {found.placement}",
        notes=lambda found: _emulation_notes(found.emulated),
        views=(),
        listings=(Listing("Classes", lambda found: found.table, is_detail=False),),
    ),
    Kind(
        takes=Verification,
        heading=lambda found: "The contract is kept" if found.ok else "The contract is broken",
        notes=lambda found: [found.verdict, *found.changes],
        views=(),
        listings=(Listing("Parts", lambda found: found.summary, is_detail=False),),
    ),
    Kind(
        takes=Across,
        heading=lambda found: f"The contract with {len(found.releases)} releases",
        notes=lambda found: str(found).splitlines(),
        views=(),
        listings=(Listing("Parts", lambda found: found.summary, is_detail=False),),
    ),
    Kind(
        takes=pd.DataFrame,
        heading=lambda frame: frame.attrs.get("title") or count_of(len(frame), "row"),
        notes=lambda frame: frame.attrs.get("notes", ()),
        views=(),
        listings=(Listing("Rows", _itself, is_detail=False),),
    ),
)
