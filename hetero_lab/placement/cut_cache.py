"""FIFO cache of cut sets: most placements of a graph differ little from earlier ones."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Cuts = TypeVar("Cuts")

_CAPACITY = 1_000_000  # nodes and edges over all entries


class CutCache(Generic[Key, Cuts]):
    """Cut sets by what determines them; the oldest are evicted first."""

    def __init__(self) -> None:
        self._cuts: dict[Key, tuple[Cuts, int]] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._cuts)

    def get(self, key: Key) -> Cuts | None:
        """Return a cut set, None if it is not cached."""
        entry = self._cuts.get(key)
        return None if entry is None else entry[0]

    def add(self, key: Key, cuts: Cuts, size: int) -> None:
        """Cache a cut set that takes up ``size`` nodes and edges."""
        if key in self._cuts:
            return
        self._cuts[key] = cuts, size
        self._size += size
        while self._size > _CAPACITY and len(self._cuts) > 1:
            oldest = next(iter(self._cuts))
            self._size -= self._cuts.pop(oldest)[1]
