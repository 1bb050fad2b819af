"""A sweep over a Dask cluster: a task is a group of placements, with the reference, on one host.

Dask queues the groups, runs each on a host that has its devices, and runs it again if the worker is
lost. All rows of a group come from one host, so that ratios and ranks never mix hosts.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import tempfile
import time
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from distributed import CancelledError, Client, Event, Future, KilledWorker, get_worker
from distributed.comm.addressing import get_address_host
from filelock import FileLock

from hetero_lab.clock import now
from hetero_lab.devices.core import EmulatedDevice, register, shared_core
from hetero_lab.devices.devices import check_device
from hetero_lab.errors import (
    ArgumentError,
    DeviceError,
    MeasurementError,
    StoreError,
    names_at_hand,
    warn,
)
from hetero_lab.interrupts import deferred
from hetero_lab.measure.session import SweepControl
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.sweep_run import BenchPool, SweepRun
from hetero_lab.measure.sweep_schedule import SweepSchedule
from hetero_lab.measure.worker_process import SetUp, WorkerProcess, Workers
from hetero_lab.processes import FORK_SERVER
from hetero_lab.progress import Progress, Stopwatch
from hetero_lab.results.environment import Environment, current_environment, noise_of
from hetero_lab.results.records import (
    AnyRecord,
    Failed,
    Header,
    Host,
    Ledger,
    Trial,
    Turn,
    by_key,
)
from hetero_lab.tables import scratch_directory

_ATTEMPTS = 3  # at a group whose task raises an error
_PATIENCE_S = 10.0  # a nanny needs some seconds to start its worker again
_LOOK_S = 0.3  # between two looks at what has ended, and at which workers there are
_VERSIONS = {"openvino_version": "OpenVINO", "hetero_lab_version": "hetero_lab"}
# Trials that are measured together, beside the first, at one of some addresses.
Group: TypeAlias = tuple[Sequence[Trial], Sequence[str]]


def cluster_of(client: Any, *, isolate: bool) -> Callable[..., None]:
    """Return what measures on a client's cluster; ArgumentError if a sweep cannot use it."""
    if not isinstance(client, Client) or client.asynchronous:
        raise ArgumentError(
            "client= is a blocking dask.distributed.Client, for instance "
            f"Client('tcp://scheduler:8786'), not {client!r}."
        )
    if client.status != "running":
        raise ArgumentError(f"The client is {client.status}; connect a new one to the scheduler.")
    if not isolate:
        raise ArgumentError(
            "On a fleet rows are always measured in processes of their own: leave isolate=False "
            "out."
        )

    def measure(**arguments: Any) -> None:
        with contextlib.closing(FleetRun(client=client, **arguments)) as run:
            run.measure()

    return measure


def divide(
    trials: Iterable[Trial], hosts: Mapping[str, Environment], reference: Trial, size: int
) -> list[Group]:
    """Divide trials into groups of at most ``size`` by the hosts that have their devices.

    Groups are smaller if there would not be one for each host. They begin with the reference
    wherever a host has the devices of both. ``hosts`` are by address; each trial has one.
    """
    by_addresses: defaultdict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        able = [at for at, host in hosts.items() if not lacking(host, trial)]
        beside = [at for at in able if not lacking(hosts[at], reference)]
        by_addresses[tuple(beside or able)].append(trial)
    groups: list[Group] = []
    for able, several in by_addresses.items():
        first = [] if lacking(hosts[able[0]], reference) else [reference]
        most = min(size - 1, math.ceil(len(several) / len(able)))
        for start in range(0, len(several), most):
            part = several[start : start + most]
            groups.append(([*first, *(t for t in part if t not in first)], able))
    return groups


def lacking(host: Environment, trial: Trial) -> list[str]:
    """Return the devices of a trial that a host does not have."""
    return [device for device in trial.devices if device not in dict(host.devices)]


@dataclass(kw_only=True, eq=False)
class FleetRun:
    """A run over a fleet, with a ``header`` of its store.

    ``trials`` are by key. Records also have ``host`` and ``worker``, and a ``Host`` record holds
    each host's environment. ``set_up`` writes the set-up of worker processes into files on this
    machine and returns it; ``control`` tells when the run is to stop.
    """

    client: Client
    header: Header
    set_up: Callable[[], SetUp]
    control: SweepControl
    trials: Mapping[str, Trial]
    ledger: Ledger
    options: RunOptions
    workers: Workers
    watch: Stopwatch
    progress: bool

    def __post_init__(self) -> None:
        self._bar = Progress("sweep", show=self.progress, budget_s=self.watch.budget_s)
        scheduler: Any = self.client.scheduler
        self._where = f"The scheduler at {scheduler.address}"
        self._over = Event(f"hetero_lab-{uuid.uuid4().hex[:12]}", client=self.client)
        self._hosts: dict[str, Environment] = {}  # by address
        self._seen = defaultdict[str, float](now)  # when each address last had a worker
        self._running: dict[Future, Group] = {}

    def _undone(self, names: Collection[str]) -> list[str]:
        """Return the keys that none of some hosts has finished."""
        terms = (self.header.reference, self.options.turns)
        is_done = self.ledger.is_done
        return [k for k in self.trials if not any(is_done(k, name, *terms) for name in names)]

    def measure(self) -> None:
        """Measure all pending trials, as far as the budget allows.

        Raises MeasurementError if no worker can, StoreError if a host's OpenVINO has changed.
        """
        names, every_host = self.ledger.hosts, self.header.every_host
        if not every_host and not self._undone(names):
            return
        self._meet_hosts()
        parts = [(self._hosts, self._undone(names))]
        if every_host:
            parts = [({at: h}, self._undone([h.host])) for at, h in self._hosts.items()]
        if not any(keys for _, keys in parts):
            return
        set_up = self.set_up()
        # The directory holds the models, their weights and the inputs, and nothing else.
        files = {path.name: path.read_bytes() for path in Path(set_up.directory).iterdir()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            sent = self.client.submit(dict, files, pure=False)
        self._measure = partial(
            self.client.submit,
            measure_group,
            files=sent,
            set_up=msgspec.structs.replace(set_up, directory=""),
            limits=self.workers,
            options=self.options,
            over=self._over.name,
            retries=_ATTEMPTS - 1,
            pure=False,
        )
        for hosts, keys in parts:
            self._submit(keys, hosts)
        while self._running:
            time.sleep(_LOOK_S)
            self.control.check()
            for future in [future for future in self._running if future.done()]:
                self._take(future, *self._running.pop(future))
            self._look()

    def close(self) -> None:
        """Cancel what still runs."""
        self._bar.close()
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            if self.client.status == "running":
                self.client.cancel(list(self._running))

    def _workers(self) -> list[str]:
        return list(self.client.scheduler_info(n_workers=-1).get("workers", {}))

    def _meet_hosts(self) -> None:
        """Find out which hosts there are; raise MeasurementError if none can measure."""
        until = now() + _PATIENCE_S
        devices = sorted({device for t in self.trials.values() for device in t.devices})
        try:
            while not (workers := self._workers()) and now() < until:
                time.sleep(_LOOK_S)
            answers: Any = self.client.run(
                describe, devices, self.header.emulated, workers=workers, on_error="return"
            )
        except (OSError, TimeoutError) as error:
            raise MeasurementError(f"{self._where} does not answer. Is it running?") from error
        if not answers:
            raise MeasurementError(
                f"{self._where} has no workers. Start one on each machine: dask worker ADDRESS"
            )
        useless: dict[str, str] = {}
        for worker, reply in answers.items():
            first = self._hosts.setdefault(address := get_address_host(worker), reply)
            # Dask may run a group on any worker of its host, and a row tells what its host has.
            if isinstance(reply, Exception):
                useless[address] = f"hetero_lab cannot run there ({type(reply).__name__}: {reply})"
            elif any(getattr(first, v, "") != getattr(reply, v) for v in ("host", *_VERSIONS)):
                useless[address] = "its workers have different names or versions"
        for address, why in useless.items():
            del self._hosts[address]
            warn(f"The host {address} is left out: {why}.")
        if not self._hosts:
            raise MeasurementError(
                f"{self._where} has no host that can measure. "
                + ". ".join(f"{address}: {why}" for address, why in useless.items())
                + ". Install the same versions there: pip install 'hetero-lab[fleet]'."
            )
        alike = Counter(host.host for host in self._hosts.values())
        for address, host in self._hosts.items():
            if alike[host.host] > 1:
                self._hosts[address] = replace(host, host=f"{host.host} ({address})")
            self._welcome(self._hosts[address])

    def _welcome(self, host: Environment) -> None:
        """Record a host; StoreError if it is not the one that the store has under this name."""
        before, called = self.ledger.hosts.get(host.host, host), dict(host.devices)
        versions = ("OpenVINO", before.openvino_version, host.openvino_version)
        devices = [(f"the {d}", name, called.get(d, name)) for d, name in before.devices]
        for what, was, is_now in [versions, *devices]:
            if was != is_now:
                raise StoreError(
                    f"{host.host} was measured with {what} {was!r}, now it has {is_now!r}. Numbers "
                    "of the two are not mixed. If these are two machines, give one another name; "
                    "or take another store= directory."
                )
        for field, name in _VERSIONS.items():
            there, here = getattr(host, field), getattr(self.header.environments[-1], field)
            if there != here:
                warn(
                    f"{host.host} has {name} {there}, here it is {here}: compare hosts with care; "
                    f"the column {field} has the version of each row."
                )
        self.ledger.append(Host(host=host.host, environment=host))

    def _submit(self, keys: Sequence[str], hosts: Mapping[str, Environment]) -> None:
        """Give trials to Dask in groups, each with its part of the time."""
        trials: list[Trial] = []
        for trial in map(self.trials.__getitem__, keys):
            lacks = {at: ", ".join(lacking(host, trial)) for at, host in hosts.items()}
            if all(lacks.values()):
                whys = [f"{hosts[at].host} ({at}) has no {names}" for at, names in lacks.items()]
                self._fail([trial], [*hosts], "no worker for it", "; ".join(whys))
            else:
                trials.append(trial)
        reference = self.trials[self.header.reference]
        # The reference is in every group; alone it makes one only if nothing else is asked for.
        trials = [trial for trial in trials if trial is not reference] or trials
        groups = divide(trials, hosts, reference, self.workers.group)
        load: Counter[str] = Counter()  # how many groups a host will probably measure
        for _, addresses in groups:
            load.update(dict.fromkeys(addresses, 1 / len(addresses)))
        for position, (several, addresses) in enumerate(groups):
            # Nine ninths add up to a little more than one.
            n_in_turn = math.ceil(max(load[at] for at in addresses) - 1e-9)
            future = self._measure(
                tuple(several),
                budget_s=self.watch.budget_s and max(0.1, self.watch.left_s / n_in_turn),
                workers=addresses,
                priority=-position,  # Dask takes equal ones that come at once in any order
            )
            self._running[future] = several, addresses

    def _look(self) -> None:
        """Give up groups whose workers do not come back; begin no more when the time is over."""
        with contextlib.suppress(OSError, TimeoutError):
            self._seen.update(dict.fromkeys(map(get_address_host, self._workers()), now()))
            if self.watch.is_over:
                self._over.set()
        for future, (trials, addresses) in list(self._running.items()):
            if all(now() - self._seen[at] > _PATIENCE_S for at in addresses):
                future.cancel()
                del self._running[future]
                self._fail(trials, addresses, "no worker for it", "no worker is left")

    def _take(self, future: Future, trials: Sequence[Trial], addresses: Sequence[str]) -> None:
        """Record what a group measured."""
        try:
            records: list[AnyRecord] = future.result(timeout=_PATIENCE_S)
        except TimeoutError:  # lost just now: Dask measures it again
            self._running[future] = trials, addresses
            return
        except CancelledError:
            why = f"{self._where} is gone."
            self._fail(trials, addresses, "the scheduler is gone", why)
            warn(
                f"{why} The turns that were measured are kept; with a store= the same call goes on "
                "from there when it is back."
            )
            return
        except Exception as error:
            times = error.allowed_failures + 1 if isinstance(error, KilledWorker) else _ATTEMPTS
            why = f"{type(error).__name__}: {error}"
            self._fail(trials, addresses, f"lost {times} times", why)
            return
        first = self.ledger.next_group
        with deferred():  # all of a group, or its store would miss some
            for record in records:
                host = self._hosts[get_address_host(record.worker)].host
                copy = msgspec.structs.replace(record, host=host)
                if isinstance(copy, Turn):
                    copy = msgspec.structs.replace(copy, group=first + copy.group)
                self.ledger.append(copy)
        labels = names_at_hand([trial.label for trial in trials], 4)
        failed = [record for record in records if isinstance(record, Failed)]
        if {trial.key for trial in trials} == {record.entry for record in failed}:
            why = f"{failed[0].status}: {failed[0].detail}"
            warn(f"Every placement of a group failed: {labels}. The first: {why}")
        self._bar.step(f"measured {labels}")

    def _fail(self, trials: Sequence[Trial], at: Sequence[str], status: str, detail: str) -> None:
        host = self._hosts[at[0]].host if self.header.every_host else ""
        for trial in trials:
            names = [host] if host else self.ledger.hosts
            if trial.key != self.header.reference or not any(
                self.ledger.levels_us(trial.key, name) for name in names
            ):
                self.ledger.append(
                    Failed(entry=trial.key, status=status, detail=detail[:2000], host=host)
                )


# -- on the hosts -------------------------------------------------------------------------------


def describe(devices: Iterable[str], emulated: Iterable[EmulatedDevice]) -> Environment:
    """Describe this host, with those devices that it has; register the emulated ones."""
    core, here = shared_core(), list[str]()
    specs = {spec.name: spec for spec in emulated}
    for device in devices:
        try:
            check_device(specs[device].base if device in specs else device, core)
        except DeviceError:
            continue
        if device in specs:
            register(specs[device], core)
        here.append(device)
    return current_environment(here, core)


def measure_group(
    trials: Sequence[Trial],
    files: Mapping[str, bytes],
    set_up: SetUp,
    limits: Workers,
    options: RunOptions,
    budget_s: float | None,
    over: str,
) -> list[AnyRecord]:
    """Measure trials beside the first of them in processes of this host; return the records.

    ``files`` are those of the set-up. Nothing begins after the Dask event ``over``.
    """
    worker = get_worker()
    key = worker.get_current_task()
    records: list[AnyRecord] = []

    def append(record: AnyRecord) -> None:
        state = worker.state.tasks.get(key)
        if state is None or state.state not in ("executing", "long-running"):
            raise RuntimeError("The caller is gone or does not wait any more.")
        records.append(msgspec.structs.replace(record, worker=worker.address))

    devices = {device for trial in trials for device in trial.devices}
    emulated = tuple(spec for spec in set_up.emulated if spec.name in devices)
    here = describe(sorted(devices), emulated)
    for blobs in set_up.blobs.values():
        Path(blobs).mkdir(parents=True, exist_ok=True)
    user = getattr(os, "getuid", getpass.getuser)()  # Windows has only names
    lock = FileLock(Path(tempfile.gettempdir()) / f"hetero_lab-{user}.lock")
    # One group at a time on a machine: two would disturb each other.
    with lock, scratch_directory(worker.local_directory) as directory:
        if Event(over).is_set():
            return []
        for name, content in files.items():
            (directory / name).write_bytes(content)
        local_set_up = msgspec.structs.replace(set_up, directory=str(directory), emulated=emulated)
        schedule = SweepSchedule(
            trials=by_key(trials),
            reference=trials[0].key,
            ledger=Ledger((), append),
            options=options,
            group_size=limits.group,
            budget_s=budget_s,
            noise=partial(noise_of, here),
        )
        pool = BenchPool(schedule.trials, lambda: WorkerProcess(local_set_up, limits), limits)
        try:
            SweepRun(schedule, pool, Stopwatch.start(budget_s)).measure()
        finally:
            FORK_SERVER.forget_set_up()
    return records
