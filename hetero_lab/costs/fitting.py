"""From measured placements to a cost model.

The counters of each placement say how long every executed node took, alone or fused, and how
long every layout conversion at a boundary (:mod:`hetero_lab.costs.counter_costs`). The rest
(the costs of a subgraph, a hand-over, a node and spread memory, and the error of the counters) is
fitted to the latencies of the placements: a maximum a posteriori estimate with non-negative
coefficients, Gaussian priors and Huber's weights (Huber 1964), which are robust to few placements
and to outliers. A prior keeps the weight of the counters near 1, because placements with much the
same work leave it undetermined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from msgspec import structs

from hetero_lab.costs.cost_model import BoundaryCost, CostModel, Unit
from hetero_lab.costs.counter_costs import US_PER_BYTE, Observation, Parts, read_parts
from hetero_lab.costs.design import split_into_units
from hetero_lab.model.opgraph import OpGraph

_HUBER = 1.5  # residuals beyond this many standard deviations count linearly
_ROUNDS = 6  # of reweighting; few placements change their weight after these
_WEIGHT_SPREAD = 0.15  # standard deviation of the prior of the counters' weight, around 1
_LEVELS = (0.5, 2.0)  # limits to the correction of a placement's counters
# Standard deviations of priors: µs of a hand-over, and spread memory as a share of the shortest
# latency. A copy over a bus into a device's own memory waits in a queue, so that it costs more;
# data that misses a CPU's caches costs less. With the priors for shared memory, the fit takes
# hand-overs to a GPU for spread memory: placements with few are predicted too slow, with many too
# fast.
_SHARED_MEMORY, _OWN_MEMORY = (5.0, 0.3), (15.0, 0.1)


def fit(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    observations: Sequence[Observation],
    *,
    layers: Sequence[tuple[str, ...]] | None = None,
    coarse: bool = False,
    own_memory: bool = False,
) -> CostModel:
    """Fit the costs of a model to measured placements; the result is not validated.

    ``support`` are the names of the ops that each device supports, devices in order of priority.
    Each device must appear in an observation that has counters. If the model is only cut between
    ``layers``, these are the units, and those with the same op types take the same time on a
    device. By default, units are the ops that devices fuse;
    :func:`~hetero_lab.costs.design.split_into_units` explains ``coarse``. ``own_memory`` means
    that tensors are copied into a memory of a device's own; its priors were chosen on a discrete
    GPU.
    """
    devices = tuple(support)
    samples = list(observations)

    def parts_of(samples: Sequence[Observation]) -> Parts:
        parts = read_parts(graph, devices, samples)
        return parts if layers is None else _of_layers(graph, devices, layers, parts)

    parts, units = parts_of(samples), layers
    if units is None:
        units = split_into_units(graph, support, parts.groups, coarse=coarse)
    n = len(devices)
    # The coefficients: for each device the weight of the counters, µs a node and µs a subgraph; for
    # each pair of devices µs a hand-over and µs a byte; then spread memory and the constant.
    by_counters = np.repeat([1.0, 0.0], [n, 2 * n + 2 * n**2 + 2])
    for again in (True, False):
        raw = _model(graph, devices, support, units, parts, by_counters)
        table = _features(raw, parts, samples)
        coefficients = _estimate(table, samples, devices, own_memory)
        if again:
            # Costs that counters do not show. Spread memory slows down the nodes themselves.
            beside = coefficients.copy()
            beside[:n] = beside[-2] = 0.0
            latencies = (table @ beside).tolist()
            samples = [
                _level_counters(o, us) for o, us in zip(observations, latencies, strict=True)
            ]
            parts = parts_of(samples)
    return _model(graph, devices, support, units, parts, coefficients)


def _of_layers(
    graph: OpGraph, devices: Sequence[str], layers: Sequence[tuple[str, ...]], parts: Parts
) -> Parts:
    """Give layers with the same op types the same time on a device, the median of their times.

    Lost fusion and layout conversions at the cuts between them are part of the boundary's cost.
    """
    alike: defaultdict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for ops in layers:
        alike[tuple(sorted(graph.op(op).type for op in ops))].append(ops)
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
    return replace(parts, op_us=op_us, lost_fusion=(), reorders=())


def _level_counters(observation: Observation, beside_us: float) -> Observation:
    """Scale counters so that they and the costs that they do not show add up to the latency.

    Counters come from another compilation at another moment, as a mean with all disturbances.
    """
    counters_us = sum(n.us for n in observation.nodes) + sum(c.us for c in observation.conversions)
    if not counters_us:
        return observation
    factor = float(np.clip((observation.measured_us - beside_us) / counters_us, *_LEVELS))
    return replace(
        observation,
        nodes=tuple(replace(n, us=n.us * factor) for n in observation.nodes),
        conversions=tuple(replace(c, us=c.us * factor) for c in observation.conversions),
    )


def _model(
    graph: OpGraph,
    devices: tuple[str, ...],
    support: Mapping[str, Collection[str]],
    units: Sequence[tuple[str, ...]],
    parts: Parts,
    coefficients: np.ndarray,
) -> CostModel:
    """Return the costs read from counters, weighted, and the costs of the other kinds."""
    n = len(devices)
    ends = np.cumsum([n, n, n, n * n, n * n])
    split = [part.tolist() for part in np.split(coefficients, ends)]
    weight, node_us, subgraph_us, fixed_us, us_per_byte, (spread_us, constant_us) = split

    def op_us(op: str, at: int) -> float:
        us = weight[at] * parts.op_us.get((op, devices[at]), 0.0)
        return us + (node_us[at] if (op, devices[at]) in parts.runs else 0.0)

    unit_costs: list[Unit] = []
    for ops in units:
        times = [
            sum(op_us(op, at) for op in ops) if set(ops) <= set(support[device]) else None
            for at, device in enumerate(devices)
        ]
        op_times = [
            sum(op_us(op, at) for at, device in enumerate(devices) if op in support[device])
            for op in ops
        ]
        shares = np.array(op_times if any(op_times) else [1.0] * len(ops))
        shares /= shares.sum()
        unit_costs.append(Unit(ops, tuple(times), tuple(shares.tolist())))
    pairs = [(source, target) for source in devices for target in devices]
    prices = map(BoundaryCost, fixed_us, us_per_byte)
    return CostModel(
        graph=graph,
        devices=devices,
        units=tuple(unit_costs),
        boundaries=dict(zip(pairs, prices, strict=True)),
        subgraph_us=dict(zip(devices, subgraph_us, strict=True)),
        constant_us=constant_us,
        spread_us=spread_us,
        **_weighted_terms(parts, np.array(weight), np.array(node_us)),
    )


def _weighted_terms(
    terms: Parts | CostModel, weight: np.ndarray, node_us: float | np.ndarray = 0.0
) -> dict[str, Any]:
    """Return lost fusion and reorders, each device's times multiplied by its weight.

    Lost fusion also costs ``node_us``, because the second op becomes a node of its own.
    """

    def times(us: tuple[float, ...], extra: float | np.ndarray = 0.0) -> tuple[float, ...]:
        return tuple((np.array(us) * weight + extra).tolist())

    return {
        "lost_fusion": tuple(
            structs.replace(
                term, first_us=times(term.first_us), second_us=times(term.second_us, node_us)
            )
            for term in terms.lost_fusion
        ),
        "reorders": tuple(
            structs.replace(term, leave_us=times(term.leave_us), enter_us=times(term.enter_us))
            for term in terms.reorders
        ),
    }


def _features(raw: CostModel, parts: Parts, observations: Sequence[Observation]) -> np.ndarray:
    """Return the terms in which latency is linear, one column for each coefficient.

    ``raw`` has no costs but those of the counters, so that its latency is the counters' work.
    """
    # With a second of spread memory, its cost is the share of it that is paid.
    objective = replace(raw, spread_us=1e6).objective
    n, top = len(objective.devices), objective.top
    runs = np.zeros((len(raw.graph), n), dtype=np.int64)
    for op, device in parts.runs:
        runs[raw.graph.index_of[op], objective.devices.index(device)] = 1
    rows = []
    for observation in observations:
        devices = objective.device_numbers(observation.affinity)
        cost = objective.evaluate(devices)
        nodes = np.bincount(devices, weights=runs[np.arange(len(devices)), devices], minlength=n)
        nodes = nodes + np.bincount(devices[objective.fused[cost.lost, 1]], minlength=n)
        pair = devices[top.source[cost.crossing]] * n + devices[top.target[cost.crossing]]
        n_bytes = objective.memory.n_bytes[top.tensor[cost.crossing]]
        columns = [cost.busy_ns / 1000.0, nodes, cost.subgraphs]
        columns += [np.bincount(pair, weights=w, minlength=n * n) for w in (None, n_bytes)]
        rows.append(np.concatenate([*columns, [cost.spread_ns / 1e9, 1.0]]))
    return np.array(rows)


def _estimate(
    table: np.ndarray,
    observations: Sequence[Observation],
    devices: Sequence[str],
    own_memory: bool,
) -> np.ndarray:
    """Fit the coefficients; each row is weighted by its latency, so that relative errors count."""
    n = len(devices)
    least = min(o.measured_us for o in observations)
    sizes = [n, n, n, n * n, n * n, 1, 1]
    hand_over_us, memory = _OWN_MEMORY if own_memory else _SHARED_MEMORY
    # In the order of the coefficients; all but the weight are hardly known: their spread is wider.
    expected = [1.0, 0.3, 3.0, 1.5, US_PER_BYTE, 0.0, 5.0]
    spread = [_WEIGHT_SPREAD, 0.5, 6.0, hand_over_us, 2.0 * US_PER_BYTE]
    spread += [memory * least, 0.02 * least + 10.0]
    return _most_probable(table, observations, np.repeat(expected, sizes), np.repeat(spread, sizes))


def _most_probable(
    table: np.ndarray, observations: Sequence[Observation], prior: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """Return the most probable non-negative coefficients, with outliers down-weighted."""
    from scipy.optimize import lsq_linear

    y = np.array([o.measured_us for o in observations])
    noise = np.array([o.noise for o in observations]) * y
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
    """Add the costs of the first token: those of a further token, scaled kind by kind to it."""
    firsts = first_tokens(observations)
    return replace(costs, prefill=adjust(replace(costs, prefill=None), firsts)) if firsts else costs


def first_tokens(observations: Sequence[Observation]) -> list[Observation]:
    """Return the placements whose first token was measured, with that as their latency."""
    return [
        replace(o, measured_us=o.first_us, first_us=None)
        for o in observations
        if o.first_us is not None
    ]


def adjust(costs: CostModel, observations: Sequence[Observation]) -> CostModel:
    """Scale a cost model, kind by kind, to at least one placement measured later.

    The prior is the known costs times the current speed of the machine. Counters are not needed.
    """
    objective, n = costs.objective, len(costs.devices)
    top, rows = objective.top, []
    for observation in observations:
        cost = objective.evaluate(objective.device_numbers(observation.affinity))
        edges, subgraph_ns = cost.crossing, cost.subgraphs * objective.subgraph_ns
        source, target = cost.devices[top.source[edges]], cost.devices[top.target[edges]]
        wire = objective.wire_ns(top.tensor[edges], source, target)
        received = np.bincount(target, weights=wire, minlength=n)
        work = cost.busy_ns - subgraph_ns - received
        rows.append([*work, subgraph_ns.sum(), wire.sum(), cost.constant_ns, cost.spread_ns])
    table = np.array(rows, dtype=np.float64) / 1e3
    measured = np.array([o.measured_us for o in observations])
    now = float(np.median(measured / table.sum(axis=1)))
    prior = np.full(n + 4, now)
    # The work of devices follows the machine's speed; hand-overs may change by as much as they are.
    spread = now * np.array([0.2] * n + [0.5, 1.0, 0.5, 0.5])
    scale = _most_probable(table, observations, prior, spread)
    *work, subgraph, wire, constant, memory = scale.tolist()

    def scaled_unit(unit: Unit) -> Unit:
        times = zip(unit.time_us, work, strict=True)
        return structs.replace(unit, time_us=tuple(us and us * factor for us, factor in times))

    return replace(
        costs,
        units=tuple(map(scaled_unit, costs.units)),
        boundaries={
            pair: BoundaryCost(cost.fixed_us * wire, cost.us_per_byte * wire)
            for pair, cost in costs.boundaries.items()
        },
        subgraph_us={device: us * subgraph for device, us in costs.subgraph_us.items()},
        constant_us=costs.constant_us * constant,
        spread_us=costs.spread_us * memory,
        validation_rows=(),
        **_weighted_terms(costs, scale[:n]),
    )
