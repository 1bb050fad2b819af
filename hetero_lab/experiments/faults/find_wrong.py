"""Find the ops of a placement that compute wrong numbers, and the cheapest way around them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.bound import bind
from hetero_lab.backend.emulation import emulated_devices, plugin_of
from hetero_lab.errors import (
    ArgumentError,
    CompileError,
    DeviceError,
    HeteroLabError,
    MeasurementError,
    PlanError,
    names_at_hand,
)
from hetero_lab.experiments.environment import current_environment
from hetero_lab.experiments.faults.minimal_set import hitting_sets, minimal_set
from hetero_lab.experiments.faults.placed_runs import PlacedRuns
from hetero_lab.experiments.faults.ways_around import price_without_costs, widened
from hetero_lab.experiments.faults.wrong import Kind, OpError, Wrong, WrongSet, doubt
from hetero_lab.model.language import refuse_language_model
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import Placement, PlacementLike, resolve
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.planner import plan_graph
from hetero_lab.progress import Progress
from hetero_lab.runtime.inputs import Inputs, given_or_generated
from hetero_lab.runtime.pieces import TensorKey, cut_pieces, outgoing
from hetero_lab.runtime.reference import (
    TOLERANCE,
    asked_precision,
    quantised_ops,
    reference_device,
    reference_outputs,
)
from hetero_lab.runtime.rounding import Rounding, distance, size
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.runtime.transparent import TransparentModel

if TYPE_CHECKING:
    import openvino as ov

# Share of the tolerance from which on what a set does to the outputs counts as its fault.
_SHARE = 0.3
_RANDOM_TYPES = frozenset({"RandomUniform", "Multinomial", "RandomPoisson"})
_WINDOW = 16  # ops
_MOST_ROUNDS = 4
_MOST_WAYS_OUT = 8  # that are run
_MOST_CHOICES = 256  # that are priced
_MOST_OVERLAPS = 64  # runs that look for sets that share ops with known ones
_MOST_WIDENED = 10  # one in so many ops may move along, where nothing is known of their times
_PLAN_S = 5.0
_F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def find_wrong(
    model: Source,
    placement: PlacementLike,
    inputs: Inputs | None = None,
    tolerance: float | None = None,
    budget_s: float | None = 120.0,
    *,
    costs: CostModel | None = None,
    isolate: bool = False,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Wrong:
    """Find the ops that are to blame for wrong outputs, and a placement without the fault.

    The outputs are compared with those of a single real device in f32, the trusted one. If they
    differ, every op is run by itself on its device with the inputs that it has in the
    reference, all of them in one compile. Where that does not explain the outputs, ops are wrong
    only together, because the device fuses them: sets of ops are run in the same way until none
    can be left out of them. Rounding is told from faults by moving what the ops read and make
    by the rounding error of the executed precision, in the reference.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        The placement in question.
    inputs
        One set of inputs; generated if left out. Inputs that show the fault.
    tolerance
        The relative error (Euclidean norm) up to which an output is right. Left out, it is 0.001
        for f32, 0.02 for f16 and 0.15 for bf16, and more where the model amplifies rounding.
    budget_s
        Wall time of the search, overrun by about one compile at most. What is known then is
        returned.
    costs
        Prices the ways around the fault, of :func:`hetero_lab.calibrate`; ops beside the faulty
        ones may then move as well. Without it, one op of each set moves: the choice with the
        fewest subgraphs, then bytes at their boundaries, then moved ops, of those that are right.
    isolate
        Let the placement's devices work in a process of their own. The search then survives a
        device that crashes or hangs, and names the ops that make it. A device hangs that takes
        longer than a quarter of what the budget has left, and than four times what it took so
        far.
    progress
        Show how many models were compiled, if it takes more than two seconds.

    Returns
    -------
    Wrong
        After Ctrl-C (:func:`hetero_lab.last_interrupted`): what was found until then.

    Raises
    ------
    DeviceError
        No single real device supports the whole model, so there is no reference.
    ArgumentError
        The placement is a virtual device, such as ``AUTO:GPU,CPU``.
    PlanError
        The costs are of another model, or do not know the trusted device.
    MeasurementError
        The reference has no output that is a number.

    Notes
    -----
    Minimal sets are those of delta debugging (Zeller and Hildebrandt 2002), found by bisection
    (Junker 2004). Rounding is estimated by Monte Carlo arithmetic (Parker 1997).

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC")
    >>> wrong = hl.find_wrong("digits_inception", "HETERO:ACC,CPU", progress=False)
    >>> wrong.kind in ("none", "rounding"), wrong.fix
    (True, {})
    """
    watch = Stopwatch.start(budget_s)
    if tolerance is not None and not tolerance > 0:
        raise ArgumentError(
            f"tolerance= is a relative error above 0, for instance 0.001, not {tolerance!r}."
        )
    bound = bind(model, core)
    refuse_language_model(bound.model, "find_wrong")
    placed = resolve(bound, placement)
    virtual = placed.placement.virtual
    if virtual is not None:
        raise ArgumentError(
            f"{virtual} chooses a device for the whole model as it runs. Search on each of its "
            f"devices by itself: {', '.join(placed.devices)}."
        )
    if costs is not None:
        costs.check_graph(placed.graph)
    arrays = given_or_generated(placed.bound, inputs)
    try:
        trusted = reference_device(placed.bound)
    except DeviceError as error:
        raise DeviceError(
            "No single real device here supports the whole model, so there is no reference that "
            "could tell what is wrong."
        ) from error
    if costs is not None:
        costs.check_devices([*placed.devices, trusted])
    with PlacedRuns(placed, arrays, trusted, watch=watch, isolate=isolate) as runs:
        return search_wrong(runs, watch, tolerance=tolerance, costs=costs, progress=progress)


def search_wrong(
    runs: PlacedRuns,
    watch: Stopwatch,
    *,
    tolerance: float | None = None,
    costs: CostModel | None = None,
    progress: bool = False,
) -> Wrong:
    """Search with arguments that are checked already."""
    with Progress("find_wrong", show=progress, budget_s=watch.budget_s) as bar:
        return _FaultSearch(runs, watch, tolerance, costs, bar).run()


class _BudgetOverError(Exception):
    """The search stops here, with what it knows."""


@dataclass(frozen=True)
class _SetResult:
    """What a set of ops did with the reference's inputs.

    ``error`` is the largest relative error of a tensor that it makes, ``damage`` that of the
    model's outputs if nothing else were wrong. ``wrong`` if both are more than rounding.
    ``refusal`` is what the device said if it did not run the set.
    """

    wrong: bool
    error: float
    damage: float
    refusal: str = ""


@dataclass(frozen=True)
class _WrongOps:
    """Ops that are wrong together, on a device.

    ``untried`` are those without which the others could not be run.
    """

    device: str
    ops: tuple[str, ...]
    trial: _SetResult
    minimal: bool
    untried: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Way:
    """A placement around the fault: how far its outputs are off, NaN if it was not run."""

    placement: Placement
    after: float
    right: bool


class _FaultSearch:
    def __init__(
        self,
        runs: PlacedRuns,
        watch: Stopwatch,
        tolerance: float | None,
        costs: CostModel | None,
        bar: Progress,
    ):
        self.runs, self.watch, self.tolerance, self.costs, self.bar = (
            runs,
            watch,
            tolerance,
            costs,
            bar,
        )
        self.graph, self.given = runs.bound.graph, runs.given.placement
        self.placeable = frozenset(self.graph.ops[i].name for i in self.graph.placeable)
        # Ops of a stateful path go together.
        self.members: dict[str, list[str]] = {}
        for node in self.given.affinity.nodes:
            if node.name in self.placeable:
                self.members.setdefault(node.leader, []).append(node.name)
        self.output_keys: list[TensorKey] = [
            (self.graph.ops[producer].name, port)
            for producer, port in (self.graph.ops[i].inputs[0] for i in self.graph.results)
        ]
        # Op → the precision that it is executed in; ops that cannot be searched leave the first.
        self.suspects: dict[str, str] = {}
        self.executed: dict[str, str] = {}
        self.thresholds: dict[TensorKey, float] = {}
        self._transparent: TransparentModel | None = None  # until the reference is looked into
        self.found: list[_WrongOps] = []
        self.notes: list[str] = []
        self.precisions: dict[str, str] = {}
        self.trials: dict[tuple[str, frozenset[str]], _SetResult] = {}
        self.isolated: dict[str, _SetResult] = {}
        self.random: frozenset[str] = frozenset()
        self.changing: frozenset[str] = frozenset()  # ops that make other numbers in each run
        self.subgraphs: list[tuple[str, list[str]]] = []  # wrong ones: device, ops without singles
        self.interrupted = False
        self.refused = ""  # what the runtime says against the given placement
        self.before = float("nan")  # until the outputs were compared
        self.right: bool | None = None  # whether rounding explains them, once that is known
        self.proven = False  # whether nothing else could explain them
        self.values: Mapping[TensorKey, np.ndarray] = {}  # of the reference
        self.ways: dict[Affinity, _Way] = {}  # that were run
        self.way: _Way | None = None  # the one that was chosen last
        # The reference, and what the trusted device computed when it fused ops.
        self.reference: list[np.ndarray] = []
        self.trusted_outputs: list[np.ndarray] = []

    def run(self) -> Wrong:
        """Search, and bring together what was found."""
        complete = True
        try:
            outputs = self._run_given()
            if self._compare(outputs):
                return self._result("none", self.given, proven=True, after=self.before)
            self._look_inside(outputs)
            self._search()
        except (_BudgetOverError, KeyboardInterrupt) as error:
            complete, self.interrupted = False, isinstance(error, KeyboardInterrupt)
            if self.interrupted and not self.reference:
                raise  # nothing is known yet
            self._keep_unshrunk()
        return self._answer(complete)

    def _compare(self, outputs: Sequence[np.ndarray]) -> bool:
        """Compare the outputs with the reference's; return whether nothing is wrong."""
        asked = {d: asked_precision([self._hint(d)]) for d in self.given.affinity.devices}
        in_8_bits = quantised_ops(self.graph)
        used = {
            op: "i8" if op in in_8_bits else asked[self.given.affinity[op]] for op in self.placeable
        }
        self.precisions = dict(asked)
        for op in in_8_bits & self.placeable:
            self.precisions[self.given.affinity[op]] = "i8"
        self.suspects = {
            op: precision
            for op, precision in used.items()
            if self.given.affinity[op] != self.runs.trusted
            or self.precisions[self.runs.trusted] != "f32"
        }
        self.executed = dict(self.suspects)
        self.thresholds = self._thresholds()
        self.changing = self._with_all_after(
            op.name for op in self.graph if op.type in _RANDOM_TYPES
        )
        self._check_budget()
        named = reference_outputs(self.runs.bound, self.runs.arrays)
        self.reference = self.trusted_outputs = list(named.values())
        self._check_numbers(list(named))
        if not self.refused:
            self.before = self._error(outputs)
        return self.before <= self._equal and not self.changing

    def _look_inside(self, outputs: Sequence[np.ndarray]) -> None:
        """Get every tensor of the reference, and find out whether rounding explains the error."""
        self._check_budget()
        self._look_through({})
        self._check_reference()
        if not self.refused:
            self.before = self._error(outputs)
        self.right = not self.refused and not self._is_wrong(outputs, self.given)
        self.proven = self.right and not self.random and self._is_right(outputs, self.given)
        whole = partition_of(self.runs.given).n_subgraphs == 1
        if whole and not self.refused and len(self.suspects) == len(self.placeable):
            made = dict(zip(self.output_keys, outputs, strict=True))
            everything = frozenset(self.suspects)
            (device,) = self.given.affinity.devices
            self.trials[device, everything] = self._judged(everything, made)

    @property
    def transparent(self) -> TransparentModel:
        """The reference with every tensor in sight."""
        assert self._transparent is not None
        return self._transparent

    def _look_through(self, fixed: Mapping[TensorKey, np.ndarray]) -> None:
        """Get every tensor of the reference; some of them are given."""
        self._transparent = self.runs.transparent(fixed)
        self.transparent.before_run = self._check_budget
        self.values = self.transparent.values

    def _search(self) -> None:
        placement = self.given
        for _ in range(_MOST_ROUNDS):
            n_known = len(self.found)
            self._find_in(placement)
            if len(self.found) == n_known or (self.random and self.right):
                break  # without an output to compare, no way around could be judged
            way = self._way_out()
            if way.right:
                break
            placement = way.placement
        n_known = len(self.found)
        for device, leaders in self.subgraphs:
            self._find_overlapping(device, leaders)
        if len(self.found) > n_known and self.way is not None:
            self._way_out()

    def _answer(self, complete: bool) -> Wrong:
        """Return what is known, with the way out that is."""
        judged = not self.random or (complete and not self._unrun())
        if not self.found and self.right and judged:
            return self._result(
                "rounding",
                self.given,
                proven=self.proven,
                after=self.before,
                complete=complete,
            )
        kind: Kind = "combination"
        if self.found and all(len(found.ops) == 1 for found in self.found):
            kind = "op"
        elif not self.found and not complete and self.right is not False:
            kind = "not known"
        way = self._best_way()
        return self._result(
            kind,
            way.placement,
            proven=way.right,
            after=way.after,
            complete=complete,
        )

    def _run_given(self) -> list[np.ndarray]:
        self.bar.note(f"{self.runs.n_compiles} compiles")
        try:
            return self.runs.placed(self.given)[0]
        except CompileError as error:
            self.refused, self.right, self.before = str(error), False, float("inf")
            self.notes.append(
                f"The placement does not run: {error}. What is refused counts as wrong."
            )
            return []

    def _hint(self, device: str) -> object:
        own = self.runs.given.properties[device]
        return own.get("INFERENCE_PRECISION_HINT", self.runs.hints.get(device))

    # What the outputs are worth.

    @property
    def _equal(self) -> float:
        return TOLERANCE["f32"] if self.tolerance is None else self.tolerance

    def _thresholds(self) -> dict[TensorKey, float]:
        """Return the relative error from which on an output is not taken for rounding at sight."""
        if self.tolerance is not None:
            return dict.fromkeys(self.output_keys, self.tolerance)
        coarsest: dict[str, float] = {}  # of all that an op depends on
        for op in self.graph:
            own = TOLERANCE[self.executed.get(op.name, "f32")]
            read = (coarsest[self.graph.ops[producer].name] for producer, _ in op.inputs)
            coarsest[op.name] = max([own, *read])
        return {key: coarsest[key[0]] for key in self.output_keys}

    def _error(self, outputs: Sequence[np.ndarray]) -> float:
        """Return the largest relative error of an output; NaN if none can be compared."""
        return max((error for *_, error in self._compared(outputs)), default=float("nan"))

    def _compared(
        self, outputs: Sequence[np.ndarray]
    ) -> list[tuple[TensorKey, np.ndarray, np.ndarray, float]]:
        """Return each output that is not random: itself, what it should be, and its error."""
        if not self.reference:
            return []  # the search ended before it was made
        return [
            (key, output, expected, _relative(distance(output, expected), expected))
            for key, output, expected in zip(self.output_keys, outputs, self.reference, strict=True)
            if key[0] not in self.changing
        ]

    def _is_wrong(self, outputs: Sequence[np.ndarray], placement: Placement) -> bool:
        """Whether some output is off by more than rounding explains."""
        return any(
            known is None or not known.explains(output, expected)
            for output, expected, known in self._off(outputs, placement)
        )

    def _is_right(self, outputs: Sequence[np.ndarray], placement: Placement) -> bool:
        """Whether rounding explains all, and no output is lost with a number out of range."""
        return not any(
            known is None or known.lost.any() or not known.explains(output, expected)
            for output, expected, known in self._off(outputs, placement)
        )

    def _off(
        self, outputs: Sequence[np.ndarray], placement: Placement
    ) -> list[tuple[np.ndarray, np.ndarray, Rounding | None]]:
        """Return the outputs that need an explanation, with what rounding can do to them."""
        off = [
            (key, output, expected)
            for key, output, expected, error in self._compared(outputs)
            if error > self.thresholds[key]
        ]
        if not off:
            return []
        seen = {key: output for key, output, _ in off if key in self.transparent.values}
        kept = self._kept_in(placement, self.executed)
        rounding = self.transparent.rounding(kept, set(seen), seen)
        return [(output, expected, rounding.get(key)) for key, output, expected in off]

    def _kept_in(self, placement: Placement, ops: Mapping[str, str]) -> dict[str, str]:
        """Return those of some ops that a placement leaves where they were."""
        affinity, before = placement.affinity, self.given.affinity
        return {op: p for op, p in ops.items() if affinity[op] == before[op]}

    # The reference.

    def _check_numbers(self, names: Sequence[str]) -> None:
        """Say which outputs are not numbers in the reference; raise where none has a number."""
        nan = [name for name, o in zip(names, self.reference, strict=True) if _has_nan(o)]
        if nan and not any(np.isfinite(o).any() for o in self.reference if o.dtype.kind in "fiub"):
            raise MeasurementError(
                f"On {self.runs.trusted} in f32, no output has a number that could be compared: "
                f"{names_at_hand(nan)}. Give inputs= for which the model computes some."
            )
        if nan:
            self.notes.append(
                f"The reference itself produces NaN in output {names_at_hand(nan)}; a NaN there "
                "in the placement counts as correct."
            )

    def _check_reference(self) -> None:
        values = self.transparent.values
        again = self.transparent.run({})
        self.changing |= self._with_all_after(
            key[0] for key, value in values.items() if distance(again[key], value) > 0
        )
        # Where it begins: these change although all that they read stays the same.
        first = {
            op.name
            for op in self.graph
            if op.name in self.changing
            and not any(self.graph.ops[producer].name in self.changing for producer, _ in op.inputs)
        }
        n = sum(key[0] in self.changing for key in self.output_keys)
        of = "its outputs" if n == len(self.output_keys) else f"{n} of its outputs"
        self.random = self._leave_out(
            first,
            f"The model is random by itself ({{}}), so {of} cannot be compared; those ops were "
            "left out, and all others were run with the numbers that they made in the reference.",
        )
        if first:
            self._check_budget()
            self._look_through({key: value for key, value in values.items() if key[0] in first})
            values = self.transparent.values
        nan = {key for key, value in values.items() if _has_nan(value)}
        self._leave_out(
            {
                op.name
                for op in self.graph
                if any((self.graph.ops[producer].name, port) in nan for producer, port in op.inputs)
            },
            "{} read what is not a number in the reference already, so what they make of it tells "
            "nothing; they were left out.",
        )
        unfused = [None if key[0] in self.changing else values.get(key) for key in self.output_keys]
        apart = [
            name
            for name, fused, plain in zip(range(len(unfused)), self.reference, unfused, strict=True)
            if plain is not None and _relative(distance(fused, plain), plain) > self._equal
        ]
        if apart:
            self.notes.append(
                f"{self.runs.trusted} itself computes other numbers for output "
                f"{', '.join(map(str, apart))} when nothing is fused; those are the reference here."
            )
            self.reference = [
                fused if plain is None else plain.astype(fused.dtype)
                for fused, plain in zip(self.reference, unfused, strict=True)
            ]

    def _with_all_after(self, ops: Iterable[str]) -> frozenset[str]:
        """Return some ops and all that depend on them."""
        after = set(ops)
        for op in self.graph:
            if any(self.graph.ops[producer].name in after for producer, _ in op.inputs):
                after.add(op.name)
        return frozenset(after)

    def _leave_out(self, ops: Collection[str], why: str) -> frozenset[str]:
        """Take ops out of the search, with those that cannot be apart from them, and say so."""
        leaders = {self.graph.ops[self.graph.leader[self.graph.index_of[op]]].name for op in ops}
        out = frozenset(m for leader in leaders for m in self.members.get(leader, ()))
        if out:
            self.notes.append(why.format(names_at_hand(self._ordered(out))))
            self.suspects = {op: p for op, p in self.suspects.items() if op not in out}
        return out

    # Trials of sets of ops.

    def _check_budget(self) -> None:
        if self.watch.is_over:
            raise _BudgetOverError
        self.bar.note(f"{self.runs.n_compiles} compiles")

    def _run(self, device: str, sets: Sequence[frozenset[str]]) -> list[_SetResult]:
        """Run disjoint sets in one compile; in several where the device refuses them together."""
        self._check_budget()
        try:
            made = self.runs.pieces(device, sets, self.transparent.values)
        except CompileError as error:
            self._check_budget()  # it may only have been too slow for what was left of it
            if len(sets) > 1:
                half = len(sets) // 2
                return [*self._run(device, sets[:half]), *self._run(device, sets[half:])]
            if self.refused:
                trial = _SetResult(True, float("inf"), float("inf"), str(error))
            else:
                self.notes.append(
                    f"{device} refuses to run {names_at_hand(self._ordered(sets[0]))} apart from "
                    f"the rest, so that could not be tested: {error}"
                )
                trial = _SetResult(False, float("nan"), float("nan"), str(error))
            self.trials[device, sets[0]] = trial
            return [trial]
        by_set: list[dict[TensorKey, np.ndarray]] = [{} for _ in sets]
        for index, key, value in made:
            by_set[index][key] = value
        for ops, values in zip(sets, by_set, strict=True):
            self.trials[device, ops] = self._judged(ops, values)
        return [self.trials[device, ops] for ops in sets]

    def _judged(self, ops: frozenset[str], made: Mapping[TensorKey, np.ndarray]) -> _SetResult:
        values = self.transparent.values
        far = {key: distance(value, values[key]) for key, value in made.items() if key in values}
        error = max((_relative(d, values[key]) for key, d in far.items()), default=0.0)
        if error <= _UNSEEN:
            return _SetResult(False, error, error)
        damages = self._damages({key: made[key] for key, d in far.items() if d > 0})
        damage = max(damages.values(), default=0.0)
        if all(d <= _SHARE * self.thresholds[key] for key, d in damages.items()):
            return _SetResult(False, error, damage)
        seen = {key: made[key] for key in far}
        rounding = self.transparent.rounding({op: self.suspects[op] for op in ops}, set(seen), seen)
        unexplained = (not r.explains(made[key], values[key]) for key, r in rounding.items())
        return _SetResult(any(unexplained), error, damage)

    def _damages(self, made: Mapping[TensorKey, np.ndarray]) -> dict[TensorKey, float]:
        """Return the relative error of each output if these tensors were as they are here."""
        values, offsets = self.transparent.values, {}
        # What cannot be carried on, such as another shape, counts as bad.
        bad = dict.fromkeys(self.output_keys, float("inf"))
        for key, value in made.items():
            if not self.transparent.takes_offset(key) or value.shape != values[key].shape:
                return bad
            offsets[key] = _offset(value, values[key])
        try:
            reached = self.transparent.run(offsets, set(self.output_keys))
        except RuntimeError:
            return bad
        return {
            key: _relative(distance(value, values[key]), values[key])
            for key, value in reached.items()
        }

    def _trial(self, device: str, leaders: Iterable[str]) -> _SetResult:
        ops = frozenset(member for leader in leaders for member in self.members[leader])
        if (device, ops) not in self.trials:
            self._run(device, [ops])
        return self.trials[device, ops]

    def _unrun(self) -> set[str]:
        """Return the suspects that were not run by themselves."""
        ran = {leader for leader, trial in self.isolated.items() if not trial.refusal}
        return set(self.suspects) - {op for leader in ran for op in self.members[leader]}

    def _ordered(self, ops: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(ops, key=self.graph.index_of.__getitem__))

    # The search.

    def _could_all_run(self) -> bool:
        untested = any(trial.refusal and not trial.wrong for trial in self.trials.values())
        return not untested and not self._unrun()

    def _keep(self, found: _WrongOps) -> None:
        known = {(each.device, each.ops) for each in self.found}
        if (found.device, found.ops) not in known:
            self.found.append(found)

    def _keep_unshrunk(self) -> None:
        """Keep the smallest sets that were wrong and hold nothing of what is known already.

        Only of ops that were run one by one before: that the whole is wrong is nothing new.
        """
        taken = {op for found in self.found for op in found.ops}
        alone = {op for leader in self.isolated for op in self.members[leader]}
        for (device, ops), trial in sorted(self.trials.items(), key=lambda known: len(known[0][1])):
            single = sum(op in self.members for op in ops) == 1
            if trial.wrong and (single or ops <= alone) and taken.isdisjoint(ops):
                self._keep(_WrongOps(device, self._ordered(ops), trial, minimal=single))
                taken |= ops

    def _find_in(self, placement: Placement) -> None:
        """Keep the sets of ops that are wrong in a placement, as far as they are not known."""
        suspects = self._kept_in(placement, self.suspects)
        roots: dict[str, list[frozenset[str]]] = {}
        for subgraph in partition_of(self.runs.bind(placement)).subgraphs:
            ops = frozenset(op for op in subgraph.ops if op in suspects)
            if ops:
                roots.setdefault(subgraph.device, []).append(ops)
        self._run_isolated(suspects)
        alone: set[str] = set()
        for leader, trial in self.isolated.items():
            if trial.wrong and leader in suspects:
                alone.update(self.members[leader])
        for device, sets in roots.items():
            rests = [ops - alone for ops in sets]
            asked = [ops for ops in rests if ops and (device, ops) not in self.trials]
            if asked:
                self._run(device, asked)
            for rest in rests:
                self._find_combinations(device, rest)

    def _run_isolated(self, suspects: Collection[str]) -> None:
        """Run each op by itself, and keep those that are wrong."""
        by_device: dict[str, list[str]] = {}
        for leader, members in self.members.items():
            if leader not in self.isolated and all(op in suspects for op in members):
                by_device.setdefault(self.given.affinity[leader], []).append(leader)
        for device, leaders in by_device.items():
            sets = [frozenset(self.members[leader]) for leader in leaders]
            trials = self._run(device, sets)
            self.isolated.update(zip(leaders, trials, strict=True))
            for ops, trial in zip(sets, trials, strict=True):
                if trial.wrong:
                    self._keep(_WrongOps(device, self._ordered(ops), trial, minimal=True))

    def _find_combinations(self, device: str, ops: frozenset[str]) -> None:
        """Keep minimal sets of a subgraph's ops that are wrong together."""
        leaders = [leader for leader in self.members if leader in ops]
        if not leaders or not self._trial(device, leaders).wrong:
            return
        self.subgraphs.append((device, leaders))
        taken: set[str] = set()
        # At last the whole: what is far apart can be wrong together, too.
        for part in [*self._wrong_windows(device, leaders), leaders]:
            left = [leader for leader in part if leader not in taken]
            while left and self._trial(device, left).wrong:
                chosen = minimal_set(
                    left, lambda some: self._trial(device, some).wrong, self._nearest
                )
                self._keep(self._shrunk(device, chosen))
                taken.update(chosen)
                left = [leader for leader in left if leader not in chosen]

    def _find_overlapping(self, device: str, leaders: list[str]) -> None:
        """Keep further minimal sets, which share ops with those that are known.

        Reiter's tree of hitting sets (1987): a set that was missed is wrong without at least one
        op of each known set, so all ways to leave out one op of each are run.
        """
        known = [
            frozenset(op for op in found.ops if op in self.members)
            for found in self.found
            if found.device == device and len(found.ops) > 1
        ]
        known = [ops for ops in known if ops <= set(leaders)]
        broken: list[frozenset[str]] = []  # leaving these out leaves nothing wrong
        for n_run, out in enumerate(hitting_sets(known, broken, self._check_budget)):
            if n_run == _MOST_OVERLAPS:
                self.notes.append(
                    "More combinations that share ops with those that were found may be wrong."
                )
                return
            left = [leader for leader in leaders if leader not in out]
            if not left or not self._trial(device, left).wrong:
                broken.append(out)
                continue
            chosen = minimal_set(left, lambda some: self._trial(device, some).wrong, self._nearest)
            self._keep(self._shrunk(device, chosen))
            known.append(frozenset(chosen))

    def _shrunk(self, device: str, chosen: Sequence[str]) -> _WrongOps:
        """Return a set that was shrunk, with the ops without which the rest could not be run."""
        rests = {
            leader: self._trial(device, [each for each in chosen if each != leader])
            for leader in chosen
            if len(chosen) > 1
        }
        untried = [
            member
            for leader, rest in rests.items()
            if rest.refusal and not rest.wrong
            for member in self.members[leader]
        ]
        return _WrongOps(
            device,
            self._ordered(member for leader in chosen for member in self.members[leader]),
            self._trial(device, chosen),
            minimal=not untried and not any(rest.wrong for rest in rests.values()),
            untried=self._ordered(untried),
        )

    def _wrong_windows(self, device: str, leaders: list[str]) -> list[list[str]]:
        """Return overlapping stretches of the model that are wrong, run side by side.

        What a device fuses is close together, so this mostly replaces a bisection of the whole
        model; it also sees what is small beside the rounding of the whole model.
        """
        wrong = []
        for offset in (0, _WINDOW // 2):
            starts = [0, *range(offset or _WINDOW, len(leaders), _WINDOW), len(leaders)]
            windows = [leaders[a:b] for a, b in itertools.pairwise(starts)]
            if len(windows) == 1:
                break
            sets = [frozenset(m for leader in w for m in self.members[leader]) for w in windows]
            for window, trial in zip(windows, self._run(device, sets), strict=True):
                if trial.wrong:
                    wrong.append(window)
        return wrong

    def _nearest(self, leader: str, others: Sequence[str]) -> list[str]:
        """Sort ops by their distance in the graph; among equals, the later ones first."""
        start = self.graph.index_of[leader]
        steps, queue = {start: 0}, [start]
        for index in queue:
            around = [use.index for use in self.graph.consumers[index]]
            around += [producer for producer, _ in self.graph.ops[index].inputs]
            for other in around:
                if other not in steps and self.graph.ops[other].name in self.placeable:
                    steps[other] = steps[index] + 1
                    queue.append(other)
        where = self.graph.index_of
        far = len(self.graph)
        return sorted(others, key=lambda op: (steps.get(where[op], far), -where[op]))

    # The way around.

    def _way_out(self) -> _Way:
        """Run the ways around the fault, the cheapest first; return the first that is right.

        Where none is, return the last, in which all that is known to be wrong has moved.
        """
        for affinity in self._ways_out():
            if affinity not in self.ways:
                self.ways[affinity] = self._run_way(self._mended(affinity))
            if self.ways[affinity].right:
                break
        self.way = self.ways[affinity]
        return self.way

    def _run_way(self, placement: Placement) -> _Way:
        self._check_budget()
        try:
            outputs, _ = self.runs.placed(placement)
        except HeteroLabError as error:
            self.notes.append(f"A way around the fault does not run: {error}")
            return _Way(placement, float("nan"), right=False)
        return _Way(placement, self._error(outputs), right=self._is_right(outputs, placement))

    def _best_way(self) -> _Way:
        """Return the way around that is right, or may be; in the end, all on the trusted device."""
        if self.way is not None and self.way.right:
            return self.way
        whole = self._moves_all()
        if self.found and whole not in self.ways:
            return _Way(self._mended(whole), float("nan"), right=False)
        if self.right is None or (self.random and self.right):
            return _Way(self.given, self.before, right=False)  # it may be right
        # This is what the reference was made with, so it was run.
        trusted = self.runs.trusted
        placement = Placement(
            Affinity.on_one(self.graph, trusted),
            f"{self.given.label} mended",
            {trusted: _F32},
            True,
        )
        compared = self._compared(self.trusted_outputs)
        right = all(error <= self.thresholds[key] for key, *_, error in compared)
        return _Way(placement, self._error(self.trusted_outputs), right=bool(compared) and right)

    def _ways_out(self) -> list[Affinity]:
        """Return affinities that break up every set, the cheapest first, and one that moves all."""
        whole = self._moves_all()
        options = [
            [[leader] for leader in found.ops if leader in self.members] for found in self.found
        ]
        n = 1
        for option in options:
            n *= len(option)
        if n > _MOST_CHOICES:
            return [whole]
        ways = {
            self._moved(itertools.chain.from_iterable(choice)): None
            for choice in itertools.product(*options)
        }
        ways.pop(whole, None)
        ranked = sorted(ways, key=self._price)[:_MOST_WAYS_OUT]
        ranked.append(whole)
        widened = self._widened(ranked[0])
        if widened is not None and self._price(widened) < self._price(ranked[0]):
            ranked.insert(0, widened)
        return ranked

    def _widened(self, affinity: Affinity) -> Affinity | None:
        """Return a cheaper affinity in which more moves than in this one, if one is known."""
        if self.costs is not None:
            return self._planned(affinity)
        n_suspects = len(self.suspects)
        most = self._n_moved(affinity) + n_suspects // _MOST_WIDENED
        return widened(
            self.graph, affinity, self.given.affinity, self.runs.trusted, most, self.runs.core
        )

    def _planned(self, affinity: Affinity) -> Affinity | None:
        """Return the best plan that keeps what moved in ``affinity`` where it moved to."""
        if self.costs is None:
            return None
        given = self.given.affinity
        pins = {
            rf"\A{re.escape(op)}\Z": affinity[op] for op in given.ops if affinity[op] != given[op]
        }
        try:
            return plan_graph(self.graph, self.costs, pin=pins, budget_s=_PLAN_S).affinity
        except PlanError:
            return None

    def _price(self, affinity: Affinity) -> tuple[float, ...]:
        if self.costs is not None:
            return (self.costs.predict_us(affinity),)
        return price_without_costs(self.graph, affinity, self.given.affinity)

    def _moves_all(self) -> Affinity:
        return self._moved(op for found in self.found for op in found.ops)

    def _moved(self, ops: Iterable[str]) -> Affinity:
        moves = dict.fromkeys(ops, self.runs.trusted)
        return self.given.affinity.fix(ops=moves, core=self.runs.core)

    def _mended(self, affinity: Affinity) -> Placement:
        properties: dict[str, Mapping[str, Any]] = dict(self.given.device_properties)
        trusted = self.runs.trusted
        properties[trusted] = {**properties.get(trusted, {}), **_F32}
        return replace(
            self.given,
            affinity=affinity,
            label=f"{self.given.label} mended",
            device_properties=properties,
            direct=self.given.direct and len(affinity.devices) == 1,
        )

    # The result.

    def _op_errors(self) -> tuple[OpError, ...]:
        """Run the placement once more with its tensors in sight, and bring all together."""
        values, bound = self.values, dict[TensorKey, Rounding]()
        arrived = self._arrived()
        if values and not self.interrupted:
            try:
                bound = self.transparent.rounding(self.executed, set(values))
            except _BudgetOverError:
                self.notes.append("The budget ended before the rounding of each op was estimated.")
            except KeyboardInterrupt:
                self.interrupted = True
        errors = {
            key: _relative(distance(v, values[key]), values[key]) for key, v in arrived.items()
        }
        unexplained = {
            key
            for key, error in errors.items()
            if error > _SHARE * self._equal
            and key in bound
            and not bound[key].explains(arrived[key], values[key])
        }
        makers = {op for each in self.found for op, _ in outgoing(self.graph, each.ops)}
        ports: dict[str, list[TensorKey]] = {}
        for key in values:
            ports.setdefault(key[0], []).append(key)
        found = []
        for op in self._ordered(self.placeable):
            leader = self.graph.ops[self.graph.leader[self.graph.index_of[op]]].name
            isolated = self.isolated.get(leader)
            keys = ports.get(op, [])
            found.append(
                OpError(
                    op=op,
                    op_type=self.graph.ops[self.graph.index_of[op]].type,
                    device=self.given.affinity[op],
                    # Not a number where the device refused to run it.
                    isolated=None
                    if isolated is None or np.isnan(isolated.error)
                    else isolated.error,
                    accumulated=max((errors[k] for k in keys if k in errors), default=None),
                    rounding=max(
                        (_relative(bound[k].farthest, values[k]) for k in keys if k in bound),
                        default=None,
                    ),
                    jumps=not unexplained.isdisjoint(keys)
                    and (op in makers or unexplained.isdisjoint(self._read_in_sight(op, arrived))),
                )
            )
        return tuple(found)

    def _arrived(self) -> dict[TensorKey, np.ndarray]:
        """Return the tensors of the placement, but for those whose sight would undo a fault."""
        if not self.values or self.refused or self.interrupted:
            return {}
        inside: set[TensorKey] = set()
        for found in self.found:
            shown = set(outgoing(self.graph, found.ops))
            inside |= {
                (op, port)
                for op in found.ops
                for port in range(len(self.graph.ops[self.graph.index_of[op]].outputs))
                if (op, port) not in shown
            }
        wanted = [
            key
            for key in self.values
            if key[0] in self.placeable - self.changing and key not in inside
        ]
        # Of what HETERO hands over, some runtimes want to know the shape.
        static = [
            (op, port)
            for op, port in wanted
            if self.graph.ops[self.graph.index_of[op]].outputs[port].shape is not None
        ]
        try:
            self._check_budget()
            try:
                return self.runs.placed(self.given, wanted)[1]
            except HeteroLabError:
                if len(static) == len(wanted):
                    raise
            self._check_budget()
            return self.runs.placed(self.given, static)[1]
        except _BudgetOverError:
            self.notes.append("The budget ended before the accumulated errors were measured.")
        except KeyboardInterrupt:
            self.interrupted = True
            self.notes.append("Ctrl-C came before the accumulated errors were measured.")
        except HeteroLabError as error:
            self.notes.append(f"The accumulated errors could not be measured: {error}")
        return {}

    def _read_in_sight(self, op: str, shown: Collection[TensorKey]) -> set[TensorKey]:
        """Return the tensors in sight that an op depends on directly, or through hidden ones."""
        read, queue = set[TensorKey](), [op]
        for name in queue:
            for producer, port in self.graph.ops[self.graph.index_of[name]].inputs:
                maker = self.graph.ops[producer].name
                if (maker, port) in shown:
                    read.add((maker, port))
                elif maker not in queue:
                    queue.append(maker)
        return read

    def _result(
        self, kind: Kind, placement: Placement, *, proven: bool, after: float, complete: bool = True
    ) -> Wrong:
        values, sets = self.values, []
        for found in self.found:
            piece = cut_pieces(self.runs.bound, [found.ops], values)
            sets.append(
                WrongSet(
                    found.device,
                    found.ops,
                    found.trial.error,
                    found.trial.damage,
                    found.minimal,
                    piece.model,
                    tuple(values[key] for key in piece.inputs),
                    tuple(op for _, (op, _) in piece.outputs),
                    found.untried,
                    found.trial.refusal,
                )
            )
        op_errors = () if kind == "none" else self._op_errors()
        devices = dict.fromkeys([*self.given.affinity.devices, self.runs.trusted])
        return Wrong(
            kind=kind,
            verdict=self._verdict(kind, placement, proven, after, complete),
            sets=tuple(sets),
            op_errors=op_errors,
            given=self.given,
            placement=placement,
            proven=proven,
            before=self.before,
            after=after,
            precisions=dict(self.precisions),
            device_properties=self.runs.given.properties,
            plugins={
                device: plugin_of(spec)
                for device, spec in emulated_devices(self.runs.core).items()
                if device in devices
            },
            trusted=self.runs.trusted,
            complete=complete,
            interrupted=self.interrupted,
            notes=tuple(dict.fromkeys(self.notes)),
            n_compiles=self.runs.n_compiles,
            elapsed_s=self.watch.elapsed_s,
            environment=current_environment(devices, self.runs.core),
        )

    def _verdict(
        self, kind: Kind, placement: Placement, proven: bool, after: float, complete: bool
    ) -> str:
        if kind == "none":
            return f"Nothing is wrong: no output is off by more than {self.before:.2g} (relative)."
        if kind == "rounding" and complete and self._could_all_run():
            what = "Each op is right" if self.random else self._seen()
            lost = ""
            if not (proven or self.random):
                self.transparent.before_run = None  # the search is over, but this has to be said
                lost = self._beyond_precision()
            return f"{what}: no op is wrong, by itself or together with others.{lost}"
        sentences = [f"{self._seen()}.", self._blame() if self.found else self._tested(complete)]
        if placement is not self.given:
            sentences += self._way(placement, proven, after)
        if not complete:
            cut = "It was interrupted" if self.interrupted else "The budget ended"
            sentences.append(f"{cut} before the search came to its end.")
        return " ".join(sentences)

    def _seen(self) -> str:
        if self.refused:
            return "The placement does not run"
        if np.isnan(self.before) and self.random:
            return "The outputs cannot be compared"
        if np.isnan(self.before):
            return "The outputs were not compared with those of the reference"
        off = f"The outputs are off by {self.before:.2g} (relative error)"
        if self.random and self.before <= self._equal:
            off = "The outputs that can be compared are right"
        if np.isinf(self.before):
            off = "Outputs are infinite or no number where the reference is finite, or the reverse"
        used = ", ".join(sorted(set(self.suspects.values())))
        if self.found or self.random or self.right is None:
            return off
        how = "by rounding in" if self.right else "which is more than what comes of rounding in"
        return f"{off}, {how} {used}"

    def _blame(self) -> str:
        sentences = []
        for verb, sets in (
            ("Wrong", [found for found in self.found if not found.trial.refusal]),
            ("Refused", [found for found in self.found if found.trial.refusal]),
        ):
            singles = [found.ops[0] for found in sets if len(found.ops) == 1]
            blame = [f"{names_at_hand(singles)} by itself"] if len(singles) == 1 else []
            blame += [f"{names_at_hand(singles)} by themselves"] if len(singles) > 1 else []
            for found in sets:
                if len(found.ops) > 1:
                    blame.append(
                        f"{names_at_hand(found.ops)} together{doubt(found.minimal, found.untried)}"
                    )
            if blame:
                sentences.append(f"{verb}: {'; '.join(blame)}.")
        return " ".join(sentences)

    def _tested(self, complete: bool) -> str:
        """Say what was run by itself, where nothing of it is wrong."""
        if complete and self._could_all_run():
            return "No op and no subgraph is wrong with the reference's inputs."
        n, n_right = len(self.suspects), len(self.suspects) - len(self._unrun())
        if not n_right:
            return "No op was run by itself."
        rest = (
            "The device refuses other cuts." if complete else "Not all of them were run together."
        )
        return f"{n_right} of {n} ops were run by themselves, and are right. {rest}"

    def _way(self, placement: Placement, proven: bool, after: float) -> list[str]:
        sentences, trusted = [], self.runs.trusted
        moved = self._n_moved(placement.affinity)
        way = f"With {moved} op{'s' * (moved > 1)} moved to {trusted}, the outputs"
        if not moved:  # only its precision has changed
            way = f"With {trusted} in f32, the outputs"
        whole = self.ways.get(self._moves_all()) if self.found else None
        if not proven and np.isnan(after):
            why = "they cannot be compared" if self.random else "it was not run"
            return [f"{way} may be right; this was not proven, as {why}."]
        if whole is not None and placement is not whole.placement and not whole.right:
            n = self._n_moved(whole.placement.affinity)
            what = f"the outputs are still off by {whole.after:.2g}"
            if np.isnan(whole.after):
                what = "the placement does not run"
            sentences = [f"With {n} op{'s' * (n > 1)} moved to {trusted}, {what}."]
        if len(placement.affinity.devices) == 1:
            way = f"With all ops on {trusted}, the outputs"
        if proven:
            return [*sentences, f"{way} are right ({after:.2g})."]
        return [
            *sentences,
            f"{way} are still off by {after:.2g}; no placement was found to be right.",
        ]

    def _n_moved(self, affinity: Affinity) -> int:
        return sum(affinity[op] != device for op, device in self._given_ops())

    def _beyond_precision(self) -> str:
        """Say where numbers leave what the executed precision can hold, if outputs feel it."""
        rounding = self.transparent.rounding(self.executed, set(self.transparent.values))
        if not any(key in rounding and rounding[key].lost.any() for key in self.output_keys):
            return ""
        lost = {key for key, known in rounding.items() if known.lost.any()}
        first = []
        for op in self._ordered({op for op, _ in lost}):
            node = self.graph.ops[self.graph.index_of[op]]
            if not any((self.graph.ops[i].name, port) in lost for i, port in node.inputs):
                first.append(op)
        beyond = {op for op, _ in self.transparent.beyond_range(self.executed)}
        out = [op for op in first if op in beyond]
        rounded = [op for op in first if op not in beyond]
        sentences = ""
        if out:
            leave = "leaves" if len(out) == 1 else "leave"
            used = ", ".join(sorted({self.executed[op] for op in out if op in self.executed}))
            sentences += f" {names_at_hand(out)} {leave} the range of {used}."
        if rounded:
            used = ", ".join(sorted(set(self.suspects.values())))
            make = "makes" if len(rounded) == 1 else "make"
            sentences += (
                f" {names_at_hand(rounded)} {make} infinite or no number of what {used} cannot "
                "tell apart."
            )
        return f"{sentences} What depends on it could not be judged."

    def _given_ops(self) -> list[tuple[str, str]]:
        return [(op, self.given.affinity[op]) for op in self.given.affinity.ops]


# Below f32's own rounding nothing has to be looked at.
_UNSEEN = 1e-7


def _relative(far: float, reference: np.ndarray) -> float:
    norm = size(reference)
    return far / norm if norm else far


def _has_nan(value: np.ndarray) -> bool:
    return value.dtype.kind == "f" and bool(np.isnan(value).any())


def _offset(value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    if reference.dtype.kind == "b":
        return value ^ reference
    same = value == reference
    with np.errstate(invalid="ignore", over="ignore"):
        # Equal infinities have no difference to be carried on.
        return np.where(same, 0, value - reference).astype(reference.dtype)
