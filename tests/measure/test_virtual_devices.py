"""AUTO, MULTI, BATCH and hints are rows like any other, and each says what really ran it."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import convolutions

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, DeviceError, PropertyError
from hetero_lab.runtime.executors import settle

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(scope="module")
def measured():
    hl.emulate("VIRACC", properties=F32)
    model = hl.load(convolutions())
    auto = hl.Affinity.uniform(model, "CPU")
    batch = hl.compile(model, "BATCH:CPU(2)").placement.affinity
    no_wait = {"BATCH": {"AUTO_BATCH_TIMEOUT": 1}}  # ms, for a second request that never comes
    placements = [
        hl.Placement(auto, "CPU f32", {"CPU": F32}, direct=True),
        "AUTO:VIRACC,CPU",
        "AUTO:CPU",
        "MULTI:CPU",
        hl.Placement(batch, "BATCH:CPU(2)", no_wait, direct=True),
        "HETERO:VIRACC,CPU",
        "AUTO",
    ]
    made = hl.sweep(
        model, placements, turns=2, counters=False, baselines=False, isolate=False, progress=False
    )
    return made.summary.set_index("label")


def test_each_row_says_what_ran_it_and_has_the_right_outputs(measured):
    assert list(measured["status"]) == ["ok"] * 7
    assert set(measured["verdict"]) <= {"equal", "rounding"}
    assert measured.loc["AUTO:VIRACC,CPU", "verdict"] == "equal"  # its own f32 arrived
    ran = measured["execution_devices"].to_dict()
    assert ran["AUTO:VIRACC,CPU"] == "VIRACC"  # the first of the list, under its own name
    assert ran["AUTO:CPU"] == ran["AUTO"] == ran["MULTI:CPU"] == ran["BATCH:CPU(2)"] == "CPU"
    assert (measured["n_subgraphs"] == 1).all()
    # MULTI asks for throughput, AUTO for latency, unless told otherwise.
    assert measured.loc["AUTO:CPU", "n_streams"] == 1
    assert measured.loc["MULTI:CPU", "n_streams"] == measured.loc["MULTI:CPU", "optimal_requests"]
    assert measured.loc["BATCH:CPU(2)", "optimal_requests"] == 2


def test_hints_and_streams_are_told_apart(digits):
    grid = {"CPU.PERFORMANCE_HINT": ["LATENCY", "THROUGHPUT"]}
    options = {"turns": 2, "counters": False, "reference": False, "isolate": False}
    made = hl.sweep(digits, ["CPU"], grid=grid, baselines=False, progress=False, **options)
    latency, throughput = made.summary["n_streams"]
    assert latency == 1
    assert throughput == made.summary["optimal_requests"].iloc[1]
    auto = hl.sweep(
        digits, ["AUTO:CPU"], grid={"AUTO.PERFORMANCE_HINT": ["LATENCY", "THROUGHPUT"]},
        baselines=False, progress=False, **options,
    )  # fmt: skip
    assert auto.summary["n_streams"].tolist() == [latency, throughput]


def test_properties_reach_the_device_behind(digits):
    x = [np.full((1, 1, 8, 8), 0.3, np.float32)]
    affinity = hl.compile(digits, "AUTO:CPU").placement.affinity
    asked = hl.Placement(affinity, "auto f32", {"CPU": F32}, direct=True)
    plain = hl.Placement(hl.Affinity.uniform(digits, "CPU"), "", {"CPU": F32}, direct=True)
    for name, array in hl.compile(digits, plain)(x).items():
        np.testing.assert_array_equal(hl.compile(digits, asked)(x)[name], array)
    with pytest.raises(PropertyError, match="'NOSUCH' is not a property of AUTO"):
        hl.compile(digits, hl.Placement(affinity, "", {"AUTO": {"NOSUCH": 1}}, direct=True))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("AUTO:", "names no device"),
        ("AUTO:XPU,CPU", "'XPU' is not a device here"),
        ("MULTI:CPU,CPU", "names 'CPU' twice"),
        ("MULTI:CPU(0)", "not a device of MULTI"),
        ("MULTI:CPU(2", "not a device of MULTI"),
        ("AUTO:CPU(2)", "not a device of AUTO"),
        ("BATCH:CPU(0)", "not a device of BATCH"),
        ("BATCH:", "not a device of BATCH"),
        ("BATCH:CPU,CPU", "not a device of BATCH"),
        ("HETERO:AUTO,CPU", "'AUTO' is not a device here"),
    ],
)
def test_what_openvino_would_pass_over_is_refused(name, says):
    with pytest.raises(DeviceError, match=says.replace("(", r"\(")):
        hl.compile("digits_inception", name)


def test_an_emulated_device_runs_nothing_that_it_does_not_claim():
    hl.emulate("VIRPART", unsupported={"Softmax"})
    with pytest.raises(
        DeviceError, match="VIRPART is emulated and does not claim .head_digit/softmax"
    ):
        hl.compile("digits_inception", "AUTO:VIRPART,CPU")


def test_multi_is_told_how_many_requests_a_device_has_in_flight(digits):
    hl.emulate("VIRTWO")
    for name, device in (("MULTI:CPU(2)", "CPU"), ("MULTI:VIRTWO(3)", "VIRTWO")):
        compiled = hl.compile(digits, name)
        assert compiled.placement.label == name
        assert compiled.placement.devices == (device,)
        assert set(compiled([np.zeros((1, 1, 8, 8), np.float32)])) == {"digit", "parity"}
    profile = hl.profile(digits, "MULTI:CPU(2)", requests=2, iterations=10, progress=False)
    assert profile.label == "MULTI:CPU(2)"


def test_no_affinity_names_a_virtual_device(digits):
    affinity = hl.compile(digits, "AUTO:CPU").placement.affinity
    with pytest.raises(DeviceError, match="'AUTO:CPU' is not a device here"):
        hl.compile(digits, affinity)  # without direct=True it is HETERO's
    with pytest.raises(ArgumentError, match="executor='parallel' takes an affinity"):
        hl.profile(digits, "AUTO:CPU", executor="parallel", progress=False)


def test_auto_is_asked_for_its_choice_once_it_has_settled(digits, monkeypatch):
    """Until then it names the device that helps out; others have nothing to wait for."""
    settled: list[list[str]] = []

    def noted(compiled, infer):
        settle(compiled, infer)
        settled.append(list(compiled.get_property("EXECUTION_DEVICES")))

    monkeypatch.setattr("hetero_lab.runtime.executors.settle", noted)
    options = {"counters": False, "reference": False, "isolate": False, "baselines": False}
    hl.sweep(digits, ["CPU", "AUTO:CPU"], turns=2, progress=False, **options)
    assert settled == [["CPU"]]
