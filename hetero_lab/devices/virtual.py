"""Virtual devices: AUTO, MULTI and BATCH, which run a whole model on devices that they choose.

They ignore affinities. AUTO and MULTI cannot start an emulated device by its alias ("get_default_
context is not supported"), so they get the name of its plugin behind the proxy. They distinguish
hardware by its full name: MULTI over a device and its emulation runs on only one of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero_lab.devices.bound import BoundModel
from hetero_lab.devices.devices import device_names, supported_ops
from hetero_lab.devices.emulation import emulated_devices, plugin_of
from hetero_lab.errors import DeviceError, names_at_hand, shorten

if TYPE_CHECKING:
    import openvino as ov

KINDS = ("AUTO", "MULTI", "BATCH")
_NUMBERED = re.compile(r"(?P<device>[^()]+)(\((?P<number>[1-9][0-9]*)\))?")


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
        return self._named(self.devices)

    def _named(self, devices: Sequence[str]) -> str:
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
        own = dict(by_device.get(self.kind, {}))
        target = self._named([names[d] for d in self.devices])
        if self.kind == "BATCH":
            return target, {**by_device.get(self.devices[0], {}), **own}
        inner = {names[d]: dict(by_device[d]) for d in self.devices if by_device.get(d)}
        return target, {**own, **({"DEVICE_PROPERTIES": inner} if inner else {})}


def virtual_device(name: str, core: ov.Core) -> VirtualDevice | None:
    """Read a name as :func:`parse_virtual` does; a bare ``AUTO`` means all devices."""
    if name in ("AUTO", "MULTI"):
        emulated = emulated_devices(core)
        name = f"{name}:{','.join(d for d in device_names(core) if d not in emulated)}"
    return parse_virtual(name)


def parse_virtual(name: str) -> VirtualDevice | None:
    """Read a virtual device; ``None`` for other devices, DeviceError for a broken one."""
    kind, _, rest = name.partition(":")
    if kind not in KINDS:
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
    found = [(match["device"].strip(), match["number"]) for match in matches if match]
    if len(found) < len(parts) or (kind == "AUTO" and any(number for _, number in found)):
        raise DeviceError(
            f"{shorten(name)} is not a device of {kind}. Only MULTI takes a number of requests "
            "for each device: 'MULTI:GPU(3),CPU(1)'."
        )
    numbers = tuple(int(number) if number else None for _, number in found)
    return VirtualDevice(kind, tuple(device for device, _ in found), numbers)


def named_by_plugin(core: ov.Core) -> dict[str, str]:
    """Return the emulated device behind each name that OpenVINO may give to its plugin."""
    specs = emulated_devices(core)
    found = {plugin_of(spec)[1]: name for name, spec in specs.items()}
    return {**found, **{f"{name}.0": name for name in specs}}
