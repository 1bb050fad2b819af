from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from counting_core import in_f32
from small_models import convolutions, dynamic_inside, odd_ends

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, StoredFileError
from hetero_lab.experiments.results.profile.result import FILE_NAME, profile_from
from hetero_lab.experiments.results.profile.storage import to_json
from hetero_lab.tables import read_csv

QUICK = {"iterations": 20, "warmup": 0, "progress": False}


@pytest.fixture(scope="module")
def measured(core) -> hl.types.Profile:
    model = convolutions()
    cpu = hl.Affinity.uniform(model, "CPU", core=core)
    placement = in_f32(cpu.fix(ops={"softmax": "ACC"}, core=core), "mine")
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


def test_another_format_is_refused(measured, tmp_path):
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


@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize("make", [dynamic_inside, odd_ends])
def test_profiles_with_holes_come_back_with_holes(core, tmp_path, make, counters):
    result = hl.profile(make(), "CPU", core=core, counters=False, reference=counters, **QUICK)
    result.export(tmp_path)
    same(result, hl.read_profile(tmp_path))


def test_what_is_no_number_is_stored_as_null(measured):
    odd = dataclasses.replace(
        measured,
        agreement=(dataclasses.replace(measured.agreement[0], cosine=math.nan),),
    )
    data = json.loads(json.dumps(to_json(odd), allow_nan=False))
    back = profile_from(data, "x")
    assert math.isnan(back.agreement[0].cosine)
    assert back.agreement[0].verdict == odd.agreement[0].verdict


def test_no_profile_there(tmp_path):
    with pytest.raises(StoredFileError, match=r"profile.json' cannot be read as a stored profile"):
        hl.read_profile(tmp_path)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(StoredFileError, match=path.name):
            hl.read_profile(path)


BREAKS = {
    "no graph": lambda data: data.pop("graph"),
    "no turns": lambda data: data.pop("turns_us"),
    "text for numbers": lambda data: data.__setitem__("turns_us", [["many"]]),
    "no turns at all": lambda data: data.__setitem__("turns_us", None),
    "too few devices": lambda data: data["affinity"].pop(),
    "a counter without its name": lambda data: data["counters"][0].pop("node_name"),
    "another environment": lambda data: data["environment"].pop("host"),
    "a list": lambda data: data.__setitem__("environment", []),
    "a wire to nowhere": lambda data: data["graph"]["ops"][-1].__setitem__(2, [[999, 0]]),
    "a broken partition": lambda data: data["partition"]["boundaries"].append([1, 2]),
    "no boundaries": lambda data: data["partition"].pop("boundaries"),
    "a span of no subgraph": lambda data: data["spans"].append([0, 999, 0.0, 1.0]),
    "no compile time": lambda data: data.__setitem__("compile_ms", None),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_profile(measured, tmp_path, name):
    measured.export(tmp_path)
    path: Path = tmp_path / FILE_NAME
    data = json.loads(path.read_text())
    BREAKS[name](data)
    path.write_text(json.dumps(data))
    with pytest.raises(StoredFileError) as caught:
        hl.read_profile(tmp_path)
    assert "profile.json' is not a whole profile" in str(caught.value)


def test_other_files_and_other_schemas(measured, tmp_path):
    measured.export(tmp_path)
    path = tmp_path / FILE_NAME
    data = json.loads(path.read_text())
    for change, says in (
        ({"kind": "sweep"}, "is not a stored profile"),
        ({"schema_version": 99}, "schema version 99"),
    ):
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(StoredFileError, match=says):
            hl.read_profile(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoredFileError, match="cannot be read as a stored profile"):
        hl.read_profile(tmp_path)
