"""Minimal failing sets, on predicates that are known."""

from __future__ import annotations

import itertools
import random

import pytest

from hetero_lab.debug.minimal_sets import minimal_set, overlapping_sets


class Counted:
    """Fails where a set contains all of ``together``."""

    def __init__(self, together):
        self.together, self.n = set(together), 0

    def __call__(self, chosen):
        self.n += 1
        assert chosen
        return self.together <= set(chosen)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_set_is_found_wherever_it_is(size):
    for together in itertools.combinations(range(9), size):
        assert minimal_set(range(9), Counted(together)) == list(together)


def test_neighbours_of_a_thousand_take_few_tests():
    fails = Counted([517, 518])
    assert minimal_set(range(1000), fails) == [517, 518]
    assert fails.n <= 20


def test_what_more_items_mend_is_minimal_all_the_same():
    """Sets that hold 5 fail only with 4; where 4 to 6 are all there, nothing fails."""
    rng = random.Random(0)
    for _ in range(50):
        mends = rng.randrange(20)

        def fails(chosen, mends=mends):
            return {4, 5} <= set(chosen) and (mends not in chosen or len(chosen) == 20)

        found = minimal_set(range(20), fails)
        assert fails(found)
        assert all(not (rest := [o for o in found if o != x]) or not fails(rest) for x in found)


def test_sets_that_share_items_are_all_found_by_leaving_out_known_ones():
    failing = [frozenset(text) for text in ("ab", "bc", "cd", "ae")]

    def fails(chosen):
        return any(each <= set(chosen) for each in failing)

    found = [*map(frozenset, overlapping_sets("abcde", ["ab", "cd"], fails, lambda: None))]
    assert len(found) == 2
    assert set(found) == {frozenset("bc"), frozenset("ae")}


def test_the_first_ways_to_break_thirty_disjoint_pairs_are_tried_at_once():
    pairs, tried, steps = [(n, -n) for n in range(1, 31)], [], []

    def fails(chosen):
        tried.append(tuple(chosen))
        assert len(chosen) == 30
        return False

    def check():
        steps.append(None)
        if len(tried) == 64:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        list(overlapping_sets([*itertools.chain(*pairs)], pairs, fails, check))
    assert len(set(tried)) == 64
    assert len(steps) < 1000
