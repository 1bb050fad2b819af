"""Recordings of a real GPU are read without any device."""

import json
import shutil

import numpy as np
import pytest

import hetero_lab as hl
from hetero_lab.costs.fitting import fit
from hetero_lab.errors import AffinityError, MeasurementError, PlanError
from hetero_lab.planning.planner import plan_graph
from tests.benchmarks.benchmark_fitting import errors, measured, observed


@pytest.fixture(scope="module")
def recorded():
    return hl.interop.recordings()


@pytest.fixture(scope="module")
def split_that_wins(recorded):
    return hl.interop.read_recording(recorded / "eight" / "alexnet.all")


def results(recorded):
    return [json.loads(line) for line in (recorded / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("which", [".", "longer", "families", "mixed", "eight"])
def test_every_search_says_what_its_result_says(recorded, which):
    rows = results(recorded / which)
    for row in rows:
        case = recorded / which / f"{row['model']}.{row['kind']}"
        sweep = hl.read_sweep(case)
        assert dict(sweep.environment.devices)["CPU"].startswith("Intel")
        assert any("H200" in name for _, name in sweep.environment.devices)
        measured = sweep.summary.set_index("label")["median_us"]
        assert measured["greedy"] == pytest.approx(row["greedy_us"])
        assert measured.min() <= row["optimized_us"] * 1.001
        costs = hl.CostModel.from_json(case / "costs.json")
        assert costs.predict_us(hl.Affinity.from_json(case / "optimized.json")) > 0
        if (which, row["model"], row["kind"]) == (".", "resnet18", "b"):  # explored without a GPU
            assert row["improved"]
            assert row["to_best"] < 0.95
            shown = hl.SweepExplorer(sweep).exploring.measured
            assert set(shown) >= {"greedy", "CPU", "candidate 1"}
    if which == ".":
        assert ("resnet18", "b") in {(row["model"], row["kind"]) for row in rows}
        assert len({row["model"] for row in rows}) >= 8
        for file in (recorded / "calibrated").iterdir():
            assert set(hl.CostModel.from_json(file).devices) == {"GPU", "CPU"}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", "squeezenet1_1"])
def test_the_plan_made_beside_the_gpu_is_made_without_it(recorded, model):
    costs = hl.CostModel.from_json(recorded / "calibrated" / f"{model}.costs.json")
    planned = json.loads((recorded / "planned" / f"{model}.plans.json").read_text())
    assert set(planned) == {"latency", "throughput"}
    for objective, there in planned.items():
        here = plan_graph(costs.graph, costs, objective=objective, budget_s=60.0)
        assert here.predicted_us == pytest.approx(there["predicted_us"])
        assert dict(here.affinity) == there["affinity"]


def mean_errors(directory, model):
    """Return the mean error without and with the priors for memory of its own."""
    costs = hl.CostModel.from_json(directory / f"{model}.costs.json")
    actual_us = measured(directory / f"{model}.jsonl")
    seen = list(observed(directory / f"{model}.observations.json", costs))
    support = {device: costs.supports(device) for device in costs.devices}
    return [
        np.abs(errors(fit(costs.graph, support, seen, own_memory=own), seen, actual_us)).mean()
        for own in (False, True)
    ]


CHOSEN_ON = ("magika", "squeezenet1_1")
OTHERS = ("alexnet", "cnn_f", "digits_inception", "page_orientation")


@pytest.mark.slow
@pytest.mark.parametrize("model", [*CHOSEN_ON, *OTHERS])
def test_priors_for_memory_of_its_own_predict_a_gpu_better(recorded, model):
    part = "observed" if model in CHOSEN_ON else "later"
    one_memory, own_memory = mean_errors(recorded / "predicted" / part, model)
    assert own_memory < one_memory
    if model in CHOSEN_ON:
        assert own_memory < 0.06 < one_memory


def test_eight_models_hold_on_a_gpu_what_the_readme_says(recorded):
    rows = results(recorded / "eight")
    assert len(rows) == 24
    assert len({row["model"] for row in rows}) == 8
    assert np.exp(np.mean([np.log(row["gain"]) for row in rows])) >= 2
    assert sum(row["to_best"] <= 0.95 for row in rows) >= 8
    assert max(row["to_best"] for row in rows) <= 1.03


def test_every_table_and_figure_of_a_recording_says_that_it_is_one(split_that_wins):
    sweep = split_that_wins
    assert "NVIDIA H200" in sweep.notes[0]
    assert repr(sweep).startswith("Fastest: 'candidate 1 (recorded, f32)'")
    assert sweep.notes[0] in repr(sweep)
    assert sweep.summary["label"].str.endswith("(recorded)").all()
    assert sweep.ranking["ratio"].iloc[0] < 0.55
    assert "(recorded, " in str(hl.views.latency_ranking(sweep).to_dict())
    best = sweep.profile(sweep.ranking["label"].iloc[0])
    assert "(recorded" in hl.views.placement_graph(best).layout.title.text
    explorer = hl.SweepExplorer(sweep)
    assert "Nothing was measured here" in explorer.children[2].value
    assert explorer.exploring.a.endswith("(recorded)")


def test_a_recording_is_replayed_in_the_tweaker(split_that_wins, tmp_path):
    tweaker = hl.AffinityTweaker(split_that_wins)
    assert "NVIDIA H200" in tweaker.children[1].value
    assert tweaker.affinity.counts() == {"GPU": 31}
    assert tweaker.history["label"].str.endswith("(recorded)").all()
    tweaker.cut(18, "CPU", "GPU")  # behind the convolutions
    tweaker.measure()
    assert "candidate 1 (recorded): 1.43 ms" in tweaker.view.controls.messages["above"].value
    predicted_us = tweaker.what_if.predicted_us
    assert predicted_us == pytest.approx(tweaker.history["median_us"][3], rel=0.05)
    tweaker.cut(17, "CPU", "GPU")
    with pytest.raises(MeasurementError, match="was not measured"):
        tweaker.measure()
    tweaker.go_to(3)
    with pytest.raises(AffinityError, match="no weights here"):
        tweaker.freeze(tmp_path / "frozen")


def test_a_recording_of_another_model_is_refused(recorded, split_that_wins, tmp_path):
    with pytest.raises(PlanError, match="'alexnet', not 'digits_inception'"):
        hl.AffinityTweaker("digits_inception", ["GPU", "CPU"], split_that_wins.costs)
    shutil.copytree(recorded / "eight" / "alexnet.all", tmp_path / "mixed")
    shutil.copy(recorded / "eight" / "cnn_f.all" / "costs.json", tmp_path / "mixed")
    with pytest.raises(PlanError, match="'cnn_f', not 'alexnet'"):
        hl.interop.read_recording(tmp_path / "mixed")
