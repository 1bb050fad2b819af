"""Plan: the best placement for a cost model, with a proven lower bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.clock import now
from hetero_lab.costs.objective import (
    BALANCED,
    LATENCY,
    THROUGHPUT,
    PlacementCost,
    check_objective,
)
from hetero_lab.errors import PlanError, did_you_mean, names_at_hand, shorten
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.memory_limits import (
    MemoryLimit,
    Pool,
    excess_bytes,
    memory_pools,
    pools_text,
)
from hetero_lab.planning.exhaustive import best_of_all, best_runs, least_fullest_bytes, small_enough
from hetero_lab.planning.local_search import kick, repair, squeeze
from hetero_lab.planning.pairwise_minimum import even_choice, milp, min_cut
from hetero_lab.planning.problem import Pairwise, Problem, apply_pins, nothing_fits
from hetero_lab.result import Framed
from hetero_lab.tables import frame_of, time_text
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.costs.cost_model import CostModel
    from hetero_lab.costs.prediction import Uncertainty
    from hetero_lab.placement.affinity import Affinity

GREEDY = "greedy"
OBJECTIVES = (LATENCY, THROUGHPUT, BALANCED)
_MILP = "milp"
SMALL = 12  # up to so many units that are free to move, the best placement is proven
_SURCHARGES = (0.5, 1.0, 2.0)  # of a subgraph's cost, added to each hand-over
_TIGHTENINGS = 8  # of limits: each one solves the program again
_MOST_STARTS = 6  # to repair: each has half of the time that is left, the last 1/64
_SOLVER_SHARE = 0.75  # of the time that is left, for the integer program
_EVEN_SHARE = 0.3  # of the time, for the most even placement
_UNEVEN = 1.05  # times the least that the fullest device can hold is even enough


@dataclass(frozen=True)
class Baseline:
    """Prediction for HETERO's greedy choice or a single device.

    ``regret_us`` is the extra time over the plan. It is negative where the baseline breaks a
    limit that the plan keeps to. ``margin_us`` is by how much it may be off, at 90 %.
    """

    label: str
    predicted_us: float
    regret_us: float
    affinity: Affinity
    margin_us: float = math.inf


@dataclass(frozen=True)
class Plan(Framed):
    """A placement that a planner proposes.

    Parameters
    ----------
    affinity
        The placement.
    objective
        ``"latency"``; ``"throughput"``: the time between two requests that follow each other
        through the devices; or ``"balanced_memory"``: latency where weights are spread evenly.
    predicted_us
        Prediction of the cost model for ``affinity``.
    lower_bound_us
        Proven: no placement that keeps to the limits is predicted to take less.
    baselines
        Greedy and each single device that supports the model.
    method
        The algorithms that found it.
    memory_bytes
        Weights, states and boundary tensors that each device holds.
    interval_us
        The 90 % interval of the predicted latency.
    interrupted
        Ctrl-C ended the search.
    """

    affinity: Affinity
    objective: str
    predicted_us: float
    lower_bound_us: float
    baselines: tuple[Baseline, ...]
    method: str
    n_subgraphs: int
    memory_bytes: Mapping[str, int]
    interval_us: tuple[float, float] = (0.0, math.inf)
    interrupted: bool = False

    @property
    def undecided(self) -> tuple[str, ...]:
        """The baselines that the prediction cannot tell apart from the plan."""
        return tuple(b.label for b in self.baselines if 0.0 < abs(b.regret_us) <= b.margin_us)

    @property
    def gap(self) -> float:
        """``predicted_us - lower_bound_us`` in µs; 0 means proven to be the best."""
        return self.predicted_us - self.lower_bound_us

    @property
    def relative_gap(self) -> float:
        """The gap as a share of ``predicted_us``."""
        return self.gap / self.predicted_us if self.predicted_us else 0.0

    @property
    def regret(self) -> dict[str, float]:
        """Predicted extra µs of each baseline."""
        return {baseline.label: baseline.regret_us for baseline in self.baselines}

    def __repr__(self) -> str:
        proof = "proven best" if self.gap == 0 else f"at most {self.relative_gap:.1%} from the best"
        proof += " by these costs"
        low, high = self.interval_us
        sure = f" (90 %: {low:.1f} to {high:.1f})" if high < math.inf else ""
        if sure and self.undecided:
            proof += f", which cannot tell it apart from {names_at_hand(self.undecided)}"
        return (
            f"Plan({self.objective}: {self.predicted_us:.1f} µs{sure}, {proof}, "
            f"{count_of(self.n_subgraphs, 'subgraph')}, {self.affinity!r}"
            f"{', interrupted' if self.interrupted else ''})"
        )

    def _answer(self) -> str:
        low, high = self.interval_us
        what = "time between two requests" if self.objective == THROUGHPUT else "latency"
        sure = f" (90 %: {time_text(low)} to {time_text(high)})" if high < math.inf else ""
        where = placing_text(self.affinity, self.n_subgraphs)
        return f"{where}: predicted {what} {time_text(self.predicted_us)}{sure}."

    def _sentences(self) -> list[str]:
        sentences = ["Proven: no allowed placement is predicted to be faster."]
        if self.gap:
            sentences = [f"Not proven best: another may be predicted {time_text(self.gap)} faster."]
        if self.interval_us[1] < math.inf and self.undecided:
            names = names_at_hand(self.undecided).replace(f"'{GREEDY}'", "HETERO's own choice")
            sentences.append(f"{names} may be as fast: the difference is within the error.")
        return [*sentences, *["Ctrl-C ended the search."] * self.interrupted]

    def to_frame(self) -> pd.DataFrame:
        """Return one row for the plan, its bound and each baseline."""
        rows = [("plan", self.predicted_us, 0.0), ("lower bound", self.lower_bound_us, -self.gap)]
        return plan_frame([(*row, 0.0) for row in rows], self.baselines)


def placing_text(affinity: Affinity, n_subgraphs: int) -> str:
    """Say what a plan places where: ``Place 62 ops on ACC, 22 ops on CPU, in 11 subgraphs``."""
    counts = ", ".join(f"{count_of(n, 'op')} on {d}" for d, n in affinity.counts().items())
    return f"Place {counts}, in {count_of(n_subgraphs, 'subgraph')}"


def plan_frame(
    rows: list[tuple[str, float, float, float]], baselines: tuple[Baseline, ...]
) -> pd.DataFrame:
    """Return rows and baselines as a table: ``label, predicted_us, regret_us, margin_us``."""
    rows = [*rows, *((b.label, b.predicted_us, b.regret_us, b.margin_us) for b in baselines)]
    return frame_of(rows, ["label", "predicted_us", "regret_us", "margin_us"])


def plan_graph(
    graph: OpGraph,
    costs: CostModel,
    *,
    objective: str = LATENCY,
    memory_limit: MemoryLimit | None = None,
    pin: Mapping[str, str] | None = None,
    budget_s: float = 60.0,
    solver: str | None = None,
    keep: bool = False,
) -> Plan:
    """Do as :func:`hetero_lab.plan` for HETERO, given the graph.

    With ``keep``, Ctrl-C returns the best plan so far. Without, ``KeyboardInterrupt`` passes.
    """
    costs.check_graph(graph)
    _check_arguments(costs, objective, budget_s)
    if solver not in (None, _MILP):
        raise PlanError(
            f"There is no solver {shorten(str(solver))}.{did_you_mean(str(solver), [_MILP])} "
            f"Solvers: {_MILP!r}. Without solver=, the size of the problem decides."
        )
    deadline, until = now() + budget_s, UntilInterrupted(lambda: keep)
    whole = Pairwise.build(costs.objective)
    whole = whole.restricted(np.ones_like(whole.allowed))
    problem = Problem(
        pairwise=apply_pins(whole, pin or {}),
        objective=LATENCY if objective == BALANCED else objective,
        pools=memory_pools(costs.devices, memory_limit),
        deadline=deadline,
        until=until,
    )
    starts: Sequence[np.ndarray] = ()
    by_layers = costs.scenario is not None
    if objective == BALANCED:
        problem, starts = _keep_even(problem, budget_s)
    elif by_layers or objective == THROUGHPUT:
        starts = best_runs(problem.pairwise, problem.pools, objective)
        if not by_layers:  # one more start beside the others
            starts = starts[:1]
    best, bound_ns, method = _best(problem, starts, solver is not None, by_layers)
    best_ns = problem.value_ns(best)
    estimate = costs.uncertainty.interval(best_ns / 1000.0, best.parts_us)
    return Plan(
        affinity=costs.objective.affinity(best.devices),
        objective=objective,
        predicted_us=best_ns / 1000.0,
        lower_bound_us=min(bound_ns, best_ns) / 1000.0,
        baselines=tuple(_baselines(replace(problem, pairwise=whole), best, costs.uncertainty)),
        method=method,
        n_subgraphs=best.n_subgraphs,
        memory_bytes=dict(
            zip(costs.devices, problem.held_bytes(best).sum(axis=1).tolist(), strict=True)
        ),
        interval_us=(estimate.low_us, estimate.high_us),
        interrupted=until.interrupted,
    )


def _check_arguments(costs: CostModel, objective: str, budget_s: float) -> None:
    check_objective(objective, OBJECTIVES, costs.scenario)
    check_budget(budget_s)
    if len(costs.devices) < 2:
        raise PlanError(
            f"This cost model knows {names_at_hand(costs.devices)} only; a plan chooses between "
            "two devices or more. Calibrate with another device, for instance an emulated one: "
            "hetero_lab.emulate('ACC')."
        )
    if not costs.units:
        raise PlanError(f"{shorten(costs.graph.name)} has no op that could be placed.")


def check_budget(budget_s: Any) -> None:
    """Raise PlanError unless a budget is a number of seconds above 0."""
    if not isinstance(budget_s, int | float) or not math.isfinite(budget_s) or budget_s <= 0:
        raise PlanError(f"budget_s is a number of seconds above 0, not {budget_s!r}.")


def keeps_limits(
    costs: CostModel,
    affinity: Affinity,
    *,
    memory_limit: MemoryLimit | None = None,
    pin: Mapping[str, str] | None = None,
) -> bool:
    """Return whether a placement keeps to memory limits and pins."""
    objective = costs.objective
    devices = objective.device_numbers(affinity)
    pools = memory_pools(costs.devices, memory_limit)
    allowed = apply_pins(Pairwise.build(objective), pin or {}).allowed
    decided = objective.unit_of >= 0
    pinned = allowed[objective.unit_of[decided], devices[decided]].all()
    n_bytes = objective.memory_bytes(objective.evaluate(devices))
    return bool(pinned) and not excess_bytes(n_bytes, pools)


def _simple_choices(pairwise: Pairwise) -> list[tuple[str, np.ndarray]]:
    """Return label and choice of greedy, the first device that supports a unit, and of singles."""
    return [(GREEDY, pairwise.allowed.argmax(axis=1)), *_single_choices(pairwise)]


def _single_choices(pairwise: Pairwise) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each device that supports all units, and its choice."""
    for number, device in enumerate(pairwise.objective.devices):
        if pairwise.allowed[:, number].all():
            yield device, np.full(len(pairwise.units), number)


def _baselines(
    problem: Problem, plan: PlacementCost, uncertainty: Uncertainty
) -> Iterator[Baseline]:
    pairwise = problem.pairwise
    for label, choice in _simple_choices(pairwise):
        placed = problem.place(choice)
        affinity = pairwise.objective.affinity(placed.devices)
        value_ns = problem.value_ns(placed)
        regret_us = (value_ns - problem.value_ns(plan)) / 1000.0
        margin_us = uncertainty.margin_us(placed.parts_us, plan.parts_us)
        yield Baseline(label, value_ns / 1000.0, regret_us, affinity, margin_us)


def _best(
    problem: Problem, starts: Sequence[np.ndarray], only_milp: bool, by_layers: bool
) -> tuple[PlacementCost, int, str]:
    """Return the best placement, a lower bound in ns and how it was found.

    ``starts`` are further choices for the large method to begin from; ``by_layers``: the units are
    the layers of a language model.
    """
    if only_milp or not _is_small(problem.pairwise):
        return _large(problem, starts, only_milp, by_layers)
    best, bound_ns, in_time = best_of_all(problem)
    if best is None and in_time:
        raise nothing_fits(problem.pairwise, problem.pools)
    found = [] if best is None else [best]
    if not in_time:
        simple = [problem.place(choice) for _, choice in _simple_choices(problem.pairwise)]
        found += [one for one in simple if not problem.excess_bytes(one)]
    if not found:
        raise _no_placement(problem)
    return min(found, key=problem.value_ns), bound_ns, "all choices, by branch and bound"


def _is_small(pairwise: Pairwise) -> bool:
    free = int((pairwise.allowed.sum(axis=1) > 1).sum())
    return free <= SMALL and small_enough(pairwise)


def _keep_even(problem: Problem, budget_s: float) -> tuple[Problem, list[np.ndarray]]:
    """Keep a problem to placements whose fullest device holds little too much.

    Returns an even choice to start from too, if the problem is large.
    """
    pairwise, pools, even_s = problem.pairwise, problem.pools, _EVEN_SHARE * budget_s
    starts: list[np.ndarray] = []
    if _is_small(pairwise):
        fullest = least_fullest_bytes(replace(problem, deadline=now() + even_s))
        if fullest is None:
            raise nothing_fits(pairwise, pools)
    else:
        even = even_choice(pairwise, pools, even_s)
        placed = _most_even(problem, [_in_a_row(pairwise), *([] if even is None else [even])])
        fullest, starts = problem.fullest_bytes(placed), [problem.choice(placed)]
    return _with_limit(problem, fullest), starts


def _with_limit(problem: Problem, fullest_bytes: int) -> Problem:
    """Limit the weights and states of each device to little more than these bytes."""
    most, devices = int(_UNEVEN * fullest_bytes), range(problem.pairwise.n_devices)
    shares = {Pool((device,), boundaries=False): most for device in devices}
    return replace(problem, pools={**problem.pools, **shares})


def _most_even(problem: Problem, choices: list[np.ndarray]) -> PlacementCost:
    """Return the most even placement that some choices lead to.

    Each choice is moved step by step to the bytes that it needs with each constant once on a
    device.
    """
    found: list[PlacementCost] = []
    for choice in choices:
        (fullest,) = problem.pairwise.fullest_bytes(choice[None])
        for limited in (_with_limit(problem, fullest), problem):
            placed = squeeze(limited, problem.place(choice))
            if placed is not None:
                found.append(placed)
                break
    if not found:
        raise _no_placement(problem)
    return min(found, key=problem.fullest_bytes)


def _in_a_row(pairwise: Pairwise) -> np.ndarray:
    """Return the choice that gives each device in turn an equal part of the bytes."""
    sizes = np.zeros(len(pairwise.units))
    for users, most in zip(pairwise.memory, pairwise.held_bytes.max(axis=1), strict=True):
        sizes[users[0]] += most
    n = pairwise.n_devices
    before = np.cumsum(sizes) - sizes / 2
    device = np.minimum(before * n // max(1.0, sizes.sum()), n - 1)
    distance = np.abs(np.arange(n) - device[:, None])
    return np.where(pairwise.allowed, distance, n).argmin(axis=1)


def _large(
    problem: Problem, more: Sequence[np.ndarray], only_milp: bool, by_layers: bool
) -> tuple[PlacementCost, int, str]:
    """Do as :func:`_best` where there are too many choices to look at all of them.

    The choice that minimises the pairwise part, choices with a surcharge on hand-overs and the
    baselines are repaired on the whole prediction. The best of them is kicked and repaired again.
    """
    pairwise, until = problem.pairwise, problem.until
    two_free = pairwise.n_devices == 2 and problem.objective == LATENCY and not problem.pools
    can_cut = two_free and not only_milp
    exact: tuple[np.ndarray, int] | None = None
    starts: list[np.ndarray] = []
    with until:
        exact = min_cut(pairwise) if can_cut else _program(problem)
        starts += [] if exact is None else [exact[0]]
        starts += () if only_milp else _surcharge_choices(problem)
    if not only_milp or until.interrupted:
        starts += [choice for _, choice in _simple_choices(pairwise)]
        starts += more
        starts += [_away(problem)] if problem.pools else []
        starts = list({choice.astype(np.int64).tobytes(): choice for choice in starts}.values())
    found = [p for p in map(problem.place, starts) if not problem.excess_bytes(p)]
    found = sorted(found or [_first_fit(problem, starts)], key=problem.value_ns)
    best = found[0]
    if not until.interrupted:
        with until:
            for step in _steps(problem, found, by_layers):
                best = min(best, step, key=problem.value_ns)
    bound = _lower_bound(problem, 0 if exact is None else exact[1])
    return best, bound, f"{'min_cut' if can_cut else _MILP}, repaired"


def _steps(
    problem: Problem, starts: list[PlacementCost], by_layers: bool
) -> Iterator[PlacementCost]:
    """Yield each step of the repair of some starts and of the kicks that follow."""
    if by_layers:
        # Its graph is large, so that a prediction is slow, but its units are few.
        yield from repair(problem, starts[0], patience=0)
        return
    ends: list[PlacementCost] = []
    for start in starts[:_MOST_STARTS]:
        # Half of the time is for the best start, half of the rest for the next one, and so on.
        part = replace(problem, deadline=(now() + problem.deadline) / 2)
        ends.append(start)
        for ends[-1] in repair(part, start):
            yield ends[-1]
    yield from kick(problem, min(ends, key=problem.value_ns))


def _program(problem: Problem) -> tuple[np.ndarray, int] | None:
    """Solve the integer program; with memory limits until the real partition fits too."""
    pools = dict(problem.pools)
    choice, bound_ns = None, 0
    for _ in range(_TIGHTENINGS):
        if choice is not None and problem.is_late:
            break
        left_s = max(0.1, (problem.deadline - now()) * _SOLVER_SHARE)
        try:
            answer = milp(problem.pairwise, problem.objective, memory_limit=pools, budget_s=left_s)
        except PlanError:
            if not problem.pools:
                raise
            if choice is None:
                raise nothing_fits(problem.pairwise, problem.pools) from None
            break  # the limits had been tightened too far
        if answer is None:
            break
        # Only the first program has the limits themselves.
        bound_ns = answer[1] if choice is None else bound_ns
        choice = answer[0]
        over = problem.excess_bytes(problem.place(choice))
        if not over:
            break
        # Copies that the program does not see (a constant in two subgraphs of a device).
        pools = {pool: max(0, limit - over.get(pool, 0)) for pool, limit in pools.items()}
    return None if choice is None else (choice, bound_ns)


def _surcharge_choices(problem: Problem) -> Iterator[np.ndarray]:
    """Yield choices of two devices for which each hand-over costs about a subgraph more."""
    pairwise = problem.pairwise
    fixed = pairwise.objective.subgraph_ns
    for pair in itertools.combinations(range(pairwise.n_devices), 2):
        if not pairwise.allowed[:, pair].any(axis=1).all():
            continue
        surcharges = {int(factor * fixed[list(pair)].max()) for factor in _SURCHARGES}
        if pairwise.n_devices > 2 or problem.objective != LATENCY:
            surcharges.add(0)
        for surcharge in sorted(surcharges):
            if not problem.is_late:
                yield min_cut(pairwise, pair, surcharge)[0]


def _away(problem: Problem) -> np.ndarray:
    """Return the choice that keeps off limited devices wherever it can."""
    cost = np.where(problem.pairwise.allowed, problem.pairwise.time_ns.astype(float), np.inf)
    cost[:, [number for pool in problem.pools for number in pool.devices]] *= 2.0**60
    return cost.argmin(axis=1)


def _first_fit(problem: Problem, choices: list[np.ndarray]) -> PlacementCost:
    """Return the first choice that can be moved step by step until it keeps to the limits."""
    for choice in choices:
        placed = squeeze(problem, problem.place(choice))
        if placed is not None:
            return placed
    raise _no_placement(problem)


def _lower_bound(problem: Problem, pairwise_ns: int) -> int:
    """Add the subgraphs that any placement has to a bound of the pairwise part."""
    objective = problem.pairwise.objective
    if problem.objective != LATENCY:
        return pairwise_ns
    singles = (problem.place(choice) for _, choice in _single_choices(problem.pairwise))
    two_subgraphs = int(np.sort(objective.subgraph_ns)[:2].sum()) + int(objective.spread_ns(2))
    return min([pairwise_ns + two_subgraphs, *map(problem.value_ns, singles)])


def _no_placement(problem: Problem) -> PlanError:
    if problem.until.interrupted:
        raise KeyboardInterrupt
    listed = pools_text(problem.pairwise.objective.devices, problem.pools)
    limit = f" that keeps within memory_limit ({listed})" if listed else ""
    if problem.is_late:
        return PlanError(
            f"No placement{limit} was found in time. Give more time"
            f"{' or raise a limit' if listed else ''}."
        )
    return PlanError(f"No placement{limit} was found. Raise a limit a little.")
