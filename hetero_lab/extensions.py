"""Extensions: devices that other installed packages bring.

A package names them as entry points. One that fails, or whose name another package has, is left out
with a warning that names its package.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hetero_lab.errors import last_line, shorten, warn

DEVICES = "hetero_lab.devices"


def add_devices(core: Any) -> None:
    """Let other packages register their devices on a Core."""
    for entry in _entries():
        try:
            entry.load()(core)
        except Exception as error:
            kind, text = type(error).__name__, last_line(error)
            _leave_out(entry, f"failed ({kind if text == kind else f'{kind}: {text}'})")


def _entries() -> Iterator[EntryPoint]:
    taken: dict[str, str] = {}
    for entry in sorted(entry_points(group=DEVICES), key=lambda e: (_package_of(e), e.name)):
        package = taken.setdefault(entry.name, _package_of(entry))
        if package == _package_of(entry):
            yield entry
        else:
            _leave_out(entry, f"has the name of another one, of the package {shorten(package)}")


def _package_of(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def _leave_out(entry: EntryPoint, why: str) -> None:
    warn(
        f"{shorten(entry.name)} of {entry.group} is left out: it {why}. It comes with the package "
        f"{shorten(_package_of(entry))}; update or uninstall that."
    )
