"""Stores of sweeps: those that the version before wrote, and damaged ones."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path

import openvino as ov
import pandas as pd
import pytest
from counting_core import in_f32, on_acc
from small_models import convolutions, dynamic_inside, odd_ends
from views.hand_made import small_profile

import hetero_lab as hl
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.errors import ArgumentError, StoredFileError, StoreError
from hetero_lab.measure.trial_grid import expand
from hetero_lab.results.profile_data import to_json
from hetero_lab.results.profile_result import FILE_NAME, profile_from
from hetero_lab.results.store import stored_line
from hetero_lab.tables import read_csv

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


@pytest.mark.parametrize(
    ("on_battery", "mhz", "said"),
    [
        ((None, False), (2000.0, 2200.0), []),
        ((True, True), (2000.0, None), ["The machine ran on battery."]),
        ((True, False), (None, None), ["The power source changed during the run."]),
        ((None, None), (3000.0, 2000.0), ["The clock moved between 2000 and 3000 MHz."]),
    ],
)
def test_what_may_have_disturbed_a_run_is_noted(tmp_path, on_battery, mhz, said):
    shutil.copytree(BEFORE / "crashed", tmp_path / "store")
    path = tmp_path / "store" / "records.jsonl"
    records = [json.loads(line)["record"] for line in path.read_text().splitlines()]
    states = [record for record in records if record["type"] == "state"]
    for number, state in enumerate(states):
        state["on_battery"], state["frequency_mhz"] = on_battery[number % 2], mhz[number % 2]
    path.write_text("".join(map(stored_line, records)))
    found = hl.read_sweep(tmp_path / "store").notes
    about = [n for n in found if any(word in n for word in ("battery", "power", "clock"))]
    assert len(states) >= 2
    assert about == said


def measured_before() -> tuple[ov.Model, list[hl.Placement]]:
    """Return the model and the placements that the stored sweeps are of."""
    hl.emulate("ACC", unsupported={"Softmax"})
    model = hl.load(convolutions(3))
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    mixed = auto.fix(types={"Add": "CPU"})
    return model, [in_f32(auto, "auto"), in_f32(mixed, "mixed")]


def test_the_keys_of_entries_stay_so_that_stores_go_on():
    """Written down: a key that changes makes a stored sweep begin anew."""
    keys = {row.label: row.key for row in hl.read_sweep(BEFORE / "one_machine").rows}
    model, placements = measured_before()
    bound = bind(model, shared_core())
    grid = {"executor": ["hetero", "parallel"], "requests": [1, 4], "model_cache": [False, True]}
    found = {e.label: e.key for e in expand({"convolutions": bound}, placements[:1], grid)}
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


def test_a_whole_record_or_header_without_its_fields_says_so(digits, tmp_path):
    store = tmp_path / "store"

    def again() -> None:
        hl.sweep(
            digits, ["CPU"], turns=2, isolate=False, counters=False, progress=False, store=store
        )

    again()
    path = store / "records.jsonl"
    records = [json.loads(line)["record"] for line in path.read_text().splitlines()]
    at = next(i for i, record in enumerate(records) if record["type"] == "turn")
    del records[at]["entry"]
    path.write_text("".join(map(stored_line, records)))  # with a right checksum
    said = f"line {at + 1} is intact"
    with pytest.raises(StoreError, match=f"{said}.*`entry`.*Take another store="):
        again()
    with pytest.raises(StoredFileError, match=f"{said}, but is not a record"):
        hl.read_sweep(store)
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
    model, placements = measured_before()
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


# -- profiles -----------------------------------------------------------------------------------


QUICK = {"iterations": 20, "warmup": 0, "progress": False}


@pytest.fixture(scope="module")
def measured(core) -> hl.types.Profile:
    model = convolutions()
    placement = in_f32(on_acc(model, core, "softmax"), "mine")
    return hl.profile(model, placement, core=core, **QUICK)


def same(ours: hl.types.Profile, theirs: hl.types.Profile) -> None:
    for field in dataclasses.fields(hl.types.Profile):
        if field.name != "partition":
            assert getattr(theirs, field.name) == getattr(ours, field.name), field.name
    for part in ("subgraphs", "boundaries", "wiring", "observed"):
        assert getattr(theirs.partition, part) == getattr(ours.partition, part)
    assert theirs.report() == ours.report()
    for name, frame in ours.tables.items():
        pd.testing.assert_frame_equal(theirs.tables[name], frame)


@pytest.mark.parametrize(("format", "read"), [("csv", read_csv), ("parquet", pd.read_parquet)])
def test_one_tidy_file_a_table_and_the_whole_profile(measured, tmp_path, format, read):
    target = tmp_path / "a" / "b"
    measured.export(target, format=format)
    names = sorted(path.name for path in target.iterdir())
    assert names == sorted([*(f"{name}.{format}" for name in measured.tables), FILE_NAME])
    for name, frame in measured.tables.items():
        back = read(target / f"{name}.{format}")
        assert back.columns.tolist() == ["schema_version", *frame.columns]
        assert len(back) == len(frame)
    boundaries = read(target / f"boundaries.{format}")
    assert list(boundaries["n_bytes"]) == list(measured.tables["boundaries"]["n_bytes"])
    same(measured, hl.read_profile(target))
    same(measured, hl.read_profile(str(target)))
    with pytest.raises(ArgumentError, match="format= is 'csv' or 'parquet', not 'xml'"):
        measured.export(tmp_path / "other", format="xml")
    assert not (tmp_path / "other").exists()


def test_an_existing_directory_is_fine_and_is_written_anew(measured, tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    (tmp_path / "summary.csv").write_text("old")
    measured.export(tmp_path)
    measured.export(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "kept"
    same(measured, hl.read_profile(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".hetero_lab")]


@pytest.mark.parametrize(("make", "reference"), [(dynamic_inside, True), (odd_ends, False)])
def test_profiles_with_holes_come_back_with_holes(core, tmp_path, make, reference):
    result = hl.profile(make(), "CPU", core=core, counters=False, reference=reference, **QUICK)
    result.export(tmp_path)
    same(result, hl.read_profile(tmp_path))


def test_what_is_no_number_is_stored_as_null(measured):
    (agreement,) = measured.agreement
    odd = dataclasses.replace(
        measured, agreement=(dataclasses.replace(agreement, cosine=math.nan),)
    )
    data = json.loads(json.dumps(to_json(odd), allow_nan=False))
    back = profile_from(data, "x")
    assert math.isnan(back.agreement[0].cosine)
    assert back.agreement[0].verdict == odd.agreement[0].verdict


def test_no_profile_there(tmp_path):
    with pytest.raises(
        StoredFileError, match=r"^'.*profile.json' cannot be read as .*: there is no"
    ):
        hl.read_profile(tmp_path)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(StoredFileError, match=path.name):
            hl.read_profile(path)


BREAKS = {
    "no graph": lambda data: data.pop("graph"),
    "text for numbers": lambda data: data.__setitem__("turns_us", [["many"]]),
    "too few devices": lambda data: data["affinity"].pop(),
    "a counter without its name": lambda data: data["counters"][0].pop("node_name"),
    "a wire to nowhere": lambda data: data["graph"]["ops"][-1].__setitem__(2, [[999, 0]]),
    "a span of no subgraph": lambda data: data["spans"].append([0, 999, 0.0, 1.0]),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_profile(tmp_path, name):
    """Any value in any place is tried in ``tests.proof``."""
    small_profile().export(tmp_path)
    path = tmp_path / FILE_NAME
    data = json.loads(path.read_text())
    BREAKS[name](data)
    path.write_text(json.dumps(data))
    with pytest.raises(StoredFileError, match="profile.json' is not a whole profile"):
        hl.read_profile(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="links and pipes are POSIX's")
@pytest.mark.parametrize("name", ["sweep.json", "records.jsonl", ".lock", "blobs"])
def test_a_store_is_not_written_through_a_link(tmp_path, name):
    (tmp_path / "victim").write_text("victim")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(StoredFileError, match=f"{name}' cannot be trusted: it is a link"):
        hl.sweep(
            "digits_inception", ["CPU"], turns=2, isolate=False, store=tmp_path / "store",
            progress=False,
        )  # fmt: skip
    assert (tmp_path / "victim").read_text() == "victim"
