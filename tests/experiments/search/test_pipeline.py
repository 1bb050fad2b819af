"""Pipelines: models that run at the same time, within the memory of the devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from small_models import chain

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, PlanError
from hetero_lab.experiments.search import pipeline
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.runtime.side_by_side import run_side_by_side_turn


@pytest.fixture(scope="module")
def advice():
    hl.emulate("PIPEACC")
    models = {"det": "digits_inception", "rec": chain("r", "s")}
    options = {"budget_s": 8, "isolate": False, "progress": False}
    return hl.advise(models, ["PIPEACC", "CPU"], **options)


@pytest.mark.slow
def test_each_model_is_advised_alone_and_all_are_measured_together(advice):
    assert set(advice.best) == set(advice.advices) == {"det", "rec"}
    table = advice.summary
    assert list(table["judgement"]).count("best") == 1
    assert table["ratio"][0] == 1.0
    first = advice.combinations[0]
    assert {n: c.row.label for n, c in first.chosen.items()} == {
        name: alone.chosen.row.label for name, alone in advice.advices.items()
    }
    assert table["n_turns"][0] >= 3
    for combination in advice.combinations:
        for turn in combination.turns_us:
            assert turn.keys() == {"det", "rec"}
            assert min(turn.values()) > 0
    assert advice.verdict.startswith("Deploy det: ")
    assert "all at work at once" in advice.verdict


@pytest.mark.slow
def test_the_best_is_the_reference_or_the_fastest(advice):
    medians = {
        c.label: np.median(c.levels_us("latency")) for c in advice.combinations if c.turns_us
    }
    assert medians[advice.chosen.label] <= 1.01 * min(medians.values())
    assert {n: c.placement for n, c in advice.chosen.chosen.items()} == dict(advice.best)


def test_latency_is_the_sum_and_throughput_the_slowest():
    turns = ({"a": 3.0, "b": 5.0}, {"a": 4.0, "b": 2.0})
    combination = pipeline.Combination({}, turns)
    assert combination.levels_us("latency") == [8.0, 6.0]
    assert combination.levels_us("throughput") == [5.0, 4.0]


@pytest.mark.slow
def test_memory_is_that_of_all_models_together(advice):
    det = advice.advices["det"]
    graph = det.chosen.model.graph
    alone = [
        replace(
            det.chosen,
            row=replace(det.chosen.row, label=device),
            placement=hl.Placement(hl.Affinity.uniform(det.chosen.model, device), direct=True),
            judgement=judgement,
        )
        for device, judgement in (("CPU", "best"), ("PIPEACC", "slower"))
    ]
    each = graph.weight_bytes
    # Each fits a device alone, the two together do not fit one.
    twice = dict.fromkeys("ab", replace(det, candidates=tuple(alone)))
    limit = {"CPU": each, "PIPEACC": each}
    found, left_out = pipeline._combinations(twice, "latency", limit)
    assert len(left_out) == len(found) == 2
    for combination in found:
        devices = [c.placement.devices for c in combination.chosen.values()]
        assert sorted(devices) == [("CPU",), ("PIPEACC",)]
    with pytest.raises(PlanError, match="No combination keeps to memory_limit="):
        pipeline._combinations(twice, "latency", dict.fromkeys(limit, each - 1))


@pytest.mark.slow
def test_deploy_writes_each_model_with_its_contract(advice, tmp_path):
    target = advice.deploy(tmp_path / "deploy")
    assert sorted(path.name for path in target.iterdir()) == ["det", "rec"]
    assert hl.verify(target / "rec", turns=3, slower=1e6).ok


@pytest.mark.slow
def test_the_page(advice, tmp_path):
    hl.views.page(advice, tmp_path / "page.html")
    assert "What to deploy: det, rec together" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_what_is_slower_beyond_the_intervals_is_said_so(advice):
    first, *_ = advice.combinations
    turns = [{"det": 10.0 + 0.01 * n, "rec": 1.0} for n in range(8)]
    slow = [{"det": 20.0 + 0.01 * n, "rec": 1.0} for n in range(8)]
    race = pipeline._Race([], "latency", 0, ov.Core())
    race.combinations = [
        replace(first, turns_us=tuple(slow)),
        replace(first, turns_us=tuple(turns)),
        replace(first, turns_us=()),
    ]
    assert [c.judgement for c in race.judged()] == ["slower", "best", "not measured"]


def test_a_turn_side_by_side_measures_every_model_while_all_run():
    requests = []
    for name in ("digits_inception", "digits_inception"):
        compiled = hl.compile(name, "CPU")
        requests.append(compiled.new_request(generate_inputs(compiled.placed.bound)))
    samples = run_side_by_side_turn(requests, timed=5)
    assert all(len(mine) >= 5 for mine in samples)


@pytest.mark.parametrize(
    ("models", "changes", "says"),
    [
        ({}, {}, "needs a model"),
        ({"../x": "digits_inception"}, {}, "is no name of a model"),
        ({"a": "digits_inception"}, {"data": []}, "data= is for one model"),
    ],
)
def test_what_cannot_be_asked(models, changes, says):
    with pytest.raises(ArgumentError, match=says):
        hl.advise(models, ["CPU"], progress=False, **changes)
