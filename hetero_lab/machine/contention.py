"""Contention: how fast each model of a set is, from what it is alone and beside one other.

What another model adds to the time of a request adds up over the others, as in round robin. Not so
for a way with few threads, which move to free cores: what is added there grows less, as the root
of the sum of squares.

A model that is as busy as it can be adds the same however slow it has become, since it always has a
request that waits. One whose requests arrive by a clock adds as much less as it is less busy than
it was in the pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_LEAST = 1e-3  # of the rate alone
SLOWEST = 0.01  # of the requests, whose latency decides
_ROUNDS = 20  # of the fixed point, which halves its error in each
_EXHAUSTIVE = 5000  # assignments that are all scored
_OTHER_HARDWARE = 0.1  # what one adds on other hardware, until it is measured


@dataclass(frozen=True)
class Used:
    """One model of a set: its rate alone on its way, what it is asked for, and what it uses.

    ``asked_per_s`` is ``None`` for a demand that is as busy as it can be; ``takes_s`` is one
    request alone; ``moves`` says that its threads move to free cores.
    """

    key: str
    alone_per_s: float
    asked_per_s: float | None
    hardware: frozenset[str]
    takes_s: float
    moves: bool = False

    @property
    def wanted(self) -> float:
        """What it wants of its rate alone."""
        return 1.0 if self.asked_per_s is None else min(1.0, self.asked_per_s / self.alone_per_s)


# The rates of two ways that were driven together, by key; None if they were not.
Pair = Callable[[str, str], "tuple[float, float] | None"]


def added(one: Used, other: Used, pair: Pair) -> tuple[float, float]:
    """Return what ``other`` adds to a request of ``one``, and how busy it was, both as shares.

    Without a measurement, two on a CPU share its cores, and two on another device take turns.
    """
    known = pair(one.key, other.key)
    if known is not None:
        ours, others = (
            min(1.0, max(_LEAST, rate / used.alone_per_s))
            for rate, used in zip(known, (one, other), strict=True)
        )
        return 1.0 / ours - 1.0, others
    if "CPU" in one.hardware & other.hardware:
        return 1.0, 0.5
    if one.hardware & other.hardware:
        return one.alone_per_s / other.alone_per_s, 0.5
    return _OTHER_HARDWARE, 1.0


def together(used: Sequence[Used], pair: Pair) -> np.ndarray:
    """Return the share of its rate alone that each model of a set could reach, shape ``[n]``."""
    n = len(used)
    adds, busy = np.zeros((n, n)), np.ones((n, n))
    for i, j in itertools.permutations(range(n), 2):
        adds[i, j], busy[i, j] = added(used[i], used[j], pair)
    wanted = np.array([one.wanted for one in used])
    is_closed = np.array([one.asked_per_s is None for one in used])
    moves = [one.moves for one in used]
    share = np.ones(n)
    for _ in range(_ROUNDS):
        does = np.minimum(share, wanted)
        pressed = adds * np.where(is_closed, 1.0, np.minimum(1.0, does / busy))
        several = np.where(moves, np.sqrt((pressed**2).sum(axis=1)), pressed.sum(axis=1))
        share = (share + 1.0 / (1.0 + several)) / 2.0
    return share


def tails_s(used: Sequence[Used], pair: Pair) -> np.ndarray:
    """Return what the others add to the slowest hundredth of each model's requests, in s, ``[n]``.

    A request meets another model with the probability that one of its requests is under way, and
    then all that it adds. So a model that is rarely busy is felt here, and hardly in the mean.
    """
    n = len(used)
    here = np.array([*itertools.product((0, 1), repeat=n - 1)], dtype=bool)  # of the others
    found = np.zeros(n)
    for i, one in enumerate(used):
        others = [other for j, other in enumerate(used) if j != i]
        adds = one.takes_s * np.array([added(one, other, pair)[0] for other in others])
        meets = [
            1.0 if other.asked_per_s is None
            else min(1.0, other.asked_per_s * (one.takes_s + other.takes_s))
            for other in others
        ]  # fmt: skip
        probability = np.where(here, meets, 1.0 - np.array(meets)).prod(axis=1)
        total = (here * adds).sum(axis=1)
        order = np.argsort(total)
        at = np.searchsorted(probability[order].cumsum(), 1.0 - SLOWEST)
        found[i] = total[order[min(at, len(order) - 1)]]
    return found


def search(
    names: Sequence[str],
    options: Mapping[str, Sequence[str]],
    score: Callable[[Mapping[str, str]], float],
    most: int,
) -> list[dict[str, str]]:
    """Return the assignments of a way to each model with the highest scores, at most ``most``.

    All are scored where there are few; otherwise one model at a time is changed to its best way,
    from each start in which all have ways of one rank, until nothing improves.
    """
    if np.prod([float(len(options[name])) for name in names]) <= _EXHAUSTIVE:
        every = [
            dict(zip(names, chosen, strict=True))
            for chosen in itertools.product(*(options[name] for name in names))
        ]
        return sorted(every, key=score, reverse=True)[:most]
    seen: dict[tuple[str, ...], float] = {}

    def scored(chosen: Mapping[str, str]) -> float:
        key = tuple(chosen[name] for name in names)
        if key not in seen:
            seen[key] = score(chosen)
        return seen[key]

    for rank in range(max(len(options[name]) for name in names)):
        chosen = {name: options[name][min(rank, len(options[name]) - 1)] for name in names}
        improved = True
        while improved:
            improved = False
            for name in names:
                tried = [{**chosen, name: way} for way in options[name]]
                best = max(tried, key=scored)
                if scored(best) > scored(chosen):
                    chosen, improved = best, True
    ranked = sorted(seen, key=lambda key: seen[key], reverse=True)[:most]
    return [dict(zip(names, key, strict=True)) for key in ranked]
