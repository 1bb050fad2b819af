"""Costs read from the counters of measured placements, before anything is fitted.

Op by op: the times on each device, the price of lost fusion, and of reorders at boundaries. Costs
that were never seen are guessed from their nearest neighbours: tensors of about that size, shape
and role.

A convolution chooses a blocked layout. Elementwise ops, pooling and the like keep one that reaches
them from any of their inputs, so that the tensor of any of them must be converted where it leaves
the subgraph. A tensor that entered a subgraph is plain, and so is one without extent in space.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_lab.costs.cost_model import LostFusion, Reorder
from hetero_lab.costs.design import fused_pairs
from hetero_lab.model.opgraph import CONSTANT, CONVOLUTIONS, Op, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict

LEAVES, ENTERS = "leaves", "enters"
US_PER_BYTE = 1e-4  # 10 GB/s: the cost of a tensor when nothing else is known
_OTHER_ROLE = 3.0  # as unlike as a tensor of e³, 20 times the size
_NEAREST = 4  # examples behind a guess
_MOST_SCALED = 4.0  # limit to the factor by which an example is scaled to a larger tensor
_CHOOSE = CONVOLUTIONS | {"BinaryConvolution", "DeformableConvolution"}
_KEEP_FROM_SAME_SHAPE = frozenset({
    "Abs", "Add", "BatchNormInference", "Ceiling", "Clamp", "Convert", "Divide", "Elu", "Erf",
    "Exp", "FakeQuantize", "Floor", "Gelu", "HSigmoid", "HSwish", "HardSigmoid", "Log", "Maximum",
    "Minimum", "Mish", "Mod", "Multiply", "Negative", "PRelu", "Power", "Relu", "Round", "Selu",
    "Sigmoid", "SoftPlus", "Sqrt", "SquaredDifference", "Subtract", "Swish", "Tanh",
})  # fmt: skip
_KEEP = frozenset({"AvgPool", "Concat", "MaxPool", "Pad", "Slice", "StridedSlice"})


@dataclass(frozen=True, slots=True)
class ExecutedNode:
    """A node that a device executed: the ops in it, the leading one first, and its time in µs."""

    ops: tuple[str, ...]
    device: str
    us: float
    subgraph: int = 0


@dataclass(frozen=True, slots=True)
class Conversion:
    """Layout conversions of a tensor on the device that it leaves or enters; 0 µs without any."""

    op: str
    port: int
    device: str
    way: str
    us: float


@dataclass(frozen=True)
class Observation:
    """A measured placement; nodes and conversions are empty without counters.

    ``noise`` is the relative standard deviation of ``measured_us``. For a language model,
    ``measured_us`` is the time of a further token and ``first_us`` the time of the first one.
    """

    label: str
    affinity: Affinity
    measured_us: float
    nodes: tuple[ExecutedNode, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    noise: float = 0.02
    first_us: float | None = None

    def slower(self, factor: float) -> Observation:
        """Return the observation as a machine that is slower by a factor would give it."""
        return replace(
            self,
            measured_us=self.measured_us * factor,
            first_us=None if self.first_us is None else self.first_us * factor,
        )


@dataclass(frozen=True)
class Parts:
    """Fusion groups, times, lost fusion and reorders; times in µs."""

    groups: Mapping[str, tuple[tuple[str, ...], ...]]  # fusion groups of each device
    op_us: Mapping[tuple[str, str], float]  # (op, device) → its time within its group
    runs: frozenset[tuple[str, str]]  # (op, device) that leads a node of its own
    lost_fusion: tuple[LostFusion, ...]
    reorders: tuple[Reorder, ...]


def fusion_groups(
    observations: Iterable[Observation], devices: Sequence[str]
) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return which ops each device executes as one node, by the placement with most ops on it."""
    most: dict[str, tuple[int, tuple[tuple[str, ...], ...]]] = {}
    for observation in observations:
        for device in devices:
            nodes = [node.ops for node in observation.nodes if node.device == device]
            count = sum(map(len, nodes))
            if count > most.get(device, (0, ()))[0]:
                groups = {op: ops for ops in nodes if len(ops) > 1 for op in ops}
                most[device] = (count, tuple(dict.fromkeys(groups.values())))
    return {device: groups for device, (_, groups) in most.items()}


def read_parts(
    graph: OpGraph, devices: Sequence[str], observations: Sequence[Observation]
) -> Parts:
    """Learn times, lost fusion and reorders from the counters of all observations."""
    groups = fusion_groups(observations, devices)
    nodes = [node for o in observations for node in _regrouped_nodes(o.nodes, groups)]
    op_us, runs = _op_times(graph, devices, groups, nodes)
    pairs = fused_pairs(graph, groups)
    lost = _lost_fusion(graph, devices, pairs, op_us, nodes)
    return Parts(groups, op_us, runs, lost, _reorders(graph, devices, observations))


def _regrouped_nodes(
    nodes: Sequence[ExecutedNode], groups: Mapping[str, Iterable[tuple[str, ...]]]
) -> list[ExecutedNode]:
    """Give ops without a time of their own to the node of their group, where there is one.

    A device may name a node after another of its ops when the ops around it are elsewhere. The
    join of the counters then assigns an op to a neighbour outside its group.
    """
    group_of = {(d, op): set(ops) for d, all_ops in groups.items() for ops in all_ops for op in ops}
    leads = {(node.subgraph, node.ops[0]) for node in nodes}
    extra_ops: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    rest: list[ExecutedNode] = []
    for node in nodes:
        leader_group = group_of.get((node.device, node.ops[0]), set())
        stay = [node.ops[0]]
        for op in node.ops[1:]:
            group = group_of.get((node.device, op), set())
            other = next((o for o in group - leader_group if (node.subgraph, o) in leads), None)
            if other is None:
                stay.append(op)
            else:
                extra_ops[node.subgraph, other].append(op)
        rest.append(replace(node, ops=tuple(stay)))
    return [
        replace(node, ops=(*node.ops, *extra_ops.get((node.subgraph, node.ops[0]), ())))
        for node in rest
    ]


def _op_times(
    graph: OpGraph,
    devices: Sequence[str],
    groups: Mapping[str, Iterable[tuple[str, ...]]],
    nodes: Sequence[ExecutedNode],
) -> tuple[dict[tuple[str, str], float], frozenset[tuple[str, str]]]:
    """Return op times, where a group that is together counts as its leader's, and the leaders."""
    whole = {(d, frozenset(ops)): ops[0] for d in devices for ops in groups.get(d, ())}
    members = {(d, op) for d in devices for ops in groups.get(d, ()) for op in ops}
    times: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for node in nodes:
        alone = len(node.ops) == 1 and (node.device, node.ops[0]) not in members
        leader = whole.get((node.device, frozenset(node.ops)), node.ops[0] if alone else None)
        if leader is not None:
            times[leader, node.device].append(node.us)
    op_us = {key: float(np.median(us)) for key, us in times.items()}
    # For a node that was never seen whole, take the time of a part.
    for node in nodes:
        ops = next((g for g in groups.get(node.device, ()) if node.ops[0] in g), node.ops)
        if not any((op, node.device) in op_us for op in ops):
            op_us[node.ops[0], node.device] = node.us
    runs = frozenset(op_us)
    _fill_in(graph, devices, op_us, members)
    return op_us, runs


def _fill_in(
    graph: OpGraph,
    devices: Sequence[str],
    op_us: dict[tuple[str, str], float],
    members: set[tuple[str, str]],
) -> None:
    """Guess times that no counter shows from another device's, in proportion."""
    for device in devices:
        for other in devices:
            both = [op for op, d in op_us if d == device and (op, other) in op_us]
            other_us = sum(op_us[op, other] for op in both)
            ratio = sum(op_us[op, device] for op in both) / other_us if other_us else 1.0
            for op in graph.placeable:
                name = graph.ops[op].name
                unseen = (name, device) not in op_us and (device, name) not in members
                if unseen and (name, other) in op_us:
                    op_us[name, device] = ratio * op_us[name, other]


def _lost_fusion(
    graph: OpGraph,
    devices: Sequence[str],
    pairs: Iterable[tuple[str, str, tuple[str, ...]]],
    op_us: Mapping[tuple[str, str], float],
    nodes: Sequence[ExecutedNode],
) -> tuple[LostFusion, ...]:
    """Return the extra cost of two ops where they were seen apart.

    The later op then leads a node of its own: the loss is the time of that node, less the time
    that the op would have taken anyway. Unseen pairs are guessed from similar ones on the device.
    """
    pairs = list(pairs)
    above: defaultdict[str, list[str]] = defaultdict(list)
    below: defaultdict[str, list[str]] = defaultdict(list)
    for first, second, _ in pairs:
        above[second].append(first)
        below[first].append(second)
    later: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    earlier: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for node in nodes:
        members = set(node.ops)
        more = node.us - sum(op_us.get((op, node.device), 0.0) for op in node.ops)
        cut_above = [(p, op) for op in node.ops for p in above[op] if p not in members]
        cut_below = [(op, s) for op in node.ops for s in below[op] if s not in members]
        for pair in cut_above:  # a loss above is divided among the cuts
            later[(*pair, node.device)].append(more / len(cut_above))
        if not cut_above and len(cut_below) == 1:
            earlier[(*cut_below[0], node.device)].append(more)
    before, after = (
        {key: max(0.0, float(np.median(us))) for key, us in table.items()}
        for table in (earlier, later)
    )
    examples: defaultdict[str, list[Example]] = defaultdict(list)
    for (_, second, device), us in after.items():
        examples[device].append(Example.of(graph, second, 0, us))

    def second_us(first: str, second: str, device: str, fusing: Sequence[str]) -> float:
        if (first, second, device) not in after and device in fusing:
            return guess(Example.of(graph, second, 0), examples[device])
        return after.get((first, second, device), 0.0)

    return tuple(
        LostFusion(
            first,
            second,
            tuple(before.get((first, second, device), 0.0) for device in devices),
            tuple(second_us(first, second, device, fusing) for device in devices),
        )
        for first, second, fusing in pairs
    )


def _reorders(
    graph: OpGraph, devices: Sequence[str], observations: Iterable[Observation]
) -> tuple[Reorder, ...]:
    """Return the conversions of each tensor; unseen ones are guessed from similar tensors.

    Nothing is learnt from a kept layout if no op of the same subgraph chose it.
    """
    keeps = kept_layouts(graph)
    every: defaultdict[tuple[str, int, str, str], list[float]] = defaultdict(list)
    for observation in observations:
        has = _with_layout(graph, keeps, observation) if observation.conversions else set()
        for c in observation.conversions:
            if c.way == ENTERS or c.op not in keeps or c.op in has:
                every[c.op, c.port, c.device, c.way].append(c.us)
    median_us = {key: float(np.median(us)) for key, us in every.items()}
    examples: defaultdict[tuple[str, str], list[Example]] = defaultdict(list)
    for (op, port, device, way), us in median_us.items():
        examples[device, way].append(Example.of(graph, op, port, us))

    def cost(op: str, port: int, device: str, way: str) -> float:
        like = examples.get((device, way))
        if (op, port, device, way) in median_us or not like:
            return median_us.get((op, port, device, way), 0.0)
        return guess(Example.of(graph, op, port), like)

    terms = []
    for index in (*graph.placeable, *graph.parameters):
        op = graph.ops[index]
        for port in range(len(op.outputs)):
            leave, enter = (
                tuple(cost(op.name, port, device, way) for device in devices)
                for way in (LEAVES, ENTERS)
            )
            sources = keeps.get(op.name, ())
            if sources or any(leave) or any(enter):
                terms.append(Reorder(op.name, port, leave, enter, sources))
    return tuple(terms)


def kept_layouts(graph: OpGraph) -> dict[str, tuple[str, ...]]:
    """Return, for each op that can keep a layout, the ops it may get one from."""
    keeps: dict[str, tuple[str, ...]] = {}
    for index in graph.placeable:
        op = graph.ops[index]
        if op.type not in _KEEP_FROM_SAME_SHAPE | _KEEP or not _has_blocks(op):
            continue
        producers = dict.fromkeys(graph.ops[producer] for producer, _ in op.inputs)
        keeps[op.name] = tuple(
            other.name
            for other in producers
            if (other.name in keeps or other.type in _CHOOSE)
            and _has_blocks(other)
            and (op.type in _KEEP or other.outputs[0].shape == op.outputs[0].shape)
        )
    return {name: sources for name, sources in keeps.items() if sources}


def _has_blocks(op: Op) -> bool:
    """Tell whether a blocked layout of its only output differs from the plain one."""
    if len(op.outputs) != 1:
        return False
    shape = op.outputs[0].shape
    return shape is None or (len(shape) > 2 and math.prod(shape[2:]) > 1)


def _with_layout(
    graph: OpGraph, keeps: Mapping[str, tuple[str, ...]], observation: Observation
) -> set[str]:
    """Return the ops whose tensor has a layout that was chosen in their subgraph."""
    home = predict(graph, observation.affinity).home
    has: set[str] = set()
    for op in graph:
        chooses = op.type in _CHOOSE and _has_blocks(op)
        sources = (name for name in keeps.get(op.name, ()) if name in has)
        if chooses or any(home[graph.index_of[name]] == home[op.index] for name in sources):
            has.add(op.name)
    return has


@dataclass(frozen=True, slots=True)
class Example:
    """A tensor and a measured time of it.

    ``role`` are the types of the ops before its maker, of its maker and of its users. Blocks of a
    model repeat, and in each the same tensor is converted.
    """

    role: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...] | None
    n_bytes: int
    us: float = 0.0

    @classmethod
    def of(cls, graph: OpGraph, op: str, port: int, us: float = 0.0) -> Example:
        maker = graph.op(op)
        tensor = maker.outputs[port]
        before = {graph.ops[i].type for i, _ in maker.inputs} - {CONSTANT}
        after = {graph.ops[use.index].type for use in graph.consumers[maker.index]}
        role = (tuple(sorted(before)), (maker.type,), tuple(sorted(after)))
        return cls(role, tensor.shape, tensor.n_bytes or 0, us)


def guess(target: Example, examples: Sequence[Example]) -> float:
    """Guess a time from the examples nearest in size, shape, and types of ops."""
    if not target.n_bytes:
        return 0.0
    near = sorted((_distance(target, e), e.n_bytes, e.us) for e in examples if e.n_bytes)
    if not near:
        return US_PER_BYTE * target.n_bytes
    near = near[:_NEAREST]
    weights = np.exp(-np.array([distance for distance, _, _ in near]))
    times_us = [us * min(target.n_bytes / n_bytes, _MOST_SCALED) for _, n_bytes, us in near]
    return float(weights @ np.array(times_us) / weights.sum())


def _distance(a: Example, b: Example) -> float:
    size = abs(float(np.log(a.n_bytes / b.n_bytes)))
    other = 2.0 * (a.shape != b.shape) + 1.0 * (a.role[1] != b.role[1])
    return size + other + _OTHER_ROLE * (a.role != b.role)
