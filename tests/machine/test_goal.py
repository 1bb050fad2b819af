"""What a plan strives for, by turns that a test makes up."""

from __future__ import annotations

import math

import pytest

import hetero_lab as hl
from hetero_lab.machine.demand import Goal, holds
from hetero_lab.machine.race import Together
from hetero_lab.measure.loads import Driven

CLOSED = hl.Demand("digits_inception")
TIMED = hl.Demand("digits_inception", rate_per_s=100, deadline_ms=10)
ALONE = {"closed": 200.0, "timed": 500.0}


def goal(objective: str) -> Goal:
    return Goal(objective, {"closed": CLOSED, "timed": TIMED}, ALONE)


def turn(closed_per_s: float, timed_per_s: float, *late_us: float) -> dict[str, Driven]:
    latencies = (*[1000.0] * (100 - len(late_us)), *late_us)
    return {
        "closed": Driven(rate_per_s=closed_per_s, latencies_us=(5000.0,), n_due=1),
        "timed": Driven(rate_per_s=timed_per_s, latencies_us=latencies, n_due=100),
    }


def served(n: int, us: float = 1000.0) -> Driven:
    """Return a turn that served ``n`` of 100 requests."""
    return Driven(rate_per_s=float(n), latencies_us=(us,) * n, n_due=100)


def test_a_share_is_of_the_rate_alone_or_of_what_is_asked_for():
    assert goal("share").cost(turn(50, 100)) == pytest.approx(4.0)  # a quarter of 200
    assert goal("share").cost(turn(200, 50)) == pytest.approx(2.0)  # half of 100, not of 500
    assert goal("throughput").cost(turn(100, 100)) == pytest.approx(1 / 0.75)


def test_a_deadline_is_as_good_as_its_slowest_requests():
    timed = goal("deadlines")
    assert timed.cost(turn(1, 100)) == pytest.approx(0.1)  # 1 of 10 ms
    late = turn(1, 100, *[20_000.0] * 5)
    assert timed.cost(late) == pytest.approx(2.05)  # and 5 of 100 late
    few, most = (timed.cost({"timed": served(n, us=9000.0)}) for n in (97, 10))
    assert few < most / 1.5  # to lose few is better than to lose most


def test_what_was_given_up_counts_in_one_turn_and_in_several():
    timed, turns = goal("deadlines"), ({"timed": served(100)}, {"timed": served(20)})
    both = Together("", {"timed": "CPU"}, {}, turns=turns).pooled["timed"]
    for driven, missed in ((served(50), 0.5), (both, 0.4)):
        assert timed.missed("timed", driven) == pytest.approx(missed)
        assert timed.p99_us("timed", driven) == 10_000.0  # as long as it may wait
    assert math.isnan(goal("share").missed("closed", both))


def test_a_deadline_holds_while_one_of_a_hundred_is_late():
    assert holds(0.01)
    assert not holds(0.02)
    assert holds(math.nan)  # there is none


@pytest.mark.parametrize("objective", ["share", "throughput", "deadlines"])
def test_a_set_in_which_all_could_get_more_is_foretold_as_better(objective):
    found = [
        goal(objective).foretold({"closed": rate, "timed": 2 * rate}, {"timed": 1e6 / rate})
        for rate in (60.0, 120.0, 180.0)
    ]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 3
