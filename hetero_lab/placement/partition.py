"""The subgraphs and boundaries that HETERO makes of a model and an affinity.

The rule is that of OpenVINO's HETERO plugin (``SubgraphCollector``, 2026.4; Apache-2.0, see
NOTICE), reimplemented on arrays: neighbours of equal affinity merge; while some subgraph depends on
itself through another one, it is split at the inputs that close the cycle; remaining cycles are
split node by node inside the strongly connected components (``cycles``). Constants are copied,
never cut, but one constant that two parts of a device share joins them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
from msgspec import structs

from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.errors import names_at_hand
from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT, OpGraph, grouped
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.cycles import (
    ConvexityMemo,
    ConvexityRepair,
    CycleBreaking,
    CycleMemo,
    Rank,
    uncut_ranks,
)
from hetero_lab.placement.placement import (
    BoundPlacement,
    Knowledge,
    PlacementLike,
    affinity_elsewhere,
    resolve,
)
from hetero_lab.placement.topology import Topology, strong_components, topology, weak_components
from hetero_lab.result import Framed
from hetero_lab.tables import frame_of
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


_Entry: TypeAlias = tuple[str | int, ...]
Cut: TypeAlias = "tuple[np.ndarray, np.ndarray]"  # whether each edge is cut; subgraph of each node


class Subgraph(msgspec.Struct, frozen=True, array_like=True):
    """Ops that HETERO compiles as one submodel; a partition numbers them in execution order.

    ``ops`` are names in topological order, without constants, parameters and results.
    """

    device: str
    ops: tuple[str, ...]
    index: int = 0


class Boundary(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that crosses from subgraph ``source`` into the subgraphs ``targets``.

    ``tensor`` is ``op`` with ``:port`` where the op has several outputs. ``n_bytes`` is ``None``
    where the shape is not known.
    """

    tensor: str
    op: str
    port: int
    source: int
    targets: tuple[int, ...]
    n_bytes: int | None


class Wiring(msgspec.Struct, frozen=True, array_like=True):
    """The inputs and outputs of a submodel, in its own order.

    An entry is ``("model", index)`` of the model's ports, or ``("tensor", op, port)``.
    """

    inputs: tuple[_Entry, ...]
    outputs: tuple[_Entry, ...]


@dataclass(frozen=True)
class Partition(Framed):
    """The subgraphs in execution order and the boundaries between them.

    ``observed`` tells whether the runtime compiled it, or it is only predicted. ``home`` is
    the subgraph of every node of the graph in its order, -1 for constants that are copied to
    their users; it is empty where that is not known.
    """

    subgraphs: tuple[Subgraph, ...]
    boundaries: tuple[Boundary, ...]
    wiring: tuple[Wiring, ...] = ()
    observed: bool = False
    home: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        numbered = (structs.replace(s, index=i) for i, s in enumerate(self.subgraphs))
        object.__setattr__(self, "subgraphs", tuple(numbered))

    @property
    def n_subgraphs(self) -> int:
        """Number of subgraphs."""
        return len(self.subgraphs)

    @property
    def boundary_bytes(self) -> int:
        """Bytes of all boundary tensors, each tensor once; those of unknown size are left out."""
        return sum(boundary.n_bytes or 0 for boundary in self.boundaries)

    @property
    def n_crossings(self) -> int:
        """Number of edges between subgraphs: each boundary once per receiving subgraph."""
        return sum(len(boundary.targets) for boundary in self.boundaries)

    @property
    def subgraph_of(self) -> dict[str, int]:
        """Op name → index of its subgraph."""
        return {op: subgraph.index for subgraph in self.subgraphs for op in subgraph.ops}

    def __repr__(self) -> str:
        how = "observed" if self.observed else "predicted"
        return (
            f"Partition({count_of(self.n_subgraphs, 'subgraph')}, "
            f"{count_of(len(self.boundaries), 'boundary')}, "
            f"{boundary_size(self, f'{self.boundary_bytes} bytes')}, {how})"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per subgraph: ``subgraph``, ``device``, ``n_ops``, ``ops``."""
        rows = [(s.index, s.device, len(s.ops), "\n".join(s.ops)) for s in self.subgraphs]
        return frame_of(rows, ["subgraph", "device", "n_ops", "ops"])


class SubgraphCollector:
    """Splits one graph for any placement, and remembers the cuts that placements share."""

    def __init__(self, graph: OpGraph):
        self.topology: Topology = topology(graph)
        self.convexity_memo: ConvexityMemo = ConvexityMemo()
        self.cycle_memo: CycleMemo = CycleMemo()

    @classmethod
    def of(cls, graph: OpGraph) -> SubgraphCollector:
        return graph.derived(cls)

    @cached_property
    def _uncut_ranks(self) -> list[Rank]:
        return uncut_ranks(self.topology)

    def split(self, devices: np.ndarray) -> Cut:
        """Cut the graph where HETERO cuts it, in close to linear time.

        ``devices`` numbers the device of each node, shape ``[n_nodes]``. A constant is where its
        leader is; the device of a result is ignored.
        """
        top = self.topology
        cut = top.between_devices(devices)
        ids = weak_components(top, cut)
        components = self.cyclic_components(cut, ids)
        if components is None:  # the usual case
            return cut, ids
        # Only nodes of cyclic subgraphs can need a further cut. Numbers of subgraphs change with
        # each stage, so components are found anew after the repair.
        flags = bytearray(cut.tobytes())
        repair = ConvexityRepair(top, flags, ids.tolist(), self.convexity_memo)
        repair.repair(np.flatnonzero(components[ids] >= 0).tolist())
        cut = np.frombuffer(flags, dtype=bool)
        ids = weak_components(top, cut)
        components = self.cyclic_components(cut, ids)
        if components is not None:
            flags = bytearray(flags)
            CycleBreaking(
                top, flags, ids, components, self._uncut_ranks, self.cycle_memo
            ).break_cycles()
            cut = np.frombuffer(flags, dtype=bool)
            ids = weak_components(top, cut)
        return cut, ids

    def cyclic_components(self, cut: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
        """Number the strongly connected components of several subgraphs, -1 for the others.

        ``None`` if there is none: no subgraph depends on itself through another one.
        """
        top = self.topology
        n = int(ids.max()) + 1 if len(ids) else 0
        labels = strong_components(ids[top.source[cut]], ids[top.target[cut]], n)
        cyclic = np.bincount(labels, minlength=n)[labels] > 1
        return np.where(cyclic, labels, -1) if cyclic.any() else None


def partition(model: Source, placement: PlacementLike, *, core: ov.Core | None = None) -> Partition:
    """Predict the subgraphs and boundaries that HETERO will make, without compiling.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        An Affinity, a Placement, ``"HETERO:ACC,CPU"`` or ``"CPU"``.

    Returns
    -------
    Partition
        ``.subgraphs``, ``.boundaries``, ``.n_subgraphs``, ``.boundary_bytes``.

    Raises
    ------
    AffinityError, DeviceError
        The affinity is of another model, or a device cannot run what is placed on it.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> found = hl.partition(model, "HETERO:ACC,CPU")
    >>> [(subgraph.device, len(subgraph.ops)) for subgraph in found.subgraphs]
    [('ACC', 91), ('CPU', 1)]
    >>> found.boundary_bytes
    40
    """
    return partition_of(resolve(bind(model, core), placement))


def partition_of(placement: BoundPlacement) -> Partition:
    """Predict the partition that a placement is compiled as."""
    predicted = predict(placement.graph, placement.affinity)
    return one_subgraph(predicted, placement.affinity.devices[0]) if placement.direct else predicted


def affinity_and_partition(
    bound: BoundModel, placement: PlacementLike, costs: Knowledge | None
) -> tuple[Affinity, Partition]:
    """Return both for a checked placement, on devices that are here or that only costs know."""
    far = None if costs is None else affinity_elsewhere(bound, placement, costs)
    if far is not None:
        return far, predict(bound.graph, far)
    bound_placement = resolve(bound, placement)
    return bound_placement.affinity, partition_of(bound_placement)


def boundary_size(partition: Partition, size: str) -> str:
    """Return the size of all boundaries in words; ``size`` is that of those of known size."""
    n_unknown = sum(boundary.n_bytes is None for boundary in partition.boundaries)
    return f"≥ {size}, {n_unknown} of unknown size" if n_unknown else size


def predict(graph: OpGraph, affinity: Affinity, levels: Sequence[int] | None = None) -> Partition:
    """Predict the partition; AffinityError if the affinity is of another model.

    Given the level of each node, neighbours on one device merge only if they share a level.
    """
    devices = devices_of(graph, affinity)
    numbers: dict[tuple[str, int], int] = {}
    apart = zip(devices, levels or [0] * len(devices), strict=True)
    numbered = [numbers.setdefault(key, len(numbers)) for key in apart]
    return _collect(graph, devices, *SubgraphCollector.of(graph).split(np.array(numbered)))


def partition_of_split(graph: OpGraph, affinity: Affinity, ids: np.ndarray) -> Partition:
    """Do as :func:`predict`, given the subgraph number of every node."""
    top = topology(graph)
    return _collect(graph, devices_of(graph, affinity), ids[top.source] != ids[top.target], ids)


def devices_of(graph: OpGraph, affinity: Affinity) -> list[str]:
    affinity.check_model(graph)
    devices = [affinity[op.name] for op in graph.ops]
    # A Result is where its producer is, whatever its own affinity says.
    for op in graph.ops:
        if op.type == RESULT:
            devices[op.index] = devices[op.inputs[0][0]]
    return devices


def one_subgraph(predicted: Partition, device: str) -> Partition:
    """Return the partition of a model that is compiled on one device, without HETERO."""
    ops = [op for subgraph in predicted.subgraphs for op in subgraph.ops]
    return Partition((Subgraph(device, tuple(ops)),), ())


def _collect(
    graph: OpGraph, devices: Sequence[str], cut: np.ndarray, numbers: np.ndarray
) -> Partition:
    """Order the subgraphs as they run and list the tensors that cross between them."""
    top, ids = topology(graph), numbers.tolist()
    crossing: dict[tuple[int, int], list[int]] = {}  # tensor → receiving subgraphs
    for edge in np.flatnonzero(cut & ~top.from_constant).tolist():
        producer, source_port = int(top.source[edge]), top.source_port[edge]
        if (producer, source_port) not in crossing:
            users = (u for u in graph.consumers[producer] if u.source_port == source_port)
            receivers = dict.fromkeys(ids[u.index] for u in users if ids[u.index] != ids[producer])
            crossing[producer, source_port] = list(receivers)
    crossing = {tensor: receivers for tensor, receivers in crossing.items() if receivers}
    inputs: dict[int, list[_Entry]] = defaultdict(list)
    outputs: dict[int, list[_Entry]] = defaultdict(list)
    for number, index in enumerate(graph.parameters):
        inputs[ids[index]].append(("model", number))
    for number, index in enumerate(graph.results):
        outputs[ids[index]].append(("model", number))
    feeds: dict[int, set[int]] = defaultdict(set)
    for (producer, port), receivers in crossing.items():
        feeds[ids[producer]].update(receivers)
        entry = ("tensor", graph.ops[producer].name, port)
        outputs[ids[producer]].append(entry)
        for receiver in receivers:
            inputs[receiver].append(entry)
    members = grouped((subgraph, index) for index, subgraph in enumerate(ids))
    sinks = {ids[op.index] for op in graph if op.type == "Assign"}
    # A group of nodes without inputs, outputs or sinks holds constants alone, which are copied to
    # their users: the runtime makes no submodel of it.
    real = [s for s in members if s in inputs or s in outputs or s in sinks]
    order = _execution_order(real, feeds, members)
    position = {subgraph: index for index, subgraph in enumerate(order)}
    placeable = set(graph.placeable)
    subgraphs = tuple(
        Subgraph(
            device=_device(graph, devices, members[s]),
            ops=tuple(graph.ops[i].name for i in members[s] if i in placeable),
        )
        for s in order
    )
    crossings = tuple(
        Boundary(
            tensor=graph.ops[producer].tensor_name(port),
            op=graph.ops[producer].name,
            port=port,
            source=position[ids[producer]],
            targets=tuple(sorted(position[r] for r in receivers)),
            n_bytes=graph.ops[producer].outputs[port].n_bytes,
        )
        for (producer, port), receivers in crossing.items()
    )
    wiring = tuple(Wiring(tuple(inputs[s]), tuple(outputs[s])) for s in order)
    home = tuple(position.get(subgraph, -1) for subgraph in ids)
    return Partition(subgraphs, crossings, wiring, home=home)


def _execution_order(
    subgraphs: list[int], feeds: dict[int, set[int]], members: dict[int, list[int]]
) -> list[int]:
    """Order in waves, as the runtime does: a subgraph follows the last one that it reads from."""
    sorter = TopologicalSorter(dict.fromkeys(subgraphs, ()))
    for subgraph, receivers in feeds.items():
        for receiver in receivers:
            sorter.add(receiver, subgraph)
    sorter.prepare()
    order: list[int] = []
    while sorter.is_active():
        wave = sorted(sorter.get_ready(), key=lambda s: members[s][0])
        order += wave
        sorter.done(*wave)
    return order


def _device(graph: OpGraph, devices: Sequence[str], members: Sequence[int]) -> str:
    """Return a submodel's device: of its ops, else of its parameters, else of its constants.

    What is computed from constants is copied to each of its users, wherever they are.
    """

    def rank(index: int) -> tuple[bool, bool, bool]:
        kind = graph.ops[index].type
        return index in graph.constant_side, kind == CONSTANT, kind == PARAMETER

    return devices[min(members, key=rank)]


def torn_path(graph: OpGraph, partition: Partition) -> list[str]:
    """Return the ops of a state that is read in one subgraph and written in another, if one is."""
    where = partition.subgraph_of
    paths = ([graph.ops[i].name for i in path] for path in graph.stateful_paths)
    return next((p for p in paths if len({where[n] for n in p if n in where}) > 1), [])


def check_partition(partition: Partition, graph: OpGraph) -> None:
    """Raise ValueError for a partition, read from a file, that is none of this graph."""
    lacking = [op for s in partition.subgraphs for op in s.ops if op not in graph.index_of]
    ends = {end for b in partition.boundaries for end in (b.source, *b.targets)}
    if lacking or not ends <= set(range(partition.n_subgraphs)):
        raise ValueError(f"its partition names {names_at_hand(lacking, 3) or 'subgraphs'} it lacks")


def observed_partition(predicted: Partition, order: list[int]) -> Partition:
    """Return a partition as observed; ``order`` has the predicted index of each one that ran."""
    position = {old: new for new, old in enumerate(order)}
    return Partition(
        subgraphs=tuple(predicted.subgraphs[old] for old in order),
        boundaries=tuple(
            structs.replace(
                b,
                source=position[b.source],
                targets=tuple(sorted(position[target] for target in b.targets)),
            )
            for b in predicted.boundaries
        ),
        wiring=tuple(predicted.wiring[old] for old in order),
        observed=True,
        home=tuple(position.get(old, -1) for old in predicted.home),
    )


@dataclass(frozen=True, slots=True)
class Displacement:
    """Why an op is not on its preferred device, which is an earlier one.

    That cannot run the op, or the op went along with ``causes``, which are next to it.
    """

    device: str
    causes: tuple[str, ...] = ()

    @property
    def is_cause(self) -> bool:
        """Whether the device cannot run the op."""
        return not self.causes

    def __str__(self) -> str:
        if self.is_cause:
            return f"{self.device} cannot run it"
        return f"{self.device} could run it; it is placed with {names_at_hand(self.causes, 3)}"


def displacements(
    graph: OpGraph, partition: Partition, able: Mapping[str, Collection[str]]
) -> dict[str, Displacement]:
    """Return the ops that are not on their preferred device, by name, and why.

    Every op prefers the first device of ``able``, which maps devices to the ops that they support.
    An op on a later one is a cause if no earlier device supports it; it is a consequence if one
    does and it exchanges a tensor with a cause of its subgraph. Subgraphs on other devices and ops
    that no device supports are left out.
    """
    order = list(able)
    supported = frozenset().union(*able.values())
    reasons: dict[str, Displacement] = {}
    for subgraph in partition.subgraphs:
        if subgraph.device not in order[1:]:
            continue
        earlier = order[: order.index(subgraph.device)]
        first_able = {
            op: next((device for device in earlier if op in able[device]), None)
            for op in subgraph.ops
            if op in supported
        }
        for op, device in first_able.items():
            if device is None:
                reasons[op] = Displacement(earlier[0])
                continue
            beside = (graph.ops[i].name for i in graph.neighbours(graph.index_of[op]))
            if causes := tuple(name for name in beside if first_able.get(name, "") is None):
                reasons[op] = Displacement(device, causes)
    return reasons
