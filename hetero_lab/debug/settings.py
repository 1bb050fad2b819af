"""The fewest settings of a placement that make a symptom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_lab.debug.minimal_sets import minimal_set
from hetero_lab.debug.placed_runs import exact_properties
from hetero_lab.devices.core import scratch_core
from hetero_lab.devices.devices import property_of
from hetero_lab.devices.emulation import bases_of
from hetero_lab.devices.properties import merged_properties
from hetero_lab.placement.placement import BoundPlacement, Placement


@dataclass(frozen=True)
class Setting:
    """A property of a device; ``exact`` is the value without the symptom, None if it is not set.

    A value that the placement does not set is the device's default.
    """

    device: str
    key: str
    value: str
    exact: Any = None

    def __str__(self) -> str:
        other = "fine when unset" if self.exact is None else f"{self.exact} is fine"
        return f"{self.device}.{self.key}={self.value} ({other})"


def settings_of(bound: BoundPlacement, *, defaults: bool = True) -> list[Setting]:
    """Return a placement's settings that can be left out, and ``defaults`` that are not exact."""
    settings: list[Setting] = []
    for device in bound.devices:
        real = bases_of([device], bound.core).get(device, device)
        properties, exact = bound.properties[device], exact_properties(device, bound.core)
        of_placement = bound.placement.device_properties.get(device, {})
        for key in dict.fromkeys([*properties, *exact]):
            value = properties[key] if key in properties else property_of(scratch_core(), real, key)
            same = key in exact and _text(value) == _text(exact[key])
            if not same and (key in of_placement or (defaults and key in exact)):
                settings.append(Setting(device, key, _text(value), exact.get(key)))
    return settings


def without(placement: Placement, settings: Iterable[Setting]) -> Placement:
    """Return a placement without some settings."""
    properties = merged_properties(placement.device_properties)
    for setting in settings:
        of_device = properties.setdefault(setting.device, {})
        if setting.exact is None:
            of_device.pop(setting.key, None)
        else:
            of_device[setting.key] = setting.exact
    return replace(placement, device_properties=properties)


def smallest_settings(
    placement: Placement, settings: Sequence[Setting], shows: Callable[[Placement], bool]
) -> tuple[Setting, ...]:
    """Return the fewest settings that make a symptom; empty if it shows without any of them."""

    def shows_with(some: Sequence[Setting]) -> bool:
        return shows(without(placement, [each for each in settings if each not in some]))

    return () if not settings or shows_with(()) else tuple(minimal_set(settings, shows_with))


def _text(value: Any) -> str:
    text = getattr(value, "get_type_name", lambda: str(value))()
    return {"True": "1", "False": "0", "YES": "1", "NO": "0", "float32": "f32"}.get(text, text)
