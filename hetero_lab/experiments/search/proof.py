"""The last measurement of a search: what it may return, beside what that has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero_lab.backend.bound import BoundModel
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.experiments.sweep.sweep import sweep
from hetero_lab.placement.placement import Placement

_LEAST_TURNS = 2


def prove(
    bound: BoundModel,
    placements: Mapping[str, Placement],
    *,
    least: int,
    budget_s: float | None,
    precision: float = 0.01,
    **options: Any,
) -> Sweep:
    """Measure placements in turns; the first ``least`` of them whatever the budget.

    Parameters
    ----------
    bound, placements
        The model, and what is measured by label; the first one is the reference.
    least
        How many are measured, with the least turns, if the budget ends before any is.
    budget_s, precision, options
        As for :func:`hetero_lab.sweep`.
    """
    quiet = {"counters": False, "baselines": False, "progress": False, "core": bound.core}
    options = {**quiet, **options}
    given = list(placements.values())
    made = sweep(bound.prepared, given, precision=precision, budget_s=budget_s, **options)
    if made.interrupted or any(row.profile is not None for row in made.rows):
        return made
    first = sweep(bound.prepared, given[:least], turns=_LEAST_TURNS, budget_s=None, **options)
    return replace(first, rows=(*first.rows, *made.rows[least:]))
