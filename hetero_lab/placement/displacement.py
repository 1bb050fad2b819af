"""Ops that are not on the device of their choice: refused by it, or gone along with such ops.

The first device that is listed is the choice of every op. An op behind it is a cause where no
earlier device supports it, and a consequence where one does and a cause is in its subgraph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hetero_lab.errors import names_at_hand
from hetero_lab.placement.partition import Partition


@dataclass(frozen=True, slots=True)
class Displacement:
    """Why an op is not where it might be.

    Parameters
    ----------
    device
        The first device of those listed.
    is_cause
        Whether the device does not support the op; else it does, and the op went along.
    causes
        The ops that it went along with; empty for a cause.
    """

    device: str
    is_cause: bool
    causes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.is_cause:
            return f"{self.device} cannot run it"
        return f"{self.device} can run it; it goes along with {names_at_hand(self.causes, 3)}"


def displacements(
    partition: Partition, able: Mapping[str, Collection[str]]
) -> dict[str, Displacement]:
    """Return which ops are not on the device of their choice, and why; by name.

    Parameters
    ----------
    partition
        The subgraphs of a placement.
    able
        Device → the ops that it supports, the preferred device first. A subgraph on a device
        that is not listed tells nothing, nor does an op that no device supports.
    """
    order = list(able)
    known = frozenset().union(*able.values())
    found: dict[str, Displacement] = {}
    for subgraph in partition.subgraphs:
        if subgraph.device not in able:
            continue
        earlier = order[: order.index(subgraph.device)]
        ops = [op for op in subgraph.ops if op in known]
        causes = tuple(op for op in ops if not any(op in able[device] for device in earlier))
        if not earlier or not causes:
            continue
        refused = set(causes)
        for op in ops:
            if op in refused:
                found[op] = Displacement(earlier[0], is_cause=True)
            else:
                device = next(device for device in earlier if op in able[device])
                found[op] = Displacement(device, is_cause=False, causes=causes)
    return found
