"""A sweep over many machines: hands shares of its rows to hosts and collects their records.

Each machine measures one share at a time, since two would disturb each other. Every share
contains the reference, so that ratios and ranks are those of one host. The unfinished items of a
dead worker are handed out again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hetero_lab.clock import now
from hetero_lab.errors import MeasurementError, OutputPathError, StoreError, warn
from hetero_lab.fleet.cluster import Assignment, Cluster
from hetero_lab.fleet.work_queue import (
    MOST_LOSSES,
    PATIENCE_S,
    FleetWorker,
    Item,
    SchedulerGoneError,
    TaskLostError,
    WorkQueue,
    read_workers,
    why_not,
)
from hetero_lab.measure.requests import SetUp
from hetero_lab.measure.rounds import BaseRun
from hetero_lab.results.environment import Environment
from hetero_lab.results.records import AnyRecord, Failed, Finished, Header, Host, OfEntry, Turn

_LOOK_S = 1.0
_VERSIONS = (("openvino_version", "OpenVINO"), ("hetero_lab_version", "hetero_lab"))


@dataclass
class Share:
    """The items that a worker measures now."""

    worker: FleetWorker
    items: Sequence[Item]
    groups: dict[int, int] = field(default_factory=dict)  # the worker's numbers to the store's
    n_received: int = 0
    settled: set[str] = field(default_factory=set)  # finished or failed

    @property
    def left(self) -> list[Item]:
        """The items that are neither finished nor failed."""
        return [item for item in self.items if item.key not in self.settled]


@dataclass(kw_only=True, eq=False)
class FleetRun(BaseRun):
    """A run over a fleet, with a ``header`` of its store.

    Its records also have ``host`` and ``worker``, and a ``Host`` record holds each host's
    environment. ``set_up`` writes the set-up of the workers into files on this machine and returns
    it.
    """

    cluster: Cluster
    header: Header
    set_up: Callable[[], SetUp]

    def __post_init__(self, records: Iterable[AnyRecord]) -> None:
        super().__post_init__(records)
        header = self.header
        self._here = header.environments[-1]
        self._base_of = {spec["name"]: spec["base"] for spec in header.emulated}
        self._devices_of = {entry.key: entry.devices for entry in header.entries}
        self._devices = list(dict.fromkeys(d for k in self._trials for d in self._devices_of[k]))
        self._next_group = self._ledger.next_group
        self._set_up = SetUp(models={})
        self._files: dict[str, bytes] = {}
        self._useful: dict[tuple[str, str], FleetWorker] = {}
        self._useless: dict[tuple[str, str], str] = {}  # with the reason
        self._hosts: dict[str, FleetWorker] = {}  # the first worker of each
        self._queue = WorkQueue(self._devices_of, self._base_of, self.workers.group)
        self._running: dict[int, Share] = {}
        self._n_shares = 0
        self._looked = now()
        self._n_items = self._n_settled = 0

    def pending(self) -> list[str]:
        """Return the keys still to measure; MeasurementError if ``every_host`` finds no worker."""
        if self.header.every_host:
            self._look_for_workers()
        else:
            hosts = self._ledger.hosts
            undone = [k for k in self._trials if not any(self._is_done(k, h) for h in hosts)]
            self._add([Item(key) for key in undone])
        return list(dict.fromkeys(item.key for item in self._queue.waiting))

    def measure(self) -> None:
        """Measure all pending items.

        Raises MeasurementError if no worker can, StoreError if a host's OpenVINO has changed.
        """
        self._set_up = self.set_up()
        # The directory holds the models, their weights and the inputs, and nothing else.
        there = Path(self._set_up.directory).iterdir()
        self._files = {path.name: path.read_bytes() for path in there}
        self._look_for_workers()
        try:
            while self._running or self._queue.waiting:
                self._hand_out()
                self._give_up()
                if self.watch.is_over and not self._end():
                    return
                self._take_news()
                if now() - self._looked > _LOOK_S:
                    self._look()
        except SchedulerGoneError:
            self._without_scheduler()

    def close(self) -> None:
        """Cancel running tasks and remove the model from the workers."""
        self._bar.close()
        self.cluster.close()

    def _is_done(self, key: str, host: str) -> bool:
        return self._ledger.is_done(key, host, self.reference, self.options.turns)

    def _add(self, items: Sequence[Item]) -> None:
        # The reference is part of every share, so it is an item only if there are no others.
        added = [item for item in items if item.key != self.reference] or list(items)
        self._queue.waiting += added
        self._n_items += len(added)

    def _look_for_workers(self) -> None:
        until = now() + PATIENCE_S
        where = self.cluster.address
        while not self._useful:
            try:
                self._look()
            except SchedulerGoneError:
                raise MeasurementError(
                    f"The scheduler at {where} does not answer. Is it still running?"
                ) from None
            if self._useless and not self._useful:
                raise MeasurementError(
                    f"No worker of the scheduler at {where} can measure. "
                    + "; ".join(f"{at}: {why}" for (at, _), why in self._useless.items())
                    + ". Install the same versions there: pip install 'hetero-lab[fleet]'."
                )
            if now() > until:
                raise MeasurementError(
                    f"The scheduler at {where} has no workers. Start one on each machine: "
                    f"dask worker {where}"
                )
            if not self._useful:
                time.sleep(_LOOK_S / 4)

    def _look(self) -> None:
        """Look up the workers: add new ones, put back the shares of those that are gone."""
        self._looked = now()
        info = self.cluster.identity()
        if info is None:
            return
        here = {(address, own["local_directory"]): address for address, own in info.items()}
        for identity in [identity for identity in self._useful if identity not in here]:
            del self._useful[identity]
            for number, share in list(self._running.items()):
                if share.worker.identity == identity:
                    self._lost(number, f"the worker {identity[0]} died")
        known = {*self._useful, *self._useless}
        new = [address for identity, address in here.items() if identity not in known]
        if not new:
            return
        bases = sorted({self._base_of.get(d, d) for d in self._devices})
        told = self.cluster.describe(new, bases)
        for address, error in told.items():
            if isinstance(error, BaseException):
                why = f"{type(error).__name__}: {error}"
                if "ModuleNotFoundError" in why and "hetero_lab" in why:
                    why = f"hetero_lab is not installed there, or another release of it ({why})"
                self._leave_out((address, info[address]["local_directory"]), why)
        for worker in read_workers(info, told, self._hosts.values()):
            first = self._hosts.setdefault(worker.host, worker)
            other = [name for what, name in _VERSIONS
                     if worker.environment[what] != first.environment[what]]  # fmt: skip
            if other:  # a row tells the versions of its host, not of its worker
                why = f"the other workers of {worker.host} have another {' and '.join(other)}"
                self._leave_out(worker.identity, why)
                continue
            self._useful[worker.identity] = worker
            if worker is first:
                self._welcome(worker)

    def _leave_out(self, identity: tuple[str, str], why: str) -> None:
        self._useless[identity] = why
        self._useful.pop(identity, None)
        warn(f"The worker {identity[0]} is left out: {why.rstrip('.')}.")

    def _welcome(self, worker: FleetWorker) -> None:
        host = worker.host
        before = self._ledger.hosts.get(host)
        own = worker.environment["openvino_version"]
        if before is not None and before.openvino_version != own:
            raise StoreError(
                f"{host} was measured with OpenVINO {before.openvino_version}, now it has "
                f"{own}. Numbers of the two are not mixed. Take another store= directory."
            )
        now_called = dict(worker.environment["devices"])
        for device, name in before.devices if before is not None else ():
            if now_called.get(device, name) != name:
                raise StoreError(
                    f"{host} was measured with the {device} {name!r}, now it has "
                    f"{now_called[device]!r}. If these are two machines, give one another name; "
                    "or take another store= directory."
                )
        for what, name in _VERSIONS:
            there, here = worker.environment[what], getattr(self._here, what)
            if there != here:
                warn(
                    f"{host} has {name} {there}, here it is {here}: compare hosts with care; the "
                    f"column {what} has the version of each row."
                )
        environment = worker.environment_of(self._devices, self._base_of)
        self._record(Host(host=host, environment=msgspec.convert(environment, Environment)))
        if self.header.every_host:
            self._add([Item(k, host) for k in self._trials if not self._is_done(k, host)])

    def _hand_out(self) -> None:
        """Give each idle machine a share."""
        while not self.watch.is_over:
            busy = {share.worker.machine for share in self._running.values()}
            chosen = self._queue.choose(self._useful.values(), busy)
            if chosen is None:
                return
            worker, items, of_time = chosen
            try:
                if not self._start(worker, items, of_time):
                    del self._useful[worker.identity]  # it is added again if it comes back
            except OutputPathError as error:
                self._leave_out(worker.identity, str(error))

    def _start(self, worker: FleetWorker, items: Sequence[Item], of_time: float) -> bool:
        keys = [item.key for item in items]
        if self.reference not in keys and self._queue.can(worker, self.reference):
            keys.insert(0, self.reference)
        devices = list(dict.fromkeys(d for key in keys for d in self._devices_of[key]))
        emulated = [spec for spec in self._set_up.emulated if spec["name"] in devices]
        budget_s = self.watch.budget_s
        if budget_s is not None:
            budget_s = max(0.1, (budget_s - self.watch.elapsed_s) * of_time)
        share = Assignment(
            trials=tuple(self._trials[key] for key in keys),
            reference=self.reference if self.reference in keys else keys[0],
            options=self.options,
            budget_s=budget_s,
            set_up=msgspec.structs.replace(self._set_up, emulated=emulated, directory=""),
            workers=self.workers,
        )
        self._n_shares += 1
        resources = worker.asked_for(devices, self._base_of)
        if not self.cluster.start(self._n_shares, worker, share, self._files, resources):
            return False
        self._running[self._n_shares] = Share(worker, items)
        self._queue.take(items)
        return True

    def _end(self) -> bool:
        """Cancel shares that are much too late; tell whether any still runs."""
        latest_s = (self.watch.budget_s or 0.0) + self.workers.compile_timeout_s
        if self.watch.elapsed_s > latest_s:
            for number in list(self._running):
                self.cluster.cancel(number)
                del self._running[number]
        return bool(self._running)

    def _give_up(self) -> None:
        """Record as failed the rows that no worker can measure."""
        workers = list(self._useful.values())
        for item in self._queue.hopeless(workers, at_once=self.watch.is_over):
            of_this = [w for w in workers if item.host in ("", w.host)]
            devices = self._devices_of[item.key]
            self._fail(item, "no worker for it", why_not(of_this, devices, self._base_of))

    def _take_news(self) -> None:
        for task, index, record in self.cluster.news(_LOOK_S / 4):
            share = self._running.get(task)
            if share is None:
                continue
            if record is None:
                self._ended(task, share)
            elif index == share.n_received:  # after a gap, the result brings the rest
                self._take(share, record)

    def _take(self, share: Share, record: AnyRecord) -> None:
        share.n_received += 1
        kept = msgspec.structs.replace(record, host=share.worker.host, worker=share.worker.address)
        if isinstance(kept, Turn):
            if kept.group not in share.groups:
                share.groups[kept.group] = self._next_group
                self._next_group += 1
            kept = msgspec.structs.replace(kept, group=share.groups[kept.group])
        self._record(kept)
        if not isinstance(kept, OfEntry):
            return
        if isinstance(kept, Finished | Failed) and kept.entry in {i.key for i in share.left}:
            share.settled.add(kept.entry)
            self._count()
        self._bar.step(f"{share.worker.host}: {self._trials[kept.entry].label}")

    def _ended(self, number: int, share: Share) -> None:
        try:
            records = self.cluster.result(number)
        except TaskLostError as error:
            self._lost(number, str(error))
            self._look()
            return
        for record in records[share.n_received :]:
            self._take(share, record)
        # Items that are still left had no time.
        del self._running[number]

    def _lost(self, number: int, why: str) -> None:
        """Put back the unfinished items of a share; items lost too often fail."""
        share = self._running.pop(number)
        self.cluster.cancel(number)
        for item in share.left:
            if not self._queue.put_back(item):
                self._fail(item, f"lost {MOST_LOSSES} times", why, share.worker.host)

    def _fail(self, item: Item, status: str, detail: str, host: str = "") -> None:
        where = item.host or host
        self._record(Failed(entry=item.key, status=status, detail=detail[:2000], host=where))
        self._count()

    def _count(self) -> None:
        self._n_settled += 1
        self._bar.note(f"{self._n_settled} of {self._n_items} rows")

    def _without_scheduler(self) -> None:
        why = f"The scheduler at {self.cluster.address} is gone."
        left = [item for share in self._running.values() for item in share.left]
        self._running.clear()
        for item in [*left, *self._queue.waiting]:
            self._fail(item, "the scheduler is gone", why)
        self._queue.waiting.clear()
        warn(
            f"{why} The turns that were measured are kept; with a store= the same call goes on "
            "from there when it is back."
        )
