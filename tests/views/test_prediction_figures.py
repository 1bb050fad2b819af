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
    # (10 % + 5 % + 0 %) / 3
    assert figure.layout.title.text == "Predicted, measured: MAPE 5.0%"
    points = figure.data[-1]
    assert list(points.x) == [100.0, 200.0, 300.0]
    assert list(points.y) == [110.0, 190.0, 300.0]
    assert "&lt;b&gt;1&lt;/b&gt;" in points.hovertext[0]
    assert "(+10.0%)" in points.hovertext[0]
    diagonal = figure.data[0]
    assert list(diagonal.x) == list(diagonal.y) == [84.0, 316.0]
    assert "(µs)" in figure.layout.xaxis.title.text


def test_r2_is_left_out_where_it_is_not_defined():
    exact = [(str(n), 10.0 + n, 10.0 + n) for n in range(4)]
    figure = hl.views.predicted_measured(validated(*exact, ("5", 20.0, 20.0)))
    assert "MAPE 0.0%, R² 1.000" in figure.layout.title.text
    for rows in (exact, [("same", 10.0, 10.0)] * 5):
        figure = hl.views.predicted_measured(validated(*rows))
        assert "MAPE 0.0%" in figure.layout.title.text
        assert "R²" not in figure.layout.title.text


def test_the_intervals_lie_within_the_frame():
    figure = hl.views.predicted_measured(validated(("1", 110.0, 100.0), ("2", 290.0, 300.0)))
    low, high = figure.layout.yaxis.range
    points = figure.data[-1]
    assert all(y + up < high for y, up in zip(points.y, points.error_y.array, strict=True))
    below = points.error_y.arrayminus
    assert all(y - down > low for y, down in zip(points.y, below, strict=True))


def test_what_was_not_validated_is_drawn_and_says_so():
    figure = hl.views.predicted_measured(chain_costs())
    assert "not validated" in figure.layout.title.text
    assert [note.text for note in figure.layout.annotations] == [
        "Not validated: calibrate with a larger budget"
    ]
    assert len(figure.data[-1].x) == 0
    assert "predicted_measured" not in hl.views.gallery(chain_costs())  # nothing to look at
    assert "predicted_measured" in hl.views.gallery(COSTS)
