"""What a plan must keep to: pins, memory limits, the devices to plan for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Integral

import numpy as np

from hetero_lab.errors import PlanError, did_you_mean, names_at_hand, shorten
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.planning.objective import Objective, PlacementCost
from hetero_lab.planning.pairwise import Pairwise
from hetero_lab.tables import bytes_text

_BYTES = re.compile(r"^\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NO_LIMIT = 1 << 60  # more than any device has


def memory_limits(devices: tuple[str, ...], limits: Mapping[str, int | str]) -> dict[int, int]:
    """Return bytes by number of the device, from bytes or texts such as ``"2GiB"``.

    Raises
    ------
    PlanError
        A device that is not planned for, or a limit that is no number of bytes.
    """
    if not isinstance(limits, Mapping):
        raise PlanError("memory_limit= maps devices to bytes, for instance {'GPU': '2GiB'}.")
    found: dict[int, int] = {}
    for device, limit in limits.items():
        if device not in devices:
            raise PlanError(
                f"memory_limit names {shorten(str(device))}, which is not planned for."
                f"{did_you_mean(str(device), devices)} Devices: {', '.join(devices)}."
            )
        found[devices.index(device)] = parse_bytes(limit)
    return found


def parse_bytes(limit: int | str) -> int:
    """Read a memory limit: a number of bytes, ``"512 MiB"`` or ``"2GB"``."""
    if isinstance(limit, str) and (match := _BYTES.match(limit)):
        number, prefix, binary = match.groups()
        power = (1024 if binary else 1000) ** _POWERS[prefix.lower()]
        return int(min(float(number) * power, _NO_LIMIT))
    if isinstance(limit, Integral) and not isinstance(limit, bool) and int(limit) >= 0:
        return min(int(limit), _NO_LIMIT)
    raise PlanError(
        f"memory_limit: {shorten(str(limit))} is not a number of bytes. Write for instance "
        "2147483648 or '2GiB'."
    )


def check_constraints(
    graph: OpGraph,
    devices: tuple[str, ...],
    limits: Mapping[str, int | str] | None,
    pins: Mapping[str, str] | None,
) -> None:
    """Check what can be checked of limits and pins before costs are known.

    Raises
    ------
    PlanError
        As :func:`memory_limits` and :func:`apply_pins`.
    """
    memory_limits(devices, limits or {})
    for pattern, device in _mapping_of_pins(pins or {}).items():
        _device_number(devices, pattern, device)
        _matching(graph, pattern)


def excess_bytes(
    objective: Objective, devices: np.ndarray, evaluation: PlacementCost, limits: Mapping[int, int]
) -> int:
    """Return by how much a placement exceeds memory limits, by number of the device, added up."""
    if not limits:
        return 0
    held = objective.memory_bytes(devices, evaluation)
    return sum(max(0, int(held[device]) - limit) for device, limit in limits.items())


def fits(
    objective: Objective, devices: np.ndarray, evaluation: PlacementCost, limits: Mapping[int, int]
) -> bool:
    """Return whether a placement keeps within memory limits, by number of the device."""
    return excess_bytes(objective, devices, evaluation, limits) == 0


def apply_pins(pairwise: Pairwise, pins: Mapping[str, str]) -> Pairwise:
    """Keep units to the devices that patterns (``re.search`` in an op's name) pin them to.

    A constant, parameter or result is accepted and changes nothing.

    Raises
    ------
    PlanError
        A pattern is no regular expression or matches nothing, a device is not planned for or
        does not support an op, or two pins contradict each other.
    """
    objective = pairwise.objective
    pinned: dict[int, tuple[int, str, str]] = {}  # unit → device, pattern, op
    mask = np.ones_like(pairwise.allowed)
    for pattern, device in _mapping_of_pins(pins).items():
        number = _device_number(objective.devices, pattern, device)
        matched = _matching(objective.graph, pattern)
        for op in matched:
            unit = int(objective.unit_of[objective.graph.index_of[op]])
            before = pinned.setdefault(unit, (number, pattern, op))
            if before[0] != number:
                first, second = shorten(before[2]), shorten(op)
                what = f"{first} to" if first == second else f"{first} (placed with {second}) to"
                raise PlanError(
                    f"The pins contradict each other: {shorten(before[1])} pins {what} "
                    f"{objective.devices[before[0]]}, {shorten(pattern)} pins {second} to "
                    f"{device}. Leave one out or make its pattern narrower."
                )
            if not pairwise.allowed[unit, number]:
                able = [
                    d for d, ok in zip(objective.devices, pairwise.allowed[unit], strict=True) if ok
                ]
                raise PlanError(
                    f"{shorten(pattern)} pins {shorten(op)} to {device}, which does not support "
                    f"it. Supported by: {', '.join(able)}."
                )
            mask[unit] = False
            mask[unit, number] = True
    return pairwise.restricted(mask)


def _mapping_of_pins(pins: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(pins, Mapping):
        raise PlanError("pin= maps patterns to devices, for instance {'^block3/': 'CPU'}.")
    return pins


def _device_number(devices: tuple[str, ...], pattern: str, device: str) -> int:
    if device not in devices:
        raise PlanError(
            f"{shorten(str(pattern))} pins to {shorten(str(device))}, which is not planned for."
            f"{did_you_mean(str(device), devices)} Devices: {', '.join(devices)}."
        )
    return devices.index(device)


def _matching(graph: OpGraph, pattern: str) -> list[str]:
    """Return the placeable ops that a pattern matches."""
    try:
        search = re.compile(pattern).search
    except (re.error, TypeError) as error:
        raise PlanError(f"{shorten(str(pattern))} is not a regular expression: {error}.") from error
    matched = [op.name for op in graph if search(op.name)]
    ops = [graph.ops[index].name for index in graph.placeable]
    if not matched:
        raise PlanError(
            f"The pin {shorten(pattern)} matches no op.{did_you_mean(pattern, ops)} "
            f"Ops: {names_at_hand(ops)}."
        )
    return [name for name in ops if search(name)]


def nothing_fits(pairwise: Pairwise, limits: Mapping[int, int]) -> PlanError:
    """Return the error that says why no placement keeps within the memory limits."""
    devices = pairwise.objective.devices
    weights = sum(term.n_bytes for term in pairwise.constants)
    listed = ", ".join(f"{devices[d]} {bytes_text(limit)}" for d, limit in limits.items())
    forced: list[str] = []
    for device, limit in limits.items():
        only = pairwise.allowed[:, device] & (pairwise.allowed.sum(axis=1) == 1)
        held = sum(t.n_bytes for t in pairwise.constants if any(only[unit] for unit in t.users))
        if held > limit:
            ops = [op for unit in np.flatnonzero(only) for op in pairwise.units[unit]]
            forced.append(
                f"ops that have to be on {devices[device]} ({names_at_hand(ops, 3)}) alone need "
                f"{bytes_text(held)} of weights"
            )
    free = [device for number, device in enumerate(devices) if number not in limits]
    out = (
        f"Raise the limit, or let more ops move to {' or '.join(free)}."
        if free
        else "Raise a limit, or leave one device without."
    )
    why = (
        "; ".join(forced) or f"the weights are {bytes_text(weights)}, boundary tensors come on top"
    )
    return PlanError(f"No placement keeps within memory_limit ({listed}): {why}. {out}")
