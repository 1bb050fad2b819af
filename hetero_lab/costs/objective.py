"""Cost terms, their arrays, and the predicted cost of a placement in nanoseconds.

A cost model has two kinds of terms.

**Pairwise**: the constant; the time of each op on its device; each tensor that is handed to
another device, once per receiving device; lost fusion between two ops on different devices.
Each term depends on the devices of at most two ops (or of a tensor's maker and users), so that
planners can minimise the sum exactly.

**Extra**, never negative: the cost of each subgraph; the cost of memory spread over several of
them; a tensor that several subgraphs of one device receive, again for each after the first; a
layout that several tensors keep, again for each that is converted after the first; and for the
cuts that HETERO adds to break cycles, hand-over and lost fusion within a device.

In the arrays, every node of the graph has a row, every device of the cost model a column. ``busy``
is the time that each device works for one inference. A hand-over is the receiving device's work,
except for the reorder on the device that the tensor leaves. Latency is the constant plus all of
``busy``, because HETERO runs subgraphs one after another. Throughput, where requests follow each
other through the devices, is the constant plus the busiest device. Costs are counted in whole
nanoseconds, so that two ways of adding them up agree exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from hetero_lab.errors import PlanError, names_at_hand, shorten
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import RESULT, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import MemoryTable
from hetero_lab.placement.partition import SubgraphCollector
from hetero_lab.placement.topology import Topology

LATENCY, THROUGHPUT = "latency", "throughput"
BALANCED = "balanced_memory"  # the least latency where weights are spread over the devices
_HALF_SPREAD = 5  # with this many further subgraphs, half of the spread memory is paid


def check_devices(devices: Iterable[str], model_devices: Sequence[str]) -> None:
    """Raise PlanError unless the costs of every one of ``devices`` are known."""
    unknown = [device for device in devices if device not in model_devices]
    if unknown:
        raise PlanError(
            f"This cost model does not know {names_at_hand(unknown)}: it holds for "
            f"{names_at_hand(model_devices)}. Calibrate with these devices: "
            "hetero_lab.calibrate(model, devices)."
        )


def check_objective(
    objective: str, allowed: Sequence[str], scenario: Scenario | None = None
) -> None:
    """Raise PlanError unless an objective is allowed: of a language model, only the latency is."""
    if objective not in allowed:
        raise PlanError(
            f"{shorten(str(objective))} is not an objective. Objectives: "
            f"{', '.join(map(repr, allowed))}."
        )
    if scenario is not None and objective != LATENCY:
        raise PlanError(
            "A language model has one request in flight, so its objective is 'latency': the time "
            "of a further token. hetero_lab.plan(model, costs.prefill) is for the first one."
        )


class CostRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A term of a cost model, stored as the row of its fields."""


class Unit(CostRow, frozen=True):
    """Ops that planners place together, with their time on each device of the cost model.

    ``ops`` are names in topological order. A device that does not support them has None for a
    time. ``shares``, which add up to 1, divide the time among the ops when a placement tears the
    unit apart; they are equal if empty.
    """

    ops: tuple[str, ...]
    time_us: tuple[float | None, ...]
    shares: tuple[float, ...] = ()

    @property
    def share_of_each(self) -> tuple[float, ...]:
        """The share of each op, also where they are equal."""
        return self.shares or (1.0 / len(self.ops),) * len(self.ops)


class LostFusion(CostRow, frozen=True):
    """Extra cost of two ops, in µs, when they are not in one subgraph.

    ``first_us`` is added on the device of ``first``, ``second_us`` on that of ``second``; both
    have an entry for each device of the cost model.
    """

    first: str
    second: str
    first_us: tuple[float, ...]
    second_us: tuple[float, ...]


class BoundaryCost(CostRow, frozen=True):
    """Cost of handing one tensor over: a fixed part and a part for each byte."""

    fixed_us: float = 0.0
    us_per_byte: float = 0.0


class Reorder(CostRow, frozen=True):
    """Layout conversions of one tensor when it crosses, in µs for each device.

    ``leave_us`` is paid on the device that makes it, once for each device that receives it;
    ``enter_us`` on the one that receives it, once for each subgraph. Some ops choose a layout,
    where ``leave_us`` is above 0. Others pass on the layout of an input: ``keeps`` names the ops
    that they read, and ``leave_us`` is paid only where one of these has a chosen layout in the
    same subgraph. A tensor that entered a subgraph has the plain layout.
    """

    op: str
    port: int
    leave_us: tuple[float, ...]
    enter_us: tuple[float, ...]
    keeps: tuple[str, ...] = ()


class MeasuredBytes(CostRow, frozen=True):
    """Measured memory of a device, which it takes as soon as it has one of some units.

    ``units`` are their numbers. ``weight_bytes`` are taken once the submodel has run;
    ``state_bytes`` are for the length of the context.
    """

    units: tuple[int, ...]
    weight_bytes: int
    state_bytes: int


@dataclass(frozen=True, eq=False)
class PlacementCost:
    """Cost of a placement, part by part."""

    devices: np.ndarray  # the number of the device of each node
    ids: np.ndarray  # the subgraph of each node
    subgraphs: np.ndarray  # the number of compiled subgraphs on each device
    crossing: np.ndarray  # edges of the topology, one for each tensor and receiving subgraph
    crossing_ns: np.ndarray  # for each of them
    received_ns: np.ndarray  # hand-overs to each device, with the conversions before they leave
    lost: np.ndarray  # numbers of the lost-fusion terms that are paid
    work_ns: np.ndarray  # for each subgraph
    busy_ns: np.ndarray  # for each device
    constant_ns: int
    spread_ns: int

    @property
    def n_subgraphs(self) -> int:
        """Number of compiled subgraphs."""
        return int(self.subgraphs.sum())

    @property
    def parts_us(self) -> np.ndarray:
        """The work of each device, without hand-overs, and all hand-overs, in µs."""
        received_ns = self.received_ns
        return np.append(self.busy_ns - received_ns, received_ns.sum()) / 1000.0

    def value_ns(self, objective: str) -> int:
        """Return latency, or the time between two requests."""
        work = self.busy_ns.sum() if objective == LATENCY else self.busy_ns.max()
        return self.constant_ns + self.spread_ns + int(work)


@dataclass(frozen=True, eq=False)
class Objective:
    """Cost terms in nanoseconds, as arrays over nodes, tensors and devices."""

    graph: OpGraph
    devices: tuple[str, ...]  # in order of priority
    units: tuple[Unit, ...]
    measured_memory: Mapping[str, tuple[MeasuredBytes, ...]]
    top: Topology
    unit_of: np.ndarray  # for each node; -1 if no op decides its device
    op_ns: np.ndarray  # [nodes, devices]
    supported: np.ndarray  # [nodes, devices]
    fixed_ns: np.ndarray  # [source, target]
    ns_per_byte: np.ndarray  # [source, target]
    leave_ns: np.ndarray  # [tensors, devices]
    enter_ns: np.ndarray  # [tensors, devices]
    chooses: np.ndarray  # [nodes, devices]: whether it chooses a layout for its tensor there
    keeps: np.ndarray  # [pairs, 2]: a node, and one that passes its layout on
    fused: np.ndarray  # [terms, 2]: nodes
    first_ns: np.ndarray  # [terms, devices]
    second_ns: np.ndarray  # [terms, devices]
    subgraph_ns: np.ndarray  # [devices]
    constant_ns: int
    most_spread_ns: int

    def spread_ns(self, n_subgraphs: np.ndarray | int) -> np.ndarray:
        """Return the cost of spread memory for numbers of subgraphs."""
        more = np.maximum(np.asarray(n_subgraphs) - 1, 0)
        return self.most_spread_ns * more // (more + _HALF_SPREAD)

    def hand_over_ns(
        self, tensor: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the price of each tensor from device ``source`` to ``target``, and of leaving."""
        leave = self.leave_ns[tensor, source]
        wire = self.wire_ns(tensor, source, target)
        return wire + leave + self.enter_ns[tensor, target], leave

    def wire_ns(self, tensor: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return the price of handing each tensor over, without layout conversions."""
        price = self.fixed_ns[source, target] + (
            self.ns_per_byte[source, target] * self.memory.n_bytes[tensor]
        )
        return np.rint(price).astype(np.int64)

    def evaluate(self, devices: np.ndarray, ids: np.ndarray | None = None) -> PlacementCost:
        """Add up the costs of a placement, given the device number of every node.

        ``ids`` are the subgraph of every node, below 0 for lone constants. By default they are
        HETERO's.
        """
        top, n_devices = self.top, len(self.devices)
        if ids is None:
            _, ids = SubgraphCollector.of(self.graph).split(devices)
        else:
            ids = np.where(ids < 0, ids.max() + 1, ids)
        n_ids = int(ids.max()) + 1
        device_of_id = np.zeros(n_ids, dtype=np.int64)
        device_of_id[ids] = devices
        wires = top.crossing(ids)
        tensor, producer, user = top.tensor[wires], top.source[wires], top.target[wires]
        source, target = devices[producer], devices[user]
        ns, leave = self.hand_over_ns(tensor, source, target)
        pays = self._pays_leaving(devices, ids, tensor, target)
        ns, leave = ns - np.where(pays, 0, leave), np.where(pays, leave, 0)
        compiled = top.compiled(ids, wires)
        work = np.zeros(n_ids, dtype=np.int64)
        work[compiled] = self.subgraph_ns[device_of_id[compiled]]
        work += _sums(ids, self.op_ns[self._rows, devices], n_ids)
        work += _sums(ids[producer], leave, n_ids) + _sums(ids[user], ns - leave, n_ids)
        lost = np.flatnonzero(ids[self.fused[:, 0]] != ids[self.fused[:, 1]])
        for nodes, prices in zip(self.fused[lost].T, (self.first_ns, self.second_ns), strict=True):
            work += _sums(ids[nodes], prices[lost, devices[nodes]], n_ids)
        subgraphs = np.bincount(device_of_id[compiled], minlength=n_devices)
        return PlacementCost(
            devices=devices,
            ids=ids,
            subgraphs=subgraphs,
            crossing=wires,
            crossing_ns=ns,
            received_ns=_sums(target, ns, n_devices),
            lost=lost,
            work_ns=work,
            busy_ns=_sums(device_of_id, work, n_devices),
            constant_ns=self.constant_ns,
            spread_ns=int(self.spread_ns(int(subgraphs.sum()))),
        )

    def _pays_leaving(
        self, devices: np.ndarray, ids: np.ndarray, tensor: np.ndarray, target: np.ndarray
    ) -> np.ndarray:
        """Return which hand-overs pay for converting the tensor's layout where it leaves.

        A tensor is converted once, however many subgraphs read it: for each other device, or
        once if it stays on its own device. A kept layout is converted only if the same subgraph
        chose it.
        """
        producer = self.producer[tensor]
        stays = devices[producer] == target
        pays = np.zeros(len(tensor), dtype=bool)
        pays[np.unique(tensor * len(self.devices) + target, return_index=True)[1]] = True
        pays[stays & np.isin(tensor, tensor[~stays])] = False
        has = self.chooses[self._rows, devices]
        above, below = self.keeps[ids[self.keeps[:, 0]] == ids[self.keeps[:, 1]]].T
        while len(more := below[has[above] & ~has[below]]):
            has[more] = True
        return pays & (has | ~self._is_keeper)[producer]

    def memory_bytes(self, cost: PlacementCost) -> np.ndarray:
        """Return bytes of weights, states (measured if known) and boundaries, ``[devices, 3]``."""
        n_bytes = self.memory.held_bytes(cost.devices, cost.ids, len(self.devices))
        for device, parts in self.measured_memory.items():
            number = self.devices.index(device)
            here = set(np.unique(self.unit_of[cost.devices == number]).tolist())
            present = [part for part in parts if not here.isdisjoint(part.units)]
            n_bytes[number, 0] = sum(part.weight_bytes for part in present)
            n_bytes[number, 1] = sum(part.state_bytes for part in present)
        return n_bytes

    @property
    def memory(self) -> MemoryTable:
        """The bytes of the model's weights, states and tensors."""
        return MemoryTable.of(self.graph)

    @cached_property
    def layouts(self) -> tuple[tuple[int, tuple[int, ...], np.ndarray], ...]:
        """Layouts that several tensors keep, if there are two devices.

        Each is the node that chose it, the nodes that read one of the tensors, and the least cost
        of converting one of them on each device. An op that may keep one of several layouts counts
        with the first. Where one of the readers is on the other device, at least one of the tensors
        is converted on its way there. With more devices another one may have converted it.
        """
        if len(self.devices) != 2:
            return ()
        first_tensor = self.memory.first_tensor
        root_of: dict[int, int] = {}
        tensors: dict[int, list[int]] = {}
        pairs: list[tuple[int, int]] = self.keeps.tolist()
        for above, node in pairs:  # in topological order of the second
            root = root_of.get(above, above)
            if node not in root_of and self.chooses[root].any():
                root_of[node] = root
                tensors.setdefault(root, [int(first_tensor[root])]).append(int(first_tensor[node]))
        root_of_tensor = {tensor: root for root, group in tensors.items() for tensor in group}
        users: dict[int, set[int]] = {root: set() for root in tensors}
        for op in self.graph:
            for producer, port in op.inputs:
                root = root_of_tensor.get(int(first_tensor[producer]) + port)
                if op.type != RESULT and root is not None:
                    users[root].add(op.index)
        return tuple(
            (root, tuple(sorted(users[root])), self.leave_ns[group].min(axis=0))
            for root, group in tensors.items()
        )

    @cached_property
    def pairwise_leave_ns(self) -> np.ndarray:
        """The pairwise part of ``leave_ns`` that is paid for each tensor by itself."""
        leave = np.where(self._is_keeper[self.producer, None], 0, self.leave_ns)
        leave[[int(self.memory.first_tensor[root]) for root, *_ in self.layouts]] = 0
        return leave

    @cached_property
    def _is_keeper(self) -> np.ndarray:
        """For each node, whether it passes a layout on."""
        keeper = np.zeros(len(self.graph), dtype=bool)
        keeper[self.keeps[:, 1]] = True
        return keeper

    def device_numbers(self, affinity: Affinity) -> np.ndarray:
        """Return the number of the device of every node.

        AffinityError if the affinity is of another model; PlanError if it uses a device that the
        cost model does not know, or that does not support an op.
        """
        affinity.check_model(self.graph)
        numbers = {device: number for number, device in enumerate(self.devices)}
        check_devices(affinity.devices, self.devices)
        devices = np.array([numbers[affinity[op.name]] for op in self.graph], dtype=np.int64)
        self.check_support(devices)
        return devices

    def check_support(self, devices: np.ndarray) -> None:
        """Raise PlanError unless every op is on a device that supports it."""
        refused = np.flatnonzero(~self.supported[self._rows, devices])
        if len(refused):
            device = self.devices[int(devices[refused[0]])]
            names = [self.graph.ops[i].name for i in refused if devices[i] == devices[refused[0]]]
            raise PlanError(
                f"{device} does not support {names_at_hand(names)}. Put them on another of "
                f"{', '.join(self.devices)}."
            )

    def affinity(self, devices: np.ndarray) -> Affinity:
        """Return the affinity with these device numbers."""
        numbers, index_of = devices.tolist(), self.graph.index_of
        return Affinity.from_graph(self.graph, lambda op: self.devices[numbers[index_of[op]]])

    @cached_property
    def _rows(self) -> np.ndarray:
        return np.arange(len(self.graph))

    @cached_property
    def producer(self) -> np.ndarray:
        """For each tensor the node that makes it."""
        return np.repeat(self._rows, np.diff(self.memory.first_tensor))


def whole_ns(values: Sequence[float] | Sequence[Sequence[float]] | np.ndarray) -> np.ndarray:
    """Round µs to whole nanoseconds."""
    return np.rint(np.array(values, dtype=np.float64) * 1000.0).astype(np.int64)


def _sums(groups: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    """Add up integers by group; exact below 2**53."""
    return np.bincount(groups, weights=values, minlength=n).astype(np.int64)
