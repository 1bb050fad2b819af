"""Minimal failing sets of ops or of settings, and the ops that a device refuses.

One set is found by bisection, all are by a tree of hitting sets.
"""

from __future__ import annotations

import contextlib
import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from hetero_lab.debug.placed_runs import PlacedRuns
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.devices.devices import check_device, device_names, supported_ops
from hetero_lab.errors import CompileError, DeviceError, names_at_hand, shorten
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.language import refuse_language_model
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import PlacementLike, resolve
from hetero_lab.progress import Progress
from hetero_lab.runtime.inputs import input_arrays

if TYPE_CHECKING:
    import openvino as ov

T = TypeVar("T")
_MOST_REFUSALS = 20  # each takes a dozen compiles; a device that refuses more is no candidate


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

    def fails_together(part: Sequence[T]) -> bool:
        nonlocal smallest
        failed = fails(sorted(part, key=order.__getitem__))
        if failed and len(part) < len(smallest):
            smallest = list(part)
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
    items: Sequence[T], fails: Callable[[Sequence[T]], bool], parts: Iterable[Sequence[T]]
) -> Iterator[list[T]]:
    """Yield minimal failing sets that share no item, those within one of the ``parts`` first.

    A part is far less to search than the whole, which comes last: items that are far apart can
    fail together, too.
    """
    members: set[T] = set()
    for part in (*parts, items):
        while (rest := [item for item in part if item not in members]) and fails(rest):
            smallest = minimal_set(rest, fails)
            yield smallest
            members.update(smallest)


def overlapping_sets(
    items: Sequence[T],
    sets: Iterable[Iterable[T]],
    fails: Callable[[Sequence[T]], bool],
    check: Callable[[], None],
) -> Iterator[list[T]]:
    """Yield further minimal failing sets, which share items with known ones or with each other.

    As in Reiter's tree of hitting sets (1987): what fails without an item of each known set holds
    another one. The walk is depth-first, because there may be far too many ways to leave out
    items. ``check`` is called at each step; an exception that it raises ends the walk.
    """
    failing = [frozenset(each) for each in sets]
    enough: list[frozenset[T]] = []  # to leave out: the rest does not fail
    stack = [frozenset[T]()]
    while stack:
        check()
        out = stack.pop()
        if any(other <= out for other in enough):
            continue
        missed = next((each for each in failing if each.isdisjoint(out)), None)
        if missed is None:
            rest = [item for item in items if item not in out]
            if not rest or not fails(rest):
                enough.append(out)
                continue
            smallest = minimal_set(rest, fails)
            yield smallest
            missed = frozenset(smallest)
            failing.append(missed)
        stack += [child for item in missed if (child := out | {item}) not in stack]


@dataclass(frozen=True)
class Refusal:
    """Ops that a device refuses together, none of which can be left out, and its message.

    ``target`` is the device that takes them.
    """

    device: str
    ops: tuple[str, ...]
    error: str
    target: str

    @property
    def fix(self) -> dict[str, str]:
        """Op → ``target``, for ``affinity.fix(ops=…)``."""
        return dict.fromkeys(self.ops, self.target)

    def __str__(self) -> str:
        return f"{self.device} refuses {names_at_hand(self.ops)}: {self.error}"


@dataclass(frozen=True)
class Refusals:
    """All refusals of a placement, and the affinity without them.

    ``fix`` is an argument for ``affinity.fix(ops=…)``; ``affinity`` is fixed and compiles, unless
    the search was ``interrupted``, or ended at its limit: then more ops may be refused.
    """

    refusals: tuple[Refusal, ...]
    fix: Mapping[str, str]
    affinity: Affinity
    interrupted: bool = False

    def __bool__(self) -> bool:
        return bool(self.refusals)

    def __str__(self) -> str:
        lines = [*map(str, self.refusals)]
        if self.refusals:
            lines.append(f"fix(ops={dict(self.fix)!r})")
        if self.interrupted:
            lines.append("The search ended early: more may be refused.")
        return "\n".join(lines) or "Nothing is refused."


def find_refused(
    model: Source,
    placement: PlacementLike,
    *,
    fallback: str | None = None,
    timeout_s: float = 120.0,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Refusals:
    """Find the ops that a device refuses to compile, by bisection in a worker process.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        The placement that the runtime refuses.
    fallback
        The device that takes the refused ops; by default one that supports all of them, CPU
        first.
    timeout_s
        A compile that takes longer counts as refused.
    progress
        Show the number of compiled placements, if the search takes more than two seconds.

    Returns
    -------
    Refusals
        Empty if the placement compiles. After Ctrl-C (:func:`hetero_lab.last_interrupted`), and
        after 20 of them, the refusals found until then, marked as ``interrupted``.

    Raises
    ------
    ModelError
        A language model: its shapes are dynamic.
    DeviceError
        A device that is not here.
    CompileError
        The fallback refuses too, or no other device can take the ops.

    Notes
    -----
    Minimal failing sets are found by bisection (QuickXplain, Junker 2004) and then tested op by op
    (delta debugging, Zeller and Hildebrandt 2002).

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> hl.find_refused(model, "HETERO:ACC,CPU", progress=False).fix
    {}
    """
    bound = bind(model, core)
    refuse_language_model(bound.model, "find_refused")
    subject = resolve(bound, placement)
    if fallback is not None:
        check_device(fallback, subject.core)
    affinity, refusals, error = subject.affinity, list[Refusal](), ""
    arrays = input_arrays(bound, None)
    with (
        Progress("find refused ops", show=progress) as bar,
        PlacedRuns(subject, arrays, "CPU", isolate=True, timeout_s=timeout_s) as runs,
        UntilInterrupted(lambda: refusals) as until,
    ):

        @functools.cache
        def refuses(affinity: Affinity) -> str:
            try:
                runs.run(replace(subject.placement, affinity=affinity, direct=False))
            except CompileError as refusal:
                return str(refusal)
            finally:
                bar.note(f"{runs.n_compiles} compiles")
            return ""

        while (error := refuses(affinity)) and len(refusals) < _MOST_REFUSALS:
            refusal = smallest_ops(bound, affinity, refuses, fallback)
            if refusal is None:
                raise CompileError(
                    f"The placement is refused ({shorten(error, 300)}), and no op of it could be "
                    "moved to a device that takes it. Name one with fallback=."
                )
            refusals.append(refusal)
            affinity = affinity.fix(ops=refusal.fix, core=bound.core)
    fix = {op: each.target for each in refusals for op in each.ops}
    return Refusals(tuple(refusals), fix, affinity, until.interrupted or bool(error))


def smallest_ops(
    bound: BoundModel,
    affinity: Affinity,
    shows: Callable[[Affinity], str],
    fallback: str | None,
) -> Refusal | None:
    """Find the fewest ops on one device that show a fault while the others run elsewhere.

    ``shows`` returns the evidence for an affinity, or nothing. The other ops run on ``fallback``,
    by default a device that supports them. The answer is ``None`` if no device shows it alone.
    """
    leader = {node.name: node.leader for node in affinity.nodes}
    for device in affinity.devices:
        ops = [op for op in affinity.ops if affinity[op] == device and leader[op] == op]
        target = fallback or _fallback(bound, ops, device)
        if target is None or target == device:
            continue
        elsewhere = affinity.fix(ops=dict.fromkeys(affinity.ops, target), core=bound.core)

        @functools.cache
        def evidence(some: tuple[str, ...], base: Affinity = elsewhere, home: str = device) -> str:
            return shows(base.fix(ops=dict.fromkeys(some, home), core=bound.core))

        if evidence(()) or not evidence(tuple(ops)):
            continue
        # Most faults lie within one subgraph.
        subgraphs = [s.ops for s in predict(bound.graph, affinity).subgraphs if s.device == device]
        parts = ([op for op in inside if leader[op] == op] for inside in subgraphs)
        smallest = next(disjoint_sets(ops, lambda some: bool(evidence(tuple(some))), parts))
        members = tuple(op for op in affinity.ops if leader[op] in smallest)
        return Refusal(device, members, evidence(tuple(smallest)), target)
    return None


def _fallback(bound: BoundModel, ops: Sequence[str], device: str) -> str | None:
    """Return a device that supports some ops, CPU first."""
    others = [name for name in device_names(bound.core) if name != device]
    for other in sorted(others, key=lambda name: name != "CPU"):
        with contextlib.suppress(DeviceError):
            if set(ops) <= supported_ops(bound, other):
                return other
    return None
