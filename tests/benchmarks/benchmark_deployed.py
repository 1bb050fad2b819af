"""Whether what is measured is what is deployed: the lab's latencies beside a plain OpenVINO loop.

Run by hand: ``python tests/benchmarks/benchmark_deployed.py [--repeats 8]``. In each repeat a
fresh process that knows nothing of the lab loads the frozen placement and runs turns on request;
beside it are a worker, as a sweep has, this process, and six more workers with other placements.
Turns are run in blocks of random order: each of the three by itself, turn after turn as a profile
does, or all nine one after another as a sweep does. Prints the ratio to the plain process by
itself: geometric mean of the repeats with its 95 % interval.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.experiments.sweep.entries import expand
from hetero_lab.experiments.sweep.options import Dimensions
from hetero_lab.experiments.workers.bench import WARM_UP_S
from hetero_lab.experiments.workers.factory import Asked, Benches, LocalBench
from hetero_lab.runtime.inputs import given_or_generated

DISCARDED, TIMED = 2, 10
BLOCKS, BLOCK = 8, 4  # of each kind; turns in one
MODELS = ["digits_inception", "page_orientation", "magika"]
N_OTHERS = 6

PLAIN = """
import json, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
import run
discarded, timed = int(sys.argv[2]), int(sys.argv[3])
compiled, plan = run.load(sys.argv[1])
given = np.load(sys.argv[1] + "/inputs.npz")
request = compiled.create_infer_request()
request.infer([given[name] for name in plan["inputs"]])
clock = time.perf_counter_ns
for line in sys.stdin:
    for _ in range(discarded):
        request.infer(share_outputs=True)
    samples = []
    for _ in range(timed):
        began = clock()
        request.infer(share_outputs=True)
        samples.append((clock() - began) / 1e3)
    print(json.dumps(samples), flush=True)
"""

Turn = Callable[[], Sequence[float]]


class Plain:
    """A fresh process that runs a frozen placement and knows nothing of the lab."""

    def __init__(self, directory: Path):
        self._process = subprocess.Popen(
            [sys.executable, "-c", PLAIN, str(directory), str(DISCARDED), str(TIMED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self) -> list[float]:
        """Run one turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def level(samples: Sequence[float]) -> float:
    """Return the logarithm of what stands for a turn."""
    return float(np.log(np.median(samples)))


def blocks_of_turns(ways: dict[str, Turn], others: Sequence[Turn], shuffle: random.Random):
    """Run all blocks; return the levels of each way, by itself and in turn with all others."""
    levels: dict[str, list[float]] = {}
    for _ in range(BLOCKS):
        kinds = [*ways, "in turn"]
        shuffle.shuffle(kinds)
        for kind in kinds:
            for number in range(BLOCK + 1):
                if kind != "in turn":
                    samples = ways[kind]()
                    if number:  # the first one finds the caches of somebody else
                        levels.setdefault(kind, []).append(level(samples))
                    continue
                order: list[tuple[str, Turn]] = [*ways.items(), *(("", turn) for turn in others)]
                shuffle.shuffle(order)
                for name, turn in order:
                    samples = turn()
                    if name:
                        levels.setdefault(f"{name}, in turn", []).append(level(samples))
    return {name: float(stats.trim_mean(logs, 0.2)) for name, logs in levels.items()}


def compare(
    name: str, repeats: int, scratch: Path, shuffle: random.Random, stack: contextlib.ExitStack
) -> list[float]:
    """Measure one model; print a line for each placement and way, return the ratios."""
    model = hl.load(name)
    bound = bind(model)
    cpu = hl.Affinity.uniform(model, "CPU")
    ops = cpu.ops
    chosen = {
        "CPU": hl.Placement(cpu, "CPU", direct=True),
        "halves": hl.Placement(cpu.fix(ops=dict.fromkeys(ops[: len(ops) // 2], "ACC")), "halves"),
    }
    others = [
        hl.Placement(cpu.fix(ops=dict.fromkeys(ops[: len(ops) * (n + 1) // 9], "ACC")), f"{n}")
        for n in range(N_OTHERS)
    ]
    arrays = {name: given_or_generated(bound, None)}
    jobs = {
        entry.label: entry.job(compare=False)
        for entry in expand(
            {name: bound}, [*chosen.values(), *others], Dimensions(baselines=False)
        )
    }  # fmt: skip
    directory = scratch / name
    directory.mkdir()
    benches = stack.enter_context(Benches({name: bound}, arrays))

    def bench(label: str, made: Asked) -> Turn:
        key = jobs[label].key
        made.ask("compile", timeout_s=600, job=jobs[label])
        made.ask("warm_up", timeout_s=600, key=key, at_most_s=WARM_UP_S)
        asked = {"timeout_s": 600, "key": key, "discarded": DISCARDED, "timed": TIMED}
        return lambda: made.ask("turn", **asked).samples_us

    ratios = []
    for label, placement in chosen.items():
        frozen = hl.freeze(model, placement, directory / label)
        found: dict[str, list[float]] = {}
        for _ in range(repeats):
            workers = [benches.start() for _ in range(1 + N_OTHERS)]
            plain, local = Plain(frozen), LocalBench({name: bound}, arrays)
            ways = {
                "plain": plain.turn,
                "worker": bench(label, workers[0]),
                "this process": bench(label, local),
            }
            turns = [bench(o.label, w) for o, w in zip(others, workers[1:], strict=True)]
            for way, value in blocks_of_turns(ways, turns, shuffle).items():
                found.setdefault(way, []).append(value)
            for process in (plain, local, *workers):
                process.close()
        base = np.array(found["plain"])
        for way in sorted(set(found) - {"plain"}):
            logs = np.array(found[way]) - base
            half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
            low, ratio, high = np.exp(logs.mean() + np.array([-half, 0.0, half]))
            ratios.append(float(ratio))
            print(
                f"{name:18} {label:7} plain {np.exp(base.mean()):8.0f} µs  {way:21} "
                f"{ratio:.3f} ({low:.3f} to {high:.3f})",
                flush=True,
            )
    return ratios


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    hl.emulate("ACC")
    shuffle = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        ratios = [
            ratio
            for name in options.models
            for ratio in compare(name, options.repeats, Path(scratch), shuffle, stack)
        ]
    print(f"furthest from 1: {max(ratios, key=lambda r: abs(np.log(r))):.3f} (at most 2 % off)")


if __name__ == "__main__":
    main()
