"""Whether a GPU computes LSTMs right, with openvino alone: ``python -m tests.real_gpu.lstm``.

One LSTMSequence at a time, of random weights, on ``--device`` (GPU) and on the CPU, in f32. On
NVIDIA's OpenCL those of two steps or more give NaN. Prints a line each; the exit code is 1 if one
is wrong.
"""

from __future__ import annotations

import sys
import time
from itertools import product
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

from tests.scripts import F32, options

STEPS, FEATURES, HIDDEN = (1, 2, 16), (8, 64), (8, 16, 256)
TOLERANCE = 1e-3


def lstm(steps: int, features: int, hidden: int, direction: str) -> Any:
    """Return a model of one LSTMSequence."""
    rng = np.random.default_rng(0)
    ways = 2 if direction == "bidirectional" else 1
    x = op.parameter([1, steps, features], np.float32, name="x")

    def weights(*shape: int) -> Any:
        return op.constant(rng.normal(size=(ways, 4 * hidden, *shape)).astype(np.float32) / 8)

    start = op.constant(np.zeros((1, ways, hidden), np.float32))
    y = op.lstm_sequence(
        x, start, start, op.constant(np.array([steps], np.int64)),
        weights(features), weights(hidden), weights(), hidden, direction,
    )  # fmt: skip
    build: Any = ov.Model
    return build([op.result(y.output(0))], [x], "lstm")


def main() -> int:
    """Compare, and print."""
    device, core, wrong = options(__doc__, device="GPU").device, ov.Core(), 0
    print("openvino", ov.__version__, core.get_property(device, "FULL_DEVICE_NAME"))
    for steps, features, hidden, direction in product(
        STEPS, FEATURES, HIDDEN, ("forward", "bidirectional")
    ):
        began = time.perf_counter()
        model = lstm(steps, features, hidden, direction)
        data = [np.random.default_rng(1).normal(size=model.input(0).shape).astype(np.float32)]
        wanted, got, again = (
            next(iter(core.compile_model(model, name, F32)(data).values()))
            for name in ("CPU", device, device)
        )
        error, differs = (float(np.abs(got - other).max()) for other in (wanted, again))
        wrong += not error <= TOLERANCE
        print(
            f"{steps:3} steps of {features:3}, hidden {hidden:4}, {direction:13}: "
            f"error {error:.1e}, another compile differs by {differs:.1e} "
            f"({time.perf_counter() - began:.1f} s)",
            flush=True,
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
