"""Which core a thread runs on, for threads that wake each other to run side by side.

Linux likes to start a thread on the core of the one that wakes it. Work of less than a few
milliseconds is over before the two are moved apart, and nothing has run side by side.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import openvino as ov


def cores_of_their_own(n: int, compiled: Sequence[ov.CompiledModel]) -> list[int | None]:
    """Return a core for each of ``n`` threads; None for each where they are not to be bound.

    They are bound if there are enough cores and every model runs on one thread: threads that a
    runtime makes for more inherit the core of the one that made them.
    """
    if not sys.platform.startswith("linux") or not all(map(_is_one_threaded, compiled)):
        return [None] * n
    cores = sorted(os.sched_getaffinity(0))
    return list(cores[:n]) if n <= len(cores) else [None] * n


def stay_on(core: int | None) -> None:
    """Bind the calling thread to a core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def _is_one_threaded(compiled: ov.CompiledModel) -> bool:
    try:
        return int(compiled.get_property("INFERENCE_NUM_THREADS")) == 1
    except RuntimeError:  # a device that does not run on cores
        return False
