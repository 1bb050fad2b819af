"""What an A/A run measures is kept for this host and used by what is measured later."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import hetero_lab as hl
from hetero_lab.cli import main as cli
from hetero_lab.deploy.contract import LatencyPromise
from hetero_lab.deploy.deployed_run import ObservedRun
from hetero_lab.deploy.freeze import latency_promise
from hetero_lab.errors import ArgumentError, HeteroLabWarning, MeasurementError
from hetero_lab.intervals import ASSUMED_NOISE, Noise, compile_noise
from hetero_lab.measure.session import Session
from hetero_lab.results import environment
from hetero_lab.results.environment import (
    busy_note,
    current_environment,
    keep_noise,
    known_noise,
    noise_of,
    noise_sentence,
)

LOUD = Noise(0.25, 3.0, 12, "2026-01-01T00:00:00+00:00")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_measured_is_kept_by_host_device_and_version(core, monkeypatch):
    assert known_noise("CPU", core) is None
    keep_noise("CPU", LOUD, core)
    assert known_noise("CPU", core) == LOUD
    assert known_noise("ACC", core) == LOUD  # which CPU runs
    own = replace(LOUD, relative=0.1)
    keep_noise("ACC", own, core)
    assert (known_noise("ACC", core), known_noise("CPU", core)) == (own, LOUD)
    monkeypatch.setattr(environment, "runtime_version", lambda: "another")
    assert known_noise("CPU", core) is None


def test_a_broken_file_is_named_and_written_anew(core, cache):
    keep_noise("CPU", LOUD, core)
    (cache / "noise.json").write_text("{")
    with pytest.warns(HeteroLabWarning, match=r"noise\.json cannot be read"):
        assert known_noise("CPU", core) is None
    with pytest.warns(HeteroLabWarning, match=r"noise\.json cannot be read"):
        keep_noise("CPU", LOUD, core)
    assert known_noise("CPU", core) == LOUD


def test_an_environment_says_which_noise_was_known(core):
    before = current_environment(["ACC", "CPU"], core)
    assert noise_of(before, ["CPU"]) == ASSUMED_NOISE
    assert "assumed" in noise_sentence(before)
    assert "measure_noise('ACC')" in noise_sentence(before)
    keep_noise("CPU", LOUD, core)
    after = current_environment(["ACC", "CPU"], core)
    assert dict(after.noise) == {"ACC": LOUD, "CPU": LOUD}
    assert noise_sentence(after) == (
        "Two compiles of one placement differ by 25.00% and 3 µs (measured on 12 compiles) on "
        "ACC, CPU."
    )


def test_a_stored_sweep_keeps_the_noise_that_it_was_made_with(core, tmp_path):
    keep_noise("CPU", LOUD, core)
    model = hl.load("digits_inception")
    swept = hl.sweep(
        model, ["HETERO:ACC,CPU", "CPU"], turns=3, counters=False, isolate=False, progress=False,
        reference=False, store=tmp_path / "store", core=core,
    )  # fmt: skip
    assert dict(swept.noise) == {"ACC": LOUD, "CPU": LOUD}
    assert set(swept.summary["noise_measured"]) == {True}
    assert (swept.summary["compile_spread"] > 0.25).all()
    assert "measured on 12 compiles" in swept.report()
    assert "measured on 12 compiles" in swept._repr_html_()
    keep_noise("CPU", replace(LOUD, relative=1e-6, absolute_us=0.0), core)
    again = hl.read_sweep(tmp_path / "store")
    assert again.noise == swept.noise
    assert again.ranking.equals(swept.ranking)
    profile = hl.profile(model, "CPU", iterations=10, progress=False, core=core)
    profile.export(tmp_path / "profile")
    assert hl.read_profile(tmp_path / "profile").environment == profile.environment
    assert profile.environment.noise[0][1].relative == 1e-6


def test_only_a_device_has_noise():
    with pytest.raises(ArgumentError, match="one device at a time"):
        hl.measure_noise("HETERO:CPU")


@pytest.mark.slow
def test_an_aa_run_on_the_command_line(core, capsys):
    assert cli.main(["noise", "--budget", "1"]) == 0
    said = capsys.readouterr().out
    measured = known_noise("CPU", core)
    assert measured is not None
    assert measured.relative >= ASSUMED_NOISE.relative  # a steady second proves little
    assert said == f"Two compiles of one placement on CPU differ by {measured}.\n"
    assert measured.n_compiles == 12
    assert 0.0 < measured.spread(1000.0) < 1.0


def test_a_deployment_is_compared_by_the_noise_of_its_devices(tmp_path):
    run = ObservedRun(turns_us=[[9000.0] * 3] * 3, reference_us=[[10_000.0] * 3] * 3)
    for noise, decided in ((Noise(0.002, 0.0, 12), True), (Noise(0.2, 0.0, 12), False)):
        promise = latency_promise([run] * 4, ("CPU", {}), 10.0, noise, 0.0, tmp_path)
        assert isinstance(promise, LatencyPromise)
        assert promise.ratio == pytest.approx(0.9)
        assert (promise.ratio_ci95_high < 1.0) == decided


def swept(levels: np.ndarray, interrupted: bool = False, *notes: str) -> SimpleNamespace:
    """Return a sweep of equal placements with these turn levels, ``[compile, round]``."""
    rows = [
        SimpleNamespace(
            series=SimpleNamespace(ours={(0, n): level for n, level in enumerate(own)}),
            status="ok", detail="",
        )
        for own in levels
    ]  # fmt: skip
    return SimpleNamespace(rows=rows, interrupted=interrupted, notes=list(notes))


def test_noise_is_that_of_compiles_beside_each_other(core, monkeypatch):
    rng = np.random.default_rng(0)
    groups = [
        level * rng.lognormal(0.0, 0.1, (6, 1)) * rng.lognormal(0.0, 0.01, (6, 8))
        for level in (100.0, 5000.0)
    ]
    measured, asked = iter([*groups, *groups]), []

    def measure(self, trials, options, watch, progress):
        asked.append((list(self.models), len(trials), {trial.affinity for trial in trials}))
        return swept(next(measured))

    monkeypatch.setattr(Session, "measure", measure)
    found = hl.measure_noise("ACC", budget_s=1e-9, core=core, progress=False)
    assert [(models, n) for models, n, _ in asked] == [(["quick"], 6), (["slow"], 6)]
    assert all(set(*affinities) == {"ACC"} for *_, affinities in asked)
    assert found.n_compiles == 12
    assert replace(found, measured_at="") == replace(compile_noise(groups), measured_at="")
    assert found.relative > ASSUMED_NOISE.relative
    assert known_noise("ACC", core) == found
    # Levels without any spread tell nothing of the next minute.
    still = iter([np.full((6, 8), 100.0), np.full((6, 8), 5000.0)])
    monkeypatch.setattr(Session, "measure", lambda *_, **options: swept(next(still)))
    steady = hl.measure_noise("ACC", budget_s=1e-9, core=core, progress=False)
    assert steady.relative == ASSUMED_NOISE.relative


def test_noise_of_a_busy_machine_is_said_to_be_that(core, monkeypatch):
    busy = swept(np.full((6, 8), 100.0), False, busy_note(1.4))
    monkeypatch.setattr(Session, "measure", lambda *_, **options: busy)
    with pytest.warns(HeteroLabWarning, match=r"kept 1\.4 CPUs busy .* when the machine is quiet"):
        found = hl.measure_noise("ACC", budget_s=1e-9, core=core, progress=False)
    assert known_noise("ACC", core) == found


@pytest.mark.parametrize(
    ("shape", "interrupted", "error"),
    [((2, 8), False, MeasurementError), ((6, 3), False, MeasurementError),
     ((2, 8), True, KeyboardInterrupt)],
)  # fmt: skip
def test_of_too_few_compiles_no_noise_is_kept(core, monkeypatch, shape, interrupted, error):
    few = swept(np.full(shape, 100.0), interrupted)
    monkeypatch.setattr(Session, "measure", lambda *_, **options: few)
    with pytest.raises(error):
        hl.measure_noise("ACC", budget_s=1.0, core=core, progress=False)
    assert known_noise("ACC", core) is None
