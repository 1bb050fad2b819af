"""The figures of an advice: what a page shows of it."""

from __future__ import annotations

from hetero_lab.accuracy.accuracy_figures import accuracy_front
from hetero_lab.advise.advice import BEST, Advice
from hetero_lab.views.graph_drawing import placement_graph
from hetero_lab.views.result_views import Contents, labelled, varying
from hetero_lab.views.sweep_figures import latency_ranking


def contents_of_advice(advice: Advice) -> Contents:
    """Return what a page shows of an advice."""
    best = (c.row.scaled_profile for c in advice.candidates if c.judgement == BEST)
    searched = advice.optimized
    if searched is not None and searched.split and len(advice.best.affinity.devices) == 1:
        # A single device has no picture; what was searched has one.
        rows = searched.sweep.rows
        best = (row.scaled_profile for row in rows if row.label == searched.split.label)
    return Contents(
        {
            latency_ranking: advice if any(row.profile for row in advice.sweep.rows) else None,
            placement_graph: next(best, None),
            accuracy_front: labelled(advice.sweep),
        },
        tables={"Summary": varying(advice.summary)},
    )
