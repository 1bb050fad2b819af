"""The last measurement of a search: what it may return, beside what that has to beat."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hetero_lab.experiments.measure.budget import RunOptions
from hetero_lab.experiments.measure.trial import expand
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.session import Session, SweepControl
from hetero_lab.model.language import Scenario
from hetero_lab.placement.placement import Placement
from hetero_lab.runtime.timing import Stopwatch

_LEAST_TURNS = 2


def prove(
    session: Session,
    placements: Mapping[str, Placement],
    *,
    least: int,
    budget_s: float | None,
    control: SweepControl,
    precision: float = 0.01,
    requests: int = 1,
    reference: bool = True,
    store: str | os.PathLike[str] | None = None,
    scenario: Scenario | None = None,
) -> Sweep:
    """Measure placements in turns; the first ``least`` of them whatever the budget.

    Parameters
    ----------
    session, placements
        Measures what is given by label; the first one is the reference.
    least
        How many are measured, with the least turns, if the budget ends before any is.
    budget_s, precision, reference, store
        As for :func:`hetero_lab.sweep`.
    requests
        Requests in flight.
    scenario
        What a language model generates.
    """
    measure = partial(session.measure, control=control, store=store)
    grid = {"requests": [requests]}
    given = expand(
        session.models, list(placements.values()), grid, scenario=scenario, baselines=False
    )
    options = RunOptions(precision=precision, counters=False, reference=reference)
    made = measure(given, options, Stopwatch.start(budget_s))
    if made.interrupted or any(row.profile is not None for row in made.rows):
        return made
    few = RunOptions(turns=_LEAST_TURNS, counters=False, reference=reference)
    first = measure(given[:least], few, Stopwatch.start(None))
    return replace(first, rows=(*first.rows, *made.rows[least:]))
