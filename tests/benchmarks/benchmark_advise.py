"""Regret of advise: how far the advice is behind the best of all its candidates.

Run by hand: ``python -m tests.benchmarks.benchmark_advise [--budget 57] [--models A B] [--devices
cpu emulated gpu]``. For each model, on CPU alone, on CPU with an emulated device, and on GPU and
CPU (where there is no GPU and the extra ``gpu-rig`` is installed, on the rig of
``tests/gpu_rig``): advise within the budget, then measure every candidate exhaustively, in turns
with each other, until each ratio is known to 1 % or to what compiles differ by. That is done three
times, compiled anew, in equal parts of ``--exhaustive`` seconds. Where it takes less than twice the
time of the advice, advice is asked for once more, in half of the time that it took.

Prints the advice, the best of all, the regret (time of the advice over that of the best, minus one)
over all three, with its least and greatest value, and both times. The best of several noisy numbers
looks better than it is, so where the best is not what was advised, the two are compiled and
measured once more, in turns with each other alone. Other processes disturb: how many CPUs they kept
busy is printed where it was more than 0.3.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import hetero_lab as hl
from tests.gpu_rig import rig
from tests.scripts import F32, options

MODELS = ["digits_inception", "magika", "page_orientation", "blazeface", "ppocr_cls"]
EMULATED = "ADV"
_COMPILES = 3
_LOOK_S = 10.0


class Case:
    """A model on some devices: its advice, and the same candidates measured otherwise."""

    def __init__(self, model: str, devices: list[str]):
        self.name = f"{model:<16} {'+'.join(devices):<8}"
        self.devices = devices
        self.properties = {n: F32 for n in devices if n != EMULATED} if devices[1:] else None
        self.model = hl.load(model)

    def advise(self, budget_s: float) -> tuple[hl.types.Advice, float]:
        """Return advice and the seconds that it took."""
        began = time.perf_counter()
        advice = hl.advise(
            self.model,
            self.devices,
            device_properties=self.properties,
            budget_s=budget_s,
            progress=False,
        )
        return advice, time.perf_counter() - began

    def measure(self, placements: Mapping[str, hl.Placement], budget_s: float) -> hl.types.Sweep:
        """Measure placements, compiled anew, in turns with each other."""
        return hl.sweep(
            self.model,
            [replace(placement, label=label) for label, placement in placements.items()],
            budget_s=budget_s,
            precision=0.01,
            counters=False,
            baselines=False,
            progress=False,
        )


def regret_of(model: str, devices: list[str], budget_s: float, exhaustive_s: float) -> None:
    """Print a line: what is advised, what is best, and how far that is apart."""
    case = Case(model, devices)
    advice, took_s = case.advise(budget_s)
    placements = {c.row.label: c.placement for c in advice.candidates}
    usable = [c.row.label for c in advice.candidates if c.judgement != "wrong outputs"]
    began = time.perf_counter()
    every = [case.measure(placements, exhaustive_s / _COMPILES) for _ in range(_COMPILES)]
    every_s = time.perf_counter() - began
    if took_s > every_s / 2.0:
        advice, took_s = case.advise(every_s / 2.0)
    advised = advice.chosen
    ratios = [
        {row.label: row.series.ratio[0] for row in made.rows if row.series.ratio} for made in every
    ]
    mean = {
        label: math.prod(found) ** (1 / len(found))
        for label in usable
        if (found := [of[label] for of in ratios if label in of])
    }
    best = min(mean, key=lambda label: mean[label])
    label = advised.row.label
    text = f"advised {label:<18} best {best:<18} "
    if placements.get(label) == advised.placement:
        apart = [of[label] / of[best] - 1.0 for of in ratios if {label, best} <= of.keys()]
        text += (
            f"regret {mean[label] / mean[best] - 1.0:6.1%} ({min(apart):.1%} to {max(apart):.1%})"
        )
    else:
        text += "not among what was measured exhaustively"
    text += f", {took_s:.0f} s of {every_s:.0f} s for {len(mean)} candidates"
    if label != best or placements.get(label) != advised.placement:
        two = case.measure(
            {best: placements[best], f"{label} (advised)": advised.placement}, _LOOK_S
        )
        ratio = two.rows[1].series.ratio
        assert ratio is not None
        text += f"; once more {ratio[0] - 1.0:.1%} ({ratio[1] - 1.0:.1%} to {ratio[2] - 1.0:.1%})"
    print(f"{case.name} {text} {_disturbed(every)}", flush=True)


def _disturbed(sweeps: Sequence[hl.types.Sweep]) -> str:
    return " ".join(note for made in sweeps for note in made.notes if "busy during" in note)


def main() -> None:
    """Read the arguments and print a line a model and set of devices."""
    given = options(
        __doc__, budget=57.0, exhaustive=114.0, models=MODELS, devices=["cpu", "emulated"],
    )  # fmt: skip
    if "gpu" in given.devices:
        rig.start_here()
    hl.emulate(EMULATED, unsupported={"Softmax", "Concat"}, faster_by="auto")
    for model in given.models:
        for devices in given.devices:
            beside = {"cpu": [], "emulated": [EMULATED], "gpu": ["GPU"]}[devices]
            regret_of(model, [*beside, "CPU"], given.budget, given.exhaustive)


if __name__ == "__main__":
    main()
