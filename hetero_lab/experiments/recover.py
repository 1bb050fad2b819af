"""Recover accuracy: the fastest placement over a fast and an accurate device that stays right."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import check_device, supported_ops
from hetero_lab.errors import (
    ArgumentError,
    DeviceError,
    HeteroLabError,
    MeasurementError,
    PlanError,
    names_at_hand,
)
from hetero_lab.experiments.accuracy.evaluate import (
    Evaluation,
    accuracy_columns,
    evaluate_placed,
    read_data,
)
from hetero_lab.experiments.calibrate import Calibration, check_device_properties
from hetero_lab.experiments.measure.trial import by_name
from hetero_lab.experiments.observer import search_session
from hetero_lab.experiments.progress import SearchProgress
from hetero_lab.experiments.proof import prove
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.results.sweep.row import Row
from hetero_lab.experiments.sensitivity import (
    Chunk,
    Tried,
    chunks_of,
    expected_error,
    measure_sensitivity,
    promising_sets,
    sensitivity_rows,
)
from hetero_lab.experiments.session import Conditions, Session
from hetero_lab.interrupts import set_aside
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.planning.cost_model import CostModel, expect_costs
from hetero_lab.planning.planner import plan_graph
from hetero_lab.result import Result
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.reference import Reference
from hetero_lab.runtime.scoring import judge
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.samples.datasets import Dataset, Examples

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


ALL_FAST, ALL_ACCURATE = "all fast", "all accurate"


@dataclass(frozen=True)
class Candidate:
    """A placement that was tried; ``calibration`` on the calibration part, ``held_out`` after."""

    label: str
    placement: Placement
    predicted_us: float
    calibration: Evaluation
    held_out: Evaluation | None = None


@dataclass(frozen=True)
class Recovered(Result):
    """The fastest placement that keeps the accuracy, and how it was found.

    Attributes
    ----------
    placement
        What to compile.
    fast, accurate
        The two devices.
    verdict
        In a sentence: what it costs and what it gains.
    chosen
        Label of the placement among the rows.
    max_drop
        The share of right answers that was allowed to be lost.
    finalists
        What was measured and verified on held-out examples; all fast and all accurate included.
    candidates
        All that was tried on the calibration part.
    tried
        The sensitivity of each chunk.
    sweep
        The latencies.
    costs
        The cost model that candidates were planned with.
    notes
        What the budget did not allow.
    """

    _TABLES = ("summary", "sensitivity", "front", "trials")

    placement: Placement
    fast: str
    accurate: str
    verdict: str
    chosen: str
    max_drop: float
    finalists: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    tried: tuple[Tried, ...]
    sweep: Sweep
    costs: CostModel
    notes: tuple[str, ...] = ()

    @property
    def affinity(self) -> Affinity:
        """The affinity of the placement."""
        return self.placement.affinity

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a measured candidate; ratios are to all accurate, below 1 is faster."""
        import pandas as pd

        measured = self.sweep.summary.set_index("label")
        columns = [
            "status", "n_subgraphs", "median_us", "ci95_low_us", "ci95_high_us", "ratio",
            "ratio_ci95_low", "ratio_ci95_high", "weight_bytes",
        ]  # fmt: skip
        rows = []
        for candidate in self.finalists:
            calibrated = candidate.calibration
            rows.append(
                {
                    "label": candidate.label,
                    **measured.loc[candidate.label, columns].to_dict(),
                    **accuracy_columns(candidate.held_out),
                    "calibration_accuracy": calibrated.accuracy,
                    "calibration_error": calibrated.relative_error,
                    "predicted_us": candidate.predicted_us,
                    "chosen": candidate.label == self.chosen,
                }
            )
        return pd.DataFrame(rows)

    @cached_property
    def sensitivity(self) -> pd.DataFrame:
        """One row a part in topological order: error and accuracy with it alone on a device."""
        import pandas as pd

        fast = next(c.calibration for c in self.finalists if c.label == ALL_FAST)
        reference = {"error": fast.relative_error, "accuracy": fast.accuracy}
        return pd.DataFrame(sensitivity_rows(self.tried, reference))

    @cached_property
    def front(self) -> pd.DataFrame:
        """The rows of the summary that no other beats in both latency and held-out accuracy."""
        frame = self.summary.dropna(subset=["median_us", "accuracy"]).sort_values(
            ["median_us", "accuracy"], ascending=[True, False], kind="stable"
        )
        best_before = frame["accuracy"].cummax().shift(fill_value=-1.0)
        return frame.loc[frame["accuracy"] > best_before].reset_index(drop=True)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row a candidate that was tried on the calibration part, fast to slow as predicted."""
        import pandas as pd

        rows = [
            {
                "label": c.label,
                "predicted_us": c.predicted_us,
                "accuracy": c.calibration.accuracy,
                "accuracy_drop": c.calibration.paired.drop,
                "relative_error": c.calibration.relative_error,
                "top1_agreement": c.calibration.top1_agreement,
            }
            for c in sorted(self.candidates, key=lambda c: c.predicted_us)
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"Recovered({self.placement.affinity!r}: {self.verdict})"

    def _sentences(self) -> list[str]:
        return [self.verdict, *self.notes]

    def _shown(self) -> dict[str, pd.DataFrame]:
        shown = [
            "label", "median_us", "ratio", "accuracy", "accuracy_ci95_low", "accuracy_ci95_high",
            "accuracy_drop", "accuracy_drop_ci95_low", "accuracy_drop_ci95_high", "chosen",
        ]  # fmt: skip
        return {"": self.summary.loc[:, shown]}


_CALIBRATED = 0.25  # share of the budget
_SENSED, _TRIED = 0.3, 0.55  # shares of what is left then, after which these end
MOST_CHUNKS = 16
_FINALISTS = 5
_MOST_EXAMPLES = 200  # of the calibration part
_PLAN_S = 2.0
_PRECISION = 0.02


def recover_accuracy(
    model: Source,
    fast: str,
    accurate: str,
    data: Dataset,
    *,
    max_drop: float = 0.01,
    budget_s: float | None = 120.0,
    device_properties: Mapping[str, Mapping[str, Any]] | None = None,
    costs: CostModel | None = None,
    isolate: bool = True,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Recovered:
    """Find the fastest placement that keeps the accuracy of f32 on two devices.

    Which parts of the model lose accuracy on the fast device is measured first, on the
    calibration part of the data. Sets of parts go to the accurate device, the rest is planned
    with the cost model; the candidates that keep the accuracy there are measured beside both
    devices alone, and the fastest of them is verified on the evaluation part. Held-out examples
    choose nothing: they can only refuse a candidate, and then the next slower one is looked at.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    fast, accurate
        Two devices. The accurate one supports the whole model; it computes in f32 unless
        ``device_properties`` says otherwise.
    data
        A labelled data set, such as :func:`hetero_lab.dataset` returns.
    max_drop
        How much of the share of right answers may be lost (0.01: one point). The calibration
        part must show no more, and the 95 % interval on the evaluation part must reach down to
        it.
    budget_s
        About the wall time of the search and the measurement; ``None`` tries all that is
        promising. Each device alone is tried and measured in any case, and the evaluation part
        goes through each finalist after that. What the budget did not allow is in the notes of
        the result.
    device_properties
        Properties of each device, as in a Placement.
    costs
        A cost model of the two devices with these properties; calibrated here if left out.
    isolate, progress
        As for :func:`hetero_lab.sweep`.

    Returns
    -------
    Recovered
        After Ctrl-C (:func:`hetero_lab.last_interrupted`): the costs that were measured, to go on
        with ``costs=``.

    Raises
    ------
    ArgumentError
        The two devices are one, ``max_drop`` is no share, the data is not labelled, or its parts
        overlap.
    DeviceError
        The accurate device does not support the whole model.
    PlanError
        The cost model is of another model or other devices.
    MeasurementError
        The accurate device fails.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model, data = hl.load("digits_inception"), hl.dataset("digits")
    >>> acc = hl.emulate("ACC", faster_by="auto")
    >>> found = hl.recover_accuracy(model, "ACC", "CPU", data, budget_s=25, progress=False)
    >>> found.chosen in list(found.summary["label"])
    True
    """
    watch = Stopwatch.start(budget_s)
    core = core or shared_core()
    properties = check_device_properties(device_properties, (fast, accurate), core)
    return recover_bound(
        bind(model, core),
        fast,
        accurate,
        data,
        properties,
        watch,
        max_drop=max_drop,
        costs=costs,
        isolate=isolate,
        progress=progress,
    )


def recover_bound(
    bound: BoundModel,
    fast: str,
    accurate: str,
    data: Dataset,
    device_properties: Mapping[str, Mapping[str, Any]],
    watch: Stopwatch,
    *,
    max_drop: float,
    costs: CostModel | None = None,
    isolate: bool = True,
    progress: bool = True,
) -> Recovered:
    """Do what :func:`recover_accuracy` does with a bound model and checked properties."""
    _check(fast, accurate, data, max_drop, bound.core)
    names = (fast, accurate)
    properties = {device: dict(own) for device, own in device_properties.items()}
    properties.setdefault(accurate, {}).setdefault("INFERENCE_PRECISION_HINT", "f32")
    _check_supported(bound, accurate)
    if costs is not None:
        expect_costs(costs).check_graph(bound.graph)
        costs.check_devices(names)
    with SearchProgress(watch, show=progress) as bar:
        if costs is None:
            conditions = Conditions(data.calibration[0][0], isolate=False)
            with search_session(bound, conditions) as session:
                calibration = Calibration.begin(bound, names, properties, session, watch, bar)
                calibration.run(_CALIBRATED * _budget_s(watch))
                costs = calibration.fit()
            set_aside(costs)
            if costs.interrupted:
                raise KeyboardInterrupt
        search = _Recovery(bound, fast, accurate, data, properties, costs, watch, bar, max_drop)
        search.run()
        return _prove(search, isolate=isolate)


def _budget_s(watch: Stopwatch) -> float:
    return math.inf if watch.budget_s is None else watch.budget_s


def _check(fast: str, accurate: str, data: Any, max_drop: Any, core: ov.Core) -> None:
    for device in (fast, accurate):
        check_device(device, core)
    if fast == accurate:
        raise ArgumentError(
            f"fast= and accurate= are both {fast}. Precision is a property of a device: name two, "
            "for instance hetero_lab.emulate('ACC', properties={'INFERENCE_PRECISION_HINT': "
            "'bf16'}) and 'CPU'."
        )
    if isinstance(max_drop, bool) or not isinstance(max_drop, int | float) or not 0 <= max_drop < 1:
        raise ArgumentError(f"max_drop= is a share from 0 to below 1, not {max_drop!r}.")
    if not isinstance(data, Dataset):
        raise ArgumentError(
            "data= is a labelled data set with a calibration and an evaluation part, for instance "
            f"hetero_lab.dataset('digits'), not {type(data).__name__}."
        )
    if not len(data.calibration) or not len(data.evaluation):
        raise ArgumentError(f"{data!r} has an empty part; both need examples.")
    parts = (data.calibration, data.evaluation)
    if all(isinstance(part, Examples) for part in parts):
        shared = set(parts[0].keys) & set(parts[1].keys)
        if shared:
            raise ArgumentError(
                f"{len(shared)} examples are in both parts of {data.name!r}. What a placement was "
                "chosen with cannot verify it."
            )


def _check_supported(bound: BoundModel, accurate: str) -> None:
    able = supported_ops(bound, accurate)
    placeable = [bound.graph.ops[i].name for i in bound.graph.placeable]
    missing = [op for op in placeable if op not in able]
    if missing:
        raise DeviceError(
            f"{accurate} does not support {names_at_hand(missing)}, so it cannot stand for the "
            "accuracy of the whole model. Name a device as accurate= that supports it all."
        )


class _Recovery:
    """Sensitivity and candidates, on the calibration part only."""

    def __init__(
        self,
        bound: BoundModel,
        fast: str,
        accurate: str,
        data: Dataset,
        properties: Mapping[str, Mapping[str, Any]],
        costs: CostModel,
        watch: Stopwatch,
        progress: SearchProgress,
        max_drop: float,
    ):
        self.bound, self.fast, self.accurate = bound, fast, accurate
        self.data, self.properties, self.costs = data, properties, costs
        self.watch, self.progress = watch, progress
        self.max_drop = max_drop
        self.began_s = watch.elapsed_s
        self.examples = list(data.calibration[:_MOST_EXAMPLES])
        self.reference = Reference(bound)
        self.able = supported_ops(bound, fast)
        self.whole = Affinity.on_one(bound.graph, accurate)
        self.chunks: tuple[Chunk, ...] = chunks_of(costs, fast, accurate, MOST_CHUNKS)
        self.tried: tuple[Tried, ...] = ()
        self.candidates: list[Candidate] = []
        self.is_cut_short = False
        self._known: dict[Affinity, Candidate] = {}

    def run(self) -> None:
        """Measure the sensitivity of each chunk, then try what it suggests."""
        self.progress.begin("sensitivity")
        everything = frozenset(range(len(self.chunks)))
        self.all_fast = self._try(ALL_FAST, self.affinity(frozenset()))
        self.all_accurate = self._try(ALL_ACCURATE, self.affinity(everything))

        def try_on_accurate(name: str, chosen: frozenset[int]) -> Evaluation:
            tried = self._try(name, self.affinity(chosen))
            self.candidates.append(tried)
            return tried.calibration

        self.tried = measure_sensitivity(
            self.chunks, try_on_accurate, lambda: self._has_time(_SENSED)
        )
        self.progress.begin("candidates")
        for name, affinity in self._proposals():
            if not self._has_time(_TRIED):
                self.is_cut_short = True
                break
            try:
                self.candidates.append(self._try(name, affinity))
            except HeteroLabError:  # a cut that the runtime refuses is no candidate
                continue

    def affinity(self, on_accurate: frozenset[int]) -> Affinity:
        """Return the placement with these chunks on the accurate device, the others not."""
        return self.whole.fix(
            ops={
                op: self.fast
                for chunk in self.chunks
                if chunk.index not in on_accurate
                for op in chunk.ops
                if op in self.able
            },
            core=self.bound.core,
        )

    def placement(self, affinity: Affinity, label: str) -> Placement:
        """Return a placement with the properties of its devices."""
        own = {d: p for d, p in self.properties.items() if d in affinity.devices}
        return Placement(affinity, label, own, direct=len(affinity.devices) == 1)

    def finalists(self) -> list[Candidate]:
        """Return the fastest as predicted that keep the accuracy, and the most exact of the rest.

        The other places go to those whose outputs are nearest to f32 among what is clearly
        faster than the accurate device: calibration examples are few, and an output error tells
        more than the answers that happened to change.
        """
        taken = {self.all_fast.placement.affinity, self.all_accurate.placement.affinity}
        distinct = {c.placement.affinity: c for c in self.candidates}
        keeps = [
            c
            for affinity, c in distinct.items()
            if affinity not in taken
            and c.calibration.paired.drop <= self.max_drop
            and c.predicted_us < self.all_accurate.predicted_us
        ]
        keeps.sort(key=lambda c: c.predicted_us)
        chosen = keeps[: _FINALISTS // 2 + 1]
        # Further along the front: slower, but nearer to f32 than all that is faster.
        nearest = min((c.calibration.relative_error for c in chosen), default=np.inf)
        for candidate in keeps[len(chosen) :]:
            if len(chosen) == _FINALISTS:
                break
            if candidate.calibration.relative_error < 0.7 * nearest:
                chosen.append(candidate)
                nearest = candidate.calibration.relative_error
        return chosen

    def _proposals(self) -> list[tuple[str, Affinity]]:
        """Return placements that are worth a try, the best guess first."""
        found: dict[Affinity, tuple[float, str]] = {}
        error = self.all_fast.calibration.relative_error or 1.0
        for name, chosen in promising_sets(self.tried).items():
            left = expected_error(self.tried, chosen, error) / error
            for label, affinity in self._ways(name, chosen):
                predicted = self.costs.predict_us(affinity)
                if predicted < self.all_accurate.predicted_us and affinity not in self._known:
                    # Both count: what is left of the error, and of the way to all accurate.
                    saved = predicted / self.all_accurate.predicted_us
                    found.setdefault(affinity, (saved + left, label))
        order = sorted(found, key=lambda affinity: found[affinity][0])
        return [(found[affinity][1], affinity) for affinity in order]

    def _ways(self, name: str, chosen: frozenset[int]) -> list[tuple[str, Affinity]]:
        plain = self.affinity(chosen)
        pins = {
            rf"\A(?:{'|'.join(re.escape(op) for op in self.chunks[i].ops)})\Z": self.accurate
            for i in sorted(chosen)
        }
        if not self._has_time(_TRIED):
            return [(name, plain)]
        try:
            plan = plan_graph(self.bound.graph, self.costs, pin=pins, budget_s=_PLAN_S)
        except PlanError:
            return [(name, plain)]
        return [(name, plain), (f"{name}, planned", plan.affinity)]

    def _try(self, label: str, affinity: Affinity) -> Candidate:
        if affinity not in self._known:
            self._known[affinity] = Candidate(
                label,
                self.placement(affinity, label),
                self.costs.predict_us(affinity),
                self._judged(label, affinity),
            )
            self.progress.measured()
        return self._known[affinity]

    def _judged(self, label: str, affinity: Affinity) -> Evaluation:
        run = compile_placed(resolve(self.bound, self.placement(affinity, label)))
        answers = judge(
            run,
            self.reference,
            self.examples,
            correct=self.data.metric.correct,
            output=self.data.output,
        )
        return Evaluation(label, self.data.metric.name, tuple(answers))

    def _has_time(self, share: float) -> bool:
        """Tell whether less than a share of what was left when the search began is used."""
        left_s = _budget_s(self.watch) - self.began_s
        return self.watch.elapsed_s < self.began_s + share * max(0.0, left_s)


def _prove(search: _Recovery, *, isolate: bool) -> Recovered:
    """Measure the finalists beside both devices alone, and verify them on held-out examples."""
    search.progress.begin("prove")
    finalists = [search.all_accurate, search.all_fast, *search.finalists()]
    left_s = None
    if search.watch.budget_s is not None:
        left_s = max(1.0, search.watch.budget_s - search.watch.elapsed_s)
    conditions = Conditions(search.examples[0][0], isolate=isolate)
    with Session(by_name(search.bound), conditions) as session:
        made = prove(
            session,
            {c.label: c.placement for c in finalists},
            least=2,
            budget_s=left_s,
            precision=_PRECISION,
            reference=False,
            control=search.progress.control(),
        )
    if made.interrupted:
        raise KeyboardInterrupt
    rows = {row.label: row for row in made.rows}
    if rows[ALL_ACCURATE].detail:
        raise MeasurementError(f"{search.accurate} failed: {rows[ALL_ACCURATE].detail}")
    search.progress.begin("verify")
    verified = tuple(replace(c, held_out=_verified(search, c)) for c in finalists)
    known = made.summary.dropna(subset="ratio")
    ratios = dict(zip(known["label"], known["ratio"], strict=True))
    chosen, refused = choose(verified, ratios, search.max_drop)
    return Recovered(
        placement=replace(chosen.placement, label="recovered"),
        fast=search.fast,
        accurate=search.accurate,
        verdict=verdict(chosen, refused, made, search.max_drop),
        chosen=chosen.label,
        max_drop=search.max_drop,
        finalists=verified,
        candidates=(search.all_fast, search.all_accurate, *search.candidates),
        tried=search.tried,
        sweep=made,
        costs=search.costs,
        notes=(*search.costs.notes, *_notes(search, rows)),
    )


def _verified(search: _Recovery, candidate: Candidate) -> Evaluation:
    found = evaluate_placed(
        resolve(search.bound, candidate.placement),
        read_data(search.data),
        reference=search.bound,
        progress=False,
    )
    if found.interrupted:
        raise KeyboardInterrupt
    return found


def _notes(search: _Recovery, rows: Mapping[str, Row]) -> Iterator[str]:
    """Say what the budget did not allow."""
    unseen = sum(t.only_fast is None or t.only_accurate is None for t in search.tried)
    if unseen:
        yield (
            f"The sensitivity of {unseen} of {len(search.tried)} parts is not fully known: time "
            "ended or the runtime refused a cut."
        )
    if search.is_cut_short:
        yield "The budget ended before all promising placements were tried."
    missing = [label for label, row in rows.items() if row.was_left_out]
    if missing:
        yield f"The budget ended before {names_at_hand(missing)} was measured."


def choose(
    verified: Sequence[Candidate], ratios: Mapping[str, float], max_drop: float
) -> tuple[Candidate, list[str]]:
    """Return the fastest that calibration examples allow and held-out ones do not refuse.

    ``ratios`` are latencies as shares of that of all accurate, of what was measured beside it:
    nothing else can be known to be faster.
    """
    refused = []
    for candidate in sorted(
        (c for c in verified if c.label in ratios), key=lambda c: ratios[c.label]
    ):
        if candidate.label == ALL_ACCURATE or ratios[candidate.label] >= 1.0:
            break
        if candidate.calibration.paired.drop > max_drop or candidate.held_out is None:
            continue
        if candidate.held_out.paired.low <= max_drop:
            return candidate, refused
        refused.append(candidate.label)
    return next(c for c in verified if c.label == ALL_ACCURATE), refused


def verdict(chosen: Candidate, refused: Sequence[str], made: Sweep, max_drop: float) -> str:
    """Say what was chosen, how much faster it is, and what that costs."""
    held = chosen.held_out
    assert held is not None  # all finalists were verified
    sentences = f" Held-out examples refused {names_at_hand(refused)}." if refused else ""
    if chosen.label == ALL_ACCURATE:
        return (
            f"No placement was both measured to be faster and accurate within {100 * max_drop:g} "
            f"points: keep the whole model on the accurate device.{sentences}"
        )
    drop, rows = held.paired, made.summary.set_index("label")
    ratio, low, high = (
        float(rows[c][chosen.label]) for c in ("ratio", "ratio_ci95_low", "ratio_ci95_high")
    )
    most = f" to {1 / low:.2f}" if low > 0.0 else " or more"  # 0 where few turns differ much
    return (
        f"{chosen.label!r} is {1 / ratio:.2f} × as fast as all accurate (95 % interval "
        f"{1 / high:.2f}{most}), at {held.accuracy:.1%} {held.metric}: a drop of "
        f"{100 * drop.drop:+.2f} points from f32 (95 % interval {100 * drop.low:+.2f} to "
        f"{100 * drop.high:+.2f}, {drop.n} held-out examples).{sentences}"
    )
