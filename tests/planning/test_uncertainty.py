"""Predictions have an interval that follows from validation and from what was fitted."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from planning.test_difference import chain_costs

import hetero_lab as hl
from hetero_lab.planning.cost_model import CostModel, ValidationRow
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.prediction import Uncertainty


def validated(costs: CostModel, *errors: float) -> CostModel:
    rows = [ValidationRow(f"v{n}", 100.0 * (1 + e), 100.0) for n, e in enumerate(errors)]
    return replace(costs, validation_rows=tuple(rows))


def test_nine_of_ten_further_placements_lie_in_their_interval():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        distances, here = rng.uniform(0.0, 1.0, 12), rng.uniform(0.0, 1.0)
        errors = rng.normal(0.0, 0.05, 12) * (1.0 + distances)
        scale = math.sqrt(float(np.mean((errors / (1.0 + distances)) ** 2)))
        known = Uncertainty(np.zeros((0, 3)), scale, 12)
        true = rng.normal(0.0, 0.05) * (1.0 + here)
        inside.append(abs(true) <= math.log(known.factor(here)))
    assert 0.86 <= np.mean(inside) <= 0.94


def test_what_is_unlike_the_fitted_placements_is_less_certain():
    known = Uncertainty(np.array([[100.0, 0.0, 0.0], [50.0, 50.0, 10.0]]), 0.05, 8)
    near, far = np.array([50.0, 50.0, 10.0]), np.array([10.0, 50.0, 200.0])
    assert known.distance(near) == 0.0
    assert known.distance(far) == pytest.approx((40 + 190) / 260)
    sure, unsure = known.interval(110.0, near), known.interval(260.0, far)
    assert sure.low_us * sure.high_us == pytest.approx(110.0**2)
    assert unsure.high_us / unsure.us > sure.high_us / sure.us > 1.05
    # Only the parts that differ can be wrong about a difference.
    assert known.margin_us(near, near) == 0.0
    assert known.margin_us(near, near + np.array([0.0, 0.0, 10.0])) < known.margin_us(near, far)


def test_costs_predict_with_an_interval_and_keep_it_in_their_file(tmp_path):
    costs = chain_costs()
    affinity = hl.Affinity.on_one(costs.graph, costs.devices[0])
    nothing = costs.predict(affinity)
    assert (nothing.low_us, nothing.high_us) == (0.0, math.inf)
    parts = costs.predictor(affinity).evaluation.parts_us
    assert sum(parts) == pytest.approx(costs.predict_us(affinity) - costs.constant_us)
    known = replace(validated(costs, 0.05, -0.04, 0.03), seen_us=(tuple(parts),))
    found = known.predict(affinity)
    assert found.us == costs.predict_us(affinity)
    assert 0.8 * found.us < found.low_us < found.us < found.high_us < 1.3 * found.us
    path = tmp_path / "costs.json"
    known.to_json(path)
    assert CostModel.from_json(path).predict(affinity) == found
    # A file of an older version holds neither distances nor what was fitted.
    data = json.loads(path.read_text())
    del data["seen_us"]
    data["validation"] = [row[:4] for row in data["validation"]]
    path.write_text(json.dumps(data))
    assert CostModel.from_json(path).predict(affinity).high_us == pytest.approx(found.high_us)


def test_a_plan_says_which_baselines_the_prediction_cannot_tell_apart():
    sure, unsure = (validated(chain_costs(), *[e, -e] * 4) for e in (1e-4, 0.5))
    plans = [plan_graph(costs.graph, costs) for costs in (sure, unsure)]
    assert plans[0].affinity == plans[1].affinity
    assert plans[0].undecided == ()
    worse = {label for label, regret in plans[1].regret.items() if regret > 0.0}
    assert worse
    assert set(plans[1].undecided) <= worse
    assert plans[1].undecided
    assert "not told apart from" in repr(plans[1])
    low, high = plans[1].interval_us
    assert low < plans[1].predicted_us < high
    frame = plans[1].to_frame()
    assert list(frame.columns) == ["label", "predicted_us", "regret_us", "margin_us"]
