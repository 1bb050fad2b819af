"""Data of a placement graph: nodes, edges, subgraphs; their labels and hover texts, escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.devices.core import bases_of, bind
from hetero_lab.errors import ArgumentError, names_at_hand
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.opgraph import PARAMETER, RESULT, Op, OpGraph, Tensor, grouped
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
from hetero_lab.terminal import count_of, first_of
from hetero_lab.views.theme import device_label, hover, plain, squeeze, time_text

if TYPE_CHECKING:
    import pandas as pd

Support: TypeAlias = "pd.DataFrame | CostModel"

NO_SUBGRAPH = -1  # below the number of any
_TANGLED = 3  # wires for each node
BIG = 160  # a graph of more ops than this has labels beside slow nodes only
EXIT_LABEL_LIMIT = 60  # more boundaries than this have no bytes beside them
_SLOW = 0.03  # an op with more than this share of the time has it in its label
_MOST_MARKED = 40  # more ops than this that were searched for are not all named
_MOST = 4  # tensors or names that are listed


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
        return self.kind in ("input", "output")

    @property
    def n_ops(self) -> int:
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
        return any(node.time_us is not None for node in self.nodes)

    @cached_property
    def total_us(self) -> float:
        """Sum of the ops' known times in µs."""
        known_us = float(sum(node.time_us or 0.0 for node in self.nodes))
        return known_us if self.whole_us is None else self.whole_us

    @property
    def is_tangled(self) -> bool:
        """Whether there are too many wires to follow any."""
        return len(self.edges) > _TANGLED * len(self.nodes)

    @property
    def is_big(self) -> bool:
        """Whether it has so many ops that it is drawn densely, without most labels."""
        return sum(not node.is_port for node in self.nodes) > BIG

    @property
    def n_ops(self) -> int:
        return sum(node.n_ops for node in self.nodes)

    @cached_property
    def node_of(self) -> dict[int, GraphNode]:
        return {node.index: node for node in self.nodes}

    def box_us(self, box: GraphBox) -> float | None:
        """Return the time of a subgraph's ops in µs, ``None`` if no time is known."""
        times = [self.node_of[index].time_us for index in box.nodes]
        known_us = [time for time in times if time is not None]
        return float(sum(known_us)) if known_us and not box.n_unseen else None


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


def support_sets(support: Support) -> dict[str, frozenset[str]]:
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


def structure(partition: Partition) -> str:
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
    names = [op for s in partition.subgraphs for op in s.ops]
    names += [boundary.op for boundary in partition.boundaries]
    strange = [name for name in names if name not in graph.index_of]
    if strange:
        raise ArgumentError(
            f"The partition is of another model: {graph.name!r} has no op {strange[0][:80]!r}."
        )
    members = _members(graph, partition)
    where = {op: subgraph for subgraph in partition.subgraphs for op in members[subgraph.index]}
    displaced = {} if support is None else displacements(graph, partition, support_sets(support))
    how = "observed" if partition.observed else "predicted"
    predicted_us = {} if costs is None or counters else _predicted_us(costs, graph, affinity)
    if predicted_us:
        notes = (*notes, "times of ops: predicted by the cost model")
    facts = _facts(counters, predicted_us)
    nodes = {
        op.index: replace(
            _node(op, graph, affinity, where.get(op.index)),
            displaced=displaced.get(op.name),
            **facts.get(op.name, {}),
        )
        for op in graph
        if op.index in where or op.index not in graph.constant_side
    }
    return GraphData(
        title=title or f"{squeeze(graph.name, 50)}: {structure(partition)} ({how})",
        nodes=tuple(nodes.values()),
        edges=_edges(graph, nodes, partition, counters),
        boxes=tuple(GraphBox(s.index, s.device, members[s.index]) for s in partition.subgraphs),
        emulated=emulated or {},
        notes=notes,
    )


def _predicted_us(costs: CostModel, graph: OpGraph, affinity: Affinity) -> dict[str, float]:
    costs.check_graph(graph)
    costs.check_devices(affinity.devices)
    column = {device: number for number, device in enumerate(costs.devices)}
    times = ((op, times_us[column[affinity[op]]]) for op, times_us in costs.op_us.items())
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
    members = {s.index: {graph.index_of[op] for op in s.ops} for s in partition.subgraphs}
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
    kind = {PARAMETER: "input", RESULT: "output"}.get(op.type, "op")
    tensors = op.outputs
    if kind == "output":
        producer, port = op.inputs[0]
        tensors = (graph.ops[producer].outputs[port],)
    block = find_blocks(graph).numbered(op.index) if kind == "op" else None
    return GraphNode(
        index=op.index,
        kind=kind,
        name=op.name if kind == "op" else tensors[0].name or op.name,
        type=op.type,
        device=subgraph.device if subgraph else affinity[op.name],
        subgraph=subgraph.index if subgraph else NO_SUBGRAPH,
        tensors=tensors,
        block="" if block is None else f"block {block}",
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
        for producer, uses in grouped(graph.ops[node.index].inputs).items():
            if producer not in drawn:
                continue
            op, ports = graph.ops[producer], sorted(set(uses))
            crossing = {port: boundaries.get((op.name, port)) for port in ports}
            homes = {drawn[producer].subgraph, node.subgraph}
            crosses = len(homes) > 1 and NO_SUBGRAPH not in homes
            reorder_us = sum(reorders[b.tensor] for b in crossing.values() if b)
            edges.append(
                GraphEdge(
                    source=producer,
                    target=node.index,
                    tensors=tuple(
                        b.tensor if b else op.tensor_name(p) for p, b in crossing.items()
                    ),
                    sizes=tuple(op.outputs[port].n_bytes for port in ports),
                    is_boundary=crosses,
                    reorder_us=reorder_us if crosses and counters else None,
                )
            )
    return tuple(edges)


def node_labels(data: GraphData) -> dict[int, str]:
    """Return the labels beside nodes, in lines."""
    labels, is_big = {}, data.is_big
    for node in data.nodes:
        slow = bool(node.time_us) and (node.time_us or 0.0) > _SLOW * data.total_us
        if node.kind == "group":
            labels[node.index] = "\n".join(_group_label(node, slow))
        elif node.index in data.marked and len(data.marked) <= _MOST_MARKED:
            labels[node.index] = squeeze(node.name, 24)
        elif slow or not is_big:
            label = squeeze(node.type if node.kind == "op" else node.name, 18)
            labels[node.index] = f"{label}\n{time_text(node.time_us or 0.0)}" if slow else label
    return labels


def _group_label(node: GraphNode, slow: bool) -> list[str]:
    name = node.name if len(node.name) <= 20 else f"…{squeeze(node.name[-40:], 40)[-19:]}"
    lines = [squeeze(name, 20), f"{node.n_ops} ops"]
    if len(node.devices) > 1:
        lines[1:] = [f"{n} on {squeeze(device, 14)}" for device, n in node.devices[:3]]
    return [*lines, *([time_text(node.time_us or 0.0)] if slow else [])]


def exit_labels(data: GraphData) -> dict[int, str]:
    """Return the bytes of the tensors that leave a subgraph, by the op that makes them."""
    sizes: dict[int, dict[str, int | None]] = {}
    for edge in data.edges:
        if edge.is_boundary:
            tensors = sizes.setdefault(edge.source, {})
            tensors.update(zip(edge.tensors, edge.sizes, strict=True))
    if len(sizes) > EXIT_LABEL_LIMIT:
        return {}
    return {
        op: bytes_text(sum(size or 0 for size in each.values()))
        for op, each in sizes.items()
        if None not in each.values()
    }


def box_titles(data: GraphData) -> dict[int, tuple[str, ...]]:
    """Return titles of each subgraph, from long to the shortest that must fit."""
    titles, is_big = {}, data.is_big
    for box in data.boxes:
        device = squeeze(box.device, 24)
        us = data.box_us(box)
        if box.n_unseen:
            device += f", {count_of(box.n_unseen, 'more op')}"
        options = [f"subgraph {box.index} · {device}", f"{box.index} · {device}"]
        if box.n_subgraphs > 1:
            options = [count_of(box.n_subgraphs, "subgraph"), str(box.index)]
        if us is not None:
            timed = [f"{option} · {time_text(us)}" for option in options]
            options = [*timed, options[1]] if is_big else timed
        titles[box.index] = tuple(options)
    return titles


def box_hover(box: GraphBox, data: GraphData) -> str:
    n_ops = sum(data.node_of[index].n_ops for index in box.nodes)
    what = f"<b>subgraph {box.index}</b> on {device_label(box.device, data.emulated)}"
    if box.n_subgraphs > 1:
        what = f"<b>{box.n_subgraphs} subgraphs</b> from subgraph {box.index} on"
    us = data.box_us(box)
    return hover(
        what,
        count_of(n_ops, "op") if n_ops else "it only copies",
        f"and {box.n_unseen} that are not shown" if box.n_unseen else "",
        "" if us is None else f"its ops take {_took(us, data)}",
    )


def op_hover(node: GraphNode, data: GraphData) -> str:
    """Describe an op, or ops that are drawn as one."""
    if is_group := node.kind == "group":
        counts = node.devices[:_MOST]
        devices = ", ".join(f"{n} on {device_label(d, data.emulated)}" for d, n in counts)
        types = [f"{plain(name, 30)} × {n}" for name, n in node.types]
        about = [f"{node.n_ops} ops folded: {devices}", first_of(types, _MOST, "types")]
    else:
        where = f"{device_label(node.device, data.emulated)}, subgraph {node.subgraph}"
        about = [f"{plain(node.type)} on {where}", *_tensors(node.tensors)]
    if node.leader:
        about.append(f"runs inside {plain(node.leader, 60)}, which has its time")
    elif node.time_us is not None:
        about.append(_took(node.time_us, data))
    elif data.is_timed and not is_group:
        about.append("the counters do not tell its time")
    inside = first_of([plain(name, 40) for name in node.fused], _MOST)
    return hover(
        f"<b>{plain(node.name)}</b>",
        *about,
        f"runs in {plain(node.precision)}" if node.precision else "",
        plain(str(node.displaced)) if node.displaced and not is_group else "",
        f"inside it run {inside}" if node.fused else "",
        f"neighbours that are not shown: {node.n_unseen}" if node.n_unseen else "",
    )


def port_hover(node: GraphNode) -> str:
    return hover(f"<b>{plain(node.name)}</b>", f"model {node.kind}", *_tensors(node.tensors))


def boundary_hover(edge: GraphEdge, data: GraphData) -> str:
    source, target = data.node_of[edge.source], data.node_of[edge.target]
    reorders = edge.reorder_us
    return hover(
        f"<b>boundary</b> {first_of([plain(name, 60) for name in edge.tensors], _MOST)}",
        bytes_text(edge.n_bytes),
        f"from subgraph {source.subgraph} on {device_label(source.device, data.emulated)}",
        f"to subgraph {target.subgraph} on {device_label(target.device, data.emulated)}",
        f"read by {plain(target.name, 60)}",
        "" if reorders is None else f"reorders at it take {time_text(reorders)}",
    )


def _took(time_us: float, data: GraphData) -> str:
    share = f", {time_us / data.total_us:.1%} of all ops" if data.total_us else ""
    return f"{time_text(time_us)}{share}"


def _tensors(tensors: tuple[Tensor, ...]) -> list[str]:
    lines = []
    for tensor in tensors[:_MOST]:
        shape = "shape not known"
        if tensor.shape is not None:
            shape = "×".join(map(str, tensor.shape)) or "scalar"
        lines.append(f"{shape} {plain(tensor.element_type, 20)}, {bytes_text(tensor.n_bytes)}")
    if len(tensors) > _MOST:
        lines.append(f"and {len(tensors) - _MOST} more outputs")
    return lines
