"""plan and apply from the command line and %hetero_plan."""

from __future__ import annotations

import functools
import operator
import xml.etree.ElementTree as ET
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hand_costs import flat_costs
from html_outline import Outline
from openvino import opset13 as opset
from plain_openvino import edit_placement
from small_models import chain

import hetero_lab as hl
from hetero_lab.cli import main as cli, texts
from hetero_lab.costs.cost_model import CostModel, ValidationRow
from hetero_lab.errors import warn
from hetero_lab.model.read import prepare
from hetero_lab.tables import time_text

EMULATE = ["--emulate", "PLANACC:unsupported=Softmax"]
MODEL = "digits_inception"


def made_costs() -> CostModel:
    """PLANACC is three times as fast in everything but Softmax."""
    return flat_costs(
        prepare(MODEL).graph, devices=("PLANACC", "CPU"), lacks={"Softmax"},
        environment={"host": "elsewhere", "openvino_version": "2026.4"},
        device_properties={"CPU": {"INFERENCE_PRECISION_HINT": "f32"}},
    )  # fmt: skip


@pytest.fixture
def costs_file(tmp_path):
    made_costs().to_json(tmp_path / "costs.json")
    return str(tmp_path / "costs.json")


@pytest.fixture
def other_model(tmp_path) -> str:
    ov.save_model(chain("one", "two"), tmp_path / "other.xml")
    return str(tmp_path / "other.xml")


def test_a_plan_from_stored_costs(costs_file, tmp_path, said):
    out, file = str(tmp_path / "plan.json"), tmp_path / "plan.html"
    written = ["--affinity-out", out, "--html", str(file)]
    text = said("plan", MODEL, "--costs", costs_file, *written, *EMULATE)
    affinity = hl.Affinity.from_json(out)
    costs = made_costs()
    softmax = [op.name for op in costs.graph if op.type == "Softmax"]
    assert {op for op in affinity.ops if affinity[op] == "CPU"} >= set(softmax)
    plan = hl.plan(MODEL, costs)
    assert plan.affinity == affinity
    assert plan.to_dict()["verdict"].startswith("Place ")
    lines = text.splitlines()
    assert "elsewhere, OpenVINO 2026.4" in text
    assert "not validated: give more time with --budget" in text
    cpu = costs.predict_us(hl.Affinity.uniform(MODEL, "CPU"))
    table = " ".join(text.split())
    assert f" plan {time_text(plan.predicted_us)} " in table
    assert f" CPU {time_text(cpu)} " in table
    assert f"lower bound {time_text(plan.lower_bound_us)}" in table
    assert "\nHETERO:PLANACC,CPU " in text
    assert "PLANACC alone cannot run every op." in text
    assert "Lint:" in text
    assert lines[-3:-1] == [f"Written: {out}", f"Written: {file}"]
    assert lines[-1].startswith(f"Next:  hetero-lab apply {MODEL} {out}")
    page = Outline(file.read_text(encoding="utf-8")).text
    heading = page["h2"][0]
    assert heading.startswith("Place ")
    assert heading.endswith(f": predicted latency {time_text(plan.predicted_us)}.")
    assert "Proven: no allowed placement is predicted to be faster." in page["p"]
    assert [name for name in page["a"] if name.strip()] == ["Plan", "Costs"]
    assert {"against the plan", "may be off by"} <= {*page["th"]}


def test_new_costs_are_kept_and_their_note_is_said_once(said, capsys, monkeypatch, tmp_path):
    note = "The time allowed 1 placement."
    rows = (ValidationRow("a", 100.0, 102.0), ValidationRow("b", 50.0, 48.0))
    known = replace(made_costs(), notes=(note,), validation_rows=rows)

    @functools.wraps(hl.calibrate)
    def calibrate(*_, **options):
        warn(note, hl.BudgetWarning)
        return known

    monkeypatch.setattr(hl, "calibrate", calibrate)
    costs = str(tmp_path / "new.json")
    arguments = ["plan", MODEL, "-d", "PLANACC,CPU", *EMULATE, "--costs", costs]
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert (out + err).count(note) == 1
    assert "Costs: measured now" in out
    assert "off by 3.1% on average on 2 placements not fitted to" in out
    assert f"Written: {costs}\n" in out
    assert "Written" not in said(*arguments[:-2])
    again = said(*arguments)
    assert again.count(note) == 1
    assert f"Costs: from {costs}" in again
    assert again.split("Costs:")[0] == out.split("Costs:")[0]  # the same plan


def test_pins_limits_and_the_solver_reach_the_plan(costs_file, tmp_path, said, refused):
    out = str(tmp_path / "plan.csv")
    arguments = [
        "plan", MODEL, "--costs", costs_file, "--affinity-out", out, *EMULATE, "-q",
        "--pin", "^mixed1/=CPU", "--objective", "throughput",
    ]  # fmt: skip
    assert said(*arguments) == ""
    affinity = hl.Affinity.from_csv(out)
    assert {affinity[op] for op in affinity.ops if op.startswith("mixed1/")} == {"CPU"}
    for option, value, says in [
        ("--memory-limit", "CPU=1", "No placement keeps within memory_limit"),
        ("--memory-limit", "PLANACC,CPU=1", "memory_limit (PLANACC and CPU 1 B): "),
        ("--solver", "milk", "no solver 'milk'. Did you mean 'milp'?"),
    ]:
        assert says in refused(*arguments, option, value)
    solved = said("plan", MODEL, "--costs", costs_file, *EMULATE, "--solver", "milp")
    assert "(milp, repaired)" in solved


def test_a_plan_for_devices_of_another_machine_is_linted_by_what_the_costs_know(
    costs_file, tmp_path, said
):
    elsewhere = Path(costs_file).read_text().replace("PLANACC", "GPU.7")
    (tmp_path / "gpu.json").write_text(elsewhere)
    text = said("plan", MODEL, "--costs", str(tmp_path / "gpu.json"))
    assert "91 ops on GPU.7, 1 op on CPU" in text
    assert "Lint:  1 finding (1 tiny-subgraph): GPU.7 cannot run Softmax." in text


def test_costs_that_do_not_fit_are_refused(costs_file, other_model, tmp_path, refused):
    def err(*arguments: str) -> str:
        return refused("plan", *arguments, *EMULATE)

    assert "belongs to another model" in err(other_model, "--costs", costs_file)
    assert "hold for: PLANACC,CPU" in err(MODEL, "-d", "CPU,PLANACC", "--costs", costs_file)
    bf16 = "CPU.INFERENCE_PRECISION_HINT=bf16"
    assert "not measured with" in err(MODEL, "--costs", costs_file, "--property", bf16)
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert "not a stored cost model" in err(MODEL, "--costs", str(broken))


def test_apply_an_affinity(tmp_path, said):
    hl.emulate("PLANACC", unsupported={"Softmax"})
    auto = hl.Affinity.automatic(MODEL, "HETERO:PLANACC,CPU")
    auto.to_json(tmp_path / "plan.json")
    f32 = ["--property", "CPU.INFERENCE_PRECISION_HINT=f32"]
    text = said("apply", MODEL, str(tmp_path / "plan.json"), *EMULATE, "-n", "10", "--table", *f32)
    partition = hl.partition(MODEL, auto)
    assert f"Partition:  {partition.n_subgraphs} subgraph" in text
    assert "(observed)" in text
    assert "Latency:    median" in text
    assert "2 outputs compared with the f32 reference" in text
    table = text.split("SUBGRAPH  DEVICE")[1].split("\n\n")[0].splitlines()[1:]
    assert [line.split()[1] for line in table] == [s.device for s in partition.subgraphs]
    assert [int(line.split()[2]) for line in table] == [len(s.ops) for s in partition.subgraphs]


def test_apply_a_frozen_placement(tmp_path, said):
    hl.emulate("PLANACC", unsupported={"Softmax"})
    hl.freeze(MODEL, "HETERO:PLANACC,CPU", tmp_path / "frozen", tolerance=None)
    text = said("apply", MODEL, str(tmp_path / "frozen"), "-n", "10")
    n_subgraphs = hl.partition(MODEL, "HETERO:PLANACC,CPU").n_subgraphs
    assert f"Partition:  {n_subgraphs} subgraph" in text
    assert "2 outputs compared with the f32 reference" in text
    assert "PLANACC (emulated on CPU)" in text


def test_apply_takes_the_shapes_from_the_directory(tmp_path, said):
    data = opset.parameter([-1, 4], np.float32, name="x")
    dynamic = str(tmp_path / "dynamic.xml")
    ov.save_model(ov.Model([opset.relu(data)], [data]), dynamic)
    hl.freeze(hl.load(dynamic, [3, 4]), "CPU", tmp_path / "frozen", tolerance=None)
    assert "on CPU" in said("apply", dynamic, str(tmp_path / "frozen"), "-n", "10")


def test_wrong_outputs_are_code_1(tmp_path, said):
    """Weights that change on disk after freezing show in the outputs."""
    frozen = hl.freeze(MODEL, "CPU", tmp_path / "frozen", tolerance=None)
    weights = bytearray((frozen / "model.bin").read_bytes())
    for data in ET.parse(frozen / "model.xml").iterfind("layers/layer[@type='Const']/data"):
        start, size = int(data.get("offset", "")), int(data.get("size", ""))
        if data.get("element_type") == "f32" and size > 1000:
            weights[start : start + size] = bytes(size)
    (frozen / "model.bin").write_bytes(weights)
    text = said("apply", MODEL, str(tmp_path / "frozen"), "-n", "10", code=1)
    assert "2 of 2 outputs wrong" in text


def test_what_cannot_be_applied_says_why(tmp_path, refused, costs_file, other_model):
    hl.emulate("PLANACC", unsupported={"Softmax"})

    def err(model: str, stored, *more: str) -> str:
        return refused("apply", model, str(stored), *more)

    frozen = hl.freeze(MODEL, "HETERO:PLANACC,CPU", tmp_path / "frozen", tolerance=None)
    assert "does not exist" in err(MODEL, tmp_path / "nothing.json")
    assert "no model.xml" in err(MODEL, tmp_path)
    assert "another model" in err(other_model, frozen)
    assert "own properties" in err(MODEL, frozen, "--property", "CPU.X=1")
    assert "not a stored affinity" in err(MODEL, costs_file)
    hl.Affinity.automatic(MODEL, "CPU").to_json(tmp_path / "cpu.json")
    assert "another model" in err(other_model, tmp_path / "cpu.json")
    assert "whole number of at least 1" in err(MODEL, frozen, "-n", "0")
    text = (frozen / "model.xml").read_text()
    for change, message in [
        ({"emulated": {}}, "cannot compile"),
        ({"affinity": {}}, "not a whole placement"),
        ({"properties": None}, "not a whole placement"),
        ({"schema_version": 99}, "schema version 99"),
    ]:
        (frozen / "model.xml").write_text(text)
        edit_placement(frozen, operator.methodcaller("update", change))
        assert message in err(MODEL, frozen)


def test_the_magic_takes_a_cost_model_and_stores_the_plan(shell, capsys):
    hl.emulate("PLANACC", unsupported={"Softmax"})
    shell.user_ns["known"] = made_costs()
    shell.run_cell(
        f"%hetero_plan {MODEL} --costs known -v found --pin '^mixed1/=CPU'"
    ).raise_error()
    plan = shell.user_ns["found"]
    assert isinstance(plan, hl.types.Plan)
    assert plan.affinity == hl.plan(MODEL, made_costs(), pin={"^mixed1/": "CPU"}).affinity
    assert "Costs: given as a variable" in capsys.readouterr().out
    result = shell.run_cell(f"%hetero_plan {MODEL} --costs known -q -o")
    assert isinstance(result.result, hl.types.Plan)
    shell.run_cell(f"%hetero_plan {MODEL} --costs known --pin zzz=CPU")
    assert "UsageError" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("devices", "emulate", "properties"),
    [
        (["CPU"], [], ["CPU.A=1"]),
        (["ACC", "CPU"], ["ACC"], ["CPU.A=1", "HETERO.B=2"]),
        (["NPX"], ["NPX:base=CPU"], []),
    ],
)
def test_what_follows_emulates_and_sets_what_the_answer_uses(devices, emulate, properties):
    given = Namespace(
        emulate=["ACC", "NPX:base=CPU", "ACC2"], property=["CPU.A=1", "HETERO.B=2", "ACC2.C=3"]
    )
    needed = texts._needed(given, devices)
    assert needed == {"emulate": emulate, "property": properties}
