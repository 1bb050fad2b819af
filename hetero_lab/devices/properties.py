"""Check properties before they reach the runtime, which drops unknown ones silently."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.devices.core import (
    emulated_devices,
    properties_of_devices,
    scratch_core,
    storable,
)
from hetero_lab.devices.devices import FLOATS, RATIO, precisions, property_of, takes_ratio
from hetero_lab.errors import PropertyError, did_you_mean, last_line, names_at_hand, shorten

# The plugins obey these, but do not list them in SUPPORTED_PROPERTIES.
_UNLISTED = {"EXCLUSIVE_ASYNC_REQUESTS"}
# The Core obeys these in a compile; no device lists them.
OF_THE_CORE = frozenset({"CACHE_DIR", "CACHE_MODE"})
# Text that OpenVINO may read or write as a file, by its property's name or by itself.
_FILE = re.compile(r"^[^=]*(PATH|DIR|FILE|DUMP|CALLBACK|CONFIG|PLAN)|=.*[/\\]", re.S)
_TRUE_FALSE = {"YES", "NO", "TRUE", "FALSE", "ON", "OFF"}
PRECISION_HINT = "INFERENCE_PRECISION_HINT"


def merged_properties(*levels: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the properties of each device; a later level overrules an earlier one key by key."""
    together: dict[str, dict[str, Any]] = {}
    for level in levels:
        for device, properties in level.items():
            together[device] = {**together.get(device, {}), **properties}
    return together


def check_properties(
    device: str, properties: Mapping[str, Any], *, core: ov.Core
) -> dict[str, Any]:
    """Return the properties; PropertyError unless ``device`` knows each key and takes its value."""
    if not properties:
        return {}
    emulated = emulated_devices(core).get(device)
    real = emulated.base if emulated else device
    access = scratch_core().get_property(real, "SUPPORTED_PROPERTIES")
    names = sorted({k for k, mode in access.items() if mode != "RO"} | _UNLISTED)
    for key in properties:
        if key in OF_THE_CORE:
            raise PropertyError(
                f"{key} is a property of the Core, not of {device}. "
                "hetero_lab.sweep(model, placements, grid={'model_cache': [False, True]}) measures "
                "each compiled and loaded from a cache."
            )
        if key not in names and key != RATIO:
            why = "is read-only" if key in access else "is not a property"
            raise PropertyError(
                f"{shorten(str(key))} {why} of {device}.{did_you_mean(str(key), names)} "
                f"Properties that can be set: {names_at_hand(names, most=40)}."
            )
    for key, value in properties_of_devices({device: properties})[device].items():
        if key == RATIO:
            _check_ratio(device, real, value)
            continue
        _check_value(device, real, key, value, readable=access.get(key) == "RW")
    return dict(properties)


def _check_ratio(device: str, real: str, value: Any) -> None:
    """Raise unless a device can be asked for this part of a model; it takes any number itself."""
    if not takes_ratio(scratch_core(), real):
        raise PropertyError(
            f"{device} has no {RATIO}, so HETERO cannot give it a part of a model: only the GPU "
            "plugin has it. hetero_lab.fit_blocks(model, devices, limits) and Affinity.by_block "
            "label the ops instead."
        )
    if not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
        raise PropertyError(f"{RATIO} of {device} is {value!r}: it is above 0 and at most 1.")


def _check_value(device: str, real: str, key: str, value: Any, *, readable: bool) -> None:
    problem = f"{shorten(str(value))} is not a value for {key} of {device}"
    # The runtime takes a NumPy scalar for an opaque object and silently drops it.
    if value is None or isinstance(value, Mapping | list | tuple | set | bytes | np.generic):
        raise PropertyError(
            f"{problem}: it must be a number, a string or a bool of Python, or a property's enum."
        )
    # Write-only properties may have no current value.
    now: Any = False if key in _UNLISTED else property_of(scratch_core(), real, key)
    if (now is None or isinstance(now, str)) and _FILE.search(f"{key}={value}"):
        raise PropertyError(
            f"{key} of {device} can name a file. A placement may come from a file itself, so it "
            "names none; give such a property to OpenVINO where the model is compiled."
        )
    is_bool, expected = isinstance(value, bool), ""
    if isinstance(now, bool):
        expected = "" if is_bool or str(value).upper() in _TRUE_FALSE else "True or False"
    elif isinstance(now, int) and not isinstance(value, str):
        expected = "a whole number" if is_bool or not isinstance(value, int) else ""
    if expected:
        raise PropertyError(f"{problem}: expected {expected}, not {type(value).__name__}.")
    if refusal := _refusal(real, key, value, readable=readable):
        raise PropertyError(f"{problem}. The runtime refuses it: {refusal}.")
    if key == PRECISION_HINT:
        _check_precision(device, real, value)


def _refusal(real: str, key: str, value: Any, *, readable: bool) -> str:
    """Return why the runtime refuses a value; empty if it takes it."""
    # A new Core, so that values of one check do not reach the next. The message alone is returned,
    # since an error would keep the Core alive: see hetero_lab.devices.core.keep.
    trial = ov.Core()
    try:
        trial.set_property(real, {key: value})
        if readable:
            trial.get_property(real, key)  # some wrong values fail only here
    except Exception as error:
        return last_line(error)
    return ""


def _check_precision(device: str, real: str, value: Any) -> None:
    """Raise for a precision that the device lacks: the CPU plugin would silently use another."""
    precision = str(storable({PRECISION_HINT: value})[PRECISION_HINT])
    precision = FLOATS.get(precision.upper(), precision)
    has = precisions(real, core=scratch_core())
    # f32 is everywhere; other values, such as dynamic, leave the choice to the device.
    if precision in FLOATS.values() and precision not in has:
        raise PropertyError(
            f"{device} does not compute in {precision}, so {PRECISION_HINT} cannot ask for it. "
            f"Precisions of {device}: {names_at_hand(has)}."
        )
