"""Who computed a wrong output: the lab, or the runtime that it asked?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import hetero_lab as hl
from hetero_lab.devices.core import BoundModel
from hetero_lab.placement.placement import Placement
from tests.plain_openvino import PlainError, PlainProcess, frozen
from tests.scripts import alone

TOLERANCE = 1e-3  # of the Euclidean norm, as for outputs that the lab calls equal
_SAME = 1e-5  # two runs of one kernel


def error_of(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative error in the Euclidean norm; infinite where one is not a number."""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(got), np.isfinite(expected)):
        return float("inf")
    norm = float(np.linalg.norm(np.nan_to_num(expected)))
    return float(np.linalg.norm(np.nan_to_num(got - expected))) / max(norm, 1e-6)


def check(
    bound: BoundModel,
    placement: Placement,
    arrays: list[np.ndarray],
    scratch: Path,
    report: Callable[[str], None],
) -> float:
    """Compile a placement and compare it with f32 on CPU; return the largest error.

    Its partition has to be as predicted. Where an output is wrong, openvino alone has to give the
    same wrong numbers, in a process that knows nothing of the lab, and that is reported.
    """
    compiled = hl.compile(bound.model, placement, core=bound.core)
    assert compiled.as_predicted
    got = list(compiled(arrays).values())
    on_cpu = hl.compile(bound.model, alone(bound.model, "CPU"), core=bound.core)
    expected = list(on_cpu(arrays).values())
    errors = [error_of(a, b) for a, b in zip(got, expected, strict=True)]
    if max(errors) > TOLERANCE:
        plain = outputs_alone(bound, placement, arrays, scratch)
        again = [error_of(a, b) for a, b in zip(plain, expected, strict=True)]
        assert np.allclose(again, errors, rtol=0.05, atol=_SAME), (
            f"the lab is off by {errors}, openvino alone by {again}"
        )
        report(f"{placement.label}: off by {max(errors):.3g} with openvino alone, too")
    return max(errors)


def outputs_alone(
    bound: BoundModel, placement: Placement, arrays: list[np.ndarray], scratch: Path
) -> list[np.ndarray]:
    """Return the outputs of a placement in a process with openvino and numpy alone."""
    directory = frozen(bound, placement, scratch / placement.label, arrays)
    with PlainProcess(directory) as plain:
        plain.load(directory)
        return plain.outputs(directory)


def fails_alone(
    bound: BoundModel, placement: Placement, arrays: list[np.ndarray], scratch: Path
) -> str:
    """Return what openvino alone says of a placement that it refuses; empty if it runs."""
    try:
        outputs_alone(bound, placement, arrays, scratch)
    except PlainError as error:
        return str(error)
    return ""
