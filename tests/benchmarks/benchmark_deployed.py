"""Whether what is measured is what is deployed: the lab's latencies beside a plain OpenVINO loop.

Run by hand, on a quiet machine: ``python tests/benchmarks/benchmark_deployed.py [--repeats 12]``.
Each repeat measures every placement in random order in four ways: by a sweep in workers (as one
of eight placements), by a profile in a process of its own and in this process, and by a fresh
process that knows nothing of the lab, which loads the frozen placement and calls ``infer``. Prints
the ratio of each way to the plain process: geometric mean of the repeats with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

import hetero_lab as hl

TURNS, DISCARDED, TIMED = 30, 2, 10
LEAST_WARM_UP_S = 0.3
MODELS = ["digits_inception", "magika", "page_orientation"]
N_OTHERS = 6  # placements that take turns with the two that are compared

PLAIN = """
import json, statistics, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
import run
turns, discarded, timed, warm_s = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
compiled, plan = run.load(sys.argv[1])
given = np.load(sys.argv[1] + "/inputs.npz")
request = compiled.create_infer_request()
request.infer([given[name] for name in plan["inputs"]])
clock = time.perf_counter_ns
until = time.perf_counter() + warm_s
while time.perf_counter() < until:
    request.infer(share_outputs=True)
levels = []
for _ in range(turns):
    for _ in range(discarded):
        request.infer(share_outputs=True)
    samples = []
    for _ in range(timed):
        began = clock()
        request.infer(share_outputs=True)
        samples.append(clock() - began)
    levels.append(statistics.median(samples) / 1e3)
print(json.dumps(levels))
"""  # noqa: E501


def plain_us(directory: Path) -> float:
    """Measure a frozen placement in a fresh process that does not know the lab."""
    numbers = map(str, (TURNS, DISCARDED, TIMED, LEAST_WARM_UP_S))
    command = [sys.executable, "-c", PLAIN, str(directory), *numbers]
    done = subprocess.run(command, capture_output=True, check=True)
    return level(json.loads(done.stdout))


def level(turns: Sequence[float]) -> float:
    """Return what stands for one way of measuring in one repeat."""
    return float(np.median(turns))


def sweep_us(model, placements: Sequence[hl.Placement], wanted: Sequence[str]) -> dict[str, float]:
    """Measure all placements in workers that live side by side and take turns."""
    swept = hl.sweep(
        model, placements, turns=TURNS, budget_s=None, baselines=False, counters=False,
        reference=False, progress=False,
    )  # fmt: skip
    rows = {row.label: row for row in swept.rows}
    return {label: level(list(rows[label].series.ours.values())) for label in wanted}


def profile_us(model, placement: hl.Placement, isolate: bool) -> float:
    """Profile a placement with as many inferences."""
    made = hl.profile(
        model, placement, iterations=TURNS * TIMED, counters=False, reference=False,
        isolate=isolate, progress=False,
    )  # fmt: skip
    return level([float(np.median(turn)) for turn in made.latency.turns])


def compare(name: str, repeats: int, scratch: Path, seed: int) -> list[float]:
    """Measure one model; print a line for each placement and way, return the ratios."""
    model = hl.load(name)
    cpu = hl.Affinity.uniform(model, "CPU")
    ops = cpu.ops
    halves = cpu.fix(ops=dict.fromkeys(ops[: len(ops) // 2], "ACC"))
    chosen = {
        "CPU": hl.Placement(cpu, "CPU", direct=True),
        "halves": hl.Placement(halves, "halves"),
    }
    others = [
        hl.Placement(cpu.fix(ops=dict.fromkeys(ops[: len(ops) * (n + 1) // 9], "ACC")), f"{n}")
        for n in range(N_OTHERS)
    ]
    frozen = {label: hl.freeze(model, p, scratch / name / label) for label, p in chosen.items()}
    shuffle = random.Random(seed)
    levels: dict[tuple[str, str], list[float]] = {}

    def note(label: str, way: str, us: float) -> None:
        levels.setdefault((label, way), []).append(us)

    for _ in range(repeats):
        ways = [(way, label) for label in chosen for way in ("plain", "isolated", "in process")]
        ways.append(("sweep", ""))
        shuffle.shuffle(ways)
        for way, label in ways:
            if way == "sweep":
                found = sweep_us(model, [*chosen.values(), *others], list(chosen))
                for each, us in found.items():
                    note(each, way, us)
            elif way == "plain":
                note(label, way, plain_us(frozen[label]))
            else:
                note(label, way, profile_us(model, chosen[label], way == "isolated"))
    ratios = []
    for label in chosen:
        plain = np.log(levels[label, "plain"])
        for way in ("sweep", "isolated", "in process"):
            logs = np.log(levels[label, way]) - plain
            half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
            low, ratio, high = np.exp(logs.mean() + np.array([-half, 0.0, half]))
            ratios.append(float(ratio))
            print(
                f"{name:18} {label:7} plain {np.exp(plain.mean()):8.0f} µs  "
                f"{way:10} {ratio:.3f} ({low:.3f} to {high:.3f})",
                flush=True,
            )
    return ratios


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    hl.emulate("ACC")
    with tempfile.TemporaryDirectory() as scratch:
        ratios = [
            ratio
            for name in options.models
            for ratio in compare(name, options.repeats, Path(scratch), options.seed)
        ]
    print(f"furthest from 1: {max(ratios, key=lambda r: abs(np.log(r))):.3f} (at most 2 % off)")


if __name__ == "__main__":
    main()
