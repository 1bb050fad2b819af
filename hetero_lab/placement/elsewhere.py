"""Placements over devices that are not here, but that a cost model knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.devices import device_names
from hetero_lab.errors import DeviceError
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity, first_able
from hetero_lab.placement.placement import Placement, PlacementLike
from hetero_lab.placement.priorities import Priorities

_HETERO = "HETERO:"


class Knowledge(Protocol):
    """What a cost model knows of devices."""

    @property
    def devices(self) -> tuple[str, ...]: ...
    def supports(self, device: str) -> frozenset[str]: ...


def absent_devices(bound: BoundModel, devices: Sequence[str], known: Knowledge) -> list[str]:
    """Return the devices that are not here and that a cost model knows."""
    here = device_names(bound.core)
    listed = {*here, *(device.partition(".")[0] for device in here)}
    return [device for device in devices if device in known.devices and device not in listed]


def affinity_elsewhere(
    bound: BoundModel, placement: PlacementLike, known: Knowledge
) -> Affinity | None:
    """Return the affinity of a placement if it needs a device that only a cost model knows.

    Raises
    ------
    AffinityError
        It is of another model.
    DeviceError
        A device does not support an op there.
    """
    if isinstance(placement, str | Priorities):
        names = str(placement).removeprefix(_HETERO).split(",")
        if set(names) <= set(known.devices) and absent_devices(bound, names, known):
            return greedy_elsewhere(bound.graph, names, known)
        return None
    affinity = placement.affinity if isinstance(placement, Placement) else placement
    if not isinstance(affinity, Affinity) or not absent_devices(bound, affinity.devices, known):
        return None
    affinity.check_model(bound.graph)
    for device in affinity.devices:
        if device in known.devices:
            able = known.supports(device)
            refused = [n for n in affinity.ops if affinity[n] == device and n not in able]
            if refused:
                raise DeviceError(
                    f"By its costs, {device} does not support {len(refused)} of the ops placed on "
                    f"it, for instance {refused[0]}."
                )
    return affinity


def greedy_elsewhere(graph: OpGraph, order: Sequence[str], known: Knowledge) -> Affinity:
    """Return each op on the first device of an order that supports it by a cost model."""
    constant = {graph.ops[index].name for index in graph.constant_side}
    return first_able(graph, {device: known.supports(device) | constant for device in order})
