"""Which devices are here, which ops each of them supports, how much memory it has.

Virtual devices, AUTO, MULTI and BATCH, run a whole model on devices that they choose, and ignore
affinities. AUTO and MULTI cannot start an emulated device by its alias ("get_default_context is not
supported"), so they get the name of its plugin behind the proxy. They distinguish hardware by its
full name: MULTI over a device and its emulation runs on only one of them.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import re
import shutil
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov
import psutil

from hetero_lab.devices.core import (
    BoundModel,
    EmulatedDevice,
    bind,
    emulated_devices,
    plugin_of,
    shared_core,
)
from hetero_lab.devices.guard import first_query
from hetero_lab.errors import DeviceError, did_you_mean, last_line, names_at_hand, shorten, warn
from hetero_lab.model.opgraph import NOT_OPS
from hetero_lab.model.read import Source
from hetero_lab.processes import run_child
from hetero_lab.progress import Progress
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

VIRTUAL = ("AUTO", "MULTI", "BATCH")
_NUMBERED = re.compile(r"(?P<device>[^()]+)(\((?P<number>[1-9][0-9]*)\))?")
_PLUGINS_OF_THE_WHEEL = ("CPU", "GPU", "NPU")
_OVER_DEVICES = ("HETERO", *VIRTUAL)
RATIO = "QUERY_MODEL_RATIO"  # the part of a model that HETERO lets a device claim
FLOATS = {"BF16": "bf16", "FP16": "f16", "FP32": "f32"}
_NOT_INTEL = (
    "not an Intel GPU: the plugin runs its reference kernels on it, and only f32 is to be trusted"
)
_COLUMNS = ["device", "available", "full_name", "type", "capabilities", "emulated_on", "problem"]
_NO_DEVICE = "the plugin loads but finds no device: driver missing, or no permission to use it"
_SEE_WHY = "Run `hetero-lab doctor` to see why."
_MANY = 1000  # nodes; fewer are queried in a second or two
_SUPPORT_CACHE_SIZE = 256  # answers: one a model, device and set of properties
_support_cache: weakref.WeakKeyDictionary[ov.Core, dict[Any, dict[str, str]]] = (
    weakref.WeakKeyDictionary()
)
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_looked_at: set[tuple[str, str, str]] = set()  # fingerprint, emulated device, op type


def devices(*, core: ov.Core | None = None) -> pd.DataFrame:
    """List the devices here and, for each plugin that offers none, the reason.

    Returns
    -------
    pandas.DataFrame
        One row per device or deviceless plugin: ``device``, ``available``, ``full_name``,
        ``type``, ``capabilities``, ``emulated_on`` (empty for a real device), ``problem`` (why it
        is not available, or a warning about its use).

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC")
    >>> found = hl.devices().set_index("device")
    >>> found.loc["ACC", "emulated_on"]
    'CPU'
    """
    core = core or shared_core()
    emulated = emulated_devices(core)
    here = device_names(core)
    rows = [_device_row(core, name, emulated.get(name)) for name in here]
    kinds = {name.partition(".")[0] for name in here}
    for plugin in _PLUGINS_OF_THE_WHEEL:
        if plugin not in kinds:
            why = why_unavailable(plugin, core=core)
            rows.append({"device": plugin, "available": False, "problem": why})
    return frame_of(rows, _COLUMNS).fillna("")


def device_names(core: ov.Core) -> list[str]:
    """Return the names of all devices here, emulated ones included."""
    return list(dict.fromkeys([*core.available_devices, *emulated_devices(core)]))


def check_device(name: str, core: ov.Core) -> str:
    """Return ``name`` if it is a device here, else raise DeviceError with those that are."""
    here = device_names(core)
    if isinstance(name, str):
        numbered = [device for device in here if device.startswith(f"{name}.")]
        if name in here or numbered:
            return name
        # One device of a kind is listed without its number.
        kind, _, number = name.partition(".")
        if number == "0" and kind in here and kind not in emulated_devices(core):
            return name
    raise DeviceError(
        f"{shorten(str(name))} is not a device here.{_hint(str(name), here)} "
        f"Devices: {', '.join(here)}. Register an emulated one with hetero_lab.emulate(), "
        "or --emulate on the command line."
    )


def _hint(name: str, here: list[str]) -> str:
    kind, colon, rest = name.partition(":")
    near = difflib.get_close_matches(kind.upper(), _OVER_DEVICES, n=1)
    if colon and near and kind not in _OVER_DEVICES:
        return f" Did you mean {shorten(f'{near[0]}:{rest}')}?"
    first, *words = re.findall(r"[A-Z]+|[0-9]+", name.upper()) or [""]
    if first in _PLUGINS_OF_THE_WHEEL and first not in {k.partition(".")[0] for k in here}:
        return f" {_SEE_WHY}"
    if name.startswith("HETERO:"):
        return " This takes a list of devices, for instance ['GPU', 'CPU']."
    # With blanks, another separator, a number or a precision in its name.
    listed = {device.upper(): device for device in here}
    parts = [listed[word] for word in (first, *words) if word in listed]
    meant = listed.get(".".join((first, *words[:1]))) or ",".join(parts)
    if first in _OVER_DEVICES:
        meant = f"{first}:{meant}" if words else first
    return did_you_mean(name, here) if meant in ("", name) else f" Did you mean {shorten(meant)}?"


def why_unavailable(plugin: str, *, core: ov.Core) -> str:
    """Explain in one line why a plugin of the wheel offers no device."""
    try:
        if core.get_property(plugin, "AVAILABLE_DEVICES"):
            return ""
    except Exception as error:
        return f"{last_line(error)}. {_SEE_WHY}"
    try:
        core.get_property(plugin, "FULL_DEVICE_NAME")
    except Exception as error:
        return f"{_NO_DEVICE} ({last_line(error)}). {_SEE_WHY}"
    return f"{_NO_DEVICE}. {_SEE_WHY}"


def support(model: Source, devices: Sequence[str], *, core: ov.Core | None = None) -> pd.DataFrame:
    """Ask each device which ops it supports.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    devices
        Names of devices, emulated ones too.

    Returns
    -------
    pandas.DataFrame
        Ops in topological order, without Parameters, Constants and Results: ``op``,
        ``op_type`` and one bool column per device.

    Raises
    ------
    DeviceError
        A device that is not here.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> found = hl.support(model, ["ACC", "CPU"])
    >>> found[~found["ACC"]]
                        op  op_type    ACC   CPU
    91  head_digit/softmax  Softmax  False  True
    """
    if isinstance(devices, str):
        devices = [devices]
    if not isinstance(devices, Iterable) or not (devices := list(devices)):
        raise DeviceError(f"{devices!r} names no device. Give a list, for instance ['GPU', 'CPU'].")
    bound = bind(model, core)
    ops = [op for op in bound.graph if op.type not in NOT_OPS]
    columns: dict[str, list[Any]] = {
        "op": [op.name for op in ops],
        "op_type": [op.type for op in ops],
    }
    for device in devices:
        supported = supported_ops(bound, device)
        columns[device] = [op.name in supported for op in ops]
    return frame_of(columns)


def supported_ops(bound: BoundModel, device: str) -> frozenset[str]:
    """Return the names of all nodes that ``device`` supports, cached per model and device."""
    check_device(device, bound.core)
    spec = emulated_devices(bound.core).get(device)
    able = frozenset(device_of_ops(bound, device))
    if spec is None:
        return able
    _warn_of_misspelt_types(bound, spec)
    claimed = {op.name for op in bound.graph if op.type in NOT_OPS or spec.allows(op.type)}
    return able & claimed


def device_of_ops(
    bound: BoundModel, device: str, properties: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the device of each node that one claims; for HETERO, of those it distributes over."""
    cache = _support_cache.setdefault(bound.core, {})
    key = (bound.fingerprint, device, repr(properties))
    if key not in cache:
        try:
            with Progress(f"ask {device} about the ops", show=len(bound.graph.ops) > _MANY):
                answer = first_query(bound, device, properties or {})
                if answer is None:
                    answer = bound.core.query_model(bound.model, device, dict(properties or {}))
        except DeviceError:  # it crashes
            raise
        except Exception as error:
            raise DeviceError(
                f"{device} cannot report which ops of this model it supports: {last_line(error)}."
            ) from error
        if len(cache) >= _SUPPORT_CACHE_SIZE:
            cache.pop(next(iter(cache)))
        cache[key] = dict(answer)
    return cache[key]


def _warn_of_misspelt_types(bound: BoundModel, spec: EmulatedDevice) -> None:
    """Warn once of op types of an emulated device that look misspelt, or that no opset knows."""
    here = {op.type for op in bound.graph}
    types = spec.unsupported | (spec.supported or frozenset())
    for op_type in sorted(types - here):
        key = (bound.fingerprint, spec.name, op_type)
        if key in _looked_at:
            continue
        _looked_at.add(key)
        same_letters = op_type.lower() in {kind.lower() for kind in here}
        meant = did_you_mean(op_type, sorted(here - types))
        is_known = op_type.lower() in _types_of_opsets()
        if not is_known or (meant and same_letters):
            warn(
                f"The emulated {spec.name} names the op type {shorten(op_type)}, which no op of "
                f"this model has.{meant or ' OpenVINO knows no such type either.'}"
            )


@functools.cache
def _types_of_opsets() -> frozenset[str]:
    """Return the op types that OpenVINO's Python opsets know, in lower case."""
    types: set[str] = set()
    for number in range(1, 40):
        try:
            opset = importlib.import_module(f"openvino.opset{number}")
        except ImportError:
            continue
        types.update(name.replace("_", "").lower() for name in dir(opset))
    return frozenset(types)


def property_of(core: ov.Core, device: str, key: str) -> Any:
    """Return a property of a device, or ``None`` if it cannot be read."""
    try:
        return core.get_property(device, key)
    except Exception:
        return None


def full_name(core: ov.Core, device: str) -> str:
    """Return the full name of a device; empty if its plugin does not report one."""
    return str(property_of(core, device, "FULL_DEVICE_NAME") or "")


def _type_of(core: ov.Core, device: str) -> str:
    return str(property_of(core, device, "DEVICE_TYPE") or "").rpartition(".")[2].lower()


def _device_row(core: ov.Core, name: str, spec: EmulatedDevice | None) -> dict[str, Any]:
    title = full_name(core, name)
    return {
        "device": name,
        "available": True,
        "full_name": title,
        "type": _type_of(core, name),
        "capabilities": ", ".join(property_of(core, name, "OPTIMIZATION_CAPABILITIES") or ()),
        "emulated_on": spec.base if spec else "",
        "problem": _NOT_INTEL if is_foreign_gpu(spec.base if spec else name, title) else "",
    }


def is_foreign_gpu(device: str, full_name: str) -> bool:
    """Return whether the GPU plugin runs a device on a card that is not Intel's."""
    return device.partition(".")[0] == "GPU" and "intel" not in full_name.lower()


def takes_ratio(core: ov.Core, device: str) -> bool:
    """Return whether a device can be asked for a part of a model, as HETERO does by a ratio."""
    return RATIO in (property_of(core, device, "INTERNAL_SUPPORTED_PROPERTIES") or ())


def has_own_memory(device: str, core: ov.Core) -> bool:
    """Return whether tensors are copied to a device, which graphics cards report as discrete."""
    return _type_of(core, device) == "discrete"


def precisions(device: str, *, core: ov.Core) -> list[str]:
    """Return the floating-point precisions among a device's capabilities, f32 included."""
    check_device(device, core)
    capabilities: Iterable[str] = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
    floats = [FLOATS[c] for c in capabilities if c in FLOATS]
    return sorted({"f32", *floats})


def unsupported_message(devices: Sequence[str], ops: Sequence[tuple[str, str]]) -> str:
    """Return a message that names ops, given as (name, type), that no device supports."""
    names = names_at_hand([f"{name} ({op_type})" for name, op_type in ops])
    if len(devices) == 1:
        fact = f"{devices[0]} does not support {len(ops)} of the ops placed on it: {names}"
    else:
        fact = f"None of {', '.join(devices)} supports {len(ops)} of the ops: {names}"
    return (
        f"{fact}. Give them to another device: with affinity.fix(ops={{…}}), with --fix, or by "
        f"naming one behind it, HETERO:{','.join(devices)},…; "
        "hetero_lab.support(model, devices) shows the ops that each device runs."
    )


@dataclass(frozen=True)
class VirtualDevice:
    """``AUTO:GPU,CPU``, ``MULTI:GPU,CPU`` or ``BATCH:GPU(8)``.

    ``numbers`` holds for each device the batch size, or the most requests that MULTI keeps in
    flight on it (``MULTI:GPU(3),CPU(1)``); ``None`` where OpenVINO chooses.
    """

    kind: str
    devices: tuple[str, ...]
    numbers: tuple[int | None, ...]

    def __str__(self) -> str:
        return self._with_numbers(self.devices)

    def _with_numbers(self, devices: Sequence[str]) -> str:
        numbered = [
            device if number is None else f"{device}({number})"
            for device, number in zip(devices, self.numbers, strict=True)
        ]
        return f"{self.kind}:{','.join(numbered)}"

    def check(self, bound: BoundModel) -> None:
        """Raise DeviceError if a device is named twice, or would run ops that it does not support.

        OpenVINO itself skips a real device that lacks an op, but no emulated one.
        """
        twice = sorted({d for d in self.devices if self.devices.count(d) > 1})
        if twice:
            raise DeviceError(f"{self} names {names_at_hand(twice)} twice.")
        for device in self.devices:
            if device not in emulated_devices(bound.core):
                continue
            able = supported_ops(bound, device)
            lacks = [op.name for op in bound.graph if op.name not in able]
            if lacks:
                raise DeviceError(
                    f"{device} is emulated and does not claim {names_at_hand(lacks)}, but "
                    f"{self} would still run them there. Leave {device} out of {self.kind}."
                )

    def compile_call(
        self, by_device: Mapping[str, Mapping[str, Any]], core: ov.Core
    ) -> tuple[str, dict[str, Any]]:
        """Return the device's name as OpenVINO takes it, and the properties of the compile."""
        specs = emulated_devices(core)
        names = {d: plugin_of(specs[d])[1] if d in specs else d for d in self.devices}
        properties = dict(by_device.get(self.kind, {}))
        target = self._with_numbers([names[d] for d in self.devices])
        if self.kind == "BATCH":
            return target, {**by_device.get(self.devices[0], {}), **properties}
        if inner := {names[d]: dict(by_device[d]) for d in self.devices if by_device.get(d)}:
            properties["DEVICE_PROPERTIES"] = inner
        return target, properties


def virtual_device(name: str, core: ov.Core) -> VirtualDevice | None:
    """Read a name as :func:`parse_virtual` does; a bare ``AUTO`` means all devices."""
    if name in ("AUTO", "MULTI"):
        emulated = emulated_devices(core)
        name = f"{name}:{','.join(d for d in device_names(core) if d not in emulated)}"
    return parse_virtual(name)


def parse_virtual(name: str) -> VirtualDevice | None:
    """Read a virtual device; ``None`` for other devices, DeviceError for a broken one."""
    kind, _, rest = name.partition(":")
    if kind not in VIRTUAL:
        return None
    parts = [part.strip() for part in rest.split(",") if part.strip()]
    if not parts and kind != "BATCH":
        raise DeviceError(f"{shorten(name)} names no device, as in '{kind}:GPU,CPU'.")
    matches = [_NUMBERED.fullmatch(part) for part in parts]
    if kind == "BATCH" and (len(parts) != 1 or None in matches):
        raise DeviceError(
            f"{shorten(name)} is not a device of BATCH. It takes one device, perhaps with a batch "
            "size: 'BATCH:GPU' or 'BATCH:GPU(8)'."
        )
    pairs = [(match["device"].strip(), match["number"]) for match in matches if match]
    if len(pairs) < len(parts) or (kind == "AUTO" and any(number for _, number in pairs)):
        raise DeviceError(
            f"{shorten(name)} is not a device of {kind}. Only MULTI takes a number of requests "
            "for each device: 'MULTI:GPU(3),CPU(1)'."
        )
    numbers = tuple(int(number) if number else None for _, number in pairs)
    return VirtualDevice(kind, tuple(device for device, _ in pairs), numbers)


def named_by_plugin(core: ov.Core) -> dict[str, str]:
    """Return the emulated device behind each name that OpenVINO may give to its plugin."""
    specs = emulated_devices(core)
    behind = {plugin_of(spec)[1]: name for name, spec in specs.items()}
    return behind | {f"{name}.0": name for name in specs}


def total_bytes(core: ov.Core, device: str) -> int | None:
    """Return the memory of a GPU; ``None`` for other devices."""
    return property_of(core, device, "GPU_DEVICE_TOTAL_MEM_SIZE")


def free_bytes(core: ov.Core, device: str) -> int:
    """Return the memory that is free: of the machine, or of a graphics card of its own.

    A plugin knows only what this process has allocated on a card. NVIDIA's driver also tells what
    other processes hold.
    """
    machine = psutil.virtual_memory().available
    total = total_bytes(core, device)
    if total is None or not has_own_memory(device, core):
        return min(machine, total or machine)
    usage = property_of(core, device, "GPU_MEMORY_STATISTICS") or {}
    free = max(0, total - sum(n for kind, n in usage.items() if kind != "usm_host"))
    return min(free, _free_by_driver(property_of(core, device, "DEVICE_PCI_INFO")) or free)


def _free_by_driver(pci: Any) -> int | None:
    """Return the free memory of NVIDIA's card at a place of the bus; ``None`` for other cards."""
    place = re.findall(r"(?:bus|device): *(\w+)", str(pci))  # "bus: 0 device: 0x6 function: 0"
    command = ["nvidia-smi", "--query-gpu=pci.bus_id,memory.free", "--format=csv,noheader,nounits"]
    if len(place) < 2 or shutil.which(command[0]) is None:
        return None
    for line in run_child(command, timeout_s=10).stdout.splitlines():
        match = re.fullmatch(r"\w+:(\w+):(\w+)\.\w+, (\d+)", line)  # 00000000:00:06.0, 143156
        if match and [int(n, 16) for n in match.groups()[:2]] == [int(n, 16) for n in place]:
            return int(match[3]) << 20
    return None


def reset_peak() -> bool:
    """Reset the peak; return ``False`` if the system cannot, so that it counts from the start."""
    try:
        _CLEAR.write_bytes(b"5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    if (peak := status_bytes("VmHWM:")) is not None:
        return peak
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def status_bytes(key: str) -> int | None:
    """Return a size that Linux reports for this process; ``None`` elsewhere."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text("ascii", "replace").splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return None
