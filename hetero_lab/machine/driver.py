"""The driver: keeps compiled placements busy at the same time, each as its load says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_lab.machine.load_loop import Lane, keep_busy, window_at
from hetero_lab.measure.loads import Driven
from hetero_lab.measure.requests import Drive
from hetero_lab.runtime.compiled import inference_errors
from hetero_lab.runtime.runners import Runner

_SPREAD = 1e-3  # of the largest value: what other threads may change in an output


def drive(runners: Sequence[Runner], asked: Drive) -> tuple[Driven, ...]:
    """Carry out a :class:`~hetero_lab.measure.requests.Drive`, one runner a load."""
    lanes = [
        [_lane(runner, check=asked.check) for _ in range(load.requests)]
        for runner, load in zip(runners, asked.loads, strict=True)
    ]
    begins = window_at(asked.starts_at)
    found: list[Driven] = []
    for runner, window in zip(
        runners, keep_busy(lanes, asked.loads, begins, asked.seconds), strict=True
    ):
        with inference_errors(runner.placed.label):
            found.append(window.driven())
    return tuple(found)


def _lane(runner: Runner, *, check: bool) -> Lane:
    """Return another request of a runner; with ``check`` it compares outputs with the runner's."""
    own = runner.another()
    if not check:
        return Lane(own.infer)
    expected = runner.outputs()
    return Lane(own.infer, lambda: _differs(own.outputs(), expected))


def _differs(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    for name, value in outputs.items():
        other = expected[name]
        if value.dtype.kind != "f":
            same = np.array_equal(value, other)
        else:
            most = _SPREAD * float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
            same = np.allclose(value, other, rtol=0.0, atol=most, equal_nan=True)
        if not same:
            return True
    return False
