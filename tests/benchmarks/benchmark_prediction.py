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


def one_sample(name: str, budget_s: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibrate a sample; print and return what it predicts of placements kept out of the fit."""
    started = time.perf_counter()
    costs = hl.calibrate(
        name, ["ACC", "CPU"], budget_s=budget_s, device_properties=F32, seed=seed,
        validate=UNSEEN, progress=False,
    )  # fmt: skip
    took = time.perf_counter() - started
    rows = costs.validation
    actual, predicted = rows["measured_us"].to_numpy(), rows["predicted_us"].to_numpy()
    error = predicted / actual - 1.0
    print(
        f"{name:<20} {len(rows)} unseen placements, {rows['n_subgraphs'].min()} to "
        f"{rows['n_subgraphs'].max()} subgraphs, {actual.min() / 1e3:.2f} to "
        f"{actual.max() / 1e3:.2f} ms: mean error {costs.mape:.1%}, worst "
        f"{np.abs(error).max():.1%}, bias {error.mean():+.1%}, R² {costs.r2:.3f} "
        f"(calibrated in {took:.0f} s)",
        flush=True,
    )
    return predicted, actual


def r2(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Return the share of the variance that is predicted."""
    return 1.0 - float(((actual - predicted) ** 2).sum() / ((actual - actual.mean()) ** 2).sum())


def main() -> None:
    """Print a line a model and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=SAMPLES)
    parser.add_argument("--budget", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    hl.emulate("ACC", properties={"INFERENCE_PRECISION_HINT": "bf16"})
    found = [one_sample(name, options.budget, options.seed) for name in options.models]
    errors = [float(np.abs(predicted / actual - 1.0).mean()) for predicted, actual in found]
    # In units of each model's mean latency, so that no model counts for its size.
    relative = [(p / a.mean(), a / a.mean()) for p, a in found]
    everything, relative_all = (
        r2(*(np.concatenate(every) for every in zip(*pairs, strict=True)))
        for pairs in (found, relative)
    )
    print(
        f"mean error {np.mean(errors):.1%}, largest of a model {max(errors):.1%}; R² of all "
        f"placements {everything:.3f}, relative to each model's mean {relative_all:.3f}, least "
        f"of a model {min(r2(*pair) for pair in found):.3f}"
    )


if __name__ == "__main__":
    main()
