"""Profiles made in a process of their own."""

import sys
from pathlib import Path

import pytest
from small_models import convolutions

import hetero_lab as hl
from hetero_lab.errors import MeasurementError

FAULTY = Path(__file__).parent / "measure" / "workers" / "faulty_worker.py"


def test_an_isolated_profile_is_like_one_made_here():
    hl.emulate("ISOACC", unsupported={"Softmax"})
    model = hl.load(convolutions())
    options = {"iterations": 20, "progress": False}
    here = hl.profile(model, "HETERO:ISOACC,CPU", **options)
    there = hl.profile(model, "HETERO:ISOACC,CPU", isolate=True, **options)
    assert there.label == here.label
    assert there.affinity == here.affinity
    assert there.model_fingerprint == here.model_fingerprint
    assert there.partition.n_subgraphs == here.partition.n_subgraphs
    assert there.partition.boundary_bytes == here.partition.boundary_bytes
    assert len(there.latency) == 20
    assert [a.output for a in there.agreement] == [a.output for a in here.agreement]
    assert there.environment.emulated == here.environment.emulated
    assert set(there.tables["placement"]["op"]) == set(here.tables["placement"]["op"])


def test_a_hang_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setenv("FAULT", "hang")
    monkeypatch.setenv("FAULT_KEY", "every")
    limits = hl.Workers(command=[sys.executable, str(FAULTY)], timeout_s=1.0)
    with pytest.raises(MeasurementError, match="timed out after 1 s"):
        hl.profile(
            "digits_inception", "CPU", isolate=True, workers=limits, budget_s=30, progress=False
        )
