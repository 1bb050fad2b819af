"""How often the lab raises a false alarm, and whether it sees what is there.

Run by hand: ``python -m tests.benchmarks.benchmark_evidence --parts PART … [--busy]``:

- ``simulate``: how often intervals of a ratio, a median and an accuracy cover the truth, on
  simulated data of a machine that drifts and of compiles that differ;
- ``aa``: sweeps of three equal placements: how often they are told apart, and how often
  ``optimize`` or ``advise`` would call one better;
- ``ab``: 34 against 33 equal matmuls, which is 3 % more work, within 30 s, 60 s with ``--busy``;
- ``verify``: unchanged deployments of seven models, over and over;
- ``slower``: the same where every inference takes 25 % longer, and where it takes 10 % longer and
  ``tolerance=0.05``;
- ``advised``: ``verify`` right after ``advise`` and ``deploy``.

``--device GPU`` takes a real device instead of the emulated one, and in ``aa`` instead of the CPU.
``--busy`` keeps one core busy with another process meanwhile. It wants the machine for itself;
``--times`` says how often each part is done, so that it can be done in pieces.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.advise.advice import judge
from hetero_lab.devices.core import shared_core
from hetero_lab.intervals import (
    Noise,
    median_interval,
    paired_drop,
    paired_ratio,
    unpaired_ratio,
    wilson_interval,
)
from hetero_lab.results.environment import current_environment, noise_sentence
from hetero_lab.results.evidence import BEST, FASTER, SLOWER, decide
from tests.real_gpu.networks import model_file, short_name
from tests.scripts import F32, matmuls, options

SIZE = 256
AA_BUDGET_S = 10.0
MODELS = (
    "digits_inception", "magika", "page_orientation", "ppocr_cls", "blazeface",
    "mixed:crnn", "mixed:zfnet",
)  # fmt: skip
SIMULATED = 1000
# Makes each inference of the model that is compiled first take longer.
SLOW_DOWN = """
import os, time
import openvino as ov
share, first = float(os.environ["SLOWER"]), []
make, infer = ov.CompiledModel.create_infer_request, ov.InferRequest.infer

def create_infer_request(self):
    first[:] = first or [self]
    request = make(self)
    request.is_slower = first[0] is self
    return request

def slower(self, *args, **options):
    began = time.perf_counter()
    found = infer(self, *args, **options)
    if self.is_slower:
        until = began + (1.0 + share) * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
    return found

ov.CompiledModel.create_infer_request, ov.InferRequest.infer = create_infer_request, slower
"""


def simulate() -> None:
    """Print the coverage of the intervals on simulated data."""
    rng = np.random.default_rng(0)
    covered: Counter[str] = Counter()
    for _ in range(SIMULATED):
        drift = np.cumsum(rng.normal(0.0, 0.01, 20))
        ours, reference = (
            np.exp(drift + rng.normal(0.0, 0.02, 20) + rng.normal(0.0, 0.01 / 2**0.5))
            for _ in range(2)
        )
        _, low, high, _ = paired_ratio(1.1e3 * ours, 1e3 * reference, Noise(0.01, 0.0, 12))
        covered["ratio of two compiles, 20 turns in a drift"] += low <= 1.1 <= high
        few = np.exp(rng.normal(0.0, 0.03, (2, 3)))
        _, low, high, _ = paired_ratio(*(1e4 * few), Noise(0.005, 0.0, 12))
        covered["ratio of two compiles, 3 turns"] += low <= 1.0 <= high
        apart = rng.normal(0.0, 0.1 / 2**0.5, (2, 1)) + rng.normal(0.0, 0.01, (2, 20))
        _, low, high, _ = unpaired_ratio(*(1e3 * np.exp(apart)), Noise(0.005, 0.0, 12))
        covered["ratio of two runs apart"] += low <= 1.0 <= high
        turns = np.exp(rng.normal(0.0, 0.03, (30, 1)) + rng.normal(0.0, 0.05, (30, 10)))
        low, high = median_interval(turns)
        covered["median of 30 turns of 10"] += low <= 1.0 <= high
        right = rng.random(200) < 0.9
        low, high = wilson_interval(int(right.sum()), 200)
        covered["accuracy 0.9 of 200"] += low <= 0.9 <= high
        changed = rng.random(200)
        after = np.where(changed < 0.03, ~right, right)
        drop = paired_drop(right, after)
        covered["drop of accuracy, 200 questions"] += drop.low <= 0.03 * 0.8 <= drop.high
    for what, count in covered.items():
        print(f"{what}: {count / SIMULATED:.1%} of the intervals cover the truth")


def aa(times: int, device: str) -> None:
    """Sweep equal placements; print how often they were told apart or called better."""
    apart = better = judged_otherwise = 0
    for _ in range(times):
        model = hl.load("digits_inception")
        placement = hl.Placement(hl.Affinity.uniform(model, device), "A", {device: F32})
        sweep = hl.sweep(
            model, [placement] * 3, dedupe=False, baselines=False, budget_s=AA_BUDGET_S,
            counters=False, progress=False,
        )  # fmt: skip
        rows = {row.label: row for row in sweep.rows}
        first = next(iter(rows))
        apart += sweep.ranking["group"].nunique() > 1
        better += decide(rows, [first], list(rows)).finding == FASTER
        bound = dict.fromkeys(rows)
        found = judge(rows, bound, dict.fromkeys(rows, placement), stage="", max_drop=1.0)
        judged_otherwise += found[0].judgement != BEST or any(
            c.judgement in (FASTER, SLOWER) for c in found
        )
    print(f"A/A: told apart in {apart} of {times}; optimize would call one better in {better}, "
          f"advise another than the first, or one faster or slower, in {judged_otherwise}",
          flush=True)  # fmt: skip


def chain(count: int) -> ov.Model:
    """Build a chain of equal matmuls."""
    x = op.parameter([SIZE, SIZE], np.float32, name="x")
    return ov.Model([matmuls(x, count, SIZE, "matmul")], [x], f"matmuls{count}")


def ab(times: int, budget_s: float) -> None:
    """Sweep 34 against 33 matmuls; print how often 34 were found to take longer."""
    seen = 0
    for _ in range(times):
        models = {"34": chain(34), "33": chain(33)}
        sweep = hl.sweep(
            models, ["CPU"], budget_s=budget_s, precision=0.01, counters=False, progress=False
        )
        ranking = sweep.ranking
        less = sweep.summary["label"][1]
        seen += ranking["group"].nunique() > 1 and ranking["label"][0] == less
    print(f"34 against 33 matmuls, {budget_s:.0f} s: told apart in {seen} of {times}", flush=True)


@contextlib.contextmanager
def deployments(device: str) -> Iterator[list[Path]]:
    """Yield directories: each model over a device and CPU, as HETERO splits it."""
    hl.emulate("ACC", unsupported={"Softmax", "Concat"}, properties=F32)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        properties = {device: F32, "CPU": F32}
        made = []
        for name in MODELS:
            model = hl.load(model_file(name, home))
            affinity = hl.Affinity.automatic(model, f"HETERO:{device},CPU")
            placement = hl.Placement(affinity, "deployed", properties)
            made.append(hl.freeze(model, placement, home / short_name(name)))
        yield made


@contextlib.contextmanager
def slowed(share: float) -> Iterator[None]:
    """Let every inference of what is verified take longer by a share."""
    with tempfile.TemporaryDirectory() as hook:
        Path(hook, "sitecustomize.py").write_text(SLOW_DOWN, encoding="utf-8")
        with mock.patch.dict(os.environ, PYTHONPATH=hook, SLOWER=str(share)):
            yield


def verified(what: str, directories: list[Path], times: int, tolerance: float | None) -> None:
    """Verify each directory in turn, so many times in all; print how the latency was judged."""
    found: Counter[str] = Counter()
    took = []
    for number in range(times):
        began = time.perf_counter()
        directory = directories[number % len(directories)]
        proven = hl.verify(directory, tolerance=tolerance, progress=False)
        took.append(time.perf_counter() - began)
        latency = next(part for part in proven.parts if part.name == "latency")
        found[latency.status] += 1
        print(f"  {directory.name}: {latency.status}: {latency.detail}", flush=True)
    counts = ", ".join(f"{n} {status}" for status, n in sorted(found.items()))
    print(f"{what}: latency {counts} of {times}; {np.median(took):.0f} s each, at most "
          f"{max(took):.0f} s", flush=True)  # fmt: skip


def advised(times: int, device: str) -> None:
    """Advise, deploy and verify at once."""
    hl.emulate("ACC", unsupported={"Softmax"}, properties=F32)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(times):
            advice = hl.advise("digits_inception", [device, "CPU"], budget_s=15, progress=False)
            proven = hl.verify(advice.deploy(Path(scratch, str(number))), progress=False)
            found[proven.status] += 1
            print(f"  {advice.best.label}: {proven.verdict}", flush=True)
    counts = ", ".join(f"{n} {status}" for status, n in sorted(found.items()))
    print(f"right after advise: {counts} of {times}", flush=True)


def _burn() -> int:
    """Keep a core busy; return the process. It is no child: a sweep counts those as its own."""
    script = '"$0" -c "while True: pass" > /dev/null & echo $!'
    done = subprocess.run(["sh", "-c", script, sys.executable], stdout=subprocess.PIPE, check=True)
    return int(done.stdout)


def main() -> None:
    """Run the parts and print their counts."""
    parts = ["simulate", "aa", "ab", "verify"]
    given = options(__doc__, parts=parts, times=40, device="ACC", busy=False)
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        made = []
        if {"verify", "slower"} & {*given.parts}:
            made = stack.enter_context(deployments(given.device))  # promised on a quiet machine
        if given.busy:
            atexit.register(os.kill, _burn(), signal.SIGKILL)
        for part in given.parts:
            if part == "simulate":
                simulate()
            elif part == "aa":
                aa(given.times, "CPU" if given.device == "ACC" else given.device)
            elif part == "ab":
                ab(given.times, 60.0 if given.busy else 30.0)
            elif part == "advised":
                advised(given.times, given.device)
            elif part == "verify":
                verified("unchanged", made, given.times, None)
            elif part == "slower":
                for share, tolerance in ((0.25, None), (0.1, 0.05)):
                    with slowed(share):
                        what = f"{share:.0%} slower, tolerance {tolerance or 0.1}"
                        verified(what, made, given.times, tolerance)
    noise = noise_sentence(current_environment(["CPU"], shared_core()))
    print(f"{noise} One core kept busy: {'yes' if given.busy else 'no'}.")
    print(f"took {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
