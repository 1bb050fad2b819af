"""How well a cost model predicts placements that it has not seen.

Run by hand: ``python tests/benchmarks/benchmark_prediction.py [--models NAME …] [--budget 60]``.
Each sample is calibrated over CPU in f32 and an emulated bf16 device; then 24 new placements, from
1 switch of the device to 80, are measured in turns and compared. A drift of the machine between
both is taken out by the reference placement, which is measured every time.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from hetero_lab.experiments.calibrating import learn
from hetero_lab.planning.design import segmented_affinities
from hetero_lab.runtime.timing import Stopwatch

SAMPLES = (
    "efficientnet_lite0", "ppocr_det", "minilm_int8", "googlenet_graph", "magika",
    "page_orientation",
)  # fmt: skip
UNSEEN = 24
F32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


def one_sample(name: str, budget_s: float, seed: int) -> dict[str, float]:
    """Calibrate a sample and print each unseen placement; return its errors."""
    started = time.perf_counter()
    learnt = learn(
        hl.load(name),
        ["ACC", "CPU"],
        watch=Stopwatch.start(budget_s),
        share=1.0,
        device_properties=F32,
        options={"inputs": None, "seed": 0, "isolate": False, "progress": False},
        core=shared_core(),
    )
    took = time.perf_counter() - started
    graph = learnt.costs.graph
    ops = [(graph.ops[index].name,) for index in graph.placeable]
    unseen = segmented_affinities(graph, learnt.support, ops, UNSEEN, seed=seed)
    known = {seen.affinity for seen in learnt.fitted}
    labelled = {f"unseen {i}": a for i, a in enumerate(unseen) if a not in known}
    learnt.observer.watch = Stopwatch.start(None)
    measured = learnt.observer.observe(labelled, budget_s=None, counters=False)
    actual = np.array([seen.measured_us for seen in measured])
    predicted = np.array([learnt.costs.predict_us(seen.affinity) for seen in measured])
    subgraphs = [learnt.costs.predictor(seen.affinity).n_subgraphs for seen in measured]
    error = predicted / actual - 1.0
    rest = float(((actual - predicted) ** 2).sum() / ((actual - actual.mean()) ** 2).sum())
    row = {
        "least_ms": float(actual.min()) / 1e3,
        "most_ms": float(actual.max()) / 1e3,
        "subgraphs": max(subgraphs),
        "mape": float(np.abs(error).mean()),
        "worst": float(np.abs(error).max()),
        "r2": 1.0 - rest,
    }
    print(
        f"{name:<20} {len(measured)} unseen placements, {min(subgraphs)} to {max(subgraphs)} "
        f"subgraphs, {row['least_ms']:.2f} to {row['most_ms']:.2f} ms: mean error "
        f"{row['mape']:.1%}, worst {row['worst']:.1%}, bias {error.mean():+.1%}, R² "
        f"{row['r2']:.3f} (calibrated on {len(learnt.fitted)} in {took:.0f} s; its own validation "
        f"{learnt.costs.mape:.1%})",
        flush=True,
    )
    for note in sorted({note for made in learnt.observer.sweeps for note in made.notes}):
        print(f"    {note}", flush=True)
    return row


def main() -> None:
    """Print a line a model and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=SAMPLES)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    hl.emulate("ACC", properties={"INFERENCE_PRECISION_HINT": "bf16"})
    rows = [one_sample(name, options.budget, options.seed) for name in options.models]
    print(
        f"mean error {np.mean([row['mape'] for row in rows]):.1%}, largest of a model "
        f"{max(row['mape'] for row in rows):.1%}, least R² {min(row['r2'] for row in rows):.3f}"
    )


if __name__ == "__main__":
    main()
