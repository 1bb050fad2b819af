"""A sweep over a Dask cluster: divides its placements into groups, each of which is a task.

Every group has the reference in it, and Dask runs it on one of the hosts that have its devices, so
that ratios and ranks are those of one host. Dask also queues the groups, and runs a group again
whose worker was lost.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from distributed import CancelledError, Client, Event, Future, KilledWorker

from hetero_lab.clock import now
from hetero_lab.errors import ArgumentError, MeasurementError, StoreError, names_at_hand, warn
from hetero_lab.fleet.group_task import Description, GroupTask, Measured, describe, measure_group
from hetero_lab.measure.requests import SetUp
from hetero_lab.measure.rounds import BaseRun
from hetero_lab.results.environment import Environment
from hetero_lab.results.records import AnyRecord, Failed, Header, Host, Turn

_ATTEMPTS = 3  # at a group whose task raises an error
_PATIENCE_S = 10.0  # a nanny needs some seconds to start its worker again
_POLL_S, _LOOK_S = 0.1, 1.0
_VERSIONS = (("openvino_version", "OpenVINO"), ("hetero_lab_version", "hetero_lab"))


def cluster_of(client: Any, *, isolate: bool) -> Callable[..., FleetRun]:
    """Return what makes a run on a client's cluster; ArgumentError if a sweep cannot use it."""
    if not isinstance(client, Client):
        raise ArgumentError(
            "client= is a dask.distributed.Client, for instance "
            f"Client('tcp://scheduler:8786'), not {type(client).__name__}."
        )
    if client.asynchronous:
        raise ArgumentError("client= is a blocking Client; this one is asynchronous.")
    if client.status != "running":
        raise ArgumentError(f"The client is {client.status}; connect a new one to the scheduler.")
    if not isolate:
        raise ArgumentError(
            "On a fleet rows are always measured in processes of their own: leave isolate=False "
            "out."
        )
    return partial(FleetRun, client=client)


@dataclass(frozen=True, eq=False)
class FleetHost:
    """A machine that can measure, and its workers, as Dask calls them."""

    name: str
    environment: Environment
    missing: frozenset[str]
    workers: tuple[str, ...]
    resources: frozenset[str]  # that each of its workers declares

    def lacks(self, devices: Iterable[str]) -> list[str]:
        """Return the devices that are not here."""
        return [device for device in devices if device in self.missing]


def hosts_of(
    info: Mapping[str, Mapping[str, Any]], described: Mapping[str, Description]
) -> dict[str, FleetHost]:
    """Return the hosts of workers by machine, from what the scheduler and they say of each.

    Machines of one name get their address added. Of a machine's workers, those that differ from the
    first in versions are left out: a row tells the versions of its host, not of its worker.
    """
    at_ip: defaultdict[str, set[str]] = defaultdict(set)
    for address in info:
        at_ip[info[address]["host"]].add(address)
    first = {own.machine: address for address, own in reversed(described.items())}
    named = {a: (described[a].environment.host, info[a]["host"]) for a in first.values()}
    alike, at_one_ip = Counter(node for node, _ in named.values()), Counter(named.values())
    hosts: dict[str, FleetHost] = {}
    for machine, address in first.items():
        node, ip = named[address]
        where = ip if at_one_ip[node, ip] == 1 else address
        name = node if alike[node] == 1 else f"{node} ({where})"
        environment = replace(described[address].environment, host=name)
        workers: set[str] = set()
        for other in (a for a in described if described[a].machine == machine):
            if differing := _other_versions(described[other].environment, environment):
                names = " and ".join(differing)
                why = f"the other workers of {name} have another {names}"
                warn(f"The worker {other} is left out: {why}.")
            else:
                workers.add(other)
        hosts[machine] = FleetHost(
            name=name,
            environment=environment,
            missing=described[address].missing,
            # An address ends with its worker. That of the host also stands for a worker that is
            # started again, but for no other host's.
            workers=tuple(
                {a if at_ip[info[a]["host"]] - workers else info[a]["host"] for a in workers}
            ),
            resources=frozenset.intersection(
                *(frozenset(k for k, n in info[a]["resources"].items() if n >= 1) for a in workers)
            ),
        )
    return hosts


def _other_versions(one: Environment, other: Environment) -> dict[str, str]:
    """Return in which versions two environments differ: their fields, by what they are of."""
    return {name: what for what, name in _VERSIONS if getattr(one, what) != getattr(other, what)}


class Item(NamedTuple):
    """An entry to measure; on a particular host if it names one."""

    key: str
    host: str = ""


@dataclass(eq=False)
class Group:
    """What is measured together on one of some hosts, beside the first of ``keys``."""

    items: Sequence[Item]
    keys: Sequence[str]
    hosts: Sequence[FleetHost]
    seen: float = 0.0  # when a worker was last there that can measure it


def divide(
    items: Iterable[Item],
    hosts: Iterable[FleetHost],
    devices_of: Mapping[str, Sequence[str]],
    reference: str,
    size: int,
) -> list[Group]:
    """Divide items into groups by the hosts that can measure them; without hosts, nobody can.

    A group has at most ``size`` entries, and fewer if there would not be a group for each host. It
    has the reference wherever a host has the devices of both.
    """
    by_hosts: defaultdict[tuple[tuple[FleetHost, ...], bool], list[Item]] = defaultdict(list)
    for item in items:
        able = [h for h in hosts if item.host in ("", h.name) and not h.lacks(devices_of[item.key])]
        beside = [host for host in able if not host.lacks(devices_of[reference])]
        by_hosts[tuple(beside or able), bool(beside)].append(item)
    groups: list[Group] = []
    for (able, has_reference), several in by_hosts.items():
        most = max(1, min(size - 1, math.ceil(len(several) / max(1, len(able)))))
        for start in range(0, len(several), most):
            part = several[start : start + most]
            keys = dict.fromkeys([*[reference] * has_reference, *(item.key for item in part)])
            groups.append(Group(part, list(keys), able))
    return groups


@dataclass(kw_only=True, eq=False)
class FleetRun(BaseRun):
    """A run over a fleet, with a ``header`` of its store.

    Its records also have ``host`` and ``worker``, and a ``Host`` record holds each host's
    environment. ``set_up`` writes the set-up of the workers into files on this machine and returns
    it; ``check`` raises if the run is to stop.
    """

    client: Client
    header: Header
    set_up: Callable[[], SetUp]
    check: Callable[[], None]

    def __post_init__(self, records: Iterable[AnyRecord]) -> None:
        super().__post_init__(records)
        scheduler: Any = self.client.scheduler
        self._address = str(scheduler.address)
        self._name = f"hetero_lab-{uuid.uuid4().hex[:12]}"
        self._over = Event(self._name, client=self.client)  # no group is to begin any more
        self._base_of = {spec["name"]: spec["base"] for spec in self.header.emulated}
        self._devices_of = {entry.key: entry.devices for entry in self.header.entries}
        self._hosts: dict[str, FleetHost] = {}  # by machine
        self._running: dict[Future, Group] = {}
        self._n_items = self._n_settled = 0

    def pending(self) -> list[str]:
        """Return the keys still to measure; MeasurementError if ``every_host`` finds no worker."""
        return list(dict.fromkeys(item.key for item in self._pending()))

    def _pending(self) -> list[Item]:
        def is_done(key: str, host: str) -> bool:
            return self._ledger.is_done(key, host, self.reference, self.options.turns)

        if self.header.every_host:
            self._meet_hosts()
            names = [host.name for host in self._hosts.values()]
            items = [Item(k, host) for host in names for k in self._trials if not is_done(k, host)]
        else:
            hosts = list(self._ledger.hosts)
            items = [Item(k) for k in self._trials if not any(is_done(k, h) for h in hosts)]
        # The reference is in every group, so it is an item only if there are no others.
        return [item for item in items if item.key != self.reference] or items

    def measure(self) -> None:
        """Measure all pending items, as far as the budget allows.

        Raises MeasurementError if no worker can, StoreError if a host's OpenVINO has changed.
        """
        items = self._pending()
        self._n_items = len(items)
        self._meet_hosts()
        set_up = self.set_up()
        # The directory holds the models, their weights and the inputs, and nothing else.
        files = {path.name: path.read_bytes() for path in Path(set_up.directory).iterdir()}
        self._set_up = msgspec.structs.replace(
            set_up, emulated=list(self.header.emulated), directory=""
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            self._files = self.client.submit(dict, files, key=f"{self._name}-files", pure=False)
        self._submit(self._divide(items))
        looked = now()
        while self._running:
            time.sleep(_POLL_S)
            self.check()
            if any(future.cancelled() for future in self._running):
                return self._without_scheduler()
            for future in [future for future in self._running if future.done()]:
                self._take(future)
            if now() - looked > _LOOK_S:
                looked = now()
                self._look()
        return None

    def close(self) -> None:
        """Cancel what still runs."""
        self._bar.close()
        with contextlib.suppress(Exception):  # the scheduler may be gone
            if self.client.status == "running":
                self.client.cancel(list(self._running))
                self._over.clear()

    # -- hosts --------------------------------------------------------------------------------

    def _workers(self) -> dict[str, dict[str, Any]] | None:
        """Return the scheduler's description of its workers; ``None`` if it does not answer."""
        with contextlib.suppress(OSError, TimeoutError):
            if self.client.status == "running" and self.client.scheduler is not None:
                info: Any = self.client.sync(self.client.scheduler.identity, n_workers=-1)
                return info["workers"]
        return None

    def _meet_hosts(self) -> None:
        """Find out which hosts there are, once; raise MeasurementError if none can measure."""
        if self._hosts:
            return
        until = now() + _PATIENCE_S
        while not (info := self._workers()) and now() < until:
            time.sleep(_POLL_S)
        where = f"The scheduler at {self._address}"
        if info is None:
            raise MeasurementError(f"{where} does not answer. Is it still running?")
        if not info:
            raise MeasurementError(
                f"{where} has no workers. Start one on each machine: dask worker {self._address}"
            )
        devices = sorted({device for key in self._trials for device in self._devices_of[key]})
        answers: dict[str, Any] = self.client.run(
            describe, devices, self.header.emulated, workers=list(info), on_error="return"
        )
        useless = {a: why_useless(own) for a, own in answers.items() if isinstance(own, Exception)}
        for address, why in useless.items():
            warn(f"The worker {address} is left out: {why}.")
        self._hosts = hosts_of(info, {a: own for a, own in answers.items() if a not in useless})
        if not self._hosts:
            raise MeasurementError(
                f"No worker of the scheduler at {self._address} can measure. "
                + "; ".join(f"{address}: {why}" for address, why in useless.items())
                + ". Install the same versions there: pip install 'hetero-lab[fleet]'."
            )
        for host in self._hosts.values():
            self._welcome(host)

    def _welcome(self, host: FleetHost) -> None:
        """Record a host; StoreError if it is not the one that the store has under this name."""
        before, own = self._ledger.hosts.get(host.name), host.environment
        if before is not None and before.openvino_version != own.openvino_version:
            raise StoreError(
                f"{host.name} was measured with OpenVINO {before.openvino_version}, now it has "
                f"{own.openvino_version}. Numbers of the two are not mixed. Take another store= "
                "directory."
            )
        now_called = dict(own.devices)
        for device, name in before.devices if before is not None else ():
            if now_called.get(device, name) != name:
                raise StoreError(
                    f"{host.name} was measured with the {device} {name!r}, now it has "
                    f"{now_called[device]!r}. If these are two machines, give one another name; "
                    "or take another store= directory."
                )
        here = self.header.environments[-1]
        for name, what in _other_versions(own, here).items():
            warn(
                f"{host.name} has {name} {getattr(own, what)}, here it is {getattr(here, what)}: "
                f"compare hosts with care; the column {what} has the version of each row."
            )
        self._record(Host(host=host.name, environment=own))

    # -- groups -------------------------------------------------------------------------------

    def _divide(self, items: Iterable[Item]) -> list[Group]:
        size = self.workers.group
        return divide(items, self._hosts.values(), self._devices_of, self.reference, size)

    def _submit(self, groups: Sequence[Group]) -> None:
        """Give groups to Dask, each with its part of the time; fail what no host can measure."""
        load: Counter[FleetHost] = Counter()  # how many groups a host will probably measure
        for group in groups:
            load.update(dict.fromkeys(group.hosts, 1 / len(group.hosts)))
        for group in groups:
            devices = dict.fromkeys(d for key in group.keys for d in self._devices_of[key])
            if not group.hosts:
                self._fail(group, "no worker for it", self._why_not(group, devices))
                continue
            n_in_turn = math.ceil(max(load[host] for host in group.hosts) - 1e-9)
            budget_s = None if self.watch.budget_s is None else self.watch.left_s / n_in_turn
            bases = {self._base_of.get(device, device) for device in devices}
            names = {*devices, *bases, *(base.partition(".")[0] for base in bases)}
            future = self.client.submit(
                measure_group,
                GroupTask(
                    trials=tuple(self._trials[key] for key in group.keys),
                    options=self.options,
                    budget_s=budget_s and max(0.1, budget_s),
                    set_up=self._set_up,
                    workers=self.workers,
                    over=self._name,
                ),
                self._files,
                key=f"{self._name}-{uuid.uuid4().hex[:8]}",
                workers=[worker for host in group.hosts for worker in host.workers],
                resources=dict.fromkeys(names.intersection(*(h.resources for h in group.hosts)), 1),
                retries=_ATTEMPTS - 1,
                pure=False,
            )
            group.seen = now()
            self._running[future] = group

    def _why_not(self, group: Group, devices: Iterable[str]) -> str:
        return "; ".join(
            f"{host.name} ({', '.join(host.workers)}) has no {', '.join(host.lacks(devices))}"
            for host in self._hosts.values()
            if group.items[0].host in ("", host.name)
        )

    def _look(self) -> None:
        """Give up groups whose workers do not come back, and all when the time is long over."""
        info = self._workers() or {}
        here = {*info, *(own["host"] for own in info.values())}
        for future, group in list(self._running.items()):
            if any(here.intersection(host.workers) for host in group.hosts):
                group.seen = now()
            elif now() - group.seen > _PATIENCE_S:
                future.cancel()
                del self._running[future]
                self._fail(group, "no worker for it", "no worker is left")
        if self.watch.is_over:
            self._over.set()
            if self.watch.elapsed_s > (self.watch.budget_s or 0.0) + self.workers.compile_timeout_s:
                self.client.cancel(list(self._running))
                self._running.clear()

    def _take(self, future: Future) -> None:
        """Take the records of a group; one that failed as a whole is measured one by one."""
        group = self._running.pop(future)
        try:
            measured: Measured = future.result(timeout=_PATIENCE_S)
        except (TimeoutError, CancelledError):  # lost just now: Dask measures it again
            self._running[future] = group
        except Exception as error:
            if len(group.items) > 1:
                self._submit([one for item in group.items for one in self._divide([item])])
                return
            killed = isinstance(error, KilledWorker)
            times = error.allowed_failures + 1 if killed else _ATTEMPTS
            self._fail(group, f"lost {times} times", f"{type(error).__name__}: {error}")
        else:
            self._keep(group, measured)

    def _keep(self, group: Group, measured: Measured) -> None:
        host, first = self._hosts[measured.machine].name, self._ledger.next_group
        for record in measured.records:
            kept = msgspec.structs.replace(record, host=host, worker=measured.worker)
            if isinstance(kept, Turn):
                kept = msgspec.structs.replace(kept, group=first + kept.group)
            self._record(kept)
        failures = {r.entry: r for r in measured.records if isinstance(r, Failed)}
        failed = [item.key for item in group.items if item.key in failures]
        if len(failed) == len(group.items):
            labels = names_at_hand([self._trials[key].label for key in failed], 4)
            why = f"{failures[failed[0]].status}: {failures[failed[0]].detail}"
            warn(f"Every placement of a group failed on {host}: {labels}. The first: {why}")
        self._count(group, host)

    def _fail(self, group: Group, status: str, detail: str) -> None:
        for key, host in group.items:
            self._record(Failed(entry=key, status=status, detail=detail[:2000], host=host))
        self._count(group, group.items[0].host)

    def _count(self, group: Group, host: str) -> None:
        self._n_settled += len(group.items)
        self._bar.note(f"{self._n_settled} of {self._n_items} rows")
        self._bar.step(f"measured on {host}" if host else "measure")

    def _without_scheduler(self) -> None:
        why = f"The scheduler at {self._address} is gone."
        for group in self._running.values():
            self._fail(group, "the scheduler is gone", why)
        self._running.clear()
        warn(
            f"{why} The turns that were measured are kept; with a store= the same call goes on "
            "from there when it is back."
        )


def why_useless(error: Exception) -> str:
    """Say why a worker could not describe itself."""
    why = f"{type(error).__name__}: {error}"
    if "ModuleNotFoundError" in why and "hetero_lab" in why:
        return f"hetero_lab is not installed there, or another release of it ({why})"
    return why.rstrip(".")
