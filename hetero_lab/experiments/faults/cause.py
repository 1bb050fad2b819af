"""The search for the cause of a symptom: the fewest settings, and the fewest ops, that show it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from hetero_lab.backend.emulation import emulated_devices, plugin_of
from hetero_lab.errors import AffinityError, CompileError, HeteroLabError, MeasurementError
from hetero_lab.experiments.faults.blame import (
    BlamedOps,
    Setting,
    exact_properties,
    made_up,
    smallest_ops,
    smallest_piece,
    smallest_settings,
)
from hetero_lab.experiments.faults.expected import BudgetOverError, relative_error
from hetero_lab.experiments.faults.find_wrong import search_wrong
from hetero_lab.experiments.faults.placed_runs import PlacedRuns
from hetero_lab.experiments.faults.reproducer import CompileCall, Reproducer
from hetero_lab.experiments.faults.symptom_check import SymptomCheck, in_steps, speed
from hetero_lab.experiments.faults.symptoms import Evidence, Symptom, failure
from hetero_lab.experiments.faults.wrong import Wrong
from hetero_lab.experiments.faults.wrong_sets import minimal_set
from hetero_lab.experiments.measure.environment import current_environment
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.runtime.pieces import TensorKey, cut_pieces, incoming, outgoing
from hetero_lab.runtime.reference import TOLERANCE
from hetero_lab.runtime.timing import Stopwatch

_SHARE_OF_SETTINGS = 0.3  # of the budget that is left
_SPEED_S = 20.0  # to compare two latencies
_HANG_S = 30.0  # the least budget in which a hang can be told from a slow compile


class CauseSearch:
    """What is known of the placement of ``runs``, and the steps that find out more.

    A step raises BudgetOverError when the time is over; what was found before stays.
    """

    def __init__(
        self,
        runs: PlacedRuns,
        watch: Stopwatch,
        *,
        tolerance: float | None = None,
        baseline: Placement | None = None,
        is_static: bool = True,
    ):
        self.runs, self.watch, self.tolerance = runs, watch, tolerance
        self.baseline, self.is_static = baseline, is_static
        self.placed, self.graph = runs.given, runs.given.graph
        self.seen: Evidence | None = None
        self.settings: tuple[Setting, ...] | None = None
        self.device, self.ops = "", tuple[str, ...]()
        self.wrong: Wrong | None = None
        self.reproducer: Reproducer | None = None
        self.notes: list[str] = []

    # -- the symptom ------------------------------------------------------------------------------

    @cached_property
    def reference(self) -> Placement:
        """The trusted device, computing exactly."""
        trusted = self.runs.trusted
        affinity = Affinity.on_one(self.graph, trusted)
        exact = exact_properties(trusted, self.placed)
        return Placement(affinity, "reference", {trusted: exact}, direct=True)

    @cached_property
    def expected(self) -> list[dict[str, np.ndarray]]:
        """The outputs of the trusted device, which runs in the worker: it may fail as well."""
        why = "No single real device here supports the whole model"
        try:
            if self.runs.trusted:
                outputs, _ = self.runs.placed(self.reference)
                return in_steps(self.runs.bound, outputs)
        except CompileError as error:
            why = f"{self.runs.trusted} does not run the model either ({error})"
        self.notes.append(f"{why}, so there is nothing to compare with.")
        return []

    @cached_property
    def check(self) -> SymptomCheck:
        """The runs that tell a symptom."""
        return SymptomCheck(self.runs, self.expected, self.tolerance)

    def find_symptom(self) -> Evidence:
        """Run the placement, and compare its latency where there is a baseline."""
        seen = self.check(self.placed.placement)
        if seen.symptom is Symptom.HANG and (self.watch.budget_s or math.inf) < _HANG_S:
            raise BudgetOverError
        self.seen = seen
        if seen.symptom is Symptom.OK and self.baseline is not None:
            try:
                self.seen = self._run(self.placed.placement, Evidence(Symptom.SLOWER, ""))
            except MeasurementError as error:
                self.notes.append(str(error))
        return self.seen

    def _run(self, placement: Placement, seen: Evidence) -> Evidence:
        if seen.symptom is not Symptom.SLOWER or self.baseline is None:
            return self.check(placement)
        placed = BoundPlacement(self.runs.bound, placement)
        budget_s = max(1.0, min(_SPEED_S, self.watch.left_s / 4))
        return speed(placed, self.baseline, self.runs.arrays, budget_s)

    # -- the settings -----------------------------------------------------------------------------

    def find_settings(self, seen: Evidence) -> None:
        """Find the fewest settings that make the symptom, within a share of the budget."""
        until_s = self.watch.elapsed_s + _SHARE_OF_SETTINGS * self.watch.left_s

        def shows(placement: Placement) -> bool:
            if self.watch.elapsed_s >= until_s:
                raise BudgetOverError
            return self._run(placement, seen).is_like(seen)

        try:
            self.settings = smallest_settings(self.placed, shows)
        except BudgetOverError:
            self.notes.append("The settings were not searched to the end: their time was over.")

    # -- the ops ----------------------------------------------------------------------------------

    def find_ops(self, seen: Evidence) -> None:
        """Find the fewest ops that show the symptom, in the way that model and devices allow."""
        if seen.symptom is Symptom.SLOWER:
            self.notes.append("hetero_lab.explain(model, before, after) compares the two by op.")
            return
        if self.is_static and self.expected:
            try:
                self._find_by_values(seen)
            except MeasurementError as error:  # the reference has no number to compare
                self.notes.append(str(error))
            else:
                return
        if not self._find_by_device(seen) and self.is_static and not seen.symptom.has_outputs:
            self._find_by_cutting(seen)

    def _find_by_values(self, seen: Evidence) -> None:
        """Run sets of ops on the reference's tensors, as :func:`hetero_lab.find_wrong` does."""
        wrong = search_wrong(self.runs, self.watch, tolerance=self.tolerance)
        if wrong.kind in ("none", "rounding"):
            if seen.symptom.has_outputs and self.tolerance is None:
                self.seen = Evidence(Symptom.OK, wrong.verdict, wrong.before)
                self.settings = None
            else:
                self.notes.append(wrong.verdict)
            return
        self.wrong = wrong
        self.notes += wrong.notes
        if wrong.sets:
            worst = max(wrong.sets, key=lambda found: (found.minimal, found.damage))
            self.device, self.ops = worst.device, worst.ops
            fails = bool(worst.refusal) and not seen.symptom.has_outputs
            self.reproducer = wrong.reproducer(worst, seen.symptom if fails else None)
        if not wrong.complete and not wrong.interrupted:
            raise BudgetOverError

    def _find_by_device(self, seen: Evidence) -> bool:
        """Move ops between devices; tell whether that explains the symptom."""
        placed, trusted = self.placed, self.runs.trusted
        if trusted:
            exact = {trusted: exact_properties(trusted, placed)}
            placed = replace(placed, placement=placed.placement.with_properties(exact))

        def placement_of(affinity: Affinity) -> Placement:
            return replace(placed.placement, affinity=affinity, direct=False)

        def shows(affinity: Affinity) -> str:
            self._check_budget()
            try:
                found = self.check(placement_of(affinity))
            except (AffinityError, RuntimeError):  # the model cannot be cut there
                return ""
            return found.told if found.is_like(seen) else ""

        blamed = smallest_ops(placed.bound, placed.affinity, shows, trusted or None)
        if blamed is None:
            return False
        self.device = blamed.device
        leader = {node.name: node.leader for node in placed.affinity.nodes}
        self.ops = tuple(op for op in placed.affinity.ops if leader[op] in blamed.ops)
        alone = placed.affinity.fix(
            ops={op: blamed.target for op in placed.affinity.ops if op not in self.ops},
            core=placed.core,
        )
        self.reproducer = self.whole(placement_of(alone))
        self.reproducer = self._cut(seen, blamed) or self.reproducer
        return True

    def _cut(self, seen: Evidence, blamed: BlamedOps) -> Reproducer | None:
        """Cut the ops out, with inputs from the reference, and leave out those that are not needed.

        HETERO cannot cut everywhere, so that some may be innocent. ``None`` if the ops by
        themselves do not show the symptom.
        """
        runs, n_inputs = self.runs, len(self.runs.bound.model.inputs)
        keys = dict.fromkeys(
            key
            for op in self.ops
            for each in (incoming, outgoing)
            for key in each(self.graph, [op])
        )
        try:
            arrays = runs.arrays[: (seen.step or 1) * n_inputs]
            _, values = runs.placed(self.reference, list(keys), arrays)
        except HeteroLabError:
            return None

        def run(ops: Sequence[str]) -> Evidence:
            self._check_budget()
            return self._run_piece(blamed.device, ops, values)

        def shows(ops: Sequence[str]) -> bool:
            found = run(ops)
            alike = found.symptom.has_outputs == seen.symptom.has_outputs
            return alike and found.symptom is not Symptom.OK

        if not shows(self.ops):
            return None
        self.ops = tuple(minimal_set(self.ops, shows))
        found = run(self.ops)
        return replace(self._of_piece(values, found.error), symptom=found.symptom)

    def _find_by_cutting(self, seen: Evidence) -> None:
        """Run parts of a model that no other device runs, on inputs that are made up."""
        names = [p.get_friendly_name() for p in self.runs.bound.model.get_parameters()]
        given = {(name, 0): array for name, array in zip(names, self.runs.arrays, strict=True)}

        def shows(device: str, ops: Collection[str]) -> bool:
            self._check_budget()
            values = made_up(self.graph, ops, given)
            return values is not None and self._run_piece(device, ops, values).is_like(seen)

        found = smallest_piece(self.placed, shows)
        if found is not None:
            self.device, self.ops = found
            self.reproducer = self._of_piece(made_up(self.graph, self.ops, given) or {}, 1.0)

    def _run_piece(
        self, device: str, ops: Collection[str], values: Mapping[TensorKey, np.ndarray]
    ) -> Evidence:
        """Run a piece by itself; its tensors are compared with those that are known."""
        try:
            (made,) = self.runs.pieces(device, [ops], values)
        except CompileError as error:
            return Evidence(failure(str(error)), str(error))
        error = max((relative_error(made[k], values[k]) for k in made if k in values), default=0.0)
        if error <= TOLERANCE["f32"]:
            return Evidence(Symptom.OK, "", error)
        nan = any(np.isnan(array).any() for array in made.values() if array.dtype.kind == "f")
        return Evidence(Symptom.NAN if nan else Symptom.WRONG, "", error)

    def _check_budget(self) -> None:
        if self.watch.is_over:
            raise BudgetOverError

    # -- the reproducer ---------------------------------------------------------------------------

    def _of_piece(self, values: Mapping[TensorKey, np.ndarray], error: float) -> Reproducer:
        cut = cut_pieces(self.runs.bound, [self.ops], values)
        return replace(
            self.whole(),
            model=cut.model,
            inputs=[values[key] for key in cut.inputs],
            wrong=CompileCall(self.device, self.placed.properties[self.device]),
            outputs=[op for _, (op, _) in cut.outputs],
            why="The model holds these ops alone.",
            error=error,
        )

    def whole(self, placement: Placement | None = None) -> Reproducer:
        """Return what shows the symptom with the whole model, by default as placed."""
        seen = self.seen
        assert seen is not None
        placed = BoundPlacement(self.runs.bound, placement or self.placed.placement)
        target, properties = placed.compile_call
        right: Sequence[str] = (self.runs.trusted,) if self.expected else ()
        devices = dict.fromkeys([*placed.devices, *right])
        ops = self.ops or [self.graph.ops[index].name for index in self.graph.placeable]
        kinds = {op.name: op.type for op in self.graph}
        return Reproducer(
            symptom=seen.symptom,
            told=seen.told,
            settings=" ".join(self.of_settings()),
            model=self.runs.bound.model,
            inputs=self.runs.arrays,
            wrong=CompileCall(target, properties, None if placed.direct else dict(placed.affinity)),
            right=CompileCall(*self._right()) if right else None,
            ops=[(op, kinds[op]) for op in ops],
            outputs=self.runs.bound.output_names,
            why="It is the whole model.",
            environment=current_environment(devices, placed.core),
            plugins={
                device: plugin_of(spec)
                for device, spec in emulated_devices(placed.core).items()
                if device in devices
            },
            error=seen.error,
            ratio=seen.ratio,
        )

    def _right(self) -> tuple[str, Mapping[str, object]]:
        slower = self.seen is not None and self.seen.symptom is Symptom.SLOWER
        side = self.baseline if slower and self.baseline is not None else self.reference
        return BoundPlacement(self.runs.bound, side).compile_call

    def of_settings(self) -> list[str]:
        """Say which settings are to blame, if that is known."""
        if self.settings is None:
            return []
        if not self.settings:
            return ["No setting is to blame."]
        return [f"It shows only with {' and '.join(map(str, self.settings))}."]
