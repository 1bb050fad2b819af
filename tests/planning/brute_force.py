"""Slow and plain: what the planners have to agree with, written from the definitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from planning.random_costs import affinity_of

from hetero_lab.model.opgraph import CONSTANT, RESULT
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.planning.cost_model import BoundaryCost, CostModel


def ns(us: float) -> int:
    """Round µs to whole ns."""
    return round(us * 1000)


def choices(costs: CostModel) -> Iterator[tuple[int, ...]]:
    """Yield every choice that the devices support."""
    places = [
        [number for number, time in enumerate(unit.time_us) if time is not None]
        for unit in costs.units
    ]
    yield from itertools.product(*places)


def hand_over_ns(costs: CostModel, op: str, port: int, source: str, target: str) -> int:
    """Return the price of one tensor from device to device."""
    tensor = costs.graph.ops[costs.graph.index_of[op]].outputs[port]
    price = costs.boundaries.get((source, target), BoundaryCost())
    total = ns(price.fixed_us + price.us_per_byte * (tensor.n_bytes or 0))
    for term in costs.reorders:
        if (term.op, term.port) == (op, port):
            total += ns(term.leave_us[costs.devices.index(source)])
            total += ns(term.enter_us[costs.devices.index(target)])
    return total


def pairwise_ns(costs: CostModel, choice: tuple[int, ...]) -> int:
    """Add up the pairwise part of the latency of a choice."""
    affinity = affinity_of(costs, choice)
    total = ns(costs.constant_us)
    for unit, number in zip(costs.units, choice, strict=True):
        total += ns(unit.time_us[number] or 0.0)
    received = {
        (producer, port, affinity[op.name])
        for op in costs.graph
        if op.type != RESULT
        for producer, port in op.inputs
        if costs.graph.ops[producer].type != CONSTANT
        and affinity[costs.graph.ops[producer].name] != affinity[op.name]
    }
    for producer, port, target in received:
        name = costs.graph.ops[producer].name
        total += hand_over_ns(costs, name, port, affinity[name], target)
    for term in costs.lost_fusion:
        if affinity[term.first] != affinity[term.second]:
            total += _lost_ns(costs, term, affinity)
    return total


def latency_ns(costs: CostModel, affinity: Affinity) -> int:
    """Add up a prediction from the partition, part by part; units are whole."""
    partition = predict(costs.graph, affinity)
    total = ns(costs.constant_us)
    for unit in costs.units:
        total += ns(unit.time_us[costs.devices.index(affinity[unit.ops[0]])] or 0.0)
    for subgraph in partition.subgraphs:
        total += ns(costs.subgraph_us[subgraph.device])
    for boundary in partition.boundaries:
        source = partition.subgraphs[boundary.source].device
        for target in boundary.targets:
            device = partition.subgraphs[target].device
            total += hand_over_ns(costs, boundary.op, boundary.port, source, device)
    where = partition.subgraph_of
    for term in costs.lost_fusion:
        if where[term.first] != where[term.second]:
            total += _lost_ns(costs, term, affinity)
    return total


def _lost_ns(costs: CostModel, term, affinity: Affinity) -> int:
    first = costs.devices.index(affinity[term.first])
    second = costs.devices.index(affinity[term.second])
    return ns(term.first_us[first]) + ns(term.second_us[second])
