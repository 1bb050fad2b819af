"""The fewest ops on a device that show a fault while all others run elsewhere."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hetero_lab.debug.minimal_sets import disjoint_sets
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
from hetero_lab.runtime.inputs import given_or_generated

if TYPE_CHECKING:
    import openvino as ov

_MOST_REFUSALS = 20  # each takes a dozen compiles; a device that refuses more is no candidate


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
    the search was ``interrupted``: then more ops may be refused.
    """

    refusals: tuple[Refusal, ...]
    fix: Mapping[str, str]
    affinity: Affinity
    interrupted: bool = False

    def __bool__(self) -> bool:
        return bool(self.refusals)

    def __str__(self) -> str:
        if not self.refusals:
            return "Nothing is refused."
        more = ["Interrupted: more may be refused."] if self.interrupted else []
        return "\n".join([*map(str, self.refusals), f"fix(ops={dict(self.fix)!r})", *more])


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
        Empty if the placement compiles. After Ctrl-C (:func:`hetero_lab.last_interrupted`): the
        refusals found until then.

    Raises
    ------
    ModelError
        A language model: its shapes are dynamic.
    DeviceError
        No other device can take the ops.
    CompileError
        The fallback refuses too.

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
    given = resolve(bound, placement)
    if fallback is not None:
        check_device(fallback, given.core)
    affinity = given.affinity
    refusals: list[Refusal] = []
    arrays = given_or_generated(bound, None)
    with (
        Progress("find refused ops", show=progress) as bar,
        PlacedRuns(given, arrays, "CPU", isolate=True, timeout_s=timeout_s) as runs,
        UntilInterrupted(lambda: refusals) as until,
    ):

        @functools.cache
        def refuses(affinity: Affinity) -> str:
            try:
                runs.run(replace(given.placement, affinity=affinity, direct=False))
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
    fix = {op: device for each in refusals for op, device in each.fix.items()}
    return Refusals(tuple(refusals), fix, affinity, until.interrupted)


def smallest_ops(
    bound: BoundModel,
    affinity: Affinity,
    shows: Callable[[Affinity], str],
    fallback: str | None = None,
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
        moved = tuple(op for op in affinity.ops if leader[op] in smallest)
        return Refusal(device, moved, evidence(tuple(smallest)), target)
    return None


def _fallback(bound: BoundModel, ops: Sequence[str], device: str) -> str | None:
    """Return a device that supports some ops, CPU first."""
    others = [name for name in device_names(bound.core) if name != device]
    for other in sorted(others, key=lambda name: name != "CPU"):
        with contextlib.suppress(DeviceError):
            if set(ops) <= supported_ops(bound, other):
                return other
    return None
