"""Register an emulated device, or change one: its name, its op types and its properties."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import openvino as ov

from hetero_lab.devices.core import (
    PLUGIN_OF,
    EmulatedDevice,
    emulated_devices,
    register,
    shared_core,
    storable,
)
from hetero_lab.devices.devices import precisions
from hetero_lab.devices.properties import PRECISION_HINT, check_properties
from hetero_lab.errors import ArgumentError, DeviceError, names_at_hand, shorten

_RESERVED = {*PLUGIN_OF, "AUTO", "MULTI", "HETERO", "BATCH", "PROXY", "TEMPLATE"}


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
        The device whose plugin runs it.
    supported, unsupported
        Op types that it claims, or does not claim; give at most one of the two. Types that no
        opset knows are accepted.
    properties
        The device's defaults, for instance ``{"INFERENCE_PRECISION_HINT": "bf16"}``. Those of
        a placement win over them.
    faster_by
        ``"precision"`` lets it run in the lowest floating-point precision that the base has,
        ``"threads"`` on all cores, ``"auto"`` in whichever way this machine supports. The returned
        specification's ``contrast`` holds the properties to give to the base for comparison.

    Returns
    -------
    EmulatedDevice

    Raises
    ------
    DeviceError
        The name is taken or cannot be used, or the base is not here.
    ArgumentError
        Both ``supported`` and ``unsupported`` are given, or ``faster_by`` is impossible here.
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
    registry = emulated_devices(core)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise DeviceError(
            f"An emulated device cannot be called {shorten(str(name))}: "
            "use upper-case letters, digits and _, for instance 'ACC'."
        )
    if name in _RESERVED or (name in core.available_devices and name not in registry):
        raise DeviceError(f"{name!r} is a device or plugin of OpenVINO itself; take another name.")
    aliases = {f"{device}_{spec.base}": device for device, spec in registry.items()}
    if name in aliases or f"{name}_{base}" in registry:
        raise DeviceError(
            f"{name!r} and {aliases.get(name, f'{name}_{base}')!r} conflict: OpenVINO also "
            "registers an emulated device as its name, _ and its base. Take another name."
        )
    if base not in PLUGIN_OF or base not in core.available_devices:
        bases = [device for device in core.available_devices if device in PLUGIN_OF]
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
    claimed = None if supported is None else frozenset(supported)
    denied = frozenset(unsupported or ())
    if "" in (claimed or denied):
        raise ArgumentError("An op type has a name, for instance 'Softmax', not ''.")
    faster, contrast = _difference(core, base, faster_by)
    defaults = check_properties(base, properties or {}, core=core)
    spec = EmulatedDevice(
        name=name,
        base=base,
        supported=claimed,
        unsupported=denied,
        properties=check_properties(base, storable({**faster, **defaults}), core=core),
        contrast=contrast,
    )
    register(spec, core)
    return spec


def _difference(
    core: ov.Core, base: str, faster_by: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    if faster_by is None:
        return {}, {}
    low = [precision for precision in precisions(base, core=core) if precision != "f32"]
    if faster_by != "threads" and low:
        return {PRECISION_HINT: low[0]}, {PRECISION_HINT: "f32"}
    if faster_by == "precision":
        raise ArgumentError(
            f"{base} has no floating-point precision below f32 here. Use faster_by='threads'."
        )
    # A split on CPU devices obeys thread numbers only with the first two.
    free = {
        "EXCLUSIVE_ASYNC_REQUESTS": False,
        "ENABLE_CPU_PINNING": False,
        PRECISION_HINT: "f32",
    }
    cores = os.cpu_count() or 1
    return {**free, "INFERENCE_NUM_THREADS": cores}, {**free, "INFERENCE_NUM_THREADS": 1}
