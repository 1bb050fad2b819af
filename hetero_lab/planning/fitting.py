"""From measured placements to a cost model.

The counters of each placement say how long every executed node took, alone or fused, and how
long every layout conversion at a boundary (:mod:`hetero_lab.planning.counter_costs`). What they
do not show (the cost of a subgraph, of a hand-over, of a node, of memory spread over subgraphs,
and by how much counters are off) is fitted to the latencies of the placements: a maximum a
posteriori estimate with non-negative coefficients, Gaussian priors and Huber's weights (Huber
1964), so that few placements and an outlier do no harm. The prior keeps the weight of the counters
near 1: without it, placements of much the same work leave it open.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning.cost_model import BoundaryCost, CostModel, Unit
from hetero_lab.planning.counter_costs import US_PER_BYTE, Observation, Parts, read_parts
from hetero_lab.planning.objective import Objective
from hetero_lab.planning.units import split_into_units

_HUBER = 1.5  # residuals beyond so many standard deviations count linearly
_ROUNDS = 6
_WEIGHT_SPREAD = 0.15  # standard deviation of the prior of the weight of counters, around 1
_LEVELS = (0.5, 2.0)  # by how much the counters of a placement may be off
# Standard deviations of priors: µs of a hand-over, and of spread memory as a share of the shortest
# latency. What is copied over a bus and waits in a queue costs more each time, and what a CPU's
# caches do not hold costs less; with the priors of two devices of one memory, hand-overs to a GPU
# were taken for spread memory: few of them came out too slow, and many too fast.
_HAND_OVER_US, _SPREAD = 5.0, 0.3
_HAND_OVER_TO_OWN_MEMORY_US, _SPREAD_OVER_OWN_MEMORY = 15.0, 0.1


def fit(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    observations: Sequence[Observation],
    *,
    layers: Sequence[tuple[str, ...]] | None = None,
    coarse: bool = False,
    own_memory: bool = False,
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
    layers
        Units, if the model is only cut between layers. Those that have the same ops take the
        same time on a device. By default units are what devices fuse.
    coarse
        As for :func:`~hetero_lab.planning.units.split_into_units`, which makes the units.
    own_memory
        Whether a device has memory of its own, into which tensors are copied: the priors for that
        were chosen on a discrete GPU.

    Returns
    -------
    CostModel
        Without validation.
    """
    devices = tuple(support)
    seen = list(observations)

    def read(seen: Sequence[Observation]) -> Parts:
        parts = read_parts(graph, devices, seen)
        return parts if layers is None else _of_layers(graph, devices, layers, parts)

    parts, units = read(seen), layers
    if units is None:
        units = split_into_units(graph, support, parts.groups, coarse=coarse)
    for again in (True, False):
        raw = _model(graph, devices, support, units, parts, _Coefficients.unit(devices))
        table = _Features(raw, parts).table(seen)
        found = _estimate(table, seen, devices, own_memory)
        if again:
            beside = table @ np.where(_is_beside(len(devices), len(found)), found, 0.0)
            seen = [_levelled(o, float(b)) for o, b in zip(observations, beside, strict=True)]
            parts = read(seen)
    return _model(graph, devices, support, units, parts, _Coefficients.of(found, devices))


def _of_layers(
    graph: OpGraph, devices: Sequence[str], layers: Sequence[tuple[str, ...]], parts: Parts
) -> Parts:
    """Give layers of the same ops the same time on a device, the median of their times.

    What a cut between them costs, fusion and layout included, is the boundary's.
    """
    alike: defaultdict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for ops in layers:
        alike[tuple(sorted(graph.ops[graph.index_of[op]].type for op in ops))].append(ops)
    op_us = dict(parts.op_us)
    for group, device in product(alike.values(), devices):
        took = [sum(op_us.get((op, device), 0.0) for op in ops) for ops in group]
        # Layers that were not seen there take as long as those that were.
        middle = float(np.median([us for us in took if us] or [0.0]))
        for ops, us in zip(group, took, strict=True):
            for op in ops:
                if not us and middle:
                    op_us[op, device] = middle / len(ops)
                elif (op, device) in op_us:
                    op_us[op, device] *= middle / us
    return dataclasses.replace(parts, op_us=op_us, lost=(), reorders=())


def _is_beside(n_devices: int, n: int) -> np.ndarray:
    """Return which coefficients stand for costs that counters do not show."""
    beside = np.arange(n) >= n_devices
    beside[-2] = False  # spread memory slows down the nodes themselves
    return beside


def _levelled(seen: Observation, beside_us: float) -> Observation:
    """Scale counters so that, with the costs they do not show, they add up to the latency.

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


class _Features:
    """The terms in which latency is linear: one column for each coefficient."""

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
    own_memory: bool,
) -> np.ndarray:
    """Fit the coefficients; each row is weighted by its latency: relative errors count."""
    n = len(devices)
    least = min(seen.measured_us for seen in observations)
    expected = [1.0] * n + [0.3] * n + [3.0] * n
    expected += [1.5] * (n * n) + [US_PER_BYTE] * (n * n) + [0.0, 5.0]
    spread = [_WEIGHT_SPREAD] * n + [0.5] * n + [6.0] * n
    hand_over_us = _HAND_OVER_TO_OWN_MEMORY_US if own_memory else _HAND_OVER_US
    spread += [hand_over_us] * (n * n) + [2.0 * US_PER_BYTE] * (n * n)
    memory = _SPREAD_OVER_OWN_MEMORY if own_memory else _SPREAD
    spread += [memory * least, 0.02 * least + 10.0]
    return _most_probable(table, observations, np.array(expected), np.array(spread))


def _most_probable(
    table: np.ndarray, observations: Sequence[Observation], prior: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """Return the most probable non-negative coefficients, with outliers down-weighted."""
    from scipy.optimize import lsq_linear

    y = np.array([seen.measured_us for seen in observations])
    noise = np.array([seen.noise for seen in observations]) * y
    huber = np.ones(len(y))
    x = prior
    for _ in range(_ROUNDS):
        weight = np.sqrt(huber) / noise
        # In units of the priors' spread, so that the solver sees numbers of one size.
        left = np.vstack([table * spread * weight[:, None], np.eye(len(prior))])
        right = np.concatenate([y * weight, prior / spread])
        x = lsq_linear(left, right, bounds=(0.0, np.inf)).x * spread
        residual = np.abs(table @ x - y) / noise
        huber = np.minimum(1.0, _HUBER / np.maximum(residual, 1e-9))
    return x


def with_prefill(costs: CostModel, observations: Sequence[Observation]) -> CostModel:
    """Add the costs of the first token to those of a further token of a language model.

    They are those of a further token, scaled kind by kind to the first tokens.
    """
    firsts = first_tokens(observations)
    if not firsts:
        return costs
    alone = dataclasses.replace(costs, prefill=None)
    return dataclasses.replace(costs, prefill=adjust(alone, firsts))


def first_tokens(observations: Sequence[Observation]) -> list[Observation]:
    """Return the same placements as observations of their first tokens."""
    return [
        dataclasses.replace(seen, measured_us=seen.first_us, first_us=None)
        for seen in observations
        if seen.first_us is not None
    ]


def adjust(costs: CostModel, observations: Sequence[Observation]) -> CostModel:
    """Scale a cost model, kind by kind, to placements that were measured later.

    The costs as they are, times how fast the machine is now, are the prior; counters are not
    needed.

    Parameters
    ----------
    costs
        Learnt before, perhaps in another process.
    observations
        At least one placement.
    """
    objective, n = costs.objective, len(costs.devices)
    rows = []
    for seen in observations:
        devices = objective.device_numbers(seen.affinity)
        found = objective.evaluate(devices)
        subgraphs = np.bincount(found.device_of_id[found.real], minlength=n)
        own = subgraphs * objective.subgraph_ns
        crossing = found.crossing
        target = found.device_of_id[found.ids[crossing.user]]
        wire = objective.wire_ns(crossing.tensor, devices[crossing.producer], target)
        work = found.busy_ns - own - np.bincount(target, weights=wire, minlength=n)
        rows.append([*work, own.sum(), wire.sum(), found.constant_ns, found.spread_ns])
    table = np.array(rows, dtype=np.float64) / 1e3
    measured = np.array([seen.measured_us for seen in observations])
    now = float(np.median(measured / table.sum(axis=1)))
    prior = np.full(n + 4, now)
    spread = now * np.array([0.2] * n + [0.5, 1.0, 0.5, 0.5])
    scale = _most_probable(table, observations, prior, spread)
    own, wire, constant, memory = scale[n:].tolist()

    def scaled(us: tuple[float, ...]) -> tuple[float, ...]:
        return tuple((np.array(us) * scale[:n]).tolist())

    return dataclasses.replace(
        costs,
        units=tuple(
            dataclasses.replace(
                unit,
                time_us=tuple(
                    None if us is None else us * float(factor)
                    for us, factor in zip(unit.time_us, scale, strict=False)
                ),
            )
            for unit in costs.units
        ),
        lost_fusion=tuple(
            dataclasses.replace(
                term, first_us=scaled(term.first_us), second_us=scaled(term.second_us)
            )
            for term in costs.lost_fusion
        ),
        reorders=tuple(
            dataclasses.replace(
                term, leave_us=scaled(term.leave_us), enter_us=scaled(term.enter_us)
            )
            for term in costs.reorders
        ),
        boundaries={
            pair: BoundaryCost(cost.fixed_us * wire, cost.us_per_byte * wire)
            for pair, cost in costs.boundaries.items()
        },
        subgraph_us={device: us * own for device, us in costs.subgraph_us.items()},
        constant_us=costs.constant_us * constant,
        spread_us=costs.spread_us * memory,
        validation_rows=(),
    )
