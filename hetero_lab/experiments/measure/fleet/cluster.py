"""A Dask cluster that measures: its workers, the tasks it is given, and news of them.

This is the only module that uses Dask; :mod:`hetero_lab.experiments.measure.fleet.run` decides
which worker gets which task. Records arrive as events while a task runs, so that little is lost
if a worker or this process dies, and again as the task's result, so that none is missed.
"""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from distributed import Client, Future, get_worker

from hetero_lab.clock import now
from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.measure.fleet.host import Assignment, describe, keep, measure_share
from hetero_lab.experiments.measure.fleet.work_queue import (
    FleetWorker,
    SchedulerGoneError,
    TaskLostError,
)
from hetero_lab.experiments.measure.records import AnyRecord

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
        """Return the scheduler's description of each worker, ``None`` without a connection.

        Raises SchedulerGoneError if there has been no connection for a while.
        """
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
        """Return each worker's description of itself, or the exception that it raised.

        Workers whose connection broke are left out.
        """
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

        The files travel with the first task of each worker, which raises OutputPathError if it
        cannot write them.
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


def _measure(share: Assignment, directory: str, topic: str, number: int) -> list[AnyRecord]:
    """Measure a share; runs as a task, in a thread of a worker.

    A Dask worker under a nanny is a daemon, which may not have children of ``multiprocessing``.
    Ours are started with ``subprocess``, so this does not matter.
    """
    worker = get_worker()
    task = worker.get_current_task()
    sent = 0

    def send(record: AnyRecord) -> None:
        nonlocal sent
        # Sent as text, since Dask turns the lists of a message into tuples.
        worker.log_event(topic, json.dumps([number, sent, msgspec.to_builtins(record)]))
        sent += 1

    def stopped() -> bool:
        state = worker.state.tasks.get(task)
        return state is None or state.state not in ("executing", "long-running")

    return measure_share(share, directory, send, stopped)
