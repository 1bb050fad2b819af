"""Which of many like parameters a suite runs: some always, more in CI, the rest by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sliced(values: Iterable[Any], quick: int, in_ci: int | None = None) -> list[Any]:
    """Return parameters: the first ``quick`` without a mark, the others ``slow``.

    From ``in_ci`` on they are ``by_hand`` as well.
    """
    found = []
    for number, value in enumerate(values):
        marks = [pytest.mark.slow] * (number >= quick)
        marks += [pytest.mark.by_hand] * (in_ci is not None and number >= in_ci)
        found.append(pytest.param(value, marks=marks))
    return found
