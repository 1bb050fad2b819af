"""Formats of other tools: Arrow, flat JSON."""

import json

import pyarrow
import pytest
from small_models import chain

import hetero_lab as hl
from hetero_lab.errors import AffinityError, StoredFileError

MODEL = "digits_inception"


@pytest.fixture(scope="module")
def measured() -> hl.types.Profile:
    hl.emulate("OPENACC", unsupported={"Concat", "Softmax"})
    return hl.profile(MODEL, "HETERO:OPENACC,CPU", iterations=10, reference=False, progress=False)


def test_tables_are_read_through_arrow(measured):
    table = pyarrow.table(measured.tables["boundaries"])
    assert table["n_bytes"].to_pylist() == [b.n_bytes for b in measured.partition.boundaries]


def test_a_flat_affinity_goes_both_ways(measured, tmp_path):
    measured.affinity.to_json(tmp_path / "flat.json", flat=True)
    flat = json.loads((tmp_path / "flat.json").read_text())
    assert set(flat.values()) == {"OPENACC", "CPU"}
    assert hl.Affinity.from_json(tmp_path / "flat.json", MODEL) == measured.affinity
    assert hl.Affinity.from_mapping(MODEL, flat) == measured.affinity


def test_a_flat_affinity_is_whole(tmp_path):
    model = chain("one", "two")
    with pytest.raises(AffinityError, match="leaves out 'two'"):
        hl.Affinity.from_mapping(model, {"one": "CPU"})
    with pytest.raises(AffinityError, match="does not have, 'three'"):
        hl.Affinity.from_mapping(model, {"one": "CPU", "two": "CPU", "three": "CPU"})
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(StoredFileError, match="JSON object that maps op names"):
        hl.Affinity.from_json(tmp_path / "list.json", model)
