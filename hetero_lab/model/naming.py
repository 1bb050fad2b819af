"""Names of inputs and outputs; friendly names: unique, and the same at every reading of a file.

The runtime numbers nameless nodes consecutively across all models of a process
(``Constant_4711``), so anything stored under such a name would fit one reading only.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino as ov

_NUMBERED = re.compile(r"^[A-Za-z]\w*_\d+$", re.ASCII)
_NUMBER = re.compile(rb"_\d")  # part of every numbered name
_IN_A_NAME = frozenset(byte for byte in range(256) if re.match(rb"\w", bytes([byte])))


def names_of_file(nodes: Iterable[Any], path: Path) -> set[str]:
    """Return the friendly names that the file itself holds, not those made up while reading it."""
    names = {node.get_friendly_name() for node in nodes}
    path = path / "saved_model.pb" if path.is_dir() else path
    # OpenVINO's own format names every node; other files hold the names that they give.
    numbered = {name for name in names if _NUMBERED.match(name)}
    if path.suffix.lower() == ".xml" or not numbered or not os.path.getsize(path):
        return names
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return names - numbered | _held(data, numbered)


def name_the_nameless(nodes: Iterable[Any], known: set[str]) -> None:
    """Number the nodes whose name is made up and not ``known``, type by type, in order."""
    nameless, taken = [], set()
    for node in nodes:
        name = node.get_friendly_name()
        if "\0" in name:  # where a file would end it
            name = name.replace("\0", "\N{SYMBOL FOR NULL}")
            node.set_friendly_name(name)
        if _NUMBERED.match(name) and name not in known:
            nameless.append(node)
        else:
            taken.add(name)
    counts: dict[str, int] = {}
    for node in nameless:
        kind = node.get_type_name()
        while True:
            # The runtime never makes up a name with a dot, so it is not taken for one later.
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
    """Return the name, with a number appended if it is taken."""
    new, count = name, 1
    while new in taken:
        count += 1
        new = f"{name}_{count}"
    return new


def input_name(port: Any) -> str:
    """Name an input or output: its first tensor name, else the friendly name of its node.

    A Result without a tensor name of its own would show the runtime's made-up one. Files keep no
    tensor name that is empty.
    """
    return min(filter(None, port.get_names()), default=port.get_node().get_friendly_name())


def port_names(port: Any) -> set[str]:
    """Return all names by which an input or output may be called."""
    return {*port.get_names(), port.get_node().get_friendly_name()}


def output_names(model: ov.Model) -> list[str]:
    """Name the outputs in order: first tensor name, else the Result's, made unique."""
    names: list[str] = []
    for port in model.outputs:
        names.append(unique(input_name(port), set(names)))
    return names


def _held(data: mmap.mmap, names: set[str]) -> set[str]:
    """Return the names that a file holds as strings of their own, with their lengths before them.

    All names are sought in one pass: files are large, and models have thousands of nodes.
    """
    wanted, found = {name.encode() for name in names}, set[bytes]()
    lengths = {len(name) for name in wanted}
    for number in _NUMBER.finditer(data):
        at = number.start()
        for start in range(at - 1, max(at - max(lengths), 0), -1):
            if data[start] not in _IN_A_NAME:
                break
            # Protobuf puts one byte before a short string, flatbuffers four: mostly zeros.
            length = data[start - 1] or int.from_bytes(data[max(start - 4, 0) : start], "little")
            if length in lengths and data[start : start + length] in wanted:
                found.add(data[start : start + length])
    return {name.decode() for name in found}
