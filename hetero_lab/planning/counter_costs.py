"""Costs read from the counters of measured placements, before anything is fitted.

Op by op: the times on each device, the price of lost fusion, and of reorders at boundaries. What
was never seen is guessed from its nearest neighbours: tensors of about that size, shape and role.

A convolution chooses a blocked layout, and elementwise ops, pooling and the like keep one that
reaches them from any of their inputs, so that a tensor of any of them has to be converted where it
leaves the subgraph. What entered a subgraph is plain, and so is a tensor without extent in space.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_lab.model.opgraph import CONSTANT, Op, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.planning.cost_model import LostFusion, Reorder
from hetero_lab.planning.units import fused_pairs

LEAVES, ENTERS = "leaves", "enters"
US_PER_BYTE = 1e-4  # 10 GB/s: the cost of a tensor when nothing else is known
_OTHER_ROLE = 3.0
_NEAREST = 4  # examples that a guess is made of
_MOST_SCALED = 4.0  # a guess for a large tensor takes at most so many times a small one's
_CHOOSE = frozenset({
    "BinaryConvolution", "Convolution", "ConvolutionBackpropData", "DeformableConvolution",
    "GroupConvolution", "GroupConvolutionBackpropData",
})  # fmt: skip
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
    """Layout conversions of a tensor at a boundary, on the device that it leaves or enters.

    ``us`` is 0 where the tensor crossed without any.
    """

    op: str
    port: int
    device: str
    way: str
    us: float


@dataclass(frozen=True)
class Observation:
    """A measured placement; nodes and conversions are empty without counters.

    ``noise`` is the relative standard deviation of ``measured_us``. For a language model, that is
    the time of a further token, and ``first_us`` the time of the first one.
    """

    label: str
    affinity: Affinity
    measured_us: float
    nodes: tuple[ExecutedNode, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    noise: float = 0.02
    first_us: float | None = None

    def slower(self, factor: float) -> Observation:
        """Return the observation of a machine that is slower by a factor."""
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
    """Return which ops each device executes as one node, where it has most of the model."""
    most: dict[str, tuple[int, tuple[tuple[str, ...], ...]]] = {}
    for seen in observations:
        for device in devices:
            nodes = [node.ops for node in seen.nodes if node.device == device]
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
    nodes = [node for seen in observations for node in _regrouped(seen.nodes, groups)]
    op_us, runs = _op_times(graph, devices, groups, nodes)
    pairs = fused_pairs(graph, groups)
    lost = _lost_fusion(graph, devices, pairs, op_us, nodes)
    return Parts(groups, op_us, runs, lost, _reorders(graph, devices, observations))


def _regrouped(
    nodes: Sequence[ExecutedNode], groups: Mapping[str, Iterable[tuple[str, ...]]]
) -> list[ExecutedNode]:
    """Give ops without a time of their own to the node of their group, where there is one.

    A device may name a node after another of its ops when the ops around it are elsewhere; the
    join of the counters then finds a neighbour that does not belong to the group.
    """
    group_of = {(d, op): set(ops) for d, all_ops in groups.items() for ops in all_ops for op in ops}
    leads = {(node.subgraph, node.ops[0]) for node in nodes}
    moved: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    kept: list[ExecutedNode] = []
    for node in nodes:
        own = group_of.get((node.device, node.ops[0]), set())
        stay = [node.ops[0]]
        for op in node.ops[1:]:
            group = group_of.get((node.device, op), set())
            other = next((o for o in group - own if (node.subgraph, o) in leads), None)
            if other is None:
                stay.append(op)
            else:
                moved[node.subgraph, other].append(op)
        kept.append(replace(node, ops=tuple(stay)))
    return [
        replace(node, ops=(*node.ops, *moved.get((node.subgraph, node.ops[0]), ())))
        for node in kept
    ]


def _op_times(
    graph: OpGraph,
    devices: Sequence[str],
    groups: Mapping[str, Iterable[tuple[str, ...]]],
    nodes: Sequence[ExecutedNode],
) -> tuple[dict[tuple[str, str], float], frozenset[tuple[str, str]]]:
    """Return each op's time where its whole group is together: all of it is the leader's."""
    whole = {(d, frozenset(ops)): ops[0] for d in devices for ops in groups.get(d, ())}
    grouped = {(d, op) for d in devices for ops in groups.get(d, ()) for op in ops}
    seen: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for node in nodes:
        alone = len(node.ops) == 1 and (node.device, node.ops[0]) not in grouped
        leader = whole.get((node.device, frozenset(node.ops)), node.ops[0] if alone else None)
        if leader is not None:
            seen[leader, node.device].append(node.us)
    op_us = {key: float(np.median(us)) for key, us in seen.items()}
    # A node that was never seen whole: what it took in part.
    for node in nodes:
        ops = next((g for g in groups.get(node.device, ()) if node.ops[0] in g), node.ops)
        if not any((op, node.device) in op_us for op in ops):
            op_us[node.ops[0], node.device] = node.us
    runs = frozenset(op_us)
    _fill_in(graph, devices, op_us, grouped)
    return op_us, runs


def _fill_in(
    graph: OpGraph,
    devices: Sequence[str],
    op_us: dict[tuple[str, str], float],
    grouped: set[tuple[str, str]],
) -> None:
    """Guess times that no counter shows from another device's, in proportion."""
    for device in devices:
        for other in devices:
            both = [op for op, d in op_us if d == device and (op, other) in op_us]
            other_us = sum(op_us[op, other] for op in both)
            ratio = sum(op_us[op, device] for op in both) / other_us if other_us else 1.0
            for op in graph.placeable:
                name = graph.ops[op].name
                unseen = (name, device) not in op_us and (device, name) not in grouped
                if unseen and (name, other) in op_us:
                    op_us[name, device] = ratio * op_us[name, other]


def _lost_fusion(
    graph: OpGraph,
    devices: Sequence[str],
    pairs: Iterable[tuple[str, str, tuple[str, ...]]],
    op_us: Mapping[tuple[str, str], float],
    nodes: Sequence[ExecutedNode],
) -> tuple[LostFusion, ...]:
    """Return what two ops cost more where they were seen apart.

    The later op leads a node of its own then: that is what is lost, less what it would have
    taken anyway. What was never seen is told from its like on that device.
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
        if len(cut_above) == 1 and not cut_below:
            later[(*cut_above[0], node.device)].append(more)
        elif cut_above:
            # A middle piece: what it lost above is what a piece with no cut below shows.
            for pair in cut_above:
                later[(*pair, node.device)].append(more / len(cut_above))
        elif len(cut_below) == 1:
            earlier[(*cut_below[0], node.device)].append(more)
    examples: defaultdict[str, list[Example]] = defaultdict(list)
    for (_, second, device), us in later.items():
        examples[device].append(Example.of(graph, second, 0, max(0.0, float(np.median(us)))))
    terms = []
    for first, second, fusing in pairs:
        first_us, second_us = [], []
        for device in devices:
            before, after = (table.get((first, second, device)) for table in (earlier, later))
            first_us.append(max(0.0, float(np.median(before))) if before else 0.0)
            if after:
                second_us.append(max(0.0, float(np.median(after))))
            elif device in fusing:
                second_us.append(guess(Example.of(graph, second, 0), examples[device]))
            else:
                second_us.append(0.0)
        terms.append(LostFusion(first, second, tuple(first_us), tuple(second_us)))
    return tuple(terms)


def _reorders(
    graph: OpGraph, devices: Sequence[str], observations: Iterable[Observation]
) -> tuple[Reorder, ...]:
    """Return the conversions of each tensor; unseen ones are guessed from similar tensors.

    Nothing is learnt from a kept layout where no op that chooses one is in the same subgraph.
    """
    keeps = kept_layouts(graph)
    seen: defaultdict[tuple[str, int, str, str], list[float]] = defaultdict(list)
    for observation in observations:
        has = _with_layout(graph, keeps, observation) if observation.conversions else set()
        for c in observation.conversions:
            if c.way == ENTERS or c.op not in keeps or c.op in has:
                seen[c.op, c.port, c.device, c.way].append(c.us)
    examples: defaultdict[tuple[str, str], list[Example]] = defaultdict(list)
    for (op, port, device, way), us in seen.items():
        examples[device, way].append(Example.of(graph, op, port, float(np.median(us))))

    def cost(op: str, port: int, device: str, way: str) -> float:
        known = seen.get((op, port, device, way))
        if known:
            return float(np.median(known))
        like = examples.get((device, way))
        return guess(Example.of(graph, op, port), like) if like else 0.0

    terms = []
    for index in (*graph.placeable, *graph.parameters):
        op = graph.ops[index]
        for port in range(len(op.outputs)):
            leave, enter = (
                tuple(cost(op.name, port, device, way) for device in devices)
                for way in (LEAVES, ENTERS)
            )
            kept = keeps.get(op.name, ())
            if kept or any(leave) or any(enter):
                terms.append(Reorder(op.name, port, leave, enter, kept))
    return tuple(terms)


def kept_layouts(graph: OpGraph) -> dict[str, tuple[str, ...]]:
    """Return, for each op that can keep a layout, the ops it may get one from."""
    keeps: dict[str, tuple[str, ...]] = {}
    for index in graph.placeable:
        op = graph.ops[index]
        if op.type not in _KEEP_FROM_SAME_SHAPE | _KEEP or not _has_blocks(op):
            continue
        read = dict.fromkeys(graph.ops[producer] for producer, _ in op.inputs)
        keeps[op.name] = tuple(
            other.name
            for other in read
            if (other.name in keeps or other.type in _CHOOSE)
            and _has_blocks(other)
            and (op.type in _KEEP or other.outputs[0].shape == op.outputs[0].shape)
        )
    return {name: kept for name, kept in keeps.items() if kept}


def _has_blocks(op: Op) -> bool:
    """Tell whether a blocked layout of its only output differs from the plain one."""
    if len(op.outputs) != 1:
        return False
    shape = op.outputs[0].shape
    return shape is None or (len(shape) > 2 and math.prod(shape[2:]) > 1)


def _with_layout(
    graph: OpGraph, keeps: Mapping[str, tuple[str, ...]], seen: Observation
) -> set[str]:
    """Return the ops whose tensor has a layout that was chosen in their subgraph."""
    home = predict(graph, seen.affinity).home
    has: set[str] = set()
    for op in graph:
        chooses = op.type in _CHOOSE and _has_blocks(op)
        kept = (name for name in keeps.get(op.name, ()) if name in has)
        if chooses or any(home[graph.index_of[name]] == home[op.index] for name in kept):
            has.add(op.name)
    return has


@dataclass(frozen=True, slots=True)
class Example:
    """A tensor and what something about it took.

    ``role`` is the type of the op that makes it, and of those before and after: blocks of a
    model repeat, and in each the same tensor is the one that is converted.
    """

    op_type: str
    role: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...] | None
    n_bytes: int
    us: float = 0.0

    @classmethod
    def of(cls, graph: OpGraph, op: str, port: int, us: float = 0.0) -> Example:
        made = graph.ops[graph.index_of[op]]
        tensor = made.outputs[port]
        before = {graph.ops[i].type for i, _ in made.inputs} - {CONSTANT}
        after = {graph.ops[use.index].type for use in graph.consumers[made.index]}
        role = (tuple(sorted(before)), (made.type,), tuple(sorted(after)))
        return cls(made.type, role, tensor.shape, tensor.n_bytes or 0, us)


def guess(wanted: Example, examples: Sequence[Example]) -> float:
    """Guess from the nearest examples: of about that size, that shape, made by such an op."""
    if not wanted.n_bytes:
        return 0.0
    near = sorted((_distance(wanted, e), e.n_bytes, e.us) for e in examples if e.n_bytes)
    if not near:
        return US_PER_BYTE * wanted.n_bytes
    near = near[:_NEAREST]
    weights = np.exp(-np.array([distance for distance, _, _ in near]))
    scaled = [us * min(wanted.n_bytes / n_bytes, _MOST_SCALED) for _, n_bytes, us in near]
    return float(weights @ np.array(scaled) / weights.sum())


def _distance(a: Example, b: Example) -> float:
    size = abs(float(np.log(a.n_bytes / b.n_bytes)))
    other = 2.0 * (a.shape != b.shape) + 1.0 * (a.op_type != b.op_type)
    return size + other + _OTHER_ROLE * (a.role != b.role)
