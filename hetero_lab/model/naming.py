"""Friendly names: unique, and the same at every reading of a file.

The runtime numbers nodes without a name through, across all models of a process
(``Constant_4711``), so what is stored by such a name would fit one reading only.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_NUMBERED = re.compile(r"^[A-Za-z]\w*_\d+$")


def names_of_file(nodes: Iterable[Any], path: Path) -> set[str]:
    """Return the friendly names that are the file's own and not made up while it was read."""
    names = {node.get_friendly_name() for node in nodes}
    # OpenVINO's own format names every node; other files hold the names that they give.
    numbered = {name for name in names if _NUMBERED.match(name)}
    if path.suffix.lower() == ".xml" or not numbered or not os.path.getsize(path):
        return names
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {name for name in names if name not in numbered or _holds(data, name)}


def name_the_nameless(nodes: Iterable[Any], known: set[str]) -> None:
    """Number the nodes whose name is made up and not ``known``, type by type, in order."""
    nameless, taken = [], set()
    for node in nodes:
        name = node.get_friendly_name()
        if _NUMBERED.match(name) and name not in known:
            nameless.append(node)
        else:
            taken.add(name)
    counts: dict[str, int] = {}
    for node in nameless:
        kind = node.get_type_name()
        while True:
            # The runtime never makes such a name up, so it is not taken for one later.
            name = f"{kind}.{counts.setdefault(kind, 0)}"
            counts[kind] += 1
            if name not in taken:
                break
        node.set_friendly_name(name)


def make_names_unique(nodes: Iterable[Any]) -> None:
    """Number repeated names; the first node keeps its own."""
    every = list(nodes)
    taken = {node.get_friendly_name() for node in every}
    seen: set[str] = set()
    for node in every:
        name = node.get_friendly_name()
        if name in seen:
            name = unique(name, taken)
            node.set_friendly_name(name)
            taken.add(name)
        seen.add(name)


def unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number behind it if it is taken."""
    new, count = name, 1
    while new in taken:
        count += 1
        new = f"{name}_{count}"
    return new


def _holds(data: mmap.mmap, name: str) -> bool:
    """Whether a file holds the name as a string of its own, with its length before it."""
    text = name.encode()
    # Protobuf puts one byte before a short string, flatbuffers four.
    return any(
        data.find(len(text).to_bytes(size, "little") + text) >= 0
        for size in ((1, 4) if len(text) < 128 else (4,))
    )
