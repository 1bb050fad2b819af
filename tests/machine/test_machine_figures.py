"""The words of a plan, the data behind its figures, and its page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.hand_plans import small_plan, turns

import hetero_lab as hl

ALONE = " Without a plan, each on its own best device, segment gets 20%."
MEAN = "The models get 60% on average of what they want: "
AUTO, LATE = "AUTO:GPU,CPU", "detect misses 20% of its deadlines"


@pytest.mark.parametrize(
    ("objective", "best", "answer"),
    [
        ("share", 2, f"segment gets least, 50% of what it gets alone: {{}}.{ALONE}"),
        ("throughput", 1, f"{MEAN}detect on {AUTO}, segment on {AUTO}.{ALONE}"),
        ("deadlines", 2, f"The deadline holds: {{}}. Without a plan {LATE}."),
        ("deadlines", 0, f"{LATE}: detect on GPU, segment on GPU. That is each on its own best "
         "device."),
    ],
)  # fmt: skip
def test_the_answer_says_what_each_objective_comes_to(objective, best, answer):
    plan = small_plan()
    found = ["best" if number == best else "slower" for number in range(3)]
    sets = tuple(replace(s, judgement=j) for s, j in zip(plan.sets, found, strict=True))
    loads = {1.25: turns(30, 0, 25)[0], 1.5: turns(30, 4, 25)[0]}
    plan = replace(plan, goal=replace(plan.goal, objective=objective), sets=sets, loads=loads)
    assert plan.verdict.splitlines()[0] == answer.format("detect on GPU, segment on CPU")
    missed = "The first deadline is missed at 1.5 times the rates: detect misses 13% of its"
    assert missed in plan.verdict


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
