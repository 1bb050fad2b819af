"""Whether what is measured is what is deployed: the lab's latencies beside a plain OpenVINO loop.

Run by hand: ``python -m tests.benchmarks.benchmark_deployed [--repeats 8] [--device GPU]``. It asks
as a user does, each time with a new compile: ``profile`` here and in a process of its own,
``sweep``, the rows of ``optimize``, and a fresh process that knows nothing of the lab and loads the
frozen placement, in random order. Prints the median over the compiles of each, its ratio to that of
the plain processes, and by how much two compiles differ. ``--budget`` is that of optimize; after
``--at-most`` seconds no other repeat begins.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import hetero_lab as hl
from hetero_lab.clock import now
from hetero_lab.devices.core import BoundModel, bind
from tests.plain_openvino import PlainProcess, frozen
from tests.real_gpu.networks import model_file, short_name
from tests.scripts import F32, options

TIMED, WARM_UP, TURNS = 10, 40, 5
MODELS = ["digits_inception", "page_orientation", "magika"]


def chosen_placements(bound: BoundModel, device: str) -> dict[str, hl.Placement]:
    """Return each device by itself, and half of the ops on each with and without pinned threads."""
    cpu = hl.Affinity.on_one(bound.graph, "CPU")
    ops = cpu.ops
    mixed = cpu.fix(ops=dict.fromkeys(ops[: len(ops) // 2], device))
    f32 = {"CPU": F32} if device == "ACC" else {device: F32, "CPU": F32}
    free = {**f32, "CPU": {**F32, "ENABLE_CPU_PINNING": False}}
    return {
        "CPU": hl.Placement(cpu, "CPU", {"CPU": F32}, direct=True),
        "CPU, free threads": hl.Placement(cpu, "CPU, free threads", {"CPU": free["CPU"]}, True),
        device: hl.Placement(
            hl.Affinity.on_one(bound.graph, device), device, {device: f32.get(device, {})},
            direct=True,
        ),
        "halves": hl.Placement(mixed, "halves", f32),
        "halves, free threads": hl.Placement(mixed, "halves, free threads", free),
    }  # fmt: skip


def compare(
    name: str, given: argparse.Namespace, scratch: Path, shuffle: random.Random
) -> list[float]:
    """Ask as a user does, compile after compile; print a line for each placement and call."""
    model = hl.load(model_file(name, scratch))
    bound, name = bind(model), short_name(name)
    chosen = chosen_placements(bound, given.device)
    found: dict[tuple[str, str], list[float]] = {}
    best = hl.optimize(
        model, [given.device, "CPU"], budget_s=given.budget, progress=False,
        device_properties=dict(chosen["halves"].device_properties),
    )  # fmt: skip
    known = {placement.affinity: label for label, placement in reversed(chosen.items())}
    for row in best.sweep.rows:
        if row.profile is None:
            continue
        label = known.setdefault(row.profile.affinity, f"optimize: {row.label}")
        found[label, "optimize"] = [row.profile.latency.median_us]
        if label not in chosen:
            chosen[label] = hl.Placement(
                row.profile.affinity, row.label, chosen["halves"].device_properties,
                direct=len(row.profile.affinity.devices) == 1,
            )  # fmt: skip
    places = {label: frozen(bound, p, scratch / name / label) for label, p in chosen.items()}

    def plain() -> None:
        for label, place in places.items():
            with PlainProcess(place) as process:
                process.load(place)
                process.turn(place, 0, WARM_UP)
                turns = [process.turn(place) for _ in range(TURNS)]
            found.setdefault((label, "plain"), []).append(float(np.median(turns)))

    def profile(*, isolate: bool) -> None:
        for label, placement in chosen.items():
            made = hl.profile(
                model, placement, iterations=TURNS * TIMED, counters=False, reference=False,
                isolate=isolate, progress=False,
            )  # fmt: skip
            way = "profile, own process" if isolate else "profile"
            found.setdefault((label, way), []).append(made.latency.median_us)

    def sweep() -> None:
        made = hl.sweep(
            model, [hl.Placement(p.affinity, label, p.device_properties, p.direct)
                    for label, p in chosen.items()],
            turns=TURNS, budget_s=None, counters=False, reference=False, baselines=False,
            dedupe=False, progress=False,
        )  # fmt: skip
        for row in made.rows:
            if row.profile is not None:
                took_us = row.profile.latency.median_us
                found.setdefault((row.label, "sweep"), []).append(took_us)

    ways: list[Callable[[], None]] = [
        plain, sweep, partial(profile, isolate=False), partial(profile, isolate=True)
    ]  # fmt: skip
    until = now() + given.at_most
    for _ in range(given.repeats):
        if now() > until:
            break
        for ask in shuffle.sample(ways, len(ways)):
            ask()
    ratios = []
    for label in chosen:
        alone = found[label, "plain"]
        spread = np.ptp(alone) / np.median(alone)
        said = []
        for way in ("profile", "profile, own process", "sweep", "optimize"):
            if (label, way) in found:
                ratios.append(float(np.median(found[label, way]) / np.median(alone)))
                said.append(f"{way} {ratios[-1]:.3f}")
        print(
            f"{name:18} {label:22} plain {np.median(alone):8.0f} µs (compiles differ by "
            f"{spread:.1%})  " + ", ".join(said),
            flush=True,
        )
    return ratios


def main() -> None:
    """Run and print."""
    given = options(
        __doc__, models=MODELS, device="ACC", repeats=8, budget=40.0, at_most=math.inf, seed=0,
    )  # fmt: skip
    if given.device == "ACC":
        hl.emulate("ACC")
    shuffle = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as scratch:
        ratios = [
            ratio for name in given.models for ratio in compare(name, given, Path(scratch), shuffle)
        ]
    print(
        f"furthest from 1: {max(ratios, key=lambda r: abs(np.log(r))):.3f}; median distance "
        f"{np.median(np.abs(np.array(ratios) - 1.0)):.1%}, within 3 %: "
        f"{sum(abs(r - 1.0) <= 0.03 for r in ratios)} of {len(ratios)}"
    )


if __name__ == "__main__":
    main()
