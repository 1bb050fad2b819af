"""Tasks, tensors between them, and how far each is from the end: the input of list scheduling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from hetero_lab.errors import PlanError, names_at_hand, shorten


@dataclass(frozen=True, slots=True)
class Task:
    """Something to run: µs on each device, None where the device does not support it."""

    name: str
    time_us: tuple[float | None, ...]
    n_ops: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """Task ``target`` reads what task ``source`` makes (their numbers).

    ``transfer_us`` is what handing it over takes for each (source device, target device); from
    a device to itself it may be left out and is then free.
    """

    source: int
    target: int
    transfer_us: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class TaskGraph:
    """Tasks that wait for each other, on devices that run one at a time each.

    Raises
    ------
    PlanError
        There is no device or task, lengths differ, a cost is missing, negative or not finite,
        a task is supported nowhere, an edge names an unknown device or task, or tasks wait for
        each other in a circle.
    """

    devices: tuple[str, ...]
    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...] = ()

    def __post_init__(self) -> None:
        _check(self)
        _ = self.order  # raises if there is a cycle

    def __repr__(self) -> str:
        return (
            f"TaskGraph({len(self.tasks)} tasks, {len(self.edges)} edges on "
            f"{', '.join(self.devices)})"
        )

    @cached_property
    def into(self) -> tuple[tuple[int, ...], ...]:
        """For each task, the numbers of the edges that it waits for."""
        return _by_end(self, [edge.target for edge in self.edges])

    @cached_property
    def out_of(self) -> tuple[tuple[int, ...], ...]:
        """For each task, the numbers of the edges that wait for it."""
        return _by_end(self, [edge.source for edge in self.edges])

    @cached_property
    def times(self) -> np.ndarray:
        """µs of each task on each device, infinite where it is not supported."""
        rows = [[math.inf if t is None else float(t) for t in task.time_us] for task in self.tasks]
        return np.array(rows)

    @cached_property
    def transfers(self) -> np.ndarray:
        """µs of each edge for each source device and target device."""
        n = len(self.devices)
        table = np.zeros((len(self.edges), n, n))
        for number, edge in enumerate(self.edges):
            for i, source in enumerate(self.devices):
                for j, target in enumerate(self.devices):
                    table[number, i, j] = edge.transfer_us.get((source, target), 0.0)
        return table

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Tasks so that each comes after what it waits for, else as they stand."""
        sorter = TopologicalSorter(dict.fromkeys(range(len(self.tasks)), ()))
        for edge in self.edges:
            sorter.add(edge.target, edge.source)
        try:
            return tuple(sorter.static_order())
        except CycleError as error:
            names = [self.tasks[task].name for task in sorted(set(error.args[1]))]
            raise PlanError(
                f"{names_at_hand(names)} wait for each other in a circle, so that none can be "
                "first. Merge them into one task or leave out an edge."
            ) from error


def heft_rank(graph: TaskGraph) -> np.ndarray:
    """Return the upward rank of each task: how far away the end is, on average.

    The mean time of the task over the devices that support it, plus the largest sum of mean
    transfer and rank among the tasks that wait for it. The mean transfer of an edge is that over
    all ordered pairs of different devices (Topcuoglu, Hariri and Wu, "Performance-effective and
    low-complexity task scheduling for heterogeneous computing", 2002, equations 5, 7 and 8).
    """
    n = len(graph.devices)
    # A device keeps what it hands to itself: only the transfers off the diagonal count.
    diagonal = graph.transfers.trace(axis1=1, axis2=2)
    transfer = (graph.transfers.sum(axis=(1, 2)) - diagonal) / max(1, n * (n - 1))
    rank = np.zeros(len(graph.tasks))
    for task in reversed(graph.order):
        after = (transfer[e] + rank[graph.edges[e].target] for e in graph.out_of[task])
        own = graph.times[task][np.isfinite(graph.times[task])].mean()
        rank[task] = own + max(after, default=0.0)
    return rank


def lower_bound_us(graph: TaskGraph) -> float:
    """Return a lower bound on the makespan of any schedule, in µs.

    The larger of the critical path, where every task of it is on the device that suits the path
    best and nothing has to wait for a device, and the least work shared equally by all devices.
    """
    ends = np.zeros_like(graph.times)
    for task in graph.order:
        ready = np.zeros(len(graph.devices))
        for number in graph.into[task]:
            source = ends[graph.edges[number].source]
            ready = np.maximum(ready, (source[:, None] + graph.transfers[number]).min(axis=0))
        ends[task] = ready + graph.times[task]
    path = float(ends.min(axis=1).max())
    return max(path, float(graph.times.min(axis=1).sum()) / len(graph.devices))


def _by_end(graph: TaskGraph, ends: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in graph.tasks]
    for number, task in enumerate(ends):
        found[task].append(number)
    return tuple(map(tuple, found))


def _check(graph: TaskGraph) -> None:
    devices = graph.devices
    if not devices or len(set(devices)) != len(devices):
        raise PlanError(f"Scheduling needs devices, each once, not: {names_at_hand(devices)}.")
    if not graph.tasks:
        raise PlanError("There is no task to schedule. Give at least one Task.")
    for task in graph.tasks:
        where = f"The task {shorten(task.name)}"
        if len(task.time_us) != len(devices):
            raise PlanError(
                f"{where} has {len(task.time_us)} times; it needs one for each of "
                f"{', '.join(devices)}."
            )
        supported = [time for time in task.time_us if time is not None]
        if not supported:
            raise PlanError(
                f"None of {', '.join(devices)} supports {where[4:]}. Add a device that does."
            )
        for time in supported:
            _check_time(time, where)
    pairs = [(a, b) for a in devices for b in devices if a != b]
    for edge in graph.edges:
        for end in (edge.source, edge.target):
            if isinstance(end, bool) or not isinstance(end, int) or not 0 <= end < len(graph.tasks):
                raise PlanError(
                    f"An edge goes from task {edge.source!r} to {edge.target!r}; tasks are "
                    f"numbered 0 to {len(graph.tasks) - 1}."
                )
        names = [shorten(graph.tasks[end].name) for end in (edge.source, edge.target)]
        where = f"The edge from {names[0]} to {names[1]}"
        for pair, time in edge.transfer_us.items():
            unknown = [device for device in pair if device not in devices]
            if unknown:
                raise PlanError(
                    f"{where} has a transfer with {names_at_hand(unknown)}, which is not "
                    f"scheduled on. Devices: {', '.join(devices)}."
                )
            _check_time(time, where)
        missing = [f"{a} to {b}" for a, b in pairs if (a, b) not in edge.transfer_us]
        if missing:
            raise PlanError(f"{where} lacks the transfer from {'; '.join(missing)}.")


def _check_time(value: Any, where: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value >= 0):
        raise PlanError(f"{where}: {value!r} is no time. Times are finite and at least 0 µs.")
