"""The best placement among all choices, or among those that give each device one run of layers.

All choices of a small model prove its best placement. The bound of a choice is its pairwise part
and the cost of its subgraphs before cycles are cut. Choices are predicted in the order of their
bounds until the next bound does not beat the best prediction (branch and bound, Land and Doig 1960,
with the whole tree in one array).

The layers of a language model are alike, so it hardly matters which of them a device has; it
matters how often a token changes devices. The ops before the first layer and after the last one may
be in a run of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from hetero_lab.costs.objective import LATENCY, PlacementCost
from hetero_lab.placement.memory_limits import Pools
from hetero_lab.planning.problem import Pairwise, Problem

_MOST_CHOICES = 600_000  # 12 units on three devices have 531,441
_MOST_CELLS = 24_000_000  # choices × units, which lie in memory at once
_MOST_RUNS = 12_000  # placements by runs that are compared
_MOST_STAGES = 2_000_000  # units of all placements by stages that are compared
_BEST = 8  # to start from: each is predicted with its partition, the best is repaired


def small_enough(pairwise: Pairwise) -> bool:
    """Return whether there are few enough choices to look at all of them."""
    count = math.prod(pairwise.allowed.sum(axis=1).tolist())
    return count <= _MOST_CHOICES and count * len(pairwise.units) <= _MOST_CELLS


def best_of_all(problem: Problem) -> tuple[PlacementCost | None, int, bool]:
    """Predict choices of a small problem until one is proven to be the best, or time is over.

    Returns the best choice found (None if none is valid), a proven bound in ns on all of them, and
    whether the search ended in time.
    """
    choices = _within(problem.pairwise, _all_choices(problem.pairwise), problem.pools)
    subgraphs = _subgraphs(problem.pairwise, choices)
    bounds = problem.pairwise.values_ns(choices, problem.objective, subgraphs)
    return _least(problem, choices, bounds, problem.value_ns)


def least_fullest_bytes(problem: Problem) -> int | None:
    """Return the weights and states of the fullest device in the most even placement.

    None if nothing keeps to the limits; the least found so far if the deadline is over. The bound
    of a choice counts a constant once for each device.
    """
    pairwise = problem.pairwise
    choices = _within(pairwise, _all_choices(pairwise), problem.pools)
    bounds = pairwise.fullest_bytes(choices)
    best, *_ = _least(problem, choices, bounds, problem.fullest_bytes)
    return None if best is None else problem.fullest_bytes(best)


def _least(
    problem: Problem, choices: np.ndarray, bounds: np.ndarray, value: Callable[[PlacementCost], int]
) -> tuple[PlacementCost | None, int, bool]:
    """Return the valid choice of least value, a proven bound, and whether there was time.

    ``bounds`` are lower bounds of the values. Without a valid choice, the bound is 0.
    """
    best: PlacementCost | None = None
    least = 0
    at = 0
    with problem.until:
        for rank, at in enumerate(np.argsort(bounds, kind="stable").tolist()):
            if best is not None and bounds[at] >= least:
                break
            if rank and problem.is_late:
                return best, int(bounds[at]), False
            placed = problem.place(choices[at])
            cost = value(placed)
            if (best is None or cost < least) and not problem.excess_bytes(placed):
                best, least = placed, cost
    if not problem.until.interrupted:
        return best, least, True
    if best is None:
        raise KeyboardInterrupt
    return best, int(bounds[at]), False


def runs(n_units: int, n_devices: int, most: int) -> Iterator[list[int]]:
    """Yield the ways to give each device one run of units, few runs first, up to ``most`` ways."""
    count = 0
    for n_runs in range(1, min(n_devices, n_units) + 1):
        count += math.perm(n_devices, n_runs) * math.comb(n_units - 1, n_runs - 1)
        if count > most:
            return
        for devices in itertools.permutations(range(n_devices), n_runs):
            for cuts in itertools.combinations(range(1, n_units), n_runs - 1):
                ends = zip((0, *cuts), (*cuts, n_units), strict=True)
                yield [d for d, (a, b) in zip(devices, ends, strict=True) for _ in range(a, b)]


def runs_ns(
    pairwise: Pairwise, choices: np.ndarray, blocks: np.ndarray, objective: str = LATENCY
) -> np.ndarray:
    """Predict placements by runs with a subgraph for each run: values ``[n]``.

    ``blocks`` are the devices of the layers, ``[n, blocks]``, ``choices`` those of the units.
    """
    ends = np.ones_like(blocks, dtype=bool)
    ends[:, :-1] = blocks[:, 1:] != blocks[:, :-1]
    devices = np.arange(pairwise.n_devices)
    subgraphs = (ends[:, :, None] & (blocks[:, :, None] == devices)).sum(axis=1)
    return pairwise.values_ns(choices, objective, subgraphs)


def best_runs(pairwise: Pairwise, pools: Pools, objective: str = LATENCY) -> tuple[np.ndarray, ...]:
    """Return the best few choices of a run for each device, predicted without their partition.

    Limits count a constant once for each device. Where there are many units, the stages of a
    pipeline end after every so many of them only.
    """
    n_units, n = pairwise.allowed.shape
    most, size = _MOST_RUNS, 1
    if objective != LATENCY:
        most = max(4, _MOST_STAGES // n_units)
        while 2 * math.perm(n) * math.comb(-(-n_units // size), n - 1) > most:
            size += 1
    every = np.array(list(runs(-(-n_units // size), n, most)), dtype=np.int64)
    choices = np.repeat(every, size, axis=1)[:, :n_units]
    choices = choices[pairwise.allowed[np.arange(n_units), choices].all(axis=1)]
    choices = _within(pairwise, choices, pools)
    values = runs_ns(pairwise, choices, choices, objective)
    return tuple(choices[np.argsort(values, kind="stable")[:_BEST]])


def _within(pairwise: Pairwise, choices: np.ndarray, pools: Pools) -> np.ndarray:
    """Return the choices that may keep within memory limits."""
    for pool, limit in pools.items():
        n_bytes = np.zeros(len(choices), dtype=np.int64)
        for device in pool.devices:
            n_bytes += pairwise.least_bytes(choices, device, boundaries=pool.boundaries)
        choices = choices[n_bytes <= limit]
    return choices


def _all_choices(pairwise: Pairwise) -> np.ndarray:
    places = [np.flatnonzero(row).tolist() for row in pairwise.allowed]
    every = itertools.chain.from_iterable(itertools.product(*places))
    return np.fromiter(every, np.int8).reshape(-1, len(places))


def _subgraphs(pairwise: Pairwise, choices: np.ndarray) -> np.ndarray:
    """Count, for each choice and device, the connected parts of the units on it."""
    n_units = len(pairwise.units)
    label = np.tile(np.arange(n_units, dtype=np.int16), (len(choices), 1))
    joined = [(a, b, choices[:, a] == choices[:, b]) for a, b in pairwise.links]
    changed = True
    while changed:
        before = label.copy()
        for a, b, together in joined:
            least = np.where(together, np.minimum(label[:, a], label[:, b]), label[:, a])
            label[:, b] = np.where(together, least, label[:, b])
            label[:, a] = least
        changed = bool((label != before).any())
    first = label == np.arange(n_units)
    counts = np.zeros((len(choices), pairwise.n_devices), dtype=np.int64)
    for device in range(pairwise.n_devices):
        counts[:, device] = (first & (choices == device)).sum(axis=1)
    return counts
