"""Slow and plain: what the planners have to agree with, written from the definitions."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from planning.random_costs import affinity_of

from hetero_lab.costs.cost_model import BoundaryCost, CostModel, LostFusion
from hetero_lab.model.opgraph import CONSTANT, RESULT
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict


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


def hand_over_ns(costs: CostModel, op: str, port: int, source: str, target: str) -> tuple[int, int]:
    """Return the work of both devices for one tensor that goes from one to the other."""
    tensor = costs.graph.ops[costs.graph.index_of[op]].outputs[port]
    price = costs.boundaries.get((source, target), BoundaryCost())
    leave, enter = 0, ns(price.fixed_us + price.us_per_byte * (tensor.n_bytes or 0))
    for term in costs.reorders:
        if (term.op, term.port) == (op, port):
            leave += ns(term.leave_us[costs.devices.index(source)])
            enter += ns(term.enter_us[costs.devices.index(target)])
    return leave, enter


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
    keeps = {term.op: term.keeps for term in costs.reorders if term.keeps}
    roots = _roots(costs)
    for producer, port, target in received:
        name = costs.graph.ops[producer].name
        leave, enter = hand_over_ns(costs, name, port, affinity[name], target)
        alone = name not in keeps and (len(costs.devices) > 2 or name not in roots.values())
        total += enter + (leave if alone else 0)
    if len(costs.devices) == 2:
        for root in set(roots.values()):
            total += _layout_ns(costs, [root, *(op for op in roots if roots[op] == root)], affinity)
    for term in costs.lost_fusion:
        if affinity[term.first] != affinity[term.second]:
            total += sum(us for _, us in _lost_ns(costs, term, affinity))
    return total


def _roots(costs: CostModel) -> dict[str, str]:
    """Return which op chose the layout that each op keeps, going up by the first that it reads."""
    keeps = {term.op: term.keeps for term in costs.reorders if term.keeps}
    chosen = {term.op for term in costs.reorders if not term.keeps and any(term.leave_us)}
    roots: dict[str, str] = {}
    for op in costs.graph:
        for name in sorted(keeps.get(op.name, ()), key=costs.graph.index_of.__getitem__):
            root = roots.get(name, name)
            if root in chosen and op.name not in roots:
                roots[op.name] = root
    return roots


def _has_layout(costs: CostModel, op: str, device: str, ops: Collection[str]) -> bool:
    """Tell whether an op has a layout that one of ``ops``, its subgraph's, chose."""
    terms = [term for term in costs.reorders if term.op == op]
    if any(not term.keeps and term.leave_us[costs.devices.index(device)] for term in terms):
        return True
    kept = {name for term in terms for name in term.keeps} & set(ops)
    return any(_has_layout(costs, name, device, ops) for name in kept)


def _layout_ns(costs: CostModel, kept_by: list[str], affinity: Affinity) -> int:
    """Return the least that one of the tensors costs, if one of their users is elsewhere."""
    own = affinity[kept_by[0]]
    users = {
        op.name
        for op in costs.graph
        if op.type != RESULT
        for producer, _ in op.inputs
        if costs.graph.ops[producer].name in kept_by
    }
    if all(affinity[user] == own for user in users):
        return 0
    return min(hand_over_ns(costs, op, 0, own, own)[0] for op in kept_by)


def busy_ns(costs: CostModel, affinity: Affinity) -> dict[str, int]:
    """Add up each device's work from the partition, part by part; units are whole."""
    partition = predict(costs.graph, affinity)
    busy = dict.fromkeys(costs.devices, 0)
    for unit in costs.units:
        device = affinity[unit.ops[0]]
        busy[device] += ns(unit.time_us[costs.devices.index(device)] or 0.0)
    for subgraph in partition.subgraphs:
        busy[subgraph.device] += ns(costs.subgraph_us[subgraph.device])
    for boundary in partition.boundaries:
        source = partition.subgraphs[boundary.source].device
        leaving = {}
        keeps = any(term.keeps for term in costs.reorders if term.op == boundary.op)
        inside = partition.subgraphs[boundary.source].ops
        # What no op of the subgraph chose was converted when it entered.
        converted = keeps and not _has_layout(costs, boundary.op, source, inside)
        for target in boundary.targets:
            device = partition.subgraphs[target].device
            leave, enter = hand_over_ns(costs, boundary.op, boundary.port, source, device)
            leaving[device] = 0 if converted else leave
            busy[device] += enter
        others = [leave for device, leave in leaving.items() if device != source]
        busy[source] += sum(others) if others else leaving.get(source, 0)
    where = partition.subgraph_of
    for term in costs.lost_fusion:
        if where[term.first] != where[term.second]:
            for device, lost in _lost_ns(costs, term, affinity):
                busy[device] += lost
    return busy


def latency_ns(costs: CostModel, affinity: Affinity) -> int:
    """Return the constant, spread memory and all devices' work."""
    return alone_ns(costs, affinity) + sum(busy_ns(costs, affinity).values())


def interval_ns(costs: CostModel, affinity: Affinity) -> int:
    """Return the constant, spread memory and the busiest device's work."""
    return alone_ns(costs, affinity) + max(busy_ns(costs, affinity).values())


def alone_ns(costs: CostModel, affinity: Affinity) -> int:
    """Return what is no device's work."""
    n = predict(costs.graph, affinity).n_subgraphs
    return ns(costs.constant_us) + ns(costs.spread_us) * (n - 1) // (n + 4)


def held_bytes(costs: CostModel, affinity: Affinity, *, boundaries: bool = True) -> dict[str, int]:
    """Count the constants, states and boundary tensors of each device from the partition."""
    graph = costs.graph
    partition = predict(graph, affinity)
    placeable = set(graph.placeable)
    held = dict.fromkeys(costs.devices, 0)
    for op in graph:
        if op.type == "ReadValue":
            held[affinity[op.name]] += op.outputs[0].n_bytes or 0
    for subgraph in partition.subgraphs:
        seen, queue = set(), [graph.index_of[op] for op in subgraph.ops]
        queue = [index for index in queue if index in placeable]
        while queue:
            for producer, _ in graph.ops[queue.pop()].inputs:
                if producer in graph.constant_side and producer not in seen:
                    seen.add(producer)
                    queue.append(producer)
        held[subgraph.device] += sum(
            graph.ops[index].outputs[0].n_bytes or 0
            for index in seen
            if graph.ops[index].type == CONSTANT
        )
    for boundary in partition.boundaries if boundaries else ():
        n_bytes = graph.ops[graph.index_of[boundary.op]].outputs[boundary.port].n_bytes or 0
        for index in (boundary.source, *boundary.targets):
            held[partition.subgraphs[index].device] += n_bytes
    return held


def _lost_ns(costs: CostModel, term: LostFusion, affinity: Affinity) -> list[tuple[str, int]]:
    sides = ((term.first, term.first_us), (term.second, term.second_us))
    return [(affinity[op], ns(column[costs.devices.index(affinity[op])])) for op, column in sides]
