"""Files of known type, as inputs of magika's network.

The files are those of the Python installation; their extension gives the type.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sysconfig
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

# As magika 1.0.3 has it in models/standard_v3_3/config.min.json.
N_BEGIN = N_END = 1024
BLOCK = 4096
PADDING = 256
N_LEAST = 8  # magika recognises shorter files without the network

# Extensions that nearly always mean one type, and magika's name of that type: often the same.
_NAMED_ALIKE = """
    bmp c cmake cpp css csv gif html ico ini ipynb json npy npz onnx pem png po proto rst svg tar
    tiff toml ttf wav woff woff2 xml xz yaml zip
"""
TYPES = {name: name for name in _NAMED_ALIKE.split()} | {
    "bat": "batch", "bz2": "bzip", "cc": "cpp", "exe": "pebin", "f": "fortran", "f90": "fortran",
    "gz": "gzip", "hpp": "cpp", "jpg": "jpeg", "js": "javascript", "md": "markdown",
    "pkl": "pickle", "ps1": "powershell", "py": "python", "pyi": "python", "sh": "shell",
    "ts": "typescript", "yml": "yaml",
}  # fmt: skip

# Files of tests and templates are often broken on purpose, or half of one type and half of
# another; packages are roots of their own; byte code comes and goes with each import.
LEFT_OUT_DIRECTORIES = {
    *("test", "tests", "testing", "test_data", "templates"),
    *("site-packages", "dist-packages"),
    "__pycache__",
}
LEFT_OUT_NAMES = {"license", "licence", "copying", "notice"}


def features(begin: bytes, end: bytes) -> np.ndarray:
    """Return the network's input for a file, [1, 2048] i32, given its first and last 4096 bytes.

    It has the first 1024 bytes after leading white space and the last 1024 before trailing white
    space, one number per byte, padded with 256 after the beginning and before the end.
    """
    first, last = begin[:BLOCK].lstrip()[:N_BEGIN], end[-BLOCK:].rstrip()[-N_END:]
    values = np.full((1, N_BEGIN + N_END), PADDING, np.int32)
    values[0, : len(first)] = np.frombuffer(first, np.uint8)
    values[0, N_BEGIN + N_END - len(last) :] = np.frombuffer(last, np.uint8)
    return values


def read_features(path: Path) -> np.ndarray:
    """Return the network's input for the file at a path."""
    with path.open("rb") as file:
        begin = file.read(BLOCK)
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - BLOCK, 0))
        return features(begin, file.read(BLOCK))


def find_files(n: int) -> list[tuple[Path, str]]:
    """Choose up to ``n`` files of the Python installation, as many of each type as there are.

    Returns their paths and magika's names of their types. The choice stays the same as long as the
    installation does. No two files give the network the same input.
    """
    by_type: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for path, relative in _installed_files(roots()):
        kind = TYPES.get(path.suffix[1:].lower())
        if kind and path.stem.lower() not in LEFT_OUT_NAMES:
            order = hashlib.sha256(relative.encode("utf-8", "surrogateescape")).hexdigest()
            by_type[kind].append((order, path))
    queues = [[(path, kind) for _, path in sorted(by_type[kind])] for kind in sorted(by_type)]
    chosen: dict[bytes, tuple[Path, str]] = {}
    for path, kind in filter(None, chain.from_iterable(zip_longest(*queues))):
        if len(chosen) == n:
            break
        content = _looked_at(path)
        if content is not None:
            chosen.setdefault(content, (path, kind))
    return [*chosen.values()]


def roots() -> tuple[Path, ...]:
    """Return the directories of the Python installation."""
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib", "include")
    return tuple(dict.fromkeys(Path(paths[name]).resolve() for name in names))


@functools.lru_cache(maxsize=1)
def _installed_files(roots: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the files below some directories and their paths relative to them."""
    found = []
    for root in roots:
        for parent, directories, names in os.walk(root):
            directories[:] = [d for d in directories if d.lower() not in LEFT_OUT_DIRECTORIES]
            relative = os.path.relpath(parent, root)
            found += [(Path(parent, name), f"{relative}/{name}") for name in names]
    return found


def _looked_at(path: Path) -> bytes | None:
    """Return the network's input as bytes; None for a file that is too short or unreadable."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        values = read_features(path)
    except OSError:
        return None
    # Only leading white space is stripped, so the eighth value is padding only for a short file.
    return None if values[0, N_LEAST - 1] == PADDING else values.tobytes()
