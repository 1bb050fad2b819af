"""The design of a calibration: which ops stay together, and which placements to measure.

Planning units are the ops that are always placed together, mostly because devices fuse them.

The costs of any placement are inferred from those that were measured. Random placements hardly vary
the work of each device, which leaves its weight undetermined. So the share of each device, the
number of subgraphs and the places of the cuts are spread out on purpose, and cuts go through fusion
groups as well as between them. Few random placements cut any given wire, so some placements cut
every wire of a part of the model. Others divide the model by op types and by neighbourhoods, as
device support and people do: some of these are fitted, others validate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from hetero_lab.errors import PlanError, names_at_hand, shorten
from hetero_lab.model.blocks import Blocks, find_blocks
from hetero_lab.model.opgraph import OpGraph, grouped
from hetero_lab.placement.affinity import Affinity

_GOLDEN = 0.618033988749895  # its multiples, modulo 1, fill the interval most evenly
_MIDDLING = 8  # switches


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
    return _members(graph, units.__getitem__)


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


def inseparable_ops(graph: OpGraph) -> tuple[tuple[str, ...], ...]:
    """Return the names of ops that have to stay together: single ones, and stateful paths."""
    return _members(graph, graph.leader.__getitem__)


def _members(graph: OpGraph, leader: Callable[[int], int]) -> tuple[tuple[str, ...], ...]:
    """Return the names of the placeable ops that have one leader, in topological order."""
    ops_of = grouped((leader(index), graph.ops[index].name) for index in graph.placeable)
    return tuple(map(tuple, ops_of.values()))


def repeated_layers(graph: OpGraph, what_for: str) -> Blocks:
    """Return the layers of a model; PlanError, with what they are needed for, if it has none."""
    blocks = find_blocks(graph)
    if not blocks.n_blocks:
        raise PlanError(f"{shorten(graph.name)} has no repeated layers {what_for}")
    return blocks


def block_units(graph: OpGraph) -> tuple[tuple[str, ...], ...]:
    """Return the ops before the layers, each layer, and the ops after; PlanError without layers."""
    blocks = repeated_layers(graph, "between which a language model could be cut.")
    units: list[list[str]] = [[] for _ in range(blocks.n_blocks + 2)]
    for index in graph.placeable:
        units[blocks.of_op[index] + 1].append(graph.ops[index].name)
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
    number_of: dict[str, int] = {}
    for number, group in enumerate(groups):
        twice = [op for op in group if op in number_of]
        if twice:
            raise PlanError(f"{names_at_hand(twice)} are in two fusion groups of {device}.")
        number_of.update(dict.fromkeys(group, number))
    return number_of


def segmented_affinities(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    blocks: Sequence[Sequence[str]],
    n: int,
    *,
    most_switches: int = 80,
    seed: int = 0,
) -> list[Affinity]:
    """Return up to ``n`` placements that change the device along the model from rarely to often.

    ``blocks`` are ops that stay together, in topological order: units, or single ops to cut
    through fusion groups too. Numbers of switches grow geometrically from 1 to ``most_switches``
    (or half of the blocks), in an order that mixes few and many; the share of each device is
    spread evenly over the placements. The same seed gives the same placements.
    """
    rng = np.random.default_rng(seed)
    devices = list(support)
    most = max(1, min(most_switches, len(blocks) // 2))
    affinities: dict[Affinity, None] = {}
    for attempt in range(4 * n):  # some repeat a placement
        if len(affinities) == n:
            break
        # A low-discrepancy walk (Kronecker) over log(switches) and a share of 10 to 90 %.
        level, share = (attempt * _GOLDEN) % 1.0, (0.5 + attempt * _GOLDEN**2) % 1.0
        switches = max(1, round(most**level))
        affinity = _segments(graph, support, blocks, switches, devices, 0.1 + 0.8 * share, rng)
        affinities.setdefault(affinity)
    return list(affinities)


def alternating_affinities(
    graph: OpGraph, support: Mapping[str, Collection[str]], *, most_switches: int = 80
) -> list[Affinity]:
    """Return placements that, between them, cut each wire from and to each device.

    The ops of one part of the model after another change devices with their depth, once starting
    with each device; the rest of the model is on one device as far as that supports it.
    """
    devices = list(support)
    leaders = list(dict.fromkeys(graph.leader[index] for index in graph.placeable))
    depth: dict[int, int] = {}
    for op in graph:
        above = (depth.get(graph.leader[producer], -1) for producer, _ in op.inputs)
        depth[op.index] = 1 + max(above, default=-1)
    n_parts = -(-len(leaders) // most_switches)
    part = {leader: number * n_parts // len(leaders) for number, leader in enumerate(leaders)}
    rotations = [(*devices[first:], *devices[:first]) for first in range(len(devices))]
    affinities: dict[Affinity, None] = {}
    for number, phase in itertools.product(range(n_parts), range(len(devices))):
        first = {x: (depth[x] if part[x] == number else number) + phase for x in leaders}
        order = {leader: rotations[at % len(devices)] for leader, at in first.items()}
        affinities[on_first_able(graph, support, order)] = None
    return list(affinities)


def on_first_able(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    order: Mapping[int, Sequence[str]],
) -> Affinity:
    """Put each op on the first device that supports it, in the order for its leader."""
    device_of = {}
    for index in graph.placeable:
        name = graph.ops[index].name
        device_of[name] = next(d for d in order[graph.leader[index]] if name in support[d])
    return affinity_of(graph, device_of)


def block_affinities(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    units: Sequence[Sequence[str]],
    n: int,
) -> list[Affinity]:
    """Return up to ``n`` placements that change the device once, between two blocks.

    ``units`` are as :func:`~hetero_lab.costs.design.block_units` returns them: the ops before
    the first block and after the last one go with those. The first placement is cut in the middle;
    the pairs of devices take turns, in both directions.
    """
    pairs = list(itertools.permutations(support, 2))
    n_cuts = len(units) - 3
    affinities: dict[Affinity, None] = {}
    for number in range(20 * n_cuts * len(pairs)):
        if len(affinities) == n:
            break
        before, after = pairs[number % len(pairs)]
        end = 2 + int((0.5 + number * _GOLDEN) % 1.0 * n_cuts)
        parts = ((before, units[:end]), (after, units[end:]))
        if all(set(ops) <= set(support[device]) for device, part in parts for ops in part):
            device_of = {op: device for device, part in parts for ops in part for op in ops}
            affinities.setdefault(affinity_of(graph, device_of))
    return list(affinities)


def scattered_affinities(
    graph: OpGraph, support: Mapping[str, Collection[str]], n: int, *, seed: int = 0
) -> list[Affinity]:
    """Return up to ``n`` placements that divide a model by op types, and by neighbourhoods."""
    rng = np.random.default_rng(seed)
    devices = list(support)
    affinities: dict[Affinity, None] = {}
    for number in range(n):
        pick = _types if number % 2 else _neighbourhoods
        leaders = pick(graph, float(rng.uniform(0.2, 0.8)), rng)
        first = int(rng.integers(len(devices)))
        forward = [*devices[first:], *devices[:first]]
        order = {x: forward if x in leaders else forward[::-1] for x in graph.leader}
        affinities[on_first_able(graph, support, order)] = None
    return list(affinities)


def _types(graph: OpGraph, share: float, rng: np.random.Generator) -> set[int]:
    """Return the leaders of about a share of the op types."""
    leaders = {graph.leader[index] for index in graph.placeable}
    types = sorted({graph.ops[leader].type for leader in leaders})
    sample = set(rng.permutation(types)[: max(1, round(share * len(types)))].tolist())
    return {leader for leader in leaders if graph.ops[leader].type in sample}


def _neighbourhoods(graph: OpGraph, share: float, rng: np.random.Generator) -> set[int]:
    """Return leaders around some ops, about a share of all."""
    near: dict[int, set[int]] = {graph.leader[index]: set() for index in graph.placeable}
    for index in graph.placeable:
        for producer, _ in graph.ops[index].inputs:
            a, b = graph.leader[index], graph.leader[producer]
            if b in near and a != b:
                near[a].add(b)
                near[b].add(a)
    leaders, members = sorted(near), set()
    while len(members) < share * len(leaders):
        size = int(rng.integers(2, max(3, len(leaders) // 4)))
        queue = [leaders[int(rng.integers(len(leaders)))]]
        for leader in queue:  # grows as it goes: breadth first
            if size == 0:
                break
            if leader not in members:
                members.add(leader)
                size -= 1
            queue += sorted(near[leader] - members - set(queue))
    return members


def lone_cuts(graph: OpGraph, most: int | None = None) -> list[frozenset[str]]:
    """Return the beginnings of a model from which a single tensor goes on, the shortest first.

    Each is the set of names of the ops before such a cut. If there are more than ``most``, that
    many are returned, spread over all of them.
    """
    order = graph.placeable
    position = {index: number for number, index in enumerate(order)}
    last_use: dict[tuple[int, int], int] = {}  # of each tensor
    for number, index in enumerate(order):
        for tensor in graph.ops[index].inputs:
            if tensor[0] in position:
                last_use[tensor] = number
    spans = [(position[producer], last) for (producer, _), last in last_use.items()]
    alive = np.zeros(len(order) + 1, dtype=int)  # tensors that are still used behind each position
    torn = np.zeros(len(order) + 1, dtype=int)
    for path in graph.stateful_paths:
        places = [position[index] for index in path if index in position]
        torn[min(places)] += 1
        torn[max(places)] -= 1
    for first, last in spans:
        alive[first] += 1
        alive[last] -= 1
    whole = (alive.cumsum() == 1) & (torn.cumsum() == 0)
    names = [graph.ops[index].name for index in order]
    lengths = [n + 1 for n in range(len(order) - 1) if whole[n]]
    if most is not None and len(lengths) > most:
        lengths = [lengths[int((number + 0.5) * len(lengths) / most)] for number in range(most)]
    return [frozenset(names[:n]) for n in lengths]


def cut_at(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    before: Collection[str],
    devices: Sequence[str],
) -> Affinity:
    """Return the ops ``before`` a cut on the first device and the others on the second one.

    An op that its device does not support is on the other one, or on any device that does.
    """
    order = {
        leader: (*(devices if graph.ops[leader].name in before else devices[::-1]), *support)
        for leader in graph.leader
    }
    return on_first_able(graph, support, order)


def middling_affinity(
    graph: OpGraph, support: Mapping[str, Collection[str]], blocks: Sequence[Sequence[str]]
) -> Affinity:
    """Return a balanced placement: an equal share for each device, in several subgraphs.

    A slowdown of the machine affects single devices and many subgraphs differently. Compared with
    a placement between these extremes, either is off by less.
    """
    switches = max(1, min(_MIDDLING, len(blocks) // 2))
    rng = np.random.default_rng(0)
    return _segments(graph, support, blocks, switches, list(support), 1 / len(support), rng)


def _segments(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    blocks: Sequence[Sequence[str]],
    switches: int,
    devices: Sequence[str],
    share: float,
    rng: np.random.Generator,
) -> Affinity:
    """Divide the blocks into runs of unequal lengths; the devices take turns."""
    first = int(rng.integers(len(devices)))
    lengths = rng.dirichlet(np.full(switches + 1, 1.0))
    turn = (first + np.arange(switches + 1)) % len(devices)
    # Runs of one device get ``share`` of the model together.
    is_first = turn == 0
    for runs, part in ((is_first, share), (~is_first, 1.0 - share)):
        if runs.any():
            lengths[runs] *= part / lengths[runs].sum()
    ends = np.cumsum(lengths / lengths.sum()) * len(blocks)
    device_of: dict[str, str] = {}
    for number, ops in enumerate(blocks):
        choice = devices[int(turn[min(int(np.searchsorted(ends, number + 0.5)), switches)])]
        able = [device for device in devices if set(ops) <= set(support[device])]
        device = choice if choice in able else able[int(rng.integers(len(able)))]
        device_of.update(dict.fromkeys(ops, device))
    return affinity_of(graph, device_of)


def affinity_of(graph: OpGraph, device_of: Mapping[str, str]) -> Affinity:
    """Return the affinity with these devices; other nodes follow their leaders."""
    some = next(iter(device_of.values()))
    return Affinity.from_graph(graph, lambda op: device_of.get(op, some))
