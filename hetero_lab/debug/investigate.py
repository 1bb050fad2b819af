"""From a symptom of a placement to its cause, and to a directory that shows it without the lab."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.debug.bisection import Bisection, bisect
from hetero_lab.debug.cause import CauseSearch, Evidence, Setting
from hetero_lab.debug.expected import check_tolerance
from hetero_lab.debug.placed_runs import BudgetOverError, PlacedRuns
from hetero_lab.debug.reproducer import Reproducer, Symptom
from hetero_lab.debug.wrong import Wrong
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.devices.devices import device_names
from hetero_lab.devices.releases import releases_between
from hetero_lab.errors import (
    ArgumentError,
    CrashError,
    DeviceError,
    HeteroLabError,
    MeasurementError,
    names_at_hand,
    warn,
)
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.llm.generation import given_or_random_prompt
from hetero_lab.model.language import Scenario, check_scenario, language_model
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import BoundPlacement, Placement, PlacementLike, resolve
from hetero_lab.progress import Progress, Stopwatch
from hetero_lab.result import Displayed
from hetero_lab.runtime.inputs import Inputs, input_arrays
from hetero_lab.runtime.reference import reference_device
from hetero_lab.tables import scratch_directory

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


@dataclass(frozen=True)
class Investigation(Displayed):
    """The symptom of a placement and its cause.

    Attributes
    ----------
    symptom
        ``"ok"``, ``"slower"``, ``"wrong"``, ``"NaN"``, ``"refused"``, ``"out of memory"``,
        ``"hang"`` or ``"crash"``.
    evidence
        What was seen, in the words of the device where it failed; ``.step`` is the inference of a
        language model at which it begins.
    verdict
        The result in sentences.
    settings
        The fewest settings that make the symptom; empty if it shows without them as well,
        ``None`` if that was not searched to the end.
    device, ops
        The fewest ops that show the symptom, and the device that they run on; empty if not found.
        If the search is not complete, some of them may be innocent.
    wrong
        The result of :func:`hetero_lab.find_wrong`, where that was the way to find them: all
        sets of ops, and the way around them.
    reproducer
        What ``export`` writes; ``None`` without a symptom.
    bisection
        The result of :func:`hetero_lab.bisect` with it, if releases were asked for.
    interrupted, complete
        Whether Ctrl-C ended the search, and whether it was complete.
    """

    symptom: Symptom
    evidence: Evidence
    verdict: str
    settings: tuple[Setting, ...] | None
    device: str
    ops: tuple[str, ...]
    wrong: Wrong | None
    reproducer: Reproducer | None
    notes: tuple[str, ...]
    complete: bool
    interrupted: bool
    n_compiles: int
    elapsed_s: float
    bisection: Bisection | None = None

    def export(self, directory: str | os.PathLike[str]) -> None:
        """Write a directory that shows the symptom with openvino and numpy alone.

        ``show_fault.py`` runs ``model.xml`` on the inputs in ``inputs.npz``, ``README.md`` is a
        text in the form of OpenVINO's bug report. ``find_wrong/`` holds all faults and the way
        around them, as :meth:`hetero_lab.types.Wrong.export` writes them.

        Raises
        ------
        OutputPathError
            The directory cannot be written.
        """
        if self.reproducer is None:
            warn("Nothing is wrong, so there is nothing to export.")
            return
        self.reproducer.write(directory)
        if self.wrong is not None and self.wrong.sets:
            self.wrong.export(Path(directory) / "find_wrong")

    def __repr__(self) -> str:
        of = f": {self.device}: {names_at_hand(self.ops)}" if self.ops else ""
        return f"Investigation({self.symptom.value!r}{of})"

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.notes])

    def _sentences(self) -> list[str]:
        return [*self.verdict.split("\n"), *self.notes]

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        return {"": self.wrong.culprits} if self.wrong is not None and self.wrong.sets else {}


def investigate(
    model: Source,
    placement: PlacementLike,
    inputs: Inputs | None = None,
    *,
    baseline: PlacementLike | None = None,
    scenario: Scenario | None = None,
    tolerance: float | None = None,
    budget_s: float | None = 300.0,
    between: Sequence[str] | None = None,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Investigation:
    """Find the symptom of a placement, its cause, and a small model that shows it.

    The placement runs in a process of its own, so that it may crash or hang. Then the fewest
    settings that make the symptom are searched, and the fewest ops.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes; a language model with ``scenario``.
    placement
        The placement in question.
    inputs
        One set of inputs, which should show the symptom; generated by default. For a language
        model the prompt.
    baseline
        A placement that is faster; without it, latency is not compared.
    scenario
        How many tokens a language model reads and makes. All placements are given the same tokens.
    tolerance
        The relative error (Euclidean norm) up to which an output is right, as for ``find_wrong``.
    budget_s
        Wall time of the search. The result holds the findings until then.
    between
        An older and a newer release of OpenVINO, to find the one that brought the symptom, as
        :func:`hetero_lab.bisect` does; that takes more time than the budget.
    progress
        Show the current step, if the search takes more than two seconds.

    Returns
    -------
    Investigation
        After Ctrl-C (:func:`hetero_lab.last_interrupted`): what was known by then.

    Raises
    ------
    ArgumentError
        ``tolerance`` is not above 0, the placement is a virtual device (``AUTO:GPU,CPU``), a
        language model has no ``scenario``, or ``between`` does not name two releases.
    MeasurementError
        The budget ended before the placement gave an answer, or pip cannot list the releases.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC")
    >>> hl.investigate("digits_inception", "HETERO:ACC,CPU", progress=False).symptom.value
    'ok'
    """
    watch = Stopwatch.start(budget_s)
    check_tolerance(tolerance)
    bound = bind(model, core)
    check_scenario(bound.model, scenario)
    subject = _bind_subject(bound, placement)
    if subject.placement.virtual is not None:
        raise ArgumentError(
            f"{subject.placement.virtual} chooses a device at run time. Investigate each of its "
            f"devices by itself: {', '.join(subject.devices)}."
        )
    if baseline is not None and scenario is not None:
        raise ArgumentError("baseline= compares latencies of models of static shapes only.")
    if between is not None:
        releases_between(between)
    faster = None if baseline is None else resolve(bound, baseline).placement
    if faster is not None and faster.virtual is not None:
        raise ArgumentError(f"baseline= is one device or a HETERO placement, not {faster.virtual}.")
    if faster is not None and (faster.affinity, faster.device_properties) == (
        subject.placement.affinity,
        subject.placement.device_properties,
    ):
        raise ArgumentError("baseline= is the placement itself; name one that is faster.")
    arrays = _arrays(subject.bound, inputs, scenario)
    try:
        trusted = reference_device(subject.bound)
    except DeviceError:
        trusted = ""
    with PlacedRuns(subject, arrays, trusted, watch=watch, isolate=True) as runs:
        result = search_cause(runs, baseline=faster, tolerance=tolerance, progress=progress)
    if result.symptom is Symptom.OK and inputs is None and bound.model.inputs:
        note = "The inputs were generated. If other ones show a symptom, pass them as inputs=."
        return replace(result, notes=(*result.notes, note))
    if between is None or result.interrupted or result.symptom is Symptom.OK:
        return result
    try:
        with UntilInterrupted() as until, scratch_directory() as directory:
            result.export(directory)
            bisection = bisect(directory, between, progress=progress)
            verdict = f"{result.verdict}\n{bisection.verdict}"
            result = replace(result, bisection=bisection, verdict=verdict)
    except HeteroLabError as error:
        return replace(result, notes=(*result.notes, f"The release was not found: {error}"))
    stopped = result.bisection is not None and result.bisection.interrupted
    return replace(result, interrupted=until.interrupted or stopped)


def _bind_subject(bound: BoundModel, placement: PlacementLike) -> BoundPlacement:
    """Bind a placement; a device may crash or fail when it is asked which ops it supports.

    One of several in a list then runs the whole model; ops that were placed stay where they are.
    """
    try:
        return resolve(bound, placement)
    except DeviceError as error:
        device = error.device if isinstance(error, CrashError) else placement
        if device != placement and isinstance(placement, Placement):
            return BoundPlacement(bound, placement)
        if device != placement and isinstance(placement, Affinity):
            return BoundPlacement(bound, Placement(placement))
        if not isinstance(device, str) or device not in device_names(bound.core):
            raise
        if device != placement:
            warn(f"{error} {device} alone is investigated.")
        affinity = Affinity.on_one(bound.graph, device)
        return BoundPlacement(bound, Placement(affinity, device, direct=True))


def _arrays(
    bound: BoundModel, inputs: Inputs | None, scenario: Scenario | None
) -> list[np.ndarray]:
    """Return the inputs; for a language model, those of each step with tokens fixed beforehand."""
    if scenario is None:
        return input_arrays(bound, inputs)
    model = language_model(bound.model)
    (prompt,) = given_or_random_prompt(bound, inputs, scenario, 0)
    further = model.prompt(replace(scenario, prompt_tokens=scenario.new_tokens), 1)
    steps, past = [model.feed(prompt, 0)], scenario.prompt_tokens
    for number in range(scenario.new_tokens - 1):
        steps.append(model.feed(further[:, number : number + 1], past + number))
    return [array for step in steps for array in step]


def search_cause(
    runs: PlacedRuns,
    *,
    baseline: Placement | None = None,
    tolerance: float | None = None,
    progress: bool = False,
) -> Investigation:
    """Find symptom and cause in turn; keep what is known when the budget ends, or after Ctrl-C."""
    search = CauseSearch(runs, tolerance, baseline)
    complete, notes = False, search.check.notes
    with (
        Progress("investigate", show=progress, budget_s=runs.watch.budget_s) as bar,
        UntilInterrupted(lambda: search.evidence) as until,
    ):
        try:
            bar.note("run the placement")
            evidence = search.find_symptom()
            steps = {"settings": search.find_settings, "ops": search.find_ops}
            # If rounding explains the numbers after all, no setting is to blame.
            ops_first = search.check.is_static and evidence.symptom.has_outputs
            for name in sorted(steps, reverse=not ops_first):
                if search.evidence is not None and search.evidence.symptom is not Symptom.OK:
                    bar.note(f"search the {name}")
                    steps[name](evidence)
            complete = True
        except BudgetOverError:
            notes.append("The budget ended before the search was complete.")
    evidence, wrong = search.evidence, search.wrong
    if evidence is None:
        raise MeasurementError(
            f"The budget of {runs.watch.budget_s:g} s ended before the placement gave an answer. "
            "Give more time with budget_s=."
        )
    interrupted = until.interrupted or (wrong is not None and wrong.interrupted)
    if interrupted:
        notes.append("It was interrupted before the search was complete.")
    reproducer = None
    if evidence.symptom is not Symptom.OK:
        reproducer = search.reproducer or search.whole(evidence)
        reproducer = replace(reproducer, settings=" ".join(search.of_settings(evidence)))
    return Investigation(
        symptom=evidence.symptom,
        evidence=evidence,
        verdict=_verdict(search, evidence),
        settings=search.settings,
        device=search.device,
        ops=search.ops,
        wrong=wrong,
        reproducer=reproducer,
        notes=tuple(dict.fromkeys(notes)),
        complete=complete and search.is_complete and not interrupted,
        interrupted=interrupted,
        n_compiles=runs.n_compiles,
        elapsed_s=runs.watch.elapsed_s,
    )


def _verdict(search: CauseSearch, evidence: Evidence) -> str:
    if evidence.symptom is Symptom.OK:
        is_sure = search.check.expected and search.is_complete
        return f"No symptom. {evidence.told}" if is_sure else evidence.told
    title = evidence.symptom.title
    sentences = [f"{title[0].upper()}{title[1:]}: {evidence.told.rstrip('.')}."]
    if search.ops:
        which = "The fewest ops that show it"
        if not search.is_minimal:
            which = "It shows with these ops, perhaps with fewer"
        sentences.append(f"{which}: {names_at_hand(search.ops)} on {search.device}.")
    return "\n".join([*sentences, *search.of_settings(evidence)])
