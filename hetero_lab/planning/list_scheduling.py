"""A placement for the parallel executor: list scheduling over units, judged by simulation.

List scheduling (HEFT) puts each planning unit where it ends first. The executor runs
subgraphs, units of one device merged, so that its choice is simulated as the executor would run
it, beside the greedy choice, each single device and the plan for latency. The best two are
improved by moving subgraphs, branches and units; the best of all is the plan.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.clock import now
from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT, OpGraph
from hetero_lab.placement.overlap import predict_overlapping
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.topology import strong_components
from hetero_lab.planning.planner import Baseline, check_budget, plan_graph
from hetero_lab.planning.schedules import Schedule, ScheduledTask, arranged, run_partition, simulate
from hetero_lab.planning.task_graph import Edge, Task, TaskGraph, heft_rank
from hetero_lab.result import Framed
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.placement.affinity import Affinity
    from hetero_lab.planning.cost_model import CostModel

_MOST_MOVES = 400
_STARTS = 2


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
        Predictions for the greedy choice, each single device, the plan for latency and list
        scheduling itself, with subgraphs side by side; ``regret_us`` is never negative.
    emulated
        Emulated device → the device that runs it.
    guessed_from
        Names of the models whose costs these were guessed from; empty if they were measured.
    """

    affinity: Affinity
    schedule: Schedule
    method: str
    baselines: tuple[Baseline, ...]
    emulated: Mapping[str, str] = field(default_factory=dict)
    guessed_from: tuple[str, ...] = ()

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
        """By how many µs each baseline is predicted to be slower."""
        return {baseline.label: baseline.regret_us for baseline in self.baselines}

    def __repr__(self) -> str:
        guessed = " with guessed costs" if self.guessed_from else ""
        return (
            f"SchedulePlan({self.predicted_us:.1f} µs, {count_of(self.n_subgraphs, 'subgraph')}, "
            f"by {self.method}{guessed}, {self.affinity!r})"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row for the plan and each baseline; ``schedule`` has its own table."""
        import pandas as pd

        rows = [("plan", self.predicted_us, 0.0)]
        rows += [(b.label, b.predicted_us, b.regret_us) for b in self.baselines]
        return pd.DataFrame(rows, columns=["label", "predicted_us", "regret_us"])

    def _shown(self) -> dict[str, pd.DataFrame]:
        return {"": self.to_frame(), repr(self.schedule): self.schedule.to_frame()}


def list_scheduling(graph: OpGraph, costs: CostModel, *, budget_s: float = 20.0) -> SchedulePlan:
    """Do what :func:`hetero_lab.plan` does for the parallel executor, given the graph.

    Half of ``budget_s`` is for the plan for latency.

    Returns
    -------
    SchedulePlan
        Never predicted to take longer than the greedy choice, a single device, the plan for
        latency or list scheduling itself.

    Raises
    ------
    PlanError
        As :func:`hetero_lab.plan`.
    """
    check_budget(budget_s)
    deadline = now() + budget_s
    latency = plan_graph(graph, costs, budget_s=budget_s / 2)
    units = schedule_tasks(unit_tasks(costs))
    candidates = [("list scheduling", _placed(costs, units))]
    candidates += [(baseline.label, baseline.affinity) for baseline in latency.baselines]
    candidates.append(("latency plan", latency.affinity))
    found = [(simulate(costs, affinity), label, affinity) for label, affinity in candidates]
    ranked = sorted(found, key=lambda one: one[0].makespan_us)
    best, method, affinity = ranked[0]
    for _, label, start in ranked[:_STARTS]:
        climb = _Climb(costs, deadline)
        schedule, devices = climb.run(costs.objective.device_numbers(start))
        if schedule.makespan_us < best.makespan_us:
            best, method = schedule, f"{label}, improved"
            affinity = costs.objective.affinity(devices)
    baselines = tuple(
        Baseline(label, one.makespan_us, one.makespan_us - best.makespan_us, where)
        for one, label, where in found
    )
    return SchedulePlan(affinity, best, method, baselines, costs.emulated, costs.guessed_from)


def schedule_tasks(graph: TaskGraph) -> Schedule:
    """Place each task where it ends first, the one farthest from the end first.

    A task can begin on a device once its inputs have arrived there; the transfer runs beside
    other work. It may go into a gap that tasks placed earlier left (insertion). The first of
    the devices on which it ends at the same time is taken. (Topcuoglu, Hariri and Wu 2002: HEFT.)
    """
    ranks = heft_rank(graph)
    # No task ranks below one that waits for it; where both rank the same, the order decides.
    place = {task: position for position, task in enumerate(graph.order)}
    taken: list[list[tuple[float, float]]] = [[] for _ in graph.devices]
    runs: dict[int, tuple[int, float, float]] = {}  # task → device, start, end
    for task in sorted(place, key=lambda t: (-ranks[t], place[t])):
        best: tuple[float, float, int] | None = None
        for device, time in enumerate(graph.tasks[task].time_us):
            if time is None:
                continue
            start = _gap(taken[device], _ready_us(graph, runs, task, device), time)
            if best is None or start + time < best[0]:
                best = (start + time, start, device)
        assert best is not None  # a task is supported somewhere
        end, start, device = best
        runs[task] = (device, start, end)
        bisect.insort(taken[device], (start, end))
    entries = [
        ScheduledTask(
            task, graph.tasks[task].name, graph.devices[d], start, end, graph.tasks[task].n_ops
        )
        for task, (d, start, end) in runs.items()
    ]

    def transfer_us(source: int, target: int) -> float:
        every = [e for e in graph.into[target] if graph.edges[e].source == source]
        return max(float(graph.transfers[e, runs[source][0], runs[target][0]]) for e in every)

    sources = [[graph.edges[e].source for e in edges] for edges in graph.into]
    return arranged(graph.devices, entries, sources, transfer_us)


def _ready_us(
    graph: TaskGraph, runs: dict[int, tuple[int, float, float]], task: int, device: int
) -> float:
    """Return when everything that a task reads is on a device."""
    ready = 0.0
    for number in graph.into[task]:
        at, _, end = runs[graph.edges[number].source]
        ready = max(ready, end + float(graph.transfers[number, at, device]))
    return ready


def _gap(taken: list[tuple[float, float]], ready: float, time: float) -> float:
    """Return the earliest start, not before ``ready``, of a gap that is long enough."""
    start = ready
    for begin, end in taken:
        if start + time <= begin:
            break
        start = max(start, end)
    return start


def unit_tasks(costs: CostModel) -> TaskGraph:
    """Return the planning units of a cost model as tasks, and the tensors between them as edges.

    An edge holds all tensors from one unit to another. Between different devices it costs their
    hand-over, the fusion that is lost, and a subgraph on the receiving device. A model's input
    is there from the start and makes no edge. Units that depend on each other (each has an op
    before one of the other) keep only the edges that run in the order of their first ops.
    """
    objective, units = costs.objective, costs.units
    between = _edges(costs)
    pairs = np.array(list(between), dtype=np.int64).reshape(-1, 2)
    component = strong_components(pairs[:, 0], pairs[:, 1], len(units))
    first = [min(costs.graph.index_of[op] for op in unit.ops) for unit in units]
    lost: dict[tuple[int, int], np.ndarray] = {}
    for row, ends in enumerate(objective.fused.tolist()):
        pair = (int(objective.unit_of[ends[0]]), int(objective.unit_of[ends[1]]))
        price = objective.first_ns[row][:, None] + objective.second_ns[row]
        lost[pair] = lost.get(pair, 0) + price
    source, target = np.indices((len(costs.devices),) * 2)
    edges = []
    for (a, b), tensors in between.items():
        if component[a] == component[b] and first[a] > first[b]:
            continue
        every = np.array(sorted(tensors))[:, None, None]
        ns = objective.hand_over_ns(every, source, target)[0].sum(axis=0)
        ns = ns + objective.subgraph_ns + lost.get((a, b), 0)
        transfer_us = {
            (s, t): float(ns[i, j]) / 1000.0 if i != j else 0.0
            for i, s in enumerate(costs.devices)
            for j, t in enumerate(costs.devices)
        }
        edges.append(Edge(a, b, transfer_us))
    tasks = tuple(Task(unit.ops[0], unit.time_us, len(unit.ops)) for unit in units)
    return TaskGraph(costs.devices, tasks, tuple(edges))


def _edges(costs: CostModel) -> dict[tuple[int, int], set[int]]:
    """Return the numbers of the tensors that pass from unit to unit."""
    graph, objective = costs.graph, costs.objective
    between: dict[tuple[int, int], set[int]] = {}
    for op in graph:
        for producer, port in op.inputs:
            pair = (int(objective.unit_of[producer]), int(objective.unit_of[op.index]))
            passes = op.type != RESULT and graph.ops[producer].type not in (CONSTANT, PARAMETER)
            if passes and pair[0] != pair[1] and min(pair) >= 0:
                between.setdefault(pair, set()).add(int(objective.first_tensor[producer]) + port)
    return between


def _placed(costs: CostModel, units: Schedule) -> Affinity:
    """Return the affinity that puts each unit where it is scheduled."""
    chosen = np.zeros(len(costs.units), dtype=np.int64)
    for entry in units.entries:
        chosen[entry.index] = costs.devices.index(entry.device)
    objective = costs.objective
    return objective.affinity(chosen[np.maximum(objective.unit_of, 0)])


class _Climb:
    """Move subgraphs, branches and units to other devices as long as the end comes earlier."""

    def __init__(self, costs: CostModel, deadline: float):
        self.costs = costs
        self.deadline = deadline
        objective = costs.objective
        self.first = [costs.graph.index_of[unit.ops[0]] for unit in costs.units]
        self.nodes = [np.flatnonzero(objective.unit_of == u) for u in range(len(costs.units))]
        self.allowed = np.array([[t is not None for t in unit.time_us] for unit in costs.units])

    def run(self, devices: np.ndarray) -> tuple[Schedule, np.ndarray]:
        """Return the best schedule found from a placement on, and its devices."""
        best, partition = self._simulated(devices)
        left = _MOST_MOVES
        while True:
            for units, device in self._moves(devices, best, partition):
                if not left or now() > self.deadline:
                    return best, devices
                left -= 1
                moved = devices.copy()
                moved[np.concatenate([self.nodes[unit] for unit in units])] = device
                schedule, cut = self._simulated(moved)
                if schedule.makespan_us < best.makespan_us:
                    best, partition, devices = schedule, cut, moved
                    break
            else:
                return best, devices

    def _simulated(self, devices: np.ndarray) -> tuple[Schedule, Partition]:
        affinity = self.costs.objective.affinity(devices)
        partition = predict_overlapping(self.costs.graph, affinity)
        return run_partition(self.costs, devices, partition), partition

    def _moves(
        self, devices: np.ndarray, schedule: Schedule, partition: Partition
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield (units, device), the critical path first, subgraphs before single units."""
        path = {entry.index for entry in schedule.critical_path}
        late = [self._home(partition, unit) in path for unit in range(len(self.first))]
        members: dict[int, list[int]] = {}
        for unit in range(len(self.first)):
            members.setdefault(self._home(partition, unit), []).append(unit)
        groups: dict[tuple[int, ...], None] = dict.fromkeys(map(tuple, members.values()))
        groups.update(dict.fromkeys((unit,) for unit, on_path in enumerate(late) if on_path))
        for on_path in (True, False):
            for units in groups:
                if any(late[unit] for unit in units) != on_path:
                    continue
                for device in range(len(self.costs.devices)):
                    able = tuple(
                        unit
                        for unit in units
                        if self.allowed[unit, device] and devices[self.first[unit]] != device
                    )
                    if able:
                        yield able, device

    def _home(self, partition: Partition, unit: int) -> int:
        return partition.home[self.first[unit]]
