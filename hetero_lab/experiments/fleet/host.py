"""What a host of a fleet does: say what it is, keep the model, measure its share of the rows.

Nothing in here knows how requests reach the host; see :mod:`hetero_lab.experiments.fleet.cluster`.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hetero_lab.backend.devices import check_device
from hetero_lab.errors import DeviceError, HeteroLabError, OutputPathError
from hetero_lab.experiments.environment import current_environment
from hetero_lab.experiments.sweep.rounds import Plan, SweepRun
from hetero_lab.experiments.workers.process import WorkerProcess
from hetero_lab.runtime.timing import Stopwatch

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOOK_S = 0.5


class StoppedError(HeteroLabError):
    """Nobody waits for this measurement any more."""


def describe(devices: Iterable[str]) -> dict[str, Any]:
    """Describe this host: ``environment``, ``machine``, and which real devices are ``missing``."""
    here, missing = [], []
    for device in devices:
        try:
            here.append(check_device(device))
        except DeviceError:
            missing.append(device)
    return {
        "environment": asdict(current_environment(here)),
        "machine": _machine(),
        "missing": missing,
    }


def _machine() -> str:
    """Return what the workers of one machine share and no two machines do."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode()}"


def keep(directory: str, files: Mapping[str, bytes]) -> None:
    """Write the files that set a worker up.

    Raises
    ------
    OutputPathError
        They cannot be written.
    """
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (target / name).write_bytes(content)
    except OSError as error:  # which would look like a broken connection to the caller
        raise OutputPathError(f"The directory {directory} cannot be written: {error}") from error


def measure_share(
    job: Mapping[str, Any],
    directory: str,
    append: Callable[[dict[str, Any]], object],
    stopped: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Measure some entries in worker processes of this host; return the records.

    Parameters
    ----------
    job
        ``entries``, ``reference``, ``plan``, ``budget_s``, ``set_up``, ``command`` and
        ``memory_limit_bytes``, all plain data.
    directory
        Where :func:`keep` put the files of ``set_up``.
    append
        Is given each record as it is made.
    stopped
        Tells whether to give up; asked between turns.

    Raises
    ------
    StoppedError
        ``stopped`` said so.
    """
    records: list[dict[str, Any]] = []

    def note(record: dict[str, Any]) -> None:
        if stopped():
            raise StoppedError("The caller is gone or does not wait any more.")
        records.append(record)
        append(record)

    watch = Stopwatch.start(job["budget_s"])
    for entry in job["entries"]:
        if entry.get("cache_dir"):
            Path(entry["cache_dir"]).mkdir(parents=True, exist_ok=True)
    set_up = _located(job["set_up"], Path(directory))
    with _alone(stopped):
        run = SweepRun(
            entries=job["entries"],
            reference=job["reference"],
            records=records,
            append=note,
            plan=Plan(**job["plan"]),
            watch=watch,
            progress=False,
        )
        try:
            run.measure(
                lambda: WorkerProcess(
                    set_up,
                    command=job["command"],
                    memory_limit_bytes=job["memory_limit_bytes"],
                )
            )
        finally:
            run.close()
    return records


def _located(set_up: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return a set-up whose file names are paths on this host."""
    there = {
        what: {name: str(directory / file) for name, file in set_up[what].items()}
        for what in ("models", "inputs")
    }
    return {**set_up, **there}


@contextlib.contextmanager
def _alone(stopped: Callable[[], bool]) -> Iterator[None]:
    """Measure one thing at a time on a machine, whoever asks: two would disturb each other."""
    place = Path(tempfile.gettempdir()) / f"hetero_lab-{_user()}.lock"
    lock = FileLock(place, thread_local=False)
    while not lock.is_locked:
        if stopped():
            raise StoppedError("The caller is gone or does not wait any more.")
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


def set_up_files(set_up: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Take a set-up apart: with file names in place of paths, and what the files hold."""
    named: dict[str, Any] = dict(set_up)
    for what in ("models", "inputs"):
        named[what] = {name: Path(path).name for name, path in set_up[what].items()}
    # Weights lie beside their model, and nothing else does.
    directory = Path(next(iter(set_up["models"].values()))).parent
    return named, {path.name: path.read_bytes() for path in directory.iterdir()}
