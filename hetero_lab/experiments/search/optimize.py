"""Optimize: calibrate, plan, measure what was planned, learn from it, and prove the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hetero_lab.backend.core import shared_core
from hetero_lab.errors import MeasurementError, PlanError
from hetero_lab.experiments.search.calibrate import Learnt, learn
from hetero_lab.experiments.sweep.result import Row, Sweep
from hetero_lab.experiments.sweep.sweep import sweep
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.placement.priorities import Priorities
from hetero_lab.planning.constraints import check_constraints
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.objective import LATENCY, THROUGHPUT
from hetero_lab.planning.observations import Observation
from hetero_lab.planning.planner import GREEDY, Plan, keeps_limits, plan_graph
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.statistics import holm, paired_ratio

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

OPTIMIZED = "optimized"
_LEARNING, _SEARCHING = 0.4, 0.75  # shares of the budget after which these end
_ROUNDS = 8
_IDLE_ROUNDS = 2  # rounds without a gain after which the search ends
_SCALES = (1.0, 0.5, 2.0, 4.0, 0.25)  # of the price of a boundary, while it is uncertain
_CANDIDATES = 3
_WORTH = 0.995  # a measured gain that is worth another round
_PLANNED, _PLAN_S = 0.03, 5.0  # share of the budget for a plan, and the most that it takes
_PRECISION = 0.01
_IN_FLIGHT = 4
_ALPHA = 0.05


@dataclass(frozen=True)
class Trial:
    """A placement that was planned and measured on the way; latencies in µs."""

    round: int
    label: str
    predicted_us: float
    measured_us: float
    n_subgraphs: int


@dataclass(frozen=True)
class Optimized:
    """The best placement that was found and proven by measurement.

    Attributes
    ----------
    placement
        What to compile: a planned placement, or the best baseline where none was faster.
    objective
        ``"latency"`` or ``"throughput"``.
    verdict
        In a sentence, how it compares with the best baseline.
    improved
        Whether it is faster than every baseline beyond the uncertainty.
    costs, plan
        The cost model with all that was learnt, and its plan.
    sweep
        The last measurement: rows ``optimized``, ``greedy`` and one a feasible single device.
    trials
        What was planned and measured on the way.
    """

    placement: Placement
    objective: str
    verdict: str
    improved: bool
    costs: CostModel
    plan: Plan
    sweep: Sweep
    trials: tuple[Trial, ...]

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
        import pandas as pd

        columns = ["round", "label", "predicted_us", "measured_us", "n_subgraphs"]
        return pd.DataFrame(
            [[getattr(t, c) for c in columns] for t in self.trials], columns=columns
        )

    def __repr__(self) -> str:
        return f"Optimized({self.placement.affinity!r}: {self.verdict})"

    def _repr_html_(self) -> str:
        from hetero_lab.tables import html_table

        return html_table(self.summary, caption=self.verdict)


def optimize(
    model: Source,
    devices: Sequence[str] | str,
    *,
    objective: str = LATENCY,
    budget_s: float = 120.0,
    device_properties: Mapping[str, Mapping[str, Any]] | None = None,
    memory_limit: Mapping[str, int | str] | None = None,
    pin: Mapping[str, str] | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    isolate: bool = True,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Optimized:
    """Find the placement that really is the fastest: calibrate, plan, measure, learn, repeat.

    Plans are made with the price of a boundary scaled several ways, measured beside the best so
    far, and what is measured goes into the next fit. At the end the best few are measured in
    turns with HETERO's greedy choice and each single device that can run the model; the winner
    is returned only if it is faster beyond the uncertainty (Holm-corrected), else the best
    baseline is.

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
        Wall time of the whole call, compiles included. The last fit and the least turns of the
        baselines are made in any case: where compiles are slow, a small budget is overrun.
    device_properties
        Properties of each device, as in a Placement.
    memory_limit, pin
        As for :func:`hetero_lab.plan`. A baseline that breaks them is measured, but not returned.
    inputs, seed, isolate, progress
        As for :func:`hetero_lab.sweep`.

    Returns
    -------
    Optimized
        ``.placement``, ``.summary``, ``.verdict``.

    Raises
    ------
    DeviceError, PropertyError, PlanError
        As for :func:`hetero_lab.calibrate` and :func:`hetero_lab.plan`.
    MeasurementError
        The budget ended before the baselines were measured.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> best = hl.optimize(model, ["ACC", "CPU"], budget_s=25, progress=False)
    >>> sorted(best.summary["label"])
    ['CPU', 'greedy', 'optimized']
    """
    if objective not in (LATENCY, THROUGHPUT):
        raise PlanError(f"{objective!r} is no objective. Objectives: {LATENCY!r}, {THROUGHPUT!r}.")
    core = core or shared_core()
    watch = Stopwatch.start(budget_s)
    options = {"inputs": inputs, "seed": seed, "isolate": isolate, "progress": progress}
    prepared = prepare(model)
    check_constraints(prepared.graph, Priorities.parse(devices, core).devices, memory_limit, pin)
    learnt = learn(
        prepared,
        devices,
        watch=watch,
        share=_LEARNING,
        device_properties=(
            device_properties if objective == LATENCY else _pipelined(device_properties, devices)
        ),
        options=options,
        core=core,
    )
    search = _Search(
        learnt, watch, {"objective": objective, "memory_limit": memory_limit, "pin": pin}
    )
    search.run()
    return _prove(search, objective, options, core)


def _pipelined(
    given: Mapping[str, Mapping[str, Any]] | None, devices: Sequence[str] | str
) -> dict[str, dict[str, Any]]:
    """Let requests overlap: a split forbids it unless told otherwise."""
    properties = {device: dict(p) for device, p in (given or {}).items()}
    names = devices.removeprefix("HETERO:").split(",") if isinstance(devices, str) else devices
    for device in names:
        properties.setdefault(device.strip(), {}).setdefault("EXCLUSIVE_ASYNC_REQUESTS", False)
    return properties


class _Search:
    """Rounds of planning and measuring; keeps what was learnt and tried."""

    def __init__(self, learnt: Learnt, watch: Stopwatch, constraints: Mapping[str, Any]):
        self.learnt = learnt
        self.watch = watch
        self.constraints = constraints
        self.trials: list[Trial] = []
        self.planned: dict[Affinity, Observation] = {}
        began_s = watch.elapsed_s
        self.plan = self._plan(1.0)
        self.planning_s = watch.elapsed_s - began_s

    def run(self) -> None:
        """Plan and measure until no gain is seen, or the time for it is over."""
        idle = 0
        for number in range(1, _ROUNDS + 1):
            proposals = self._proposals(number)
            if not proposals or idle >= _IDLE_ROUNDS or self._is_over:
                return
            before = min((o.measured_us for o in self._everything), default=math.inf)
            predicted = {label: self.costs.predict_us(a) for label, a in proposals.items()}
            seen = self.learnt.observer.observe(proposals, budget_s=self._left_s, counters=True)
            if not seen:
                return
            for trial in seen:
                self.planned[trial.affinity] = trial
                n_subgraphs = self.costs.predictor(trial.affinity).n_subgraphs
                self.trials.append(
                    Trial(
                        number, trial.label, predicted[trial.label], trial.measured_us, n_subgraphs
                    )
                )
            began_s = self.watch.elapsed_s
            self.learnt = self.learnt.refit(seen)
            self.plan = self._plan(1.0)
            self.planning_s = self.watch.elapsed_s - began_s
            gained = min(o.measured_us for o in seen) < _WORTH * before
            idle = 0 if gained else idle + 1

    @property
    def costs(self) -> CostModel:
        """The cost model with all that was learnt."""
        return self.learnt.costs

    def candidates(self) -> list[Affinity]:
        """Return the placements that measured best, and the plan if nothing was measured."""
        ordered = sorted(self.planned.values(), key=lambda o: o.measured_us)
        found = [seen.affinity for seen in ordered[:_CANDIDATES]]
        return found or [self.plan.affinity]

    @property
    def _everything(self) -> Iterator[Observation]:
        return iter(self.learnt.fitted)

    @property
    def _left_s(self) -> float:
        """Time for the search: after it comes a plan, and what compiles its placements anew."""
        budget_s = float(self.watch.budget_s or math.inf)
        proof_s = (len(self.plan.baselines) + _CANDIDATES) * self.learnt.observer.each_s
        end_s = min(_SEARCHING * budget_s, budget_s - proof_s - self.planning_s)
        return end_s - self.watch.elapsed_s

    @property
    def _is_over(self) -> bool:
        return self._left_s <= 0.0

    def _plan(self, scale: float) -> Plan:
        costs = self.costs if scale == 1.0 else self.costs.with_boundaries_scaled(scale)
        limit_s = min(_PLAN_S, _PLANNED * float(self.watch.budget_s or math.inf))
        return plan_graph(self.costs.graph, costs, time_limit_s=limit_s, **self.constraints)

    def _proposals(self, number: int) -> dict[str, Affinity]:
        known = {seen.affinity for seen in self._everything if seen.nodes}
        found: dict[Affinity, str] = {}
        for scale in _SCALES:
            affinity = self.plan.affinity if scale == 1.0 else self._plan(scale).affinity
            if affinity not in known and len(affinity.devices) > 1:
                found.setdefault(affinity, f"plan {number}.{len(found) + 1}")
        return {label: affinity for affinity, label in found.items()}


def _prove(search: _Search, objective: str, options: Mapping[str, Any], core: ov.Core) -> Optimized:
    """Measure the best few beside the baselines and decide."""
    observer, costs = search.learnt.observer, search.costs
    baselines = {
        GREEDY if len(b.affinity.devices) > 1 or b.label == GREEDY else b.label: b
        for b in search.plan.baselines
    }
    placements = {
        label: _as_placement(b.affinity, label, observer) for label, b in baselines.items()
    }
    known = {p.affinity for p in placements.values()}
    for number, affinity in enumerate(search.candidates(), start=1):
        if affinity not in known:
            placements[f"candidate {number}"] = observer.placement(affinity, f"candidate {number}")
    whole = search.watch.budget_s
    left = (
        None if whole is None else max((1.0 - _SEARCHING) * whole, whole - search.watch.elapsed_s)
    )
    made = sweep(
        observer.prepared,
        list(placements.values()),
        requests=(1 if objective == LATENCY else _IN_FLIGHT,),
        precision=_PRECISION,
        budget_s=left,
        counters=False,
        baselines=False,
        core=core,
        **options,
    )
    rows = dict(zip(placements, made.rows, strict=True))
    measured = {label: row for label, row in rows.items() if row.profile is not None}
    allowed = [
        label
        for label in measured
        if label not in baselines or _keeps_limits(search, baselines[label].affinity)
    ]
    if not any(label in baselines for label in measured):
        raise MeasurementError(
            "No baseline was measured: the budget ended or they failed. "
            f"{next(iter(rows.values())).detail or 'Give more time with budget_s=.'}"
        )
    chosen, verdict, improved = _decide(measured, [x for x in allowed if x in baselines], allowed)
    shown = [replace(measured[chosen], label=OPTIMIZED)]
    shown += [replace(row, label=label) for label, row in rows.items() if label in baselines]
    return Optimized(
        placement=replace(placements[chosen], label=OPTIMIZED),
        objective=objective,
        verdict=verdict,
        improved=improved,
        costs=costs,
        plan=search.plan,
        sweep=replace(made, rows=tuple(shown), reference=GREEDY),
        trials=tuple(search.trials),
    )


def _as_placement(affinity: Affinity, label: str, observer: Any) -> Placement:
    """A single device is compiled directly, without HETERO in between."""
    made = observer.placement(affinity, label)
    return replace(made, direct=True) if label != GREEDY and len(affinity.devices) == 1 else made


def _keeps_limits(search: _Search, affinity: Affinity) -> bool:
    limits, pin = search.constraints["memory_limit"], search.constraints["pin"]
    return keeps_limits(search.costs, affinity, memory_limit=limits, pin=pin)


def _decide(
    measured: Mapping[str, Row], baselines: Sequence[str], allowed: Sequence[str]
) -> tuple[str, str, bool]:
    """Return the label to take, a sentence about it, and whether it beats every baseline."""
    candidates = [label for label in allowed if label not in baselines]
    if not baselines:
        chosen = min(candidates, key=lambda label: _level(measured[label]))
        return chosen, "no baseline keeps to the limits; this is the fastest plan that does", True
    best = min(baselines, key=lambda label: _level(measured[label]))
    tests = [_ratio(measured[label], measured[best]) for label in candidates]
    for label, (ratio, low, high, _), p in sorted(
        zip(candidates, tests, holm([t[3] for t in tests]), strict=True), key=lambda t: t[1][0]
    ):
        if ratio < 1.0 and p < _ALPHA:
            return (
                label,
                f"{1 - ratio:.1%} faster than {best}, the best baseline "
                f"(95 % interval {1 - high:.1%} to {1 - low:.1%})",
                True,
            )
    return best, f"{best} is as good: no planned placement was measurably faster", False


def _level(row: Row) -> float:
    ratios = list(row.series.log_ratios.values())
    return float(sum(ratios) / len(ratios)) if ratios else 0.0


def _ratio(row: Row, other: Row) -> tuple[float, float, float, float]:
    common = [at for at in row.series.ours if at in other.series.ours]
    return paired_ratio(
        [row.series.ours[at] for at in common], [other.series.ours[at] for at in common]
    )
