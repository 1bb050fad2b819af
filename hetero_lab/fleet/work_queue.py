"""The workers of a fleet and the work queue: which devices a worker has, and who measures what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_lab.clock import now
from hetero_lab.errors import HeteroLabError, names_at_hand

MOST_LOSSES = 3
PATIENCE_S = 10.0  # a nanny needs some seconds to start its worker again
_CPU = "CPU"


class SchedulerGoneError(HeteroLabError):
    """The scheduler no longer answers."""


class TaskLostError(HeteroLabError):
    """A task ended without a result; the message says how."""


@dataclass(frozen=True)
class FleetWorker:
    """A worker that can measure; several may share its ``machine``, whose name is ``host``."""

    address: str
    directory: str
    host: str
    machine: str
    environment: Mapping[str, Any]
    missing: frozenset[str]
    resources: Mapping[str, float]

    @property
    def identity(self) -> tuple[str, str]:
        """A unique id: a restarted worker may have its old address, but has a new directory."""
        return self.address, self.directory

    def asked_for(self, devices: Iterable[str], base_of: Mapping[str, str]) -> dict[str, float]:
        """Return the Dask resources that a task on these devices asks this worker for.

        The resource of a device has its name, else the name of its base if it is emulated, else
        that of its kind (``GPU`` for ``GPU.1``). A worker need not declare ``CPU``; if it does,
        tasks ask for it.
        """
        names = (self._resource(device, base_of) for device in devices)
        return dict.fromkeys((name for name in names if name), 1)

    def lacks(self, devices: Iterable[str], base_of: Mapping[str, str]) -> list[str]:
        """Return the devices that this worker does not have or does not declare."""
        return [
            device
            for device in devices
            if base_of.get(device, device) in self.missing
            or (base_of.get(device, device) != _CPU and not self._resource(device, base_of))
        ]

    def _resource(self, device: str, base_of: Mapping[str, str]) -> str:
        base = base_of.get(device, device)
        names = [device, base, base.partition(".")[0]]
        return next((name for name in names if self.resources.get(name, 0) >= 1), "")

    def environment_of(self, devices: Iterable[str], base_of: Mapping[str, str]) -> dict[str, Any]:
        """Return the host's environment as stored data, emulated devices included."""
        full_names = dict(self.environment["devices"])
        here = [d for d in devices if base_of.get(d, d) in full_names]
        return {
            **self.environment,
            "devices": [[d, full_names[base_of.get(d, d)]] for d in here],
            "emulated": [[d, base_of[d]] for d in here if d in base_of],
        }


def read_workers(
    info: Mapping[str, Mapping[str, Any]],
    told: Mapping[str, Any],
    known: Iterable[FleetWorker] = (),
) -> list[FleetWorker]:
    """Return the workers that described themselves.

    ``info`` is the scheduler's description of each worker, by address, ``told`` the worker's own,
    or an exception. ``known`` holds a worker of each host seen so far, also those that are gone,
    since a machine keeps its name. Machines with the same host name get their address added.
    """
    machine_of = {worker.host: worker.machine for worker in known}
    described = {a: d for a, d in told.items() if isinstance(d, Mapping) and a in info}
    pairs = {(d["environment"]["host"], d["machine"]) for d in described.values()}
    machines = Counter(node for node, _ in pairs)
    workers = []
    for address, own in described.items():
        node, machine = own["environment"]["host"], own["machine"]
        names = [node, f"{node} ({info[address]['host']})", f"{node} ({address})"]
        before = [name for name in names if machine_of.get(name) == machine]
        free = [name for name in names[machines[node] > 1 :] if name not in machine_of]
        host = [*before, *free, names[-1]][0]
        machine_of[host] = machine
        workers.append(
            FleetWorker(
                address=address,
                directory=info[address]["local_directory"],
                host=host,
                machine=machine,
                environment={**own["environment"], "host": host},
                missing=frozenset(own["missing"]),
                resources=info[address]["resources"],
            )
        )
    return workers


def why_not(
    workers: Iterable[FleetWorker], devices: Iterable[str], base_of: Mapping[str, str]
) -> str:
    """Say why no worker can measure a row on these devices."""
    wanted = list(devices)
    every = list(workers)
    if not every:
        return "no worker is left"
    reasons = []
    for worker in every:
        absent = [d for d in wanted if base_of.get(d, d) in worker.missing]
        unsaid = [d for d in worker.lacks(wanted, base_of) if d not in absent]
        if absent:
            reasons.append(f"{worker.host} ({worker.address}) has no {', '.join(absent)}")
        elif unsaid:
            kind = base_of.get(unsaid[0], unsaid[0]).partition(".")[0]
            reasons.append(
                f"{worker.host} ({worker.address}) has {', '.join(unsaid)} but does not declare "
                f'it: start it with --resources "{kind}=1"'
            )
    return "; ".join(reasons) or f"workers: {names_at_hand(w.address for w in every)}"


@dataclass(frozen=True)
class Item:
    """An entry to measure; on a particular host if it names one."""

    key: str
    host: str = ""


@dataclass
class WorkQueue:
    """The waiting items, and the workers that may measure them.

    ``devices_of`` maps the key of an entry to its devices, ``base_of`` an emulated device to its
    base. A host measures ``group_size`` placements together, the reference included.
    """

    devices_of: Mapping[str, Sequence[str]]
    base_of: Mapping[str, str]
    group_size: int
    losses: Counter[Item] = field(default_factory=Counter)
    waiting: list[Item] = field(default_factory=list)
    _since: dict[Item, float] = field(default_factory=dict)  # since when no worker can measure it
    _most: int = 0  # the most items that ever waited

    def can(self, worker: FleetWorker, key: str) -> bool:
        """Tell whether a worker has the devices of an entry."""
        return not worker.lacks(self.devices_of[key], self.base_of)

    def items_for(self, worker: FleetWorker) -> list[Item]:
        """Return the waiting items that a worker may measure."""
        return [
            item
            for item in self.waiting
            if item.host in ("", worker.host) and self.can(worker, item.key)
        ]

    def choose(
        self, workers: Iterable[FleetWorker], busy: Collection[str]
    ) -> tuple[FleetWorker, list[Item], float] | None:
        """Choose an idle worker, its items and their share of the time; ``None`` without work."""
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
        """Return one machine's share; shares shrink towards the end so that all end together.

        Guided self-scheduling (Polychronopoulos and Kuck 1987), with whole groups as long as
        there are enough. An item that was lost repeatedly goes alone, so that it takes no others
        with it. Items that only this host may measure all go in one share.
        """
        lost = [item for item in items if self.losses[item] > 1]
        if lost:
            return lost[:1]
        if items[0].host:
            return list(items)
        self._most = max(self._most, len(self.waiting))
        least = min(self.group_size - 1, math.ceil(self._most / n_machines))
        return list(items[: max(least, math.ceil(len(items) / n_machines))])

    def take(self, items: Collection[Item]) -> None:
        """Remove items from the queue."""
        self.waiting = [item for item in self.waiting if item not in items]

    def put_back(self, item: Item) -> bool:
        """Return a lost item to the queue; ``False`` if it was lost too often."""
        self.losses[item] += 1
        if self.losses[item] < MOST_LOSSES:
            self.waiting.append(item)
            return True
        return False

    def hopeless(self, workers: Sequence[FleetWorker], *, at_once: bool) -> list[Item]:
        """Remove and return the items that no worker has been able to measure for a while."""
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
