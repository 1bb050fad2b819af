"""investigate: every symptom is seen for what it is, and its cause is found."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from small_language_models import decoder

import hetero_lab as hl
from hetero_lab.cli.commands import COMMANDS
from hetero_lab.debug.cause import Evidence
from hetero_lab.debug.investigate import _arrays, search_cause
from hetero_lab.debug.reproducer import Symptom, failure
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.errors import ArgumentError, MeasurementError
from hetero_lab.intervals import Noise
from hetero_lab.progress import Stopwatch
from hetero_lab.results.environment import keep_noise
from tests.debug.broken_device import Broken
from tests.debug.cases import (
    NORMAL,
    broken,
    case_of,
    chain_case,
    failing,
    fault,
    needs,
    over_when,
    parameter,
    slow,
)
from tests.proof import injected_faults as injected
from tests.scripts import EXACT, shown_fault


def investigated(case, budget_s=None, **options):
    """Investigate a case whose faults are put in before each compile."""
    with case.runs(watch=Stopwatch.start(budget_s), isolate=True) as runs:
        return search_cause(runs, **options)


# Symptoms.


@pytest.mark.parametrize(
    ("text", "symptom"),
    [
        ("'ACC': crashed (signal 11):  SIGSEGV", Symptom.CRASH),
        ("'ACC': crashed (signal 9):  SIGKILL, perhaps for lack of memory", Symptom.MEMORY),
        ("'ACC': timed out after 5 s: InferFile", Symptom.HANG),
        ("'ACC': out of memory: it used 2 GiB", Symptom.MEMORY),
        ("'GPU': [GPU] clEnqueueNDRangeKernel, error code: CL_OUT_OF_HOST_MEMORY", Symptom.MEMORY),
        ("'ACC': failed: no kernel for crashed (x)", Symptom.REFUSED),
    ],
)
def test_a_failure_has_one_symptom(text, symptom):
    assert failure(text) is symptom


def test_a_refusal_in_other_words_is_another_one():
    def refused(text):
        return Evidence(Symptom.REFUSED, text)

    assert refused("no kernel for 'a' at 3").is_like(refused("no kernel for 'b' at 15"))
    assert not refused("no kernel for 'a'").is_like(refused("bad shape of 'a'"))
    assert not refused("x").is_like(Evidence(Symptom.CRASH, "x"))


def test_a_right_placement_has_no_symptom(tmp_path):
    found = investigated(chain_case())
    assert (found.symptom, found.settings, found.ops) == ("ok", None, ())
    assert found.verdict.startswith("No symptom.")
    assert found.reproducer is None
    with pytest.warns(UserWarning, match="Nothing is wrong"):
        found.export(tmp_path)
    assert not list(tmp_path.iterdir())


def test_wrong_numbers_are_traced_to_the_ops(tmp_path):
    found = investigated(chain_case(fault("shift", "sigmoid")))
    assert found.symptom == "wrong"
    assert (found.device, found.ops) == ("ACC", ("shift", "sigmoid"))
    assert found.evidence.error > 0.01
    assert found.settings == ()
    assert "No setting is to blame." in found.verdict
    found.export(tmp_path)
    assert hl.read_wrong(tmp_path / "find_wrong").sets[0].ops == found.ops
    done = shown_fault(tmp_path)  # the fault is not in the device
    assert "The fault is not there." in done.stdout, done.stderr


def test_nan_is_a_symptom_of_its_own():
    """The wrong activation makes numbers below zero, whose root is NaN."""
    x = parameter()
    node = op.sqrt(op.relu(op.abs(x, name="abs"), name="relu"), name="sqrt")
    found = investigated(case_of([node], [x], NORMAL, fault("relu")))
    assert found.symptom == "NaN"
    assert found.ops == ("relu",)
    assert "NaN" in found.evidence.told


@pytest.mark.parametrize(
    ("how", "others"),
    [("refuse", "trusted"), ("refuse", "another"), ("refuse", "none"), slow("crash", "none")],
)
def test_a_failure_is_traced_to_the_ops(monkeypatch, how, others, tmp_path):
    """Also where no device is trusted, with or without another one."""
    case = failing(chain_case(), monkeypatch, how, "shift", "sigmoid")
    with case.runs() as runs:
        if others != "trusted":
            runs.trusted = ""
        if others == "none":
            here = "hetero_lab.debug.minimal_sets.device_names"
            monkeypatch.setattr(here, lambda core: [injected.SUSPECT])
        found = search_cause(runs)
    assert found.symptom == {"refuse": "refused"}.get(how, how)
    assert found.ops == ("shift", "sigmoid")
    compared = not any("nothing to compare with" in note for note in found.notes)
    assert compared == (others == "trusted")
    assert len(found.reproducer.model.get_ops()) < len(case.prepared.model.get_ops())
    found.export(tmp_path)
    assert json.loads((tmp_path / "fault.json").read_text())["symptom"] == found.symptom
    assert f": {found.symptom.title}" in (tmp_path / "README.md").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(ov.Type.bf16, np.zeros((2, 8), np.uint16)), (ov.Type.f32, np.array(1, np.float32))],
    ids=["bits of bf16", "a scalar"],
)
def test_inputs_of_any_kind_and_shape_are_given_as_they_are(kind, value):
    x = op.parameter(list(value.shape), kind, name="x")
    model = ov.Model([op.tanh(x, name="tanh")], [x], "m")
    assert hl.investigate(model, "CPU", [value], progress=False).symptom == "ok"


def test_a_slower_placement_is_slower_than_its_baseline():
    x = node = parameter()
    for number in range(24):
        node = op.tanh(node, name=f"tanh{number}")
    model = ov.Model([node], [x], "m")
    hl.emulate(injected.SUSPECT)
    cpu = hl.Affinity.uniform(model, "CPU")
    moved = {f"tanh{number}": injected.SUSPECT for number in range(0, 24, 2)}
    cut = hl.Placement(cpu.fix(ops=moved), "cut")
    found = hl.investigate(model, cut, baseline="CPU", budget_s=200, progress=False)
    assert found.symptom == "slower", found
    assert found.evidence.ratio > 1.2
    found = hl.investigate(model, "CPU", baseline=cut, budget_s=40, progress=False)
    assert found.symptom == "ok"


def test_a_latency_that_decides_nothing_is_not_called_fine(tmp_path, monkeypatch):
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path))
    keep_noise("CPU", Noise(relative=3.0, n_compiles=6), shared_core())
    x = parameter()
    model = ov.Model([op.tanh(x, name="tanh")], [x], "m")
    cpu = hl.Affinity.uniform(model, "CPU")
    streams = hl.Placement(cpu, device_properties={"CPU": {"NUM_STREAMS": 1}})
    found = hl.investigate(model, streams, baseline="CPU", budget_s=30, progress=False)
    assert found.symptom == "ok"
    assert COMMANDS["investigate"].exit_code(Namespace(), found) == 3
    assert found.verdict.startswith("Whether it is slower is undecided: it takes ")
    assert not found.complete
    assert any("measure_noise" in note for note in found.notes)


# Settings.


def test_the_setting_that_makes_the_symptom_is_named(tmp_path):
    """The error of bf16 is beyond the tolerance, whatever the other properties are."""
    needs("bf16")
    case = chain_case()
    hint = {injected.SUSPECT: {"INFERENCE_PRECISION_HINT": "bf16", "NUM_STREAMS": 2}}
    case = replace(case, placement=replace(case.placement, device_properties=hint))
    found = investigated(case, tolerance=1e-5)
    assert found.symptom == "wrong"
    (setting,) = found.settings
    assert (setting.device, setting.key) == ("ACC", "INFERENCE_PRECISION_HINT")
    assert (setting.value, setting.exact) == ("bf16", "f32")
    assert "It shows only with ACC.INFERENCE_PRECISION_HINT=bf16 (f32 is fine)." in found.verdict
    found.export(tmp_path)
    done = shown_fault(tmp_path)  # this one is in the device
    assert (done.returncode, done.stderr) == (1, "")
    assert "The fault is there." in done.stdout


# Language models.


def llm_case(*faults):
    hl.emulate(injected.SUSPECT)
    prepared = injected.prepare(decoder(2, empty_from="layer"))
    affinity = hl.Affinity.uniform(prepared.model, injected.SUSPECT)
    placement = hl.Placement(affinity, "placed", {injected.SUSPECT: EXACT}, direct=True)
    arrays = _arrays(bind(prepared), None, hl.Scenario(5, 4))
    return injected.Case(prepared, placement, "f32", arrays, faults)


def test_a_right_language_model_has_no_symptom():
    found = investigated(llm_case())
    assert found.symptom == "ok", found
    assert found.evidence.error < 1e-3


def test_the_op_of_a_language_model_that_makes_wrong_logits(tmp_path):
    found = investigated(llm_case(fault("layers.1/q")))
    assert found.symptom == "wrong"
    assert found.evidence.step == 1
    assert found.evidence.output == "logits"
    assert found.ops == ("layers.1/q",)
    found.export(tmp_path)
    assert len(found.reproducer.model.get_ops()) < 10
    assert "The fault is not there." in shown_fault(tmp_path).stdout


def test_nan_that_begins_at_a_later_step(monkeypatch):
    ops, elements = ("layers.1/attention",), 32 * (5 + 2)  # 4 heads of 8
    case = broken(llm_case(), monkeypatch, Broken(how="NaN", ops=ops, elements=elements))
    found = investigated(case)
    assert found.symptom == "NaN"
    assert found.evidence.step == 3
    assert "from inference 3 on" in found.verdict
    assert found.ops == ops


# What ends early, and bad input.


def test_a_language_model_needs_a_scenario():
    with pytest.raises(ArgumentError, match="pass scenario="):
        hl.investigate(decoder(), "CPU")


def test_a_budget_that_ends_before_an_answer_is_no_symptom(monkeypatch):
    case = failing(chain_case(), monkeypatch, "hang", "shift", "sigmoid")
    with pytest.raises(MeasurementError, match="budget of 4 s ended before"):
        investigated(case, 4.0)


@pytest.mark.parametrize("end", ["interrupted", "budget ended"])
def test_what_ends_later_keeps_the_symptom(monkeypatch, end):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    runs = chain_case(fault("tanh")).runs(isolate=True)
    if end == "interrupted":
        monkeypatch.setattr("hetero_lab.debug.cause.settings_of", pressed)
    else:
        runs.watch = over_when(lambda: runs.n_compiles > 4)
    with runs:
        found = search_cause(runs)
    assert found.symptom == "wrong"
    assert not found.complete
    assert found.interrupted == (end == "interrupted")
    assert any(end in note for note in found.notes)
    assert found.reproducer is not None
    assert found.settings is None
