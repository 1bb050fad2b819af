"""Schedules of the parallel executor: simulation of a placement, and a search for the best one.

A subgraph starts once its inputs are there and its device is free. Of several that could start, a
device takes the one with the longest path to the end, as the executor does once it has measured
them, and among equals the one that was ready first.

A hand-over is work, as everywhere in the cost model: the receiving device's, except for the
reorder on the device that the tensor leaves. The time of a subgraph is therefore its own cost, its
ops, the boundaries that enter it, the reorders of those that leave it, and its lost fusion. The
spans that the executor measures cover the same. Their sum plus the constant is the latency of
one subgraph after another.

The executor itself takes time for each request. While several devices work, each is slower by the
contention of the cost model: they share cores, memory and the threads that drive them.

The search starts from the best of a few placements and moves subgraphs, branches and units; it
judges each move by simulation.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.cluster.hierarchy import DisjointSet
from scipy.optimize import root_scalar

from hetero_lab.clock import now
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.opgraph import OpGraph, grouped, related
from hetero_lab.placement.overlap import predict_overlapping, sources
from hetero_lab.placement.partition import Partition
from hetero_lab.planning.planner import Baseline, check_budget, placing_text, plan_frame, plan_graph
from hetero_lab.planning.problem import Pairwise
from hetero_lab.planning.timeline import Span, critical_path
from hetero_lab.result import Framed
from hetero_lab.tables import frame_of, time_text
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.costs.cost_model import CostModel
    from hetero_lab.placement.affinity import Affinity

_MOST_MOVES = 1000  # simulated in all
_MOVES_OF_A_UNIT = 30  # simulated for each unit: a small model ends before _MOST_MOVES
_MOST_KICKS = 100  # moves or time usually end it before
_STARTS = 2  # to climb from: the moves are shared by all
_MOST_CONTENTION = 16.0  # the end of the search: slower than any devices side by side


@dataclass(frozen=True)
class Schedule(Framed):
    """Subgraphs in the order of their starts, at most one at a time on a device.

    Parameters
    ----------
    devices
        Devices of the costs, including those on which nothing runs.
    partition
        The subgraphs.
    entries
        When and where each subgraph runs.
    critical_path
        The chain of subgraphs that determines the end, first to last. Each one is preceded by the
        subgraph that it waited for longest: a source of its inputs, or the one before it on its
        device.
    """

    devices: tuple[str, ...]
    partition: Partition
    entries: tuple[Span, ...]
    critical_path: tuple[Span, ...]

    @property
    def makespan_us(self) -> float:
        """When the last subgraph ends, in µs."""
        return max((entry.end_us for entry in self.entries), default=0.0)

    @property
    def idle_us(self) -> dict[str, float]:
        """How long each device does nothing before the last subgraph ends."""
        idle = dict.fromkeys(self.devices, self.makespan_us)
        for entry in self.entries:
            idle[entry.device] -= entry.end_us - entry.start_us
        return {device: max(0.0, us) for device, us in idle.items()}

    def __repr__(self) -> str:
        idle = ", ".join(f"{device} {us:.1f}" for device, us in self.idle_us.items())
        return (
            f"Schedule({self.makespan_us:.1f} µs, {count_of(len(self.entries), 'subgraph')}, "
            f"{len(self.critical_path)} on the critical path, idle µs: {idle})"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per task: ``task, device, start_us, end_us, n_ops, critical``."""
        path = set(self.critical_path)
        rows = [
            (
                f"subgraph{e.subgraph}", e.device, e.start_us, e.end_us,
                len(self.partition.subgraphs[e.subgraph].ops), e in path,
            )
            for e in self.entries
        ]  # fmt: skip
        columns = ["task", "device", "start_us", "end_us", "n_ops", "critical"]
        return frame_of(rows, columns)


@dataclass(frozen=True)
class SchedulePlan(Framed):
    """A placement for the parallel executor.

    Parameters
    ----------
    affinity
        The placement.
    schedule
        When its subgraphs are predicted to run.
    method
        How it was found.
    baselines
        Predictions of the parallel executor for the greedy choice, each single device and the
        plan for latency; ``regret_us`` is negative where a split is predicted to be faster than
        the planned device, but not surely so.
    emulated
        Emulated device → the device that runs it.
    interrupted
        Ctrl-C ended the search.
    """

    affinity: Affinity
    schedule: Schedule
    method: str
    baselines: tuple[Baseline, ...]
    emulated: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def predicted_us(self) -> float:
        """The predicted latency of one request, devices side by side."""
        return self.schedule.makespan_us

    @property
    def n_subgraphs(self) -> int:
        """Number of subgraphs that the executor runs."""
        return len(self.schedule.entries)

    @property
    def regret(self) -> dict[str, float]:
        """Predicted extra µs of each baseline."""
        return {baseline.label: baseline.regret_us for baseline in self.baselines}

    def __repr__(self) -> str:
        return (
            f"SchedulePlan({self.predicted_us:.1f} µs, {count_of(self.n_subgraphs, 'subgraph')}, "
            f"by {self.method}, {self.affinity!r}"
            f"{', interrupted' if self.interrupted else ''})"
        )

    def _answer(self) -> str:
        where = placing_text(self.affinity, self.n_subgraphs)
        how = ", side by side" if self.n_subgraphs > 1 else ""
        return f"{where}{how}: predicted latency {time_text(self.predicted_us)}."

    def _sentences(self) -> list[str]:
        return ["Ctrl-C ended the search."] * self.interrupted

    def to_frame(self) -> pd.DataFrame:
        """Return one row for the plan and each baseline; ``schedule`` has its own table."""
        return plan_frame([("plan", self.predicted_us, 0.0, 0.0)], self.baselines)

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        return {"": self.to_frame(), repr(self.schedule): self.schedule.to_frame()}


def simulate(costs: CostModel, affinity: Affinity) -> Schedule:
    """Predict when the parallel executor runs each subgraph of one request, after the constant.

    Errors are those of ``CostModel.predict_us``.
    """
    numbers = costs.objective.device_numbers(affinity)
    return run_partition(costs, numbers, predict_overlapping(costs.graph, affinity))


def run_partition(costs: CostModel, devices: np.ndarray, partition: Partition) -> Schedule:
    """Simulate the partition that the executor compiles, given the device of every node."""
    cost = costs.objective.evaluate(devices, np.array(partition.home))
    work = cost.work_ns[: partition.n_subgraphs].tolist()
    waits = sources(partition, costs.graph)
    where = [subgraph.device for subgraph in partition.subgraphs]
    begin = cost.constant_ns + cost.spread_ns + round(costs.executor_us * 1e3)
    spans = _spans_ns(work, where, waits, begin, costs.contention)
    entries = [
        Span(0, subgraph.index, subgraph.device, start / 1e9, end / 1e9)
        for subgraph, (start, end) in zip(partition.subgraphs, spans, strict=True)
    ]
    # Sorting is stable: subgraphs that take no time stay behind those that they wait for.
    entries.sort(key=lambda entry: (entry.start_s, entry.end_s))
    path = critical_path(entries, 0, waits) if entries else ()
    return Schedule(costs.devices, partition, tuple(entries), path)


def _spans_ns(
    work: Sequence[int],
    where: Sequence[str],
    sources: Sequence[Collection[int]],
    begin: int,
    contention: float,
) -> list[tuple[int, int]]:
    """Return when each subgraph starts, as the parallel executor chooses, and when it ends."""
    users: list[list[int]] = [[] for _ in work]
    for index, every in enumerate(sources):
        for source in every:
            users[source].append(index)
    urgency = list(work)
    for index in reversed(range(len(work))):  # subgraphs stand in an order that can be executed
        urgency[index] += max((urgency[user] for user in users[index]), default=0)
    missing = [len(every) for every in sources]
    ready: dict[str, list[tuple[int, int, int]]] = {device: [] for device in where}
    free = set(where)
    turn = itertools.count()

    def make_ready(index: int) -> None:
        heapq.heappush(ready[where[index]], (-urgency[index], next(turn), index))

    for index, n in enumerate(missing):
        if not n:
            make_ready(index)
    spans = [(begin, begin)] * len(work)
    running: dict[int, int] = {}  # the work that each subgraph has left
    clock = begin
    while True:
        for device in ready:
            if device in free and ready[device]:
                index = heapq.heappop(ready[device])[2]
                spans[index] = clock, clock
                free.remove(device)
                running[index] = work[index]
        if not running:
            return spans
        step = min(running.values())
        clock += step if len(running) == 1 else round(step * contention)
        running = {index: rest - step for index, rest in running.items()}
        for index in sorted(index for index, rest in running.items() if not rest):
            del running[index]
            spans[index] = spans[index][0], clock
            free.add(where[index])
            for user in users[index]:
                missing[user] -= 1
                if not missing[user]:
                    make_ready(user)


def measured_contention(costs: CostModel, affinity: Affinity, measured_us: float) -> float:
    """Return the contention with which a placement is predicted to take as long as was measured.

    1 if it is predicted to take longer without, or if its devices never work at the same time.
    """

    def missing_us(contention: float) -> float:
        there = simulate(replace(costs, contention=contention), affinity)
        return measured_us - there.makespan_us

    if not missing_us(1.0) > 0.0 > missing_us(_MOST_CONTENTION):
        return 1.0
    return float(root_scalar(missing_us, bracket=(1.0, _MOST_CONTENTION)).root)


def plan_schedule(graph: OpGraph, costs: CostModel, *, budget_s: float = 20.0) -> SchedulePlan:
    """Do as :func:`hetero_lab.plan` for the parallel executor, given the graph.

    Half of ``budget_s`` is for the plan for latency. The result is never predicted to take longer
    than the greedy choice, a single device, or the plan for latency; except that a single device
    is the plan where the interval of a split reaches it. Ctrl-C returns the best plan so far.
    """
    check_budget(budget_s)
    deadline = now() + budget_s
    latency = plan_graph(graph, costs, budget_s=budget_s / 2, keep=True)
    starts = [(baseline.label, baseline.affinity) for baseline in latency.baselines]
    starts.append(("latency plan", latency.affinity))
    candidates = [(simulate(costs, affinity), label, affinity) for label, affinity in starts]
    ranked = sorted(candidates, key=lambda one: one[0].makespan_us)
    best, method, affinity = ranked[0]
    objective = costs.objective
    numbered = [(label, objective.device_numbers(start)) for _, label, start in ranked[:_STARTS]]
    until = UntilInterrupted()
    with until:
        steps = () if latency.interrupted else _Climb(costs, deadline).steps(numbered)
        for label, schedule, devices in steps:
            if schedule.makespan_us < best.makespan_us:
                how = f"{label}, improved"
                best, method, affinity = schedule, how, objective.affinity(devices)
    parts_us = costs.predictor(affinity).evaluation.parts_us
    high_us = costs.uncertainty.interval(best.makespan_us, parts_us).high_us
    alone = next((one for one in ranked if len(one[2].devices) == 1), None)
    if alone and len(affinity.devices) > 1 and costs.predict_us(alone[2]) <= high_us < math.inf:
        best, method, affinity = alone[0], f"{alone[1]}, as no split is surely faster", alone[2]
    baselines = tuple(
        Baseline(label, one.makespan_us, one.makespan_us - best.makespan_us, where)
        for one, label, where in candidates
    )
    return SchedulePlan(
        affinity,
        best,
        method,
        baselines,
        costs.emulated,
        interrupted=latency.interrupted or until.interrupted,
    )


class _Climb:
    """Move subgraphs, branches and units to other devices as long as the end comes earlier."""

    def __init__(self, costs: CostModel, deadline: float):
        self.costs = costs
        self.deadline = deadline
        self.left = min(_MOST_MOVES, _MOVES_OF_A_UNIT * len(costs.units))
        objective = costs.objective
        self.pairwise = Pairwise.build(objective)
        self.first: list[int] = self.pairwise.first_node.tolist()
        self.nodes = [np.flatnonzero(objective.unit_of == u) for u in range(len(costs.units))]
        self.branches = branches(self.pairwise)

    @property
    def is_over(self) -> bool:
        """Whether there are no moves left, or no time."""
        return not self.left or now() > self.deadline

    def steps(
        self, starts: Iterable[tuple[str, np.ndarray]]
    ) -> Iterator[tuple[str, Schedule, np.ndarray]]:
        """Yield label, schedule and devices of each step from some starts on, and of the kicks."""
        ends: dict[str, tuple[str, Schedule, np.ndarray]] = {}
        for label, start in starts:
            for schedule, devices in self.run(start):
                ends[label] = label, schedule, devices
                yield ends[label]
        if ends:
            label, schedule, devices = min(ends.values(), key=lambda end: end[1].makespan_us)
            yield from ((label, *step) for step in self.kick(schedule, devices))

    def run(self, devices: np.ndarray) -> Iterator[tuple[Schedule, np.ndarray]]:
        """Yield schedule and devices of a placement and of each better one that moves lead to."""
        if self.is_over:
            return
        best = self._simulate(devices)
        is_better = True
        while is_better:
            yield best, devices
            is_better = False
            for units, device in self._moves(devices, best):
                if self.is_over:
                    return
                moved = self._after_move(devices, units, device)
                schedule = self._simulate(moved)
                if is_better := schedule.makespan_us < best.makespan_us:
                    best, devices = schedule, moved
                    break

    def kick(self, best: Schedule, devices: np.ndarray) -> Iterator[tuple[Schedule, np.ndarray]]:
        """Move patches of neighbours at random, climb from there and yield what is better."""
        rng = random.Random(0)
        n_units, n_devices = len(self.nodes), len(self.costs.devices)
        for _ in range(_MOST_KICKS):
            if self.is_over:
                return
            size = rng.randint(2, max(3, n_units // 2))
            near = self.pairwise.around(rng.randrange(n_units), size)
            kicked = self._after_move(devices, near, rng.randrange(n_devices))
            for schedule, moved in self.run(kicked):
                if schedule.makespan_us < best.makespan_us:
                    best, devices = schedule, moved
                    yield best, devices

    def _after_move(self, devices: np.ndarray, units: Iterable[int], device: int) -> np.ndarray:
        """Return the devices of all nodes after units have moved, where that is allowed."""
        moved = devices.copy()
        for unit in units:
            if self.pairwise.allowed[unit, device]:
                moved[self.nodes[unit]] = device
        return moved

    def _simulate(self, devices: np.ndarray) -> Schedule:
        self.left -= 1
        affinity = self.costs.objective.affinity(devices)
        return run_partition(self.costs, devices, predict_overlapping(self.costs.graph, affinity))

    def _moves(
        self, devices: np.ndarray, schedule: Schedule
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield (units, device), the critical path first, subgraphs before single units."""
        path = {entry.subgraph for entry in schedule.critical_path}
        home = [schedule.partition.home[node] for node in self.first]
        members = grouped((subgraph, unit) for unit, subgraph in enumerate(home))
        late = {unit for unit, subgraph in enumerate(home) if subgraph in path}
        groups = [*map(tuple, members.values()), *self.branches]
        groups += [(unit,) for unit in sorted(late)]
        groups = sorted(dict.fromkeys(groups), key=late.isdisjoint)
        for units, device in itertools.product(groups, range(len(self.costs.devices))):
            able = tuple(
                unit
                for unit in units
                if self.pairwise.allowed[unit, device] and devices[self.first[unit]] != device
            )
            if able:
                yield able, device


def branches(pairwise: Pairwise) -> list[tuple[int, ...]]:
    """Return the branches of a model as numbers of units, each before those that are inside it.

    A unit that all others come before or after forks or joins. Without these units, each connected
    part is a branch, which may fork in turn.
    """
    n, unit_of = len(pairwise.units), pairwise.objective.unit_of.tolist()
    bits = [1 << unit if unit >= 0 else 0 for unit in unit_of]  # one bit for each unit
    near = [0] * n
    for unit, up, down in zip(unit_of, *related(pairwise.objective.graph, bits), strict=True):
        if unit >= 0:
            near[unit] |= up | down
    linked: dict[int, list[int]] = {unit: [] for unit in range(n)}
    for unit, other in pairwise.links:
        linked[unit].append(other)
    branches: list[tuple[int, ...]] = []
    parts = [tuple(range(n))]
    for part in parts:  # grows as branches are found
        everything = sum(1 << unit for unit in part)
        loose = DisjointSet(unit for unit in part if everything & ~near[unit])
        for unit in loose:
            for other in linked[unit]:
                if other in loose:
                    loose.merge(unit, other)
        inside = [tuple(sorted(subset)) for subset in loose.subsets()]
        branches += inside
        parts += [branch for branch in inside if 1 < len(branch) < len(part)]
    return list(dict.fromkeys(branches))
