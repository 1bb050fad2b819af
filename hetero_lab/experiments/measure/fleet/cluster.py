"""A Dask cluster that measures: which workers it has, tasks that it is given, news of them.

The only module that knows Dask; what is handed to whom is decided in
:mod:`hetero_lab.experiments.measure.fleet.run`. Records come as events while a task runs, so
that little is lost with a worker or with this process, and once more as the task's result, so
that none is missed.
"""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from distributed import Client, Future, get_worker

from hetero_lab.clock import now
from hetero_lab.errors import ArgumentError
from hetero_lab.experiments.measure.fleet.host import Assignment, describe, keep, measure_share
from hetero_lab.experiments.measure.fleet.workers import (
    FleetWorker,
    SchedulerGoneError,
    TaskLostError,
)
from hetero_lab.experiments.measure.records import AnyRecord

_RECONNECT_S = 10.0


@dataclass(frozen=True)
class News:
    """A record of a task, the ``index``-th, or that the task has ended if there is none."""

    task: int
    index: int = -1
    record: AnyRecord | None = None


def cluster_of(client: Any, *, isolate: bool) -> Cluster:
    """Return the cluster of a client if a sweep can use it.

    Raises
    ------
    ArgumentError
        It is no client, an asynchronous or a closed one, or ``isolate`` is off.
    """
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
        self._holders: dict[tuple[str, str], FleetWorker] = {}  # those that have the model
        self._connected = now()
        self._listens = False

    def identity(self) -> dict[str, dict[str, Any]] | None:
        """Return what the scheduler says of each worker, ``None`` if it is not connected now.

        Raises
        ------
        SchedulerGoneError
            It has not been for a while.
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
        """Return what each worker says of itself; an exception if it cannot.

        One whose connection broke says nothing.
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

        The files travel with the first task of each worker.

        Raises
        ------
        OutputPathError
            The worker cannot write them.
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
            # One worker: what another one is to do again is less than all of it.
            workers=[worker.address],
            resources=dict(resources),
            pure=False,
        )
        self._tasks[number] = future
        future.add_done_callback(lambda _: self._news.put(News(number)))
        return True

    def news(self, timeout_s: float) -> Iterable[News]:
        """Wait for the next news; yield them and those that came with them."""
        with contextlib.suppress(queue.Empty):
            yield self._news.get(timeout=timeout_s)
            while True:
                yield self._news.get_nowait()

    def result(self, number: int) -> list[AnyRecord]:
        """Return all records of a task that has ended.

        Raises
        ------
        TaskLostError
            It ended in another way.
        """
        future = self._tasks.pop(number)
        try:
            return future.result(timeout=_RECONNECT_S)
        except Exception as error:
            raise TaskLostError(f"{type(error).__name__}: {error}") from error

    def cancel(self, number: int) -> None:
        """Let go of a task; it ends after the turn that it is at."""
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
        self._news.put(News(task, index, msgspec.convert(record, AnyRecord)))


def _measure(share: Assignment, directory: str, topic: str, number: int) -> list[AnyRecord]:
    """Measure a share; runs as a task, in a thread of a worker.

    What compiles and infers are processes that are started as programs, so it does not matter
    that a worker under a nanny is a daemon and may have no children of multiprocessing.
    """
    worker = get_worker()
    task = worker.get_current_task()
    sent = 0

    def send(record: AnyRecord) -> None:
        nonlocal sent
        # As text: a message's lists would arrive as tuples.
        worker.log_event(topic, json.dumps([number, sent, msgspec.to_builtins(record)]))
        sent += 1

    def stopped() -> bool:
        state = worker.state.tasks.get(task)
        return state is None or state.state not in ("executing", "long-running")

    return measure_share(share, directory, send, stopped)
