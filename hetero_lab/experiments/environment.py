"""Where a measurement was made: versions, host, devices."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

import openvino as ov

from hetero_lab.backend.core import runtime_version, shared_core
from hetero_lab.backend.emulation import emulated_devices


@dataclass(frozen=True)
class Environment:
    """Host, versions and devices of a measurement.

    ``devices`` holds the full name of each device, ``emulated`` the base of each that is emulated.
    """

    openvino_version: str
    python_version: str
    system: str
    host: str
    n_cpus: int
    measured_at: str
    devices: tuple[tuple[str, str], ...]
    emulated: tuple[tuple[str, str], ...]


def current_environment(devices: Iterable[str], core: ov.Core | None = None) -> Environment:
    """Describe this machine and the devices used."""
    core = core or shared_core()
    used = list(devices)
    specs = emulated_devices(core)
    return Environment(
        openvino_version=runtime_version(),
        python_version=platform.python_version(),
        system=platform.platform(),
        host=platform.node(),
        n_cpus=os.cpu_count() or 1,
        measured_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        devices=tuple((name, _full_name(core, name)) for name in used),
        emulated=tuple((name, specs[name].base) for name in used if name in specs),
    )


def _full_name(core: ov.Core, device: str) -> str:
    try:
        return str(core.get_property(device, "FULL_DEVICE_NAME"))
    except Exception:  # not every plugin tells
        return ""
