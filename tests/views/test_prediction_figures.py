"""Predicted against measured."""

from __future__ import annotations

import dataclasses

from costs.test_difference import chain_costs

import hetero_lab as hl
from hetero_lab.costs.cost_model import CostModel, ValidationRow


def validated(*rows: tuple[str, float, float]) -> CostModel:
    return dataclasses.replace(
        chain_costs(), validation_rows=tuple(ValidationRow(*row) for row in rows)
    )


COSTS = validated(("<b>1</b>", 110.0, 100.0), ("2", 190.0, 200.0), ("3", 300.0, 300.0))


def test_the_figure_says_how_good_it_is():
    figure = hl.views.predicted_measured(COSTS)
    # (10 % + 5 % + 0 %) / 3; 1 − (100 + 100) / 20000
    assert "MAPE 5.0%, R² 0.990" in figure.layout.title.text
    points = figure.data[-1]
    assert list(points.x) == [100.0, 200.0, 300.0]
    assert list(points.y) == [110.0, 190.0, 300.0]
    assert "&lt;b&gt;1&lt;/b&gt;" in points.hovertext[0]
    assert "(+10.0%)" in points.hovertext[0]
    diagonal = figure.data[0]
    assert list(diagonal.x) == list(diagonal.y) == [84.0, 316.0]
    assert "(µs)" in figure.layout.xaxis.title.text


def test_r2_is_left_out_where_it_is_not_defined():
    figure = hl.views.predicted_measured(validated(("only", 10.0, 10.0)))
    assert "MAPE 0.0%" in figure.layout.title.text
    assert "R²" not in figure.layout.title.text


def test_what_was_not_validated_is_drawn_and_says_so():
    figure = hl.views.predicted_measured(chain_costs())
    assert "not validated" in figure.layout.title.text
    assert [note.text for note in figure.layout.annotations] == [
        "Not validated: calibrate with a larger budget"
    ]
    assert len(figure.data[-1].x) == 0
    assert "predicted_measured" not in hl.views.gallery(chain_costs())  # nothing to look at
    assert "predicted_measured" in hl.views.gallery(COSTS)
