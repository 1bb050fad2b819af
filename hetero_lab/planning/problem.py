"""A planning problem: the costs of units and between them, pins and limits, and the objective.

A choice gives each unit the number of a device. The pairwise part of its cost in nanoseconds is the
sum of the units' times, of each tensor once per receiving device other than its maker's, and of
lost fusion between units on different devices. Tensors within a unit cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hetero_lab.clock import now
from hetero_lab.costs.objective import LATENCY, Objective, PlacementCost, whole_ns
from hetero_lab.errors import PlanError, did_you_mean, names_at_hand, shorten
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.opgraph import CONSTANT, RESULT, OpGraph
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
from hetero_lab.tables import bytes_text


@dataclass(frozen=True, eq=False)
class Term:
    """The cost of units ``users`` that are not on the device of another unit, ``source``.

    ``source`` makes a tensor that they read, chooses the layout of several, or loses the fusion
    with one user. For each (source device, target device), ``leave_ns`` is the source device's work
    and ``enter_ns`` the target's; both are 0 within a device.
    """

    source: int
    users: tuple[int, ...]
    leave_ns: np.ndarray
    enter_ns: np.ndarray
    n_bytes: int = 0

    def ns(self, device_of: Callable[[int], int]) -> int:
        """Return the cost of the term, given the device of each unit."""
        source = device_of(self.source)
        targets = {device_of(user) for user in self.users} - {source}
        return sum(int(self.leave_ns[source, t] + self.enter_ns[source, t]) for t in targets)


@dataclass(frozen=True, eq=False)
class Pairwise:
    """Units, their cost on each device, where they are ``allowed``, and the terms between them."""

    objective: Objective
    units: tuple[tuple[str, ...], ...]
    time_ns: np.ndarray
    allowed: np.ndarray
    tensors: tuple[Term, ...]  # and layouts
    pairs: tuple[Term, ...]  # that lose fusion

    @classmethod
    def build(cls, objective: Objective) -> Pairwise:
        """Collect the terms between the units of a cost model."""
        units, shape = objective.units, (-1, len(objective.devices))
        time_us = np.array([unit.time_us for unit in units], dtype=np.float64).reshape(shape)
        allowed = ~np.isnan(time_us)  # None is NaN here
        return cls(
            objective=objective,
            units=tuple(unit.ops for unit in units),
            time_ns=whole_ns(np.where(allowed, time_us, 0.0)),
            allowed=allowed,
            tensors=_merge(_tensor_terms(objective)),
            pairs=_merge(_pair_terms(objective)),
        )

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return self.time_ns.shape[1]

    def restricted(self, allowed: np.ndarray) -> Pairwise:
        """Return the same problem with fewer places allowed; PlanError if a unit has none left."""
        both = self.allowed & allowed
        nowhere = np.flatnonzero(~both.any(axis=1))
        if len(nowhere):
            raise self.support_error(nowhere, range(self.n_devices))
        return replace(self, allowed=both)

    def support_error(self, units: Iterable[int], devices: Iterable[int]) -> PlanError:
        """Return the error for units that none of these devices supports."""
        names = ", ".join(self.objective.devices[device] for device in devices)
        ops = [op for unit in units for op in self.units[unit]]
        return PlanError(
            f"None of {names} supports {names_at_hand(ops)}. Add a device that does, for "
            "instance CPU, and calibrate again."
        )

    def devices(self, choice: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the device of every node; one that follows no op goes with the first unit."""
        device_of = np.asarray(choice, dtype=np.int64)
        return device_of[np.maximum(self.objective.unit_of, 0)]

    def value_ns(self, choice: Sequence[int] | np.ndarray) -> int:
        """Return the pairwise part of the latency of a choice."""
        devices = np.asarray(choice)
        work = int(self.time_ns[np.arange(len(devices)), devices].sum())
        device_of = devices.tolist().__getitem__
        between = sum(term.ns(device_of) for term in self.terms)
        return self.objective.constant_ns + work + between

    def values_ns(
        self, choices: np.ndarray, objective: str, subgraphs: np.ndarray | None = None
    ) -> np.ndarray:
        """Return latency or busiest device, pairwise part, of many choices ``[n, units]``.

        Given numbers of ``subgraphs``, ``[n, devices]``, their cost is included.
        """
        busy, more = self.busy_ns(choices), self.objective.constant_ns
        if subgraphs is not None:
            busy = busy + subgraphs * self.objective.subgraph_ns
            more = more + self.objective.spread_ns(subgraphs.sum(axis=1))
        work = busy.sum(axis=1) if objective == LATENCY else busy.max(axis=1)
        return work + more

    def change_ns(self, choice: np.ndarray, units: list[int], device: int) -> int:
        """Return by how much the pairwise part changes if units move to a device."""
        moved = set(units)

        def before(unit: int) -> int:
            return int(choice[unit])

        def after(unit: int) -> int:
            return device if unit in moved else int(choice[unit])

        change = int(self.time_ns[units, device].sum() - self.time_ns[units, choice[units]].sum())
        terms = {term for unit in units for term in self.terms_of[unit]}
        return change + sum(term.ns(after) - term.ns(before) for term in terms)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All terms between units."""
        return *self.tensors, *self.pairs

    @cached_property
    def terms_of(self) -> list[list[Term]]:
        """For each unit, the terms that depend on its device."""
        terms: list[list[Term]] = [[] for _ in self.units]
        for term in self.terms:
            for unit in (term.source, *term.users):
                terms[unit].append(term)
        return terms

    @cached_property
    def first_node(self) -> np.ndarray:
        """For each unit, its first op."""
        index_of = self.objective.graph.index_of
        return np.array([index_of[ops[0]] for ops in self.units], dtype=np.int64)

    def busy_ns(self, choices: np.ndarray) -> np.ndarray:
        """Return each device's work, pairwise part, of many choices: ``[n, devices]``."""
        busy = np.zeros((len(choices), self.n_devices), dtype=np.int64)
        rows, devices = np.arange(len(choices)), range(self.n_devices)
        for device in devices:
            times = np.where(choices == device, self.time_ns[:, device], 0)
            busy[:, device] = times.sum(axis=1)
        for term in self.terms:
            source, users = choices[:, term.source], choices[:, list(term.users)]
            for device in devices:
                received = (users == device).any(axis=1)
                busy[:, device] += np.where(received, term.enter_ns[source, device], 0)
                busy[rows, source] += np.where(received, term.leave_ns[source, device], 0)
        return busy

    @cached_property
    def memory(self) -> dict[tuple[int, ...], np.ndarray]:
        """Bytes of constants and of states by the units that use them, ``[2, devices]``.

        A device that has any of the units holds all of it.
        """
        objective = self.objective
        users: dict[int, set[int]] = {}
        for constant, op in zip(*objective.memory.constant_uses, strict=True):
            users.setdefault(int(constant), set()).add(int(objective.unit_of[op]))
        states = objective.memory.states.tolist()
        users |= {state: {int(objective.unit_of[state])} for state in states}
        measured = objective.measured_memory
        counted = [number for number, d in enumerate(objective.devices) if d not in measured]
        by_users: dict[tuple[int, ...], np.ndarray] = {}

        def sizes_of(units: Iterable[int]) -> np.ndarray:
            nothing = np.zeros((2, self.n_devices), dtype=np.int64)
            return by_users.setdefault(tuple(sorted(units)), nothing)

        for node, units in users.items() if counted else ():
            n_bytes = objective.graph.ops[node].outputs[0].n_bytes or 0
            sizes_of(units)[int(node in states), counted] += n_bytes
        for device, parts in measured.items():
            number = objective.devices.index(device)
            for part in parts:
                sizes_of(part.units)[:, number] += part.weight_bytes, part.state_bytes
        return by_users

    @cached_property
    def held_bytes(self) -> np.ndarray:
        """Bytes of each of ``memory`` on each device, ``[terms, devices]``."""
        sizes = [n_bytes.sum(axis=0) for n_bytes in self.memory.values()]
        return np.array(sizes, dtype=np.int64).reshape(-1, self.n_devices)

    def least_bytes(
        self, choices: np.ndarray, device: int, *, boundaries: bool = True
    ) -> np.ndarray:
        """Return the least bytes that a device holds, for many choices ``[n, units]``.

        Constants, states and boundary tensors count once, whatever the subgraphs are.
        """
        here = choices == device
        total = np.zeros(len(choices), dtype=np.int64)
        for users, n_bytes in zip(self.memory, self.held_bytes[:, device], strict=True):
            total += here[:, list(users)].any(axis=1) * n_bytes
        for term in self.tensors if boundaries else ():
            sent = here[:, term.source] & ~here[:, list(term.users)].all(axis=1)
            received = ~here[:, term.source] & here[:, list(term.users)].any(axis=1)
            total += (sent | received) * term.n_bytes
        return total

    def fullest_bytes(self, choices: np.ndarray) -> np.ndarray:
        """Return the least weights and states of the device that holds most, for many choices."""
        each = range(self.n_devices)
        return np.max([self.least_bytes(choices, d, boundaries=False) for d in each], axis=0)

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Pairs of units that are one subgraph if they are on one device and nothing cuts them."""
        unit_of = self.objective.unit_of.tolist()
        links: set[tuple[int, int]] = set()
        for op in self.objective.graph:
            user = unit_of[op.index] if op.type != RESULT else -1
            for producer, _ in op.inputs:
                source = unit_of[producer]
                if source != user and source >= 0 and user >= 0:
                    links.add((min(source, user), max(source, user)))
        return tuple(sorted(links))

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each unit, the units that it shares a term with."""
        near: list[set[int]] = [set() for _ in self.units]
        for term in self.terms:
            for user in term.users:
                near[term.source].add(user)
                near[user].add(term.source)
        return tuple(tuple(sorted(units)) for units in near)

    def around(self, first: int, size: int) -> list[int]:
        """Return the ``size`` units that are nearest to one, itself included."""
        units = [first]
        for unit in units:  # grows as it goes: breadth first
            units += [near for near in self.neighbours[unit] if near not in units]
            if len(units) >= size:
                break
        return units[:size]


def _merge(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Add up the terms of the same units."""
    merged: dict[tuple[int, tuple[int, ...]], Term] = {}
    for term in terms:
        key = term.source, term.users
        old = merged.get(key)
        merged[key] = (
            term
            if old is None
            else Term(
                *key,
                old.leave_ns + term.leave_ns,
                old.enter_ns + term.enter_ns,
                old.n_bytes + term.n_bytes,
            )
        )
    return tuple(merged.values())


def _tensor_terms(objective: Objective) -> Iterator[Term]:
    graph, unit_of, memory = objective.graph, objective.unit_of.tolist(), objective.memory
    users: dict[tuple[int, int], set[int]] = {}
    for op in graph:
        if op.type == RESULT:
            continue
        for producer, port in op.inputs:
            source, user = unit_of[producer], unit_of[op.index]
            if graph.ops[producer].type != CONSTANT and source != user and min(source, user) >= 0:
                users.setdefault((producer, port), set()).add(user)
    tensor = np.array([memory.first_tensor[producer] + port for producer, port in users], np.int64)
    source, target = np.indices((len(objective.devices),) * 2)
    apart = source != target
    price, leave = objective.hand_over_ns(tensor[:, None, None], source, target)
    enter = apart * (price - leave)
    leave = apart * objective.pairwise_leave_ns[tensor][:, :, None]
    n_bytes = memory.n_bytes[tensor].tolist()
    for at, ((producer, _), units) in enumerate(users.items()):
        yield Term(unit_of[producer], tuple(sorted(units)), leave[at], enter[at], n_bytes[at])
    for root, readers, leave_ns in objective.layouts:
        unit = unit_of[root]
        others = {unit_of[user] for user in readers} - {unit}
        if others:
            leave = apart * leave_ns[:, None]
            yield Term(unit, tuple(sorted(others)), leave, np.zeros_like(leave))


def _pair_terms(objective: Objective) -> Iterator[Term]:
    apart = ~np.eye(len(objective.devices), dtype=bool)
    prices = zip(objective.first_ns, objective.second_ns, strict=True)
    for nodes, (first_ns, second_ns) in zip(objective.fused, prices, strict=True):
        first, second = objective.unit_of[nodes].tolist()
        if first > second:
            first, second, first_ns, second_ns = second, first, second_ns, first_ns
        if first != second:
            yield Term(first, (second,), apart * first_ns[:, None], apart * second_ns)


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

    def place(self, choice: np.ndarray) -> PlacementCost:
        """Predict a choice."""
        return self.pairwise.objective.evaluate(self.pairwise.devices(choice))

    def choice(self, placed: PlacementCost) -> np.ndarray:
        """Return the device of each unit."""
        return placed.devices[self.pairwise.first_node]

    def value_ns(self, placed: PlacementCost) -> int:
        """Return what is minimised: the latency, or the time between two requests."""
        return placed.value_ns(self.objective)

    def held_bytes(self, placed: PlacementCost) -> np.ndarray:
        """Return the bytes of weights, states and boundary tensors, shape ``[devices, 3]``."""
        return self.pairwise.objective.memory_bytes(placed)

    def excess_bytes(self, placed: PlacementCost) -> dict[Pool, int]:
        """Return by how much a placement exceeds memory limits; empty if it keeps to them."""
        return excess_bytes(self.held_bytes(placed), self.pools) if self.pools else {}

    def fullest_bytes(self, placed: PlacementCost) -> int:
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
    for pattern, number, op in _pins(graph, devices, pins or {}):
        if op not in support[devices[number]]:
            able = [device for device in devices if op in support[device]]
            raise _support_error(pattern, op, devices[number], able)


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
    for pattern, number, op in _pins(objective.graph, names, pins):
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
            raise _support_error(pattern, op, names[number], able)
        mask[unit] = False
        mask[unit, number] = True
    return pairwise.restricted(mask)


def _support_error(pattern: str, op: str, device: str, able: Iterable[str]) -> PlanError:
    return PlanError(
        f"{shorten(pattern)} pins {shorten(op)} to {device}, which does not support it. "
        f"Supported by: {', '.join(able)}."
    )


def _pins(
    graph: OpGraph, devices: tuple[str, ...], pins: Mapping[str, str]
) -> Iterator[tuple[str, int, str]]:
    """Yield each pattern, the number of its device and each placeable op that it matches."""
    if not isinstance(pins, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
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
        bound = [~elsewhere[list(users)].all() for users in pairwise.memory]
        least = int(pairwise.held_bytes[bound][:, members].sum(axis=0).min())
        if least > limit:
            ops = [op for unit in np.flatnonzero(~elsewhere) for op in pairwise.units[unit]]
            forced.append(
                f"ops that have to be on {names_of(devices, pool)} ({names_at_hand(ops, 3)}) alone "
                f"need at least {bytes_text(least)} of weights and states"
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
