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

from tests.real_gpu.mixed_networks import Layers
from tests.scripts import F32, options

STEPS, FEATURES, HIDDEN = (1, 2, 16), (8, 64), (8, 16, 256)
TOLERANCE = 1e-3


def lstm(steps: int, features: int, hidden: int, both_ways: bool) -> Any:
    """Return a model of one LSTMSequence."""
    x = op.parameter([1, steps, features], np.float32, name="x")
    build: Any = ov.Model
    return build([op.result(Layers().lstm(x, hidden, both_ways))], [x], "lstm")


def main() -> int:
    """Compare, and print."""
    device, core, wrong = options(__doc__, device="GPU").device, ov.Core(), 0
    print("openvino", ov.__version__, core.get_property(device, "FULL_DEVICE_NAME"))
    for steps, features, hidden, both_ways in product(STEPS, FEATURES, HIDDEN, (False, True)):
        began = time.perf_counter()
        model = lstm(steps, features, hidden, both_ways)
        data = [np.random.default_rng(1).normal(size=model.input(0).shape).astype(np.float32)]
        wanted, got, again = (
            next(iter(core.compile_model(model, name, F32)(data).values()))
            for name in ("CPU", device, device)
        )
        error, differs = (float(np.abs(got - other).max()) for other in (wanted, again))
        wrong += not error <= TOLERANCE
        print(
            f"{steps:3} steps of {features:3}, hidden {hidden:4}, "
            f"{'both ways' if both_ways else 'forward':9}: "
            f"error {error:.1e}, another compile differs by {differs:.1e} "
            f"({time.perf_counter() - began:.1f} s)",
            flush=True,
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
