"""Stores of sweeps: those that the version before wrote, and damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_models import convolutions

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.backend.core import shared_core
from hetero_lab.errors import StoredFileError, StoreError
from hetero_lab.experiments.measure.store import stored_line
from hetero_lab.experiments.measure.trial import expand

BEFORE = Path(__file__).parent / "stored_before"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("one_machine", {"auto": ("ok", 3), "auto · parallel": ("ok", 3), "mixed": ("ok", 3),
                         "mixed · parallel": ("ok", 3), "CPU": ("ok", 3)}),
        ("crashed", {"auto": ("ok", 2), "mixed": ("crashed (signal 11)", 0), "CPU": ("ok", 2)}),
        ("fleet", {"auto": ("ok", 2), "mixed": ("ok", 2), "CPU": ("ok", 2)}),
    ],
)  # fmt: skip
def test_what_the_version_before_stored_is_read(name, rows):
    summary = hl.read_sweep(BEFORE / name).summary.set_index("label")
    found = summary[["status", "n_turns"]].itertuples(index=True, name=None)
    assert {label: (status, turns) for label, status, turns in found} == rows
    assert set(summary["host"].dropna()) <= {"workstation"}


def test_counters_accuracy_and_sustained_turns_of_before_are_read():
    sweep = hl.read_sweep(BEFORE / "one_machine")
    assert len(sweep.tables["counters"]) > 0
    assert (sweep.summary["sustained_us"] > 0).all()
    assert all(row.evaluation is not None and len(row.evaluation) == 4 for row in sweep.rows)
    assert sweep.profile("auto · parallel").spans


def test_the_keys_of_entries_stay_so_that_stores_go_on():
    """Written down: a key that changes makes a stored sweep begin anew."""
    keys = {row.label: row.key for row in hl.read_sweep(BEFORE / "one_machine").rows}
    hl.emulate("ACC", unsupported={"Softmax"})
    bound = bind(hl.load(convolutions(3)), shared_core())
    auto = hl.Affinity.automatic(bound.model, "HETERO:ACC,CPU")
    f32 = {name: {"INFERENCE_PRECISION_HINT": "f32"} for name in ("ACC", "CPU")}
    placements = {"auto": hl.Placement(auto, "", f32)}
    grid = {"executor": ["hetero", "parallel"], "requests": [1, 4], "model_cache": [False, True]}
    found = {e.label: e.key for e in expand({"convolutions": bound}, placements, grid)}
    for label in ("auto", "auto · parallel", "CPU"):
        assert found.pop(label) == keys[label]
    assert found == {
        "auto · model cache": "644b64f325f31e10",
        "auto · 4 requests": "2cf00ca687cebcad",
        "auto · 4 requests · model cache": "5fb7d3a9f72e85d8",
        "auto · parallel · model cache": "8773fe21ef0d0409",
        "auto · parallel · 4 requests": "fc8ed2dbbedef7fa",
        "auto · parallel · 4 requests · model cache": "6f251cbc09afb739",
    }


@pytest.fixture
def damaged(tmp_path):
    """A store in which one record has a right checksum and lacks a field."""
    store = tmp_path / "store"
    model = hl.load("digits_inception")
    options = {"turns": 2, "isolate": False, "counters": False, "progress": False, "store": store}
    hl.sweep(model, ["CPU"], **options)
    path = store / "records.jsonl"
    records = [json.loads(line)["record"] for line in path.read_text().splitlines()]
    at = next(i for i, record in enumerate(records) if record["type"] == "turn")
    del records[at]["entry"]
    path.write_text("".join(map(stored_line, records)))
    return store, at + 1, lambda: hl.sweep(model, ["CPU"], **options)


def test_a_whole_record_without_its_fields_says_so(damaged):
    store, line, again = damaged
    with pytest.raises(StoreError, match=f"line {line} is intact.*`entry`.*Take another store="):
        again()
    with pytest.raises(StoredFileError, match=f"line {line} is intact, but is not a record"):
        hl.read_sweep(store)


def test_a_header_without_its_fields_says_so(damaged):
    store, _, again = damaged
    header = json.loads((store / "sweep.json").read_text())
    del header["entries"][0]["key"]
    (store / "sweep.json").write_text(json.dumps(header))
    with pytest.raises(StoreError, match="is not a whole sweep.*`key`.*Take another store="):
        again()
    with pytest.raises(StoredFileError, match="is not a whole sweep.*`key`"):
        hl.read_sweep(store)


def test_a_store_of_before_is_gone_on_with_here(tmp_path):
    """Its header is said to be of this machine, since numbers of two are not mixed."""
    store = tmp_path / "store"
    shutil.copytree(BEFORE / "crashed", store)
    hl.emulate("ACC", unsupported={"Softmax"})
    model = hl.load(convolutions(3))
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    f32 = {name: {"INFERENCE_PRECISION_HINT": "f32"} for name in ("ACC", "CPU")}
    placements = [
        hl.Placement(auto, "auto", f32),
        hl.Placement(auto.fix(types={"Add": "CPU"}), "mixed", f32),
    ]
    options = {"isolate": False, "counters": False, "progress": False, "budget_s": None}
    fresh = hl.sweep(model, placements[:1], turns=2, store=tmp_path / "fresh", **options)
    header = json.loads((store / "sweep.json").read_text())
    header["environments"][-1]["host"] = fresh.environment.host
    header["environments"][-1]["openvino_version"] = fresh.environment.openvino_version
    (store / "sweep.json").write_text(json.dumps(header))
    before = (store / "records.jsonl").read_text()
    summary = hl.sweep(model, placements, turns=2, store=store, **options).summary
    assert list(summary["status"]) == ["ok"] * 3  # also what had crashed
    assert (store / "records.jsonl").read_text().startswith(before)
