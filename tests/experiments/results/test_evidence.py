"""What evidence says of plans, baselines and candidates, and of what there was no time for."""

from __future__ import annotations

import pytest
from widgets.hand_sweeps import failed_row, measured_row, small_sweep

from hetero_lab.experiments.results.evidence import decide, judged
from hetero_lab.experiments.results.sweep.row import BUDGET_ENDED, INTERRUPTED
from hetero_lab.statistics import ASSUMED_NOISE, Noise

LATE = {BUDGET_ENDED: "The rest of the sweep (1 placements) needs about 9 s.", INTERRUPTED: ""}


def decided(noise=ASSUMED_NOISE, **factors):
    """Decide between rows by what they take as a share of greedy, or why they were not measured."""
    profile = small_sweep().rows[0].profile
    assert profile is not None
    rows = {
        label: failed_row(label, how, LATE.get(how, "It cannot run that op."))
        if isinstance(how, str)
        else measured_row(label, profile, how, noise)
        for label, how in factors.items()
    }
    baselines = [label for label in rows if not label.startswith("candidate")]
    return decide(rows, baselines, list(rows))


@pytest.mark.parametrize("how", LATE)
@pytest.mark.parametrize(("factor", "label"), [(0.5, "candidate"), (2.0, "greedy")])
def test_a_baseline_that_time_did_not_allow_is_named(how, factor, label):
    decision = decided(greedy=1.0, CPU=how, candidate=factor)
    assert decision.label == label
    assert decision.improved == (label == "candidate")
    assert decision.verdict.endswith("There was no time to measure CPU.")


def test_without_any_baseline_no_plan_is_said_to_be_faster():
    decision = decided(greedy=BUDGET_ENDED, CPU=BUDGET_ENDED, candidate=1.0)
    assert decision.label == "candidate"
    assert not decision.improved
    assert "no time to measure greedy, CPU" in decision.verdict


def test_a_baseline_that_does_not_run_is_no_lack_of_time():
    decision = decided(greedy=1.0, CPU="failed", candidate=0.5)
    assert decision.improved
    assert "time" not in decision.verdict


def test_the_measured_noise_decides():
    quiet, loud = Noise(0.002, 0.0, 12), Noise(0.05, 0.0, 12)
    assert decided(quiet, greedy=1.0, candidate=0.97).improved
    undecided = decided(loud, greedy=1.0, candidate=0.97)
    assert (undecided.label, undecided.improved) == ("greedy", False)
    assert "measurably" in undecided.verdict


def test_of_what_is_about_as_fast_the_simplest_is_best():
    def slower(key, best):
        return key == "d"

    us = {"a": 100.5, "b": 100.0, "c": 101.0, "d": 150.0}
    assert judged(us, slower) == {"a": "best", "b": "as fast", "c": "as fast", "d": "slower"}
    assert judged(us, slower, preferred=["d"])["b"] == "best"
    assert judged({}, slower) == {}
