"""What a host of a fleet does: describe itself, and measure a group of placements as a Dask task.

A task needs nothing that earlier ones left, so Dask may run it on any host, and once more.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from distributed import Event, get_worker
from filelock import FileLock

from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import check_device
from hetero_lab.devices.emulation import EmulatedDevice, register
from hetero_lab.errors import DeviceError, HeteroLabError
from hetero_lab.measure.requests import SetUp
from hetero_lab.measure.rounds import SweepRun
from hetero_lab.measure.worker_process import WorkerProcess
from hetero_lab.measure.workers import Workers
from hetero_lab.processes import FORK_SERVER
from hetero_lab.results.environment import Environment, current_environment, noise_of
from hetero_lab.results.records import AnyRecord, Trial
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.tables import scratch_directory


@dataclass(frozen=True, eq=False)
class FleetHost:
    """A machine that can measure: which devices are ``missing``, and what Dask knows of it.

    ``workers`` are its names or addresses in Dask, ``resources`` what each worker declares.
    """

    environment: Environment
    missing: frozenset[str]
    workers: tuple[str, ...] = ()
    resources: frozenset[str] = frozenset()


def describe(devices: Iterable[str], emulated: Sequence[Mapping[str, Any]]) -> FleetHost:
    """Describe this host, and register ``emulated`` devices whose bases it has."""
    core, here, missing = shared_core(), list[str](), set[str]()
    specs = {spec["name"]: spec for spec in emulated}
    for device in devices:
        try:
            check_device(specs[device]["base"] if device in specs else device, core)
        except DeviceError:
            missing.add(device)
            continue
        if device in specs:
            register(EmulatedDevice.from_json(specs[device]), core)
        here.append(device)
    return FleetHost(current_environment(here, core), frozenset(missing))


def measure_group(
    trials: Sequence[Trial],
    files: Mapping[str, bytes],
    budget_s: float | None,
    over: str,
    set_up: SetUp,
    workers: Workers,
    **options: Any,
) -> list[AnyRecord]:
    """Measure trials beside the first of them, in processes of this host; return the records.

    ``files`` are those of the set-up. Nothing begins after the Dask event ``over``. (A worker under
    a nanny is a daemon, which may not have children of ``multiprocessing``. Ours are started with
    ``subprocess``, so this does not matter.)
    """
    worker = get_worker()
    key = worker.get_current_task()
    records: list[AnyRecord] = []

    def append(record: AnyRecord) -> None:
        state = worker.state.tasks.get(key)
        if state is None or state.state not in ("executing", "long-running"):
            raise HeteroLabError("The caller is gone or does not wait any more.")
        records.append(msgspec.structs.replace(record, worker=worker.address))

    used = {device for trial in trials for device in trial.devices}
    emulated = [spec for spec in set_up.emulated if spec["name"] in used]
    here = describe(sorted(used), emulated).environment
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
        own = msgspec.structs.replace(set_up, directory=str(directory), emulated=emulated)
        run = SweepRun(
            trials=trials,
            reference=trials[0].key,
            records=(),
            append=append,
            workers=workers,
            watch=Stopwatch.start(budget_s),
            start=lambda: WorkerProcess(own, workers),
            noise=partial(noise_of, here),
            progress=False,
            **options,
        )
        try:
            run.measure()
        finally:
            run.close()
            FORK_SERVER.forget_set_up()
    return records
