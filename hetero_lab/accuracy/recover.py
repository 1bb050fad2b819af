"""Recover accuracy: the fastest placement over a fast and an accurate device that keeps it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.accuracy.evaluate import judge
from hetero_lab.costs.cost_model import CostModel
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.devices.devices import check_device, supported_ops
from hetero_lab.errors import (
    ArgumentError,
    DeviceError,
    HeteroLabError,
    MeasurementError,
    PlanError,
    names_at_hand,
)
from hetero_lab.interrupts import bringing
from hetero_lab.measure.session import Conditions
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.problem import only
from hetero_lab.progress import Stopwatch
from hetero_lab.result import Result
from hetero_lab.results.evaluation import Evaluation, accuracy_columns
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.reference import Reference
from hetero_lab.samples.datasets import Dataset, Examples, ReadData, read_data
from hetero_lab.search.calibrate import calibrate_bound, check_device_properties
from hetero_lab.search.observations import Search, searching
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

ALL_FAST, ALL_ACCURATE = "all fast", "all accurate"


@dataclass(frozen=True)
class ModelPart:
    """Planning units that follow each other in topological order and are tried together.

    ``accurate_us`` and ``fast_us`` are the times of its ops on each device by the cost model, NaN
    where the fast device does not support one of them. ``only_fast`` and ``only_accurate`` are the
    answers to the calibration examples with this part alone on one device and all others on the
    other; ``None`` where there was no time for it, or the runtime refused it.
    """

    index: int
    ops: tuple[str, ...]
    accurate_us: float
    fast_us: float
    only_fast: Evaluation | None = None
    only_accurate: Evaluation | None = None

    @property
    def lost(self) -> float:
        """The relative error of the outputs that this part alone causes on the fast device."""
        return float("nan") if self.only_fast is None else self.only_fast.relative_error


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
        The placement to compile.
    fast, accurate
        The two devices.
    verdict
        A sentence on its speed and its accuracy.
    chosen
        Label of the placement among the rows.
    max_drop
        The share of right answers that may be lost.
    finalists
        The candidates that were measured and verified on held-out examples; all fast and all
        accurate included.
    candidates
        All that was tried on the calibration part.
    tried
        The sensitivity of each part of the model.
    sweep
        The latencies.
    costs
        The cost model that candidates were planned with.
    notes
        Limits of the result, where the budget was too short.
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
    tried: tuple[ModelPart, ...]
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
        measured = self.sweep.summary.set_index("label")
        times = ["median_us", "ci95_low_us", "ci95_high_us"]
        ratios = ["ratio", "ratio_ci95_low", "ratio_ci95_high"]
        columns = ["configuration", "status", "n_subgraphs", *times, *ratios, "weight_bytes"]
        return frame_of(
            {
                "label": c.label,
                **measured.loc[c.label, columns].to_dict(),
                **accuracy_columns(c.held_out),
                "calibration_accuracy": c.calibration.accuracy,
                "calibration_error": c.calibration.relative_error,
                "predicted_us": c.predicted_us,
                "chosen": c.label == self.chosen,
            }
            for c in self.finalists
        )

    @cached_property
    def sensitivity(self) -> pd.DataFrame:
        """One row a part, in topological order: error and accuracy with it alone on a device."""
        all_fast = next(c.calibration for c in self.finalists if c.label == ALL_FAST)
        return frame_of(
            {
                "part": part.index + 1,
                "first_op": part.ops[0],
                "last_op": part.ops[-1],
                "n_ops": len(part.ops),
                "accurate_us": part.accurate_us,
                "fast_us": part.fast_us,
                "error_only_fast": part.only_fast and part.only_fast.relative_error,
                "accuracy_only_fast": part.only_fast and part.only_fast.accuracy,
                "agreement_only_fast": part.only_fast and part.only_fast.top1_agreement,
                "error_only_accurate": part.only_accurate and part.only_accurate.relative_error,
                "accuracy_only_accurate": part.only_accurate and part.only_accurate.accuracy,
                "error_all_fast": all_fast.relative_error,
                "accuracy_all_fast": all_fast.accuracy,
            }
            for part in self.tried
        )

    @cached_property
    def front(self) -> pd.DataFrame:
        """The rows of the summary that no other row beats in latency and held-out accuracy."""
        frame = fast_to_slow(self.summary)
        return frame[frame.pop("is_a_step")].reset_index(drop=True)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row a candidate that was tried on the calibration part, fast to slow as predicted."""
        return frame_of(
            {
                "label": c.label,
                "predicted_us": c.predicted_us,
                "accuracy": c.calibration.accuracy,
                "accuracy_drop": c.calibration.paired.drop,
                "relative_error": c.calibration.relative_error,
                "top1_agreement": c.calibration.top1_agreement,
            }
            for c in sorted(self.candidates, key=lambda c: c.predicted_us)
        )

    def __repr__(self) -> str:
        return f"Recovered({self.placement.affinity!r}: {self.verdict})"

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        ends = ("", "_ci95_low", "_ci95_high")
        accuracies = [f"{name}{end}" for name in ("accuracy", "accuracy_drop") for end in ends]
        columns = ["configuration", "median_us", "ratio", *accuracies, "chosen"]
        return {"": self.summary.loc[:, columns]}


def fast_to_slow(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a latency and an accuracy; a step is more accurate than all before."""
    by = ["median_us", "accuracy"]
    frame = summary.dropna(subset=by).sort_values(by, ascending=[True, False], kind="stable")
    best_before = frame["accuracy"].cummax().shift(fill_value=-1.0)
    return frame.assign(is_a_step=frame["accuracy"] > best_before)


_CALIBRATED = 0.25  # share of the budget
_SENSED, _TRIED = 0.3, 0.55  # shares of the rest at which these end
MOST_PARTS = 16  # each runs the calibration examples twice, alone on either device
_FINALISTS = 5  # each is measured, and runs all evaluation examples
_MOST_EXAMPLES = 200  # of the calibration part
_PLAN_S = 2.0  # for each of many plans, of which the best few are tried
_PRECISION = 0.02  # of the proof; candidates that are nearer to each other are as good


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

    First the calibration part of the data tells which parts of the model lose accuracy on the
    fast device. Sets of parts then go to the accurate device, and the cost model places the rest.
    The candidates that keep the accuracy are measured beside both devices alone, and the fastest
    of them is verified on the evaluation part. Held-out examples only refuse: then the next slower
    candidate is verified.

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
        The share of right answers that may be lost (0.01: one point). The calibration part must
        show no more, and the 95 % interval on the evaluation part must reach down to it.
    budget_s
        About the wall time of the search and the measurement. With ``None``, try all promising
        candidates. Each device alone is tried and measured in any case, and the evaluation part
        goes through each finalist after that. Notes of the result name the limits of a short
        budget.
    device_properties
        Properties of each device, as in a Placement.
    costs
        A cost model of the two devices with these properties; by default it is calibrated here.
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
        The two devices are one, ``max_drop`` is not a share, the data is not labelled, or its parts
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
    check_recovery(fast, accurate, data, max_drop, core)
    conditions = Conditions(data.calibration[0][0], isolate=isolate)
    with searching(bind(model, core), conditions, watch, show=progress) as search:
        return recover_bound(
            search, fast, accurate, data, properties, max_drop=max_drop, costs=costs
        )


def recover_bound(
    search: Search,
    fast: str,
    accurate: str,
    data: Dataset,
    device_properties: Mapping[str, Mapping[str, Any]],
    *,
    max_drop: float,
    costs: CostModel | None = None,
) -> Recovered:
    """Recover the accuracy of a bound model; Ctrl-C brings the costs that were learnt."""
    bound, names = search.bound, (fast, accurate)
    properties = {device: dict(p) for device, p in device_properties.items()}
    properties.setdefault(accurate, {}).setdefault("INFERENCE_PRECISION_HINT", "f32")
    able = supported_ops(bound, accurate)
    missing = [op for i in bound.graph.placeable if (op := bound.graph.ops[i].name) not in able]
    if missing:
        raise DeviceError(
            f"{accurate} does not support {names_at_hand(missing)}, so it cannot stand for the "
            "accuracy of the whole model. Name a device as accurate= that supports it all."
        )
    learnt = costs or calibrate_bound(search, names, properties, _CALIBRATED * search.budget_s)
    with bringing(learnt) if costs is None else contextlib.nullcontext():
        if costs is None and learnt.interrupted:
            raise KeyboardInterrupt
        learnt.check_graph(bound.graph)
        learnt.check_devices(names)
        recovery = _Recovery(search, fast, accurate, data, properties, learnt, max_drop)
        recovery.run()
        return recovery.prove()


def check_recovery(fast: str, accurate: str, data: Dataset, max_drop: float, core: ov.Core) -> None:
    """Raise ArgumentError or DeviceError for arguments that :func:`recover_accuracy` refuses."""
    for device in (fast, accurate):
        check_device(device, core)
    if fast == accurate:
        raise ArgumentError(
            f"fast= and accurate= are both {fast}. Precision is a property of a device: name two, "
            "for instance hetero_lab.emulate('ACC', properties={'INFERENCE_PRECISION_HINT': "
            "'bf16'}) and 'CPU'."
        )
    if not 0 <= max_drop < 1:
        raise ArgumentError(f"max_drop= is a share from 0 to below 1, not {max_drop!r}.")
    if not len(data.calibration) or not len(data.evaluation):
        raise ArgumentError(f"{data!r} has an empty part; both need examples.")
    parts = (data.calibration, data.evaluation)
    keys = [set(part.keys) if isinstance(part, Examples) else set() for part in parts]
    if shared := keys[0] & keys[1]:
        raise ArgumentError(
            f"{len(shared)} examples are in both parts of {data.name!r}. Examples that chose a "
            "placement cannot verify it."
        )


def evaluation_of(placement: Placement, data: ReadData, reference: Reference) -> Evaluation:
    """Return the answers of a placement to examples, beside the reference in f32."""
    answers = judge(compile_placed(resolve(reference.bound, placement)), reference, data)
    return Evaluation(placement.label, data.metric, tuple(answers))


@dataclass
class _Recovery:
    """The stages on the calibration part, then the proof."""

    search: Search
    fast: str
    accurate: str
    data: Dataset
    properties: Mapping[str, Mapping[str, Any]]
    costs: CostModel
    max_drop: float

    def __post_init__(self) -> None:
        bound, self.began_s = self.search.bound, self.search.watch.elapsed_s
        self.held_out = read_data(self.data)
        examples = self.data.calibration[:_MOST_EXAMPLES]
        self.calibration = self.held_out._replace(examples=examples)
        self.reference = Reference(bound)
        self.able = supported_ops(bound, self.fast)
        self.whole = Affinity.on_one(bound.graph, self.accurate)
        self.parts = parts_of(self.costs, self.fast, self.accurate, MOST_PARTS)
        self.candidates: dict[Affinity, Candidate] = {}  # all fast and all accurate first
        self.is_cut_short = False

    def run(self) -> None:
        """Measure the sensitivity of each part, then try the sets that it suggests."""
        self.search.begin("sensitivity")
        everything = set(range(len(self.parts)))
        self.all_fast = self._try(ALL_FAST, self.affinity(()))
        self.all_accurate = self._try(ALL_ACCURATE, self.affinity(everything))
        # In low precision the error of an op depends on its neighbours (a tensor handed on in
        # bf16, a fusion), so that each part is tried alone on either device.
        for way, index in itertools.product(("only_accurate", "only_fast"), range(len(self.parts))):
            if not self._has_time(_SENSED):
                break
            label, on_accurate = f"part {index + 1} accurate", {index}
            if way == "only_fast":
                label, on_accurate = f"all but {label}", everything - {index}
            with contextlib.suppress(HeteroLabError):  # a refused cut says nothing about the part
                candidate = self._try(label, self.affinity(on_accurate))
                self.parts[index] = replace(self.parts[index], **{way: candidate.calibration})
        self.search.begin("candidates")
        for affinity, label in self._proposals():
            if not self._has_time(_TRIED):
                self.is_cut_short = True
                break
            with contextlib.suppress(HeteroLabError):  # a cut that the runtime refuses
                self._try(label, affinity)

    def affinity(self, on_accurate: Collection[int]) -> Affinity:
        """Return the placement with these parts on the accurate device, the others not."""
        ops = (op for part in self.parts if part.index not in on_accurate for op in part.ops)
        on_fast = {op: self.fast for op in ops if op in self.able}
        return self.whole.fix(ops=on_fast, core=self.search.bound.core)

    def finalists(self) -> list[Candidate]:
        """Return the candidates with the least predicted time that keep the accuracy.

        The last places go to slower ones whose outputs are clearly nearer to f32: calibration
        examples are few, and an output error tells more than the few answers that change.
        """
        keeps = [
            c
            for c in sorted(self.candidates.values(), key=lambda c: c.predicted_us)
            if c.label not in (ALL_FAST, ALL_ACCURATE)
            and c.calibration.paired.drop <= self.max_drop
            and c.predicted_us < self.all_accurate.predicted_us
        ]
        finalists = keeps[: _FINALISTS // 2 + 1]
        nearest = min((c.calibration.relative_error for c in finalists), default=np.inf)
        for candidate in keeps[len(finalists) :]:
            if (error := candidate.calibration.relative_error) < 0.7 * nearest:
                finalists.append(candidate)
                nearest = error
        return finalists[:_FINALISTS]

    def _proposals(self) -> list[tuple[Affinity, str]]:
        """Return placements that are worth a try with their labels, the best guess first."""
        scores: dict[Affinity, tuple[float, str]] = {}
        all_accurate_us = self.all_accurate.predicted_us
        error = self.all_fast.calibration.relative_error or 1.0
        for name, on_accurate in promising_sets(self.parts).items():
            remainder = expected_error(self.parts, on_accurate, error) / error
            for label, affinity in self._ways(name, on_accurate):
                predicted_us = self.costs.predict_us(affinity)
                if predicted_us < all_accurate_us and affinity not in self.candidates:
                    # Both count: the error that is left, and the time as a share of all accurate.
                    scores.setdefault(affinity, (predicted_us / all_accurate_us + remainder, label))
        order = sorted(scores.items(), key=lambda item: item[1][0])
        return [(affinity, label) for affinity, (_, label) in order]

    def _ways(self, name: str, on_accurate: frozenset[int]) -> list[tuple[str, Affinity]]:
        """Return a set of parts on the accurate device, the others as they are and as planned."""
        ways = [(name, self.affinity(on_accurate))]
        if self._has_time(_TRIED):
            pins = {only(self.parts[i].ops): self.accurate for i in sorted(on_accurate)}
            with contextlib.suppress(PlanError):
                plan = plan_graph(self.costs.graph, self.costs, pin=pins, budget_s=_PLAN_S)
                ways.append((f"{name}, planned", plan.affinity))
        return ways

    def _try(self, label: str, affinity: Affinity) -> Candidate:
        if affinity not in self.candidates:
            properties = {d: p for d, p in self.properties.items() if d in affinity.devices}
            placement = Placement(affinity, label, properties, direct=len(affinity.devices) == 1)
            answers = evaluation_of(placement, self.calibration, self.reference)
            predicted_us = self.costs.predict_us(affinity)
            self.candidates[affinity] = Candidate(label, placement, predicted_us, answers)
            self.search.count(label)
        return self.candidates[affinity]

    def _has_time(self, share: float) -> bool:
        """Tell whether less than a share of the time that was left at the beginning is used."""
        share_s = share * max(0.0, self.search.budget_s - self.began_s)
        return self.search.watch.elapsed_s < self.began_s + share_s

    def prove(self) -> Recovered:
        """Measure the finalists beside both devices alone, and verify them on held-out examples."""
        self.search.begin("prove")
        finalists = [self.all_accurate, self.all_fast, *self.finalists()]
        sweep = self.search.measure(
            [candidate.placement for candidate in finalists],
            RunOptions(precision=_PRECISION, counters=False, reference=False),
            max(1.0, self.search.watch.left_s),
            least=2,
        )
        if sweep.interrupted:
            raise KeyboardInterrupt
        if sweep.rows[0].detail:
            raise MeasurementError(f"{self.accurate} failed: {sweep.rows[0].detail}")
        self.search.begin("verify")
        verified = tuple(
            replace(c, held_out=evaluation_of(c.placement, self.held_out, self.reference))
            for c in finalists
        )
        summary = sweep.summary.dropna(subset="ratio").set_index("label")
        ratios: dict[Any, float] = summary["ratio"].to_dict()
        winner, refused = choose(verified, ratios, self.max_drop)
        return Recovered(
            placement=replace(winner.placement, label="recovered"),
            fast=self.fast,
            accurate=self.accurate,
            verdict=verdict(winner, refused, sweep, self.max_drop),
            chosen=winner.label,
            max_drop=self.max_drop,
            finalists=verified,
            candidates=tuple(self.candidates.values()),
            tried=tuple(self.parts),
            sweep=sweep,
            costs=self.costs,
            notes=(*self.costs.notes, *self._notes(sweep)),
        )

    def _notes(self, sweep: Sweep) -> Iterator[str]:
        """Say which steps the budget left out."""
        if unseen := sum(None in (p.only_fast, p.only_accurate) for p in self.parts):
            yield (
                f"The sensitivity of {unseen} of {len(self.parts)} parts is not fully known: time "
                "ended or the runtime refused a cut."
            )
        if self.is_cut_short:
            yield "The budget ended before all promising placements were tried."
        if missing := [row.label for row in sweep.rows if row.was_left_out]:
            yield f"The budget ended before {names_at_hand(missing)} was measured."


def parts_of(costs: CostModel, fast: str, accurate: str, most: int) -> list[ModelPart]:
    """Cut the planning units, in topological order, into parts of about equal weight.

    The weight of a unit is half its share of the time on the accurate device and half its share
    of the number of ops: a long tail of cheap ops is not one part, nor is a big op many.
    """
    graph, number = costs.graph, {device: n for n, device in enumerate(costs.devices)}
    units = sorted(costs.units, key=lambda unit: graph.index_of[unit.ops[0]])
    accurate_us = np.array([unit.time_us[number[accurate]] or 0.0 for unit in units])
    fast_us = np.array([unit.time_us[number[fast]] for unit in units], dtype=float)
    counts = np.array([float(len(unit.ops)) for unit in units])
    weight = 0.5 * accurate_us / (accurate_us.sum() or 1.0) + 0.5 * counts / counts.sum()
    # The middle of a unit tells its part, so that a heavy one is not put behind its own end.
    middle = np.cumsum(weight) - weight / 2
    part_of = np.minimum((middle * most).astype(int), most - 1)
    return [
        ModelPart(
            index=index,
            ops=tuple(op for i in members for op in units[i].ops),
            accurate_us=float(accurate_us[members].sum()),
            fast_us=float(fast_us[members].sum()),
        )
        for index, members in enumerate(np.flatnonzero(part_of == p) for p in np.unique(part_of))
    ]


def promising_sets(parts: Sequence[ModelPart]) -> dict[str, frozenset[int]]:
    """Return sets of parts that are worth trying on the accurate device, by name.

    These are parts that follow each other (the first ones and the last ones need a single cut),
    and more and more of the parts that matter most, by themselves and for the time they cost.
    """
    n = len(parts)
    loss = {p.index: 0.0 if np.isnan(p.lost) else p.lost for p in parts}
    errors = {p.index: p.only_accurate.relative_error if p.only_accurate else 0.0 for p in parts}
    # A part that is as good as free, or not known on the fast device, has the least price.
    price_us = {p.index: float(np.fmax(p.accurate_us - p.fast_us, 0.1)) for p in parts}
    orders = {
        "lose most": sorted(loss, key=lambda index: -loss[index]),
        "lose most a µs": sorted(loss, key=lambda index: -loss[index] / price_us[index]),
        "mend most": sorted(errors, key=lambda index: errors[index]),
    }
    sets: dict[frozenset[int], str] = {}
    for size in range(1, n):
        for start in range(n - size + 1):
            name = f"part {start + 1}" if size == 1 else f"parts {start + 1} to {start + size}"
            sets.setdefault(frozenset(range(start, start + size)), f"{name} accurate")
        for name, order in orders.items():
            sets.setdefault(frozenset(order[:size]), f"{size} parts that {name}")
    return {name: indices for indices, name in sets.items()}


def expected_error(
    parts: Sequence[ModelPart], on_accurate: frozenset[int], all_fast: float
) -> float:
    """Return a guess at the relative error of a set, from the errors of its parts alone.

    It is at most that of its best part alone on the accurate device, and at least the root of
    the sum of squares of the errors that the other parts cause, as if these were independent.
    """
    evaluations = [p.only_accurate for p in parts if p.index in on_accurate]
    alone = [answers.relative_error for answers in evaluations if answers is not None]
    others = [p.lost for p in parts if p.index not in on_accurate]
    floor = float(np.sqrt(np.nansum(np.square(others))))
    return max(floor, float(np.fmin.reduce([all_fast, *alone])))


def choose(
    verified: Sequence[Candidate], ratios: Mapping[str, float], max_drop: float
) -> tuple[Candidate, list[str]]:
    """Return the fastest that calibration examples allow and held-out ones do not refuse.

    ``ratios`` are the latencies of the candidates measured beside all accurate, as shares of its
    latency: only these can be known to be faster. Also return the refused candidates.
    """
    refused = []
    for candidate in sorted(verified, key=lambda c: ratios.get(c.label, np.inf)):
        if candidate.label == ALL_ACCURATE or ratios.get(candidate.label, np.inf) >= 1.0:
            break
        if candidate.calibration.paired.drop > max_drop or candidate.held_out is None:
            continue
        if candidate.held_out.paired.low <= max_drop:
            return candidate, refused
        refused.append(candidate.label)
    return next(c for c in verified if c.label == ALL_ACCURATE), refused


def verdict(winner: Candidate, refused: Sequence[str], sweep: Sweep, max_drop: float) -> str:
    """Say which placement was chosen, how much faster it is, and its loss of accuracy."""
    sentences = f" Held-out examples refused {names_at_hand(refused)}." if refused else ""
    if winner.label == ALL_ACCURATE:
        return (
            f"No placement was both measured to be faster and accurate within {100 * max_drop:g} "
            f"points: keep the whole model on the accurate device.{sentences}"
        )
    held_out, rows = winner.held_out, sweep.summary.set_index("label")
    assert held_out is not None  # all finalists were verified
    drop = held_out.paired
    bounds = ("ratio", "ratio_ci95_low", "ratio_ci95_high")
    ratio, low, high = (float(rows[column][winner.label]) for column in bounds)
    most = f" to {1 / low:.2f}" if low > 0.0 else " or more"  # 0 where few turns differ much
    return (
        f"{rows['configuration'][winner.label]!r} is {1 / ratio:.2f} × as fast as "
        f"{rows['configuration'][ALL_ACCURATE]} (95 % interval "
        f"{1 / high:.2f}{most}), at {held_out.accuracy:.1%} {held_out.metric}: a drop of "
        f"{100 * drop.drop:+.2f} points from f32 (95 % interval {100 * drop.low:+.2f} to "
        f"{100 * drop.high:+.2f}, {drop.n} held-out examples).{sentences}"
    )
