"""The shared Core, and how long a Core is kept."""

from __future__ import annotations

import functools

import openvino as ov

from hetero_lab.extensions import add_devices

_kept: dict[int, ov.Core] = {}
_shared: list[ov.Core] = []


def shared_core() -> ov.Core:
    """Return this process's Core; devices of other packages are registered when it is made."""
    if not _shared:
        _shared.append(ov.Core())  # first, because an extension may ask for the shared Core
        add_devices(_shared[0])
    return _shared[0]


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
