"""The figures of a machine's plan: what each model gets, and how models slow each other down."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from hetero_lab.machine.demand import holds
from hetero_lab.machine.machine_plan import ALL_AUTO, OWN_BEST, MachinePlan
from hetero_lab.views.result_views import Contents
from hetero_lab.views.theme import GRID, TEXT, ThemedFigure, finish, plain, row_axis

_SETS = {
    "": ("the plan", "#0072B2"),
    "own_best_": (OWN_BEST, "#E69F00"),
    "auto_": (ALL_AUTO, "#7a7a7a"),
}
_APART, _ROOM = 0.27, 1.55  # of bars of one model; of an axis, for the words beside full bars
_LOSS = [[0, "rgba(213, 94, 0, 0.5)"], [1, "rgba(213, 94, 0, 0)"]]  # all is lost, nothing is
_MOST_WAYS = 20  # rows: as many as fit on a screen


def machine_shares(plan: MachinePlan) -> go.Figure:
    """Draw the share that each model gets: by the plan, each on its own best device, on AUTO."""
    table, figure = plan.summary, ThemedFigure()
    there = [p for p in _SETS if f"{p}share" in table and table[f"{p}share"].notna().all()]
    sets = [p for p in there if not p or (table[f"{p}way"] != table["way"]).any()]
    for number, prefix in enumerate(sets):
        name, colour = _SETS[prefix]
        rows = zip(*(table[f"{prefix}{n}"] for n in ("share", "way", "missed")), strict=True)
        texts = [
            f"{share:.0%} · {plain(way, 24)}" + ("" if holds(late) else f" · misses {late:.0%}")
            for share, way, late in rows
        ]
        x = (100.0 * table[f"{prefix}share"]).tolist()
        y = [at + _APART * (number - (len(sets) - 1) / 2) for at in range(len(table))]
        figure.add_bar(
            orientation="h",
            name=name,
            x=x,
            y=y,
            width=0.9 * _APART,
            marker={"color": colour, "line": {"width": 0}},
            hovertext=texts,
        )
        figure.add_scatter(
            x=x,
            y=y,
            mode="text",
            text=[f" {text}" for text in texts],
            showlegend=False,
            textposition="middle right",
            textfont={"color": TEXT, "size": 11},
        )
    most = 100.0 * max([1.0, *(table[f"{prefix}share"].max() for prefix in sets)])
    return finish(
        figure,
        "What each model gets",
        "of its rate alone on its best way, or of the rate that is asked for",
        120 + 80 * len(table),
        (60, 20, 100, 50),
        x={
            "title": "share",
            "range": [0, _ROOM * most],
            "gridcolor": GRID,
            "tickvals": [0, 50, 100],
            "ticktext": ["0", "50%", "100%"],
        },
        y=row_axis([plain(model, 24) for model in table["model"]]),
        barmode="overlay",
    )


def mutual_slowdown(plan: MachinePlan) -> go.Figure:
    """Draw which share of its rate alone is left to a model on a way beside one on another."""
    pairs = plan.slowdown
    one = _labels(pairs["model"], pairs["way"])
    other = _labels(pairs["beside"], pairs["beside_way"])
    every = sorted({*one, *other})
    names = every[:_MOST_WAYS]
    shares = pairs.assign(one=one, other=other).pivot_table("share", "one", "other")
    shares = shares.reindex(index=names, columns=names)
    texts = shares.map(lambda share: f"{share:.0%}", na_action="ignore").fillna("")
    places = list(range(len(names)))
    figure = ThemedFigure().add_heatmap(
        x=places,
        y=places,
        z=shares.to_numpy().tolist(),
        zmin=0,
        zmax=1,
        colorscale=_LOSS,
        showscale=False,
        xgap=3,
        ygap=3,
        texttemplate="%{text}",
        text=texts.values.tolist(),
        textfont={"color": TEXT, "size": 11},
    )
    n_more = len(every) - len(names)
    more = f" · {n_more} more ways are left out" if n_more else ""
    axis = {**row_axis(names), "ticks": ""}
    return finish(
        figure,
        "How models slow each other down",
        f"in a row: the share of its rate alone that is left to a model beside another one{more}",
        260 + 30 * len(names),
        (60, 20, 80, 60),
        x={**axis, "range": [-0.5, len(names) - 0.5], "tickangle": -40},
        y=axis,
    )


def _labels(models: pd.Series, ways: pd.Series) -> list[str]:
    return [f"{plain(m, 20)} · {plain(way, 24)}" for m, way in zip(models, ways, strict=True)]


def contents_of_plan(plan: MachinePlan) -> Contents:
    """Return what a page shows of a plan."""
    views = {machine_shares: plan.chosen.seen, mutual_slowdown: len(plan.slowdown)}
    return Contents({view: plan if there else None for view, there in views.items()})
