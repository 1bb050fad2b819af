"""Minimal sets of items that fail together, found with few tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        # Items that fail together are mostly close to each other, so the stretch is doubled.
        passes, fails_at = 0, 1
        while fails_at < len(pool) and not fails_together([*needed, *pool[:fails_at]]):
            passes, fails_at = fails_at, 2 * fails_at
        last = shortest(needed, pool, passes, min(fails_at, len(pool))) - 1
        needed.append(pool[last])
        pool = pool[:last]
    # More items can mend a failure, so those that were needed beside others need not fail alone.
    needed = smallest
    at = 0
    while at < len(needed) > 1:
        rest = [*needed[:at], *needed[at + 1 :]]
        # Beside fewer items, one that was needed so far need not be.
        needed, at = (rest, 0) if fails_together(rest) else (needed, at + 1)
    return sorted(needed, key=order.__getitem__)


def hitting_sets(
    known: Sequence[frozenset[T]],
    enough: Sequence[frozenset[T]],
    check: Callable[[], None] = lambda: None,
) -> Iterator[frozenset[T]]:
    """Walk through sets that hold an item of each known set, as in Reiter's tree (1987).

    The walk is depth first, because there may be far too many of them to list.

    Parameters
    ----------
    known
        Sets to hit. It may grow during the walk.
    enough
        Hitting sets beyond which nothing is looked for. After each set that it is given, the
        caller adds that set here, or to ``known`` one that it does not hit.
    check
        Called at each step; an exception of it ends the walk.
    """
    stack = [frozenset[T]()]
    while stack:
        check()
        out = stack.pop()
        if any(other <= out for other in enough):
            continue
        missed = next((items for items in known if items.isdisjoint(out)), None)
        if missed is None:
            yield out
            stack.append(out)  # it is in enough now, or misses a new set
        else:
            stack += [child for item in missed if (child := out | {item}) not in stack]
