"""Traces: one lane a device, slices that do not overlap in a lane, arrows at boundaries."""

import functools
import json

import pytest

import hetero_lab as hl
from hetero_lab.errors import MeasurementError


@functools.cache
def measured(executor: str) -> hl.types.Profile:
    hl.emulate("TRCACC", unsupported={"Softmax", "Sigmoid", "Concat", "MaxPool"})
    return hl.profile(
        "digits_inception", "HETERO:TRCACC,CPU", executor=executor, iterations=10,
        reference=False, progress=False,
    )  # fmt: skip


def test_a_profile_without_counters_has_no_trace(tmp_path):
    profile = hl.profile("digits_inception", "CPU", iterations=10, counters=False, progress=False)
    with pytest.raises(MeasurementError, match="counters=True"):
        profile.to_trace(tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())


NUMBER = (int, float)
FIELDS = {
    "M": {"name": str, "pid": int, "args": dict},
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "dur": NUMBER},
    "s": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "id": int},
    "f": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "id": int, "bp": str},
}
OPTIONAL = {"args": dict, "tid": int}


@pytest.mark.parametrize("executor", ["hetero", "parallel"])
def test_the_trace_event_format_is_kept_strictly(tmp_path, executor):
    profile = measured(executor)
    profile.to_trace(tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text("utf-8")
    trace = json.loads(text, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    for event in events:
        fields = FIELDS[event["ph"]]
        for name, kind in fields.items():
            assert isinstance(event[name], kind), (name, event)
            assert not isinstance(event[name], bool)
        assert set(event) <= {"ph", *fields, *OPTIONAL}
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(named.values()) == {"CPU", "TRCACC (emulated on CPU)"}
    lanes = set(named)
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["tid"] for e in slices} <= lanes
    for lane in lanes:
        # Longer ones first where several begin at once: each lies inside of the one above it.
        above: list[dict] = []
        mine = [e for e in slices if e["tid"] == lane]
        for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
            while above and above[-1]["ts"] + above[-1]["dur"] <= event["ts"] + 1e-6:
                above.pop()
            if above:
                assert event["ts"] + event["dur"] <= above[-1]["ts"] + above[-1]["dur"] + 1e-6
                assert event["cat"] != "subgraph"
            above.append(event)
        assert all(e["dur"] > 0 for e in mine if e["cat"] == "subgraph")
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(begins) == len([e for e in events if e["ph"] == "s"]) > 0
    assert begins.keys() == ends.keys()
    subgraphs = [e for e in slices if e["cat"] == "subgraph"]
    if executor == "hetero":  # one after the other
        stops = [e["ts"] + e["dur"] for e in subgraphs]
        assert all(e["ts"] >= end for e, end in zip(subgraphs[1:], stops, strict=False))
    n_requests = 1 if executor == "hetero" else 10
    assert len(subgraphs) == profile.partition.n_subgraphs * n_requests
    assert len(begins) == profile.partition.n_crossings * n_requests
    for number, begin in begins.items():
        end = ends[number]
        assert begin["ts"] <= end["ts"]
        assert end["bp"] == "e"
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"])
        for at in (begin, end):  # an arrow without a slice under it is dropped
            assert any(
                e["tid"] == at["tid"] and e["ts"] <= at["ts"] < e["ts"] + e["dur"]
                for e in subgraphs
            )
