"""The shared Core, models bound to a Core, and devices that are emulated or come from packages.

Public functions bind their arguments once; below them nothing is prepared again, and no Core is
chosen.

An emulated device is a real plugin that OpenVINO's proxy registers again under an alias. That is a
real second device: HETERO splits, compiles and runs over it, with a precision and threads of its
own. It shares the cores with its base, so its timings do not predict those of an accelerator.

Another package names its devices as entry points. One that fails, or whose name another package
has, is left out with a warning that names its package.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import openvino as ov

from hetero_lab.errors import last_line, shorten, warn
from hetero_lab.model.read import PreparedModel, Source, output_names, prepare

DEVICES = "hetero_lab.devices"  # the group of entry points
PLUGIN_OF = {
    "CPU": "openvino_intel_cpu_plugin",
    "GPU": "openvino_intel_gpu_plugin",
    "NPU": "openvino_intel_npu_plugin",
}
_kept: dict[int, ov.Core] = {}
_shared: list[ov.Core] = []
_registries: weakref.WeakKeyDictionary[ov.Core, dict[str, EmulatedDevice]] = (
    weakref.WeakKeyDictionary()
)


def shared_core() -> ov.Core:
    """Return this process's Core; devices of other packages are registered when it is made."""
    if not _shared:
        _shared.append(ov.Core())  # first, because an extension may ask for the shared Core
        add_devices(_shared[0])
    return _shared[0]


def add_devices(core: ov.Core) -> None:
    """Let other packages register their devices on a Core."""
    package_of: dict[str, str] = {}
    for entry in sorted(entry_points(group=DEVICES), key=lambda e: (_package_of(e), e.name)):
        package = _package_of(entry)
        first = package_of.setdefault(entry.name, package)
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
    return str(ov.get_version())


@dataclass(frozen=True)
class BoundModel(PreparedModel):
    core: ov.Core

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(output_names(self.model))


def bind(model: Source, core: ov.Core | None = None) -> BoundModel:
    """Prepare a model and bind it to a Core, by default the shared one."""
    ready = prepare(model)
    return BoundModel(ready.model, ready.graph, ready.fingerprint, keep(core or shared_core()))


@dataclass(frozen=True)
class EmulatedDevice:
    """The specification of an emulated device; properties are plain values.

    ``contrast`` has properties for the base device that make the two really different: f32 there
    and a lower precision here, or one thread there and more here.
    """

    name: str
    base: str
    supported: frozenset[str] | None = None
    unsupported: frozenset[str] = frozenset()
    properties: Mapping[str, Any] = field(default_factory=dict[str, Any])
    contrast: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def allows(self, op_type: str) -> bool:
        """Return whether the emulated device claims this op type."""
        if self.supported is not None:
            return op_type in self.supported
        return op_type not in self.unsupported


def plugin_of(spec: EmulatedDevice) -> tuple[str, str]:
    """Return the plugin's library and the name that it is registered under behind the proxy."""
    return PLUGIN_OF[spec.base], f"{spec.name}_{spec.base}"


def plugin_call(spec: EmulatedDevice) -> tuple[str, str, dict[str, str]]:
    """Return the arguments with which a Core registers its plugin."""
    library, internal = plugin_of(spec)
    proxy = {"ALIAS": spec.name, "PRIORITY": "0", "INTERNAL_NAME": internal}
    return library, internal, {f"PROXY_CONFIGURATION_{key}": text for key, text in proxy.items()}


def register(spec: EmulatedDevice, core: ov.Core) -> None:
    """Register a checked specification on a core, for instance in a worker process."""
    registry = _registries.setdefault(keep(core), {})
    if spec.name not in registry:
        core.register_plugin(*plugin_call(spec))
    registry[spec.name] = spec


def emulated_devices(core: ov.Core) -> dict[str, EmulatedDevice]:
    return dict(_registries.get(core, {}))


def bases_of(devices: Iterable[str], core: ov.Core) -> dict[str, str]:
    specs = emulated_devices(core)
    return {device: specs[device].base for device in devices if device in specs}


def plugins_of(devices: Iterable[str], core: ov.Core) -> dict[str, tuple[str, str]]:
    """Return the :func:`plugin_of` of each emulated device among some."""
    specs = emulated_devices(core)
    return {device: plugin_of(specs[device]) for device in devices if device in specs}


def storable(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with the runtime's types and enums as text that it accepts."""
    return {key: _storable(value) for key, value in properties.items()}


def properties_of_devices(
    device_properties: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the properties of each device as it accepts them: see :func:`storable`.

    The GPU plugin takes a number of streams as text only.
    """
    as_text = {device: storable(values) for device, values in device_properties.items()}
    for device, values in as_text.items():
        streams = values.get("NUM_STREAMS")
        if device.startswith("GPU") and type(streams) is int:
            values["NUM_STREAMS"] = str(streams)
    return as_text


def _storable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return storable(cast("Mapping[str, Any]", value))
    if isinstance(value, ov.Type):
        return value.get_type_name()
    if isinstance(value, ov.properties.streams.Num):
        return value.to_integer()
    if isinstance(value, ov.properties.log.Level):
        return {"NO": "LOG_NONE", "ERR": "LOG_ERROR"}.get(value.name, f"LOG_{value.name}")
    return value if isinstance(value, bool | int | float | str) else getattr(value, "name", value)
