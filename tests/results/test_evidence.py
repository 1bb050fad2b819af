"""What evidence says of plans, baselines and candidates, and of what there was no time for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from widgets.hand_sweeps import failed_row, measured_row, small_sweep

from hetero_lab.intervals import ASSUMED_NOISE, Noise, Ratio
from hetero_lab.results.evidence import decide, finding, judge_candidates, reason
from hetero_lab.results.sweep_row import BUDGET_ENDED, INTERRUPTED

LATE = {BUDGET_ENDED: "Turns of 1 placement are missing, which need about 9 s.", INTERRUPTED: ""}


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


def test_what_was_decided_is_the_judgement_of_the_table():
    """A split that leads by chance: the ranking names the same winner as the verdict."""
    profile = small_sweep().rows[0].profile
    factors = {"greedy": 1.0, "CPU": 0.5, "split": 0.45}
    rows = {
        label: measured_row(label, profile, factor, Noise(0.05, 0.0, 12))
        for label, factor in factors.items()
    }
    decision = decide(rows, ["greedy", "CPU"], list(rows))
    assert (decision.label, decision.finding) == ("CPU", "undecided")
    sweep = replace(small_sweep(), rows=tuple(rows.values()), reference="greedy")
    assert sweep.ranking["label"].iloc[0] == "split"
    shown = replace(sweep, decided={decision.label: "best", **decision.findings})
    ranking = shown.ranking.set_index("label")
    assert list(ranking.index) == ["CPU", "split", "greedy"]
    assert list(ranking["finding"]) == ["best", "undecided", "slower"]
    assert list(ranking["group"]) == [1, 1, 2]
    assert str(shown).startswith("Best: 'CPU'")


def test_a_gain_on_an_emulated_device_says_so():
    decision = decided(greedy=1.0, candidate=0.5)
    assert decision.finding == "faster"
    assert decision.verdict.endswith("), with ACC emulated.")
    assert "with ACC emulated" not in decided(greedy=1.0, candidate=2.0).verdict
    profile = small_sweep().rows[0].profile
    rows = (measured_row("greedy", profile), measured_row("fast", profile, 0.5))
    assert ", with ACC emulated." in str(replace(small_sweep(), rows=rows, reference="greedy"))


@pytest.mark.parametrize("how", LATE)
@pytest.mark.parametrize(("factor", "label"), [(0.5, "candidate"), (2.0, "greedy")])
def test_a_baseline_that_time_did_not_allow_is_named(how, factor, label):
    decision = decided(greedy=1.0, CPU=how, candidate=factor)
    assert decision.label == label
    assert (decision.finding == "faster") == (label == "candidate")
    assert decision.verdict.endswith("There was no time to measure CPU.")


def test_without_any_baseline_no_plan_is_said_to_be_faster():
    decision = decided(greedy=BUDGET_ENDED, CPU=BUDGET_ENDED, candidate=1.0)
    assert decision.label == "candidate"
    assert decision.finding == "undecided"
    assert "no time to measure greedy, CPU" in decision.verdict


def test_what_was_not_measured_is_not_compared():
    nothing = decided(greedy="failed", CPU=BUDGET_ENDED, candidate="failed")
    assert nothing[:3] == (
        "candidate",
        "Nothing that keeps to the limits was measured: this is the plan. There was no time to "
        "measure CPU.",
        "undecided",
    )
    assert decided(greedy="failed", CPU="failed").label == "greedy"
    alone = decided(greedy="failed", candidate=1.0)
    assert alone[:3] == (
        "candidate",
        "No baseline keeps to the limits; this plan does.",
        "undecided",
    )
    best = decided(greedy=1.0, CPU=0.5, candidate="failed")
    assert best[:3] == (
        "CPU",
        "CPU is the best baseline; no plan was measured beside it.",
        "undecided",
    )


def test_a_baseline_that_does_not_run_is_no_lack_of_time():
    decision = decided(greedy=1.0, CPU="failed", candidate=0.5)
    assert decision.finding == "faster"
    assert "time" not in decision.verdict


def test_the_measured_noise_decides():
    quiet, loud = Noise(0.002, 0.0, 12), Noise(0.05, 0.0, 12)
    assert decided(quiet, greedy=1.0, candidate=0.97).finding == "faster"
    undecided = decided(loud, greedy=1.0, candidate=0.97)
    assert (undecided.label, undecided.finding) == ("greedy", "undecided")
    assert undecided.verdict.startswith("Undecided whether candidate is faster than greedy")


def test_the_simplest_stays_until_another_is_shown_to_be_faster():
    def best(ratio):
        us = {"simple": 1.0, "fast": ratio.middle}
        return judge_candidates(us, lambda a, _: ratio if a == "fast" else None)

    assert best(Ratio(0.8, 0.6, 1.1, 0.2)) == {"simple": "best", "fast": "undecided"}
    assert best(Ratio(0.8, 0.7, 0.9, 1e-4))["fast"] == "best"
    # The fastest scatters too much to show anything, but another one is shown to be faster.
    ratios = {"wide": Ratio(0.8, 0.5, 1.3, 0.3), "sure": Ratio(0.9, 0.88, 0.92, 1e-9)}
    us = {"simple": 1.0, "sure": 0.9, "wide": 0.8}
    findings = judge_candidates(us, lambda a, b: ratios.get(a) if b == "simple" else None)
    assert findings["sure"] == "best"


RATIOS = {
    "faster": Ratio(0.97, 0.96, 0.98, 1e-6),
    "as fast": Ratio(1.0, 0.97, 1.03, 0.9),
    "undecided": Ratio(1.02, 0.9, 1.3, 0.6),
    "slower": Ratio(1.5, 1.4, 1.6, 1e-9),
}


@pytest.mark.parametrize("word", RATIOS)
def test_a_comparison_has_four_findings(word):
    assert finding(RATIOS[word]) == word
    assert finding(None) == "undecided"
    # Among many comparisons a difference may be chance.
    assert finding(RATIOS["faster"], p=0.2) == "as fast"
    assert finding(RATIOS["slower"], p=0.2) == "undecided"
    assert "from 0.900 to 1.300" in reason(RATIOS["undecided"])


def test_of_what_is_about_as_fast_the_simplest_is_best():
    us = {"a": 100.5, "b": 100.0, "c": 101.0, "d": 150.0, "e": 103.0}
    word = {"b": "as fast", "c": "as fast", "d": "slower", "e": "undecided"}

    def ratio(key, best):
        return RATIOS[word.get(key, "as fast")]

    assert judge_candidates(us, ratio) == {"a": "best", **word}
    assert judge_candidates(us, ratio, preferred=["d"])["b"] == "best"
    assert judge_candidates({}, ratio) == {}
