"""The fastest placement of a language model that gives each device one run of its layers.

Layers are alike, so that which of them a device has hardly matters; how often a token changes
devices does. What comes before the first layer goes with it, and what comes after the last one
with that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from hetero_lab.clock import now
from hetero_lab.planning.local_search import Placed, place
from hetero_lab.planning.objective import LATENCY
from hetero_lab.planning.pairwise import Pairwise


def best_runs(
    pairwise: Pairwise, fits: Callable[[Placed], bool], deadline: float
) -> tuple[Placed | None, int]:
    """Return the best placement, ``None`` if none fits, and a lower bound in ns.

    Placements are predicted in the order of their work alone, until that is more than the best
    prediction: what is found in time is proven.

    Parameters
    ----------
    pairwise
        Its units are the layers in their order.
    fits
        Whether a placement keeps to the limits.
    deadline
        When to stop, as ``clock.now()`` tells it.
    """
    work = np.where(pairwise.allowed, pairwise.time_ns, np.inf)
    # The first and the last layer with what is around them.
    starts = [0, *range(2, len(work) - 1)]
    parts = np.add.reduceat(work, starts, axis=0)
    done = np.vstack([np.zeros(work.shape[1]), np.cumsum(parts, axis=0)])
    options: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = []
    for n_runs in range(1, work.shape[1] + 1):
        for devices in itertools.permutations(range(work.shape[1]), n_runs):
            for cuts in itertools.combinations(range(1, len(parts)), n_runs - 1):
                ends = (*cuts, len(parts))
                begins = (0, *cuts)
                ns = sum(
                    parts[begin:end, device].sum()
                    if np.isinf(done[end, device])
                    else done[end, device] - done[begin, device]
                    for device, begin, end in zip(devices, begins, ends, strict=True)
                )
                if np.isfinite(ns):
                    options.append((ns, devices, ends))
    options.sort()
    best: Placed | None = None
    lengths = np.diff([*starts, len(work)])
    for ns, devices, ends in options:
        bound = int(ns) + pairwise.objective.constant_ns
        if best is not None and (bound >= best.value_ns or now() > deadline):
            return best, min(bound, best.value_ns)
        choice = np.repeat(np.repeat(devices, np.diff([0, *ends])), lengths)
        placed = place(pairwise, choice, LATENCY)
        if (best is None or placed.value_ns < best.value_ns) and fits(placed):
            best = placed
    return best, 0 if best is None else best.value_ns
