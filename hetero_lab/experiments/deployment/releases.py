"""Verifications with several releases of OpenVINO, each in an environment of its own.

HETERO's own code changes between releases: another partition, or none at all, can come of the same
affinities.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from hetero_lab.errors import ArgumentError, MeasurementError, shorten
from hetero_lab.experiments.deployment.verification import Verification
from hetero_lab.fetch import cache_dir
from hetero_lab.result import Result
from hetero_lab.tables import make_directory

if TYPE_CHECKING:
    import pandas as pd

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([a-z]+[0-9]+)?(\.dev[0-9]+)?")
_READY = "ready"  # a file in an environment that is whole
_INSTALL_S = 1800.0


@dataclass(frozen=True)
class Across(Result):
    """A deployed directory verified with one release after another.

    Attributes
    ----------
    verifications
        One a release, in the order asked for.
    releases
        Their versions.
    """

    releases: tuple[str, ...]
    verifications: tuple[Verification, ...]

    @property
    def ok(self) -> bool:
        """Whether the contract is kept with every release."""
        return all(proven.ok for proven in self.verifications)

    @property
    def changed_by(self) -> str | None:
        """The first release with which other parts are broken than with the one before."""
        pairs = zip(self.releases[1:], self.verifications[1:], self.verifications, strict=False)
        return next((name for name, now, before in pairs if now.broken != before.broken), None)

    @property
    def summary(self) -> pd.DataFrame:
        """One row a release and part: ``release``, ``part``, ``status``, ``detail``."""
        import pandas as pd

        frames = []
        for release, proven in zip(self.releases, self.verifications, strict=True):
            frame = proven.summary
            frame.insert(0, "release", release)
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    def __str__(self) -> str:
        lines = []
        for release, proven in zip(self.releases, self.verifications, strict=True):
            lines.append(f"{release:<10} {'ok' if proven.ok else ', '.join(proven.broken)}")
            lines += [f"    {p.name}: {p.detail}" for p in proven.parts if p.name in proven.broken]
        changed = self.changed_by
        lines.append(
            "All releases do the same." if changed is None else f"OpenVINO {changed} changed it."
        )
        return "\n".join(lines) + "\n"

    __repr__ = __str__


def check_releases(releases: Sequence[str]) -> list[str]:
    """Return versions of OpenVINO as a list; ArgumentError for anything else."""
    if isinstance(releases, str):
        releases = [releases]
    wrong = [r for r in releases if not isinstance(r, str) or not _VERSION.fullmatch(r)]
    if wrong or not releases:
        raise ArgumentError(
            f"releases= is a list of versions of OpenVINO, for instance ['2026.2', '2026.3'], "
            f"not {shorten(repr(wrong or releases))}."
        )
    return list(releases)


def environment_of(release: str) -> Path:
    """Return the interpreter of an environment with a release, which is made if it is not there.

    Raises
    ------
    MeasurementError
        pip cannot install it.
    """
    home = make_directory(cache_dir() / "releases") / f"openvino-{release}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    with FileLock(f"{home}.lock"):
        if not (home / _READY).is_file():
            _run([sys.executable, "-m", "venv", "--clear", os.fspath(home)], release)
            install = [os.fspath(python), "-m", "pip", "install", "--disable-pip-version-check"]
            _run([*install, f"openvino=={release}", "numpy"], release)
            (home / _READY).touch()
    return python


def _run(command: Sequence[str], release: str) -> None:
    # Constraints that pin the packages of this environment must not pin those of a release.
    environment = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INSTALL_S,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementError(f"OpenVINO {release} cannot be installed: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        raise MeasurementError(
            f"OpenVINO {release} cannot be installed: {shorten(' '.join(lines), 300)}. "
            "pip index versions openvino lists what there is."
        )
