"""The race of sets: what is in the final, what is called best, and when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hetero_lab.errors import MeasurementError
from hetero_lab.intervals import Noise
from hetero_lab.machine.demand import Turn
from hetero_lab.machine.race import FINALISTS, LOOKS, Race, Together, best_of
from hetero_lab.measure.loads import Driven
from hetero_lab.progress import Stopwatch

NOISE = Noise(0.005, 0.0)  # costs are no times, so nothing in µs


def cost(turn: Turn) -> float:
    return 1.0 / turn["model"].rate_per_s


def race_of(*costs: Sequence[float]) -> Race:
    """Return a race whose turns cost what is given, one list a set, the reference first."""
    left = {f"set {number}": iter(found) for number, found in enumerate(costs)}

    def turn(one: Together) -> Turn:
        return {"model": Driven(rate_per_s=1.0 / next(left[one.label]), latencies_us=(1.0,))}

    race = Race(cost, NOISE, turn)
    race.sets = [Together(label, {"model": "CPU"}, {}) for label in left]
    return race


def run(race: Race, budget_s: float | None = None) -> tuple[list[int], list[str]]:
    """Return how many turns of the final each set had, and what became of it."""
    race.run(Stopwatch.start(budget_s))
    return [len(one.turns) for one in race.sets], [one.judgement for one in race.results()]


def wavering(level: float, looks: float | None = None) -> list[float]:
    """Return the costs of turns about a level; those of the looks may be about another one."""
    levels = [level if looks is None else looks] * LOOKS + [level] * 30
    return [each * (1.0 + 0.001 * (number % 3)) for number, each in enumerate(levels)]


def test_of_equal_sets_the_reference_stays_and_none_is_called_worse():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(10):
        _, judgements = run(race_of(*(2.0 * rng.lognormal(0, 0.03, (8, LOOKS + 30))).tolist()))
        assert judgements[0] == "best"
        wrong += "slower" in judgements
    assert wrong <= 1


def test_what_looked_good_by_luck_is_judged_by_the_final():
    turns, judgements = run(race_of(wavering(1.0), wavering(1.3, looks=0.5)))
    assert judgements == ["best", "slower"]
    assert turns[0] == turns[1]


def test_the_few_that_looked_best_are_in_the_final_and_the_others_stay_undecided():
    levels = [1.5, *np.linspace(1.0, 1.4, FINALISTS), 1.45, 0.9]
    looks = [None] * (FINALISTS + 1) + [None, 2.0]  # the last one was unlucky
    race = race_of(*map(wavering, levels, looks))
    turns, judgements = run(race)
    assert [n > 0 for n in turns] == [True] * (FINALISTS + 1) + [False] * 2
    assert {len(one.looks) for one in race.sets} == {LOOKS}
    assert judgements == ["slower", "best", "slower", "slower", "undecided", "undecided"]


def test_the_reference_is_the_best_unless_another_is_more_than_one_percent_better():
    for share, judgements in ((0.995, ["best", "as fast"]), (0.9, ["slower", "best"])):
        assert run(race_of(wavering(1.0), wavering(share)))[1] == judgements


def test_a_race_ends_when_each_finalist_is_known_well():
    steady = [wavering(level) for level in (1.0, 2.0, 0.8)]
    turns, _ = run(race_of(*steady))
    assert len(set(turns)) == 1
    assert 1 < turns[0] < 30
    restless = np.random.default_rng(0).lognormal(0, 0.3, LOOKS + 30).tolist()
    assert run(race_of(*steady, restless))[0] == [30] * 4


def test_a_set_that_fails_leaves_the_race_and_says_why():
    race = race_of(wavering(1.0), wavering(0.9), wavering(1.2))
    turn = race.turn

    def failing(one: Together) -> Turn:
        if one.label == "set 1" and len(one.turns) == 1:
            raise MeasurementError("out of memory")
        return turn(one)

    race.turn = failing
    turns, judgements = run(race)
    assert turns[1] == 1 < turns[0] == turns[2]
    assert judgements == ["best", "not measured", "slower"]
    assert [one.why for one in race.sets] == ["", "out of memory", ""]
    with pytest.raises(MeasurementError, match="No set of ways runs. out of memory"):
        race.sets = race.sets[1:2]
        run(race)


def test_without_time_there_is_a_look_at_the_reference_alone():
    race = race_of(wavering(1.0), wavering(0.5))
    assert run(race, 1e-9) == ([0, 0], ["best", "not measured"])
    assert [len(one.seen) for one in race.sets] == [1, 0]


def test_what_compiles_differ_by_decides_between_sets():
    race = race_of(wavering(1.0), wavering(0.97))
    run(race)
    assert [one.judgement for one in race.results()] == ["slower", "best"]
    assert best_of(race.results()).label == "set 1"
    race.noise = Noise(0.05, 0.0, 12)
    assert [one.judgement for one in race.results()] == ["best", "undecided"]


@pytest.mark.parametrize("in_turn", [1, 2])
def test_a_reference_that_crashed_is_never_the_best(in_turn):
    race = race_of(wavering(1.0), wavering(0.9), wavering(0.8))
    turn, seen = race.turn, []

    def crashing(one: Together) -> Turn:
        seen.append(one.label)
        if one.label == "set 0" and seen.count(one.label) == in_turn:
            raise MeasurementError("crashed")
        return turn(one)

    race.turn = crashing
    race.run(Stopwatch.start(None))
    race.sets = [replace(one, turns=()) for one in race.sets]  # as if the budget had ended there
    assert race.results()[0].judgement == "not measured"
    assert best_of(race.results()).label == "set 2"
