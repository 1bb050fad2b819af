"""Contention: how fast each model of a set is, from what it is alone and beside one other.

These rates are measured, and kept from plan to plan.

What another model adds to the time of a request adds up over the others, as in round robin. Not so
for a way with few threads, which move to free cores: what is added there grows less, as the root
of the sum of squares.

A model that is as busy as it can be adds the same however slow it has become, since it always has a
request that waits. One whose requests arrive by a clock adds as much less as it is less busy than
it was in the pair.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from hetero_lab.machine.demand import MAY_MISS
from hetero_lab.measure.loads import Driven
from hetero_lab.tables import write_text

_MOST_LATENCIES = 1000  # of a way alone, in the file: enough for a 99th percentile
_LEAST = 1e-3  # of the rate alone, so that what another model adds is finite
_ROUNDS = 20  # of the fixed point, which halves its error in each
_EXHAUSTIVE = 5000  # assignments that are all scored: those of five models with five ways each
_OTHER_HARDWARE = 0.1  # what one adds on other hardware, until it is measured: little


class Rates(msgspec.Struct, frozen=True):
    """Results per second of ways that were driven together, by key; of one alone its latencies."""

    keys: tuple[str, ...]
    per_s: tuple[float, ...]
    latencies_us: tuple[float, ...] = ()

    def __post_init__(self) -> None:  # they may come from a file
        if not 1 <= len(self.keys) == len(self.per_s) <= 2:
            raise ValueError("rates are of one way or of two")
        if not (
            all(0.0 < rate < math.inf for rate in self.per_s)
            and max(self.latencies_us, default=0.0) < math.inf
        ):
            raise ValueError("a rate is above 0 and finite")


class KeptRates:
    """Rates by the keys of the ways, in the file ``rates.jsonl`` of ``directory`` if that is given.

    What was measured several times counts with its mean. The file's first line says under which
    ``conditions`` it was measured; under others it is begun anew. A line that was cut ends it.
    """

    def __init__(self, directory: Path | None, conditions: str):
        self._kept = defaultdict[tuple[str, ...], list[Rates]](list)  # by sorted keys
        self._file = None if directory is None else directory / "rates.jsonl"
        if self._file is None:
            return
        text = self._file.read_text("utf-8", "replace") if self._file.exists() else ""
        first, *lines = text.split("\n")
        good = [conditions]
        with contextlib.suppress(ValueError):
            for line in lines if first == conditions else ():
                self._add(msgspec.json.decode(line, type=Rates))
                good.append(line)
        write_text(self._file, "\n".join([*good, ""]))

    def _add(self, rates: Rates) -> None:
        self._kept[tuple(sorted(rates.keys))].append(rates)

    def _of(self, *keys: str) -> Sequence[Rates]:
        return self._kept.get(tuple(sorted(keys)), ())

    def n(self, *keys: str) -> int:
        """Return how often ways were driven together."""
        return len(self._of(*keys))

    def per_s(self, *keys: str) -> tuple[float, ...] | None:
        """Return the mean rates of ways that were driven together, in this order."""
        rates = [r.per_s if r.keys == keys else r.per_s[::-1] for r in self._of(*keys)]
        return tuple(map(fmean, zip(*rates, strict=True))) if rates else None

    def latencies_us(self, key: str) -> list[float]:
        """Return the latencies of a way alone."""
        return [us for rates in self._of(key) for us in rates.latencies_us]

    def keep(self, keys: Sequence[str], driven: Sequence[Driven]) -> None:
        """Keep the rates of one way, with its latencies, or of two."""
        latencies_us = driven[0].latencies_us[:_MOST_LATENCIES] if len(driven) == 1 else ()
        rates = Rates(tuple(keys), tuple(one.rate_per_s for one in driven), latencies_us)
        self._add(rates)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(msgspec.json.encode(rates).decode() + "\n")


@dataclass(frozen=True)
class Alone:
    """A model on one of its ways, driven alone: its rate, and the latency of one request in µs.

    ``p99_us`` is that of requests by the clock of the demand, if it has one. ``asked_per_s`` is
    ``None`` for a demand that is as busy as it can be. Of the way are the ``hardware`` that its
    work lands on, and whether its threads ``move`` to free cores.
    """

    key: str
    per_s: float
    median_us: float
    p99_us: float
    asked_per_s: float | None = None
    hardware: frozenset[str] = frozenset()
    moves: bool = False

    @property
    def demand(self) -> float:
        """What it wants of its rate."""
        return 1.0 if self.asked_per_s is None else min(1.0, self.asked_per_s / self.per_s)

    def foretold_p99_us(self, could_per_s: float, tail_us: float) -> float:
        """Foretell the 99th percentile, if it could be served at a rate beside others.

        ``tail_us`` is what these add to it. What waits makes it as much longer as in a queue with
        one server (M/M/1), by the share of the possible rate that is asked for.
        """
        full = (self.asked_per_s or 0.0) / could_per_s
        return (self.p99_us + tail_us) / max(1.0 - full, 1e-3)


# The rates of two ways that were driven together, by key; None if they were not.
Pair = Callable[[str, str], "tuple[float, ...] | None"]


def interference(one: Alone, other: Alone, pair: Pair) -> tuple[float, float]:
    """Return what ``other`` adds to a request of ``one``, and how busy it was, both as shares.

    Without a measurement, two on a CPU share its cores, and two on another device take turns.
    """
    rates = pair(one.key, other.key)
    if rates is not None:
        ours, others = (
            min(1.0, max(_LEAST, rate / each.per_s))
            for rate, each in zip(rates, (one, other), strict=True)
        )
        return 1.0 / ours - 1.0, others
    if "CPU" in one.hardware & other.hardware:
        return 1.0, 0.5
    if one.hardware & other.hardware:
        return one.per_s / other.per_s, 0.5
    return _OTHER_HARDWARE, 1.0


def together(models: Sequence[Alone], pair: Pair) -> np.ndarray:
    """Return the share of its rate alone that each model of a set could reach, shape ``[n]``."""
    n = len(models)
    adds, busy = np.zeros((n, n)), np.ones((n, n))
    for i, j in itertools.permutations(range(n), 2):
        adds[i, j], busy[i, j] = interference(models[i], models[j], pair)
    demands = np.array([one.demand for one in models])
    is_closed = np.array([one.asked_per_s is None for one in models])
    moves = [one.moves for one in models]
    share = np.ones(n)
    for _ in range(_ROUNDS):
        does = np.minimum(share, demands)
        pressure = adds * np.where(is_closed, 1.0, np.minimum(1.0, does / busy))
        several = np.where(moves, np.sqrt((pressure**2).sum(axis=1)), pressure.sum(axis=1))
        share = (share + 1.0 / (1.0 + several)) / 2.0
    return share


def tails_us(models: Sequence[Alone], pair: Pair) -> np.ndarray:
    """Return what the others add to the slowest hundredth of each model's requests, in µs, ``[n]``.

    A request meets another model with the probability that one of its requests is under way, and
    then all that it adds. So a model that is rarely busy is felt here, and hardly in the mean.
    """
    n = len(models)
    here = np.array([*itertools.product((0, 1), repeat=n - 1)], dtype=bool)  # of the others
    tails = np.zeros(n)
    for i, one in enumerate(models):
        others = [other for j, other in enumerate(models) if j != i]
        adds = one.median_us * np.array([interference(one, other, pair)[0] for other in others])
        meets = [
            1.0
            if other.asked_per_s is None
            else min(1.0, other.asked_per_s * (one.median_us + other.median_us) / 1e6)
            for other in others
        ]
        probability = np.where(here, meets, 1.0 - np.array(meets)).prod(axis=1)
        total = (here * adds).sum(axis=1)
        order = np.argsort(total)
        at = np.searchsorted(probability[order].cumsum(), 1.0 - MAY_MISS)
        tails[i] = total[order[min(at, len(order) - 1)]]
    return tails


def search(
    options: Mapping[str, Sequence[str]], score: Callable[[Mapping[str, str]], float], most: int
) -> list[dict[str, str]]:
    """Return the assignments of a way to each model with the highest scores, at most ``most``.

    All are scored where there are few; otherwise one model at a time is changed to its best way,
    from each start in which all have ways of one rank, until nothing improves.
    """
    scores: dict[tuple[str, ...], float] = {}

    def score_of(ways: tuple[str, ...]) -> float:
        if ways not in scores:
            scores[ways] = score(dict(zip(options, ways, strict=True)))
        return scores[ways]

    if math.prod(map(len, options.values())) <= _EXHAUSTIVE:
        for ways in itertools.product(*options.values()):
            score_of(ways)
    else:
        for rank in range(max(map(len, options.values()))):
            best, last = tuple(each[min(rank, len(each) - 1)] for each in options.values()), ()
            while best != last:
                last = best
                for place, labels in enumerate(options.values()):
                    neighbours = [(*best[:place], way, *best[place + 1 :]) for way in labels]
                    best = max([best, *neighbours], key=score_of)  # the first one, of equals
    ranked = sorted(scores, key=lambda ways: scores[ways], reverse=True)[:most]
    return [dict(zip(options, ways, strict=True)) for ways in ranked]
