"""Schedule: what runs when on which device, what the end hangs on, and how long devices idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


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
class Schedule:
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
        """Return one row a task: ``task, device, start_us, end_us, n_ops, critical``."""
        import pandas as pd

        path = {entry.index for entry in self.critical_path}
        rows = [
            (e.task, e.device, e.start_us, e.end_us, e.n_ops, e.index in path) for e in self.entries
        ]
        columns = ["task", "device", "start_us", "end_us", "n_ops", "critical"]
        return pd.DataFrame(rows, columns=columns)

    def _repr_html_(self) -> str:
        from hetero_lab.tables import html_table

        return html_table(self.to_frame(), caption=repr(self))


def arranged(
    devices: tuple[str, ...],
    entries: Iterable[ScheduledTask],
    sources: Sequence[Iterable[int]],
    transfer_us: Callable[[int, int], float] | None = None,
) -> Schedule:
    """Order the runs of tasks and find the chain that the end hangs on.

    Parameters
    ----------
    devices
        Of the schedule.
    entries
        One for each task, none before those whose output it reads.
    sources
        For each task, those whose output it reads.
    transfer_us
        What lies between the end of a source and the moment a task can read its output, for
        (source, task). Nothing, if it is left out.
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
