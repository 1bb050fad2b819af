"""hetero-lab find-wrong."""

from __future__ import annotations

import json

from hetero_lab.cli.main import main
from hetero_lab.model.read import prepare
from tests.proof.test_security import made_costs


def test_find_wrong_prints_a_verdict_and_exports(tmp_path, capsys):
    arguments = ["find-wrong", "digits_inception", "-d", "HETERO:ACC,CPU", "--emulate", "ACC"]
    arguments += ["--property", "ACC.INFERENCE_PRECISION_HINT=f32", "--export", str(tmp_path)]
    assert main(arguments) == 0
    assert "Nothing is wrong" in capsys.readouterr().out
    assert set(json.loads((tmp_path / "devices.json").read_text()).values()) == {"ACC"}


def test_costs_are_read_from_a_file(tmp_path, capsys):
    (tmp_path / "costs.json").write_text("{}")
    arguments = ["find-wrong", "digits_inception", "-d", "CPU", "--costs"]
    assert main([*arguments, str(tmp_path / "costs.json")]) == 2
    assert "is not a stored cost model" in capsys.readouterr().err
    costs = made_costs(prepare("digits_inception").graph)
    costs.to_json(tmp_path / "costs.json")
    assert main([*arguments, str(tmp_path / "costs.json")]) == 0
    assert "(relative" in capsys.readouterr().out
