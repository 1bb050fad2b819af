"""The workers of a fleet: what each is, which devices it offers and what they are asked for as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_lab.errors import HeteroLabError, names_at_hand

_CPU = "CPU"


class SchedulerGoneError(HeteroLabError):
    """The scheduler does not answer any more."""


class TaskLostError(HeteroLabError):
    """A task ended without a result; the message says how."""


@dataclass(frozen=True)
class FleetWorker:
    """A worker that can measure.

    ``machine`` is what the workers of one machine share, ``host`` what it is called in tables.
    """

    address: str
    directory: str
    host: str
    machine: str
    environment: Mapping[str, Any]
    missing: frozenset[str]
    resources: Mapping[str, float]

    @property
    def identity(self) -> tuple[str, str]:
        """What no other worker has: one that was started again may have its old address."""
        return self.address, self.directory

    def asked_for(self, devices: Iterable[str], base_of: Mapping[str, str]) -> dict[str, float]:
        """Return the resources that a task on these devices asks for here.

        A device is the resource of its own name, else of its base's if it is emulated, else of
        its kind (``GPU`` for ``GPU.1``). A worker need not declare ``CPU``; if it does, tasks
        ask for it.
        """
        names = (self._resource(device, base_of) for device in devices)
        return dict.fromkeys((name for name in names if name), 1)

    def lacks(self, devices: Iterable[str], base_of: Mapping[str, str]) -> list[str]:
        """Return those of the devices that this worker has not, or does not declare."""
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
        """Return the host's environment as stored data, with emulated devices as they will be."""
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

    Parameters
    ----------
    info
        What the scheduler says of each worker, by address.
    told
        What each said of itself, by address; an exception if it could not.
    known
        All workers of before, also those that are gone: a machine keeps its name. Machines that
        call themselves alike get their address added.
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
    """Say what a row lacks that no worker can measure."""
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
