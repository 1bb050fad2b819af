"""What a budget allows: the pure plan, and sweeps whose budget is too small for everything."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from small_models import convolutions

import hetero_lab as hl
from hetero_lab.measure.stopping import FULL, TurnPlan, affordable

SLOW = partial(TurnPlan.needs_s, ready_s=0.5, inference_s=0.1, group_size=8)
FAST = partial(TurnPlan.needs_s, ready_s=0.1, inference_s=1e-4, group_size=8)


def plan(left_s, n, needs_s, turns=8):
    return affordable(left_s, n, turns, needs_s)


def test_with_time_enough_every_placement_has_full_turns():
    assert plan(1000.0, 20, SLOW) == TurnPlan(20, 8)
    assert plan(10.0, 20, FAST) == TurnPlan(20, 8)


def test_fewer_turns_come_before_shorter_ones_and_those_before_fewer_placements():
    needs = [SLOW(TurnPlan(20, n)) for n in (8, 4, 2)]
    assert plan(needs[1], 20, SLOW) == TurnPlan(20, 4)
    assert plan(needs[2], 20, SLOW) == TurnPlan(20, 2)
    shorter = plan(0.5 * needs[2], 20, SLOW)
    assert shorter.n_placements >= 15
    assert shorter.inferences < FULL
    assert 0 < plan(6.0, 20, SLOW).n_placements < 20
    assert plan(0.3, 5, SLOW).n_placements == plan(-1.0, 5, SLOW).n_placements == 0


def test_of_a_fast_model_turns_are_not_cut_since_that_would_gain_no_placement():
    turn_plan = plan(1.0, 20, FAST)
    assert (turn_plan.turns, turn_plan.inferences) == (8, FULL)
    assert 5 <= turn_plan.n_placements < 20


@pytest.mark.parametrize("needs_s", [SLOW, FAST])
def test_what_is_planned_fits_and_more_time_never_covers_much_less(needs_s):
    covered = []
    for left_s, n in itertools.product([0.05, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0], [1, 2, 7, 20]):
        turn_plan = plan(left_s, n, needs_s)
        assert 0 <= turn_plan.n_placements <= n
        if turn_plan.n_placements:
            assert needs_s(turn_plan) <= left_s
        if n == 20:
            covered.append(turn_plan.n_placements)
    for before, after in itertools.pairwise(covered):
        assert after >= 0.75 * before


def test_a_sweep_without_time_says_what_it_needs():
    hl.emulate("ACC", unsupported={"Concat"})
    sweep = hl.sweep("digits_inception", hl.priority_orders(["ACC", "CPU"]), budget_s=1e-3,
                     isolate=False, counters=False, progress=False)  # fmt: skip
    left = sweep.summary.loc[sweep.summary["status"] != "ok"]
    assert set(left["status"]) == {"not measured: time budget used up"}
    assert all("need about" in detail for detail in left["detail"])
    assert "went into starting workers" in sweep.report()


def test_calls_on_one_store_come_to_an_end(tmp_path):
    hl.emulate("ACC", unsupported={"Concat"})
    model = hl.load(convolutions(8))
    cpu = hl.Affinity.uniform(model, "CPU")
    placements = [
        hl.Placement(cpu.fix(ops=dict.fromkeys(cpu.ops[:n], "ACC")), f"cut{n}") for n in (1, 3, 5)
    ]
    budget_s, before = 0.3, 0
    while True:
        sweep = hl.sweep(model, placements, budget_s=budget_s, store=tmp_path, isolate=False,
                         counters=False, reference=False, progress=False)  # fmt: skip
        n_turns = sweep.summary["n_turns"]
        if (n_turns >= 8).all():
            break
        if n_turns.sum() == before:  # there was no time for the reference, which is said
            assert "are missing, which need about" in sweep.report()
            budget_s *= 2
        assert n_turns.sum() >= before
        before = int(n_turns.sum())
    assert set(sweep.summary["status"]) == {"ok"}
