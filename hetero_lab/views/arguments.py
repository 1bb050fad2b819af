"""A view says what it draws before it fails on something else."""

from __future__ import annotations

from typing import Any

from hetero_lab.errors import ArgumentError

_MAKERS = {
    "Profile": "hetero_lab.profile()",
    "Sweep": "hetero_lab.sweep()",
    "CostModel": "hetero_lab.calibrate()",
    "Recovered": "hetero_lab.recover_accuracy()",
    "Wrong": "hetero_lab.find_wrong()",
}


def expect(result: Any, kind: type) -> None:
    """Raise ArgumentError unless ``result`` is what a view draws."""
    if not isinstance(result, kind):
        maker = _MAKERS.get(kind.__name__)
        raise ArgumentError(
            f"This view draws a {kind.__name__}, not {type(result).__name__}."
            + (f" {maker} returns one." if maker else "")
        )
