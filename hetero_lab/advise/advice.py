"""Advice: the placement to deploy, its evidence, and the verdict in words."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.deploy.contract import AccuracyPromise
from hetero_lab.deploy.freeze import freeze_placed
from hetero_lab.devices.core import BoundModel
from hetero_lab.errors import MeasurementError, names_at_hand
from hetero_lab.intervals import Latency
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.result import Result
from hetero_lab.results.environment import BUSY
from hetero_lab.results.evidence import (
    ALIKE,
    AS_FAST,
    BEST,
    FASTER,
    MAY_BE_BEST,
    SLOWER,
    TOLERANCE,
    UNDECIDED,
    against_best,
    between,
    finding,
    judge_candidates,
    reason,
)
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import BUDGET_ENDED, Row
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.runtime.reference import agreement_notes
from hetero_lab.search.optimize import Optimized
from hetero_lab.tables import number, time_text

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.views.result_views import Contents

WRONG, INACCURATE, UNMEASURED = "wrong outputs", "less accurate", "not measured"


@dataclass(frozen=True)
class Judged:
    """A candidate of an advice, and the judgement on it."""

    row: Row
    placement: Placement
    bound: BoundModel
    stage: str  # race or final
    # best, faster, as fast, slower, undecided, wrong outputs, less accurate or not measured
    judgement: str
    why: str = ""

    @property
    def us(self) -> float:
        """The latency, infinite if it was not measured."""
        return self.row.latency.us if self.row.latency else math.inf

    def after_the_race(self, reference: Latency | None) -> Judged:
        """Return this candidate beside those of the final, where ``reference`` sets the scale."""
        why = f"{self.why} in the race" if self.judgement in (SLOWER, *MAY_BE_BEST) else self.why
        if self.judgement in MAY_BE_BEST:
            why += ", not measured again"
        row = replace(self.row, reference_latency=reference or self.row.reference_latency)
        return replace(self, row=row, why=why)


@dataclass(frozen=True)
class Advice(Result):
    """What to deploy.

    Attributes
    ----------
    best
        The placement to deploy.
    verdict
        Sentences: the best candidate, by how much and how sure, and the judgement on the others;
        after an empty line why placements are no candidates, and what could change the answer.
    candidates
        All candidates that were measured or tried, in order of simplicity.
    left_out
        Other placements that could be no candidates, and why.
    executor
        The executor that runs the best placement fastest: ``hetero``, or ``parallel`` for
        :class:`hetero_lab.ParallelExecutor`.
    sweep
        The last measurement of the best few.
    optimized
        The result of :func:`hetero_lab.optimize`, if it ran.
    interrupted
        Whether Ctrl-C ended it; the result is sound nevertheless.
    spread
        How far the logarithm of the best candidate's ratio to the reference moved between race and
        final (standard deviation).
    """

    best: Placement
    verdict: str
    candidates: tuple[Judged, ...]
    left_out: tuple[tuple[str, str], ...]
    executor: str
    sweep: Sweep
    examples: tuple[Inputs, ...] = ()
    optimized: Optimized | None = None
    interrupted: bool = False
    spread: float = 0.0

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a candidate: columns as in ``sweep.summary``, and ``stage``, ``judgement``."""
        rows = tuple(c.row for c in self.candidates)
        frame = replace(self.sweep, rows=rows, notes=()).summary.copy()
        for index, name in enumerate(("stage", "judgement", "why"), start=1):
            frame.insert(index, name, [getattr(c, name) for c in self.candidates])
        return frame

    @property
    def chosen(self) -> Judged:
        """The candidate that is advised.

        Raises
        ------
        MeasurementError
            Nothing was measured.
        """
        best = by_label(self.candidates, BEST)
        if not best:
            raise MeasurementError("Nothing was measured, so no candidate is advised.")
        return best[0]

    def deploy(
        self, directory: str | os.PathLike[str], *, tolerance: float | None = TOLERANCE
    ) -> Path:
        """Freeze the advised placement with its contract, as :func:`hetero_lab.freeze` does.

        The latency is promised relative to the reference of the advice, within ``tolerance``.

        Returns
        -------
        pathlib.Path
            The directory, which :func:`hetero_lab.verify` holds to the contract.

        Raises
        ------
        MeasurementError, OutputPathError, CompileError
            Nothing was measured; as for :func:`hetero_lab.freeze`.
        """
        return self.deploy_candidate(self.chosen, directory, tolerance)

    def deploy_candidate(
        self, candidate: Judged, directory: str | os.PathLike[str], tolerance: float | None
    ) -> Path:
        """Freeze one of the candidates, as ``deploy`` does with the one that is advised."""
        result, promise = candidate.row.evaluation, None
        if result is not None and result.is_labelled:
            promise = AccuracyPromise(
                accuracy=result.accuracy, drop=float(result.paired.drop), n_examples=len(result)
            )
        reference = next((c for c in self.candidates if c.row.label == self.sweep.reference), None)
        return freeze_placed(
            resolve(candidate.bound, candidate.placement),
            directory,
            examples=self.examples or None,
            accuracy=promise,
            tolerance=tolerance,
            baseline=reference and reference.placement,
            spread=self.spread,
        )

    def __repr__(self) -> str:
        return f"Advice({self.sweep.configuration_of(self.best.label)!r})\n{self.verdict}"

    def __str__(self) -> str:
        return f"{self.verdict}\n"

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        return {"": ranking(self.summary)}


def ranking(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the summary of an advice for a reader: the best first, then from fast to slow."""
    times = ["median_us", "ci95_low_us", "ci95_high_us", "throughput_per_s"]
    ratios = ["ratio", "ratio_ci95_low", "ratio_ci95_high"]
    others = ["accuracy", "execution_devices", "compile_ms"]
    columns = ["configuration", "judgement", "stage", *times, *ratios, *others]
    first = summary.assign(others=summary["judgement"] != BEST).sort_values(["others", "median_us"])
    return first.reindex(columns=[name for name in columns if name in summary])


def contents_of_advice(advice: Advice) -> Contents:
    """Return what a page shows of an advice."""
    # Here, since they import plotly.
    from hetero_lab.accuracy.accuracy_figures import accuracy_front
    from hetero_lab.views.graph_drawing import placement_graph
    from hetero_lab.views.result_views import Contents, labelled, varying
    from hetero_lab.views.sweep_figures import latency_ranking

    best = (c.row.scaled_profile for c in advice.candidates if c.judgement == BEST)
    optimized = advice.optimized
    if optimized is not None and optimized.split and len(advice.best.affinity.devices) == 1:
        # A single device has no picture; what was searched has one.
        rows = optimized.sweep.rows
        best = (row.scaled_profile for row in rows if row.label == optimized.split.label)
    return Contents(
        {
            latency_ranking: advice if any(row.profile for row in advice.sweep.rows) else None,
            placement_graph: next(best, None),
            accuracy_front: labelled(advice.sweep),
        },
        tables={"Summary": varying(advice.summary)},
    )


def by_label(candidates: Sequence[Judged], judgement: str) -> list[Judged]:
    """Return the candidates with a judgement."""
    return [candidate for candidate in candidates if candidate.judgement == judgement]


def judge(
    rows: Mapping[str, Row],
    models: Mapping[str, BoundModel],
    placements: Mapping[str, Placement],
    *,
    stage: str,
    max_drop: float,
) -> list[Judged]:
    """Return the candidates, the simplest first, each with a judgement on its row.

    ``rows``, ``models`` and ``placements`` are by label; ``max_drop`` is the share of right answers
    that may be lost to f32.
    """
    reasons = {label: _unusable(row, max_drop) for label, row in rows.items()}
    usable = {
        label: row.latency.us
        for label, row in rows.items()
        if row.latency is not None and reasons[label] is None
    }
    judgements = judge_candidates(usable, lambda label, best: between(rows[label], rows[best]))
    best = next((label for label in judgements if judgements[label] == BEST), "")
    winner = rows[best].configuration if best else ""
    for label in judgements:
        ratio = between(rows[label], rows[best])
        share = (ratio.middle if ratio else usable[label] / usable[best]) - 1.0
        why = f"{abs(share):.1%} {'slower' if share >= 0 else 'faster'} than {winner}"
        if judgements[label] == UNDECIDED:
            why += f", but {reason(ratio)}"
            if ratio is not None and not ratio.low <= 1.0 <= ratio.high:
                why += f", which may be chance among {len(judgements)} candidates"
        reasons[label] = judgements[label], "" if label == best else why
    return [
        Judged(row, placements[label], models[label], stage, *(reasons[label] or ("", "")))
        for label, row in rows.items()
    ]


def _unusable(row: Row, max_drop: float) -> tuple[str, str] | None:
    """Return the judgement on a row that was not measured or is not right, and its reason."""
    if row.profile is None or row.latency is None:
        if row.status == BUDGET_ENDED:
            return UNMEASURED, "the budget ended before them"
        return UNMEASURED, row.detail or row.status
    wrong = [a for a in row.profile.agreement if a.is_wrong]
    if wrong:
        worst = max(wrong, key=lambda a: np.nan_to_num(a.relative_error, nan=np.inf))
        far = worst.detail or f"by {worst.relative_error:.2g}"
        return WRONG, f"output {worst.output} is off {far}"
    evaluation = row.evaluation
    if evaluation is not None and evaluation.is_labelled and evaluation.paired.drop > max_drop:
        return INACCURATE, f"{evaluation.paired.drop:.1%} fewer right answers than in f32"
    return None


def _why_not_simpler(candidates: Sequence[Judged]) -> Iterator[str]:
    """Say of candidates that may be as fast as the best, and are simpler, what beats them.

    Only those of the stage that chose the best count: turns of two stages are no pairs.
    """
    stages = {c.stage for c in by_label(candidates, BEST)}
    measured = [
        c for c in candidates if c.stage in stages and c.judgement in (BEST, *MAY_BE_BEST, SLOWER)
    ]
    for candidate in itertools.takewhile(lambda c: c.judgement != BEST, measured):
        faster = (
            other.row.configuration
            for other in sorted(measured, key=lambda c: c.us)
            if against_best(between(other.row, candidate.row), len(measured)) == FASTER
        )
        if candidate.judgement in MAY_BE_BEST and (name := next(faster, "")):
            yield f"{candidate.row.configuration} is simpler, and {name} is shown to be faster."


def verdict_sentences(
    advice: Advice, *, notes: Sequence[str], n_requests: int, would_change: Iterable[str]
) -> list[str]:
    """Return the sentences of a verdict.

    ``notes`` are on stages that did not work, ``would_change`` arguments that could lead to another
    answer.
    """
    candidates, sweep = advice.candidates, advice.sweep
    best = by_label(candidates, BEST)
    sentences = [f"Nothing usable was measured; {advice.best.label} is OpenVINO's own choice."]
    if best:
        sentences = [*_what_is_best(advice, n_requests)]
        busy = [note for note in sweep.notes if note.startswith(BUSY)]
        sentences += [f"{note} A quiet machine may rank them otherwise." for note in busy]
    if faster := by_label(candidates, FASTER):
        sentences.append(f"Faster, but by 1 % at most: {_names(faster)}.")
    if alike := by_label(candidates, ALIKE):
        sentences.append(f"As fast, within {AS_FAST:.0%}: {_names(alike)}.")
    if faster or alike:
        sentences.append("Of those within 1 %, the simplest is recommended.")
    if undecided := sorted(by_label(candidates, UNDECIDED), key=lambda c: c.us):
        first, *others = undecided
        whose = f"{first.row.configuration}, the fastest of them: " if others else ""
        sentences.append(f"Undecided: {_names(undecided)} ({whose}{first.why}).")
    sentences += _why_not_simpler(candidates)
    if slower := by_label(candidates, SLOWER):
        sentences.append(f"Slower, beyond the uncertainty: {_names(slower)}.")
    for candidate in by_label(candidates, WRONG):
        sentences.append(
            f"{candidate.row.configuration} computes wrong outputs ({candidate.why}); "
            "hetero_lab.find_wrong(model, placement) finds the ops."
        )
    profiles = (c.row.profile for c in best)
    sentences += agreement_notes(a for p in profiles if p for a in p.agreement)
    for judgement in (INACCURATE, UNMEASURED):
        several = by_label(candidates, judgement)
        reasons = dict.fromkeys(c.why for c in several)
        needed_s = max((c.row.needs_s for c in several), default=0.0)
        if needed_s:
            reasons[f"the rest needs about {math.ceil(needed_s)} s"] = None
        if several:
            why = "; ".join(reasons)[:300]
            sentences.append(f"{judgement.capitalize()}: {_names(several)} ({why}).")
    if advice.optimized is not None and not advice.optimized.improved:
        sentences.append(f"The search kept none of its plans. {advice.optimized.searched}")
    sentences.append("")
    if best:
        reference = sweep.configuration_of(sweep.reference)
        sentences.append(f"Latencies are on the scale of {reference}: its own times the ratio.")
    for label, why in advice.left_out:
        sentences.append(f"Not a candidate: {label}, because {why.rstrip('.')}.")
    emulated = dict(sweep.environment.emulated)
    if emulated:
        sentences.append(
            f"{names_at_hand(emulated)} {'is' if len(emulated) == 1 else 'are'} emulated: times "
            "there say nothing about a real device."
        )
    sentences += notes
    if advice.interrupted:
        sentences.append("Ctrl-C ended it early; the verdict rests on the turns measured by then.")
    can_differ = sum(candidate.row.latency is not None for candidate in candidates) > 1
    if can_differ and sweep.smallest_difference > 1.0:
        sentences.append("The machine was too noisy to rank the candidates: measure again.")
    elif can_differ:
        sentences.append(
            f"Differences below {sweep.smallest_difference:.1%} could not be seen in this run."
        )
    changes = "; ".join(would_change)
    return [*sentences, f"What could change the answer: {changes}."] if changes else sentences


def _names(candidates: Sequence[Judged]) -> str:
    return names_at_hand([candidate.row.configuration for candidate in candidates], 4)


def _what_is_best(advice: Advice, n_requests: int) -> Iterator[str]:
    """Say what to deploy in one sentence, then how sure that is."""
    best, reference = advice.chosen, advice.sweep.reference
    latency, ratio = best.row.latency, best.row.series.ratio
    assert latency is not None
    each = "a request" if n_requests == 1 else f"a result, with {n_requests} in flight"
    text = f"Deploy {best.row.configuration}: {time_text(latency.us)} {each}"
    text += f" ({number(1e6 / latency.us)} a second)"
    ends = f"{time_text(latency.low_us)} to {time_text(latency.high_us)}"
    sure = f"The 95 % interval is {ends}."
    reference_name = advice.sweep.configuration_of(reference)
    if best.row.label == reference:
        others = sum(c.row.latency is not None for c in advice.candidates) - 1
        is_open = bool(by_label(advice.candidates, UNDECIDED))
        better = "shown to be faster" if is_open else "worth the change"
        if others > 1:
            text += f", and none of the {others} other candidates measured is {better}"
        elif others == 1:
            text += f", and the other candidate measured is not {better}"
        elif len(advice.candidates) > 1:
            text += ", the only candidate that was measured"
    elif ratio is not None:
        middle, low, high, _ = ratio
        text += f", {middle:.3f} of the time of {reference_name}{best.row.emulation}"
        interval = f"{low:.3f} to {high:.3f}" if np.isfinite(high) else "unknown, for too few turns"
        sure = f"{sure[:-1]}, that of the ratio {interval}."
        against = {
            ALIKE: f" It is as fast as {reference_name}, within {AS_FAST:.0%}.",
            SLOWER: f" It is slower than {reference_name}.",
            UNDECIDED: f" Whether it is faster than {reference_name} is undecided.",
        }
        sure += against.get(finding(ratio), "")
    yield f"{text}."
    evaluation = best.row.evaluation
    if evaluation is not None and evaluation.is_labelled:
        sure += f" Accuracy {evaluation.accuracy:.1%}, {-evaluation.paired.drop:+z.1%} against f32."
    yield sure
