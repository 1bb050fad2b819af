"""Optimize: calibrate, plan, measure the plans, learn from them, and prove the result."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.counter_costs import Observation
from hetero_lab.costs.design import cut_at, lone_cuts
from hetero_lab.costs.objective import LATENCY, THROUGHPUT, check_objective
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.devices.devices import supported_ops
from hetero_lab.errors import MeasurementError, names_at_hand
from hetero_lab.interrupts import UntilInterrupted, bringing
from hetero_lab.measure.session import Conditions
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.model.language import Scenario, check_scenario
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import MemoryLimit
from hetero_lab.placement.placement import Placement
from hetero_lab.planning.planner import GREEDY, Plan, keeps_limits, plan_graph
from hetero_lab.planning.problem import check_constraints
from hetero_lab.planning.simplify import simplified_placements, simplify_graph
from hetero_lab.progress import Stopwatch
from hetero_lab.result import Result
from hetero_lab.results.evidence import BEST, FASTER, between, decide, fastest_first
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import Row
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.search.calibrate import Calibration, check_device_properties, check_devices
from hetero_lab.search.observations import Search, searching
from hetero_lab.tables import frame_of
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


OPTIMIZED = "optimized"


class Proposal(NamedTuple):
    """A placement that was planned and measured on the way; latencies in µs."""

    round: int
    label: str
    predicted_us: float
    measured_us: float
    n_subgraphs: int


@dataclass(frozen=True)
class Optimized(Result):
    """The best placement that was found and proven by measurement.

    Attributes
    ----------
    placement
        The placement to compile: a planned one (``optimized``), or the best baseline by its own
        name where none was faster; the row ``optimized`` is then the same as that one.
    objective
        ``"latency"`` or ``"throughput"``.
    verdict
        A sentence that compares it with the best baseline; it marks emulated devices.
    finding
        The best plan against the best baseline: ``"faster"``, ``"as fast"`` within 5 %,
        ``"slower"`` or ``"undecided"``.
    costs, plan
        The cost model with all that was learnt, and its plan.
    sweep
        The proof: rows ``optimized``, ``greedy``, one a feasible single device, and the other
        splits that were measured with them. The best of its ranking is ``optimized``.
    trials
        Placements that were planned and measured on the way.
    notes
        Limits of the result, where the budget was too short.
    interrupted
        Whether Ctrl-C ended the proof: fewer turns, or fewer placements.
    split
        The fastest plan over several devices in the proof, a row of ``summary``, if it is not the
        answer.
    n_learnt
        How many placements were measured to learn from, ``trials`` among them.
    """

    _TABLES = ("summary", "history")

    placement: Placement
    objective: str
    verdict: str
    finding: str
    costs: CostModel
    plan: Plan
    sweep: Sweep
    trials: tuple[Proposal, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    split: Placement | None = None
    n_learnt: int = 0

    @property
    def searched(self) -> str:
        """What was searched: a sentence with the fastest split that is not the answer."""
        proven = sum(row.profile is not None and not row.same_as for row in self.sweep.rows)
        text = f"Measured: {count_of(self.n_learnt, 'placement')} to learn from, "
        text += f"{len(self.trials)} of them planned, and {proven} in the proof"
        rows = {row.label: row for row in self.sweep.rows}
        row = rows.get(self.split.label) if self.split else None
        if self.split is None or row is None:
            return f"{text}."
        n_subgraphs = row.profile.partition.n_subgraphs if row.profile else 0
        structure = f"{device_counts(self.split.affinity)}, {count_of(n_subgraphs, 'subgraph')}"
        ratio = between(row, rows[self.placement.label])
        whose = self.configuration
        whose += ", HETERO's own choice" if self.placement.label == GREEDY else ""
        took = f"took {ratio.middle:.3f} of the time of {whose}" if ratio else "had too few turns"
        if ratio and math.isfinite(ratio.high):
            took += f" (95 %: {ratio.low:.3f} to {ratio.high:.3f})"
        took += row.emulation
        return f"{text}; the fastest split, {row.configuration} ({structure}), {took}."

    @property
    def configuration(self) -> str:
        """The label of the placement with the precision of its devices."""
        return self.sweep.configuration_of(self.placement.label)

    @property
    def improved(self) -> bool:
        """Whether it is faster than every baseline that was measured, beyond the uncertainty."""
        return self.finding == FASTER

    @property
    def affinity(self) -> Affinity:
        """The affinity of the placement."""
        return self.placement.affinity

    @property
    def summary(self) -> pd.DataFrame:
        """Columns as in ``sweep.summary``; ratios are to ``greedy``."""
        return self.sweep.summary

    @property
    def history(self) -> pd.DataFrame:
        """One row a planned placement that was measured on the way."""
        return frame_of(self.trials, list(Proposal._fields))

    def __repr__(self) -> str:
        counts = device_counts(self.placement.affinity)
        lines = [self.verdict, self.searched, f"Placement: {self.configuration}, {counts}"]
        return "\n".join([*lines, *self.notes[:2], repr(self.sweep)])


def device_counts(affinity: Affinity) -> str:
    """Return how many ops are on each device."""
    return ", ".join(f"{count_of(n, 'op')} on {d}" for d, n in affinity.counts().items())


_LEARNING, _SEARCHING = 0.4, 0.75  # shares of the budget at which these end
ROUNDS = 8  # a limit for a search whose budget does not end it
_IDLE_ROUNDS = 2  # rounds without a gain after which the search ends
_SCALES = (1.0, 0.5, 2.0, 4.0, 0.25)  # of the price of a boundary, while it is uncertain
_LATE = 0.2  # share of the budget by which the proof may end late
_CANDIDATES = 3  # beside the baselines; each further one leaves fewer turns to all
_WORTH = 0.995  # a measured ratio that is worth another round
_PLANNED, _PLAN_S = 0.03, 5.0  # share of the budget for a plan, and its limit
_CUTS, _MOST_CUTS = 4, 48  # cuts of the model in two that are measured, and predicted
_STRIDE = 6  # every so many cuts first, then those between
_APART = 12  # part of the ops by which such cuts differ
_SLOW = 1.25  # times a single device's predicted latency is too slow for such a cut
IN_FLIGHT = 4  # requests for throughput: with fewer than devices, some would idle
_PRECISION = 0.01  # of the proof


def optimize(
    model: Source,
    devices: Sequence[str] | str,
    *,
    objective: str = LATENCY,
    budget_s: float | None = 120.0,
    device_properties: Mapping[str, Mapping[str, Any]] | None = None,
    memory_limit: MemoryLimit | None = None,
    pin: Mapping[str, str] | None = None,
    costs: CostModel | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    scenario: Scenario | None = None,
    isolate: bool = True,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Optimized:
    """Find the fastest placement by measurement: calibrate, plan, measure, learn, repeat.

    First come the greedy choice with fewer subgraphs (:func:`hetero_lab.simplify`) and the best
    cuts of the model in two, where a single tensor crosses. Plans are then made with the price of a
    boundary scaled several ways and measured, and each measurement goes into the next fit. At the
    end the best few are measured in turns with HETERO's greedy choice and each single device that
    can run the model. The winner is returned only if it is faster beyond the uncertainty
    (Holm-corrected), else the best baseline is.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    devices
        In order of priority: names, or ``"HETERO:ACC,CPU"``.
    objective
        ``"latency"`` of one request, or ``"throughput"``: the time between results with several
        requests in flight; devices then get ``EXCLUSIVE_ASYNC_REQUESTS: False`` unless
        ``device_properties`` says otherwise.
    budget_s
        Wall time of the whole call, compiles included. With ``None``, search until nothing
        improves. A reference and the greedy choice are measured in any case, and the single
        devices get the time that other placements took: where compiles are slow, a small budget
        is overrun. Notes of the result name the limits of a short budget.
    device_properties
        Properties of each device, as in a Placement.
    memory_limit, pin
        As for :func:`hetero_lab.plan`. A baseline that breaks them is measured, but not returned.
    costs
        The result of :func:`hetero_lab.calibrate` for this model and these devices, perhaps from
        another process; its device properties are used. It is adjusted to the measurements
        instead of learnt anew, and each placement is compiled once.
    store
        Directory of the proof, appended turn by turn: :func:`hetero_lab.read_sweep` reads it.
    scenario
        The generation of a language model. Its objective is the time of a further token, each
        device has one run of layers, and placements whose tokens differ from those of one device
        in f32, beyond rounding, are not returned.
    inputs, seed, isolate, progress
        As for :func:`hetero_lab.sweep`.

    Returns
    -------
    Optimized
        ``.placement``, ``.summary``, ``.verdict``, ``.notes``. After Ctrl-C,
        :func:`hetero_lab.last_interrupted` returns the costs that were learnt, to continue with
        ``costs=``; in the proof, its turns so far.

    Raises
    ------
    DeviceError, PropertyError, PlanError
        As for :func:`hetero_lab.calibrate` and :func:`hetero_lab.plan`, or ``costs`` are those of
        another model, other devices or other properties.
    MeasurementError
        No baseline runs.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> best = hl.optimize(model, ["ACC", "CPU"], budget_s=25, progress=False)
    >>> {"CPU", "greedy", "optimized"} <= set(best.summary["label"])
    True
    """
    check_objective(objective, (LATENCY, THROUGHPUT), scenario)
    watch = Stopwatch.start(budget_s)
    core = core or shared_core()
    names = check_devices(devices, core)
    properties = check_device_properties(device_properties, names, core)
    if costs is not None and device_properties is None:
        properties = costs.device_properties
    bound = bind(model, core)
    check_scenario(bound.model, scenario)
    if costs is not None:
        costs.check_graph(bound.graph)
    conditions = Conditions(inputs, seed, scenario, isolate=isolate)
    with searching(bound, conditions, watch, show=progress) as search:
        return optimize_bound(
            search,
            names,
            properties,
            objective=objective,
            memory_limit=memory_limit,
            pin=pin,
            costs=costs,
            store=None if store is None else Path(store),
        )


def optimize_bound(
    search: Search,
    devices: tuple[str, ...],
    properties: Mapping[str, Mapping[str, Any]],
    *,
    objective: str,
    memory_limit: MemoryLimit | None = None,
    pin: Mapping[str, str] | None = None,
    costs: CostModel | None = None,
    store: Path | None = None,
) -> Optimized:
    """Search for a placement of a bound model and prove it; Ctrl-C brings what was learnt."""
    if costs is not None:
        costs.check_conditions(devices, properties)
        costs.check_scenario(search.session.conditions.scenario)
    support = {device: supported_ops(search.bound, device) for device in devices}
    check_constraints(search.bound.graph, devices, memory_limit, pin, support)
    # Those of costs come from a file.
    by_device = check_device_properties(properties, devices, search.bound.core)
    if objective == THROUGHPUT:
        for device in devices:  # a split forbids requests to overlap unless told otherwise
            by_device.setdefault(device, {}).setdefault("EXCLUSIVE_ASYNC_REQUESTS", False)
    calibration = Calibration(search, devices, by_device, prior=costs)
    with UntilInterrupted(lambda: calibration.observations):
        optimization = _Optimization(calibration, objective, memory_limit, pin)
        optimization.run()
        return optimization.prove(store)
    with bringing(calibration.conclude(interrupted=True)):
        raise KeyboardInterrupt


@dataclass
class _Optimization:
    """Rounds of planning and measuring, and the proof."""

    calibration: Calibration
    objective: str
    memory_limit: MemoryLimit | None
    pin: Mapping[str, str] | None
    trials: list[Proposal] = field(default_factory=list)
    plan_observations: list[Observation] = field(default_factory=list)

    def run(self) -> None:
        """Learn, then plan and measure until nothing improves or the time for it is over."""
        calibration, observer = self.calibration, self.calibration.observer
        learning_s = _LEARNING * self._search.budget_s
        if calibration.layers is None:
            # Two large subgraphs are compiled soon, also where a small budget allows little else.
            calibration.run_base(learning_s)
            self._plan()
            most, previous = observer.affordable(self._until_s), calibration.fitted_affinities
            first = {n: a for n, a in self._simplified.items() if a not in previous}
            cuts = self._cuts(most)
            first |= {f"cut {number}": cut for number, cut in enumerate(cuts, start=1)}
            self._measure(0, dict(itertools.islice(first.items(), most)))
        calibration.run(learning_s)
        self._plan()
        idle = 0
        for number in range(1, ROUNDS + 1):
            if idle >= _IDLE_ROUNDS:
                return
            before_us = min(o.measured_us for o in calibration.observations)
            plans = self._proposals(observer.affordable(self._until_s))
            proposals = {f"plan {number}.{n}": plan for n, plan in enumerate(plans, start=1)}
            observations = self._measure(number, proposals)
            if not observations:
                return
            self._plan()
            gained = min(o.measured_us for o in observations) < _WORTH * before_us
            idle = 0 if gained else idle + 1

    def _measure(self, number: int, proposals: Mapping[str, Affinity]) -> list[Observation]:
        """Measure and learn from the proposals of a round; return the new observations."""
        if not proposals:
            return []
        calibration, observer = self.calibration, self.calibration.observer
        self._search.begin(f"round {number}" if number else "cuts")
        predicted = {label: self.costs.predictor(a) for label, a in proposals.items()}
        n_known = len(calibration.observations)
        observer.observe(
            proposals,
            self._until_s,
            calibration.observations,
            counters=calibration.prior is None,  # the fit reads them, the adjusting does not
        )
        observations = calibration.observations[n_known:]
        self.plan_observations += observations
        self.trials += [
            Proposal(
                number,
                o.label,
                predicted[o.label].predicted_us,
                o.measured_us * observer.drift,
                predicted[o.label].n_subgraphs,
            )
            for o in observations
        ]
        return observations

    @property
    def _search(self) -> Search:
        return self.calibration.search

    @property
    def _until_s(self) -> float:
        """When rounds end: a plan follows, and a proof that compiles its placements anew."""
        each_s = self.calibration.observer.each_s
        if self.calibration.prior is None:
            each_s /= 2.0  # the proof compiles each once, without counters
        proof_s = (len(self.plan.baselines) + _CANDIDATES) * each_s
        budget_s = self._search.budget_s
        return min(_SEARCHING * budget_s, budget_s - proof_s - self.planning_s)

    def _plan(self) -> None:
        """Fit the costs to the observations, and plan with them."""
        began_s = self._search.watch.elapsed_s
        self.costs = self.calibration.fit()
        self.plan = self._plan_of(self.costs)
        self.planning_s = self._search.watch.elapsed_s - began_s

    def _plan_of(self, costs: CostModel) -> Plan:
        return plan_graph(
            costs.graph,
            costs,
            objective=self.objective,
            memory_limit=self.memory_limit,
            pin=self.pin,
            budget_s=self._planning_budget_s,
        )

    @property
    def _planning_budget_s(self) -> float:
        return min(_PLAN_S, _PLANNED * self._search.budget_s)

    def _value_us(self, affinity: Affinity) -> float:
        """Return the latency, or the time between results, that is predicted."""
        return self.costs.predictor(affinity).evaluation.value_ns(self.objective) / 1000.0

    def _keeps_limits(self, affinity: Affinity) -> bool:
        return keeps_limits(self.costs, affinity, memory_limit=self.memory_limit, pin=self.pin)

    @cached_property
    def _simplified(self) -> dict[str, Affinity]:
        """The greedy choice with fewer subgraphs, after the best and the lightest change."""
        if self.calibration.layers is not None:
            return {}
        greedy = next(b.affinity for b in self.plan.baselines if b.label == GREEDY)
        changes = simplify_graph(self.costs.graph, greedy, self.calibration.support)
        affinities = simplified_placements(changes, GREEDY).items()
        return {n: a for n, a in affinities if len(a.devices) > 1 and self._keeps_limits(a)}

    def _cuts(self, most: int) -> list[Affinity]:
        """Return up to ``most`` single cuts, well apart, that are predicted to be the fastest."""
        graph, support = self.costs.graph, self.calibration.support
        cuts = lone_cuts(graph, _MOST_CUTS) if most else []
        spread = [before for start in range(_STRIDE) for before in cuts[start::_STRIDE]]
        watch = self._search.watch
        until_s = watch.elapsed_s + self._planning_budget_s
        predictions: list[tuple[float, tuple[str, str], int, Affinity]] = []
        for before, pair in itertools.product(spread, itertools.permutations(support, 2)):
            if watch.elapsed_s > until_s:  # a prediction of a large graph is slow
                break
            affinity = cut_at(graph, support, before, pair)
            predictions.append((self._value_us(affinity), pair, len(before), affinity))
        apart = len(graph.placeable) / _APART
        slow_us = _SLOW * min(baseline.predicted_us for baseline in self.plan.baselines)
        previous = self.calibration.fitted_affinities
        best: list[tuple[tuple[str, str], int, Affinity]] = []
        for predicted_us, pair, n_ops, affinity in sorted(predictions, key=lambda one: one[0]):
            if len(best) == min(most, _CUTS) or predicted_us > slow_us:
                break
            near = any(p == pair and abs(n - n_ops) < apart for p, n, _ in best)
            is_new = affinity not in previous and len(affinity.devices) > 1
            if not near and is_new and self._keeps_limits(affinity):
                best.append((pair, n_ops, affinity))
        return [affinity for *_, affinity in best]

    def _proposals(self, most: int) -> list[Affinity]:
        """Return up to ``most`` placements that were not measured before."""
        plans = (
            self._plan_of(self.costs.with_boundaries_scaled(scale)) if scale != 1.0 else self.plan
            for scale in _SCALES[:most]
        )
        previous = self.calibration.fitted_affinities
        distinct = dict.fromkeys(plan.affinity for plan in plans)
        return [a for a in distinct if a not in previous and len(a.devices) > 1]

    def prove(self, store: Path | None) -> Optimized:
        """Measure the best few beside the baselines and decide."""
        search, observer = self._search, self.calibration.observer
        search.begin("prove")
        baselines = {
            GREEDY if len(b.affinity.devices) > 1 or b.label == GREEDY else b.label: b.affinity
            for b in self.plan.baselines
        }
        placements = {
            # A single device is compiled directly, without HETERO in between.
            label: replace(observer.placement(affinity, label), direct=label != GREEDY)
            for label, affinity in baselines.items()
        }
        by_time = sorted(self.plan_observations, key=lambda o: o.measured_us)
        candidates = [o.affinity for o in by_time]
        if not candidates:  # there was no time to learn from one
            candidates = [*self._simplified.values(), self.plan.affinity]
        if self.objective == THROUGHPUT:  # of which a latency measured with one request says little
            candidates = sorted([self.plan.affinity, *candidates], key=self._value_us)
        names = {affinity: label for label, affinity in self._simplified.items()}
        for number, affinity in enumerate(list(dict.fromkeys(candidates))[:_CANDIDATES], start=1):
            if affinity not in baselines.values():
                label = names.get(affinity, f"split {number}")
                placements[label] = observer.placement(affinity, label)
        # A baseline that is not measured could be the best, so where compiles are slow, the proof
        # ends a little late.
        late_s = min(_LATE * search.budget_s, len(baselines) * observer.each_s)
        left_s = max(search.watch.left_s, late_s)
        sweep = search.measure(
            list(placements.values()),
            RunOptions(precision=_PRECISION, counters=False),
            left_s,
            least=1,
            grid={"requests": [1 if self.objective == LATENCY else IN_FLIGHT]},
            store=store,
        )
        rows = dict(zip(placements, sweep.rows, strict=True))
        rows[GREEDY] = replace(rows[GREEDY], name=f"HETERO:{','.join(self.costs.devices)}")
        if not any(rows[label].profile is not None for label in baselines):
            if sweep.interrupted:
                raise KeyboardInterrupt
            first = sweep.rows[0]
            raise MeasurementError(f"No baseline was measured: {first.status}. {first.detail}")
        eligible = [
            label
            for label in rows
            if label not in baselines or self._keeps_limits(baselines[label])
        ]
        if search.session.conditions.scenario is not None:
            right = {
                label
                for label, row in rows.items()
                if row.profile and not any(a.is_wrong for a in row.profile.agreement)
            }
            eligible = [label for label in eligible if label in right]
            if not eligible:
                raise MeasurementError(
                    "No placement that keeps to the limits was measured and has the tokens of one "
                    "device in f32. Give more budget_s=, or see hetero_lab.sweep(…, scenario=…)."
                )
        decision = decide(rows, [label for label in eligible if label in baselines], eligible)
        placement = placements[decision.label]
        proof, best = {OPTIMIZED: rows[decision.label], **rows}, decision.label
        splits = [label for label in fastest_first(rows, rows) if label not in baselines]
        if best in baselines:
            proof[OPTIMIZED] = replace(proof[OPTIMIZED], same_as=best)
        else:
            del proof[best]
            placement, splits, best = replace(placement, label=OPTIMIZED), [], OPTIMIZED
        return Optimized(
            placement=placement,
            objective=self.objective,
            verdict=decision.verdict,
            finding=decision.finding,
            costs=self.costs,
            plan=self.plan,
            sweep=replace(
                sweep,
                rows=tuple(replace(row, label=label) for label, row in proof.items()),
                reference=GREEDY,
                decided={best: BEST, **decision.findings},
            ),
            trials=tuple(self.trials),
            split=placements[splits[0]] if splits else None,
            n_learnt=len(self.calibration.observations),
            notes=(*self.costs.notes, *self._notes(rows, sweep.interrupted)),
            interrupted=sweep.interrupted,
        )

    def _notes(self, rows: Mapping[str, Row], interrupted: bool) -> Iterator[str]:
        """Say which steps the budget or Ctrl-C left out."""
        if not self.plan_observations:
            yield "The budget ended before a planned placement was measured and learnt from."
        missing = [label for label, row in rows.items() if row.was_left_out]
        if missing:
            end = "It was interrupted" if interrupted else "The budget ended"
            yield f"{end} before {names_at_hand(missing)} was measured in the proof."
