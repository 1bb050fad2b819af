"""Causes: why HETERO makes so many subgraphs of a placement.

In the order in which they act: a device lacks an op, or the placement chose another device for it;
the op then closes a cycle, so that HETERO cuts the ops around it along their levels; and some
models consist of several parts from the start. What is said of a cause is computed: the number of
subgraphs without it is that of the partition without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_lab.errors import names_at_hand
from hetero_lab.model.opgraph import CONSTANT, NOT_OPS, OpGraph, grouped
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import SubgraphCollector, devices_of
from hetero_lab.placement.topology import Topology, islands, topology, weak_components
from hetero_lab.terminal import count_of, first_of, one_line

_MOST_TYPES = 3  # of culprits in a sentence
_ENOUGH = 0.8  # of what all culprits together explain
_ORDERED = 4  # devices whose priorities are inferred from all orders, not from their ops
_NODES_TRIED, _MOST_TRIED = 40_000, 12  # nodes times culprits, culprits


@dataclass(frozen=True)
class Cause:
    """Why there are so many subgraphs, in a sentence, and its ``reason`` in a few words.

    ``ops`` are to blame: ``device`` lacks them, or could run them though they are elsewhere. Were
    they on it, there would be ``n_without`` subgraphs. Nothing is to blame if ``ops`` is empty.
    """

    text: str
    reason: str = ""
    device: str = ""
    ops: tuple[str, ...] = ()
    n_without: int = 0


class Division:
    """The nodes of a graph as arrays: the device where each one is, and those where it may be.

    ``supported`` has the ops of each device; ops computed from constants alone count as supported
    where it lists no constants. ``start`` is the number of each node's device, ``able[device]``
    tells of each node whether all that have to go with it are supported there.
    """

    def __init__(
        self, graph: OpGraph, affinity: Affinity, supported: Mapping[str, Collection[str]]
    ):
        self.graph: OpGraph = graph
        self.topology: Topology = topology(graph)
        self.devices: tuple[str, ...] = tuple(dict.fromkeys([*supported, *affinity.devices]))
        number = {device: n for n, device in enumerate(self.devices)}
        self.leader: np.ndarray = np.array(graph.leader, dtype=np.int64)
        self.start: np.ndarray = np.array(
            [number[device] for device in devices_of(graph, affinity)]
        )
        self.placeable: np.ndarray = np.zeros(len(graph), dtype=bool)
        self.placeable[list(graph.placeable)] = True
        self.unsupported: list[frozenset[int] | None] = [
            self._unsupported(supported[device]) if device in supported else None
            for device in self.devices
        ]
        self.able: np.ndarray = np.array(
            [self.able_without(d, ()) for d in range(len(self.devices))]
        )
        self.collector: SubgraphCollector = SubgraphCollector.of(graph)

    def _unsupported(self, supported: Collection[str]) -> frozenset[int]:
        names = frozenset(supported)
        constants = any(op.type == CONSTANT and op.name in names for op in self.graph)
        free = frozenset() if constants else self.graph.constant_side
        return frozenset(
            op.index
            for op in self.graph
            if op.type not in NOT_OPS and op.name not in names and op.index not in free
        )

    def able_without(self, device: int, culprits: Collection[int]) -> np.ndarray:
        """Return ``able[device]`` if the device supported the culprits, too."""
        unsupported = self.unsupported[device]
        if unsupported is None:
            return self.start == device
        able = np.ones(len(self.graph), dtype=bool)
        able[self.leader[list(unsupported.difference(culprits))]] = False
        return able[self.leader]

    def first_able(self, order: Sequence[int], able: np.ndarray) -> np.ndarray:
        """Return the first device of an order that may have each node, else where it is."""
        ranked = able[list(order)]
        return np.where(ranked.any(axis=0), np.array(order)[ranked.argmax(axis=0)], self.start)

    def moved(self, nodes: Iterable[int] | np.ndarray, to: int | np.ndarray) -> np.ndarray:
        """Return the devices after some ops, with all that go with them, went elsewhere."""
        leaders = np.zeros(len(self.graph), dtype=bool)
        indices = np.asarray(list(nodes), dtype=np.int64)
        leaders[self.leader[indices[self.placeable[indices]]]] = True
        return np.where(leaders[self.leader], to, self.start)

    def subgraphs(self, choice: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each node's subgraph, the crossing edges, and the subgraphs that are compiled."""
        _, ids = self.collector.split(choice)
        crossing = self.topology.crossing(ids)
        return ids, crossing, self.topology.compiled(ids, crossing)

    def components(self, choice: np.ndarray) -> tuple[int, bool]:
        """Return how many connected parts of one device there are, and whether in a cycle."""
        cut = self.topology.between_devices(choice)
        parts = weak_components(self.topology, cut)
        is_cyclic = self.collector.cyclic_components(cut, parts) is not None
        return len(np.unique(parts[self.placeable])), is_cyclic

    def n_subgraphs(self, choice: np.ndarray) -> int:
        return len(self.subgraphs(choice)[2])

    def priorities(self) -> tuple[int, ...]:
        """Return the order of the used devices that explains most of the placement."""
        devices = list(dict.fromkeys(self.start[self.placeable].tolist()))
        if len(devices) > _ORDERED:
            return tuple(sorted(devices, key=lambda d: -int((self.start == d).sum())))
        orders = itertools.permutations(sorted(devices))
        return min(orders, key=lambda order: len(self.elsewhere(order)))

    def elsewhere(self, order: Sequence[int]) -> np.ndarray:
        """Return the ops that are not where these priorities would have put them."""
        return np.flatnonzero(self.placeable & (self.first_able(order, self.able) != self.start))


def cause_of(division: Division) -> Cause:
    """Find why a placement has its subgraphs."""
    ids, _, compiled = division.subgraphs(division.start)
    n = len(compiled)
    counted = count_of(n, "subgraph")
    if n < 2:
        return Cause(f"{counted}: nothing is cut.")
    least = min(_causes(division, n), key=lambda cause: cause.n_without, default=None)
    parts = islands(division.graph)
    apart = f"the model consists of {parts} parts that no tensor connects"
    if least is None or least.n_without >= n:
        why = apart if parts > 1 else "no op alone explains them"
        return Cause(f"{counted}: {why}.", why)
    levels = _cut_in_levels(division, ids, compiled)
    rest = f", as {apart}" if 1 < parts == least.n_without else ""
    without = count_of(least.n_without, "subgraph")
    text = f"{counted}: {least.reason}{levels}. {least.text} there would be {without}{rest}."
    return replace(least, text=text)


def _causes(division: Division, n: int) -> Iterator[Cause]:
    """Yield what a device lacks and what a placement chose, each with the subgraphs without it.

    Their text is only the condition.
    """
    if not division.placeable.any():
        return
    order = division.priorities()
    for place, device in enumerate(order[:-1]):
        behind = np.isin(division.start, order[place + 1 :]) & division.placeable
        lacking = {i for i in division.unsupported[device] or () if behind[division.leader[i]]}
        if lacking:
            yield _lacking(division, order, device, lacking, n)
    ops = division.elsewhere(order)
    if len(ops):
        to = division.first_able(order, division.able)
        names = [division.graph.ops[i].name for i in ops.tolist()]
        devices = [division.devices[d] for d in dict.fromkeys(to[ops].tolist())]
        where = " and ".join(devices)
        verb = "is" if len(names) == 1 else "are"
        reason = f"{count_of(len(names), 'op')} that {where} can run {verb} elsewhere"
        after = division.n_subgraphs(division.moved(ops, to))
        sentence = f"{reason} ({names_at_hand(names, 2)})"
        yield Cause(f"On {where},", sentence, devices[0], tuple(names), after)


def _lacking(
    division: Division, order: Sequence[int], device: int, lacking: set[int], n: int
) -> Cause:
    """Blame the op types that a device lacks, as few as explain most of the subgraphs."""
    graph = division.graph

    def without(culprits: Collection[int]) -> int:
        able = division.able.copy()
        able[device] = division.able_without(device, culprits)
        freed = division.leader[list(culprits)]
        return division.n_subgraphs(division.moved(freed, division.first_able(order, able)))

    of_type = grouped((graph.ops[index].type, index) for index in sorted(lacking))
    types = sorted(of_type, key=lambda name: -len(of_type[name]))
    types = types[: max(2, min(_MOST_TRIED, _NODES_TRIED // len(graph)))]
    n_without = {name: without(of_type[name]) for name in types}
    everything = without(lacking)
    names: list[str] = []
    culprits: set[int] = set()
    n_left = n
    for name in sorted(types, key=lambda name: n_without[name]):
        names.append(name)
        culprits.update(of_type[name])
        n_left = n_without[name] if len(names) == 1 else without(culprits)
        if n - n_left >= _ENOUGH * (n - everything):
            break
    listed = first_of([one_line(name, 40) for name in names], _MOST_TYPES, "types")
    name = division.devices[device]
    reason = f"{name} does not support {listed} ({count_of(len(culprits), 'op')})"
    ops = tuple(graph.ops[index].name for index in sorted(culprits))
    them = "it" if len(names) == 1 else "them"
    return Cause(f"If {name} supported {them},", reason, name, ops, n_left)


def _cut_in_levels(division: Division, ids: np.ndarray, compiled: np.ndarray) -> str:
    """Say which connected ops of one device HETERO cuts because of a cycle; empty if none."""
    top, start = division.topology, division.start
    parts = weak_components(top, top.between_devices(start))
    real = np.isin(ids, compiled)
    pairs = np.unique(np.stack([parts[real], ids[real]]), axis=1)
    n_cut = np.bincount(pairs[0], minlength=int(parts.max()) + 1)
    worst = int(n_cut.argmax())
    if n_cut[worst] < 2:
        return ""
    members = np.flatnonzero((parts == worst) & division.placeable)
    if not len(members):
        return ""
    return (
        f", and HETERO cuts {count_of(len(members), 'connected op')} of "
        f"{division.devices[start[members[0]]]} into {n_cut[worst]}, because of a cycle"
    )
