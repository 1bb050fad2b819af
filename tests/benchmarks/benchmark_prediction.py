"""How well a cost model predicts placements that it has not seen.

Run by hand: ``python tests/benchmarks/benchmark_prediction.py [--models NAME …] [--budget 150]``.
Each sample is calibrated over CPU in f32 and an emulated bf16 device; 24 of the placements, of
few and of many subgraphs, are kept out of the fit and compared with what it predicts.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import hetero_lab as hl

SAMPLES = (
    "efficientnet_lite0", "ppocr_det", "minilm_int8", "googlenet_graph", "magika",
    "page_orientation",
)  # fmt: skip
UNSEEN = 24
F32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


def one_sample(name: str, budget_s: float, seed: int) -> dict[str, float]:
    """Calibrate a sample and print how well it predicts the placements kept out of the fit."""
    started = time.perf_counter()
    costs = hl.calibrate(
        name, ["ACC", "CPU"], budget_s=budget_s, device_properties=F32, seed=seed,
        validate=UNSEEN, progress=False,
    )  # fmt: skip
    took = time.perf_counter() - started
    rows = costs.validation
    actual, predicted = rows["measured_us"].to_numpy(), rows["predicted_us"].to_numpy()
    error = predicted / actual - 1.0
    rest = float(((actual - predicted) ** 2).sum() / ((actual - actual.mean()) ** 2).sum())
    row = {"mape": costs.mape, "worst": float(np.abs(error).max()), "r2": 1.0 - rest}
    print(
        f"{name:<20} {len(rows)} unseen placements, {rows['n_subgraphs'].min()} to "
        f"{rows['n_subgraphs'].max()} subgraphs, {actual.min() / 1e3:.2f} to "
        f"{actual.max() / 1e3:.2f} ms: mean error {row['mape']:.1%}, worst {row['worst']:.1%}, "
        f"bias {error.mean():+.1%}, R² {row['r2']:.3f} (calibrated in {took:.0f} s)",
        flush=True,
    )
    return row


def main() -> None:
    """Print a line a model and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=SAMPLES)
    parser.add_argument("--budget", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    hl.emulate("ACC", properties={"INFERENCE_PRECISION_HINT": "bf16"})
    rows = [one_sample(name, options.budget, options.seed) for name in options.models]
    print(
        f"mean error {np.mean([row['mape'] for row in rows]):.1%}, largest of a model "
        f"{max(row['mape'] for row in rows):.1%}, least R² {min(row['r2'] for row in rows):.3f}"
    )


if __name__ == "__main__":
    main()
