"""What several models get of a machine, foretold from what two get; by rates that a test says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hetero_lab.machine.contention import Alone, search, tails_us, together

GPU, CPU = frozenset({"GPU"}), frozenset({"CPU"})


def on(hardware, alone=100.0, asked=None, key="", moves=False) -> Alone:
    return Alone(key, alone, 1e6 / alone, 3e6 / alone, asked, hardware, moves)


def turns_of_two(one: Alone, other: Alone):
    """Two that take turns: a request of each, one after another."""
    return 1.0 / (1.0 / one.per_s + 1.0 / other.per_s)


def pairs(used, rate):
    two = itertools.permutations(used, 2)
    known = {(one.key, other.key): (rate(one, other), rate(other, one)) for one, other in two}
    return lambda *keys: known.get(keys)


def test_models_that_take_turns_share_a_device_as_round_robin_does():
    used = [on(GPU, alone, key=str(alone)) for alone in (100.0, 200.0, 400.0)]
    shares = together(used, pairs(used, turns_of_two))
    each = 1.0 / sum(1.0 / one.per_s for one in used)  # requests of each per second
    np.testing.assert_allclose(shares, [each / one.per_s for one in used], rtol=1e-3)


@pytest.mark.parametrize(("moves", "expected"), [(True, 1 / 1.5), (False, 1 / 2)])
def test_threads_that_find_free_cores_feel_less_than_the_sum_of_the_others(moves, expected):
    used = [on(CPU, 100.0, moves=moves, key=name) for name in "abcde"]
    shares = together(used, pairs(used, lambda one, other: 80.0))
    np.testing.assert_allclose(shares, expected, rtol=1e-3)  # four times 0.25


def test_a_model_by_a_clock_adds_as_little_as_it_is_busy():
    closed, idle = on(GPU, 100.0, key="a"), on(GPU, 100.0, asked=5.0, key="b")
    share, of_idle = together([closed, idle], pairs([closed, idle], turns_of_two))
    assert share == pytest.approx(1 / 1.1, rel=0.01)  # b would add as much as a, at half its rate
    assert of_idle == pytest.approx(0.5, rel=0.01)  # what b could have, if it asked for more


def test_the_slowest_requests_meet_those_that_are_rarely_busy():
    one, often, rarely = (
        on(GPU, 100.0, asked, key) for key, asked in (("a", 10.0), ("b", 40.0), ("c", 0.1))
    )
    known = pairs([one, often, rarely], turns_of_two)
    tails = tails_us([one, often], known)
    np.testing.assert_allclose(tails, [10_000.0] * 2, rtol=1e-6)  # one request of the other
    assert tails_us([one, rarely], known)[0] == 0.0  # they meet in 2 of 1,000
    assert tails_us([one, often, often], known)[0] == pytest.approx(20_000.0)


def test_what_was_not_measured_is_supposed():
    same, other = on(GPU, key="a"), on(GPU, 300.0, key="b")
    shares = together([same, other], pairs([], turns_of_two))
    np.testing.assert_allclose(shares, [0.75, 0.25], rtol=1e-3)
    shares = together([same, on(CPU, key="c")], pairs([], turns_of_two))
    assert min(shares) > 0.9


def test_what_is_foretold_grows_with_the_others_and_near_the_limit():
    alone = on(GPU, 1000.0, asked=100.0)  # 3 ms
    assert alone.foretold_p99_us(1e9, 0.0) == pytest.approx(3000.0)
    assert alone.foretold_p99_us(1e9, 3000.0) == pytest.approx(6000.0)
    assert alone.foretold_p99_us(200.0, 0.0) == pytest.approx(6000.0)  # half of the time
    assert alone.foretold_p99_us(101.0, 0.0) > 10 * 3000.0  # the queue hardly empties


@pytest.mark.parametrize("n_models", [3, 9])
def test_the_search_finds_the_best_assignment(n_models):
    names = [f"m{n}" for n in range(n_models)]
    options = {name: ["GPU", "CPU", "few", "AUTO"] for name in names}  # 4**9 are not all tried

    def score(chosen) -> float:
        load = {way: sum(way == own for own in chosen.values()) for way in options["m0"]}
        return -sum(count * count * (1 + (way == "AUTO")) for way, count in load.items())

    found = search(options, score, most=5)
    assert len(found) == 5
    best = max(score(chosen) for chosen in found)
    assert score(found[0]) == best == {3: -3, 9: -24}.get(n_models, best)
