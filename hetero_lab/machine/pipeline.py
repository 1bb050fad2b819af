"""Pipelines: several models that run at the same time, and their best devices together."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.advise.advice import UNMEASURED, Advice, Judged
from hetero_lab.advise.candidates import held_bytes
from hetero_lab.clock import now
from hetero_lab.costs.objective import LATENCY
from hetero_lab.devices.bound import BoundModel, bind
from hetero_lab.errors import (
    ArgumentError,
    HeteroLabError,
    MeasurementError,
    PlanError,
    names_at_hand,
    shorten,
)
from hetero_lab.interrupts import UntilInterrupted, bringing
from hetero_lab.intervals import Noise, Ratio, known_within, paired_ratio, turn_level
from hetero_lab.model.read import Source
from hetero_lab.placement.memory_limits import MemoryLimit, excess_text, memory_pools
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.progress import Progress
from hetero_lab.result import Result
from hetero_lab.results.environment import noise_here
from hetero_lab.results.evidence import (
    ALIKE,
    AS_FAST,
    BEST,
    MAY_BE_BEST,
    SLOWER,
    TOLERANCE,
    UNDECIDED,
    against_best,
    judged,
)
from hetero_lab.runtime.compiled import CompiledPlacement, compile_placed, inference_errors
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.runtime.timing import Stopwatch, run_side_by_side_turn
from hetero_lab.tables import frame_of, make_directory, time_text

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_ALONE = 0.5  # of the budget, for the advices on each model alone
# A directory's name on Windows, too, where some names are devices.
_NAME = re.compile(r"(?!(con|prn|aux|nul|(com|lpt)\d)$)[a-z0-9_][a-z0-9_-]*", re.I | re.A)
_OPTIONS = 4  # candidates of each model that are combined
_MOST = 16  # combinations that are measured
_LEAST_TURNS, _MOST_TURNS = 3, 30
_LOOKS = (3, 6, 12, 24)  # turns after which slower combinations drop out
_N_LOOKS = len(_LOOKS) + 1  # and the last one
_PRECISION = 0.015  # half the width of the interval of a ratio
_COLUMNS = ("judgement", "median_us", "ratio", "ratio_ci95_low", "ratio_ci95_high", "n_turns")


@dataclass(frozen=True)
class Combination:
    """One way to run all models at the same time: a candidate of each."""

    chosen: Mapping[str, Judged]
    turns_us: tuple[Mapping[str, float], ...] = ()  # of each model while the others ran
    judgement: str = UNMEASURED  # or best, or a finding

    @property
    def label(self) -> str:
        """Which candidate each model is."""
        return ", ".join(f"{name}: {c.row.configuration}" for name, c in self.chosen.items())

    def levels_us(self, objective: str) -> list[float]:
        """Return the time of each turn: the sum over the models, or that of the slowest."""
        whole = sum if objective == LATENCY else max
        return [whole(turn.values()) for turn in self.turns_us]

    def beside(self, other: Combination, objective: str) -> tuple[list[float], list[float]]:
        """Return the times of the turns that both have, its own and those of the other one."""
        ours, others = self.levels_us(objective), other.levels_us(objective)
        common = min(len(ours), len(others))
        return ours[:common], others[:common]

    def ratio(self, other: Combination, objective: str, noise: Noise) -> Ratio | None:
        """Return the ratio to another one over the turns that both have; ``None`` without any."""
        ours, others = self.beside(other, objective)
        return paired_ratio(ours, others, noise) if ours else None


@dataclass(frozen=True)
class PipelineAdvice(Result):
    """What to deploy for several models that run at the same time.

    Attributes
    ----------
    best
        The placement of each model.
    verdict
        Sentences: the best combination, by how much and how sure, and its times beside those of
        each model alone.
    advices
        The advice on each model alone.
    combinations
        The combinations that were measured, with one request of each model at a time whatever
        ``requests`` is. The first one is the reference: the best of each model alone, or under
        memory limits the first that keeps to them.
    left_out
        Combinations that no device has the memory for, and why.
    objective
        ``latency``: the time of an item through all models one after another, while all are
        busy; ``throughput``: the time between items, which is that of the slowest model.
    noise
        How much two compiles differ on the devices, which no number of turns averages out.
    interrupted
        Whether Ctrl-C ended it.
    """

    best: Mapping[str, Placement]
    verdict: str
    advices: Mapping[str, Advice]
    combinations: tuple[Combination, ...]
    left_out: tuple[tuple[str, str], ...]
    objective: str
    noise: Noise
    interrupted: bool = False

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a combination.

        ``judgement``; per model ``NAME``, ``NAME_together_us``, and ``NAME_alone_us`` where that
        is also of one request; ``median_us`` of the objective, ``ratio``, ``ratio_ci95_low`` and
        ``ratio_ci95_high`` to the first row; ``n_turns``. Values not measured are missing.
        """
        rows = []
        for combination in self.combinations:
            row: dict[str, object] = {"judgement": combination.judgement}
            for name, candidate in combination.chosen.items():
                row[name] = candidate.row.configuration
                if candidate.row.requests == 1:
                    row[f"{name}_alone_us"] = _alone_us(candidate)
                row[f"{name}_together_us"] = _median([t[name] for t in combination.turns_us])
            levels = combination.levels_us(self.objective)
            found = combination.ratio(self.combinations[0], self.objective, self.noise)
            shown = (_median(levels), *(found[:3] if found else (np.nan,) * 3), len(levels))
            rows.append(row | dict(zip(_COLUMNS[1:], shown, strict=True)))
        return frame_of(rows)

    @property
    def chosen(self) -> Combination:
        """The combination that is advised."""
        return next((c for c in self.combinations if c.judgement == BEST), self.combinations[0])

    def deploy(
        self, directory: str | os.PathLike[str], *, tolerance: float | None = TOLERANCE
    ) -> Path:
        """Freeze each model with its contract, in a directory of its own name.

        The latency of each alone is promised relative to the reference of its own advice.

        Returns
        -------
        pathlib.Path
            The directory; :func:`hetero_lab.verify` takes the ones in it.

        Raises
        ------
        MeasurementError, OutputPathError, CompileError
            Nothing was measured together; as for :func:`hetero_lab.freeze`.
        """
        if self.chosen.judgement != BEST:
            raise MeasurementError(
                "Nothing was measured together, so there is no choice to deploy. "
                f"advices[{next(iter(self.advices))!r}].deploy(…) deploys one model as it is best "
                "alone."
            )
        target = make_directory(directory)
        for name, candidate in self.chosen.chosen.items():
            self.advices[name].deploy_candidate(candidate, target / name, tolerance)
        return target

    def __repr__(self) -> str:
        return f"PipelineAdvice({self.chosen.label!r})\n{self.verdict}"

    def __str__(self) -> str:
        return f"{self.verdict}\n"


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def check_pipeline(models: Mapping[str, Any], given: Sequence[str]) -> None:
    """Raise ArgumentError for names that no directory or column can have, or for no model at all.

    ``given`` are names of arguments that are for one model only.
    """
    if not models:
        raise ArgumentError("A pipeline needs at least one model: {'det': 'det.onnx', …}.")
    for name in models:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ArgumentError(
                f"{shorten(repr(name))} cannot name a model of a pipeline: deploy() names a "
                "directory after it. Use letters, digits, - and _ only."
            )
        if name in _COLUMNS or name.endswith(("_alone_us", "_together_us")):
            raise ArgumentError(
                f"{name!r} cannot name a model of a pipeline: its summary has such a column. "
                "Choose another name."
            )
    if len({name.lower() for name in models}) < len(models):
        raise ArgumentError("Names that differ in case are one directory on Windows. Rename one.")
    if given:
        raise ArgumentError(
            f"{', '.join(f'{name}=' for name in given)} is for one model: advise on each "
            "alone, or leave it out."
        )


def advise_on_several(
    models: Mapping[str, Source],
    advice_on: Callable[[BoundModel, Stopwatch, Path | None], Advice],
    *,
    watch: Stopwatch,
    directory: Path | None,
    **options: Any,
) -> PipelineAdvice:
    """Advise on each model alone, then on all together; ``options`` are those of the latter.

    The measurements of each lie in a directory of its own name. After Ctrl-C in one of them, the
    advices until then are kept.
    """
    core = options["core"]
    bound = {name: bind(source, core) for name, source in models.items()}
    alone_s = None if watch.budget_s is None else _ALONE * watch.budget_s / len(bound)
    advices: dict[str, Advice] = {}
    for name, model in bound.items():
        place = directory and directory / name
        with bringing(advices):
            advices[name] = advice_on(model, Stopwatch.start(alone_s), place)
            if advices[name].interrupted and len(advices) < len(bound):
                raise KeyboardInterrupt
    left_s = None if watch.budget_s is None else watch.left_s
    return advise_together(advices, watch=Stopwatch(left_s, now()), **options)


def advise_together(
    advices: Mapping[str, Advice],
    *,
    objective: str,
    memory_limit: MemoryLimit | None,
    watch: Stopwatch,
    seed: int,
    progress: bool,
    core: ov.Core,
) -> PipelineAdvice:
    """Combine the good candidates of each model, and measure all models at the same time.

    After Ctrl-C in an advice nothing is measured: the best of each alone are known.
    """
    combinations, left_out = possible_combinations(advices, objective, memory_limit)
    used = {d for one in combinations for c in one.chosen.values() for d in c.placement.devices}
    race = PipelineRace(combinations, objective, noise_here(used, core), side_by_side(seed))
    interrupted = any(advice.interrupted for advice in advices.values())
    if not interrupted:
        with (
            Progress("together", show=progress, budget_s=watch.budget_s),
            UntilInterrupted() as until,
        ):
            race.run(watch)
        interrupted = until.interrupted
    measured = race.judged()
    best = next((c for c in measured if c.judgement == BEST), measured[0])
    advice = PipelineAdvice(
        best={name: c.placement for name, c in best.chosen.items()},
        verdict="",
        advices=dict(advices),
        combinations=tuple(measured),
        left_out=tuple(left_out.items()),
        objective=objective,
        noise=race.noise,
        interrupted=interrupted,
    )
    return replace(advice, verdict="\n".join(pipeline_verdict(advice, race.failed)))


def possible_combinations(
    advices: Mapping[str, Advice], objective: str, memory_limit: MemoryLimit | None
) -> tuple[list[Combination], dict[str, str]]:
    """Return the best of each alone, then other devices for some, the promising ones first.

    Also return why others are left out. MeasurementError, if nothing usable was measured of a
    model alone; PlanError, if no combination keeps to the memory limits.
    """
    options = [_options(advice) for advice in advices.values()]
    for (name, advice), of_model in zip(advices.items(), options, strict=True):
        if not of_model:
            raise MeasurementError(f"Nothing usable was measured of {name} alone. {advice.verdict}")
    found, left_out = [], {}
    for chosen in itertools.product(*options):
        combination = Combination(dict(zip(advices, chosen, strict=True)))
        excess = _over_limit(combination, memory_limit)
        if excess:
            left_out[combination.label] = excess
        else:
            found.append(combination)
    if not found:
        label, why = next(iter(left_out.items()))
        raise PlanError(f"No combination keeps to memory_limit=. {label}: {why}.")
    first = found[0]
    found.sort(key=lambda combination: _expected_us(combination, objective))
    return [first, *[c for c in found if c is not first]][:_MOST], left_out


def _options(advice: Advice) -> list[Judged]:
    """Return the advised candidate, and the fastest usable one on each other set of devices."""
    usable = [c for c in advice.candidates if c.judgement in (BEST, *MAY_BE_BEST, SLOWER)]
    usable.sort(key=lambda c: (c.judgement != BEST, c.us))
    by_devices: dict[frozenset[str], Judged] = {}
    for candidate in usable:
        by_devices.setdefault(frozenset(candidate.placement.devices), candidate)
    return list(by_devices.values())[:_OPTIONS]


def _over_limit(combination: Combination, memory_limit: MemoryLimit | None) -> str:
    """Say which devices would hold more of all models than they may; empty if none would."""
    chosen = combination.chosen.values()
    named = {d for key in memory_limit or {} for d in ([key] if isinstance(key, str) else key)}
    devices = tuple(sorted(named.union(*(c.placement.devices for c in chosen))))
    held = sum(held_bytes(c.bound.graph, c.placement, devices) for c in chosen)
    return excess_text(devices, np.asarray(held), memory_pools(devices, memory_limit))


def _expected_us(combination: Combination, objective: str) -> float:
    """Guess the time from the latencies alone: models on one device wait for each other."""
    busy: dict[str, float] = {}
    chosen = combination.chosen.values()
    for candidate in chosen:
        for device in candidate.placement.devices:
            busy[device] = busy.get(device, 0.0) + candidate.us
    return max(busy.values()) + (sum(c.us for c in chosen) if objective == LATENCY else 0.0)


class PipelineRace:
    """Measures combinations in turns; those that are slower beyond the intervals drop out.

    ``turn`` returns the latency of each model of a combination in µs, while all of them run.
    """

    def __init__(
        self,
        combinations: list[Combination],
        objective: str,
        noise: Noise,
        turn: Callable[[Combination], Mapping[str, float]],
    ):
        self.combinations, self.objective, self.noise = combinations, objective, noise
        self.turn = turn
        self.failed: dict[int, str] = {}
        self.dropped: set[int] = set()

    def run(self, watch: Stopwatch) -> None:
        """Measure until the last rival is known or time is over; the reference has three turns."""
        for number in range(1, _MOST_TURNS + 1):
            for index in self._racing:
                if not watch.is_over or (number <= _LEAST_TURNS and index == 0):
                    self._measure(index)
            racing = self._racing
            if not racing:
                label = self.combinations[0].label
                raise MeasurementError(f"No combination runs. {label}: {self.failed[0]}")
            if number < _LEAST_TURNS:
                continue
            if watch.is_over:
                return
            if number in _LOOKS:
                best = min(racing, key=self._median)
                self.dropped |= {i for i in racing if i > 0 and self._is_slower(i, best)}
            others = [index for index in self._racing if index > 0]
            if len(self._racing) == 1 or (len(others) == 1 and self._is_precise(others[0])):
                return

    def judged(self) -> list[Combination]:
        """Return the combinations, each with a judgement.

        The best is one of those that were not dropped, by the turns that they share: one that
        was dropped early may have been measured while the machine was faster.
        """
        racing = [index for index in self._racing if self.combinations[index].turns_us]
        shared = min((len(self.combinations[index].turns_us) for index in racing), default=0)
        us = {index: self._median(index, shared) for index in racing}
        found = judged(us, self._ratio, preferred=[0], n=len(self.combinations), looks=_N_LOOKS)
        found |= dict.fromkeys(self.dropped, SLOWER)
        return [
            replace(combination, judgement=found.get(index, UNMEASURED))
            for index, combination in enumerate(self.combinations)
        ]

    @property
    def _racing(self) -> list[int]:
        return [
            index
            for index in range(len(self.combinations))
            if index not in self.failed and index not in self.dropped
        ]

    def _measure(self, index: int) -> None:
        combination = self.combinations[index]
        try:
            turns = (*combination.turns_us, self.turn(combination))
            self.combinations[index] = replace(combination, turns_us=turns)
        except HeteroLabError as error:
            self.failed[index] = str(error)

    def _is_precise(self, index: int) -> bool:
        """Whether more turns would tell nothing more about its ratio to the reference."""
        pair = self.combinations[index].beside(self.combinations[0], self.objective)
        return len(pair[0]) > 1 and known_within(_PRECISION, *pair, self.noise)

    def _is_slower(self, index: int, best: int) -> bool:
        n = len(self.combinations)
        return against_best(self._ratio(index, best), n, _N_LOOKS) == SLOWER

    def _ratio(self, index: int, other: int) -> Ratio | None:
        return self.combinations[index].ratio(self.combinations[other], self.objective, self.noise)

    def _median(self, index: int, n_turns: int | None = None) -> float:
        return float(np.median(self.combinations[index].levels_us(self.objective)[:n_turns]))


def side_by_side(seed: int) -> Callable[[Combination], dict[str, float]]:
    """Return a function that measures a turn of a combination; it compiles a candidate once."""
    requests: dict[int, tuple[CompiledPlacement, ov.InferRequest]] = {}

    def request(candidate: Judged) -> ov.InferRequest:
        if id(candidate) not in requests:
            compiled = compile_placed(resolve(candidate.bound, candidate.placement))
            inputs = generate_inputs(candidate.bound, seed)
            requests[id(candidate)] = compiled, compiled.new_request(inputs)
        return requests[id(candidate)][1]

    def turn(combination: Combination) -> dict[str, float]:
        together = [request(candidate).infer for candidate in combination.chosen.values()]
        with inference_errors(combination.label):
            samples = run_side_by_side_turn(together)
        return dict(zip(combination.chosen, map(turn_level, samples), strict=True))

    return turn


def _alone_us(candidate: Judged) -> float | None:
    """Return the latency alone, if it is of one request, as it is measured beside the others."""
    latency = candidate.row.latency
    return None if latency is None or candidate.row.requests > 1 else latency.us


def pipeline_verdict(advice: PipelineAdvice, failed: Mapping[int, str]) -> list[str]:
    """Return the sentences of a verdict; ``failed`` says which combinations do not run, and why."""
    reference = advice.combinations[0]
    fits = all(candidate.judgement == BEST for candidate in reference.chosen.values())
    what = "the best of each model alone" if fits else "the first that keeps to memory_limit="
    sentences = [f"Nothing was measured together; {reference.label} is {what}."]
    if advice.chosen.judgement == BEST:
        sentences = _what_is_best(advice, what)
    sentences += [
        f"Not measured: {advice.combinations[i].label}: {why}" for i, why in failed.items()
    ]
    if advice.left_out:
        label, why = advice.left_out[0]
        more = f" (and {len(advice.left_out) - 1} more)" if len(advice.left_out) > 1 else ""
        sentences.append(f"Left out: {label}{more}, because {why}.")
    if advice.interrupted:
        sentences.append("Ctrl-C ended it early; the verdict rests on the turns measured by then.")
    return sentences


def _what_is_best(advice: PipelineAdvice, what: str) -> list[str]:
    """Say which combination is best, and how far it is from the reference, which is ``what``."""
    reference, best, objective = advice.combinations[0], advice.chosen, advice.objective
    whole = "an item through all of them" if objective == LATENCY else "between two items"
    us = float(np.median(best.levels_us(objective)))
    sentences = [
        f"Deploy {best.label}: {time_text(us)} {whole}, all at work at once, one request of each "
        "model at a time."
    ]
    found = best.ratio(reference, objective, advice.noise)
    if best is reference:
        sentences.append(f"That is also {what}.")
    elif found is not None:
        sentences.append(
            f"That is {found.middle:.3f} of the time (95 %: {found.low:.3f} to {found.high:.3f}) "
            f"of {what} ({reference.label})."
        )
    parts = []
    for name, candidate in best.chosen.items():
        together = float(np.median([turn[name] for turn in best.turns_us]))
        alone_us = _alone_us(candidate)
        alone = "" if alone_us is None else f", alone {time_text(alone_us)}"
        parts.append(f"{name} {time_text(together)}{alone}")
    sentences.append(f"Beside the others: {'; '.join(parts)}.")
    for judgement, begins in (
        (ALIKE, f"As fast, within {AS_FAST:.0%}"),
        (UNDECIDED, "Undecided"),
        (SLOWER, "Slower"),
    ):
        labels = [c.label for c in advice.combinations if c.judgement == judgement]
        if labels:
            sentences.append(f"{begins}: {names_at_hand(labels, 3)}.")
    return sentences
