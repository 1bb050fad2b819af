"""The last measurement of a search: what it may return, beside what that has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hetero_lab.backend.bound import BoundModel
from hetero_lab.experiments.sweep.control import SweepControl
from hetero_lab.experiments.sweep.options import Conditions, Dimensions, RunOptions
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.experiments.sweep.sweep import measure_placements
from hetero_lab.experiments.sweep.variants import by_name
from hetero_lab.model.language import Scenario
from hetero_lab.placement.placement import Placement
from hetero_lab.runtime.timing import Stopwatch

_LEAST_TURNS = 2


def prove(
    bound: BoundModel,
    placements: Mapping[str, Placement],
    *,
    least: int,
    budget_s: float | None,
    conditions: Conditions,
    control: SweepControl,
    precision: float = 0.01,
    requests: int = 1,
    scenario: Scenario | None = None,
) -> Sweep:
    """Measure placements in turns; the first ``least`` of them whatever the budget.

    Parameters
    ----------
    bound, placements
        The model, and what is measured by label; the first one is the reference.
    least
        How many are measured, with the least turns, if the budget ends before any is.
    budget_s, precision
        As for :func:`hetero_lab.sweep`.
    requests
        Requests in flight.
    scenario
        What a language model generates.
    """
    measure = partial(
        measure_placements,
        by_name(bound),
        dimensions=Dimensions(requests=(requests,), baselines=False, scenario=scenario),
        conditions=conditions,
        control=control,
    )
    given = list(placements.values())
    options = RunOptions(precision=precision, counters=False)
    made = measure(given, options=options, watch=Stopwatch.start(budget_s))
    if made.interrupted or any(row.profile is not None for row in made.rows):
        return made
    few = RunOptions(turns=_LEAST_TURNS, counters=False)
    first = measure(given[:least], options=few, watch=Stopwatch.start(None))
    return replace(first, rows=(*first.rows, *made.rows[least:]))
