"""The digits with labels that only f32 gets right, to recover accuracy in a few seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import hetero_lab as hl
from hetero_lab.accuracy import recover
from hetero_lab.advise import advise
from hetero_lab.samples.datasets import Dataset, Examples, Metric
from hetero_lab.search import calibrate


def exact_digits(n: int) -> Dataset:
    """Return ``n`` examples to calibrate with and ``n`` to evaluate; a label is f32's output."""
    digits = hl.dataset("digits")
    f32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    cpu = hl.Affinity.uniform("digits_inception", "CPU")
    exact = hl.compile("digits_inception", hl.Placement(cpu, "f32", f32, direct=True))

    def labelled(examples: Any) -> Examples:
        made = {
            key: (x, exact(x)["digit"]) for key, (x, _) in zip(examples.keys, examples, strict=True)
        }
        return Examples(examples.keys, made.__getitem__)

    def near(outputs: Any, right: Any) -> bool:
        return bool(np.abs(outputs["digit"] - right).max() < 1e-6)

    return replace(
        digits,
        calibration=labelled(digits.calibration[:n]),
        evaluation=labelled(digits.evaluation[:n]),
        metric=Metric("near", near),
    )


# What makes a recovery, and that of an advice, short.
QUICK_RECOVERY = (
    (calibrate, "MOST_FITTED", 6),
    (calibrate, "MOST_VALIDATED", 0),
    (recover, "MOST_PARTS", 4),
    (advise, "_RECOVER_LEAST_S", 0.0),
)
