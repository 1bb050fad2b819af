"""Priorities: an ordered list of devices, as in ``HETERO:GPU,CPU``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import check_device, device_names, property_of
from hetero_lab.errors import DeviceError, names_at_hand, shorten

if TYPE_CHECKING:
    import openvino as ov


@dataclass(frozen=True)
class Priorities:
    """An ordered list of devices, ``HETERO:GPU,CPU``.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> str(hl.Priorities(("ACC", "CPU")))
    'HETERO:ACC,CPU'
    """

    devices: tuple[str, ...]

    def __str__(self) -> str:
        return "HETERO:" + ",".join(self.devices)

    @classmethod
    def parse(cls, text: str | Sequence[str], core: ov.Core | None = None) -> Priorities:
        """Read ``"HETERO:GPU,CPU"``, ``"GPU,CPU"`` or a list of devices.

        A bare ``"HETERO"`` takes the core's MULTI_DEVICE_PRIORITIES if they are set.

        Raises
        ------
        DeviceError
            No device, one twice, or one that is not here.
        """
        core = core or shared_core()
        names = device_list(text, core)
        for name in names:
            check_device(name, core)
        return cls(names)


def device_list(text: str | Sequence[str], core: ov.Core | None = None) -> tuple[str, ...]:
    """Read a list of devices as :meth:`Priorities.parse` does, here or not."""
    if isinstance(text, str):
        head, colon, tail = text.strip().partition(":")
        if head == "HETERO" and not colon:
            default = property_of(core or shared_core(), "HETERO", "MULTI_DEVICE_PRIORITIES") or ""
            tail = default if isinstance(default, str) else ",".join(default)
        elif head != "HETERO":
            tail = text
        names = [name.strip() for name in tail.split(",")] if tail.strip() else []
    elif isinstance(text, Iterable):
        names = [str(name) for name in text]
    else:
        raise DeviceError(
            f"{text!r} is not a list of devices. Write 'HETERO:GPU,CPU' or ['GPU', 'CPU']."
        )
    example = "Name the devices in order of priority, for instance 'HETERO:GPU,CPU'."
    if not names:
        raise DeviceError(f"{shorten(str(text))} names no device. {example}")
    if "" in names:
        raise DeviceError(f"{shorten(str(text))} has an empty place. {example}")
    # GPU is another name of GPU.0.
    numbered = [name if "." in name else f"{name}.0" for name in names]
    twice = sorted({n for n, full in zip(names, numbered, strict=True) if numbered.count(full) > 1})
    if twice:
        raise DeviceError(f"{shorten(str(text))} names {names_at_hand(twice)} twice. {example}")
    return tuple(names)


def order_of(devices: Sequence[str] | None, core: ov.Core) -> tuple[str, ...]:
    """Return devices, all that are here by default; the CPU is last: others fall back to it."""
    names = Priorities.parse(device_names(core) if devices is None else devices, core).devices
    return tuple(sorted(names, key=lambda name: name == "CPU"))


def priority_orders(devices: Sequence[str], *, core: ov.Core | None = None) -> list[Priorities]:
    """Return every order of the devices: ``HETERO:A,B``, ``HETERO:B,A``, …

    Raises
    ------
    DeviceError
        No device, one twice, or one that is not here.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC")
    >>> [str(order) for order in hl.priority_orders(["ACC", "CPU"])]
    ['HETERO:ACC,CPU', 'HETERO:CPU,ACC']
    """
    every = Priorities.parse(devices, core).devices
    return [Priorities(order) for order in itertools.permutations(every)]
