"""File systems of one's own, for tests of what happens when a disk is full or read-only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    """Mount at a new directory; skip the test where that is not allowed."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a file system of one's own needs Linux and root")
    place.mkdir()
    done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not permitted here: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def disk_of(place: Path, size: str) -> contextlib.AbstractContextManager[Path]:
    """Mount a file system of a size in memory."""
    return mounted(place, "-t", "tmpfs", "-o", f"size={size},nr_inodes=1k", "tmpfs")
