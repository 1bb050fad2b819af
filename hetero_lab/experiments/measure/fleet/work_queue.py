"""The work queue of a fleet: items that wait, shares of them, and what was lost too often."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetero_lab.clock import now
from hetero_lab.experiments.measure.fleet.workers import FleetWorker

MOST_LOSSES = 3
PATIENCE_S = 10.0  # a nanny needs some seconds to start its worker again


@dataclass(frozen=True)
class Item:
    """An entry that is to be measured, on one host if it names one."""

    key: str
    host: str = ""


class WorkQueue:
    """The items that wait, and to whom they may go.

    Parameters
    ----------
    devices_of
        Key of an entry → its devices.
    base_of
        Emulated device → the device that runs it.
    group_size
        How many placements a host measures at once, the reference included.
    """

    def __init__(
        self,
        devices_of: Mapping[str, Sequence[str]],
        base_of: Mapping[str, str],
        group_size: int,
    ):
        self._devices_of = devices_of
        self._base_of = base_of
        self._group = max(1, group_size - 1)
        self.losses: Counter[Item] = Counter()
        self._since: dict[Item, float] = {}  # when it was seen first that nobody can measure it
        self._most = 0  # that ever waited
        self.waiting: list[Item] = []

    def can(self, worker: FleetWorker, key: str) -> bool:
        """Tell whether a worker has the devices of an entry."""
        return not worker.lacks(self._devices_of[key], self._base_of)

    def items_for(self, worker: FleetWorker) -> list[Item]:
        """Return what waits and a worker may measure."""
        return [
            item
            for item in self.waiting
            if item.host in ("", worker.host) and self.can(worker, item.key)
        ]

    def choose(
        self, workers: Iterable[FleetWorker], busy: Collection[str]
    ) -> tuple[FleetWorker, list[Item], float] | None:
        """Choose a worker of a machine that is not busy, and its share.

        Returns
        -------
        tuple
            The worker, its items, and which part of the time that is left is theirs. ``None`` if
            there is nothing to do for anybody who is free.
        """
        machines: dict[str, list[FleetWorker]] = {}
        for worker in workers:
            machines.setdefault(worker.machine, []).append(worker)
        useful = [m for m in machines if m in busy or any(map(self.items_for, machines[m]))]
        for machine in useful:
            if machine in busy:
                continue
            worker = max(machines[machine], key=lambda worker: len(self.items_for(worker)))
            items = self._some_of(self.items_for(worker), len(useful))
            bound = bool(items[0].host)
            of_time = 1.0 if bound else min(1.0, len(items) * len(useful) / len(self.waiting))
            return worker, items, of_time
        return None

    def _some_of(self, items: Sequence[Item], n_machines: int) -> list[Item]:
        """Take one machine's share, smaller towards the end so that all end together.

        Guided self-scheduling (Polychronopoulos and Kuck 1987), with whole groups as long as
        there are enough. What was lost again and again goes alone, so that it takes nothing with
        it; what has to be measured on this very host goes at once.
        """
        lost = [item for item in items if self.losses[item] > 1]
        if lost:
            return lost[:1]
        if items[0].host:
            return list(items)
        self._most = max(self._most, len(self.waiting))
        least = min(self._group, math.ceil(self._most / n_machines))
        return list(items[: max(least, math.ceil(len(items) / n_machines))])

    def take(self, items: Collection[Item]) -> None:
        """Take items off the list."""
        self.waiting = [item for item in self.waiting if item not in items]

    def put_back(self, item: Item) -> bool:
        """Let an item wait again that was lost; ``False`` if that was once too often."""
        self.losses[item] += 1
        if self.losses[item] < MOST_LOSSES:
            self.waiting.append(item)
            return True
        return False

    def hopeless(self, workers: Sequence[FleetWorker], *, at_once: bool) -> list[Item]:
        """Take off the list what no worker has been able to measure for a while."""
        unsupported = [
            item
            for item in self.waiting
            if not any(item.host in ("", w.host) and self.can(w, item.key) for w in workers)
        ]
        self._since = {item: self._since.get(item, now()) for item in unsupported}
        given_up = [
            item for item, since in self._since.items() if at_once or now() - since > PATIENCE_S
        ]
        self.take(given_up)
        return given_up
