"""Does our latency agree with OpenVINO's own benchmark_app?

Run by hand: ``python -m tests.benchmarks.benchmark_latency [--turns 8] [--seconds 3] [--models
NAME …]``. A model is a sample, or ``convolutions``. Both measure the same model on CPU in f32 with
one stream, in turns, changing who goes first, so that a drift of the machine hits both. Prints the
ratio of the medians over the turns; the exit code is 1 if one is more than 5 % from 1. Needs a
quiet machine: another busy process takes away a core of two, for seconds at a time; ``--threads 1``
helps against that (0: as many as they like).
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import openvino as ov

import hetero_lab as hl
from tests.scripts import F32, alone, options
from tests.small_models import convolutions

LIMIT = 0.05
MODELS = ("digits_inception", "convolutions", "googlenet_graph")
_RUN_APP = "import sys; from openvino.tools.benchmark.main import main; sys.exit(main())"


def ours_us(model: ov.Model, seconds: float, threads: int) -> float:
    """Measure with hetero_lab: the median in µs."""
    properties = {**F32, "NUM_STREAMS": 1}
    if threads:
        properties["INFERENCE_NUM_THREADS"] = threads
    placement = alone(model, "CPU", properties)
    result = hl.profile(
        model, placement, budget_s=seconds, counters=False, reference=False, progress=False
    )
    return result.latency.median_us


def theirs_us(path: Path, seconds: float, threads: int) -> float:
    """Measure with benchmark_app: the median in µs, as it prints it."""
    options = f"-d CPU -hint none -nstreams 1 -api sync -infer_precision f32 -t {seconds:g}"
    if threads:
        options += f" -nthreads {threads}"
    done = subprocess.run(
        [sys.executable, "-c", _RUN_APP, "-m", str(path), *options.split()],
        capture_output=True,
        text=True,
    )
    found = re.search(r"Median:\s+([0-9.]+) (us|ms)", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"benchmark_app failed:\n{done.stdout}{done.stderr}")
    return float(found[1]) * {"us": 1.0, "ms": 1e3}[found[2]]


def compare(name: str, model: ov.Model, turns: int, seconds: int, threads: int) -> bool:
    """Measure one model in turns and print the ratio; return whether it is within the limit."""
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        ov.save_model(model, path, compress_to_fp16=False)
        both = [
            lambda: ours.append(ours_us(model, seconds, threads)),
            lambda: theirs.append(theirs_us(path, seconds, threads)),
        ]
        for turn in range(turns):
            for measure in both if turn % 2 == 0 else reversed(both):
                measure()
            print(
                f"{name} turn {turn + 1}: ours {ours[-1]:.1f} µs, "
                f"benchmark_app {theirs[-1]:.1f} µs, ratio {ours[-1] / theirs[-1]:.3f}",
                flush=True,
            )
    ratio = statistics.median(ours) / statistics.median(theirs)
    paired = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    ok = abs(ratio - 1) <= LIMIT
    print(
        f"{name}, median of {turns} turns each: ours {statistics.median(ours):.1f} µs, "
        f"benchmark_app {statistics.median(theirs):.1f} µs, ratio {ratio:.3f}, "
        f"{'within' if ok else 'NOT within'} {LIMIT:.0%} (median of the ratios {paired:.3f})"
    )
    return ok


def main() -> int:
    """Measure in turns and print the ratio."""
    given = options(__doc__, turns=8, seconds=3, threads=0, models=MODELS)
    fine = []
    for name in given.models:
        model = hl.load(convolutions(28, 64, layers=12) if name == "convolutions" else name)
        fine.append(compare(name, model, given.turns, given.seconds, given.threads))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
