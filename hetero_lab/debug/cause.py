"""The symptom of a placement, and the search for its cause: the fewest settings and ops."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hetero_lab.debug.find_wrong import search_wrong
from hetero_lab.debug.minimal_sets import minimal_set, smallest_ops
from hetero_lab.debug.placed_runs import BudgetOverError, PlacedRuns, exact_properties
from hetero_lab.debug.reproducer import CompileCall, Reproducer, Symptom, failure
from hetero_lab.debug.wrong import Wrong
from hetero_lab.devices.core import bases_of, bind, plugins_of, scratch_core
from hetero_lab.devices.devices import property_of
from hetero_lab.devices.properties import merged_properties
from hetero_lab.errors import AffinityError, CompileError, HeteroLabError, MeasurementError
from hetero_lab.llm.generation import generation_precision
from hetero_lab.measure.session import Conditions, Session
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.trial_grid import by_name, expand
from hetero_lab.model.language import is_language_model
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.progress import Stopwatch
from hetero_lab.results.environment import current_environment
from hetero_lab.runtime.pieces import at_step, new_states
from hetero_lab.runtime.reference import (
    TOLERANCE,
    Agreement,
    agreement_notes,
    compare,
    hinted_precision,
    lowest_precision,
)
from hetero_lab.runtime.tensors import has_nan

_SHARE_OF_SETTINGS = 0.3  # of the budget that is left: the search for ops needs more compiles
_SPEED_S = 20.0  # to compare two latencies: some dozens of turns of a model of milliseconds
_SLOWER = 1.5  # times as long, at most: more would have been why somebody asks
_HANG_S = 30.0  # the least budget in which a hang can be told from a slow compile
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|[^A-Za-z ]+")


@dataclass(frozen=True)
class Evidence:
    """The symptom of one run, and the sentence that proves it.

    ``error`` is the largest relative error of an output (Euclidean norm), NaN if none was compared.
    It is ``output`` that shows the symptom, from inference ``step`` on (from 1) where several run
    in a row. ``ratio`` is the latency relative to that of the baseline.
    """

    symptom: Symptom
    told: str
    error: float = float("nan")
    output: str = ""
    step: int | None = None
    ratio: float = float("nan")

    def is_like(self, other: Evidence) -> bool:
        """Tell whether another run has the same fault: of a refusal, in the same words, too."""
        if self.symptom is not other.symptom:
            return False
        if self.symptom is Symptom.SLOWER:  # settings that are exact may cost some time, too
            return self.ratio > (1 + other.ratio) / 2
        words, others = (_QUOTED.sub(" ", each.told).split() for each in (self, other))
        return self.symptom is not Symptom.REFUSED or words == others


@dataclass(frozen=True)
class Setting:
    """A property of a device; ``exact`` is the value without the symptom, None if it is not set.

    A value that the placement does not set is the device's default.
    """

    device: str
    key: str
    value: str
    exact: Any = None

    def __str__(self) -> str:
        other = "fine when unset" if self.exact is None else f"{self.exact} is fine"
        return f"{self.device}.{self.key}={self.value} ({other})"


class SymptomCheck:
    """Runs placements of a model, and tells the symptom of each.

    The outputs of the trusted device are ``expected``, those of each inference in a row. Without
    them, only NaN and failures show; ``notes`` say why.
    """

    def __init__(self, runs: PlacedRuns, tolerance: float | None = None):
        self.runs, self.tolerance = runs, tolerance
        self.is_static = not is_language_model(runs.bound.model)
        self.notes: list[str] = []

    @cached_property
    def expected(self) -> list[dict[str, np.ndarray]]:
        """The outputs of the reference, which runs in the worker: it may fail as well."""
        why = "No single real device here supports the whole model"
        try:
            if self.runs.trusted:
                outputs, _ = self.runs.run(self.runs.reference)
                if self.is_static:  # the faults of many devices are in ops that they fuse
                    with contextlib.suppress(RuntimeError):
                        outputs = self.runs.transparent().unfused(outputs)
                return self._in_steps(outputs)
        except CompileError as error:
            self.runs.check_budget()  # the run may have been cut short
            why = f"{self.runs.trusted} does not run the model either ({error})"
        self.notes.append(f"{why}, so there is nothing to compare with.")
        return []

    @cached_property
    def _precision(self) -> str:
        """The lowest precision of the devices, known once the placement ran; later ones differ."""
        bound = self.runs.bound_placement
        hints = list(map(self.runs.hint_of, bound.devices))
        if self.is_static:
            return lowest_precision((), bound.graph, hints)
        # Weights of few bits alone round nothing at run time.
        return generation_precision(bound, hinted_precision(hints))

    def __call__(self, placement: Placement) -> Evidence:
        """Run a placement; AffinityError if HETERO cannot pass on a tensor of dynamic shape."""
        try:
            outputs, _ = self.runs.run(placement)
        except CompileError as error:
            self.runs.check_budget()
            return Evidence(failure(str(error)), str(error))
        precision = self._precision
        steps = self._in_steps(outputs)
        for port, (name, value) in zip(
            self.runs.bound.model.outputs, steps[0].items(), strict=True
        ):
            declared = port.get_partial_shape()
            if declared.is_static and tuple(port.get_shape()) != value.shape:
                shape = f"has the shape {list(value.shape)}, not {declared}"
                return _output_evidence(Symptom.WRONG, shape, math.inf, name)
        if self.expected:
            return self._comparison(steps, precision)
        for number, outputs_of_step in enumerate(steps, start=1):
            for name, value in outputs_of_step.items():
                if has_nan([value]):
                    at = None if self.is_static else number
                    return _output_evidence(Symptom.NAN, "has NaN", math.nan, name, at)
        return Evidence(Symptom.OK, "It runs; its numbers were not compared.")

    def _in_steps(self, outputs: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return the outputs of each of several inferences in a row, by name."""
        names = self.runs.bound.output_names
        starts = range(0, len(outputs), len(names))
        return [dict(zip(names, outputs[at : at + len(names)], strict=True)) for at in starts]

    def _comparison(self, steps: Sequence[Mapping[str, np.ndarray]], precision: str) -> Evidence:
        worst, limit = 0.0, TOLERANCE["f32"]
        for step, (outputs, expected) in enumerate(zip(steps, self.expected, strict=True), start=1):
            agreement = compare(outputs, expected, precision, self.runs.bound.graph)
            self.notes += agreement_notes(agreement)
            worst = max([worst, *(a.relative_error for a in agreement)])  # NaN is never larger
            limit = max([limit, *(a.tolerance for a in agreement)])
            bad = next(filter(self._is_wrong, agreement), None)
            if bad is None:
                continue
            name, error, symptom = bad.output, bad.relative_error, Symptom.WRONG
            fact = f"is off {bad.detail or f'by {error:.2g} (relative error)'}"
            if bad.verdict == "not a number":
                fact = "has infinities or NaN in other places than the reference"
            if has_nan([outputs[name]]) and not has_nan([expected[name]]):
                symptom, fact = Symptom.NAN, "has NaN"
            return _output_evidence(symptom, fact, error, name, step if len(steps) > 1 else None)
        sentence = f"No output is off by more than {worst:.2g}"
        if worst > TOLERANCE["f32"] and self.tolerance is None:
            sentence += f"; up to {limit:g} counts as rounding in {precision}, see tolerance="
        return Evidence(Symptom.OK, f"{sentence}.", worst)

    def _is_wrong(self, agreement: Agreement) -> bool:
        if self.tolerance is None or agreement.verdict == "not a number":
            return agreement.is_wrong
        return agreement.relative_error > (agreement.tolerance and self.tolerance)


def _output_evidence(
    symptom: Symptom, fact: str, error: float, name: str, step: int | None = None
) -> Evidence:
    when = "" if step is None else f" from inference {step} on"
    return Evidence(symptom, f"Output {name!r} {fact}{when}.", error, name, step)


class CauseSearch:
    """What is known of the placement of ``runs``, and the steps that find out more.

    A step raises BudgetOverError when the time is over; what was known before stays.
    """

    def __init__(self, runs: PlacedRuns, tolerance: float | None, baseline: Placement | None):
        self.runs, self.baseline = runs, baseline
        self.check = SymptomCheck(runs, tolerance)
        self.evidence: Evidence | None = None
        self.settings: tuple[Setting, ...] | None = None
        # The ops of a device that show the symptom, and what shows it.
        self.device, self.ops, self.is_minimal = "", (), True
        self.reproducer: Reproducer | None = None
        self.wrong: Wrong | None = None
        self.is_complete = True

    @property
    def _subject(self) -> BoundPlacement:
        return self.runs.bound_placement

    def find_symptom(self) -> Evidence:
        """Run the placement, and compare its latency where there is a baseline."""
        evidence = self.check(self._subject.placement)
        if evidence.symptom is Symptom.HANG and (self.runs.watch.budget_s or math.inf) < _HANG_S:
            raise BudgetOverError
        self.evidence = evidence
        if evidence.symptom is Symptom.OK and self.baseline is not None:
            try:
                self.evidence = self._speed(self._subject.placement, self.baseline)
            except MeasurementError as error:
                self.check.notes.append(str(error))
        return self.evidence

    def _speed(self, placement: Placement, baseline: Placement) -> Evidence:
        """Measure a placement and a baseline in turns; MeasurementError if one has no latency."""
        placements = {"baseline": baseline, "given": placement}
        models, options = by_name(self.runs.bound), RunOptions(counters=False, reference=False)
        watch = Stopwatch.start(max(1.0, min(_SPEED_S, self.runs.watch.left_s / 4)))
        trials = expand(models, placements, baselines=False)
        with Session(models, Conditions(list(self.runs.arrays))) as session:
            sweep = session.measure(trials, options, watch, progress=False)
        groups = dict(sweep.ranking[["label", "group"]].itertuples(index=False, name=None))
        for name in placements.keys() - groups.keys():
            raise MeasurementError(f"The {name} placement has no latency to compare.")
        columns = ["ratio", "ratio_ci95_low", "ratio_ci95_high"]
        ratio, low, high = sweep.summary.set_index("label")[columns].T["given"]
        times = f"{ratio:.2f} times as long as {baseline.label} (95 %: {low:.2f} to {high:.2f})"
        if groups["given"] > groups["baseline"]:
            return Evidence(Symptom.SLOWER, f"It takes {times}.", ratio=ratio)
        told = f"It takes {times}."
        if not high <= _SLOWER:
            told = f"Whether it is slower is undecided: it takes {times}."
            self.is_complete = False
            self.check.notes.append(
                "Latencies were too uncertain to compare. A quieter machine helps, and "
                "hetero_lab.measure_noise where the noise of the device is assumed or was measured "
                "beside other work."
            )
        return Evidence(Symptom.OK, told, ratio=ratio)

    def find_settings(self, evidence: Evidence) -> None:
        """Find the fewest settings that make the symptom, within a share of the budget."""
        placement, is_slower = self._subject.placement, evidence.symptom is Symptom.SLOWER
        baseline = self.baseline if is_slower else None
        watch = self.runs.watch
        until_s = watch.elapsed_s + _SHARE_OF_SETTINGS * watch.left_s

        def shows(some: Sequence[Setting]) -> bool:
            if watch.elapsed_s >= until_s:
                raise BudgetOverError
            other = _without(placement, [each for each in settings if each not in some])
            trial = self._speed(other, baseline) if baseline else self.check(other)
            return trial.is_like(evidence)

        try:
            settings = settings_of(self._subject, defaults=not is_slower)
            innocent = not settings or shows(())
            self.settings = () if innocent else tuple(minimal_set(settings, shows))
        except BudgetOverError:
            self.check.notes.append("The search for settings ran out of time.")
            self.is_complete = False

    def find_ops(self, evidence: Evidence) -> None:
        """Find the fewest ops that show the symptom, in the way that model and devices allow."""
        if evidence.symptom is Symptom.SLOWER:
            self.check.notes.append(
                "To see which ops are slower: hetero_lab.explain(model, before, after)."
            )
        elif not self._find_by_values(evidence):
            self._find_by_device(evidence)

    def _find_by_values(self, evidence: Evidence) -> bool:
        """Run sets of ops by themselves, as find_wrong does; tell whether that explains it all.

        Of a language model, this is done at the step where the symptom begins.
        """
        runs, notes, tolerance = self.runs, self.check.notes, self.check.tolerance
        has_outputs, step = evidence.symptom.has_outputs, self._at_step(evidence)
        if step is None or (has_outputs and not self.check.expected):
            return False
        trusted = runs.trusted if self.check.expected else ""
        try:
            with runs.instead(*step, trusted=trusted):
                wrong = search_wrong(runs, tolerance=tolerance, failures_only=not has_outputs)
        except (HeteroLabError, RuntimeError) as error:  # of the reference: it has no numbers, say
            notes.append(f"The ops were not run one by one: {error}")
            return False
        if wrong.kind in ("none", "rounding") and wrong.complete and not wrong.interrupted:
            has_states = self._subject.bound.model.get_sinks()
            if explained := has_outputs and not has_states and tolerance is None:
                self.evidence = Evidence(Symptom.OK, wrong.verdict, wrong.before)
                self.settings = None
            return explained
        notes += [wrong.verdict, *wrong.notes] if has_outputs else wrong.notes
        ended = bool(wrong.sets) or wrong.interrupted
        if ended:
            self.wrong = wrong
        if wrong.sets:
            self._blame_worst(wrong, evidence)
        if not wrong.complete and not wrong.interrupted:
            raise BudgetOverError
        return ended

    def _blame_worst(self, wrong: Wrong, evidence: Evidence) -> None:
        """Take the worst set of wrong ops for the cause, with its own symptom if it differs."""
        worst = max(wrong.sets, key=lambda each: (each.minimal, each.damage))
        if evidence.symptom.has_outputs:
            is_nan = evidence.symptom is Symptom.NAN and not math.isfinite(worst.error)
            reproducer = wrong.reproducer(worst, Symptom.NAN if is_nan else None)
            told = f"{reproducer.told} In the whole model: {evidence.told}"
            self.reproducer = replace(reproducer, told=told)
        else:
            self.reproducer = wrong.reproducer(worst, evidence.symptom if worst.refusal else None)
        self.device, self.ops, self.is_minimal = worst.device, worst.ops, worst.minimal

    def _at_step(self, evidence: Evidence) -> tuple[BoundPlacement, Sequence[np.ndarray]] | None:
        """Return a static model without states, where the symptom begins, and its inputs.

        ``None`` if the states before that step cannot be computed.
        """
        runs, bound, homes = self.runs, self._subject.bound, self._subject.affinity
        if not bound.model.get_sinks():
            return self._subject, runs.arrays
        n, before = len(bound.model.inputs), (evidence.step or 1) - 1
        keys, states = new_states(bound.model), dict[str, np.ndarray]()
        if before:
            try:
                arrays = runs.arrays[: before * n]
                _, tensors = runs.run(runs.reference, list(dict.fromkeys(keys.values())), arrays)
            except HeteroLabError as error:
                self.check.notes.append(
                    f"The states before inference {evidence.step} are not known: {error}"
                )
                return None
            states = {state: tensors[key] for state, key in keys.items()}
        model, arrays = at_step(bound.model, runs.arrays[before * n : (before + 1) * n], states)
        stateless = bind(model, bound.core)
        affinity = Affinity.from_graph(
            stateless.graph, lambda op: homes[op] if op in homes else homes.devices[0]
        )
        placement = replace(self._subject.placement, affinity=affinity)
        return BoundPlacement(stateless, placement), arrays

    def _find_by_device(self, evidence: Evidence) -> None:
        subject, trusted = self._subject, self.runs.trusted
        placement = subject.placement
        if trusted:
            placement = placement.with_properties(self.runs.reference.device_properties)

        def shows(affinity: Affinity) -> str:
            try:
                other = self.check(replace(placement, affinity=affinity, direct=False))
            except (AffinityError, RuntimeError):  # the model cannot be cut there
                return ""
            return other.told if other.is_like(evidence) else ""

        smallest = smallest_ops(subject.bound, subject.affinity, shows, trusted or None)
        if smallest is not None:
            ops = smallest.ops
            others = {op: smallest.target for op in subject.affinity.ops if op not in ops}
            affinity = subject.affinity.fix(ops=others, core=subject.core)
            alone = replace(placement, affinity=affinity, direct=False)
            self.reproducer = self.whole(evidence, alone, ops)
            self.device, self.ops = smallest.device, ops

    def whole(
        self, evidence: Evidence, placement: Placement | None = None, ops: Sequence[str] = ()
    ) -> Reproducer:
        """Return what shows the symptom with the whole model, by default as placed."""
        runs, graph = self.runs, self.runs.bound.graph
        wrong = BoundPlacement(runs.bound, placement or self._subject.placement)
        side = runs.reference if self.check.expected else None
        side = self.baseline if evidence.symptom is Symptom.SLOWER else side
        right = None if side is None else BoundPlacement(runs.bound, side)
        devices = dict.fromkeys([*wrong.devices, *(right.devices if right else ())])
        ops = ops or [graph.ops[index].name for index in graph.placeable]
        return Reproducer(
            symptom=evidence.symptom,
            told=evidence.told,
            model=runs.bound.model,
            inputs=runs.arrays,
            wrong=CompileCall.of(wrong),
            right=CompileCall.of(right) if right else None,
            ops=[(op, graph.op(op).type) for op in ops],
            outputs=runs.bound.output_names,
            why="It is the whole model.",
            environment=current_environment(devices, wrong.core),
            plugins=plugins_of(devices, wrong.core),
            error=evidence.error,
            ratio=evidence.ratio,
        )

    def of_settings(self, evidence: Evidence) -> list[str]:
        if self.settings is None:
            return []
        if self.settings:
            return [f"It shows only with {' and '.join(map(str, self.settings))}."]
        is_slower = evidence.symptom is Symptom.SLOWER
        return ["No single setting explains it." if is_slower else "No setting is to blame."]


def settings_of(bound: BoundPlacement, *, defaults: bool) -> list[Setting]:
    """Return a placement's settings that can be left out, and ``defaults`` that are not exact."""
    settings: list[Setting] = []
    for device in bound.devices:
        real = bases_of([device], bound.core).get(device, device)
        properties, exact = bound.properties[device], exact_properties(device, bound.core)
        of_placement = bound.placement.device_properties.get(device, {})
        for key in dict.fromkeys([*properties, *exact]):
            value = properties[key] if key in properties else property_of(scratch_core(), real, key)
            same = key in exact and _text(value) == _text(exact[key])
            if not same and (key in of_placement or (defaults and key in exact)):
                settings.append(Setting(device, key, _text(value), exact.get(key)))
    return settings


def _without(placement: Placement, settings: Iterable[Setting]) -> Placement:
    properties = merged_properties(placement.device_properties)
    for setting in settings:
        of_device = properties.setdefault(setting.device, {})
        if setting.exact is None:
            of_device.pop(setting.key, None)
        else:
            of_device[setting.key] = setting.exact
    return replace(placement, device_properties=properties)


def _text(value: Any) -> str:
    text = getattr(value, "get_type_name", lambda: str(value))()
    return {"True": "1", "False": "0", "YES": "1", "NO": "0", "float32": "f32"}.get(text, text)
