"""The shared Core, the devices that other installed packages bring, and how long a Core is kept.

A package names its devices as entry points. One that fails, or whose name another package has, is
left out with a warning that names its package.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points

import openvino as ov

from hetero_lab.errors import last_line, shorten, warn

DEVICES = "hetero_lab.devices"  # the group of entry points
_kept: dict[int, ov.Core] = {}
_shared: list[ov.Core] = []


def shared_core() -> ov.Core:
    """Return this process's Core; devices of other packages are registered when it is made."""
    if not _shared:
        _shared.append(ov.Core())  # first, because an extension may ask for the shared Core
        add_devices(_shared[0])
    return _shared[0]


def add_devices(core: ov.Core) -> None:
    """Let other packages register their devices on a Core."""
    taken: dict[str, str] = {}
    for entry in sorted(entry_points(group=DEVICES), key=lambda e: (_package_of(e), e.name)):
        package = _package_of(entry)
        first = taken.setdefault(entry.name, package)
        if first != package:
            _leave_out(entry, f"has the name of another one, of the package {shorten(first)}")
            continue
        try:
            entry.load()(core)
        except Exception as error:
            kind, text = type(error).__name__, last_line(error)
            _leave_out(entry, f"failed ({kind if text == kind else f'{kind}: {text}'})")


def _package_of(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def _leave_out(entry: EntryPoint, why: str) -> None:
    warn(
        f"{shorten(entry.name)} of {DEVICES} is left out: it {why}. It comes with the package "
        f"{shorten(_package_of(entry))}; update or uninstall that."
    )


@functools.cache
def scratch_core() -> ov.Core:
    """Return a Core to read properties from, apart from the settings of all other Cores."""
    return ov.Core()


def keep(core: ov.Core) -> ov.Core:
    """Keep a core alive until the process ends, and return it.

    Each CPU plugin of OpenVINO 2026.4 gives a signal stack to the thread that loads it, and unmaps
    it when it is unloaded. If cores are destroyed in another order than they were made, or in
    another thread, a thread is left with an unmapped signal stack, and the next signal (Ctrl-C)
    ends the process.
    """
    _kept[id(core)] = core
    return core


def runtime_version() -> str:
    """Return the version of the OpenVINO runtime."""
    return str(ov.get_version())
