"""From measured placements to a cost model.

The counters of each placement say how long every executed node took, alone or fused, and how
long every layout conversion at a boundary. From these come, op by op, the times on each device,
the price of lost fusion and of reorders. What counters do not show (the cost of a subgraph, of a
hand-over, of a node, of memory spread over subgraphs, and by how much counters are off) is
fitted to the latencies of the placements: a maximum a posteriori estimate with non-negative
coefficients, Gaussian priors and Huber's weights (Huber 1964), so that few placements and an
outlier do no harm. The prior keeps the weight of the counters near 1: without it, placements of
much the same work leave it open.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.model.opgraph import CONSTANT, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning.cost_model import BoundaryCost, CostModel, LostFusion, Reorder, Unit
from hetero_lab.planning.layouts import kept_layouts
from hetero_lab.planning.objective import Objective
from hetero_lab.planning.units import fused_pairs, split_into_units

LEAVES, ENTERS = "leaves", "enters"
_HUBER = 1.5  # residuals beyond so many standard deviations count linearly
_ROUNDS = 6
_LEVELS = (0.5, 2.0)  # by how much the counters of a placement may be off
_OTHER_ROLE = 3.0
_NEAREST = 4  # examples that a guess is made of
_MOST_SCALED = 4.0  # a guess for a large tensor takes at most so many times a small one's
_US_PER_BYTE = 1e-4  # 10 GB/s: what a boundary tensor costs when nothing else is known


@dataclass(frozen=True, slots=True)
class Node:
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
    """A placement that was measured; nodes and conversions are empty without counters.

    ``noise`` is the relative standard deviation of ``measured_us``.
    """

    label: str
    affinity: Affinity
    measured_us: float
    nodes: tuple[Node, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    noise: float = 0.02


@dataclass(frozen=True)
class Parts:
    """What the counters say, before anything is fitted; times in µs."""

    groups: Mapping[str, tuple[tuple[str, ...], ...]]  # fusion groups of each device
    op_us: Mapping[tuple[str, str], float]  # (op, device) → its time within its group
    runs: frozenset[tuple[str, str]]  # (op, device) that leads a node of its own
    lost: tuple[LostFusion, ...]
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


def fit(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    observations: Sequence[Observation],
    *,
    coarse: bool = False,
    weight_spread: float = 0.15,
) -> CostModel:
    """Fit the costs of a model to measured placements.

    Parameters
    ----------
    graph
        The model.
    support
        For each device, in order of priority, the names of the ops that it supports.
    observations
        Placements with their latency; each device has to appear in one with counters.
    coarse
        As for :func:`~hetero_lab.planning.units.split_into_units`.
    weight_spread
        Standard deviation of the prior of the weight of the counters, around 1.

    Returns
    -------
    CostModel
        Without validation.
    """
    devices = tuple(support)
    seen = list(observations)
    parts = read_parts(graph, devices, seen)
    units = split_into_units(graph, support, parts.groups, coarse=coarse)
    for again in (True, False):
        raw = _model(graph, devices, support, units, parts, _Coefficients.unit(devices))
        table = _Features(raw, parts).table(seen)
        found = _estimate(table, seen, devices, weight_spread)
        if again:
            beside = table @ np.where(_is_beside(len(devices), len(found)), found, 0.0)
            seen = [_levelled(o, float(b)) for o, b in zip(observations, beside, strict=True)]
            parts = read_parts(graph, devices, seen)
    return _model(graph, devices, support, units, parts, _Coefficients.of(found, devices))


def _is_beside(n_devices: int, n: int) -> np.ndarray:
    """Return which coefficients are of what counters do not show."""
    beside = np.arange(n) >= n_devices
    beside[-2] = False  # spread memory slows down the nodes themselves
    return beside


def _levelled(seen: Observation, beside_us: float) -> Observation:
    """Scale an observation's counters so that with what is beside them they give its latency.

    Counters are read in another compile, at another moment, as a mean with all disturbances.
    """
    counted = sum(n.us for n in seen.nodes) + sum(c.us for c in seen.conversions)
    if not counted:
        return seen
    factor = float(np.clip((seen.measured_us - beside_us) / counted, *_LEVELS))
    return dataclasses.replace(
        seen,
        nodes=tuple(dataclasses.replace(n, us=n.us * factor) for n in seen.nodes),
        conversions=tuple(dataclasses.replace(c, us=c.us * factor) for c in seen.conversions),
    )


@dataclass(frozen=True)
class _Coefficients:
    """Weight of the counters, µs a node, µs a subgraph by device; boundaries; and the rest."""

    weight: Mapping[str, float]
    node_us: Mapping[str, float]
    subgraph_us: Mapping[str, float]
    boundaries: Mapping[tuple[str, str], BoundaryCost]
    spread_us: float
    constant_us: float

    @classmethod
    def of(cls, x: np.ndarray, devices: Sequence[str]) -> _Coefficients:
        """Name what :func:`_estimate` found."""
        n = len(devices)
        pairs = [(s, t) for s in devices for t in devices]
        fixed, per_byte = x[3 * n : 3 * n + n * n], x[3 * n + n * n : 3 * n + 2 * n * n]
        return cls(
            weight=dict(zip(devices, x[:n].tolist(), strict=True)),
            node_us=dict(zip(devices, x[n : 2 * n].tolist(), strict=True)),
            subgraph_us=dict(zip(devices, x[2 * n : 3 * n].tolist(), strict=True)),
            boundaries={
                pair: BoundaryCost(float(f), float(b))
                for pair, f, b in zip(pairs, fixed, per_byte, strict=True)
            },
            spread_us=float(x[-2]),
            constant_us=float(x[-1]),
        )

    @classmethod
    def unit(cls, devices: Sequence[str]) -> _Coefficients:
        free = {(s, t): BoundaryCost() for s in devices for t in devices}
        zero = dict.fromkeys(devices, 0.0)
        return cls(dict.fromkeys(devices, 1.0), zero, zero, free, 0.0, 0.0)


def _model(
    graph: OpGraph,
    devices: tuple[str, ...],
    support: Mapping[str, Collection[str]],
    units: Sequence[tuple[str, ...]],
    parts: Parts,
    found: _Coefficients,
) -> CostModel:
    def op_us(op: str, device: str) -> float:
        us = found.weight[device] * parts.op_us.get((op, device), 0.0)
        return us + (found.node_us[device] if (op, device) in parts.runs else 0.0)

    made: list[Unit] = []
    for ops in units:
        times = [
            sum(op_us(op, d) for op in ops) if set(ops) <= set(support[d]) else None
            for d in devices
        ]
        own = np.array([sum(op_us(op, d) for d in devices if op in support[d]) for op in ops])
        shares = own / own.sum() if own.sum() > 0.0 else np.full(len(ops), 1.0 / len(ops))
        made.append(Unit(ops, tuple(times), tuple(shares.tolist())))
    weight = np.array([found.weight[d] for d in devices])
    node = np.array([found.node_us[d] for d in devices])

    def scaled(us: tuple[float, ...], extra: float | np.ndarray = 0.0) -> tuple[float, ...]:
        return tuple((np.array(us) * weight + extra).tolist())

    return CostModel(
        graph=graph,
        devices=devices,
        units=tuple(made),
        boundaries=dict(found.boundaries),
        subgraph_us=dict(found.subgraph_us),
        constant_us=found.constant_us,
        spread_us=found.spread_us,
        lost_fusion=tuple(
            dataclasses.replace(
                term, first_us=scaled(term.first_us), second_us=scaled(term.second_us, node)
            )
            for term in parts.lost
        ),
        reorders=tuple(
            dataclasses.replace(
                term, leave_us=scaled(term.leave_us), enter_us=scaled(term.enter_us)
            )
            for term in parts.reorders
        ),
    )


def _regrouped(
    nodes: Sequence[Node], groups: Mapping[str, Iterable[tuple[str, ...]]]
) -> list[Node]:
    """Give ops without a time of their own to the node of their group, where there is one.

    A device may name a node after another of its ops when the ops around it are elsewhere; the
    join of the counters then finds a neighbour that does not belong to the group.
    """
    group_of = {(d, op): set(ops) for d, all_ops in groups.items() for ops in all_ops for op in ops}
    leads = {(node.subgraph, node.ops[0]) for node in nodes}
    moved: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    kept: list[Node] = []
    for node in nodes:
        mine = group_of.get((node.device, node.ops[0]), set())
        stay = [node.ops[0]]
        for op in node.ops[1:]:
            group = group_of.get((node.device, op), set())
            other = next((o for o in group - mine if (node.subgraph, o) in leads), None)
            if other is None:
                stay.append(op)
            else:
                moved[node.subgraph, other].append(op)
        kept.append(dataclasses.replace(node, ops=tuple(stay)))
    return [
        dataclasses.replace(node, ops=(*node.ops, *moved.get((node.subgraph, node.ops[0]), ())))
        for node in kept
    ]


def _op_times(
    graph: OpGraph,
    devices: Sequence[str],
    groups: Mapping[str, Iterable[tuple[str, ...]]],
    nodes: Sequence[Node],
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
            theirs = sum(op_us[op, other] for op in both)
            ratio = sum(op_us[op, device] for op in both) / theirs if theirs else 1.0
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
    nodes: Sequence[Node],
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
    examples: defaultdict[str, list[_Example]] = defaultdict(list)
    for (_, second, device), us in later.items():
        examples[device].append(_Example.of(graph, second, 0, max(0.0, float(np.median(us)))))
    terms = []
    for first, second, fusing in pairs:
        first_us, second_us = [], []
        for device in devices:
            before, after = (table.get((first, second, device)) for table in (earlier, later))
            first_us.append(max(0.0, float(np.median(before))) if before else 0.0)
            if after:
                second_us.append(max(0.0, float(np.median(after))))
            elif device in fusing:
                second_us.append(_guess(_Example.of(graph, second, 0), examples[device]))
            else:
                second_us.append(0.0)
        terms.append(LostFusion(first, second, tuple(first_us), tuple(second_us)))
    return tuple(terms)


@dataclass(frozen=True, slots=True)
class _Example:
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
    def of(cls, graph: OpGraph, op: str, port: int, us: float = 0.0) -> _Example:
        made = graph.ops[graph.index_of[op]]
        tensor = made.outputs[port]
        before = {graph.ops[i].type for i, _ in made.inputs} - {CONSTANT}
        after = {graph.ops[use.index].type for use in graph.consumers[made.index]}
        role = (tuple(sorted(before)), (made.type,), tuple(sorted(after)))
        return cls(made.type, role, tensor.shape, tensor.n_bytes or 0, us)


def _guess(wanted: _Example, examples: Sequence[_Example]) -> float:
    """Guess from the nearest examples: of about that size, that shape, made by such an op."""
    if not wanted.n_bytes:
        return 0.0
    near = sorted((_distance(wanted, e), e.n_bytes, e.us) for e in examples if e.n_bytes)
    if not near:
        return _US_PER_BYTE * wanted.n_bytes
    near = near[:_NEAREST]
    weights = np.exp(-np.array([distance for distance, _, _ in near]))
    scaled = [us * min(wanted.n_bytes / n_bytes, _MOST_SCALED) for _, n_bytes, us in near]
    return float(weights @ np.array(scaled) / weights.sum())


def _distance(a: _Example, b: _Example) -> float:
    size = abs(float(np.log(a.n_bytes / b.n_bytes)))
    other = 2.0 * (a.shape != b.shape) + 1.0 * (a.op_type != b.op_type)
    return size + other + _OTHER_ROLE * (a.role != b.role)


def _reorders(
    graph: OpGraph, devices: Sequence[str], observations: Iterable[Observation]
) -> tuple[Reorder, ...]:
    """Return the conversions of each tensor; what was not seen is told from its like.

    Tensors of one layout cost the same to convert. Where the op that chose it was on another
    device, nothing is learnt from a tensor that left without: it had been converted before.
    """
    layouts = kept_layouts(graph)
    seen: defaultdict[tuple[str, int, str, str], list[float]] = defaultdict(list)
    for observation in observations:
        for c in observation.conversions:
            if c.way != LEAVES:
                seen[c.op, c.port, c.device, c.way].append(c.us)
            elif all(observation.affinity[op] == c.device for op in layouts.path(c.op)):
                seen[layouts.root.get(c.op, c.op), c.port, c.device, c.way].append(c.us)
    examples: defaultdict[tuple[str, str], list[_Example]] = defaultdict(list)
    for (op, port, device, way), us in seen.items():
        examples[device, way].append(_Example.of(graph, op, port, float(np.median(us))))

    def cost(op: str, port: int, device: str, way: str) -> float:
        if way == LEAVES:
            op = layouts.root.get(op, op)
        known = seen.get((op, port, device, way))
        if known:
            return float(np.median(known))
        like = examples.get((device, way))
        return _guess(_Example.of(graph, op, port), like) if like else 0.0

    terms = []
    for index in (*graph.placeable, *graph.parameters):
        op = graph.ops[index]
        for port in range(len(op.outputs)):
            leave, enter = (
                tuple(cost(op.name, port, device, way) for device in devices)
                for way in (LEAVES, ENTERS)
            )
            root = layouts.root.get(op.name, "")
            if root or any(leave) or any(enter):
                terms.append(Reorder(op.name, port, leave, enter, root))
    return tuple(terms)


class _Features:
    """What a placement's latency is linear in: one column a coefficient."""

    def __init__(self, raw: CostModel, parts: Parts):
        # Free of all but a second of spread memory: of that, its share is left.
        self.objective: Objective = dataclasses.replace(raw, spread_us=1e6).objective
        index_of = raw.graph.index_of
        self.runs = np.zeros((len(raw.graph), len(raw.devices)), dtype=np.int64)
        for op, device in parts.runs:
            self.runs[index_of[op], raw.devices.index(device)] = 1

    def table(self, observations: Sequence[Observation]) -> np.ndarray:
        """Return ``[observations, columns]``: work, nodes, subgraphs by device; then for each
        pair of devices boundaries and bytes; then the share of spread memory, and 1.
        """
        return np.array([self._row(o.affinity) for o in observations])

    def _row(self, affinity: Affinity) -> np.ndarray:
        objective = self.objective
        n = len(objective.devices)
        devices = objective.device_numbers(affinity)
        seen = objective.evaluate(devices)
        # The raw model has free subgraphs and wires, so what is left is the counters' work.
        work = seen.busy_ns / 1000.0
        rows = np.arange(len(devices))
        nodes = np.bincount(devices, weights=self.runs[rows, devices], minlength=n)
        second = devices[objective.fused[seen.lost, 1]] if len(seen.lost) else devices[:0]
        nodes = nodes + np.bincount(second, minlength=n)
        subgraphs = np.bincount(seen.device_of_id[seen.real], minlength=n)
        crossing = seen.crossing
        pair = devices[crossing.producer] * n + seen.device_of_id[seen.ids[crossing.user]]
        count = np.bincount(pair, minlength=n * n)
        n_bytes = np.bincount(pair, weights=objective.n_bytes[crossing.tensor], minlength=n * n)
        return np.concatenate([work, nodes, subgraphs, count, n_bytes, [seen.spread_ns / 1e9, 1.0]])


def _estimate(
    table: np.ndarray,
    observations: Sequence[Observation],
    devices: Sequence[str],
    weight_spread: float,
) -> np.ndarray:
    """Fit the coefficients; each row is weighted by its latency: relative errors count."""
    from scipy.optimize import lsq_linear

    n = len(devices)
    y = np.array([seen.measured_us for seen in observations])
    noise = np.array([seen.noise for seen in observations]) * y
    expected = [1.0] * n + [0.3] * n + [3.0] * n
    expected += [1.5] * (n * n) + [_US_PER_BYTE] * (n * n) + [0.0, 5.0]
    spread = [weight_spread] * n + [0.5] * n + [6.0] * n
    spread += [5.0] * (n * n) + [2.0 * _US_PER_BYTE] * (n * n)
    spread += [0.3 * float(y.min()), 0.02 * float(y.min()) + 10.0]
    prior, scale = np.array(expected), np.array(spread)
    huber = np.ones(len(y))
    x = prior
    for _ in range(_ROUNDS):
        weight = np.sqrt(huber) / noise
        # In units of the priors' spread, so that the solver sees numbers of one size.
        left = np.vstack([table * scale * weight[:, None], np.eye(len(prior))])
        right = np.concatenate([y * weight, prior / scale])
        x = lsq_linear(left, right, bounds=(0.0, np.inf)).x * scale
        residual = np.abs(table @ x - y) / noise
        huber = np.minimum(1.0, _HUBER / np.maximum(residual, 1e-9))
    return x
