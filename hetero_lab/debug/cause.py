"""The search for the cause of a symptom: the fewest settings, and the fewest ops, that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hetero_lab.debug.expected import BudgetOverError
from hetero_lab.debug.find_wrong import search_wrong
from hetero_lab.debug.placed_runs import PlacedRuns
from hetero_lab.debug.refusals import smallest_ops
from hetero_lab.debug.reproducer import CompileCall, Reproducer
from hetero_lab.debug.settings import Setting, settings_of, smallest_settings
from hetero_lab.debug.symptoms import Evidence, Symptom, SymptomCheck, speed
from hetero_lab.debug.wrong import Wrong
from hetero_lab.devices.bound import BoundModel
from hetero_lab.devices.emulation import plugins_of
from hetero_lab.errors import AffinityError, HeteroLabError, MeasurementError
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.results.environment import current_environment
from hetero_lab.runtime.pieces import at_step, new_states
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
    ):
        self.runs, self.watch, self.tolerance = runs, watch, tolerance
        self.baseline = baseline
        self.placed, self.graph = runs.given, runs.given.graph
        self.check = SymptomCheck(runs, tolerance)
        self.notes = self.check.notes
        self.seen: Evidence | None = None
        self.settings: tuple[Setting, ...] | None = None
        self.device, self.ops, self.minimal = "", tuple[str, ...](), True
        self.wrong: Wrong | None = None
        self.is_complete = True
        self.reproducer: Reproducer | None = None

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

    def find_settings(self, seen: Evidence) -> None:
        """Find the fewest settings that make the symptom, within a share of the budget."""
        until_s = self.watch.elapsed_s + _SHARE_OF_SETTINGS * self.watch.left_s

        def shows(placement: Placement) -> bool:
            if self.watch.elapsed_s >= until_s:
                raise BudgetOverError
            return self._run(placement, seen).is_like(seen)

        try:
            settings = settings_of(self.placed, defaults=seen.symptom is not Symptom.SLOWER)
            self.settings = smallest_settings(self.placed, settings, shows)
        except BudgetOverError:
            self.notes.append("The search for settings ran out of time.")
            self.is_complete = False

    def find_ops(self, seen: Evidence) -> None:
        """Find the fewest ops that show the symptom, in the way that model and devices allow."""
        if seen.symptom is Symptom.SLOWER:
            told = "To see which ops are slower: hetero_lab.explain(model, before, after)."
            self.notes.append(told)
            return
        if not self._find_by_values(seen):
            self._find_by_device(seen)

    def _find_by_values(self, seen: Evidence) -> bool:
        """Run sets of ops by themselves, as find_wrong does; tell whether that explains it all.

        Of a language model, this is done at the step where the symptom begins.
        """
        step = self._at_step(seen)
        if step is None or (seen.symptom.has_outputs and not self.check.expected):
            return False
        trusted = "" if not self.check.expected else self.runs.trusted
        try:
            with self.runs.instead(*step, trusted=trusted):
                wrong = search_wrong(
                    self.runs,
                    self.watch,
                    tolerance=self.tolerance,
                    failures_only=not seen.symptom.has_outputs,
                )
        except (HeteroLabError, RuntimeError) as error:  # of the reference: it has no numbers, say
            self.notes.append(f"The ops were not run one by one: {error}")
            return False
        if wrong.kind in ("none", "rounding") and wrong.complete and not wrong.interrupted:
            if (
                not self.placed.bound.model.get_sinks()
                and seen.symptom.has_outputs
                and self.tolerance is None
            ):
                self.seen = Evidence(Symptom.OK, wrong.verdict, wrong.before)
                self.settings = None
                return True
            return False
        self.notes += [wrong.verdict, *wrong.notes] if seen.symptom.has_outputs else wrong.notes
        if wrong.interrupted:
            self.wrong = wrong
        if wrong.sets:
            self.wrong = wrong
            worst = max(wrong.sets, key=lambda found: (found.minimal, found.damage))
            self.minimal = worst.minimal
            self.device, self.ops = worst.device, worst.ops
            fails = bool(worst.refusal) and not seen.symptom.has_outputs
            alike = fails or (seen.symptom is Symptom.NAN and not math.isfinite(worst.error))
            self.reproducer = wrong.reproducer(worst, seen.symptom if alike else None)
            if seen.symptom.has_outputs:
                told = f"{self.reproducer.told} In the whole model: {seen.told}"
                self.reproducer = replace(self.reproducer, told=told)
        if not wrong.complete and not wrong.interrupted:
            raise BudgetOverError
        return bool(wrong.sets) or wrong.interrupted

    def _at_step(self, seen: Evidence) -> tuple[BoundPlacement, Sequence[np.ndarray]] | None:
        """Return a static model without states, where the symptom begins, and its inputs.

        ``None`` if the states before that step cannot be computed.
        """
        if not self.placed.bound.model.get_sinks():
            return self.placed, self.runs.arrays
        runs, bound = self.runs, self.placed.bound
        n, before = len(bound.model.inputs), (seen.step or 1) - 1
        keys, states = new_states(bound.model), dict[str, np.ndarray]()
        if before:
            try:
                arrays = runs.arrays[: before * n]
                _, made = runs.placed(runs.reference, list(dict.fromkeys(keys.values())), arrays)
            except HeteroLabError as error:
                self.notes.append(f"The states before inference {seen.step} are not known: {error}")
                return None
            states = {read: made[key] for read, key in keys.items()}
        arrays = runs.arrays[before * n : (before + 1) * n]
        model, arrays = at_step(bound.model, arrays, states)
        prepared, known = prepare(model), self.placed.affinity
        affinity = Affinity.from_graph(
            prepared.graph, lambda name: known[name] if name in known else known.devices[0]
        )
        placement = replace(self.placed.placement, affinity=affinity)
        bound = BoundModel(prepared.model, prepared.graph, prepared.fingerprint, bound.core)
        return BoundPlacement(bound, placement), arrays

    def _find_by_device(self, seen: Evidence) -> None:
        """Run all ops but a few on another device."""
        placed, trusted = self.placed, self.runs.trusted
        if trusted:
            exact = {trusted: self.runs.reference.device_properties[trusted]}
            placed = replace(placed, placement=placed.placement.with_properties(exact))

        def placement_of(affinity: Affinity) -> Placement:
            return replace(placed.placement, affinity=affinity, direct=False)

        def shows(affinity: Affinity) -> str:
            try:
                found = self.check(placement_of(affinity))
            except (AffinityError, RuntimeError):  # the model cannot be cut there
                return ""
            return found.told if found.is_like(seen) else ""

        found = smallest_ops(placed.bound, placed.affinity, shows, trusted or None)
        if found is not None:
            self.device, self.ops = found.device, found.ops
            moved = {op: found.target for op in placed.affinity.ops if op not in found.ops}
            alone = placed.affinity.fix(ops=moved, core=placed.core)
            self.reproducer = self.whole(placement_of(alone))

    def whole(self, placement: Placement | None = None) -> Reproducer:
        """Return what shows the symptom with the whole model, by default as placed."""
        seen, runs = self.seen, self.runs
        assert seen is not None
        placed = BoundPlacement(runs.bound, placement or self.placed.placement)
        side = runs.reference if self.check.expected else None
        side = self.baseline if seen.symptom is Symptom.SLOWER else side
        right = None if side is None else BoundPlacement(runs.bound, side)
        devices = dict.fromkeys([*placed.devices, *(right.devices if right else ())])
        ops = self.ops or [self.graph.ops[index].name for index in self.graph.placeable]
        kinds = {op.name: op.type for op in self.graph}
        return Reproducer(
            symptom=seen.symptom,
            told=seen.told,
            model=runs.bound.model,
            inputs=runs.arrays,
            wrong=_call(placed),
            right=_call(right) if right else None,
            ops=[(op, kinds[op]) for op in ops],
            outputs=runs.bound.output_names,
            why="It is the whole model.",
            environment=current_environment(devices, placed.core),
            plugins=plugins_of(devices, placed.core),
            error=seen.error,
            ratio=seen.ratio,
        )

    def of_settings(self) -> list[str]:
        """Say which settings are to blame, if that is known."""
        if self.settings is None:
            return []
        if not self.settings:
            known = self.seen is not None and self.seen.symptom is not Symptom.SLOWER
            return ["No setting is to blame." if known else "No single setting explains it."]
        return [f"It shows only with {' and '.join(map(str, self.settings))}."]


def _call(placed: BoundPlacement) -> CompileCall:
    homes = None if placed.direct else dict(placed.affinity)
    return CompileCall(*placed.compile_call, homes)
