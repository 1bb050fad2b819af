"""Pipelines: models that run at the same time, within the memory of the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from small_models import chain
from views.hand_made import small_profile
from widgets.hand_sweeps import measured_row, small_sweep

import hetero_lab as hl
from hetero_lab.advise.advice import Advice, Judged
from hetero_lab.devices.bound import bind
from hetero_lab.devices.core import shared_core
from hetero_lab.errors import MeasurementError, PlanError
from hetero_lab.intervals import ASSUMED_NOISE, Noise
from hetero_lab.machine import pipeline
from hetero_lab.machine.pipeline import Combination, PipelineAdvice, PipelineRace
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.runtime.timing import Stopwatch, run_side_by_side_turn


@pytest.mark.slow
def test_each_model_is_advised_alone_and_all_are_measured_together(tmp_path):
    hl.emulate("PIPEACC")
    models = {"det": "digits_inception", "rec": chain("r", "s")}
    options: dict[str, Any] = {"budget_s": 8, "isolate": False, "progress": False}
    advice = hl.advise(models, ["PIPEACC", "CPU"], **options)
    assert set(advice.best) == set(advice.advices) == {"det", "rec"}
    table = advice.summary
    assert list(table["judgement"]).count("best") == 1
    assert table["ratio"][0] == 1.0
    assert table["n_turns"][0] >= 3
    first = advice.combinations[0]
    assert {n: c.row.label for n, c in first.chosen.items()} == {
        name: alone.chosen.row.label for name, alone in advice.advices.items()
    }
    for combination in advice.combinations:
        for turn in combination.turns_us:
            assert turn.keys() == {"det", "rec"}
            assert min(turn.values()) > 0
    assert advice.verdict.startswith("Deploy det: ")
    assert "all at work at once" in advice.verdict
    hl.views.page(advice, tmp_path / "page.html")
    assert "Deploy det: " in (tmp_path / "page.html").read_text()
    target = advice.deploy(tmp_path / "deploy", tolerance=None)
    assert sorted(path.name for path in target.iterdir()) == ["det", "rec"]
    assert hl.verify(target / "rec", turns=3, tolerance=1e6).ok


def race_of(*levels_us: Sequence[float]) -> PipelineRace:
    """Return a race whose turns take what is given, one list a combination, the reference first."""
    levels = {f"model{n}": iter(found) for n, found in enumerate(levels_us)}
    combinations: list[Any] = [Combination({name: None}) for name in levels]  # type: ignore

    def turn(combination: Combination) -> dict[str, float]:
        (name,) = combination.chosen
        return {name: next(levels[name])}

    return PipelineRace(combinations, "latency", ASSUMED_NOISE, turn)


def run(race: PipelineRace) -> tuple[list[int], list[str]]:
    """Return how many turns each combination had, and what became of it."""
    race.run(Stopwatch.start(None))
    judgements = [combination.judgement for combination in race.judged()]
    return [len(combination.turns_us) for combination in race.combinations], judgements


def wavering(level_us: float) -> list[float]:
    return [level_us * (1.0 + 0.001 * (n % 3)) for n in range(30)]


def test_of_equal_combinations_the_reference_stays_and_none_is_called_slower():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(20):
        turns = 1e4 * rng.lognormal(0, 0.03, (8, 30))
        _, judgements = run(race_of(*turns.tolist()))
        assert judgements[0] == "best"
        wrong += "slower" in judgements
    assert wrong <= 2


def test_what_was_dropped_while_the_machine_was_faster_is_not_the_best():
    fast, slow = wavering(10_000.0), wavering(12_500.0)
    race = race_of(
        [2.0 * level for level in (*fast[:3], *slow[3:])],
        [*fast[:3], *slow[3:]],
        [1.1 * level for level in fast],
        [1.001 * level for level in (*fast[:3], *slow[3:])],  # else the race would be over
    )
    assert run(race) == ([30, 30, 3, 30], ["slower", "best", "slower", "as fast"])


def test_the_reference_is_the_best_unless_another_is_more_than_one_percent_faster():
    for share, judgements in ((0.995, ["best", "as fast"]), (0.9, ["slower", "best"])):
        assert run(race_of(wavering(10_000.0), wavering(share * 10_000.0)))[1] == judgements


def test_a_race_ends_when_the_reference_is_left_or_one_other_that_is_known_well():
    reference, slower, faster = (wavering(level) for level in (10_000.0, 20_000.0, 8_000.0))
    assert run(race_of(reference, slower))[0] == [3, 3]
    n_reference, n_slower, n_faster = run(race_of(reference, slower, faster))[0]
    assert n_slower == 3 <= n_reference == n_faster < 30


def test_a_combination_that_fails_leaves_the_race():
    race = race_of(wavering(10.0), wavering(9.0))
    turn = race.turn

    def failing(combination: Combination) -> Mapping[str, float]:
        if "model1" in combination.chosen and len(combination.turns_us) == 2:
            raise MeasurementError("out of memory")
        return turn(combination)

    race.turn = failing
    assert run(race) == ([3, 2], ["best", "not measured"])
    assert race.failed == {1: "out of memory"}


def test_latency_is_the_sum_and_throughput_the_slowest():
    combination = Combination({}, ({"a": 3.0, "b": 5.0}, {"a": 4.0, "b": 2.0}))
    assert combination.levels_us("latency") == [8.0, 6.0]
    assert combination.levels_us("throughput") == [5.0, 4.0]


def by_hand(core: ov.Core | None = None, /, **us_of: float) -> Advice:
    """Make an advice of one model on each of some devices alone, the first one best."""
    hl.emulate("PIPEMEM")
    model = bind("digits_inception", core or shared_core())
    candidates = tuple(
        Judged(
            row=measured_row(device, small_profile(), us / 100.0),
            placement=hl.Placement(
                hl.Affinity.uniform(model.model, device, core=core), direct=True
            ),
            bound=model,
            stage="final",
            judgement="slower" if number else "best",
        )
        for number, (device, us) in enumerate(us_of.items())
    )
    return Advice(candidates[0].placement, "", candidates, (), "hetero", small_sweep())


def test_what_is_deployed_is_compiled_by_the_core_that_it_was_measured_with(tmp_path):
    core = ov.Core()
    hl.emulate("ONLYTHERE", core=core)
    directory = by_hand(core, ONLYTHERE=300.0).deploy(tmp_path / "deployed", tolerance=None)
    assert (directory / "run.py").is_file()


def measured(combination: Combination, **turn_us: float) -> Combination:
    return replace(combination, turns_us=(turn_us,) * 3)


def still(combinations: Sequence[Combination], objective: str = "latency") -> PipelineRace:
    return PipelineRace(list(combinations), objective, ASSUMED_NOISE, lambda _: {})


def sentences(combinations, objective="latency", left_out=()) -> str:
    judged = tuple(still(combinations, objective).judged())
    advice = PipelineAdvice({}, "", {}, judged, left_out, objective, ASSUMED_NOISE)
    return "\n".join(pipeline.pipeline_verdict(advice, {}))


def test_memory_is_that_of_all_models_together_and_the_first_that_fits_is_said_to_be_that():
    advices = dict.fromkeys("ab", by_hand(CPU=10.0, PIPEMEM=30.0))
    each = advices["a"].chosen.bound.graph.weight_bytes
    # Each fits a device alone, the two together do not fit one.
    limit: dict[str, int | str] = {"CPU": each, "PIPEMEM": each}
    found, left_out = pipeline.possible_combinations(advices, "latency", limit)
    assert [c.label for c in found] == ["a: CPU, b: PIPEMEM", "a: PIPEMEM, b: CPU"]
    assert list(left_out) == ["a: CPU, b: CPU", "a: PIPEMEM, b: PIPEMEM"]
    pool: dict[Any, int] = {("PIPEMEM", "CPU"): 2 * each - 1}
    with pytest.raises(PlanError, match="CPU and PIPEMEM would hold .* more than the limit of"):
        pipeline.possible_combinations(advices, "latency", pool)
    first, second = found
    said = sentences([measured(first, a=10.0, b=30.0), second], left_out=tuple(left_out.items()))
    assert "That is also the first that keeps to memory_limit=." in said
    assert "best of each" not in said
    said = sentences([measured(first, a=10.0, b=30.0), measured(second, a=1.0, b=3.0)])
    assert "That is 0.100 of the time" in said
    assert "of the first that keeps to memory_limit= (a: CPU, b: PIPEMEM)." in said
    assert f"{first.label} is the first that keeps to memory_limit=." in sentences(found)
    (free, *_), _ = pipeline.possible_combinations(advices, "latency", {})
    said = sentences([measured(free, a=20.0, b=20.0)])
    assert "That is also the best of each model alone." in said
    with pytest.raises(PlanError, match="No combination keeps to memory_limit="):
        pipeline.possible_combinations(advices, "latency", {"CPU": each - 1, "PIPEMEM": each - 1})


def pipeline_advice(objective: str, **advices: Advice) -> PipelineAdvice:
    first, *others = pipeline.possible_combinations(advices, objective, {})[0]
    combinations = (measured(first, **dict.fromkeys(advices, 20.0)), *others)
    best = {name: candidate.placement for name, candidate in first.chosen.items()}
    return PipelineAdvice(best, "", advices, combinations, (), objective, ASSUMED_NOISE)


def test_what_compiles_differ_by_decides_between_combinations():
    advices = dict.fromkeys("ab", by_hand(CPU=10_000.0, PIPEMEM=10_000.0))
    first, second, *_ = pipeline.possible_combinations(advices, "latency", {})[0]
    slow, quick = measured(first, a=10_300.0, b=10_300.0), measured(second, a=1e4, b=1e4)
    race = still([quick, slow])
    assert [c.judgement for c in race.judged()] == ["best", "slower"]
    race.noise = Noise(0.05, 0.0, 12)
    assert [c.judgement for c in race.judged()] == ["best", "undecided"]


def test_what_was_not_measured_is_missing_in_the_summary():
    table = pipeline_advice("latency", det=by_hand(CPU=10.0, PIPEMEM=30.0)).summary
    assert list(table["n_turns"]) == [3, 0]
    missing = ["det_together_us", "median_us", "ratio", "ratio_ci95_low", "ratio_ci95_high"]
    assert list(table[missing].notna().all(axis=1)) == [True, False]
    assert list(table[missing].isna().all(axis=1)) == [False, True]
    assert list(table["det_alone_us"].round(2)) == [10.25, 30.75]


def test_a_time_with_several_requests_in_flight_is_not_set_beside_that_of_one():
    alone = by_hand(CPU=10.0)
    (candidate,) = alone.candidates
    in_flight = replace(candidate, row=replace(candidate.row, requests=4))
    made = pipeline_advice("throughput", det=replace(alone, candidates=(in_flight,)))
    assert "det_alone_us" not in made.summary
    said = sentences(made.combinations, "throughput")
    assert "one request of each model at a time" in said
    assert "Beside the others: det 20 µs." in said


def together(advices, watch: Stopwatch) -> PipelineAdvice:
    options: dict[str, Any] = {"objective": "latency", "memory_limit": {}, "progress": False}
    return pipeline.advise_together(advices, watch=watch, seed=0, core=shared_core(), **options)


def test_after_ctrl_c_in_the_last_model_nothing_is_measured_together():
    alone = by_hand(CPU=10.0, PIPEMEM=30.0)
    advices = {"det": alone, "rec": replace(alone, interrupted=True)}
    made = together(advices, Stopwatch.start(None))
    assert made.interrupted
    assert not any(c.turns_us for c in made.combinations)
    assert made.best == dict.fromkeys(advices, alone.best)
    says, ends = made.verdict.splitlines()
    assert says.endswith("det: CPU, rec: CPU is the best of each model alone.")
    assert ends.startswith("Ctrl-C ended it")


def test_the_models_together_get_what_is_left_of_the_budget():
    advices = {"det": by_hand(CPU=10.0, PIPEMEM=30.0)}
    made = together(advices, Stopwatch(budget_s=1e-9, started=0.0))
    assert [len(c.turns_us) for c in made.combinations] == [3, 0]
    assert [c.judgement for c in made.combinations] == ["best", "not measured"]
    assert made.best == {"det": advices["det"].best}
    assert not made.interrupted


def test_a_model_of_which_nothing_usable_was_measured_is_named():
    alone = by_hand(CPU=10.0)
    unusable = replace(alone, verdict="Nothing usable was measured.", candidates=())
    with pytest.raises(MeasurementError, match="measured of rec alone. Nothing usable was"):
        together({"det": alone, "rec": unusable}, Stopwatch.start(None))


def test_without_a_measurement_there_is_nothing_to_deploy(tmp_path):
    made = pipeline_advice("latency", det=by_hand(CPU=10.0))
    unmeasured = replace(made, combinations=(replace(made.combinations[0], turns_us=()),))
    with pytest.raises(MeasurementError, match="Nothing was measured together"):
        unmeasured.deploy(tmp_path / "deploy")
    assert not (tmp_path / "deploy").exists()


def test_a_turn_side_by_side_measures_every_model_while_all_run():
    runs = []
    for name in ("digits_inception", "digits_inception"):
        compiled = hl.compile(name, "CPU")
        runs.append(compiled.new_request(generate_inputs(compiled.placed.bound)).infer)
    samples = run_side_by_side_turn(runs, timed=5)
    assert all(len(mine) >= 5 for mine in samples)
