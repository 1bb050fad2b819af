"""A/A runs: how much two compiles of one placement differ on a device; intervals.py uses it."""

from __future__ import annotations

import datetime
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.devices.core import BoundModel, bind, shared_core
from hetero_lab.devices.devices import check_device
from hetero_lab.errors import ArgumentError, MeasurementError, warn
from hetero_lab.intervals import ASSUMED_NOISE, Noise, compile_noise
from hetero_lab.measure.session import Conditions, Session
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.trial_grid import expand
from hetero_lab.measure.worker_process import Workers
from hetero_lab.model.read import load
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.progress import Stopwatch
from hetero_lab.results.environment import BUSY, keep_noise
from hetero_lab.results.sweep_result import Sweep

if TYPE_CHECKING:
    import openvino as ov

_COMPILES, _TURNS = 6, 60  # per group
_BATCH = 8  # of the slower model, whose milliseconds hide a noise of some µs
_LEAST_COMPILES, _LEAST_ROUNDS = 3, 4  # from fewer, a spread is mostly chance


def measure_noise(
    device: str = "CPU",
    *,
    budget_s: float | None = 60.0,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Noise:
    """Measure how much two compiles of one placement differ on a device of this host.

    Two compiles are not equally fast: they get other memory and other cores, and no number of
    turns averages that out. The same placement of a quick and of a slower model is compiled many
    times, each in a separate process, and measured in turns (A/A). The result is kept in the cache
    directory; from then on each sweep and profile on this host uses it for its intervals and
    groups, and says so. It warns if other processes kept the machine busy meanwhile.

    Parameters
    ----------
    device
        A device, for instance ``"CPU"`` or an emulated one.
    budget_s
        Wall time of the whole call. Groups of six compiles are measured until it is over; at least
        one of each model.
    progress
        Whether to show progress.

    Returns
    -------
    Noise
        ``.relative`` is the standard deviation of the ratio, ``.absolute_us`` that of the
        difference in µs, ``.n_compiles`` the number of compiles that were measured.

    Raises
    ------
    DeviceError
        The device does not exist.
    MeasurementError
        Compiles failed, and fewer than three were measured beside each other.
    OutputPathError
        The cache directory cannot be written.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> noise = hl.measure_noise("CPU", progress=False)  # doctest: +SKIP
    >>> noise.is_measured  # doctest: +SKIP
    True
    """
    watch = Stopwatch.start(budget_s)
    core = core or shared_core()
    if device.partition(":")[0] in ("HETERO", "AUTO", "MULTI"):
        raise ArgumentError(f"Noise is measured of one device at a time, not of {device!r}.")
    check_device(device, core)
    models = _models(core)
    groups: list[np.ndarray] = []
    busy: list[str] = []
    longest_s = 0.0
    for name in itertools.cycle(models):
        began_s = watch.elapsed_s
        model = {name: models[name]}
        # Through HETERO, whose hand-overs between threads vary as well.
        placement = Placement(Affinity.on_one(models[name].graph, device), device)
        with Session(model, Conditions(workers=Workers(group=_COMPILES))) as session:
            sweep = session.measure(
                expand(model, [placement] * _COMPILES, dedupe=False, baselines=False),
                RunOptions(turns=_TURNS, counters=False, reference=False),
                Stopwatch.start(None),
                progress=progress,
            )
        levels = _levels(sweep)
        if levels is None:
            break
        groups.append(levels)
        busy += [note for note in sweep.notes if note.startswith(BUSY)]
        longest_s = max(longest_s, watch.elapsed_s - began_s)
        enough = len(groups) >= len(models) and watch.elapsed_s + longest_s > (budget_s or 0.0)
        if sweep.interrupted or enough:
            break
    if not groups:
        if sweep.interrupted:
            raise KeyboardInterrupt
        raise MeasurementError(
            f"Too few compiles on {device} were measured beside each other: "
            f"{next((row.detail or row.status for row in sweep.rows), 'nothing ran')}."
        )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    noise = compile_noise(groups)
    # A steady minute says little about the next one, when a neighbour or the clock moves compiles.
    relative = max(noise.relative, ASSUMED_NOISE.relative)
    noise = replace(noise, relative=relative, measured_at=now)
    keep_noise(device, noise, core)
    if busy:
        warn(
            f"{busy[-1]} With the noise of a busy machine, later comparisons are decided too "
            "rarely. Measure it again when the machine is quiet."
        )
    return noise


def _models(core: ov.Core) -> dict[str, BoundModel]:
    """Return a quick model, and the same with a larger batch."""
    quick = bind(load("digits_inception"), core)
    (name, shape), *_ = [(i.get_any_name(), list(i.shape)) for i in quick.model.inputs]
    slow = bind(load("digits_inception", {name: [_BATCH, *shape[1:]]}), core)
    return {"quick": quick, "slow": slow}


def _levels(sweep: Sweep) -> np.ndarray | None:
    """Return the turn levels of a group, ``[compile, round]``; ``None`` if there are too few."""
    series = [row.series.ours for row in sweep.rows if len(row.series.ours) >= _LEAST_ROUNDS]
    common = [at for at in series[0] if all(at in other for other in series)] if series else []
    if len(series) < _LEAST_COMPILES or len(common) < _LEAST_ROUNDS:
        return None
    return np.array([[levels[at] for at in common] for levels in series])
