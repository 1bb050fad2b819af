"""How much two compiles differ on the devices of this host: results of A/A runs, kept in a file.

The file is in the cache directory. Its key is all that the noise depends on: host, number of
processors, OpenVINO version, device and the device's own properties.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from hetero_lab.backend.core import runtime_version
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import StoredFileError, warn
from hetero_lab.fetch import cache_dir
from hetero_lab.statistics import Noise
from hetero_lab.tables import SCHEMA_VERSION, make_directory, read_json, write_json

if TYPE_CHECKING:
    import openvino as ov

KIND, FILE_NAME = "noise", "noise.json"


def known_noise(device: str, core: ov.Core) -> Noise | None:
    """Return the measured noise of a device on this host, ``None`` if it was not measured.

    An emulated device that was not measured itself has the noise of its base device.
    """
    measured = _read()
    specs = emulated_devices(core)
    found = measured.get(_key(device, core))
    if found is None and device in specs:
        found = measured.get(_key(specs[device].base, core))
    return found


def keep_noise(device: str, noise: Noise, core: ov.Core) -> Path:
    """Store the measured noise of a device, replacing an older value; return the file.

    Raises OutputPathError if the cache directory cannot be written.
    """
    path = make_directory(cache_dir()) / FILE_NAME
    with FileLock(path.with_suffix(".lock")):
        measured = {**_read(), _key(device, core): noise}
        rows = [{**dict(key), **asdict(noise)} for key, noise in measured.items()]
        write_json(path, {"kind": KIND, "schema_version": SCHEMA_VERSION, "measured": rows})
    return path


_Key = tuple[tuple[str, Any], ...]
_KEY_FIELDS = ("host", "n_cpus", "openvino_version", "device", "properties")


def _key(device: str, core: ov.Core) -> _Key:
    spec = emulated_devices(core).get(device)
    return _as_key(
        {
            "host": platform.node(),
            "n_cpus": os.cpu_count() or 1,
            "openvino_version": runtime_version(),
            "device": full_name(core, device),
            "properties": str(sorted((spec.properties if spec else {}).items())),
        }
    )


def _as_key(row: Mapping[str, Any]) -> _Key:
    return tuple((name, row[name]) for name in _KEY_FIELDS)


def _read() -> dict[_Key, Noise]:
    path = cache_dir() / FILE_NAME
    if not path.exists():
        return {}
    try:
        return {
            _as_key(row): Noise(**{k: v for k, v in row.items() if k not in _KEY_FIELDS})
            for row in read_json(path, KIND)["measured"]
        }
    except (StoredFileError, KeyError, TypeError) as error:
        warn(
            f"{path} cannot be read, so the noise of this machine is assumed: {error} "
            "hetero_lab.measure_noise() writes it again."
        )
        return {}


def full_name(core: ov.Core, device: str) -> str:
    """Return the full name of a device; empty if its plugin does not report one."""
    try:
        return str(core.get_property(device, "FULL_DEVICE_NAME"))
    except Exception:
        return ""
