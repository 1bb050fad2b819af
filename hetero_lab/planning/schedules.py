"""Schedule: when each task runs on which device; simulated for a placement, devices side by side.

The simulation is the parallel executor on paper. A subgraph begins when its inputs are there and
its device is free; of several that could start, a device takes the one with the longest path to
the end, as the executor does once it knows how long they take, and of equals the one that was
ready first.

A hand-over is work, as everywhere in the cost model: the receiving device's, but for the reorder
on the device that the tensor leaves. So a subgraph's time is its own cost, its ops, the
boundaries that enter it, reorders of those that leave it, and the fusion that it lost; the
executor's measured spans hold the same. All of them and the constant together are the latency
of one subgraph after another.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.model.opgraph import PARAMETER
from hetero_lab.placement.overlap import predict_overlapping
from hetero_lab.placement.partition import Partition
from hetero_lab.result import Framed

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.placement.affinity import Affinity
    from hetero_lab.planning.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """One run of one task.

    ``index`` is its number in what was scheduled: of the task, or of the subgraph in its
    partition.
    """

    index: int
    task: str
    device: str
    start_us: float
    end_us: float
    n_ops: int = 0

    @property
    def us(self) -> float:
        """How long it runs."""
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Schedule(Framed):
    """Tasks in the order of their starts, at most one at a time on a device.

    Parameters
    ----------
    devices
        Also those on which nothing runs.
    entries
        When and where each task runs.
    critical_path
        The chain of tasks that determines the end, first to last: before each one comes what it
        waited for longest, a task whose output it reads or the one before it on its device.
    """

    devices: tuple[str, ...]
    entries: tuple[ScheduledTask, ...]
    critical_path: tuple[ScheduledTask, ...]

    @property
    def makespan_us(self) -> float:
        """When the last task ends, in µs."""
        return max((entry.end_us for entry in self.entries), default=0.0)

    @property
    def idle_us(self) -> dict[str, float]:
        """How long each device does nothing before the last task ends."""
        idle = dict.fromkeys(self.devices, self.makespan_us)
        for entry in self.entries:
            idle[entry.device] -= entry.us
        return {device: max(0.0, us) for device, us in idle.items()}

    def __repr__(self) -> str:
        idle = ", ".join(f"{device} {us:.1f}" for device, us in self.idle_us.items())
        return (
            f"Schedule({self.makespan_us:.1f} µs, {len(self.entries)} tasks, "
            f"{len(self.critical_path)} on the critical path, idle µs: {idle})"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per task: ``task, device, start_us, end_us, n_ops, critical``."""
        import pandas as pd

        path = {entry.index for entry in self.critical_path}
        rows = [
            (e.task, e.device, e.start_us, e.end_us, e.n_ops, e.index in path) for e in self.entries
        ]
        columns = ["task", "device", "start_us", "end_us", "n_ops", "critical"]
        return pd.DataFrame(rows, columns=columns)


def arranged(
    devices: tuple[str, ...],
    entries: Iterable[ScheduledTask],
    sources: Sequence[Iterable[int]],
    transfer_us: Callable[[int, int], float] | None = None,
) -> Schedule:
    """Order the runs of tasks and find the critical path.

    Parameters
    ----------
    devices
        Of the schedule.
    entries
        One for each task, none before those whose output it reads.
    sources
        For each task, those whose output it reads.
    transfer_us
        Time between the end of a source and the moment a task can read its output, for
        (source, task); by default 0.
    """
    # The sort is stable: tasks that take no time stay behind what they wait for.
    ordered = sorted(entries, key=lambda e: (e.start_us, e.end_us))
    run_of = {entry.index: entry for entry in ordered}
    before: dict[int, ScheduledTask] = {}
    last_on: dict[str, ScheduledTask] = {}
    for entry in ordered:
        if entry.device in last_on:
            before[entry.index] = last_on[entry.device]
        last_on[entry.device] = entry
    chain: list[ScheduledTask] = []
    at = max(ordered, key=lambda e: (e.end_us, e.start_us), default=None)
    while at is not None:
        chain.append(at)
        waits: list[tuple[float, ScheduledTask]] = []
        for source in sources[at.index]:
            delay = transfer_us(source, at.index) if transfer_us else 0.0
            waits.append((run_of[source].end_us + delay, run_of[source]))
        if at.index in before:
            waits.append((before[at.index].end_us, before[at.index]))
        at = max(waits, key=lambda wait: wait[0])[1] if waits else None
    return Schedule(tuple(devices), tuple(ordered), tuple(reversed(chain)))


def simulate(costs: CostModel, affinity: Affinity) -> Schedule:
    """Predict when the parallel executor runs each subgraph of one request.

    Parameters
    ----------
    costs
        The cost model.
    affinity
        The placement.

    Returns
    -------
    Schedule
        One entry per subgraph, ``subgraph0`` and so on. The constant passes before the first one
        begins.

    Raises
    ------
    AffinityError
        The affinity is of another model.
    PlanError
        It uses a device that the cost model does not know, or that does not support an op.

    Notes
    -----
    Devices are taken to work independently. Those that share cores or memory bandwidth, such as
    an emulated device and the CPU beneath it, slow each other down by more than this says.
    """
    numbers = costs.objective.device_numbers(affinity)
    return run_partition(costs, numbers, predict_overlapping(costs.graph, affinity))


def run_partition(costs: CostModel, devices: np.ndarray, partition: Partition) -> Schedule:
    """Simulate a predicted partition.

    Parameters
    ----------
    costs
        The cost model.
    devices
        Number of the device of every node.
    partition
        The partition that the executor compiles; it says where every node is.
    """
    work = work_ns(costs, devices, partition).tolist()
    sources = _sources(costs, partition)
    where = [subgraph.device for subgraph in partition.subgraphs]
    begin = costs.objective.constant_ns + int(costs.objective.spread_ns(len(work)))
    starts = _starts_ns(work, where, sources, begin)
    entries = [
        ScheduledTask(
            index=subgraph.index,
            task=f"subgraph{subgraph.index}",
            device=subgraph.device,
            start_us=start / 1000.0,
            end_us=(start + ns) / 1000.0,
            n_ops=len(subgraph.ops),
        )
        for subgraph, start, ns in zip(partition.subgraphs, starts, work, strict=True)
    ]
    return arranged(costs.devices, entries, sources)


def work_ns(costs: CostModel, devices: np.ndarray, partition: Partition) -> np.ndarray:
    """Return how long each subgraph keeps its device busy, in nanoseconds."""
    objective, index_of = costs.objective, costs.graph.index_of
    column = [costs.devices.index(subgraph.device) for subgraph in partition.subgraphs]
    work = objective.subgraph_ns[column].astype(np.int64)
    home = np.array(partition.home)
    nodes = np.flatnonzero(home >= 0)
    np.add.at(work, home[nodes], objective.op_ns[nodes, devices[nodes]])
    crossings = np.array(
        [
            (objective.first_tensor[index_of[b.op]] + b.port, b.source, target)
            for b in partition.boundaries
            for target in b.targets
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    tensor, source, target = crossings.T
    ns, leave = objective.all_hand_overs_ns(devices, home, tensor, np.array(column)[target])
    np.add.at(work, target, ns - leave)
    np.add.at(work, source, leave)
    lost = home[objective.fused[:, 0]] != home[objective.fused[:, 1]]
    for end, prices in enumerate((objective.first_ns, objective.second_ns)):
        ops = objective.fused[lost, end]
        np.add.at(work, home[ops], prices[lost, devices[ops]])
    return work


def _sources(costs: CostModel, partition: Partition) -> list[list[int]]:
    """Return the subgraphs that each subgraph waits for; model inputs are there at once."""
    graph = costs.graph
    found: list[set[int]] = [set() for _ in partition.subgraphs]
    for boundary in partition.boundaries:
        if graph.ops[graph.index_of[boundary.op]].type != PARAMETER:
            for target in boundary.targets:
                found[target].add(boundary.source)
    return [sorted(every) for every in found]


def _starts_ns(
    work: Sequence[int], where: Sequence[str], sources: Sequence[Sequence[int]], begin: int
) -> list[int]:
    """Return when each subgraph starts, as the parallel executor chooses."""
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
    starts = [begin] * len(work)
    running: list[tuple[int, int]] = []  # end, subgraph
    now = begin
    while True:
        for device in ready:
            if device in free and ready[device]:
                index = heapq.heappop(ready[device])[2]
                starts[index] = now
                free.remove(device)
                heapq.heappush(running, (now + work[index], index))
        if not running:
            return starts
        now = running[0][0]
        while running and running[0][0] == now:
            _, index = heapq.heappop(running)
            free.add(where[index])
            for user in users[index]:
                missing[user] -= 1
                if not missing[user]:
                    make_ready(user)
