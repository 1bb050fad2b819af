"""Data of a placement graph: nodes, edges and subgraphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.devices.core import bases_of, bind
from hetero_lab.errors import ArgumentError, names_at_hand
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.opgraph import PARAMETER, RESULT, Op, OpGraph, Tensor
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import (
    Displacement,
    Partition,
    Subgraph,
    affinity_and_partition,
    boundary_size,
    displacements,
)
from hetero_lab.placement.placement import PlacementLike
from hetero_lab.placement.priorities import Priorities, order_of
from hetero_lab.planning.simplify import simplify_bound
from hetero_lab.results.profile_report import counted_beyond
from hetero_lab.results.profile_result import Profile
from hetero_lab.runtime.counters import (
    Counter,
    executed_ops_us,
    executed_precisions,
    leaders,
    reorders_us,
)
from hetero_lab.tables import bytes_text
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import squeeze, time_text

if TYPE_CHECKING:
    import pandas as pd

Support: TypeAlias = "pd.DataFrame | CostModel"

NO_SUBGRAPH = -1
_TANGLED = 3  # wires for each node


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An ``op``, a ``group`` of folded ones, or a model ``input`` or ``output`` (``kind``).

    ``subgraph`` is ``NO_SUBGRAPH`` for inputs and outputs. ``time_us`` is ``None`` where it is
    not known, and 0 where the op runs inside the node of ``leader``; ``fused`` are the ops that
    run inside this one's node. ``ops`` are the names of folded ops, and ``types`` and ``devices``
    count them; ``n_unseen`` counts the neighbours that are left out of the picture. ``block``
    names the repeated layer of the op, if it is in one. ``displaced`` says why an op, or some op
    of a group, is not on the device of its choice, where that is known.
    """

    index: int
    kind: str
    name: str
    type: str
    device: str
    subgraph: int
    tensors: tuple[Tensor, ...]
    time_us: float | None = None
    precision: str = ""
    leader: str = ""
    fused: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    types: tuple[tuple[str, int], ...] = ()
    devices: tuple[tuple[str, int], ...] = ()
    n_unseen: int = 0
    block: str = ""
    displaced: Displacement | None = None

    @property
    def is_port(self) -> bool:
        """Whether it is a model input or output."""
        return self.kind in ("input", "output")

    @property
    def n_ops(self) -> int:
        """Number of ops that it stands for."""
        return 0 if self.is_port else len(self.ops) or 1


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """All tensors that one node reads from another.

    ``sizes`` are bytes, ``reorder_us`` the time of layout conversions; ``None`` if not known.
    """

    source: int
    target: int
    tensors: tuple[str, ...]
    sizes: tuple[int | None, ...]
    is_boundary: bool
    reorder_us: float | None = None

    @property
    def n_bytes(self) -> int | None:
        """Bytes of all tensors, ``None`` if one is not known."""
        return None if None in self.sizes else sum(size or 0 for size in self.sizes)


@dataclass(frozen=True, slots=True)
class GraphBox:
    """One or several subgraphs from ``index`` on; ``n_unseen`` counts ops that are left out."""

    index: int
    device: str
    nodes: tuple[int, ...]
    n_unseen: int = 0
    n_subgraphs: int = 1


@dataclass(frozen=True)
class GraphData:
    """The content of a placement graph.

    A node's ``index`` is that of its op; folding renumbers the nodes. Sources come
    before targets in either case. ``marked`` are the nodes that were searched for. ``notes``
    tell what is folded or left out. ``whole_us`` is the time of all ops, including omitted ones.
    """

    title: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    boxes: tuple[GraphBox, ...]
    emulated: Mapping[str, str] = field(default_factory=dict)
    marked: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    whole_us: float | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices in order of their first subgraph."""
        return tuple(dict.fromkeys(box.device for box in self.boxes))

    @cached_property
    def is_timed(self) -> bool:
        """Whether the ops' times are known."""
        return any(node.time_us is not None for node in self.nodes)

    @cached_property
    def total_us(self) -> float:
        """Sum of the ops' known times in µs."""
        if self.whole_us is not None:
            return self.whole_us
        return float(sum(node.time_us or 0.0 for node in self.nodes))

    @property
    def is_tangled(self) -> bool:
        """Whether there are too many wires to follow any."""
        return len(self.edges) > _TANGLED * len(self.nodes)

    @property
    def n_ops(self) -> int:
        """Number of ops, folded ones included."""
        return sum(node.n_ops for node in self.nodes)

    @cached_property
    def node_of(self) -> dict[int, GraphNode]:
        """Node by index."""
        return {node.index: node for node in self.nodes}

    def box_us(self, box: GraphBox) -> float | None:
        """Return the time of a subgraph's ops in µs, ``None`` if no time is known."""
        times = [self.node_of[index].time_us for index in box.nodes]
        known = [time for time in times if time is not None]
        return float(sum(known)) if known and not box.n_unseen else None


def data_of_profile(
    profile: Profile, support: Support | None = None, costs: CostModel | None = None
) -> GraphData:
    """Build the data of a measured placement; without counters, ``costs`` tell the ops' times."""
    median = time_text(profile.latency.median_us)
    what = f"{squeeze(profile.graph.name, 50)} on {squeeze(profile.configuration, 80)}"
    return graph_data(
        profile.graph,
        profile.affinity,
        profile.partition,
        emulated=dict(profile.environment.emulated),
        counters=profile.counters,
        costs=costs,
        title=f"{what}: {median}, {structure(profile.partition)}",
        support=support,
        notes=tuple(filter(None, [profile.few_subgraphs, counted_beyond(profile)])),
    )


def data_of_placement(
    model: Source,
    placement: PlacementLike | None = None,
    support: Support | None = None,
    costs: CostModel | None = None,
) -> GraphData:
    """Build the data of a placement that was not measured, by default that of all devices here."""
    bound = bind(model)
    if placement is None:
        placement = Priorities(order_of(None, bound.core))
    affinity, partition = affinity_and_partition(bound, placement, costs)
    remark = simplify_bound(bound, placement, costs=costs).remark
    return graph_data(
        bound.graph,
        affinity,
        partition,
        emulated=bases_of(affinity.devices, bound.core),
        costs=costs,
        support=support,
        notes=(remark,) if remark else (),
    )


def known_support(support: Support) -> dict[str, frozenset[str]]:
    """Return the ops of each device, in order; ArgumentError for something else."""
    if isinstance(support, CostModel):
        return {device: support.supports(device) for device in support.devices}
    columns = list(getattr(support, "columns", ()))
    if columns[:2] != ["op", "op_type"] or len(columns) < 3:
        raise ArgumentError(
            "Give the result of hetero_lab.support(model, devices) or of "
            "hetero_lab.calibrate(model, devices), not "
            f"{type(support).__name__} {names_at_hand(columns)}."
        )
    ops = list(support["op"])
    return {
        str(device): frozenset(op for op, able in zip(ops, support[device], strict=True) if able)
        for device in columns[2:]
    }


def times_by_device(costs: CostModel, devices: Sequence[str]) -> dict[str, list[float | None]]:
    """Return the time of each op on each of ``devices`` in µs, where the cost model knows it."""
    columns = [costs.devices.index(d) if d in costs.devices else None for d in devices]
    return {
        op: [None if at is None or (us := known[at]) is None else round(us, 2) for at in columns]
        for op, known in costs.op_us.items()
    }


def structure(partition: Partition) -> str:
    """Describe a partition in words."""
    subgraphs = count_of(partition.n_subgraphs, "subgraph")
    if not partition.boundaries:
        return subgraphs
    size = boundary_size(partition, bytes_text(partition.boundary_bytes))
    return f"{subgraphs}, {count_of(len(partition.boundaries), 'boundary')} of {size}"


def graph_data(
    graph: OpGraph,
    affinity: Affinity,
    partition: Partition,
    *,
    emulated: Mapping[str, str] | None = None,
    counters: Sequence[Counter] = (),
    costs: CostModel | None = None,
    title: str = "",
    support: Support | None = None,
    notes: tuple[str, ...] = (),
) -> GraphData:
    """Build the data of any placement, without constants and ops computed from constants alone.

    The ops' times are those of the counters or, without counters, predicted by ``costs``. Raises
    ArgumentError if the partition is of another model, or ``support`` is something else; PlanError
    if the costs are, or do not know a device.
    """
    affinity.check_model(graph)
    named = [op for s in partition.subgraphs for op in s.ops]
    named += [boundary.op for boundary in partition.boundaries]
    strange = [name for name in named if name not in graph.index_of]
    if strange:
        raise ArgumentError(
            f"The partition is of another model: {graph.name!r} has no op {strange[0][:80]!r}."
        )
    members = _members(graph, partition)
    where = {op: subgraph for subgraph in partition.subgraphs for op in members[subgraph.index]}
    displaced = {} if support is None else displacements(graph, partition, known_support(support))
    how = "observed" if partition.observed else "predicted"
    predicted_us = {} if costs is None or counters else _predicted_us(costs, graph, affinity)
    facts = _facts(counters, predicted_us)
    nodes = tuple(
        replace(
            _node(op, graph, affinity, where.get(op.index)),
            displaced=displaced.get(op.name),
            **facts.get(op.name, {}),
        )
        for op in graph
        if op.index in where or op.index not in graph.constant_side
    )
    return GraphData(
        title=title or f"{squeeze(graph.name, 50)}: {structure(partition)} ({how})",
        nodes=nodes,
        edges=_edges(graph, {node.index: node for node in nodes}, partition, counters),
        boxes=tuple(GraphBox(s.index, s.device, members[s.index]) for s in partition.subgraphs),
        emulated=dict(emulated or {}),
        notes=(*notes, *(["times of ops: predicted by the cost model"] if predicted_us else [])),
    )


def _predicted_us(costs: CostModel, graph: OpGraph, affinity: Affinity) -> dict[str, float]:
    costs.check_graph(graph)
    costs.check_devices(affinity.devices)
    column = {device: number for number, device in enumerate(costs.devices)}
    times = ((op, known[column[affinity[op]]]) for op, known in costs.op_us.items())
    return {op: us for op, us in times if us is not None}


def _facts(counters: Sequence[Counter], times_us: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return the known facts about each op, as fields of its node."""
    precisions, leader_of = executed_precisions(counters), leaders(counters)
    if counters:
        times_us = executed_ops_us(counters)
    fused = {counter.op: counter.fused_ops for counter in counters if counter.fused_ops}
    return {
        op: {
            "time_us": us,
            "precision": precisions.get(op, ""),
            "leader": "" if leader_of.get(op, op) == op else leader_of[op],
            "fused": fused.get(op, ()),
        }
        for op, us in times_us.items()
    }


def _members(graph: OpGraph, partition: Partition) -> dict[int, tuple[int, ...]]:
    """Return the nodes that are drawn inside each subgraph.

    These are its ops, the tensors it hands over (computed weights too), and the model inputs and
    outputs of a subgraph that only copies.
    """
    members: dict[int, set[int]] = {
        s.index: {graph.index_of[op] for op in s.ops} for s in partition.subgraphs
    }
    for boundary in partition.boundaries:
        index = graph.index_of[boundary.op]
        if index in graph.constant_side:
            members[boundary.source].add(index)
    for subgraph, wiring in zip(partition.subgraphs, partition.wiring, strict=False):
        if not members[subgraph.index]:
            ports = [graph.parameters[int(e[1])] for e in wiring.inputs if e[0] == "model"]
            ports += [graph.results[int(e[1])] for e in wiring.outputs if e[0] == "model"]
            members[subgraph.index] = set(ports)
    return {index: tuple(sorted(ops)) for index, ops in members.items()}


def _node(op: Op, graph: OpGraph, affinity: Affinity, subgraph: Subgraph | None) -> GraphNode:
    block = find_blocks(graph).numbered(op.index)
    kind = {PARAMETER: "input", RESULT: "output"}.get(op.type, "op")
    tensors = op.outputs
    name = op.name
    if kind == "output":
        producer, port = op.inputs[0]
        tensors = (graph.ops[producer].outputs[port],)
    if kind != "op":
        name = tensors[0].name or op.name
    return GraphNode(
        index=op.index,
        kind=kind,
        name=name,
        type=op.type,
        device=subgraph.device if subgraph else affinity[op.name],
        subgraph=subgraph.index if subgraph else NO_SUBGRAPH,
        tensors=tensors,
        block="" if block is None or kind != "op" else f"block {block}",
    )


def _edges(
    graph: OpGraph,
    drawn: Mapping[int, GraphNode],
    partition: Partition,
    counters: Sequence[Counter],
) -> tuple[GraphEdge, ...]:
    boundaries = {(b.op, b.port): b for b in partition.boundaries}
    reorders = reorders_us(counters, partition)
    edges = []
    for node in drawn.values():
        by_producer: dict[int, set[int]] = {}
        for producer, port in graph.ops[node.index].inputs:
            if producer in drawn:
                by_producer.setdefault(producer, set()).add(port)
        for producer, read in by_producer.items():
            op, ports, ends = graph.ops[producer], sorted(read), (drawn[producer], node)
            found = [boundaries.get((op.name, port)) for port in ports]
            homes = {end.subgraph for end in ends}
            crosses = len(homes) > 1 and NO_SUBGRAPH not in homes
            measured = crosses and bool(counters)
            edges.append(
                GraphEdge(
                    source=producer,
                    target=node.index,
                    tensors=tuple(
                        b.tensor if b else op.tensor_name(port)
                        for b, port in zip(found, ports, strict=True)
                    ),
                    sizes=tuple(op.outputs[port].n_bytes for port in ports),
                    is_boundary=crosses,
                    reorder_us=sum(reorders[b.tensor] for b in found if b) if measured else None,
                )
            )
    return tuple(edges)
