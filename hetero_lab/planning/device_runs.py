"""Placements of a language model that give each device one run of its layers.

Layers are alike, so that which of them a device has hardly matters; how often a token changes
devices does. What comes before the first layer and after the last one may be in a run of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from hetero_lab.planning.memory import Pools
from hetero_lab.planning.objective import LATENCY
from hetero_lab.planning.pairwise import Pairwise

_MOST_RUNS = 12_000  # placements that are compared
_BEST = 8


def runs(n_units: int, n_devices: int, most: int) -> Iterator[list[int]]:
    """Yield the device of each unit of every way to give devices a run each, few runs first.

    Ways of so many runs that there are more than ``most`` in all are left out.
    """
    count = 0
    for n_runs in range(1, min(n_devices, n_units) + 1):
        count += math.perm(n_devices, n_runs) * math.comb(n_units - 1, n_runs - 1)
        if count > most:
            return
        for devices in itertools.permutations(range(n_devices), n_runs):
            for cuts in itertools.combinations(range(1, n_units), n_runs - 1):
                ends = zip((0, *cuts), (*cuts, n_units), strict=True)
                yield [d for d, (a, b) in zip(devices, ends, strict=True) for _ in range(a, b)]


def subgraphs_of_runs_ns(pairwise: Pairwise, blocks: np.ndarray) -> np.ndarray:
    """Return what subgraphs and spread memory cost of placements by runs, ``[n, blocks]``."""
    ends = np.ones_like(blocks, dtype=bool)
    ends[:, :-1] = blocks[:, 1:] != blocks[:, :-1]
    fixed = np.where(ends, pairwise.objective.subgraph_ns[blocks], 0).sum(axis=1)
    return fixed + pairwise.objective.spread_ns(ends.sum(axis=1))


def best_runs(pairwise: Pairwise, pools: Pools) -> tuple[np.ndarray, ...]:
    """Return the best few choices of a run for each device, predicted without their partition.

    Parameters
    ----------
    pairwise
        Its units are the layers in their order.
    pools
        Memory limits; a constant counts once for each device.
    """
    n_units, n_devices = pairwise.allowed.shape
    choices = np.array(list(runs(n_units, n_devices, _MOST_RUNS)), dtype=np.int64)
    choices = choices[pairwise.allowed[np.arange(n_units), choices].all(axis=1)]
    for pool, limit in pools.items():
        held = np.zeros(len(choices), dtype=np.int64)
        for device in pool.devices:
            held += pairwise.least_bytes(choices, device, boundaries=pool.boundaries)
        choices = choices[held <= limit]
    value = pairwise.values_ns(choices, LATENCY) + subgraphs_of_runs_ns(pairwise, choices)
    return tuple(choices[np.argsort(value, kind="stable")[:_BEST]])
