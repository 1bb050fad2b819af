"""Minimal failing sets of ops or of settings: one by bisection, all by a tree of hitting sets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal_set(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Shrink a failing list until no item of it can be left out.

    Bisection for the shortest failing list yields each necessary item, as in QuickXplain (Junker
    2004): k items of n take about k log₂ n tests. A test without each item then proves that none
    can be left out, the guarantee of delta debugging (Zeller and Hildebrandt 2002).

    ``fails`` tells whether a part of the list, in its order and never empty, fails. Items that are
    close in the list are tried together first.
    """
    order = {item: place for place, item in enumerate(items)}
    smallest = list(items)

    def fails_together(chosen: Sequence[T]) -> bool:
        nonlocal smallest
        failed = fails(sorted(chosen, key=order.__getitem__))
        if failed and len(chosen) < len(smallest):
            smallest = list(chosen)
        return failed

    def fails_with(n: int) -> bool:
        return fails_together([*needed, *pool[:n]])

    needed: list[T] = []
    pool, reach = list(items), len(items)  # the first search bisects the whole list
    while pool and not (needed and fails_together(needed)):
        passes = 0
        while reach < len(pool) and not fails_with(reach):
            passes, reach = reach, 2 * reach
        last = bisect_left(range(min(reach, len(pool))), True, passes + 1, key=fails_with) - 1
        needed.append(pool[last])
        pool = pool[:last]
        if len(needed) == 1:
            pool.reverse()
        reach = 1  # items that fail together are mostly close, so short stretches come first
    # More items can mend a failure, so items that were needed beside others may not fail alone.
    needed = smallest
    at = 0
    while at < len(needed) > 1:
        rest = [*needed[:at], *needed[at + 1 :]]
        # With fewer items left, one that was needed so far may no longer be.
        needed, at = (rest, 0) if fails_together(rest) else (needed, at + 1)
    return sorted(needed, key=order.__getitem__)


def disjoint_sets(
    items: Sequence[T], fails: Callable[[Sequence[T]], bool], parts: Iterable[Sequence[T]] = ()
) -> Iterator[list[T]]:
    """Yield minimal failing sets that share no item, those within one of the ``parts`` first.

    A part is far less to search than the whole, which comes last: items that are far apart can
    fail together, too.
    """
    taken: set[T] = set()
    for part in (*parts, items):
        while (left := [item for item in part if item not in taken]) and fails(left):
            smallest = minimal_set(left, fails)
            yield smallest
            taken.update(smallest)


def overlapping_sets(
    items: Sequence[T],
    known: Iterable[Iterable[T]],
    fails: Callable[[Sequence[T]], bool],
    check: Callable[[], None] = lambda: None,
) -> Iterator[list[T]]:
    """Yield further minimal failing sets, which share items with known ones or with each other.

    As in Reiter's tree of hitting sets (1987): what fails without an item of each known set holds
    another one. The walk is depth-first, because there may be far too many ways to leave out
    items. ``check`` is called at each step; an exception that it raises ends the walk.
    """
    failing = [frozenset(each) for each in known]
    enough: list[frozenset[T]] = []  # to leave out: the rest does not fail
    stack = [frozenset[T]()]
    while stack:
        check()
        out = stack.pop()
        if any(other <= out for other in enough):
            continue
        missed = next((each for each in failing if each.isdisjoint(out)), None)
        if missed is None:
            left = [item for item in items if item not in out]
            if not left or not fails(left):
                enough.append(out)
                continue
            smallest = minimal_set(left, fails)
            yield smallest
            missed = frozenset(smallest)
            failing.append(missed)
        stack += [child for item in missed if (child := out | {item}) not in stack]
