"""How much faster the optimised placement is than HETERO's greedy one and each single device.

Run by hand: ``python tests/benchmarks/benchmark_optimize.py [--models NAME …] [--budget 120]``.
Five real models on CPU in f32 and an emulated bf16 device that supports (a) convolutions and
matmuls only, (b) all but softmax, normalisation and concat, (c) all but activations. The times
are those of the last, interleaved measurement of ``optimize``.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import hetero_lab as hl

MODELS = ("efficientnet_lite0", "ppocr_det", "minilm_int8", "googlenet_graph", "magika")
SUPPORT: dict[str, dict[str, set[str]]] = {
    "a": {"supported": {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul"}},
    "b": {
        "unsupported": {
            "Softmax", "MVN", "BatchNormInference", "NormalizeL2", "LRN", "Concat", "LogSoftmax",
        }
    },
    "c": {
        "unsupported": {
            "Relu", "Clamp", "PRelu", "Elu", "Sigmoid", "HSigmoid", "HardSigmoid", "HSwish",
            "Swish", "Tanh", "Gelu", "Erf", "SoftPlus", "Mish",
        }
    },
}  # fmt: skip
F32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


def one_case(name: str, kind: str, budget_s: float) -> dict[str, Any]:
    """Optimise one model for one kind of accelerator and print a line."""
    support: Any = SUPPORT[kind]
    hl.emulate("ACC", properties={"INFERENCE_PRECISION_HINT": "bf16"}, **support)
    started = time.perf_counter()
    best = hl.optimize(
        name, ["ACC", "CPU"], budget_s=budget_s, device_properties=F32, progress=False
    )
    summary = best.summary.set_index("label")
    ratio = float(summary.loc["optimized", "ratio"])
    times = ", ".join(
        f"{label} {row['median_us'] / 1e3:.2f} ms ({row['n_subgraphs']})"
        for label, row in summary.iterrows()
    )
    print(
        f"{name:<20} {kind}: {times}; greedy / optimized {1 / ratio:.2f} "
        f"[{1 / summary.loc['optimized', 'ratio_ci95_high']:.2f}, "
        f"{1 / summary.loc['optimized', 'ratio_ci95_low']:.2f}]; {best.verdict} "
        f"({time.perf_counter() - started:.0f} s)",
        flush=True,
    )
    return {"gain": 1 / ratio, "improved": best.improved}


def main() -> None:
    """Print a line a case, the geometric mean of the gains, and how many beat every baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--kinds", nargs="+", default=list(SUPPORT))
    parser.add_argument("--budget", type=float, default=120.0)
    options = parser.parse_args()
    rows = [one_case(n, k, options.budget) for n in options.models for k in options.kinds]
    mean = math.exp(sum(math.log(row["gain"]) for row in rows) / len(rows))
    print(
        f"{len(rows)} cases: {mean:.2f} times as fast as greedy (geometric mean); faster than "
        f"every baseline in {sum(row['improved'] for row in rows)}"
    )


if __name__ == "__main__":
    main()
