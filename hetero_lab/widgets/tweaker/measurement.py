"""Measure a placement beside the automatic one, in worker processes, and keep a history of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from hetero_lab.backend.bound import BoundModel
from hetero_lab.experiments.measure.budget import RunOptions
from hetero_lab.experiments.measure.records import AnyRecord, Compiled, Turn
from hetero_lab.experiments.measure.trial import by_name, expand
from hetero_lab.experiments.measure.workers.launch import Workers
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.session import Conditions, Session, SweepControl
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.runtime.timing import Stopwatch

if TYPE_CHECKING:
    import pandas as pd

AUTOMATIC = "automatic"
_LEAST_TURNS = 8  # of each placement, before a measurement may end


@dataclass(frozen=True)
class Attempt:
    """A placement that was measured, or could not be.

    ``status`` is ``ok`` or the cause, and ``detail`` the message of the runtime. ``ratio`` is to
    the automatic placement in the same run; below 1 is faster. ``median_us`` is that ratio times
    what the automatic placement took when it was measured first, so that rows of several runs can
    be compared; ``raw_median_us`` is the median of the row's own turns.
    """

    label: str
    affinity: Affinity
    status: str = "ok"
    detail: str = ""
    n_subgraphs: int | None = None
    boundary_bytes: int | None = None
    predicted_us: float | None = None
    median_us: float | None = None
    ci95_low_us: float | None = None
    ci95_high_us: float | None = None
    ratio: float | None = None
    ratio_ci95_low: float | None = None
    ratio_ci95_high: float | None = None
    raw_median_us: float | None = None


def progress_of(
    n_placements: int, budget_s: float, tell: Callable[[float, str], object]
) -> Callable[[AnyRecord], None]:
    """Return a function that tells, for each record of a sweep, a share of 0 to 1 and a text."""
    watch, seen = Stopwatch.start(budget_s), Counter[type]()

    def take(record: AnyRecord) -> None:
        seen[type(record)] += 1
        text = f"compiled {seen[Compiled]} of {n_placements}"
        if seen[Turn]:
            text = f"measuring: turn {seen[Turn]} of at least {_LEAST_TURNS * n_placements}"
        tell(min(1.0, watch.elapsed_s / budget_s), text)

    return take


def attempt_label(history: Sequence[Attempt], affinity: Affinity, changed: str) -> str:
    """Name a row by its number and origin; an affinity that was measured before keeps its name."""
    number = 1 + sum(tried.label != AUTOMATIC for tried in history)
    before = next((tried.label for tried in history if tried.affinity == affinity), None)
    return f"{number}. {changed if before is None else f'again {before}'}"


def measure(
    bound: BoundModel,
    affinities: Mapping[str, Affinity],
    device_properties: Mapping[str, Mapping[str, Any]],
    budget_s: float,
    worker_command: Sequence[str] | None,
    control: SweepControl,
) -> list[Attempt]:
    """Measure affinities by label, the automatic one first; empty if ``control`` stopped it."""
    placements = [
        Placement(a, name, {d: device_properties[d] for d in a.devices if d in device_properties})
        for name, a in affinities.items()
    ]
    conditions = Conditions(workers=Workers(command=worker_command))
    with Session(by_name(bound), conditions) as session:
        measured = session.measure(
            expand(session.models, placements, baselines=False),
            RunOptions(counters=False, reference=False),
            Stopwatch.start(budget_s),
            control=control,
        )
    if control.is_stopped:
        return []
    # A placement cannot have the label of the automatic one, so rows keep the order.
    rows = measured.summary.to_dict("records")
    return [_tried(row, a) for row, a in zip(rows, affinities.values(), strict=True)]


def _tried(row: Mapping[Any, Any], affinity: Affinity) -> Attempt:
    known: dict[str, Any] = {"status": row["status"], "detail": row["detail"]}
    if row["status"] == "ok":
        known = {name: row[name] for name in _NUMBERS if name in row and row[name] == row[name]}
    return Attempt(row["label"], affinity, **known)


def recorded_attempts(sweep: Sweep, costs: CostModel) -> list[Attempt]:
    """Return what a recorded sweep measured."""
    rows = zip(sweep.summary.to_dict("records"), sweep.rows, strict=True)
    tried = [_tried(row, r.profile.affinity) for row, r in rows if r.profile is not None]
    return [replace(t, predicted_us=costs.predict_us(t.affinity)) for t in tried]


def new_rows(history: Sequence[Attempt], rows: Sequence[Attempt]) -> list[Attempt]:
    """Return the rows that a run adds, on the scale of the history.

    A run begins with the automatic placement, which has a new row only if nothing else was run.
    """
    first = next((t for t in history if t.label == AUTOMATIC and t.median_us), None)
    if first is None or first.median_us is None or rows[0].median_us is None:
        return list(rows)
    scale = first.median_us / rows[0].median_us
    return [_scaled(row, scale) for row in rows if row.label != AUTOMATIC or len(rows) == 1]


def _scaled(tried: Attempt, scale: float) -> Attempt:
    known = {name: getattr(tried, name) for name in ("median_us", "ci95_low_us", "ci95_high_us")}
    return replace(tried, **{name: scale * us for name, us in known.items() if us is not None})


_NUMBERS = tuple(f.name for f in fields(Attempt))[4:]


def history_frame(history: Sequence[Attempt]) -> pd.DataFrame:
    """Return one row per measurement: label, status, structure, latency, ratio to automatic."""
    import pandas as pd

    columns = ["label", "status", *_NUMBERS, "detail"]
    rows = [{name: getattr(tried, name) for name in columns} for tried in history]
    frame = pd.DataFrame(rows, columns=columns)
    kinds = dict.fromkeys(_NUMBERS, "float64") | {
        "label": "str", "status": "str", "detail": "str",
        "n_subgraphs": "Int64", "boundary_bytes": "Int64",
    }  # fmt: skip
    return frame.astype(kinds)
