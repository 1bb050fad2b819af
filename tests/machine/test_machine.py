"""Plans of real models on the devices here: numbers, bad input, crashes, Ctrl-C."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
from small_models import chain

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.errors import ArgumentError, DeviceError, PlanError
from hetero_lab.machine import load_loop
from hetero_lab.machine.load_loop import LoadWindow, window_at
from hetero_lab.machine.machine import Inquiry
from hetero_lab.measure.loads import Driven, Load
from hetero_lab.progress import Stopwatch


@pytest.fixture(scope="module", autouse=True)
def acc():
    hl.emulate("MACHACC")


def inquiry_on(demands, devices=("CPU",), budget_s=None, **options) -> Inquiry:
    return Inquiry(demands, list(devices), watch=Stopwatch.start(budget_s), **options)


def test_a_plan_has_a_way_for_each_model_beside_each_on_its_own_best(tmp_path):
    ways = ["CPU", "AUTO:MACHACC,CPU"]
    demands = {
        "free": hl.Demand(chain("r", "s"), ways=ways, requests=2),
        "timed": hl.Demand(chain("t", "u"), ways=ways, rate_per_s=20, deadline_ms=5_000),
    }
    store = tmp_path / "store"  # is made
    plan = hl.machine(demands, ["MACHACC", "CPU"], budget_s=7, store=store, progress=False)
    assert (store / "rates.jsonl").exists()
    assert set(plan.best) == {"free", "timed"}
    table = plan.summary
    assert list(table["model"]) == ["free", "timed"]
    assert (table["share"] > 0.0).all()
    assert (table["own_best_share"] > 0.0).all()
    assert 0 < table["rate_per_s"][1] < 30  # by the clock
    assert table["missed"][1] == 0.0  # in time on a busy machine, too
    sets = plan.measured_sets
    assert sets["judgement"].to_list().count("best") == 1
    assert sets["set"][0] == "each on its own best device"
    assert sets["ratio"][0] == 1.0
    assert {"model", "way", "beside", "beside_way", "share"} == set(plan.slowdown)
    assert set(plan.load["factor"]) <= {1.0, 1.25, 1.5, 2.0, 3.0, 4.0}
    assert plan.verdict.splitlines()[0].endswith(".")
    plan.export(tmp_path)
    assert "summary.csv" in {path.name for path in tmp_path.iterdir()}
    assert json.dumps(plan.to_dict())
    assert plan.verdict.splitlines()[0] in plan._repr_html_()


def test_what_was_measured_of_pairs_serves_the_next_plan(tmp_path):
    models = {"a": chain("r", "s"), "b": chain("t", "u", "v")}
    demands = {name: hl.Demand(model, ways=["CPU"]) for name, model in models.items()}
    file = tmp_path / "rates.jsonl"

    def measured(demands):
        with inquiry_on(demands, store=tmp_path) as inquiry:
            inquiry.measure_alone()
            inquiry.measure_pairs()
            return inquiry.alone, file.read_text().splitlines()

    first = measured(demands)
    assert measured(dict(reversed(demands.items()))) == first
    file.write_text("\n".join([*first[1][:2], '{"keys": [', ""]))
    with inquiry_on(demands, store=tmp_path) as cut:
        ways = [way for own in cut.ways.values() for way in own.values()]
    assert sum(cut.rates.n(way.key) for way in ways) == 1


@pytest.mark.parametrize("processes", [None, 1])
def test_outputs_under_full_load_are_those_alone(processes):
    model = hl.load("digits_inception")
    ways = ["CPU", "HETERO:MACHACC,CPU", "AUTO:MACHACC,CPU"]
    demands = {f"m{n}": hl.Demand(model, requests=2, ways=[way]) for n, way in enumerate(ways)}
    with inquiry_on(demands, ["MACHACC", "CPU"], processes=processes) as inquiry:
        chosen = {name: next(iter(own.values())) for name, own in inquiry.ways.items()}
        loads = {name: demands[name].closed(way.key) for name, way in chosen.items()}
        driven = inquiry.drives.drive(chosen, loads, 0.5, check=True)
    for one in driven.values():
        assert one.n_wrong == 0
        assert one.latencies_us
        # Each of the two requests may begin before the window, and end after it.
        assert 0.5 * one.rate_per_s == pytest.approx(len(one.latencies_us), abs=2)


def test_a_clock_counts_what_it_had_to_give_up():
    demand = hl.Demand("digits_inception", rate_per_s=20_000, deadline_ms=2)
    with inquiry_on({"m": demand}) as inquiry:
        way = inquiry.ways["m"]["CPU"]
        loads = {"m": Load(key=way.key, rate_per_s=20_000.0, patience_s=0.002)}
        driven = inquiry.drives.drive({"m": way}, loads, 0.3)["m"]
    assert driven.n_due == pytest.approx(6000, abs=1)
    assert len(driven.latencies_us) < driven.n_due
    assert driven.rate_per_s < 20_000


@pytest.mark.parametrize("rate_per_s", [10, 30, 60, 100, 200])
def test_a_clock_counts_each_arrival_once(rate_per_s):
    load = Load(key="k", rate_per_s=float(rate_per_s), patience_s=1.0)
    for begins in np.random.default_rng(0).uniform(0.0, 1e5, 200):
        window = LoadWindow([], load, begins, begins + 0.4)
        due = [window._due(number) for number in range(200)]
        window.times = [(at, at, at + 1e-3) for at in due if at < window.ends]
        driven = window.driven()
        assert driven.n_due == len(driven.latencies_us) == pytest.approx(0.4 * rate_per_s, abs=1)


def test_a_process_that_is_late_measures_the_same_window(monkeypatch):
    for clock, reads in (("now", 7.0), ("unix_now", 100.0)):
        monkeypatch.setattr(load_loop, clock, lambda reads=reads: reads)
    assert window_at(99.95) - window_at(100.0) == pytest.approx(-0.05)


def test_a_limit_is_kept_where_the_best_sets_exceed_it():
    ways = ["CPU", "MACHACC"]
    demands = {name: hl.Demand("digits_inception", ways=ways) for name in ("a", "b")}
    one_of_both = bind(hl.load("digits_inception")).graph.weight_bytes * 3 // 2
    limit = {"CPU": one_of_both, "MACHACC": one_of_both}
    plan = hl.machine(demands, ["CPU", "MACHACC"], memory_limit=limit, budget_s=2, progress=False)
    assert all(len(set(one.chosen.values())) == 2 for one in plan.sets)
    assert any("more than the limit" in why for why in plan.left_out.values())


def test_a_rate_that_no_process_can_produce_ends_the_growing_rates(monkeypatch):
    with inquiry_on(
        {"m": hl.Demand("digits_inception", rate_per_s=20, deadline_ms=200)}
    ) as inquiry:

        def behind(_ways, loads, _seconds):
            late_us = 1e6 * ((loads["m"].rate_per_s or 0.0) > 25)
            return {
                "m": Driven(rate_per_s=20.0, latencies_us=(1e3,) * 9, n_due=9, behind_us=late_us)
            }

        monkeypatch.setattr(inquiry.drives, "drive", behind)
        plan = inquiry.plan()
    assert list(plan.loads) == [1.25]
    assert "more than a process here can produce" in plan.left_out["1.5 times the rates"]


def test_a_way_that_is_kept_without_latencies_takes_for_ever():
    with inquiry_on({"m": hl.Demand("digits_inception", ways=["CPU"])}) as inquiry:
        way = inquiry.ways["m"]["CPU"]
        inquiry.rates.keep([way.one_key], [Driven(rate_per_s=9.0, latencies_us=())])
        assert inquiry._latency_us(way) == np.inf


def test_ways_have_one_label_each_and_are_offered_if_none_is_named():
    model = chain("r", "s")
    same = [hl.Placement(hl.Affinity.uniform(model, device), "x") for device in ("MACHACC", "CPU")]
    demands = {
        "named": hl.Demand(model, ways=same),
        "one": hl.Demand(model),
        "free": hl.Demand(model, requests=2),
    }
    with inquiry_on(demands, ["MACHACC", "CPU"]) as inquiry:
        assert list(inquiry.ways["named"]) == ["x", "x (2)"]
        assert "MULTI:MACHACC,CPU" not in inquiry.ways["one"]  # one request keeps one device busy
        assert {*inquiry.ways["free"]} >= {
            "MACHACC", "CPU", "CPU · 2 streams", "AUTO:MACHACC,CPU", "MULTI:MACHACC,CPU",
        }  # fmt: skip


def test_a_way_that_crashes_costs_its_own_row(monkeypatch):
    demands = {
        "good": hl.Demand(chain("r", "s"), ways=["CPU", "MACHACC"]),
        "bad": hl.Demand(chain("t", "u"), ways=["CPU"]),
    }
    with inquiry_on(demands, budget_s=2.0) as inquiry:
        drive = inquiry.drives.drive
        struck = []

        def killed(ways, loads, seconds, **options):
            if set(ways) == {"good"} and not struck:
                struck.append(1)
                inquiry.drives.compile(list(ways.items()))
                inquiry.drives._benches["good"]._process.kill()
            return drive(ways, loads, seconds, **options)

        monkeypatch.setattr(inquiry.drives, "drive", killed)
        plan = inquiry.plan()
    assert len(plan.left_out) == 1
    assert "crashed" in next(iter(plan.left_out.values()))
    assert set(plan.best) == {"good", "bad"}


@pytest.mark.parametrize("after", [0, 3])
def test_ctrl_c_keeps_what_is_known(monkeypatch, after):
    turn, calls = Inquiry.turn, []

    def interrupted(*given):
        if len(calls) == after:
            signal.raise_signal(signal.SIGINT)
        calls.append(given)
        return turn(*given)

    monkeypatch.setattr(Inquiry, "turn", interrupted)
    demands = {name: hl.Demand(chain(name, "r"), ways=["CPU"]) for name in "ab"}
    with pytest.raises(KeyboardInterrupt):
        hl.machine(demands, ["CPU"], budget_s=20, progress=False)
    kept = hl.last_interrupted()
    assert kept.interrupted
    assert kept.summary["alone_per_s"].min() > 0.0
    assert ("Nothing was measured together" in kept.verdict) == (after == 0)
    assert "Ctrl-C" in kept.verdict


@pytest.mark.parametrize(
    ("demand", "options", "message"),
    [
        ({"rate_per_s": 5}, {"objective": "deadlines"}, "which 'm' lacks"),
        ({"rate_per_s": 5, "deadline_ms": 1e-3}, {}, "shorter than the model takes"),
        ({"rate_per_s": 9e4}, {}, "more than a process here can produce"),
        ({"ways": ["NOTHERE"]}, {}, "runs nowhere"),
    ],
)
def test_what_cannot_be_planned_is_told(demand, options, message):
    demands = {"m": hl.Demand(chain("r", "s"), **{"ways": ["CPU"], **demand})}
    with pytest.raises((ArgumentError, DeviceError), match=message):
        hl.machine(demands, ["CPU"], progress=False, **options)


def test_a_deadline_is_a_number_above_0():
    with pytest.raises(ArgumentError, match="deadline_ms= is a number above 0"):
        hl.Demand("digits_inception", rate_per_s=5, deadline_ms=0)


def test_a_limit_that_no_set_keeps_is_told_before_anything_is_measured(monkeypatch):
    monkeypatch.delattr(Inquiry, "measure_alone")
    demands = {"a": hl.Demand("digits_inception")}
    with pytest.raises(PlanError, match="No set keeps to memory_limit"):
        hl.machine(demands, ["CPU"], memory_limit={"CPU": 1000}, progress=False)
