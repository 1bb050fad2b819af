"""The symptoms of a fault, and the runs of a placement that show one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from hetero_lab.debug.expected import BudgetOverError
from hetero_lab.debug.placed_runs import PlacedRuns
from hetero_lab.errors import CompileError, MeasurementError
from hetero_lab.llm.generation import generation_precision
from hetero_lab.measure.budget import RunOptions
from hetero_lab.measure.session import Conditions, Session
from hetero_lab.measure.trial_grid import by_name, expand
from hetero_lab.model.language import is_language_model
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.runtime.reference import (
    TOLERANCE,
    Agreement,
    asked_precision,
    compare,
    lowest_precision,
    not_finite_notes,
)
from hetero_lab.runtime.tensors import has_nan
from hetero_lab.runtime.timing import Stopwatch

# What PlacedRuns says of a run without outputs: the devices, then the worker's status.
_FAILED = re.compile(r"[^:]*: (crashed|timed out|out of memory)")
_OUT_OF_MEMORY = re.compile(
    r"out.of.(\w+.)?memory|bad_alloc|failed to allocate|crashed \(signal 9\)", re.I
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|[^A-Za-z ]+")


class Symptom(StrEnum):
    """What a user sees of a fault, in the order of severity."""

    OK = "ok"
    SLOWER = "slower"
    WRONG = "wrong"
    NAN = "NaN"
    REFUSED = "refused"
    MEMORY = "out of memory"
    HANG = "hang"
    CRASH = "crash"

    @property
    def has_outputs(self) -> bool:
        """Whether the device answers."""
        return self in (Symptom.OK, Symptom.SLOWER, Symptom.WRONG, Symptom.NAN)

    @property
    def title(self) -> str:
        """The symptom as a report names it."""
        return {"wrong": "wrong numbers", "hang": "no answer"}.get(self, self.value)


@dataclass(frozen=True)
class Evidence:
    """The symptom of one run, and the sentence that proves it.

    ``error`` is the largest relative error of an output (Euclidean norm), NaN if none was compared.
    ``step`` is the inference at which the symptom begins, from 1, where several run in a row;
    ``output`` names the output that shows it. ``ratio`` is the latency relative to that of the
    baseline.
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
        return self.symptom is not Symptom.REFUSED or _words(self.told) == _words(other.told)


def failure(text: str) -> Symptom:
    """Return the symptom of a run without outputs, from the text of its CompileError."""
    # SIGKILL is the only trace of the kernel's out-of-memory killer.
    if _OUT_OF_MEMORY.search(text):
        return Symptom.MEMORY
    match = _FAILED.match(text)
    how = match[1] if match else ""
    return {"crashed": Symptom.CRASH, "timed out": Symptom.HANG}.get(how, Symptom.REFUSED)


def _words(text: str) -> str:
    return " ".join(_QUOTED.sub(" ", text).split())


class SymptomCheck:
    """Runs placements of a model, and tells the symptom of each.

    The outputs of the trusted device are ``expected``, those of each inference in a row. Without
    them, only NaN and failures show; ``notes`` say why. The ``precision`` is that of the first
    placement that ran.
    """

    def __init__(self, runs: PlacedRuns, tolerance: float | None = None):
        self.runs, self.tolerance = runs, tolerance
        self.is_static = not is_language_model(runs.bound.model)
        self.precision = ""
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
            self._check_budget()
            why = f"{self.runs.trusted} does not run the model either ({error})"
        self.notes.append(f"{why}, so there is nothing to compare with.")
        return []

    def __call__(self, placement: Placement) -> Evidence:
        """Run a placement; AffinityError if HETERO cannot pass on a tensor of dynamic shape."""
        try:
            outputs, _ = self.runs.run(placement)
        except CompileError as error:
            self._check_budget()
            return Evidence(failure(str(error)), str(error))
        self.precision = self.precision or _precision(self.runs)
        steps = self._in_steps(outputs)
        ports = self.runs.bound.model.outputs
        for port, (name, value) in zip(ports, steps[0].items(), strict=True):
            declared = port.get_partial_shape()
            if declared.is_static and tuple(port.get_shape()) != value.shape:
                told = f"Output {name!r} has the shape {list(value.shape)}, not {declared}."
                return Evidence(Symptom.WRONG, told, float("inf"), name)
        if self.expected:
            return self._compared(steps)
        for step, outputs_of_step in enumerate(steps, start=1):
            for name, value in outputs_of_step.items():
                if has_nan([value]):
                    at = None if self.is_static else step
                    return _not_a_number(name, float("nan"), at)
        return Evidence(Symptom.OK, "It runs; its numbers were not compared.")

    def _check_budget(self) -> None:
        if self.runs.is_over:  # the run may have been cut short
            raise BudgetOverError

    def _in_steps(self, outputs: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return the outputs of each of several inferences in a row, by name."""
        names = self.runs.bound.output_names
        starts = range(0, len(outputs), len(names))
        return [dict(zip(names, outputs[at : at + len(names)], strict=True)) for at in starts]

    def _compared(self, steps: Sequence[Mapping[str, np.ndarray]]) -> Evidence:
        worst, limit = 0.0, TOLERANCE["f32"]
        for step, (outputs, expected) in enumerate(zip(steps, self.expected, strict=True), start=1):
            agreement = compare(outputs, expected, self.precision, self.runs.bound.graph)
            self.notes += not_finite_notes(agreement)
            worst = max([worst, *(a.relative_error for a in agreement)])  # NaN is never larger
            limit = max([limit, *(a.tolerance for a in agreement)])
            bad = next(filter(self._is_wrong, agreement), None)
            if bad is None:
                continue
            name, error, at = bad.output, bad.relative_error, step if len(steps) > 1 else None
            if has_nan([outputs[name]]) and not has_nan([expected[name]]):
                return _not_a_number(name, error, at)
            off = f"is off {bad.detail or f'by {error:.2g} (relative error)'}"
            if bad.verdict == "not a number":
                off = "has infinities or NaN in other places than the reference"
            return _evidence(Symptom.WRONG, off, error, name, at)
        told = f"No output is off by more than {worst:.2g}"
        if worst > TOLERANCE["f32"] and self.tolerance is None:
            told += f"; up to {limit:g} counts as rounding in {self.precision}, see tolerance="
        return Evidence(Symptom.OK, f"{told}.", worst)

    def _is_wrong(self, agreement: Agreement) -> bool:
        if self.tolerance is None or agreement.verdict == "not a number":
            return agreement.is_wrong
        return agreement.relative_error > (agreement.tolerance and self.tolerance)


def _not_a_number(name: str, error: float, step: int | None) -> Evidence:
    return _evidence(Symptom.NAN, "has NaN", error, name, step)


def _evidence(symptom: Symptom, fact: str, error: float, name: str, step: int | None) -> Evidence:
    when = "" if step is None else f" from inference {step} on"
    return Evidence(symptom, f"Output {name!r} {fact}{when}.", error, name, step)


def speed(
    bound: BoundPlacement, baseline: Placement, arrays: Sequence[np.ndarray], budget_s: float
) -> Evidence:
    """Measure a placement and a baseline in turns; MeasurementError if one has no latency."""
    placements = {"baseline": baseline, "given": bound.placement}
    models, options = by_name(bound.bound), RunOptions(counters=False, reference=False)
    trials = expand(models, placements, baselines=False)
    with Session(models, Conditions(list(arrays))) as session:
        sweep = session.measure(trials, options, Stopwatch.start(budget_s), progress=False)
    groups = dict(sweep.ranking[["label", "group"]].itertuples(index=False, name=None))
    missing = [name for name in placements if name not in groups]
    if missing:
        raise MeasurementError(f"The {missing[0]} placement has no latency to compare.")
    columns = ["ratio", "ratio_ci95_low", "ratio_ci95_high"]
    ratio, low, high = sweep.summary.set_index("label")[columns].T["given"]
    told = f"It takes {ratio:.2f} times as long as {baseline.label} (95 %: {low:.2f} to {high:.2f})"
    slower = groups["given"] > groups["baseline"]
    return Evidence(Symptom.SLOWER if slower else Symptom.OK, f"{told}.", ratio=ratio)


def _precision(runs: PlacedRuns) -> str:
    """Return the lowest precision that the devices of the placement compute in."""
    bound = runs.bound_placement
    hints = list(map(runs.hint_of, bound.devices))
    if is_language_model(bound.bound.model):  # weights of few bits alone round nothing at run time
        return generation_precision(bound, asked_precision(hints))
    return lowest_precision((), bound.graph, hints)
