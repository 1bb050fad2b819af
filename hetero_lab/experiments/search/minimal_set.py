"""Minimal sets of items that fail together, found with few tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal_set(
    items: Sequence[T],
    fails: Callable[[Sequence[T]], bool],
    near: Callable[[T, Sequence[T]], Sequence[T]] | None = None,
) -> list[T]:
    """Shrink a failing list until no item of it can be left out.

    Each necessary item is found by bisecting for the shortest list that fails, as in QuickXplain
    (Junker 2004), so that k items of n take about k log₂ n tests; that none of them can be left
    out is then tested item by item, which is the guarantee of delta debugging (Zeller and
    Hildebrandt 2002).

    Parameters
    ----------
    items
        A list that fails.
    fails
        Whether a part of the list, in its order, fails. It is not asked about the empty list.
    near
        Sorts items by how likely they are to fail together with a given one, the likeliest
        first. Without it, the ones closest before it in the list come first.
    """
    order = {item: place for place, item in enumerate(items)}
    smallest = list(items)

    def fails_together(chosen: Sequence[T]) -> bool:
        nonlocal smallest
        failed = fails(sorted(chosen, key=order.__getitem__))
        if failed and len(chosen) < len(smallest):
            smallest = list(chosen)
        return failed

    def shortest(needed: list[T], pool: list[T], passes: int, fails_at: int) -> int:
        while fails_at - passes > 1:
            middle = (passes + fails_at) // 2
            if fails_together([*needed, *pool[:middle]]):
                fails_at = middle
            else:
                passes = middle
        return fails_at

    pool = list(items)
    last = shortest([], pool, 0, len(pool)) - 1
    needed, pool = [pool[last]], pool[:last]
    pool = pool[::-1] if near is None else list(near(needed[0], pool))
    while pool and not fails_together(needed):
        # What fails together is mostly close together.
        passes, fails_at = 0, 1
        while fails_at < len(pool) and not fails_together([*needed, *pool[:fails_at]]):
            passes, fails_at = fails_at, 2 * fails_at
        last = shortest(needed, pool, passes, min(fails_at, len(pool))) - 1
        needed.append(pool[last])
        pool = pool[:last]
    # Where more can mend, what was needed beside others need not fail by itself.
    needed = smallest
    at = 0
    while at < len(needed) > 1:
        rest = [*needed[:at], *needed[at + 1 :]]
        # Beside fewer items, one that was needed so far need not be.
        needed, at = (rest, 0) if fails_together(rest) else (needed, at + 1)
    return sorted(needed, key=order.__getitem__)
