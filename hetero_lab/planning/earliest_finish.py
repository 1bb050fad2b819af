"""List scheduling: the most urgent task first, each to the device where it ends first (HEFT)."""

from __future__ import annotations

import bisect

from hetero_lab.planning.schedules import Schedule, ScheduledTask, arranged
from hetero_lab.planning.task_graph import TaskGraph, rank_tasks


def schedule_tasks(graph: TaskGraph, *, rank: str = "heft") -> Schedule:
    """Place each task where it ends first, the most urgent one first.

    A task can begin on a device when what it reads has arrived there; the transfer runs beside
    other work. It may go into a gap that tasks placed earlier left (insertion). Of devices on
    which it ends at the same time, the first is taken. (Topcuoglu, Hariri and Wu 2002: HEFT.)

    Parameters
    ----------
    graph
        The tasks.
    rank
        How urgent a task is: ``"heft"`` (:func:`~hetero_lab.planning.task_graph.heft_rank`) or
        ``"heterogeneous"`` (:func:`~hetero_lab.planning.task_graph.heterogeneous_rank`).

    Raises
    ------
    PlanError
        There is no such rank.
    """
    ranks = rank_tasks(graph, rank)
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
