"""Minimal failing sets, on predicates that are known."""

from __future__ import annotations

import itertools
import random

import pytest

from hetero_lab.debug.minimal_sets import hitting_sets, minimal_set


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


def test_items_that_are_near_are_asked_first():
    fails = Counted([3, 900])
    near = {900: [3]}
    found = minimal_set(
        range(1000),
        fails,
        lambda item, others: [
            *near.get(item, []),
            *(o for o in others if o not in near.get(item, [])),
        ],
    )
    assert found == [3, 900]
    assert fails.n <= 18


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
    known, enough = [frozenset("ab")], []
    for out in hitting_sets(known, enough):
        missed = next((items for items in failing if items.isdisjoint(out)), None)
        known.append(missed) if missed else enough.append(out)
    assert sorted(known, key=sorted) == sorted(failing, key=sorted)
    assert {frozenset("ac"), frozenset("bce"), frozenset("bde")} <= set(enough)


def test_the_first_ways_to_hit_thirty_disjoint_pairs_are_found_at_once():
    known, enough, steps = [frozenset((n, -n)) for n in range(1, 31)], [], []
    for out in itertools.islice(hitting_sets(known, enough, lambda: steps.append(None)), 64):
        assert len(out) == 30
        enough.append(out)
    assert len(set(enough)) == 64
    assert len(steps) < 1000
