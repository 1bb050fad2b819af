"""A deployed directory is held to its contract; each part that breaks is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import time

import msgspec
import numpy as np
import pytest
from random_models import random_affinity, random_model

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.errors import ArgumentError, HeteroLabWarning, StoredFileError
from hetero_lab.experiments.deployment.check_run import ObservedRun, observe
from hetero_lab.experiments.deployment.contract import (
    FILE_NAME,
    AccuracyPromise,
    LatencyPromise,
    read_contract,
    write_contract,
)
from hetero_lab.experiments.deployment.verification import judged
from hetero_lab.experiments.deployment.verify import environment_of
from hetero_lab.fetch import file_digest
from hetero_lab.model.read import prepare
from hetero_lab.runtime import run_frozen
from hetero_lab.runtime.frozen_placement import read_frozen

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
ANY = 1e6  # a latency that a busy machine cannot break


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    hl.emulate("VERACC", unsupported={"Softmax"})
    model = hl.load("digits_inception")
    affinity = hl.Affinity.automatic(model, "HETERO:VERACC,CPU")
    placement = hl.Placement(affinity, "deployed", {"VERACC": F32, "CPU": F32})
    return hl.freeze(model, placement, tmp_path_factory.mktemp("deployed"))


@pytest.fixture(scope="module")
def seen(deployed):
    return observe(deployed, turns=3)


@pytest.fixture
def copy(deployed, tmp_path):
    return shutil.copytree(deployed, tmp_path / "copy")


def edit(directory, change):
    path = directory / "placement.json"
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))


def judge(directory, seen, **changes):
    contract = msgspec.structs.replace(read_contract(directory), **changes)
    return judged(directory, contract, read_frozen(directory), seen, 0.1)


def test_what_is_untouched_is_kept(deployed):
    proven = hl.verify(deployed, turns=3, slower=ANY)
    assert proven.ok
    assert set(proven.summary["status"]) == {"ok"}
    assert proven.changes == ()
    assert "keeps its contract" in str(proven)


def test_another_affinity_in_the_file(copy):
    edit(copy, lambda plan: plan["affinity"].update({"head_digit/softmax": "VERACC"}))
    proven = hl.verify(copy, turns=3, slower=ANY)
    # One subgraph instead of two, too.
    assert proven.broken == ("affinity", "partition")
    assert "head_digit/softmax: CPU → VERACC" in str(proven)


def test_a_changed_weight(copy):
    path = copy / "model.bin"
    constants = re.findall(r'offset="(\d+)".*?size="(\d+)"', (copy / "model.xml").read_text())
    offset, size = max(((int(o), int(s)) for o, s in constants), key=lambda found: found[1])
    data = bytearray(path.read_bytes())
    weights = np.frombuffer(data, np.float32, count=size // 4, offset=offset)
    weights *= 1.5
    path.write_bytes(data)
    assert hl.verify(copy, turns=3, slower=ANY).broken == ("model", "outputs")


def test_a_dropped_property(copy, seen):
    edit(copy, lambda plan: plan["properties"]["DEVICE_PROPERTIES"]["CPU"].clear())
    proven = judge(copy, seen)
    assert proven.broken[0] == "properties"
    assert "CPU.INFERENCE_PRECISION_HINT: f32 → not set" in str(proven)


def test_a_missing_device(copy):
    edit(copy, lambda plan: plan["emulated"].clear())
    proven = hl.verify(copy, turns=3, slower=ANY)
    assert proven.broken == ("properties", "devices", "compile")
    assert "'VERACC' missing" in str(proven)
    statuses = proven.summary.set_index("part")["status"]
    assert statuses["outputs"] == statuses["latency"] == "not checked"


def test_another_partition(copy, seen):
    other = seen.header.replace('device="CPU"', 'device="VERACC"')
    assert other != seen.header
    proven = judge(copy, seen, header=other)
    assert proven.broken == ("partition",)
    assert "promised were 2 ('VERACC', 'VERACC')" in str(proven)


@pytest.mark.parametrize(("worse", "broken"), [(1.2, ("latency",)), (1.05, ()), (0.5, ())])
def test_a_latency_beyond_the_intervals(copy, seen, worse, broken):
    reference = [[100.0 + i] * 10 for i in range(12)]
    turns = [[50.0 * worse + i / 2] * 10 for i in range(12)]
    timed = msgspec.structs.replace(seen, turns_us=turns, reference_us=reference)
    promise = LatencyPromise(
        reference_device="CPU", reference_properties={}, median_us=50.0, reference_us=100.0,
        ratio=0.5, ratio_ci95_low=0.49, ratio_ci95_high=0.51,
    )  # fmt: skip
    assert judge(copy, timed, latency=promise).broken == broken


def test_an_accuracy_that_is_not_reached(deployed, copy):
    data = hl.dataset("digits").evaluation[:30]
    metric = hl.dataset("digits").metric
    with pytest.raises(ArgumentError, match="data= needs labels"):
        hl.verify(copy, data=data)
    told = hl.verify(copy, turns=3, slower=ANY, data=data, metric=metric).parts[-1]
    assert (told.name, told.status) == ("accuracy", "ok")
    assert told.detail.endswith("of 30 examples, promised is nothing")
    contract = read_contract(copy)
    write_contract(copy, msgspec.structs.replace(contract, accuracy=AccuracyPromise(
        accuracy=1.0, drop=0.0, n_examples=30)))  # fmt: skip
    wrong = [(inputs, (label + 1) % 10 if n < 2 else label) for n, (inputs, label) in
             enumerate(data)]  # fmt: skip
    proven = hl.verify(copy, turns=3, slower=ANY, data=wrong, metric=metric)
    assert proven.broken == ("accuracy",)
    assert proven.parts[-1].detail.endswith("promised is 100.0% of 30 examples")
    assert hl.verify(copy, turns=3, slower=ANY, data=wrong, metric=metric, max_drop=0.5).ok


def test_what_dies_is_a_broken_part(deployed):
    dead = ObservedRun(step="compile", error="died of signal 11")
    proven = judge(deployed, dead)
    assert proven.broken == ("compile",)


def test_changes_of_the_environment_are_told(deployed, seen):
    other = msgspec.structs.replace(seen, openvino_version="2031.1", host="elsewhere")
    proven = judge(deployed, other)
    assert any(change.endswith("→ 2031.1") for change in proven.changes)
    assert any(change.endswith("→ elsewhere") for change in proven.changes)


def test_a_contract_that_was_edited_or_is_of_a_newer_version(deployed, copy):
    path = copy / FILE_NAME
    path.write_text(path.read_text().replace('"n_requests": 3', '"n_requests": 2'))
    with pytest.raises(StoredFileError, match="was changed after it was written"):
        hl.verify(copy)
    path.write_text("{")
    with pytest.raises(StoredFileError, match="cannot be read as a stored contract"):
        hl.verify(copy)
    shutil.copy(deployed / FILE_NAME, path)
    newer = msgspec.structs.replace(read_contract(copy), schema_version=99)
    write_contract(copy, newer)
    with pytest.raises(StoredFileError, match="schema version 99; this release reads version 1"):
        hl.verify(copy)


def test_what_is_no_deployed_directory(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 2
    assert "contract.json" in capsys.readouterr().err


def test_the_command_tells_by_its_exit_code(deployed, copy, capsys):
    assert main(["verify", str(deployed), "--slower", str(ANY)]) == 0
    (copy / "requests.npz").write_bytes((copy / "inputs.npz").read_bytes())
    assert main(["verify", str(copy), "--slower", str(ANY)]) == 1
    assert "model" in capsys.readouterr().out
    assert main(["verify", str(deployed), "--across", "openvino==newest"]) == 2


def test_what_is_not_a_release(deployed):
    with pytest.raises(ArgumentError, match=r"\['2026.2', '2026.3'\]"):
        hl.verify(deployed, releases=["; rm -rf"])
    with pytest.raises(ArgumentError, match="not with releases="):
        hl.verify(deployed, **{"releases": ["2026.2"], "data": hl.dataset("digits")})
    with (
        pytest.warns(HeteroLabWarning, match=r"verify\(directory, releases=releases\)"),
        pytest.raises(ArgumentError, match="'2026.2'"),
    ):
        hl.verify_across(deployed, ["newest"])


@pytest.mark.network
def test_the_release_that_changed_it_is_named(tmp_path):
    """Since 2026.3 HETERO breaks cycles between subgraphs in another way."""
    hl.emulate("VERDSP")
    prepared = prepare(random_model(86))
    affinity = random_affinity(prepared.graph, ["VERDSP", "CPU"], 86)
    placement = hl.Placement(affinity, "cyclic", {"VERDSP": F32, "CPU": F32})
    directory = hl.freeze(prepared, placement, tmp_path)
    releases = ["2026.2.0", "2026.3.1"]
    made = hl.verify(directory, releases=releases, turns=3, slower=ANY, progress=False)
    assert made.verifications[0].broken == ("partition",)
    assert made.verifications[1].ok
    assert made.changed_by == "2026.3.1"
    assert file_digest(environment_of("2026.2.0").parents[1] / "pyvenv.cfg")


@pytest.mark.skipif(
    len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="one core, or no choice"
)
def test_the_reference_runs_on_the_core_that_is_free():
    everywhere = os.sched_getaffinity(0)
    busy = {min(everywhere)}

    def infer():
        if os.sched_getaffinity(0) == busy:
            time.sleep(0.02)

    free = run_frozen._free_core(infer, 1e-3, 10.0)
    assert free is not None
    assert {free} != busy
    assert os.sched_getaffinity(0) == everywhere
    # Without time to try, it is nowhere in particular.
    assert run_frozen._free_core(infer, 1.0, 10.0) is None
