"""Cuts that were found before, kept with their graph: most placements differ little from others."""

from __future__ import annotations

from typing import Generic, TypeVar

from hetero_lab.model.opgraph import OpGraph

Key = TypeVar("Key")
Cuts = TypeVar("Cuts")

_MOST = 1_000_000  # nodes and wires in all that is kept


class KnownCuts(Generic[Key, Cuts]):
    """What was cut, by what that follows from; the oldest go first."""

    def __init__(self) -> None:
        self._cuts: dict[Key, tuple[Cuts, int]] = {}
        self._size = 0

    @classmethod
    def of(cls, graph: OpGraph, kind: str) -> KnownCuts[Key, Cuts]:
        """Return those of one kind of a graph."""
        return graph.__dict__.setdefault(f"_known_cuts_{kind}", cls())

    def get(self, key: Key) -> Cuts | None:
        """Return what was cut, None if that is not known."""
        found = self._cuts.get(key)
        return None if found is None else found[0]

    def add(self, key: Key, cuts: Cuts, size: int) -> None:
        """Keep what was cut; ``size`` is how many nodes and wires that takes to keep."""
        if key in self._cuts:
            return
        self._cuts[key] = cuts, size
        self._size += size
        while self._size > _MOST and len(self._cuts) > 1:
            oldest = next(iter(self._cuts))
            self._size -= self._cuts.pop(oldest)[1]
