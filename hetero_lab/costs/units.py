"""Planning units: which ops are always placed together, and which pairs may lose fusion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from scipy.cluster.hierarchy import DisjointSet

from hetero_lab.errors import PlanError, names_at_hand, shorten
from hetero_lab.model.blocks import Blocks, find_blocks
from hetero_lab.model.opgraph import OpGraph, grouped


def split_into_units(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    fusion_groups: Mapping[str, Iterable[Collection[str]]],
    *,
    coarse: bool = False,
) -> tuple[tuple[str, ...], ...]:
    """Divide the placeable ops into planning units.

    A unit is a connected part of a fusion group whose ops have equal support: where a device does
    not support one op of a group, the rest of the group can still go there. A stateful path is
    always one unit.

    ``support`` are the names of the ops that each device supports. ``fusion_groups`` are, for each
    device, disjoint groups of ops that it executes as one node; it fuses no others. With
    ``coarse``, ops that any device fuses stay together, which makes fewer units; otherwise, every
    device that supports them must fuse them.

    Returns op names of each unit in topological order, units in the order of their first op.
    PlanError if no device supports some op or all of a stateful path, or two groups of a device
    overlap.
    """
    devices = list(support)
    pairs = fused_pairs(graph, {device: fusion_groups.get(device, ()) for device in devices})
    in_path = {index for path in graph.stateful_paths for index in path}
    able = {
        index: tuple(d for d in devices if graph.ops[index].name in support[d])
        for index in graph.placeable
    }
    check_supported(graph, support)
    units = DisjointSet(graph.placeable)

    for path in graph.stateful_paths:
        if not set.intersection(*(set(able[index]) for index in path)):
            names = names_at_hand(graph.ops[index].name for index in path)
            raise PlanError(
                f"{names} are one stateful path and go together, and none of "
                f"{', '.join(devices)} supports all of them. Add a device that does, for "
                "instance CPU."
            )
        for index in path:
            units.merge(path[0], index)
    for *names, fusing in pairs:
        first, second = (graph.index_of[name] for name in names)
        together = set(able[first]) & set(fusing)
        enough = bool(together) if coarse else len(together) == len(able[first])
        if enough and able[first] == able[second] and in_path.isdisjoint((first, second)):
            units.merge(first, second)
    members = grouped((units[index], graph.ops[index].name) for index in graph.placeable)
    return tuple(map(tuple, members.values()))


def check_supported(graph: OpGraph, support: Mapping[str, Collection[str]]) -> None:
    """Raise PlanError for ops that no device supports, and for a model without any."""
    placeable = [graph.ops[index].name for index in graph.placeable]
    if not placeable:
        raise PlanError(f"{shorten(graph.name)} has no ops to place; hetero_lab.profile times it.")
    missing = [op for op in placeable if not any(op in able for able in support.values())]
    if missing:
        raise PlanError(
            f"None of {', '.join(support)} supports {names_at_hand(missing)}. Add a device that "
            "does, for instance CPU."
        )


def inseparable_ops(graph: OpGraph) -> list[tuple[str, ...]]:
    """Return the names of ops that have to stay together: single ones, and stateful paths."""
    found = grouped((graph.leader[index], graph.ops[index].name) for index in graph.placeable)
    return list(map(tuple, found.values()))


def repeated_layers(graph: OpGraph, what_for: str) -> Blocks:
    """Return the layers of a model; PlanError, with what they are needed for, if it has none."""
    found = find_blocks(graph)
    if not found.n_blocks:
        raise PlanError(f"{shorten(graph.name)} has no repeated layers {what_for}")
    return found


def block_units(graph: OpGraph) -> tuple[tuple[str, ...], ...]:
    """Return the ops before the layers, each layer, and the ops after; PlanError without layers."""
    found = repeated_layers(graph, "between which a language model could be cut.")
    units: list[list[str]] = [[] for _ in range(found.n_blocks + 2)]
    for index in graph.placeable:
        units[found.of_op[index] + 1].append(graph.ops[index].name)
    return tuple(tuple(ops) for ops in units if ops)


def fused_pairs(
    graph: OpGraph, fusion_groups: Mapping[str, Iterable[Collection[str]]]
) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return wires within a fusion group: producing op, receiving op, devices that fuse them."""
    groups = {device: _group_of(device, every) for device, every in fusion_groups.items()}
    placeable = set(graph.placeable)
    pairs: dict[tuple[str, str], tuple[str, ...]] = {}
    for op in graph:
        for producer, _ in op.inputs:
            if op.index in placeable and producer in placeable:
                first, second = graph.ops[producer].name, op.name
                fusing = tuple(
                    device
                    for device, group_of in groups.items()
                    if first in group_of and group_of[first] == group_of.get(second)
                )
                if fusing:
                    pairs[first, second] = fusing
    return tuple((first, second, devices) for (first, second), devices in pairs.items())


def _group_of(device: str, groups: Iterable[Collection[str]]) -> dict[str, int]:
    """Return op → number of its group on a device."""
    found: dict[str, int] = {}
    for number, group in enumerate(groups):
        twice = [op for op in group if op in found]
        if twice:
            raise PlanError(f"{names_at_hand(twice)} are in two fusion groups of {device}.")
        found.update(dict.fromkeys(group, number))
    return found
