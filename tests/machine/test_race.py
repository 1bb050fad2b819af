"""The race of sets: what drops out, what is called best, and when it is over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hetero_lab.errors import MeasurementError
from hetero_lab.intervals import Noise
from hetero_lab.machine.race import Race, Together, Turn, best_of
from hetero_lab.measure.requests import Driven
from hetero_lab.runtime.timing import Stopwatch

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
    """Return how many turns each set had, and what became of it."""
    race.run(Stopwatch.start(budget_s))
    return [len(one.turns) for one in race.sets], [one.judgement for one in race.judged()]


def wavering(level: float) -> list[float]:
    return [level * (1.0 + 0.001 * (number % 3)) for number in range(30)]


def test_of_equal_sets_the_reference_stays_and_none_is_called_worse():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(20):
        _, judgements = run(race_of(*(2.0 * rng.lognormal(0, 0.03, (8, 30))).tolist()))
        assert judgements[0] == "best"
        wrong += "slower" in judgements
    assert wrong <= 2


def test_what_was_dropped_while_the_machine_was_faster_is_not_the_best():
    fast, slow = wavering(1.0), wavering(1.25)  # the machine, in two turns and then
    levels = [*fast[:2], *slow[2:]]
    race = race_of(
        [2.0 * level for level in levels],
        levels,
        [1.001 * level for level in levels],
        [1.002 * level for level in levels],
        [1.1 * level for level in fast],  # less than the best takes later
    )
    turns, judgements = run(race)
    assert turns[4] == 2 < min(turns[:3])  # of four beside the reference, three stay
    assert judgements[:4] == ["slower", "best", "as fast", "as fast"]
    assert judgements[4] != "best"


def test_the_worse_half_leaves_at_each_look_until_three_are_left():
    levels = [wavering(level) for level in (1.5, *np.linspace(1.0, 1.1, 12))]
    turns, judgements = run(race_of(*levels))
    assert turns[0] == max(turns)
    assert sum(n > 2 for n in turns[1:]) <= 6
    assert sum(n > 4 for n in turns[1:]) <= 3
    assert sum(n > 8 for n in turns[1:]) >= 2  # finalists that differ by one percent
    assert judgements[1] == "best"


def test_the_reference_is_the_best_unless_another_is_more_than_one_percent_better():
    for share, judgements in ((0.995, ["best", "as fast"]), (0.9, ["slower", "best"])):
        assert run(race_of(wavering(1.0), wavering(share)))[1] == judgements


def test_a_race_ends_when_the_reference_is_left_or_one_other_that_is_known_well():
    reference, worse, better = (wavering(level) for level in (1.0, 2.0, 0.8))
    turns, judgements = run(race_of(reference, worse))
    assert max(turns) < 30
    assert judgements == ["best", "slower"]
    n_reference, n_worse, n_better = run(race_of(reference, worse, better))[0]
    assert n_worse <= n_reference == n_better < 30


def test_a_set_that_fails_leaves_the_race_and_says_why():
    race = race_of(wavering(1.0), wavering(0.9))
    turn = race.turn

    def failing(one: Together) -> Turn:
        if one.label == "set 1" and len(one.turns) == 1:
            raise MeasurementError("out of memory")
        return turn(one)

    race.turn = failing
    assert run(race) == ([3, 1], ["best", "not measured"])
    assert [one.why for one in race.sets] == ["", "out of memory"]


def test_without_a_set_that_runs_there_is_no_race():
    race = race_of([], [])

    def failing(one: Together) -> Turn:
        raise MeasurementError("out of memory")

    race.turn = failing
    with pytest.raises(MeasurementError, match="No set of ways runs. out of memory"):
        run(race)


def test_without_time_the_reference_alone_is_measured():
    turns, judgements = run(race_of(wavering(1.0), wavering(0.5)), 1e-9)
    assert turns == [3, 0]
    assert judgements == ["best", "not measured"]


def test_what_compiles_differ_by_decides_between_sets():
    race = race_of(wavering(1.0), wavering(0.97))
    run(race)
    assert [one.judgement for one in race.judged()] == ["slower", "best"]
    assert best_of(race.judged()).label == "set 1"
    race.noise = Noise(0.05, 0.0, 12)
    assert [one.judgement for one in race.judged()] == ["best", "undecided"]
