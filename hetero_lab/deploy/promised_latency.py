"""The latency that a contract promises, and whether it is kept: process by process.

Turns within a process agree far better than processes do, so a process is one value here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hetero_lab.deploy.contract import DRIFT, LatencyPromise, Promise
from hetero_lab.deploy.deployed_run import ObservedRun, Reference
from hetero_lab.errors import warn
from hetero_lab.intervals import Noise, log_spread, ratio_of_runs, turn_level
from hetero_lab.placement.placement import Placement
from hetero_lab.results.environment import is_busy
from hetero_lab.terminal import command_line

# It runs anywhere. OpenVINO's own pinning could choose a busy core.
ONE_CORE: Reference = (
    "CPU",
    {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": 1,
        "ENABLE_CPU_PINNING": False,
    },
)
OK, BROKEN, UNDECIDED, UNKNOWN = "ok", "broken", "undecided", "not checked"
UNPROMISED, ERROR = "not promised", "error"
REFERENCE = "reference"  # the step of a run that compiles the reference
N_PROMISED = 4  # processes that a promise is measured in
_LEAST_AGAIN, _MOST_AGAIN = 3, 6  # processes that confirm an alarm
QUIET_S, QUIET_SHARE = 2.0, 0.1  # the longest wait for a quiet machine, and of the budget
PAUSE_S = 2.0
BUDGET_S = 30.0


class Settlement(NamedTuple):
    """A status with its reason; if it is not ``settled``, another process could change it."""

    status: str
    detail: str
    settled: bool = True


def reference_for(placement: Placement, baseline: Placement | None) -> Reference:
    """Return the device that the latency of a placement is promised relative to.

    It is the baseline if that is a device alone, by default the CPU. A placement that is this
    device itself, every op of it, is compared with one core of the CPU in f32.
    """
    device, properties = "CPU", {}
    if baseline is not None and baseline.direct and baseline.virtual is None:
        device = baseline.devices[0]
        properties = dict(baseline.device_properties.get(device, {}))
    own = dict(placement.device_properties.get(device, {}))
    is_same = placement.devices == (device,) and own == properties
    return ONE_CORE if is_same else (device, properties)


def disturbed(runs: Sequence[ObservedRun]) -> str:
    """Say how many CPUs other processes kept busy; nothing if that matters little."""
    cpus, n_cpus = max(run.foreign_cpus for run in runs), runs[0].n_cpus or os.cpu_count() or 1
    busy = is_busy(cpus, n_cpus)
    return f"other processes kept {cpus:.1f} of {n_cpus} CPUs busy" if busy else ""


def promised(
    runs: Sequence[ObservedRun],
    reference: Reference,
    tolerance: float,
    noise: Noise,
    drift: float = 0.0,
    directory: Path = Path("OLD"),
) -> LatencyPromise | str:
    """Return the promise of a directory that was run several times, or warn why there is none.

    ``noise`` is that of compiles on its devices, and ``drift`` how far the logarithm of the ratio
    was seen to vary from measurement to measurement. Warns if that leaves nothing to hold it to.
    """
    device, properties = reference
    error = runs[-1].error
    base = str(directory).removesuffix("-quiet")  # of the command that is printed here
    first = Path(base, "model.xml")
    stored = str(first if first.is_file() else directory / "model.xml")
    command = command_line("hetero-lab", "freeze", stored, f"{base}-quiet", "--affinity", stored)
    way = f"freeze again on a quiet machine: {command}"
    ratios = [run.ratio for run in runs if run.ratio is not None]
    if why := f"the reference {device} fails: {error}" if error else disturbed(runs):
        warn(f"No latency is promised: {why}.{'' if error else f' To promise one, {way}'}")
        return why
    levels = [turn_level(turn) for run in runs for turn in (*run.turns_us, *run.reference_us)]
    spread, drift = max(log_spread(ratios), noise.spread(min(levels))), max(drift, DRIFT)
    middle, low, high, _ = ratio_of_runs(ratios, (), spread, drift)
    unchanged = ratio_of_runs(ratios, ratios, spread, drift)
    if unchanged.high > 1.0 + tolerance:
        warn(
            f"The latency varies too much for a tolerance of {tolerance:.0%}: it may look "
            f"{unchanged.high - 1:.0%} slower though nothing changed. Give a larger tolerance=, "
            f"for instance {math.ceil(20 * unchanged.high) / 20 - 1:.2f}, or {way}"
        )
    return LatencyPromise(
        reference_device=device,
        reference_properties=dict(properties),
        ratio=middle,
        ratio_ci95_low=low,
        ratio_ci95_high=high,
        ratios=tuple(ratios),
        spread=spread,
        drift=drift,
        tolerance=tolerance,
    )


def judged_latency(
    then: Promise, runs: Sequence[ObservedRun], tolerance: float | None, moved: str
) -> Settlement:
    """Tell whether a promise is kept, by the runs so far.

    ``moved`` names hardware that is not that of the promise. A first run that looks worse is an
    alarm; the runs after it decide.
    """
    first, *again = runs
    failed = next((run for run in runs if run.error), first)
    ratios = [run.ratio for run in runs if run.ratio is not None]
    if not isinstance(then, LatencyPromise):
        return Settlement(UNPROMISED, then or "")
    if failed.error and failed.step == REFERENCE:
        return Settlement(UNDECIDED, f"the reference {then.reference} fails: {failed.error}")
    if len(ratios) < len(runs):
        status = BROKEN if failed.error and failed.step == "latency" else UNKNOWN
        return Settlement(status, failed.error or "it was not measured")
    limit = 1.0 + (then.tolerance if tolerance is None else tolerance)
    if why := disturbed(runs):
        return Settlement(UNDECIDED, f"{why}; promised is {then}")
    spread = then.spread or math.log(then.ratio_ci95_high / then.ratio_ci95_low) / 3.92
    found = ratio_of_runs(ratios[1:] or ratios, then.ratios or (then.ratio,), spread, then.drift)
    text = (
        f"{found.middle:.2f} times the promise ({found.low:.2f} to {found.high:.2f}), which is "
        f"{then}"
    )
    if found.high <= limit:
        return Settlement(OK, text)
    if moved:
        return Settlement(UNDECIDED, f"{text}, but this is other hardware: {moved}")
    worse = found.low > limit and min(ratios) > limit * then.ratio
    if worse and len(again) >= _LEAST_AGAIN:
        if then.ratios:
            return Settlement(BROKEN, text)
        text += "; one process promised that: deploy again to promise a latency between processes"
        return Settlement(UNDECIDED, text)
    text += f"; {limit:.2f} times is allowed"
    return Settlement(UNDECIDED, text, settled=len(again) >= _MOST_AGAIN)
