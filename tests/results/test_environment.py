"""When a machine counts as busy, and what is known of its devices."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from hetero_lab import clock
from hetero_lab.intervals import Noise
from hetero_lab.results import environment
from hetero_lab.results.environment import current_environment, is_busy, machine_state, noise_of


@pytest.mark.parametrize(
    ("cpus", "n_cpus", "busy"),
    [
        (0.19, 1, False), (0.21, 1, True),
        (0.39, 2, False), (0.41, 2, True),
        (0.74, 4, False), (0.76, 4, True),  # at most three quarters of a CPU
        (0.79, 8, False), (0.81, 8, True),  # a tenth of all
    ],
)  # fmt: skip
def test_how_much_other_work_disturbs(cpus, n_cpus, busy):
    assert is_busy(cpus, n_cpus) == busy


@pytest.mark.parametrize(
    ("battery", "said"),
    [
        (None, None),  # a machine without one
        (SimpleNamespace(power_plugged=True), False),
        (SimpleNamespace(power_plugged=False), True),
    ],
)
def test_whether_it_runs_on_battery(monkeypatch, battery, said):
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert machine_state()["on_battery"] is said


def test_the_noise_of_several_devices_is_the_largest(core):
    quiet, loud = Noise(0.001, 4.0, 12, "2026-01-02"), Noise(0.02, 1.0, 8, "2026-01-01")
    known = replace(current_environment(["CPU"], core), noise=(("A", quiet), ("B", loud)))
    assert noise_of(known, ["A"]) == quiet
    assert noise_of(known, ["A", "B"]) == Noise(0.02, 4.0, 8, "2026-01-01")
    assert noise_of(known, ["A", "CPU"]).n_compiles == 0  # one of them is assumed
    assert quiet.when_busy == Noise(0.002, 8.0, 12, "2026-01-02")


def test_an_environment_can_be_that_of_some_devices(core):
    both = current_environment(["ACC", "CPU"], core)
    assert dict(both.emulated) == {"ACC": "CPU"}
    alone = both.of(["CPU"])
    assert [name for name, _ in alone.devices] == ["CPU"]
    assert alone.emulated == ()
    assert both.of(["ACC", "CPU"]) == both
    with pytest.raises(ValueError, match="isoformat"):
        replace(both, measured_at="yesterday")


def test_waiting_ends_when_others_are_quiet_or_the_time_is_over(monkeypatch):
    """A machine whose clock moves only while it is waited for."""
    slept: list[float] = []
    monkeypatch.setattr(environment, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(clock, "now_ns", lambda: round(sum(slept) * 1e9))

    def looks(*cpus: float) -> int:
        """Return how often it looks, where others keep so many CPUs busy, the last from then on."""
        slept.clear()
        seen = itertools.chain(cpus, itertools.repeat(cpus[-1]))
        other = SimpleNamespace(cpus=lambda: next(seen))
        monkeypatch.setattr(environment, "OtherWork", lambda: other)
        environment.wait_until_quiet(10.0)
        return len(slept)

    assert looks(0.0) == 1
    assert looks(1e3, 1e3, 0.0) == 3
    assert looks(1e3) == math.ceil(10.0 / environment._LOOK_S)
