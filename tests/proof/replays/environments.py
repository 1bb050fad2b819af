"""Environments in which the lab runs beside another release of OpenVINO, 2025.0 or later."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from hetero_lab.devices.releases import interpreter, without_zeros

ROOT = Path(__file__).resolve().parents[3]
_OF_A_RELEASE = ("openvino", "numpy")


def is_installed(release: str) -> bool:
    return without_zeros(release) == without_zeros(version("openvino"))


@contextlib.contextmanager
def with_lab(release: str, scratch: Path) -> Iterator[str]:
    """Give an interpreter that has a release, this tree, and what this tree needs."""
    if is_installed(release):
        yield sys.executable
        return
    with interpreter(release) as python:
        home, others = scratch / f"lab-{release}", scratch / "others"
        if not home.exists():
            _link_others(others)
            command = [sys.executable, "-m", "venv", "--without-pip", os.fspath(home)]
            subprocess.run(command, check=True)
            paths = [_packages(Path(python).parents[1]), ROOT, others]
            lines = [os.fspath(path) for path in paths]
            (_packages(home) / "lab.pth").write_text("\n".join(lines))
        yield os.fspath(home / "bin" / "python")


def _packages(home: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": os.fspath(home)}))


def _link_others(others: Path) -> None:
    """Gather the packages of this environment, without those that a release brings."""
    if others.exists():
        return
    others.mkdir()
    for place in map(Path, sys.path):
        if place.name not in ("site-packages", "dist-packages"):
            continue
        for package in place.iterdir():
            link = others / package.name
            if not package.name.startswith(_OF_A_RELEASE) and not link.exists():
                link.symlink_to(package)
