"""Profiles and sweeps of the parallel executor, on the real runtime."""

from __future__ import annotations

import itertools
import signal
import threading

import numpy as np
import openvino as ov
import pandas as pd
import pytest
from counting_core import CountingCore, core_with_acc, in_f32, on_acc, torn_by_a_file
from openvino import opset13 as op
from small_models import convolutions, dynamic_inside, odd_ends, stateful

import hetero_lab as hl
from hetero_lab.cli import main as cli
from hetero_lab.devices.core import bind
from hetero_lab.errors import AffinityError, HeteroLabWarning
from hetero_lab.measure import profile as profiling
from hetero_lab.measure.bench import Bench
from hetero_lab.measure.trial_grid import trial_of
from hetero_lab.placement.placement import resolve
from hetero_lab.tables import read_csv

QUICK = {"iterations": 20, "warmup": 0, "progress": False}
SWEEP = {"turns": 2, "budget_s": None, "progress": False}
TIMELINE = ["request", "subgraph", "device", "start_us", "end_us", "critical"]
THROUGHPUT = [
    "executor", "n_requests", "exclusive", "time_per_result_us", "ci95_low_us", "ci95_high_us",
    "per_second", "latency_us",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads() == []


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("hetero_lab ")]


def branches(size: int = 32) -> ov.Model:
    """Build a relu, two convolutions of it (left and right) and their sum."""
    x = op.parameter([1, 8, size, size], np.float32, name="x")
    top = op.relu(x, name="top")
    weights = np.random.default_rng(0).normal(size=(2, 8, 8, 3, 3)).astype(np.float32)
    left, right = (
        op.convolution(top, op.constant(w, name=f"{name}_w"), *[[1, 1]] * 4, name=name)
        for w, name in zip(weights, ("left", "right"), strict=True)
    )
    return ov.Model([op.result(op.add(left, right, name="join"), name="out")], [x], "branches")


def branchy(core, size: int = 32) -> tuple:
    """Two branches, each a convolution, on two devices."""
    model = branches(size)
    return model, in_f32(on_acc(model, core, "left"), "branches")


def inception(core, **more) -> hl.types.Profile:
    model = hl.load("digits_inception")
    cpu = hl.Affinity.uniform(model, "CPU", core=core)
    mine = in_f32(cpu.fix(patterns={"^mixed2": "ACC"}, core=core), "mine")
    return hl.profile(model, mine, executor="parallel", core=core, **QUICK, **more)


@pytest.fixture(scope="module")
def measured(core) -> hl.types.Profile:
    return inception(core)


@pytest.fixture(scope="module")
def in_flight(core) -> hl.types.Profile:
    return inception(core, requests=3)


# -- profile: one request at a time ------------------------------------------------------------


def test_the_usual_tables_and_a_measured_timeline(measured):
    assert measured.executor == "parallel"
    assert measured.as_predicted
    assert measured.partition.observed
    assert [a.verdict for a in measured.agreement] == ["equal", "equal"]
    assert [len(turn) for turn in measured.latency.turns] == [10, 10]
    assert measured.tables["summary"]["executor"].tolist() == ["parallel"]
    assert "throughput" not in measured.tables
    assert "; parallel executor" in measured.report()
    frame = measured.tables["timeline"]
    assert list(frame) == TIMELINE
    n_subgraphs = measured.partition.n_subgraphs
    assert n_subgraphs > 2
    assert len(frame) == 10 * n_subgraphs  # of the last turn
    assert frame["request"].unique().tolist() == list(range(10))
    assert frame["start_us"].iloc[0] == 0
    assert (frame["end_us"] > frame["start_us"]).all()
    devices = [s.device for s in measured.partition.subgraphs]
    assert frame["device"].tolist() == [devices[i] for i in frame["subgraph"]]


def one_at_a_time(slices: pd.DataFrame) -> bool:
    ordered = slices.sort_values("start_us")
    return (ordered["start_us"].to_numpy()[1:] >= ordered["end_us"].to_numpy()[:-1]).all()


def test_the_timeline_keeps_to_the_data_and_its_critical_path_leads_from_first_to_last(measured):
    """A subgraph starts after all that it reads, and a device runs one at a time."""
    frame = measured.tables["timeline"]
    for _, one in frame.groupby("request"):
        path = one[one["critical"]]
        assert path["start_us"].min() == one["start_us"].min()
        assert path["end_us"].max() == one["end_us"].max()
        assert one_at_a_time(path)
        at = one.set_index("subgraph")
        for boundary in measured.partition.boundaries:
            if measured.graph.ops[measured.graph.index_of[boundary.op]].type != "Parameter":
                for target in boundary.targets:
                    assert at.loc[target, "start_us"] >= at.loc[boundary.source, "end_us"]
    assert all(one_at_a_time(lane) for _, lane in frame.groupby("device"))


def test_idle_times_add_up(measured):
    frame, idle = measured.tables["timeline"], measured.tables["idle"].set_index("device")
    assert list(idle) == ["busy_us", "idle_us", "share"]
    assert set(idle.index) == {"CPU", "ACC"}
    requests = frame.groupby("request")
    whole = float((requests["end_us"].max() - requests["start_us"].min()).sum())
    for device, row in idle.iterrows():
        mine = frame[frame["device"] == device]
        assert row["busy_us"] == pytest.approx((mine["end_us"] - mine["start_us"]).sum())
        assert row["busy_us"] + row["idle_us"] == pytest.approx(whole)
        assert row["share"] == pytest.approx(row["idle_us"] / whole)


def test_counters_belong_to_the_subgraphs_that_ran(core):
    model = convolutions()
    placement = in_f32(on_acc(model, core, "softmax"), "mine")
    ours = hl.profile(model, placement, executor="parallel", core=core, **QUICK)
    theirs = hl.profile(model, placement, core=core, **QUICK)
    assert ours.tables["subgraphs"]["n_executed"].gt(0).all()

    def told(profile):
        return sorted((c.device, c.kind, c.op, c.tensor) for c in profile.counters)

    assert told(ours) == told(theirs)
    assert [b.tensor for b in ours.partition.boundaries] == ["relu1", "softmax"]
    assert {a.precision for a in ours.agreement} == {"f32"}


def test_a_plain_device_branches_and_odd_models(core):
    options = {"executor": "parallel", "core": core, **QUICK}
    plain = hl.profile("digits_inception", "CPU", **options)
    assert plain.partition.n_subgraphs == 1
    assert plain.counters
    assert plain.tables["timeline"]["critical"].all()
    assert plain.tables["idle"]["share"].tolist() == pytest.approx([0], abs=1e-9)
    options["counters"] = False
    for model, placement, n_subgraphs in (
        (*branchy(core), 3),
        (*branchy(core, size=64), 4),  # enough to do in each branch
        (odd_ends(), "CPU", 4),
        (dynamic_inside(), "CPU", 1),
    ):
        profile = hl.profile(model, placement, **options)
        assert {a.verdict for a in profile.agreement} == {"equal"}
        assert profile.partition.n_subgraphs == n_subgraphs
        assert len(profile.tables["timeline"]) == n_subgraphs * 10
    assert len(hl.profile(stateful(), "CPU", reference=False, **options).latency) == 20


# -- profile: several in flight ----------------------------------------------------------------


def test_throughput_stands_beside_that_of_hetero(in_flight):
    frame = in_flight.tables["throughput"]
    assert list(frame) == THROUGHPUT
    assert frame["executor"].tolist() == ["hetero", "hetero", "parallel"]
    assert frame["exclusive"].tolist() == [True, False, False]
    assert frame["n_requests"].tolist() == [3, 3, 3]
    assert (frame["latency_us"] > 0).all()
    for row, measured in zip(frame.itertuples(), in_flight.throughput, strict=True):
        assert row.ci95_low_us <= row.time_per_result_us <= row.ci95_high_us
        assert row.per_second == pytest.approx(1e6 / row.time_per_result_us)
        # Two rounds of 20 iterations: a turn each, 10 samples a turn.
        assert [len(turn) for turn in measured.between.turns] == [10, 10]
        assert [len(turn) for turn in measured.latency.turns] == [10, 10]
    report = in_flight.report()
    assert report.count("In flight:  3 requests, hetero") == 2
    assert "3 requests, parallel, not exclusive" in report
    # The latency is still that of one request at a time; the outputs are of the last in flight.
    assert len(in_flight.latency) == 20
    assert [a.verdict for a in in_flight.agreement] == ["equal", "equal"]


def test_its_timeline_has_the_requests_in_flight(in_flight):
    frame = in_flight.tables["timeline"]
    assert frame["request"].nunique() == (10 + 1) * 3
    spans = frame.groupby("request").agg({"start_us": "min", "end_us": "max"})
    marks = [(t, 1) for t in spans["start_us"]] + [(t, -1) for t in spans["end_us"]]
    assert 2 <= max(itertools.accumulate(step for _, step in sorted(marks))) <= 3
    # Each request has a chain that ends with it.
    for _, one in frame.groupby("request"):
        assert one.loc[one["end_us"].idxmax(), "critical"]


def test_hetero_is_really_compiled_with_and_without_exclusive_requests(own_core: CountingCore):
    model, placement = branchy(own_core)
    profile = hl.profile(
        model, placement, requests=2, core=own_core, counters=False, reference=False, **QUICK
    )
    assert profile.tables["throughput"]["executor"].tolist() == ["hetero", "hetero"]
    assert profile.tables["throughput"]["exclusive"].tolist() == [True, False]
    assert "timeline" not in profile.tables
    asked = [config["DEVICE_PROPERTIES"] for config in own_core.configs]
    values = [[d.get("EXCLUSIVE_ASYNC_REQUESTS") for d in of.values()] for of in asked]
    assert values == [[None, None], [True, True], [False, False]]


def test_a_budget_holds_for_both_parts(core):
    model, placement = branchy(core)
    profile = hl.profile(
        model, placement, executor="parallel", requests=2, budget_s=0.4, core=core,
        counters=False, reference=False, progress=False,
    )  # fmt: skip
    assert [row.executor for row in profile.throughput] == ["hetero", "hetero", "parallel"]


def test_interrupted_in_flight_keeps_the_latency(core, monkeypatch):
    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(profiling, "_throughput", interrupted)
    model, placement = branchy(core)
    with (
        pytest.warns(HeteroLabWarning, match="Interrupted after the timing"),
        pytest.raises(KeyboardInterrupt, match="returns the Profile of what was done"),
    ):
        hl.profile(model, placement, executor="parallel", requests=2, core=core, **QUICK)
    profile = hl.last_interrupted()
    assert profile.interrupted
    assert len(profile.latency) == 20
    assert profile.tables["timeline"]["request"].nunique() == 10
    assert profile.throughput == ()


# -- what can be known before anything runs ----------------------------------------------------


def test_a_state_that_a_file_tears(own_core: CountingCore, tmp_path):
    model = hl.load(stateful())
    torn = torn_by_a_file(hl.Affinity.uniform(model, "CPU", core=own_core), tmp_path / "a.csv")
    for call in (
        lambda: hl.profile(model, torn, executor="parallel", core=own_core, **QUICK),
        lambda: hl.sweep(model, [torn], grid={"executor": ["parallel"]}, core=own_core, **SWEEP),
    ):
        with pytest.raises(AffinityError, match="would be torn into 3 subgraphs"):
            call()
    assert own_core.n_compiled == 0


# -- stored ------------------------------------------------------------------------------------


def test_a_stored_profile_reads_back_with_its_timeline(in_flight, tmp_path):
    in_flight.export(tmp_path)
    again = hl.read_profile(tmp_path)
    assert again.spans == in_flight.spans
    assert again.throughput == in_flight.throughput
    assert again.executor == "parallel"
    assert again.report() == in_flight.report()
    for name in ("timeline", "idle", "throughput"):
        pd.testing.assert_frame_equal(again.tables[name], in_flight.tables[name])
        csv = read_csv(tmp_path / f"{name}.csv").drop(columns="schema_version")
        pd.testing.assert_frame_equal(csv, in_flight.tables[name], check_dtype=False)


def test_in_a_process_of_its_own(core):
    options = {"executor": "parallel", "requests": 2, "isolate": True, "counters": False}
    profile = hl.profile(*branchy(core), core=core, **options, **QUICK)
    assert profile.executor == "parallel"
    assert len(profile.tables["timeline"]) == profile.partition.n_subgraphs * (10 + 1) * 2
    assert len(profile.throughput) == 3
    assert [a.verdict for a in profile.agreement] == ["equal"]


# -- sweep -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    core = core_with_acc()
    model, placement = branchy(core)
    store = tmp_path_factory.mktemp("store")
    executors = {"executor": ["hetero", "parallel"]}
    options = {"grid": {**executors, "requests": [1, 2]}, "core": core, **SWEEP}
    sweep = hl.sweep(model, [placement], store=store, **options)
    here = hl.sweep(model, [placement], isolate=False, **{**options, "grid": executors})
    return sweep, store, here


def test_both_executors_have_rows(swept):
    sweep, store, local = swept
    assert hl.read_sweep(store).summary.equals(sweep.summary)
    frame = sweep.summary.set_index("label")
    assert set(zip(frame.index, frame["executor"], frame["requests"], strict=True)) == {
        ("branches", "hetero", 1),
        ("branches · 2 requests", "hetero", 2),
        ("branches · parallel", "parallel", 1),
        ("branches · parallel · 2 requests", "parallel", 2),
        ("ACC", "hetero", 1),
        ("CPU", "hetero", 1),
    }
    assert set(frame["status"]) == {"ok"}
    assert set(frame["verdict"]) == {"equal"}
    assert set(frame["same_as"]) == {""}
    assert sweep.ranking.set_index("label").loc["branches · parallel", "executor"] == "parallel"
    frame = local.summary.set_index("label")
    assert frame["status"].tolist() == ["ok"] * 4
    assert frame.loc["branches · parallel", "executor"] == "parallel"
    assert frame.loc["branches · parallel", "n_subgraphs"] == frame.loc["branches", "n_subgraphs"]


def test_a_parallel_row_has_a_measured_timeline(swept):
    for sweep in (swept[0], swept[2]):
        profile = sweep.profile("branches · parallel")
        assert profile.executor == "parallel"
        assert len(profile.spans) == profile.partition.n_subgraphs
        assert profile.counters
        assert hl.views.timeline(profile).layout.title.text.endswith(", measured")
        assert sweep.profile("branches").spans == ()
    assert "where_time_goes" in hl.views.gallery(sweep)
    assert "timeline" in hl.views.gallery(profile)


def test_a_bench_ends_the_threads_of_what_it_lets_go(core):
    model, placement = branchy(core)
    bench = Bench({"m": bind(model, core)})
    placed = resolve(bind(model, core), placement)
    trial = trial_of(placed, "l", "m", executor="parallel", requests=2)
    bench.compile(trial)
    assert len(threads()) == 3  # one more than devices
    compiled = bench.compile(trial, compare=True)
    assert compiled.agreement[0].verdict == "equal"
    assert len(threads()) == 3  # the first one was let go
    turn = bench.run_turn(trial.key, discarded=2, timed=10)
    assert len(turn.samples_us) == 10
    bench.release(trial.key)
    assert threads() == []


# -- command line ------------------------------------------------------------------------------


def test_the_command_line_profiles_with_an_executor(tmp_path, capsys):
    line = "profile digits_inception -d CPU --executor parallel --requests 2 -n 10 -w 0 --export"
    assert cli.main([*line.split(), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "; parallel executor" in said
    assert "In flight:  2 requests, parallel" in said
    stored = hl.read_profile(tmp_path / "out")
    assert len(stored.throughput) == 3
    assert read_csv(tmp_path / "out" / "timeline.csv")["request"].nunique() == 22


def test_the_command_line_sweeps_over_executors(tmp_path):
    line = "sweep digits_inception -d CPU --executor hetero,parallel --turns 2 -q --no-isolate"
    assert cli.main([*line.split(), "--csv", str(tmp_path / "s.csv")]) == 0
    frame = read_csv(tmp_path / "s.csv").set_index("label")
    assert frame["executor"].to_dict() == {
        "HETERO:CPU": "hetero",
        "HETERO:CPU · parallel": "parallel",
        "CPU": "hetero",
    }
