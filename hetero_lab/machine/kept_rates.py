"""Rates that were measured, of ways alone and of two at once, kept from plan to plan."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hetero_lab.measure.loads import Driven
from hetero_lab.tables import write_text

_MOST_LATENCIES = 1000


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
        self._n: dict[tuple[str, ...], int] = {}
        self._mean: dict[tuple[str, ...], Rates] = {}
        self._file = None if directory is None else directory / "rates.jsonl"
        if self._file is None:
            return
        text = self._file.read_text("utf-8", "replace") if self._file.exists() else ""
        first, *lines = text.split("\n")
        good = [first] if first == conditions else [conditions]
        with contextlib.suppress(ValueError):
            for line in lines if first == conditions else ():
                self._add(msgspec.json.decode(line, type=Rates))
                good.append(line)
        write_text(self._file, "\n".join([*good, ""]))

    def _add(self, rates: Rates) -> None:
        if rates.keys != (keys := tuple(sorted(rates.keys))):
            rates = Rates(keys, rates.per_s[::-1])
        n, mean = self._n.get(keys, 0), self._mean.get(keys, rates)
        means = zip(mean.per_s, rates.per_s, strict=True)
        per_s = tuple((n * old + new) / (n + 1) for old, new in means)
        latencies = rates.latencies_us if n == 0 else (*mean.latencies_us, *rates.latencies_us)
        self._n[keys] = n + 1
        self._mean[keys] = Rates(keys, per_s, latencies)

    def n(self, *keys: str) -> int:
        """Return how often ways were driven together."""
        return self._n.get(tuple(sorted(keys)), 0)

    def get(self, *keys: str) -> Rates | None:
        """Return the mean rates of ways that were driven together, in this order."""
        mean = self._mean.get(tuple(sorted(keys)))
        if mean is None or mean.keys == keys:
            return mean
        return Rates(keys, mean.per_s[::-1])

    def keep(self, keys: Sequence[str], driven: Sequence[Driven]) -> None:
        """Keep the rates of one way, with its latencies, or of two."""
        rates = Rates(tuple(keys), tuple(one.rate_per_s for one in driven))
        if len(driven) == 1:
            latencies = driven[0].latencies_us[:_MOST_LATENCIES]
            rates = Rates(rates.keys, rates.per_s, latencies)
        self._add(rates)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(msgspec.json.encode(rates).decode() + "\n")
