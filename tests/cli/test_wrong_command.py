"""hetero-lab find-wrong and investigate."""

from __future__ import annotations

import json

from hand_costs import flat_costs

from hetero_lab.model.read import prepare

SPLIT = ["digits_inception", "-d", "HETERO:ACC,CPU", "--emulate", "ACC"]
SPLIT += ["--property", "ACC.INFERENCE_PRECISION_HINT=f32"]


def test_a_verdict_is_printed_and_exported(tmp_path, said):
    assert "Nothing is wrong" in said("find-wrong", *SPLIT, "--export", str(tmp_path))
    assert set(json.loads((tmp_path / "devices.json").read_text()).values()) == {"ACC"}
    assert said("investigate", *SPLIT).startswith("No symptom. No output is off by more than")


def test_costs_are_read_from_a_file(tmp_path, said):
    costs_file = str(tmp_path / "costs.json")
    flat_costs(prepare("digits_inception").graph).to_json(costs_file)
    assert "(relative" in said("find-wrong", "digits_inception", "-d", "CPU", "--costs", costs_file)


def test_a_tolerance_below_zero_is_refused(refused):
    told = refused("investigate", "digits_inception", "-d", "CPU", "--tolerance", "-1")
    assert "--tolerance is a relative error above 0" in told
