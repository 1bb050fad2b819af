"""Where a measurement was made: versions, host, devices, and how much two compiles differ there.

A file in the cache directory keeps the results of A/A runs. Its key is all that the noise depends
on: host, number of processors, OpenVINO version, device and the device's own properties.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import psutil
from filelock import FileLock

from hetero_lab import __version__
from hetero_lab.clock import now
from hetero_lab.devices.core import bases_of, emulated_devices, runtime_version
from hetero_lab.devices.devices import full_name
from hetero_lab.errors import StoredFileError, warn
from hetero_lab.fetch import cache_dir
from hetero_lab.intervals import Noise, assumed_noise, largest_noise
from hetero_lab.tables import SCHEMA_VERSION, make_directory, read_json, reading, write_json

if TYPE_CHECKING:
    import openvino as ov

_NOISE_KIND, _NOISE_FILE = "noise", "noise.json"
_Key: TypeAlias = tuple[Any, ...]  # the values of these fields
# Other work that disturbs: a fifth of few CPUs, where one more process is a large share; a tenth of
# many, whose rest is what a model can have: it is then slower by about the usual tolerance.
_BUSY_OF_FEW, _MOST_OF_FEW, _BUSY_OF_MANY = 0.2, 0.75, 0.1
_WORTH_A_NOTE = 0.3  # CPUs: fewer are next to nothing
BUSY = "Other processes kept"  # begins the note on a busy machine
_LOOK_S = 0.4  # of one look at other work: CPU times are counted in steps of 10 ms
_KEY_FIELDS = ("host", "n_cpus", "openvino_version", "device", "properties")


@dataclass(frozen=True)
class Environment:
    """Host, versions and devices of a measurement.

    ``devices`` holds the full name of each device, ``emulated`` the base of each emulated device,
    and ``noise``, for devices where it was measured, how much two compiles differ.
    """

    openvino_version: str
    python_version: str
    system: str
    host: str
    n_cpus: int
    measured_at: str
    governor: str
    on_battery: bool | None
    devices: tuple[tuple[str, str], ...]
    emulated: tuple[tuple[str, str], ...]
    hetero_lab_version: str = ""
    noise: tuple[tuple[str, Noise], ...] = ()

    def __post_init__(self) -> None:
        datetime.datetime.fromisoformat(self.measured_at)  # it may come from a file

    def of(self, devices: Collection[str]) -> Environment:
        """Return this environment reduced to the given devices."""
        return replace(
            self,
            devices=tuple(pair for pair in self.devices if pair[0] in devices),
            emulated=tuple(pair for pair in self.emulated if pair[0] in devices),
        )


def current_environment(devices: Iterable[str], core: ov.Core) -> Environment:
    """Describe this machine and the devices used."""
    names = list(devices)
    return Environment(
        openvino_version=runtime_version(),
        python_version=platform.python_version(),
        system=platform.platform(),
        host=platform.node(),
        n_cpus=os.cpu_count() or 1,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        governor=_governor(),
        on_battery=_on_battery(),
        devices=tuple((name, full_name(core, name)) for name in names),
        emulated=tuple(bases_of(names, core).items()),
        hetero_lab_version=__version__,
        noise=tuple(
            (name, noise) for name in names if (noise := known_noise(name, core)) is not None
        ),
    )


def known_noise(device: str, core: ov.Core) -> Noise | None:
    """Return the noise of a device here, else of its base; ``None`` if neither was measured."""
    measured = _measured_noise()
    specs = emulated_devices(core)
    noise = measured.get(_key(device, core))
    if noise is None and device in specs:
        noise = measured.get(_key(specs[device].base, core))
    return noise


def keep_noise(device: str, noise: Noise, core: ov.Core) -> Path:
    """Store the noise of a device and return the file; OutputPathError if it cannot be written."""
    path = make_directory(cache_dir()) / _NOISE_FILE
    with FileLock(path.with_suffix(".lock")):
        measured = {**_measured_noise(), _key(device, core): noise}
        rows = [
            {**dict(zip(_KEY_FIELDS, key, strict=True)), **asdict(noise)}
            for key, noise in measured.items()
        ]
        write_json(path, {"kind": _NOISE_KIND, "schema_version": SCHEMA_VERSION, "measured": rows})
    return path


def _key(device: str, core: ov.Core) -> _Key:
    spec = emulated_devices(core).get(device)
    properties = str(sorted((spec.properties if spec else {}).items()))
    n_cpus = os.cpu_count() or 1
    return platform.node(), n_cpus, runtime_version(), full_name(core, device), properties


def _measured_noise() -> dict[_Key, Noise]:
    path = cache_dir() / _NOISE_FILE
    if not path.exists():
        return {}
    try:
        with reading(path, _NOISE_KIND):
            return {
                tuple(row[name] for name in _KEY_FIELDS): msgspec.convert(row, Noise)
                for row in read_json(path, _NOISE_KIND)["measured"]
            }
    except StoredFileError as error:
        warn(
            f"{path} cannot be read, so the noise of this machine is assumed: {error} "
            "hetero_lab.measure_noise() writes it again."
        )
        return {}


def noise_of(environment: Environment, devices: Iterable[str]) -> Noise:
    """Return how much two compiles on these devices differ, as known in an environment."""
    noises = dict(environment.noise)
    return largest_noise(noises.get(device) or assumed_noise(device) for device in devices)


def noise_here(devices: Iterable[str], core: ov.Core) -> Noise:
    """Return how much two compiles on these devices differ, as known on this machine."""
    return largest_noise(known_noise(device, core) or assumed_noise(device) for device in devices)


def noise_sentence(environment: Environment) -> str:
    """Say how much two compiles of one placement differ, and whether that was measured."""
    devices: dict[Noise, list[str]] = {}
    for name, _ in environment.devices:
        devices.setdefault(noise_of(environment, [name]), []).append(name)
    parts = [f"{noise} on {', '.join(names)}" for noise, names in devices.items()]
    assumed = next((names for noise, names in devices.items() if not noise.is_measured), None)
    return f"Two compiles of one placement differ by {'; '.join(parts)}." + (
        f" hetero_lab.measure_noise({assumed[0]!r}) measures it." if assumed else ""
    )


def emulation(devices: Sequence[str]) -> str:
    """Return what marks a claim about a placement that uses these emulated devices."""
    return f", with {' and '.join(devices)} emulated" if devices else ""


def machine_state() -> dict[str, Any]:
    """Return what may disturb a measurement now; ``None`` for what the system does not tell."""
    frequency = None
    with contextlib.suppress(Exception):  # not available in containers and on some kernels
        frequency = float(psutil.cpu_freq().current) or None
    return {"frequency_mhz": frequency, "on_battery": _on_battery()}


class OtherWork:
    """The CPUs that processes other than this one and its children keep busy."""

    def __init__(self) -> None:
        self._last = (now(), _own_cpu_s(), psutil.cpu_times())

    def cpus(self) -> float:
        """Return how many CPUs they kept busy since the last call."""
        wall, own_s, machine = now(), _own_cpu_s(), psutil.cpu_times()
        before_wall, before_own_s, before_machine = self._last
        self._last = (wall, own_s, machine)
        busy = _busy(machine) - _busy(before_machine) - (own_s - before_own_s)
        return max(0.0, busy) / max(1e-3, wall - before_wall)


def _busy(times: Any) -> float:
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_cpu_s() -> float:
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        # The times include those of children that have ended, where the system tells them.
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def is_busy(cpus: float, n_cpus: int) -> bool:
    """Tell whether other processes keep so many CPUs busy that a latency proves little."""
    return cpus > max(min(_BUSY_OF_FEW * n_cpus, _MOST_OF_FEW), _BUSY_OF_MANY * n_cpus)


def busy_note(cpus: float) -> str:
    """Say how many CPUs other processes kept busy; empty if that is next to nothing."""
    return f"{BUSY} {cpus:.1f} CPUs busy during the run." if cpus > _WORTH_A_NOTE else ""


def wait_until_quiet(limit_s: float) -> None:
    """Return as soon as no other process keeps the CPUs busy, at the latest after ``limit_s``."""
    others, until = OtherWork(), now() + limit_s
    while now() < until:
        time.sleep(_LOOK_S)
        if not is_busy(others.cpus(), os.cpu_count() or 1):
            return


def _governor() -> str:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _on_battery() -> bool | None:
    with contextlib.suppress(Exception):
        battery = psutil.sensors_battery()
        return None if battery is None else not battery.power_plugged
    return None
