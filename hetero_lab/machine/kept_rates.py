"""Rates that were measured, of ways alone and of two at once, kept from plan to plan."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hetero_lab.measure.loads import Driven

_MOST_LATENCIES = 1000


class Rates(msgspec.Struct, frozen=True):
    """Results per second of ways that were driven together, by key; of one alone its latencies."""

    keys: tuple[str, ...]
    per_s: tuple[float, ...]
    latencies_us: tuple[float, ...] = ()


class KeptRates:
    """Rates by the keys of the ways, in the file ``rates.jsonl`` of ``directory`` if that is given.

    The file's first line says under which ``conditions`` they were measured; under others it is
    begun anew. A line that was cut ends it.
    """

    def __init__(self, directory: Path | None, conditions: str):
        self._rates: dict[tuple[str, ...], Rates] = {}
        self._file = None if directory is None else directory / "rates.jsonl"
        if self._file is None:
            return
        text = self._file.read_text("utf-8", "replace") if self._file.exists() else ""
        first, *lines = text.split("\n")
        good = [first] if first == conditions else [conditions]
        with contextlib.suppress(ValueError):
            for line in lines if first == conditions else ():
                rates = msgspec.json.decode(line, type=Rates)
                self._rates[rates.keys] = rates
                good.append(line)
        self._file.write_text("\n".join([*good, ""]), "utf-8")

    def get(self, *keys: str) -> Rates | None:
        """Return the rates of ways that were driven together, in this order."""
        if (same := self._rates.get(keys)) is not None:
            return same
        other = self._rates.get(keys[::-1])
        return None if other is None else Rates(keys, other.per_s[::-1])

    def keep(self, keys: Sequence[str], driven: Sequence[Driven]) -> None:
        """Keep the rates of ways; of a way alone also the latencies."""
        latencies = driven[0].latencies_us[:_MOST_LATENCIES] if len(driven) == 1 else ()
        rates = Rates(tuple(keys), tuple(one.rate_per_s for one in driven), latencies)
        self._rates[rates.keys] = rates
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(msgspec.json.encode(rates).decode() + "\n")
