"""Arrays in .npz files, checked before they are read: a file from elsewhere may lie."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

_MOST_UNPACKED = 1 << 28  # bytes, beyond the size of the file


def file_of(path: str | os.PathLike[str], most: int | None = None) -> Path:
    """Return a path; ValueError unless it is a regular file of its directory, not too large."""
    given, real = Path(path), Path(os.path.realpath(path))
    if given.suffix == ".xml" and os.path.lexists(weights := given.with_suffix(".bin")):
        file_of(weights)
    size = real.stat().st_size  # FileNotFoundError, if there is none
    if not real.is_file() or not real.is_relative_to(os.path.realpath(given.parent)):
        raise ValueError(f"{given.name!r} is no regular file of its directory.")
    if most is not None and size > most:
        raise ValueError(f"{given.name!r} is larger than {most >> 20} MiB.")
    return given


def read_npz(path: str | os.PathLike[str], begin: str = "") -> dict[str, np.ndarray]:
    """Return the arrays whose names ``begin`` so; ValueError if far larger than their file."""
    file = file_of(path)
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        there = os.stat(file)  # a file with holes takes less room than its size
        room = min(there.st_size, 512 * getattr(there, "st_blocks", there.st_size))
        if unpacked > max(room, _MOST_UNPACKED):
            raise ValueError(f"it unpacks to {unpacked >> 20} MiB; write it with numpy.savez")
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if name.startswith(begin)}
    except (MemoryError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file.name!r} cannot be read as .npz: {error}") from error
