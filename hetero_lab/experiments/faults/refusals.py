"""Find the ops that a device refuses although it claims each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.backend.devices import check_device, device_names, supported_ops
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import CompileError, DeviceError, names_at_hand, shorten
from hetero_lab.experiments.faults.wrong_sets import minimal_set
from hetero_lab.experiments.measure.records import Trial
from hetero_lab.experiments.measure.workers.process import LastingWorker, WorkerError
from hetero_lab.experiments.measure.workers.requests import Compile, SetUp
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.read import Source, save
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.progress import Progress
from hetero_lab.tables import scratch_directory

if TYPE_CHECKING:
    import openvino as ov

_MOST_REFUSALS = 20


@dataclass(frozen=True)
class Refusal:
    """Ops that a device refuses together, and its message.

    ``ops`` is minimal: without any one of them the rest compiles.
    """

    device: str
    ops: tuple[str, ...]
    error: str

    def __str__(self) -> str:
        return f"{self.device} refuses {names_at_hand(self.ops)}: {self.error}"


@dataclass(frozen=True)
class Refusals:
    """All refusals of a placement, and the affinity without them.

    ``fix`` is ready for ``affinity.fix(ops=…)``; ``affinity`` has it applied and compiles, unless
    the search was ``interrupted``: then more may be refused.
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
    """Bisect, in a worker process, which ops a device refuses to compile.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        The placement that the runtime refuses.
    fallback
        The device that takes the refused ops; ``None`` takes one that supports all of them,
        CPU first.
    timeout_s
        A compile that takes longer counts as refused.
    progress
        Show how many placements were compiled, if it takes more than two seconds.

    Returns
    -------
    Refusals
        Empty if the placement compiles. After Ctrl-C (:func:`hetero_lab.last_interrupted`): what
        was found until then.

    Raises
    ------
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
    placed = resolve(bind(model, core), placement)
    if fallback is not None:
        check_device(fallback, placed.core)
    current = placed.affinity
    found: list[Refusal] = []
    fixes: dict[str, str] = {}
    with (
        scratch_directory() as directory,
        Progress("find refused ops", show=progress) as bar,
        _Prober(placed, directory / "model.xml", timeout_s, bar) as prober,
        UntilInterrupted(lambda: found) as until,
    ):
        while (error := prober.refuses(current)) and len(found) < _MOST_REFUSALS:
            refusal, target = _one(placed.bound, current, prober, fallback, error)
            found.append(refusal)
            fixes.update(dict.fromkeys(refusal.ops, target))
            current = current.fix(ops=dict.fromkeys(refusal.ops, target), core=placed.core)
    return Refusals(tuple(found), fixes, current, until.interrupted)


class _Prober:
    """Asks a worker whether it compiles an affinity."""

    def __init__(self, placed: BoundPlacement, path: Path, timeout_s: float, progress: Progress):
        save(placed.bound.model, path)
        emulated = [spec.to_json() for spec in emulated_devices(placed.core).values()]
        self._ops = tuple(op.name for op in placed.graph)
        self._worker = LastingWorker(
            SetUp(models={"model": str(path)}, ops={"model": self._ops}, emulated=emulated)
        )
        self._properties = {
            **{d: dict(p) for d, p in placed.placement.device_properties.items()},
            **placed.properties,
        }
        self._timeout_s = timeout_s
        self._progress = progress
        self._known: dict[Affinity, str] = {}

    def __enter__(self) -> _Prober:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.kill()

    def refuses(self, affinity: Affinity) -> str:
        """Return the runtime's message against an affinity, or an empty string."""
        if affinity not in self._known:
            self._known[affinity] = self._probe(affinity)
            self._progress.note(f"{len(self._known)} compiles")
        return self._known[affinity]

    def _probe(self, affinity: Affinity) -> str:
        trial = Trial(
            key="probe",
            label="probe",
            variant="model",
            affinity=tuple(affinity[op] for op in self._ops),
            devices=tuple(affinity.devices),
            device_properties={d: p for d, p in self._properties.items() if d in affinity.devices},
        )
        try:
            self._worker.ask(Compile(trial=trial), timeout_s=self._timeout_s)
        except WorkerError as error:
            return str(error)
        return ""


def _one(
    bound: BoundModel,
    affinity: Affinity,
    prober: _Prober,
    fallback: str | None,
    error: str,
) -> tuple[Refusal, str]:
    """Find one minimal set of ops that some device refuses."""
    leaders = {node.name for node in affinity.nodes if node.leader == node.name}
    for device in affinity.devices:
        ops = [op for op in affinity.ops if affinity[op] == device and op in leaders]
        target = fallback or _fallback(bound, ops, device)
        if target is None or target == device:
            continue
        background = affinity.fix(ops=dict.fromkeys(affinity.ops, target), core=bound.core)
        if prober.refuses(background):
            continue

        def fails(
            chosen: Sequence[str], background: Affinity = background, device: str = device
        ) -> bool:
            probe = background.fix(ops=dict.fromkeys(chosen, device), core=bound.core)
            return bool(chosen) and bool(prober.refuses(probe))

        if not fails(ops):
            continue
        # Most refusals lie within one subgraph; that is far less to search.
        for subgraph in predict(bound.graph, affinity).subgraphs:
            inside = [op for op in subgraph.ops if op in leaders]
            if subgraph.device == device and fails(inside):
                ops = inside
                break
        minimal = minimal_set(ops, fails)
        reason = prober.refuses(background.fix(ops=dict.fromkeys(minimal, device), core=bound.core))
        return Refusal(device, tuple(minimal), reason), target
    raise CompileError(
        f"The placement is refused ({shorten(error, 300)}), and no op of it could be moved to a "
        "device that takes it. Name one with fallback=."
    )


def _fallback(bound: BoundModel, ops: Sequence[str], device: str) -> str | None:
    here = [d for d in device_names(bound.core) if d != device]
    for other in sorted(here, key=lambda name: name != "CPU"):
        try:
            if set(ops) <= supported_ops(bound, other):
                return other
        except DeviceError:
            continue
    return None
