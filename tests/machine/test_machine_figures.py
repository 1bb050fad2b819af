"""The data behind the figures of a plan, and its page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from machine.hand_plans import small_plan

import hetero_lab as hl


def test_shares_stand_beside_each_model_on_its_own_best_and_all_on_auto():
    figure: Any = hl.views.machine_shares(small_plan())
    bars = {trace["name"]: trace for trace in figure.data if trace["type"] == "bar"}
    shares = {name: np.round(bar["x"], 9).tolist() for name, bar in bars.items()}
    assert shares == {
        "the plan": [100.0, 50.0],
        "each on its own best device": [80.0, 20.0],
        "all on AUTO": [90.0, 30.0],
    }
    assert bars["the plan"]["hovertext"] == ("100% · GPU", "50% · CPU")
    assert bars["each on its own best device"]["hovertext"][0] == "80% · GPU · misses 20%"
    places = np.array([bar["y"] for bar in bars.values()])
    assert np.allclose(places.mean(axis=0), [0, 1])


def test_a_set_that_is_the_plan_or_was_not_measured_has_no_bars():
    plan = small_plan()
    own, auto, split = plan.sets
    best = replace(own, judgement="best"), replace(auto, turns=()), replace(split, turns=())
    figure: Any = hl.views.machine_shares(replace(plan, sets=best))
    assert [trace["name"] for trace in figure.data if trace["type"] == "bar"] == ["the plan"]


def test_a_row_of_the_slowdown_is_a_model_and_a_column_is_beside_what():
    figure: Any = hl.views.mutual_slowdown(small_plan())
    (trace,) = figure.data
    names = ["detect · GPU", "segment · CPU", "segment · GPU"]
    assert list(figure.layout.yaxis.ticktext) == list(figure.layout.xaxis.ticktext) == names
    assert [list(row) for row in trace["text"]] == [
        ["", "90%", "50%"],
        ["90%", "", ""],
        ["40%", "", ""],
    ]


def test_a_page_has_what_was_measured_only(tmp_path):
    plan = small_plan()
    assert list(hl.views.gallery(plan)) == ["machine_shares", "mutual_slowdown"]
    bare = replace(plan, pairs={}, sets=(replace(plan.sets[0], turns=()),))
    assert hl.views.gallery(bare) == {}
    for each in (plan, bare):
        hl.views.page(each, tmp_path / "page.html")
        assert each.verdict.splitlines()[0] in (tmp_path / "page.html").read_text("utf-8")
