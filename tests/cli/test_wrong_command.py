"""hetero-lab find-wrong."""

from __future__ import annotations

import json

from hand_costs import flat_costs

from hetero_lab.model.read import prepare


def test_find_wrong_prints_a_verdict_and_exports(tmp_path, said):
    arguments = ["find-wrong", "digits_inception", "-d", "HETERO:ACC,CPU", "--emulate", "ACC"]
    arguments += ["--property", "ACC.INFERENCE_PRECISION_HINT=f32", "--export", str(tmp_path)]
    assert "Nothing is wrong" in said(*arguments)
    assert set(json.loads((tmp_path / "devices.json").read_text()).values()) == {"ACC"}


def test_costs_are_read_from_a_file(tmp_path, said, refused):
    (tmp_path / "costs.json").write_text("{}")
    arguments = ["find-wrong", "digits_inception", "-d", "CPU", "--costs"]
    costs_file = str(tmp_path / "costs.json")
    assert "is not a stored cost model" in refused(*arguments, costs_file)
    costs = flat_costs(prepare("digits_inception").graph)
    costs.to_json(costs_file)
    assert "(relative" in said(*arguments, costs_file)
