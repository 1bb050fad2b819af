"""How far off costs are that are guessed from other models.

Run by hand: ``python -m tests.benchmarks.benchmark_guesses [--models NAME …] [--budget 20]``.
Each sample is calibrated over CPU in f32 and an emulated device that does not support Softmax.
Then the costs of each are guessed from those of all the others (leave one out), and the guess is
compared with latencies that are measured anew: the CPU alone, greedy, and the first half and the
first quarter of the ops on the device. Prints for each model, and for all of them, the rank
correlation (Spearman 1904) and the mean error as a factor. ``--store DIR`` keeps the cost models.

``--recorded`` measures nothing: it leaves out each model that was recorded on a real GPU, and
compares what is guessed of it with its latencies there, alone on each of the two devices.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import spearmanr

import hetero_lab as hl
from hetero_lab.placement.affinity import first_able
from hetero_lab.planning.guessing import guess_from_graph
from tests.scripts import F32, kept_costs, options

SAMPLES = (
    "digits_inception", "magika", "ppocr_det", "ppocr_rec", "ppocr_cls", "page_orientation",
    "blazeface", "minilm_int8", "googlenet_graph", "efficientnet_lite0",
)  # fmt: skip
BOTH_F32 = {"CPU": F32, "ACC": F32}


def latency_error(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean factor between guessed and measured µs, either way, less 1: 0 is right."""
    logs = [abs(math.log(guessed / measured)) for guessed, measured in pairs]
    return math.expm1(statistics.fmean(logs))


def costs_of(name: str, budget_s: float, store: Path | None) -> hl.CostModel:
    """Calibrate a sample, or read what was stored of it."""
    return kept_costs(
        store and store / f"{name}.json",
        lambda: hl.calibrate(
            name, ["ACC", "CPU"], budget_s=budget_s, device_properties=BOTH_F32, progress=False
        ),
    )


def placements(model, costs: hl.CostModel) -> dict[str, hl.Affinity]:
    """Return the placements that are measured."""
    automatic = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    cpu = hl.Affinity.uniform(model, "CPU")
    ops = [op for op in automatic.ops if automatic[op] == "ACC"]
    return {
        "CPU": cpu,
        "greedy": automatic,
        "half": cpu.fix(ops=dict.fromkeys(ops[: len(ops) // 2], "ACC")),
        "quarter": cpu.fix(ops=dict.fromkeys(ops[: len(ops) // 4], "ACC")),
    }


def recorded() -> None:
    """Print how far off guesses are from what was recorded on a real GPU."""
    cases = sorted(hl.interop.recordings().glob("*.all"))
    known = {case.stem: hl.CostModel.from_json(case / "costs.json") for case in cases}
    measured = {
        case.stem: hl.read_sweep(case).summary.set_index("label")["median_us"] for case in cases
    }
    pairs: dict[str, list[tuple[float, float]]] = {}
    for name, costs in known.items():
        guess = guess_from_graph(costs.graph, [c for other, c in known.items() if other != name])
        for device in costs.devices:
            able = {d: costs.supports(d) if d == device else () for d in costs.devices}
            guessed_us = guess.predict_us(first_able(costs.graph, able))
            measured_us = float(measured[name][device])
            if measured_us > 0:  # else the time there ended before
                pairs.setdefault(device, []).append((guessed_us, measured_us))
                print(f"{name:<20} {device} guessed {guessed_us:8.1f} µs, took {measured_us:8.1f}")
    for device, found in pairs.items():
        print(line(f"all, {device} alone", found))


def line(label: str, pairs: list[tuple[float, float]]) -> str:
    """Say in a line how far off guesses are."""
    rank = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    bias = statistics.median(guessed / measured for guessed, measured in pairs)
    return (
        f"{label:<20} {len(pairs):>3} latencies, rank correlation {rank:+.2f}, off by a factor "
        f"of {1 + latency_error(pairs):.2f}, median guessed/measured {bias:.2f}"
    )


def main() -> None:
    """Print a line a model and one for all."""
    given = options(__doc__, models=SAMPLES, budget=20.0, store=Path, recorded=False)
    if given.recorded:
        recorded()
        return
    hl.emulate("ACC", unsupported={"Softmax"})
    known = {name: costs_of(name, given.budget, given.store) for name in given.models}
    every: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []
    for name, costs in known.items():
        model = hl.load(name)
        guess = hl.guess_costs(model, [c for other, c in known.items() if other != name])
        pairs = []
        for label, affinity in placements(model, costs).items():
            placed = hl.Placement(affinity, label, dict.fromkeys(affinity.devices, F32))
            profile = hl.profile(model, placed, iterations=30, progress=False)
            pairs.append((guess.predict_us(affinity), profile.latency.median_us))
        alone.append(pairs[0])
        every += pairs
        print(line(name, pairs), flush=True)
    print(line("all", every))
    print(line("all, CPU alone", alone))


if __name__ == "__main__":
    main()
