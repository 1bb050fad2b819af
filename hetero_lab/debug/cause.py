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
from hetero_lab.devices.bound import bind
from hetero_lab.devices.emulation import plugins_of
from hetero_lab.errors import AffinityError, HeteroLabError, MeasurementError
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.results.environment import current_environment
from hetero_lab.runtime.pieces import at_step, new_states
from hetero_lab.runtime.timing import Stopwatch

_SHARE_OF_SETTINGS = 0.3  # of the budget that is left: the search for ops needs more compiles
_SPEED_S = 20.0  # to compare two latencies: some dozens of turns of a model of milliseconds
_HANG_S = 30.0  # the least budget in which a hang can be told from a slow compile


class CauseSearch:
    """What is known of the placement of ``runs``, and the steps that find out more.

    A step raises BudgetOverError when the time is over; what was known before stays.
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
        self.subject = runs.bound_placement
        self.check = SymptomCheck(runs, tolerance)
        self.notes = self.check.notes
        self.evidence: Evidence | None = None
        self.settings: tuple[Setting, ...] | None = None
        self.device, self.ops, self.minimal = "", tuple[str, ...](), True
        self.wrong: Wrong | None = None
        self.is_complete = True
        self.reproducer: Reproducer | None = None

    def find_symptom(self) -> Evidence:
        """Run the placement, and compare its latency where there is a baseline."""
        evidence = self.check(self.subject.placement)
        if evidence.symptom is Symptom.HANG and (self.watch.budget_s or math.inf) < _HANG_S:
            raise BudgetOverError
        self.evidence = evidence
        if evidence.symptom is Symptom.OK and self.baseline is not None:
            try:
                self.evidence = self._run(self.subject.placement, Symptom.SLOWER)
            except MeasurementError as error:
                self.notes.append(str(error))
        return self.evidence

    def _run(self, placement: Placement, symptom: Symptom) -> Evidence:
        """Run a placement in the way that shows a symptom, if it is there."""
        if symptom is not Symptom.SLOWER or self.baseline is None:
            return self.check(placement)
        bound = BoundPlacement(self.runs.bound, placement)
        budget_s = max(1.0, min(_SPEED_S, self.watch.left_s / 4))
        return speed(bound, self.baseline, self.runs.arrays, budget_s)

    def find_settings(self, evidence: Evidence) -> None:
        """Find the fewest settings that make the symptom, within a share of the budget."""
        symptom, placement = evidence.symptom, self.subject.placement
        until_s = self.watch.elapsed_s + _SHARE_OF_SETTINGS * self.watch.left_s

        def shows(placement: Placement) -> bool:
            if self.watch.elapsed_s >= until_s:
                raise BudgetOverError
            return self._run(placement, symptom).is_like(evidence)

        try:
            settings = settings_of(self.subject, defaults=symptom is not Symptom.SLOWER)
            self.settings = smallest_settings(placement, settings, shows)
        except BudgetOverError:
            self.notes.append("The search for settings ran out of time.")
            self.is_complete = False

    def find_ops(self, evidence: Evidence) -> None:
        """Find the fewest ops that show the symptom, in the way that model and devices allow."""
        if evidence.symptom is Symptom.SLOWER:
            self.notes.append(
                "To see which ops are slower: hetero_lab.explain(model, before, after)."
            )
        elif not self._find_by_values(evidence):
            self._find_by_device(evidence)

    def _find_by_values(self, evidence: Evidence) -> bool:
        """Run sets of ops by themselves, as find_wrong does; tell whether that explains it all.

        Of a language model, this is done at the step where the symptom begins.
        """
        has_outputs = evidence.symptom.has_outputs
        step = self._at_step(evidence)
        if step is None or (has_outputs and not self.check.expected):
            return False
        trusted = self.runs.trusted if self.check.expected else ""
        try:
            with self.runs.instead(*step, trusted=trusted):
                wrong = search_wrong(
                    self.runs, self.watch, tolerance=self.tolerance, failures_only=not has_outputs
                )
        except (HeteroLabError, RuntimeError) as error:  # of the reference: it has no numbers, say
            self.notes.append(f"The ops were not run one by one: {error}")
            return False
        if wrong.kind in ("none", "rounding") and wrong.complete and not wrong.interrupted:
            has_states = self.subject.bound.model.get_sinks()
            explained = has_outputs and not has_states and self.tolerance is None
            if explained:
                self.evidence = Evidence(Symptom.OK, wrong.verdict, wrong.before)
                self.settings = None
            return explained
        self.notes += [wrong.verdict, *wrong.notes] if has_outputs else wrong.notes
        if wrong.sets or wrong.interrupted:
            self.wrong = wrong
        if wrong.sets:
            self._blame(wrong, evidence)
        if not wrong.complete and not wrong.interrupted:
            raise BudgetOverError
        return bool(wrong.sets) or wrong.interrupted

    def _blame(self, wrong: Wrong, evidence: Evidence) -> None:
        """Take the worst set of wrong ops as the cause, and show its own symptom if it differs."""
        worst = max(wrong.sets, key=lambda each: (each.minimal, each.damage))
        self.device, self.ops, self.minimal = worst.device, worst.ops, worst.minimal
        if evidence.symptom.has_outputs:
            is_nan = evidence.symptom is Symptom.NAN and not math.isfinite(worst.error)
            self.reproducer = wrong.reproducer(worst, Symptom.NAN if is_nan else None)
            told = f"{self.reproducer.told} In the whole model: {evidence.told}"
            self.reproducer = replace(self.reproducer, told=told)
        else:
            symptom = evidence.symptom if worst.refusal else None
            self.reproducer = wrong.reproducer(worst, symptom)

    def _at_step(self, evidence: Evidence) -> tuple[BoundPlacement, Sequence[np.ndarray]] | None:
        """Return a static model without states, where the symptom begins, and its inputs.

        ``None`` if the states before that step cannot be computed.
        """
        runs, bound, homes = self.runs, self.subject.bound, self.subject.affinity
        if not bound.model.get_sinks():
            return self.subject, runs.arrays
        n, before = len(bound.model.inputs), (evidence.step or 1) - 1
        keys, states = new_states(bound.model), dict[str, np.ndarray]()
        if before:
            try:
                arrays = runs.arrays[: before * n]
                _, tensors = runs.run(runs.reference, list(dict.fromkeys(keys.values())), arrays)
            except HeteroLabError as error:
                self.notes.append(
                    f"The states before inference {evidence.step} are not known: {error}"
                )
                return None
            states = {read: tensors[key] for read, key in keys.items()}
        arrays = runs.arrays[before * n : (before + 1) * n]
        model, arrays = at_step(bound.model, arrays, states)
        stateless = bind(model, bound.core)
        affinity = Affinity.from_graph(
            stateless.graph, lambda op: homes[op] if op in homes else homes.devices[0]
        )
        placement = replace(self.subject.placement, affinity=affinity)
        return BoundPlacement(stateless, placement), arrays

    def _find_by_device(self, evidence: Evidence) -> None:
        """Run all ops but a few on another device."""
        subject, trusted = self.subject, self.runs.trusted
        placement = subject.placement
        if trusted:
            exact = {trusted: self.runs.reference.device_properties[trusted]}
            placement = placement.with_properties(exact)

        def placement_of(affinity: Affinity) -> Placement:
            return replace(placement, affinity=affinity, direct=False)

        def shows(affinity: Affinity) -> str:
            try:
                other = self.check(placement_of(affinity))
            except (AffinityError, RuntimeError):  # the model cannot be cut there
                return ""
            return other.told if other.is_like(evidence) else ""

        smallest = smallest_ops(subject.bound, subject.affinity, shows, trusted or None)
        if smallest is not None:
            self.device, self.ops = smallest.device, smallest.ops
            others = {op: smallest.target for op in subject.affinity.ops if op not in self.ops}
            alone = subject.affinity.fix(ops=others, core=subject.core)
            self.reproducer = self.whole(placement_of(alone))

    def whole(self, placement: Placement | None = None) -> Reproducer:
        """Return what shows the symptom with the whole model, by default as placed."""
        evidence, runs = self.evidence, self.runs
        assert evidence is not None
        wrong = BoundPlacement(runs.bound, placement or self.subject.placement)
        side = runs.reference if self.check.expected else None
        side = self.baseline if evidence.symptom is Symptom.SLOWER else side
        right = None if side is None else BoundPlacement(runs.bound, side)
        devices = dict.fromkeys([*wrong.devices, *(right.devices if right else ())])
        graph = runs.bound.graph
        ops = self.ops or [graph.ops[index].name for index in graph.placeable]
        return Reproducer(
            symptom=evidence.symptom,
            told=evidence.told,
            model=runs.bound.model,
            inputs=runs.arrays,
            wrong=_call(wrong),
            right=_call(right) if right else None,
            ops=[(op, graph.ops[graph.index_of[op]].type) for op in ops],
            outputs=runs.bound.output_names,
            why="It is the whole model.",
            environment=current_environment(devices, wrong.core),
            plugins=plugins_of(devices, wrong.core),
            error=evidence.error,
            ratio=evidence.ratio,
        )

    def of_settings(self) -> list[str]:
        """Say which settings are to blame, if that is known."""
        if self.settings is None:
            return []
        if self.settings:
            return [f"It shows only with {' and '.join(map(str, self.settings))}."]
        if self.evidence is not None and self.evidence.symptom is not Symptom.SLOWER:
            return ["No setting is to blame."]
        return ["No single setting explains it."]


def _call(bound: BoundPlacement) -> CompileCall:
    return CompileCall(*bound.compile_call, None if bound.direct else dict(bound.affinity))
