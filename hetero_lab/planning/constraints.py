"""A planning problem: costs by unit, and the pins and limits that a plan must keep to."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hetero_lab.clock import now
from hetero_lab.costs.objective import PlacementCost
from hetero_lab.errors import PlanError, did_you_mean, names_at_hand, shorten
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.memory_limits import (
    MemoryLimit,
    Pool,
    Pools,
    check_planned,
    excess_bytes,
    memory_pools,
    names_of,
    pools_text,
)
from hetero_lab.planning.pairwise import Pairwise
from hetero_lab.tables import bytes_text


@dataclass(frozen=True, eq=False)
class Placed:
    """A device for each unit and for each node, and the predicted cost of that."""

    choice: np.ndarray
    devices: np.ndarray
    cost: PlacementCost
    value_ns: int


@dataclass(frozen=True, eq=False)
class Problem:
    """The costs of units, the objective, memory limits, and when to stop (``clock.now()``).

    Parts of a search that Ctrl-C may end with what they have are in the block ``until``.
    """

    pairwise: Pairwise
    objective: str
    pools: Pools
    deadline: float
    until: UntilInterrupted

    @property
    def is_late(self) -> bool:
        """Whether the deadline is over, or Ctrl-C came."""
        return self.until.interrupted or now() > self.deadline

    def place(self, choice: np.ndarray) -> Placed:
        """Predict a choice."""
        devices = self.pairwise.devices(choice)
        cost = self.pairwise.objective.evaluate(devices)
        return Placed(choice, devices, cost, cost.value_ns(self.objective))

    def held_bytes(self, placed: Placed) -> np.ndarray:
        """Return the bytes of weights, states and boundary tensors, shape ``[devices, 3]``."""
        return self.pairwise.objective.memory_bytes(placed.devices, placed.cost)

    def excess_bytes(self, placed: Placed) -> dict[Pool, int]:
        """Return by how much a placement exceeds memory limits; empty if it keeps to them."""
        return excess_bytes(self.held_bytes(placed), self.pools) if self.pools else {}

    def fullest_bytes(self, placed: Placed) -> int:
        """Return the weights and states of the device that holds most."""
        return int(self.held_bytes(placed)[:, :2].sum(axis=1).max())


def check_constraints(
    graph: OpGraph,
    devices: tuple[str, ...],
    limits: MemoryLimit | None,
    pins: Mapping[str, str] | None,
    support: Mapping[str, Collection[str]],
) -> None:
    """Check limits and pins before costs are known; PlanError as where they are applied.

    ``support`` names the ops that each device runs.
    """
    memory_pools(devices, limits)
    for pattern, number, op in _pinned(graph, devices, pins or {}):
        if op not in support[devices[number]]:
            able = [device for device in devices if op in support[device]]
            raise _unsupported(pattern, op, devices[number], able)


def only(ops: Iterable[str]) -> str:
    """Return the pattern that pins these ops alone."""
    return rf"\A(?:{'|'.join(map(re.escape, ops))})\Z"


def apply_pins(pairwise: Pairwise, pins: Mapping[str, str]) -> Pairwise:
    """Keep units to the devices that patterns (``re.search`` in an op's name) pin them to.

    A constant, parameter or result is accepted and changes nothing. PlanError if a pattern is not
    a regular expression or matches nothing, a device is not planned for or does not support an op,
    or two pins contradict each other.
    """
    objective = pairwise.objective
    names = objective.devices
    pinned: dict[int, tuple[int, str, str]] = {}  # unit → device, pattern, op
    mask = np.ones_like(pairwise.allowed)
    for pattern, number, op in _pinned(objective.graph, names, pins):
        unit = int(objective.unit_of[objective.graph.index_of[op]])
        before = pinned.setdefault(unit, (number, pattern, op))
        if before[0] != number:
            first, second = shorten(before[2]), shorten(op)
            what = f"{first} to" if first == second else f"{first} (placed with {second}) to"
            raise PlanError(
                f"The pins contradict each other: {shorten(before[1])} pins {what} "
                f"{names[before[0]]}, {shorten(pattern)} pins {second} to {names[number]}. "
                "Leave one out or make its pattern narrower."
            )
        if not pairwise.allowed[unit, number]:
            able = [names[other] for other in np.flatnonzero(pairwise.allowed[unit])]
            raise _unsupported(pattern, op, names[number], able)
        mask[unit] = False
        mask[unit, number] = True
    return pairwise.restricted(mask)


def _unsupported(pattern: str, op: str, device: str, able: Iterable[str]) -> PlanError:
    return PlanError(
        f"{shorten(pattern)} pins {shorten(op)} to {device}, which does not support it. "
        f"Supported by: {', '.join(able)}."
    )


def _pinned(
    graph: OpGraph, devices: tuple[str, ...], pins: Mapping[str, str]
) -> Iterator[tuple[str, int, str]]:
    """Yield each pattern, the number of its device and each placeable op that it matches."""
    if not isinstance(pins, Mapping):
        raise PlanError("pin= maps patterns to devices, for instance {'^block3/': 'CPU'}.")
    ops = [graph.ops[index].name for index in graph.placeable]
    for pattern, device in pins.items():
        check_planned(f"{shorten(str(pattern))} pins to", device, devices)
        try:
            search = re.compile(pattern).search
        except (re.error, TypeError) as error:
            raise PlanError(
                f"{shorten(str(pattern))} is not a regular expression: {error}."
            ) from error
        if not any(search(op.name) for op in graph):
            raise PlanError(
                f"The pin {shorten(pattern)} matches no op.{did_you_mean(pattern, ops)} "
                f"Ops: {names_at_hand(ops)}."
            )
        yield from ((pattern, devices.index(device), op) for op in ops if search(op))


def nothing_fits(pairwise: Pairwise, pools: Pools) -> PlanError:
    """Return the error that says why no placement keeps within the memory limits."""
    devices = pairwise.objective.devices
    forced: list[str] = []
    for pool, limit in pools.items():
        members = list(pool.devices)
        elsewhere = np.asarray(np.delete(pairwise.allowed, members, axis=1).any(axis=1))
        bound = [~elsewhere[list(users)].all() for users in pairwise.held]
        held = int(pairwise.held_bytes[bound][:, members].sum(axis=0).min())
        if held > limit:
            ops = [op for unit in np.flatnonzero(~elsewhere) for op in pairwise.units[unit]]
            forced.append(
                f"ops that have to be on {names_of(devices, pool)} ({names_at_hand(ops, 3)}) alone "
                f"need at least {bytes_text(held)} of weights and states"
            )
    limited = {number for pool in pools for number in pool.devices}
    free = [device for number, device in enumerate(devices) if number not in limited]
    out = (
        f"Raise the limit, or let more ops move to {' or '.join(free)}."
        if free
        else "Raise a limit, or leave one device without."
    )
    whole = int(pairwise.held_bytes.sum(axis=0).min())
    why = "; ".join(forced) or (
        f"weights and states are at least {bytes_text(whole)}, boundary tensors come on top"
    )
    return PlanError(
        f"No placement keeps within memory_limit ({pools_text(devices, pools)}): {why}. {out}"
    )
