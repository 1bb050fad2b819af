"""Releases of OpenVINO in environments of their own, which pip makes once and the cache keeps."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from hetero_lab.errors import (
    ArgumentError,
    MeasurementError,
    OutputPathError,
    shorten,
    unknown,
)
from hetero_lab.fetch import CACHE_VARIABLE, cache_dir
from hetero_lab.processes import environment_of_a_child, run_child
from hetero_lab.tables import make_directory

_READY = "ready"  # a file in an environment that is whole; its time is that of the last use
_N_BYTES = 10**9  # that must be free to make one: its files, and pip's copies of the wheels
_INSTALL_S = 1800.0  # half an hour: pip may have to download wheels on a slow line
_PIP = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check")
_FULL = ("No space left on device", "Disk quota exceeded")


def without_zeros(release: str) -> str:
    """Return the one name of a release that has several: 2025.4 and 2025.4.0 are the same."""
    return re.sub(r"(\.0)+$", "", release)


def known_releases() -> tuple[str, ...]:
    """Return the releases that pip can install for this Python, the oldest first.

    MeasurementError, if pip lists none.
    """
    answer = _run([*_PIP, "index", "versions", "openvino"], "OpenVINO's releases cannot be listed")
    listed = answer.partition("Available versions: ")[2].partition("\n")[0].split(", ")
    names = [name for name in listed if re.fullmatch(r"\d+(\.\d+)+", name)]
    if not names:
        raise MeasurementError("pip lists no releases of OpenVINO for this Python.")
    return tuple(sorted(names, key=lambda name: [int(part) for part in name.split(".")]))


def releases_between(ends: Sequence[str] | None) -> tuple[str, ...]:
    """Return the known releases from one to a newer one; ArgumentError if these are not two."""
    releases = known_releases()
    ends = [releases[0], releases[-1]] if ends is None else [*ends]
    names = [without_zeros(release) for release in releases]
    for release in ends:
        if without_zeros(release) not in names:
            raise ArgumentError(unknown("pip has no OpenVINO", release, releases, "Releases", 40))
    places = [names.index(without_zeros(release)) for release in ends]
    if len(places) != 2 or places[0] >= places[1]:
        raise ArgumentError(
            f"between= names an older and a newer release, for instance "
            f"{[releases[0], releases[-1]]}, not {ends}."
        )
    return tuple(releases[places[0] : places[1] + 1])


@contextlib.contextmanager
def interpreter(release: str) -> Iterator[str]:
    """Give the interpreter of an environment with a release, which stays there in the block.

    Without a release, it is the interpreter here. MeasurementError, if the release cannot be
    installed or imported; OutputPathError, if there is no room for it.
    """
    if not release:
        yield sys.executable
        return
    home = make_directory(cache_dir() / "releases") / f"openvino-{without_zeros(release)}"
    python = os.fspath(home / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    with FileLock(f"{home}.lock"):
        # The Python that it was made with may be gone.
        if not (home / _READY).is_file() or not os.path.exists(python):
            _make(home, python, release)
        (home / _READY).touch()
        yield python


def _make(home: Path, python: str, release: str) -> None:
    """Make an environment, whole or not at all."""
    _make_room(home.parent)
    fact = f"OpenVINO {release} cannot be installed"
    numpy = "numpy<2" if release.startswith("2023.") else "numpy"
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, home, ignore_errors=True)
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", os.fspath(home)], fact)
        install = [*_PIP, "--python", python, "install", "--only-binary=:all:"]
        _run([*install, f"openvino=={release}", numpy], fact)
        _run([python, "-EPc", "import openvino"], f"OpenVINO {release} cannot be imported")
        undo.pop_all()


def _make_room(directory: Path) -> None:
    """Remove what was not used for longest, until one more environment fits on the disk."""

    def last_used(home: Path) -> float:
        ready = home / _READY
        return ready.stat().st_mtime if ready.exists() else 0.0

    for home in sorted(filter(Path.is_dir, directory.glob("openvino-*")), key=last_used):
        if shutil.disk_usage(directory).free < _N_BYTES:
            with contextlib.suppress(Timeout), FileLock(f"{home}.lock", timeout=0):
                (home / _READY).unlink(missing_ok=True)  # first: half of one is not ready
                shutil.rmtree(home, ignore_errors=True)
    if shutil.disk_usage(directory).free < _N_BYTES:
        raise _no_room(f"An environment with a release of OpenVINO needs {_N_BYTES / 1e9:g} GB")


def _no_room(fact: str) -> OutputPathError:
    return OutputPathError(
        f"{fact}: there is no space left. Make room on the disk of {cache_dir()}, or set "
        f"{CACHE_VARIABLE} to a directory on another one."
    )


def _run(command: Sequence[str], fact: str) -> str:
    """Return the output of a program; an error begins with the fact."""
    # Constraints on the packages of this environment must not apply to those of a release.
    environment = environment_of_a_child()
    environment.pop("PIP_CONSTRAINT", None)
    try:
        process = run_child(command, timeout_s=_INSTALL_S, environment=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementError(f"{fact}: {error}") from error
    if process.returncode == 0:
        return process.stdout
    output = f"{process.stdout}\n{process.stderr}\nexit code {process.returncode}"
    if any(full in output for full in _FULL):
        raise _no_room(fact)
    lines = output.split("\n")
    why = [line for line in lines if "ERROR" in line] or [line for line in lines if line][-2:]
    raise MeasurementError(f"{fact}: {shorten(' '.join(why), 300)}.")
