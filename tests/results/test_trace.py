"""Traces: one lane a device, slices that do not overlap in a lane, arrows at boundaries.

That slices nest is what Perfetto has to say.
"""

import json
from pathlib import Path

import pytest
from results.perfetto_in_browser import TraceProcessor, trace_processor
from views.hand_made import small_profile

import hetero_lab as hl
from hetero_lab.errors import MeasurementError


def test_a_profile_without_counters_has_no_trace(tmp_path):
    profile = small_profile(counters=())
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
    hl.emulate("TRCACC", unsupported={"Concat", "MaxPool"})
    profile = hl.profile(
        "digits_inception", "HETERO:TRCACC,CPU", executor=executor, iterations=10, warmup=0,
        reference=False, progress=False,
    )  # fmt: skip
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
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["tid"] for e in slices} <= set(named)
    begins, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert begins.keys() == ends.keys()
    assert {e["bp"] for e in ends.values()} == {"e"}
    subgraphs = [e for e in slices if e["cat"] == "subgraph"]
    if executor == "hetero":  # one after the other
        stops = [e["ts"] + e["dur"] for e in subgraphs]
        assert all(e["ts"] >= end for e, end in zip(subgraphs[1:], stops, strict=False))
    else:  # as the timeline of the profile has it
        frame = profile.tables["timeline"]
        assert [e["ts"] for e in slices] == frame["start_us"].tolist()
        assert [e["args"]["critical"] for e in slices] == frame["critical"].tolist()
    n_requests = 1 if executor == "hetero" else 10
    assert len(subgraphs) == profile.partition.n_subgraphs * n_requests
    assert len(begins) == profile.partition.n_crossings * n_requests
    for number, begin in begins.items():
        end = ends[number]
        assert begin["ts"] <= end["ts"]
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"])
        for at in (begin, end):  # an arrow without a slice under it is dropped
            assert any(
                e["tid"] == at["tid"] and e["ts"] <= at["ts"] < e["ts"] + e["dur"]
                for e in subgraphs
            )


# -- what Perfetto's own trace processor makes of them: every slice and arrow, no complaint -----


def events_of(file: Path, phase: str) -> list[dict]:
    return [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == phase]


def check(perfetto: TraceProcessor, file: Path, profile: hl.types.Profile, how: str) -> None:
    """Every lane, slice and arrow of the file is there, where and as long as it says."""
    assert perfetto.complaints() == {}
    (process,) = perfetto.query("select name from process where name is not null")
    assert process["name"] == f"{profile.label} ({how})"
    lanes = {row["name"] for row in perfetto.query("select name from thread where tid > 0")}
    assert lanes == {
        event["args"]["name"] for event in events_of(file, "M") if event["name"] == "thread_name"
    }
    slices = perfetto.query("select name, category, ts, dur, depth from slice order by ts, depth")
    written = events_of(file, "X")
    assert len(slices) == len(written) > 0
    found = sorted((s["name"], s["category"], s["dur"]) for s in slices)
    # Perfetto counts in whole nanoseconds.
    expected = sorted((e["name"], e["cat"], e["dur"] * 1e3) for e in written)
    for (name, category, duration), (e_name, e_category, e_duration) in zip(
        found, expected, strict=True
    ):
        assert (name, category) == (e_name, e_category)
        assert abs(duration - e_duration) <= 1
    subgraphs = [s for s in slices if s["category"] == "subgraph"]
    assert {s["depth"] for s in subgraphs} == {0}
    assert {s["depth"] for s in slices if s["category"] != "subgraph"} <= {1}
    arrows = perfetto.query(
        "select a.name as begin, b.name as end, a.ts as begin_ts, b.ts as end_ts, a.depth as depth "
        "from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
    )
    assert len(arrows) == len(events_of(file, "s"))
    crossing = {
        (f"subgraph{boundary.source}", f"subgraph{target}")
        for boundary in profile.partition.boundaries
        for target in boundary.targets
    }
    # An arrow holds on to the innermost slice, often to a node; those at whole subgraphs tell.
    ends = {(arrow["begin"], arrow["end"]) for arrow in arrows}
    assert {pair for pair in ends if all(n.startswith("subgraph") for n in pair)} <= crossing
    assert all(arrow["begin_ts"] <= arrow["end_ts"] for arrow in arrows)


@pytest.mark.browser
def test_a_reconstructed_trace(tmp_path, browser):
    hl.emulate("PERFACC", unsupported={"Concat", "MaxPool"})
    profile = hl.profile("digits_inception", "HETERO:PERFACC,CPU", iterations=10, progress=False)
    profile.to_trace(tmp_path / "trace.json")
    with trace_processor(browser, (tmp_path / "trace.json").read_bytes()) as perfetto:
        check(perfetto, tmp_path / "trace.json", profile, "reconstructed from counters")
        assert {row["n"] for row in perfetto.query("select count(*) as n from flow")} == {
            profile.partition.n_crossings
        }
        total = perfetto.query("select sum(dur) as ns from slice where category != 'subgraph'")
        executed = profile.tables["counters"].query("status == 'EXECUTED'")["real_time_us"].sum()
        assert total[0]["ns"] == pytest.approx(1e3 * executed)


@pytest.mark.browser
@pytest.mark.parametrize("requests", [1, 3])
def test_a_measured_trace(tmp_path, browser, requests):
    hl.emulate("PERFACC", unsupported={"Concat"})
    profile = hl.profile(
        "digits_inception",
        "HETERO:PERFACC,CPU",
        executor="parallel",
        requests=requests,
        iterations=20,
        progress=False,
    )
    profile.to_trace(tmp_path / "trace.json")
    with trace_processor(browser, (tmp_path / "trace.json").read_bytes()) as perfetto:
        check(perfetto, tmp_path / "trace.json", profile, "measured")
        asked = perfetto.query(
            "select count(distinct extract_arg(arg_set_id, 'args.request')) as n from slice"
        )
        assert asked[0]["n"] == len({span.request for span in profile.spans})


@pytest.mark.browser
def test_what_is_broken_is_complained_about(browser):
    broken = {"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": 0, "dur": 10}
    crossing = {**broken, "name": "b", "ts": 5}
    text = json.dumps({"traceEvents": [broken, crossing]})
    with trace_processor(browser, text.encode()) as perfetto:
        assert perfetto.complaints() != {}
