"""The side of a fleet's host: describe itself, keep the model, measure its share of the rows.

How requests reach the host is up to :mod:`.cluster`.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import check_device
from hetero_lab.errors import DeviceError, HeteroLabError, OutputPathError
from hetero_lab.experiments.measure.budget import RunOptions
from hetero_lab.experiments.measure.environment import current_environment, noise_of
from hetero_lab.experiments.measure.records import AnyRecord, Trial
from hetero_lab.experiments.measure.rounds import SweepRun
from hetero_lab.experiments.measure.workers.launch import Workers
from hetero_lab.experiments.measure.workers.process import WorkerProcess
from hetero_lab.experiments.measure.workers.requests import SetUp
from hetero_lab.runtime.timing import Stopwatch

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOOK_S = 0.5
_GONE = "The caller is gone or does not wait any more."


class AbandonedError(HeteroLabError):
    """The caller no longer waits for this measurement."""


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


def measure_share(
    share: Assignment,
    directory: str,
    append: Callable[[AnyRecord], object],
    stopped: Callable[[], bool],
) -> list[AnyRecord]:
    """Measure an assignment in worker processes of this host; return the records.

    :func:`keep` wrote the files of its set-up into ``directory``. ``append`` is called with each
    record as it is made; AbandonedError if ``stopped`` is true then.
    """
    records: list[AnyRecord] = []

    def note(record: AnyRecord) -> None:
        if stopped():
            raise AbandonedError(_GONE)
        records.append(record)
        append(record)

    watch = Stopwatch.start(share.budget_s)
    for blobs in share.set_up.blobs.values():
        Path(blobs).mkdir(parents=True, exist_ok=True)
    used = {device for trial in share.trials for device in trial.affinity}
    here = current_environment(sorted(used), shared_core())
    set_up = _moved(share.set_up, directory)
    with _alone(stopped):
        run = SweepRun(
            trials=share.trials,
            reference=share.reference,
            records=(),
            append=note,
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
    return records


@contextlib.contextmanager
def _alone(stopped: Callable[[], bool]) -> Iterator[None]:
    """Measure one share at a time on a machine: two would disturb each other."""
    place = Path(tempfile.gettempdir()) / f"hetero_lab-{_user()}.lock"
    lock = FileLock(place, thread_local=False)
    while not lock.is_locked:
        if stopped():
            raise AbandonedError(_GONE)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=_LOOK_S)
    try:
        yield
    finally:
        lock.release()


def _user() -> str:
    try:
        return str(os.getuid())
    except AttributeError:  # not on Windows
        return getpass.getuser()


def set_up_files(set_up: SetUp) -> tuple[SetUp, dict[str, bytes]]:
    """Split a set-up for sending: with file names instead of paths, and the files by name."""
    # The directory holds the models, their weights and the inputs, and nothing else.
    files = {path.name: path.read_bytes() for path in Path(set_up.directory).iterdir()}
    return _moved(set_up, ""), files


def _moved(set_up: SetUp, directory: str) -> SetUp:
    """Return a set-up whose files are in another directory."""
    return msgspec.structs.replace(
        set_up,
        models={name: str(Path(directory, Path(p).name)) for name, p in set_up.models.items()},
        inputs={name: str(Path(directory, Path(p).name)) for name, p in set_up.inputs.items()},
        directory=directory,
    )
