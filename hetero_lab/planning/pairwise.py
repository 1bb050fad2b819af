"""The pairwise part of the objective over planning units, as planners need it.

A choice gives each unit the number of a device. Its cost in nanoseconds is the sum of the units'
times, of each tensor once per receiving device other than its maker's, and of lost fusion between
units on different devices. Tensors within a unit cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hetero_lab.costs.objective import LATENCY, Objective, whole_ns
from hetero_lab.errors import PlanError, names_at_hand
from hetero_lab.model.opgraph import CONSTANT, RESULT


@dataclass(frozen=True)
class Choice:
    """A device for each unit, its cost, and a proven lower bound on the cost of any choice.

    ``value_ns`` is the pairwise part of the objective. A ``bound_ns`` of 0 proves nothing.
    """

    devices: tuple[int, ...]
    value_ns: int
    bound_ns: int


@dataclass(frozen=True, eq=False)
class TensorTerm:
    """A tensor that unit ``source`` makes and ``users``, all different from it, read.

    Or a layout that ``source`` chooses, with the users of all tensors that keep it. For each
    (source device, target device), ``leave_ns`` is the producing device's work and ``enter_ns``
    the receiving one's; both are 0 within a device.
    """

    source: int
    users: tuple[int, ...]
    leave_ns: np.ndarray
    enter_ns: np.ndarray
    n_bytes: int

    def ns(self, device_of: Callable[[int], int]) -> int:
        """Return the cost of the term, given the device of each unit."""
        source = device_of(self.source)
        targets = {device_of(user) for user in self.users} - {source}
        return sum(int(self.leave_ns[source, t] + self.enter_ns[source, t]) for t in targets)


@dataclass(frozen=True, eq=False)
class PairTerm:
    """Lost fusion between two units that are on different devices."""

    first: int
    second: int
    first_ns: np.ndarray
    second_ns: np.ndarray

    def ns(self, device_of: Callable[[int], int]) -> int:
        """Return the cost of the term, given the device of each unit."""
        first, second = device_of(self.first), device_of(self.second)
        return 0 if first == second else int(self.first_ns[first] + self.second_ns[second])


@dataclass(frozen=True, eq=False)
class HeldTerm:
    """Constants and states that units share, by device: one that has any of the units holds all."""

    users: tuple[int, ...]
    weight_bytes: np.ndarray
    state_bytes: np.ndarray

    @property
    def n_bytes(self) -> np.ndarray:
        """Both together."""
        return self.weight_bytes + self.state_bytes


@dataclass(frozen=True, eq=False)
class Pairwise:
    """Units, their cost on each device, where they are ``allowed``, and the terms between them."""

    objective: Objective
    units: tuple[tuple[str, ...], ...]
    time_ns: np.ndarray
    allowed: np.ndarray
    tensors: tuple[TensorTerm, ...]
    pairs: tuple[PairTerm, ...]

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
            tensors=_tensor_terms(objective),
            pairs=_pair_terms(objective),
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
            raise self.unsupported(nowhere, range(self.n_devices))
        return replace(self, allowed=both)

    def unsupported(self, units: Iterable[int], devices: Iterable[int]) -> PlanError:
        """Return the error for units that none of these devices supports."""
        names = ", ".join(self.objective.devices[device] for device in devices)
        ops = [op for unit in units for op in self.units[unit]]
        return PlanError(
            f"None of {names} supports {names_at_hand(ops)}. Add a device that does, for "
            "instance CPU, and calibrate again."
        )

    def devices(self, choice: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the device of every node; one that follows no op goes with the first unit."""
        chosen = np.asarray(choice, dtype=np.int64)
        return chosen[np.maximum(self.objective.unit_of, 0)]

    def value_ns(self, choice: Sequence[int] | np.ndarray) -> int:
        """Return the pairwise part of the latency of a choice."""
        chosen = np.asarray(choice)
        own = int(self.time_ns[np.arange(len(chosen)), chosen].sum())
        device_of = chosen.tolist().__getitem__
        terms = (term.ns(device_of) for term in (*self.tensors, *self.pairs))
        return self.objective.constant_ns + own + sum(terms)

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
        terms = {id(term): term for unit in units for term in self.terms_of[unit]}
        return change + sum(term.ns(after) - term.ns(before) for term in terms.values())

    @cached_property
    def terms_of(self) -> list[list[TensorTerm | PairTerm]]:
        """For each unit, the terms that depend on its device."""
        terms: list[list[TensorTerm | PairTerm]] = [[] for _ in self.units]
        for tensor in self.tensors:
            for unit in {tensor.source, *tensor.users}:
                terms[unit].append(tensor)
        for pair in self.pairs:
            terms[pair.first].append(pair)
            terms[pair.second].append(pair)
        return terms

    @cached_property
    def first_node(self) -> np.ndarray:
        """For each unit, its first op."""
        index_of = self.objective.graph.index_of
        return np.array([index_of[ops[0]] for ops in self.units], dtype=np.int64)

    def busy_ns(self, choices: np.ndarray) -> np.ndarray:
        """Return each device's work, pairwise part, of many choices: ``[n, devices]``."""
        busy = np.zeros((len(choices), self.n_devices), dtype=np.int64)
        for device in range(self.n_devices):
            times = np.where(choices == device, self.time_ns[:, device], 0)
            busy[:, device] = times.sum(axis=1)
        for term in self.tensors:
            source = choices[:, term.source]
            for device in range(self.n_devices):
                received = (choices[:, list(term.users)] == device).any(axis=1)
                busy[:, device] += np.where(received, term.enter_ns[source, device], 0)
                leave = np.where(received, term.leave_ns[source, device], 0)
                np.add.at(busy, (np.arange(len(choices)), source), leave)
        for pair in self.pairs:
            first, second = choices[:, pair.first], choices[:, pair.second]
            apart = first != second
            rows = np.arange(len(choices))
            np.add.at(busy, (rows, first), np.where(apart, pair.first_ns[first], 0))
            np.add.at(busy, (rows, second), np.where(apart, pair.second_ns[second], 0))
        return busy

    @cached_property
    def held(self) -> tuple[HeldTerm, ...]:
        """Constants and states with the units that use them, those of equal use together."""
        objective = self.objective
        users: dict[int, set[int]] = {}
        for constant, op in zip(*objective.memory.constant_uses, strict=True):
            users.setdefault(int(constant), set()).add(int(objective.unit_of[op]))
        states = objective.memory.states.tolist()
        users |= {state: {int(objective.unit_of[state])} for state in states}
        measured = objective.measured_memory
        counted = [number for number, d in enumerate(objective.devices) if d not in measured]
        sizes: dict[tuple[int, ...], np.ndarray] = {}  # [weights or states, devices]

        def sizes_of(units: Iterable[int]) -> np.ndarray:
            nothing = np.zeros((2, self.n_devices), dtype=np.int64)
            return sizes.setdefault(tuple(sorted(units)), nothing)

        for node, units in users.items() if counted else ():
            n_bytes = objective.graph.ops[node].outputs[0].n_bytes or 0
            sizes_of(units)[int(node in states), counted] += n_bytes
        for device, parts in measured.items():
            number = objective.devices.index(device)
            for part in parts:
                sizes_of(part.units)[:, number] += part.weight_bytes, part.state_bytes
        return tuple(HeldTerm(key, *each) for key, each in sizes.items())

    @cached_property
    def held_bytes(self) -> np.ndarray:
        """Bytes of each of ``held`` on each device, ``[terms, devices]``."""
        sizes = [term.n_bytes for term in self.held]
        return np.array(sizes, dtype=np.int64).reshape(-1, self.n_devices)

    def least_bytes(
        self, choices: np.ndarray, device: int, *, boundaries: bool = True
    ) -> np.ndarray:
        """Return the least bytes that a device holds, for many choices ``[n, units]``.

        Constants, states and boundary tensors count once, whatever the subgraphs are.
        """
        here = choices == device
        total = np.zeros(len(choices), dtype=np.int64)
        for term in self.held:
            total += here[:, list(term.users)].any(axis=1) * term.n_bytes[device]
        for term in self.tensors if boundaries else ():
            made = here[:, term.source] & ~here[:, list(term.users)].all(axis=1)
            received = ~here[:, term.source] & here[:, list(term.users)].any(axis=1)
            total += (made | received) * term.n_bytes
        return total

    def fullest_bytes(self, choices: np.ndarray) -> np.ndarray:
        """Return the least weights and states of the device that holds most, for many choices."""
        each = range(self.n_devices)
        return np.max([self.least_bytes(choices, d, boundaries=False) for d in each], axis=0)

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Pairs of units that are one subgraph if they are on one device and nothing cuts them."""
        unit_of = self.objective.unit_of.tolist()
        found: set[tuple[int, int]] = set()
        for op in self.objective.graph:
            user = unit_of[op.index] if op.type != RESULT else -1
            for producer, _ in op.inputs:
                source = unit_of[producer]
                if source != user and source >= 0 and user >= 0:
                    found.add((min(source, user), max(source, user)))
        return tuple(sorted(found))

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each unit, the units that it shares a term with."""
        near: list[set[int]] = [set() for _ in self.units]
        pairs = [(term.source, user) for term in self.tensors for user in term.users]
        pairs += [(pair.first, pair.second) for pair in self.pairs]
        for first, second in pairs:
            near[first].add(second)
            near[second].add(first)
        return tuple(tuple(sorted(units)) for units in near)

    def around(self, first: int, size: int) -> list[int]:
        """Return the ``size`` units that are nearest to one, itself included."""
        found = [first]
        for unit in found:  # grows as it goes: breadth first
            found += [near for near in self.neighbours[unit] if near not in found]
            if len(found) >= size:
                break
        return found[:size]


def _tensor_terms(objective: Objective) -> tuple[TensorTerm, ...]:
    graph, unit_of = objective.graph, objective.unit_of
    users: dict[tuple[int, int], set[int]] = {}
    for op in graph:
        if op.type == RESULT:
            continue
        for producer, port in op.inputs:
            source, user = int(unit_of[producer]), int(unit_of[op.index])
            if graph.ops[producer].type != CONSTANT and source != user and min(source, user) >= 0:
                users.setdefault((producer, port), set()).add(user)
    if not users:
        return ()
    first_tensor = objective.memory.first_tensor
    n_devices = len(objective.devices)
    tensor = np.array([first_tensor[producer] + port for producer, port in users])
    source, target = (grid.ravel() for grid in np.indices((n_devices, n_devices)))
    price, leave = objective.hand_over_ns(tensor[:, None], source, target)
    shape = (len(tensor), n_devices, n_devices)
    enter = np.where(source == target, 0, price - leave).reshape(shape)
    merged: dict[tuple[int, tuple[int, ...]], TensorTerm] = {}

    def add(source: int, users: set[int], leave: np.ndarray, enter: np.ndarray, size: int) -> None:
        key = (source, tuple(sorted(users)))
        apart = np.where(np.eye(n_devices, dtype=bool), 0, leave[:, None])
        old = merged.get(key)
        if old is not None:
            apart, enter, size = apart + old.leave_ns, enter + old.enter_ns, size + old.n_bytes
        merged[key] = TensorTerm(*key, apart, enter, size)

    for row, ((producer, _), units) in enumerate(users.items()):
        at, maker = tensor[row], int(unit_of[producer])
        n_bytes = int(objective.memory.n_bytes[at])
        add(maker, units, objective.pairwise_leave_ns[at], enter[row], n_bytes)
    for layout in objective.layouts:
        unit = int(unit_of[layout.root])
        others = {int(unit_of[user]) for user in layout.users} - {unit}
        if others:
            add(unit, others, layout.leave_ns, np.zeros_like(enter[0]), 0)
    return tuple(merged.values())


def _pair_terms(objective: Objective) -> tuple[PairTerm, ...]:
    merged: dict[tuple[int, int], PairTerm] = {}
    for row, (first, second) in enumerate(objective.fused.tolist()):
        a, b = int(objective.unit_of[first]), int(objective.unit_of[second])
        first_ns, second_ns = objective.first_ns[row], objective.second_ns[row]
        if a > b:
            a, b, first_ns, second_ns = b, a, second_ns, first_ns
        if a != b:
            old = merged.get((a, b))
            if old is not None:
                first_ns, second_ns = first_ns + old.first_ns, second_ns + old.second_ns
            merged[a, b] = PairTerm(a, b, first_ns, second_ns)
    return tuple(merged.values())
