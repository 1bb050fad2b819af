"""The one clock of the project: monotonic, and replaceable in a test.

A test puts another function in the place of ``clock.now_ns``; everything that waits, times or has
a deadline then follows that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

now_ns: Callable[[], int] = time.perf_counter_ns


def now() -> float:
    """Return a monotonic time in seconds."""
    return now_ns() * 1e-9


def unix_now() -> float:
    """Return the Unix time in seconds, which all processes share."""
    return time.time()
