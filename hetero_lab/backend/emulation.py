"""Emulated devices: a real plugin under a second name.

OpenVINO's proxy lets a plugin be registered once more under an alias. That is a real second
device: HETERO really splits, compiles and runs over it, with precision and threads of its own.
It shares the cores with its base, so its timings say nothing about an accelerator.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import openvino as ov

from hetero_lab.backend.core import keep, shared_core
from hetero_lab.errors import ArgumentError, DeviceError, names_at_hand, shorten

_PLUGIN_OF = {
    "CPU": "openvino_intel_cpu_plugin",
    "GPU": "openvino_intel_gpu_plugin",
    "NPU": "openvino_intel_npu_plugin",
}
_RESERVED = {*_PLUGIN_OF, "AUTO", "MULTI", "HETERO", "BATCH", "PROXY", "TEMPLATE"}
_registries: weakref.WeakKeyDictionary[ov.Core, dict[str, EmulatedDevice]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class EmulatedDevice:
    """The specification of an emulated device; JSON-able, so that it can travel to a worker.

    ``contrast`` holds properties for the base device that make the difference between the two
    real (a lower precision here against f32 there, or more threads here against one there).
    """

    name: str
    base: str
    supported: frozenset[str] | None = None
    unsupported: frozenset[str] = frozenset()
    properties: Mapping[str, Any] = field(default_factory=dict)
    contrast: Mapping[str, Any] = field(default_factory=dict)

    def allows(self, op_type: str) -> bool:
        """Whether the emulated device claims this op type at all."""
        if self.supported is not None:
            return op_type in self.supported
        return op_type not in self.unsupported

    def to_json(self) -> dict[str, Any]:
        """Return plain data from which :meth:`from_json` makes the same specification."""
        return {
            "name": self.name,
            "base": self.base,
            "supported": None if self.supported is None else sorted(self.supported),
            "unsupported": sorted(self.unsupported),
            "properties": plain(self.properties),
            "contrast": plain(self.contrast),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EmulatedDevice:
        """Make the specification that :meth:`to_json` wrote."""
        supported = data["supported"]
        return cls(
            name=data["name"],
            base=data["base"],
            supported=None if supported is None else frozenset(supported),
            unsupported=frozenset(data["unsupported"]),
            properties=dict(data["properties"]),
            contrast=dict(data["contrast"]),
        )


def emulate(
    name: str,
    base: str = "CPU",
    *,
    supported: Iterable[str] | None = None,
    unsupported: Iterable[str] | None = None,
    properties: Mapping[str, Any] | None = None,
    faster_by: Literal["auto", "precision", "threads"] | None = None,
    core: ov.Core | None = None,
) -> EmulatedDevice:
    """Register an emulated device, or change one that is registered: the last call wins.

    Parameters
    ----------
    name
        The new device's name: upper-case letters, digits and ``_``, for instance ``"ACC"``.
    base
        The device whose plugin really runs it.
    supported, unsupported
        Op types that it claims, or does not claim; give at most one of the two. Types that no
        opset knows are accepted.
    properties
        The device's defaults, for instance ``{"INFERENCE_PRECISION_HINT": "bf16"}``. Those of
        a placement win over them.
    faster_by
        ``"precision"`` lets it run in the lowest floating-point precision that the base has,
        ``"threads"`` on all cores, ``"auto"`` whichever this machine can do. The returned
        specification's ``contrast`` are the properties to give to the base for comparison.

    Returns
    -------
    EmulatedDevice

    Raises
    ------
    DeviceError
        The name is taken or cannot be used, or the base is not here.
    ArgumentError
        Both ``supported`` and ``unsupported`` are given, or ``faster_by`` cannot be done here.
    PropertyError
        A property that the base does not know.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> acc.base, sorted(acc.unsupported)
    ('CPU', ['Softmax'])
    """
    core = core or shared_core()
    registry = _registries.setdefault(core, {})
    if not isinstance(base, str):
        raise DeviceError(
            f"base= is a device's name, for instance 'CPU', not {shorten(repr(base))}. "
            "Op types are given by name: unsupported={'Softmax'}."
        )
    if not isinstance(name, str) or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise DeviceError(
            f"An emulated device cannot be called {shorten(str(name))}: "
            "use upper-case letters, digits and _, for instance 'ACC'."
        )
    if name in _RESERVED or (name in core.available_devices and name not in registry):
        raise DeviceError(f"{name!r} is a device or plugin of OpenVINO itself; take another name.")
    taken = {f"{known}_{spec.base}": known for known, spec in registry.items()}
    if name in taken or f"{name}_{base}" in registry:
        raise DeviceError(
            f"{name!r} and {taken.get(name, f'{name}_{base}')!r} get in each other's way: "
            "OpenVINO knows an emulated device as its name, _ and its base too. Take another name."
        )
    if base not in _PLUGIN_OF or base not in core.available_devices:
        bases = [device for device in core.available_devices if device in _PLUGIN_OF]
        raise DeviceError(
            f"{base!r} cannot be the base of an emulated device. "
            f"Bases here: {names_at_hand(bases)}."
        )
    if name in registry and registry[name].base != base:
        raise DeviceError(
            f"{name!r} is already emulated on {registry[name].base}; OpenVINO cannot move a "
            "registered name. Take another name, or another core."
        )
    if supported is not None and unsupported is not None:
        raise ArgumentError("Give either supported= or unsupported=, not both.")
    faster, contrast = _difference(core, base, faster_by)
    spec = EmulatedDevice(
        name=name,
        base=base,
        supported=None if supported is None else _op_types(supported, "supported"),
        unsupported=_op_types(unsupported or (), "unsupported"),
        properties=_checked(base, faster, properties, core),
        contrast=contrast,
    )
    register(spec, core)
    return spec


def plugin_of(spec: EmulatedDevice) -> tuple[str, str]:
    """Return the plugin's library and the name that it is registered under behind the proxy."""
    return _PLUGIN_OF[spec.base], f"{spec.name}_{spec.base}"


def register(spec: EmulatedDevice, core: ov.Core | None = None) -> None:
    """Make a checked specification known to a core, for instance that of a worker process."""
    core = keep(core or shared_core())
    registry = _registries.setdefault(core, {})
    if spec.name not in registry:
        library, internal = plugin_of(spec)
        core.register_plugin(
            library,
            internal,
            {
                "PROXY_CONFIGURATION_ALIAS": spec.name,
                "PROXY_CONFIGURATION_PRIORITY": "0",
                "PROXY_CONFIGURATION_INTERNAL_NAME": internal,
            },
        )
    registry[spec.name] = spec


def emulated_devices(core: ov.Core | None = None) -> dict[str, EmulatedDevice]:
    """Return the emulated devices of a core by name."""
    return dict(_registries.get(core or shared_core(), {}))


def _op_types(types: Iterable[str], argument: str) -> frozenset[str]:
    if isinstance(types, str):
        raise ArgumentError(f"{argument}= takes a set of op types: {argument}={{{types!r}}}.")
    found = frozenset(types)
    if not all(isinstance(op_type, str) and op_type for op_type in found):
        raise ArgumentError(f"{argument}= takes names of op types, for instance {{'Softmax'}}.")
    return found


def _difference(
    core: ov.Core, base: str, faster_by: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    if faster_by is None:
        return {}, {}
    if faster_by not in ("auto", "precision", "threads"):
        raise ArgumentError(
            f"faster_by= is 'auto', 'precision' or 'threads', not {shorten(str(faster_by))}."
        )
    capabilities = core.get_property(base, "OPTIMIZATION_CAPABILITIES")
    low = [p for p in ("BF16", "FP16") if p in capabilities]
    if faster_by != "threads" and low:
        precision = {"BF16": "bf16", "FP16": "f16"}[low[0]]
        return {"INFERENCE_PRECISION_HINT": precision}, {"INFERENCE_PRECISION_HINT": "f32"}
    if faster_by == "precision":
        raise ArgumentError(
            f"{base} has no floating-point precision below f32 here "
            f"(capabilities: {names_at_hand(capabilities)}). Use faster_by='threads'."
        )
    # A split on CPU devices obeys thread numbers only with these two.
    free = {
        "EXCLUSIVE_ASYNC_REQUESTS": False,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    cores = os.cpu_count() or 1
    return {**free, "INFERENCE_NUM_THREADS": cores}, {**free, "INFERENCE_NUM_THREADS": 1}


def _checked(
    base: str, faster: Mapping[str, Any], properties: Mapping[str, Any] | None, core: ov.Core
) -> dict[str, Any]:
    # Imported late: validating properties needs the registry that lives here.
    from hetero_lab.backend.properties import check_properties

    given = check_properties(base, {} if properties is None else properties, core=core)
    return check_properties(base, plain({**faster, **given}), core=core)


def plain(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with the runtime's types and enums as the text that it reads."""
    return {key: _plain(value) for key, value in properties.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, ov.Type):
        return value.get_type_name()
    if isinstance(value, ov.properties.log.Level):
        return {"NO": "LOG_NONE", "ERR": "LOG_ERROR"}.get(value.name, f"LOG_{value.name}")
    return value if isinstance(value, bool | int | float | str) else getattr(value, "name", value)
