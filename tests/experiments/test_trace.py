"""Traces: one lane a device, slices that do not overlap in a lane, arrows at boundaries."""

import json

import pytest

import hetero_lab as hl
from hetero_lab.errors import MeasurementError


def test_trace_of_a_split(tmp_path):
    hl.emulate("TRCACC", unsupported={"Concat", "MaxPool"})
    profile = hl.profile("digits_inception", "HETERO:TRCACC,CPU", iterations=10, progress=False)
    profile.to_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert lanes == {"CPU", "TRCACC (emulated on CPU)"}
    subgraphs = [e for e in events if e["ph"] == "X" and e["cat"] == "subgraph"]
    assert len(subgraphs) == profile.partition.n_subgraphs
    ends = [e["ts"] + e["dur"] for e in subgraphs]
    assert all(e["ts"] >= end for e, end in zip(subgraphs[1:], ends, strict=False))
    starts = [e for e in events if e["ph"] == "s"]
    assert len(starts) == len([e for e in events if e["ph"] == "f"])
    assert len(starts) == profile.partition.n_crossings


def test_a_profile_without_counters_has_no_trace(tmp_path):
    profile = hl.profile("digits_inception", "CPU", iterations=10, counters=False, progress=False)
    with pytest.raises(MeasurementError, match="counters=True"):
        profile.to_trace(tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())
