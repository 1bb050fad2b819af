"""hetero-lab investigate."""

from __future__ import annotations


def test_investigate_prints_a_verdict(said):
    arguments = ["investigate", "digits_inception", "-d", "HETERO:ACC,CPU", "--emulate", "ACC"]
    arguments += ["--property", "ACC.INFERENCE_PRECISION_HINT=f32"]
    assert said(*arguments).startswith("No symptom. No output is off by more than")


def test_a_tolerance_below_zero_is_refused(refused):
    told = refused("investigate", "digits_inception", "-d", "CPU", "--tolerance", "-1")
    assert "--tolerance is a relative error above 0" in told
