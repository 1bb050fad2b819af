"""A Dask cluster that measures: its workers, what each does, the tasks and news of them.

This is the only module that uses Dask; :mod:`hetero_lab.fleet.fleet_run` decides
which worker gets which task. Records arrive as events while a task runs, so that little is lost
if a worker or this process dies, and again as the task's result, so that none is missed.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import queue
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from distributed import Client, Future, get_worker
from filelock import FileLock, Timeout

from hetero_lab.clock import now
from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import check_device
from hetero_lab.errors import ArgumentError, DeviceError, OutputPathError
from hetero_lab.fleet.work_queue import FleetWorker, SchedulerGoneError, TaskLostError
from hetero_lab.measure.budget import RunOptions
from hetero_lab.measure.requests import SetUp
from hetero_lab.measure.rounds import SweepRun
from hetero_lab.measure.worker_process import WorkerProcess
from hetero_lab.measure.workers import Workers
from hetero_lab.processes import FORK_SERVER
from hetero_lab.results.environment import current_environment, noise_of
from hetero_lab.results.records import AnyRecord, Trial
from hetero_lab.runtime.timing import Stopwatch

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOOK_S = 0.5
_RECONNECT_S = 10.0


# A task, and its ``index``-th record; without a record, the task has ended.
News: TypeAlias = tuple[int, int, AnyRecord | None]


def cluster_of(client: Any, *, isolate: bool) -> Cluster:
    """Return the cluster of a client; ArgumentError if a sweep cannot use it."""
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
    return Cluster(client)


class Cluster:
    """The workers behind a client, for as long as a sweep lasts."""

    def __init__(self, client: Client):
        self._client = client
        scheduler: Any = client.scheduler
        self.address = str(scheduler.address)
        self._name = f"hetero_lab-{uuid.uuid4().hex[:12]}"
        self._news: queue.Queue[News] = queue.Queue()
        self._tasks: dict[int, Future] = {}
        self._holders: dict[tuple[str, str], FleetWorker] = {}  # workers that have the model
        self._connected = now()
        self._listens = False

    def identity(self) -> dict[str, dict[str, Any]] | None:
        """Return the scheduler's workers; ``None`` while it is away, SchedulerGoneError if long."""
        client = self._client
        if client.status == "running" and client.scheduler is not None:
            with contextlib.suppress(OSError, TimeoutError):
                info: Any = client.sync(client.scheduler.identity, n_workers=-1)
                self._connected = now()
                return info["workers"]
        if client.status in ("closing", "closed") or now() - self._connected > _RECONNECT_S:
            raise SchedulerGoneError
        return None

    def describe(self, addresses: Sequence[str], devices: Sequence[str]) -> dict[str, Any]:
        """Return each worker's description or exception; broken connections are left out."""
        try:
            told: Any = self._client.run(
                describe, list(devices), workers=list(addresses), on_error="return"
            )
        except (OSError, TimeoutError):
            return {}
        return {address: own for address, own in told.items() if not isinstance(own, OSError)}

    def start(
        self,
        number: int,
        worker: FleetWorker,
        share: Assignment,
        files: Mapping[str, bytes],
        resources: Mapping[str, float],
    ) -> bool:
        """Start a task on a worker; ``False`` if the worker does not answer.

        The files travel with a worker's first task; OutputPathError if it cannot write them.
        """
        if not self._listens:
            self._client.subscribe_topic(self._name, self._heard)
            self._listens = True
        place = f"{worker.directory}/{self._name}"
        if worker.identity not in self._holders:
            try:
                self._client.run(keep, place, dict(files), workers=[worker.address])
            except (OSError, TimeoutError):
                return False
            self._holders[worker.identity] = worker
        future = self._client.submit(
            _measure,
            share,
            place,
            self._name,
            number,
            key=f"{self._name}-{number}",
            # Only this worker: if it dies, the rest of its share is handed out again, not all.
            workers=[worker.address],
            resources=dict(resources),
            pure=False,
        )
        self._tasks[number] = future
        future.add_done_callback(lambda _: self._news.put((number, -1, None)))
        return True

    def news(self, timeout_s: float) -> Iterable[News]:
        """Wait for the next news; yield all that has arrived."""
        with contextlib.suppress(queue.Empty):
            yield self._news.get(timeout=timeout_s)
            while True:
                yield self._news.get_nowait()

    def result(self, number: int) -> list[AnyRecord]:
        """Return all records of a task that has ended; TaskLostError if it has no result."""
        future = self._tasks.pop(number)
        try:
            return future.result(timeout=_RECONNECT_S)
        except Exception as error:
            raise TaskLostError(f"{type(error).__name__}: {error}") from error

    def cancel(self, number: int) -> None:
        """Cancel a task; it ends after its current turn."""
        future = self._tasks.pop(number, None)
        if future is not None:
            with contextlib.suppress(Exception):
                future.cancel()

    def close(self) -> None:
        """Cancel all tasks and remove the model from the workers."""
        if self._client.status != "running":
            return
        for number in list(self._tasks):
            self.cancel(number)
        with contextlib.suppress(Exception):
            if self._listens:
                self._client.unsubscribe_topic(self._name)
            here = self.identity() or {}
            for worker in self._holders.values():
                if worker.address in here:
                    place = f"{worker.directory}/{self._name}"
                    self._client.run(shutil.rmtree, place, True, workers=[worker.address])

    def _heard(self, event: tuple[float, str]) -> None:
        task, index, record = json.loads(event[1])
        self._news.put((task, index, msgspec.convert(record, AnyRecord)))


# -- on the hosts -------------------------------------------------------------------------------


def describe(devices: Iterable[str]) -> dict[str, Any]:
    """Describe this host: ``environment``, ``machine``, and which real devices are ``missing``."""
    here, missing = [], []
    for device in devices:
        try:
            here.append(check_device(device, shared_core()))
        except DeviceError:
            missing.append(device)
    return {
        "environment": asdict(current_environment(here, shared_core())),
        "machine": _machine(),
        "missing": missing,
    }


def _machine() -> str:
    """Return an id of this machine, the same for all its workers."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode()}"


def keep(directory: str, files: Mapping[str, bytes]) -> None:
    """Write the files that set a worker up; OutputPathError if they cannot be written."""
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (target / name).write_bytes(content)
    except OSError as error:  # to the caller, an OSError would be a broken connection
        raise OutputPathError(f"The directory {directory} cannot be written: {error}") from error


@dataclass(frozen=True)
class Assignment:
    """What a host measures and how; sent to the host as a whole."""

    trials: tuple[Trial, ...]
    reference: str
    options: RunOptions
    budget_s: float | None
    set_up: SetUp
    workers: Workers


def _measure(share: Assignment, directory: str, topic: str, number: int) -> list[AnyRecord]:
    """Measure a share in worker processes of this host; runs as a task, in a thread of a worker.

    :func:`keep` wrote the files of its set-up into ``directory``. TaskLostError, if the caller no
    longer waits. (A Dask worker under a nanny is a daemon, which may not have children of
    ``multiprocessing``. Ours are started with ``subprocess``, so this does not matter.)
    """
    worker = get_worker()
    task = worker.get_current_task()
    records: list[AnyRecord] = []

    def check_waited_for() -> None:
        state = worker.state.tasks.get(task)
        if state is None or state.state not in ("executing", "long-running"):
            raise TaskLostError("The caller is gone or does not wait any more.")

    def send(record: AnyRecord) -> None:
        check_waited_for()
        # Sent as text, since Dask turns the lists of a message into tuples.
        text = json.dumps([number, len(records), msgspec.to_builtins(record)])
        records.append(record)
        worker.log_event(topic, text)

    watch = Stopwatch.start(share.budget_s)
    for blobs in share.set_up.blobs.values():
        Path(blobs).mkdir(parents=True, exist_ok=True)
    used = {device for trial in share.trials for device in trial.affinity}
    here = current_environment(sorted(used), shared_core())
    set_up = msgspec.structs.replace(share.set_up, directory=directory)
    with _alone(check_waited_for):
        run = SweepRun(
            trials=share.trials,
            reference=share.reference,
            records=(),
            append=send,
            options=share.options,
            workers=share.workers,
            watch=watch,
            start=lambda: WorkerProcess(set_up, share.workers),
            noise=partial(noise_of, here),
            progress=False,
        )
        try:
            run.measure()
        finally:
            run.close()
            FORK_SERVER.forget_set_up()
    return records


@contextlib.contextmanager
def _alone(check_waited_for: Callable[[], None]) -> Iterator[None]:
    """Measure one share at a time on a machine: two would disturb each other."""
    user = getattr(os, "getuid", getpass.getuser)()  # Windows has only names
    place = Path(tempfile.gettempdir()) / f"hetero_lab-{user}.lock"
    lock = FileLock(place, thread_local=False)
    while not lock.is_locked:
        check_waited_for()
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=_LOOK_S)
    try:
        yield
    finally:
        lock.release()
