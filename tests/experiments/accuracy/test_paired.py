"""Shares of right answers and their paired differences."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_lab.errors import ArgumentError
from hetero_lab.statistics import paired_drop, wilson_interval


def test_wilson_interval_is_that_of_the_book():
    # Wilson's interval of 7 of 10, as SciPy has it.
    from scipy import stats

    for right, n in ((7, 10), (0, 5), (5, 5), (480, 500)):
        expected = stats.binomtest(right, n).proportion_ci(method="wilson")
        assert wilson_interval(right, n) == pytest.approx(tuple(expected), abs=1e-9)
    assert wilson_interval(5, 5)[1] == 1.0
    with pytest.raises(ArgumentError):
        wilson_interval(0, 0)


def test_paired_drop_counts_what_changed():
    before = [True] * 8 + [False] * 2
    after = [True] * 5 + [False] * 3 + [True] + [False]
    found = paired_drop(before, after)
    assert (found.n, found.lost, found.won) == (10, 3, 1)
    assert found.drop == pytest.approx(0.2)
    # 2 / 12 ± 1.96 · sqrt(4 + 1 − 4/12) / 12 (Agresti and Min 2005)
    half = 1.959964 * np.sqrt(5 - 4 / 12) / 12
    assert (found.low, found.high) == pytest.approx((2 / 12 - half, 2 / 12 + half), abs=1e-6)
    # 3 or more of 4 on one side, twice: 2 · (4 + 1) / 16
    assert found.p == pytest.approx(0.625)


def test_the_interval_holds_what_it_promises():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        u = rng.random(300)
        before, after = u > 0.03, u < 0.94  # 3 % won, 6 % lost: a drop of 3 %
        found = paired_drop(before, after)
        held += found.low <= 0.03 <= found.high
    assert held / 400 >= 0.92


def test_no_change_is_no_difference():
    found = paired_drop([True, False], [True, False])
    assert (found.drop, found.p) == (0.0, 1.0)
    assert found.low < 0.0 < found.high


@pytest.mark.parametrize("sizes", [(0, 0), (2, 3)])
def test_answers_that_do_not_pair_are_refused(sizes):
    with pytest.raises(ArgumentError, match="Paired answers"):
        paired_drop(*([True] * n for n in sizes))
