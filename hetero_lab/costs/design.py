"""Which placements to measure so that the costs of any other can be inferred from them.

Random placements hardly vary the work of each device, which leaves its weight undetermined. So the
share of each device, the number of subgraphs and the places of the cuts are spread out on purpose,
and cuts go through fusion groups as well as between them. Few random placements cut any given
wire, so some placements cut every wire of a part of the model. Others divide the model by op types
and by neighbourhoods, as device support and people do: some of these are fitted, others validate.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity

_GOLDEN = 0.618033988749895
_MIDDLING = 8  # switches


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
    found: dict[Affinity, None] = {}
    for attempt in range(4 * n):
        if len(found) == n:
            break
        # A low-discrepancy walk (Kronecker) over log(switches) and over the share of a device.
        level, share = (attempt * _GOLDEN) % 1.0, (0.5 + attempt * _GOLDEN**2) % 1.0
        switches = max(1, round(most**level))
        made = _segmented(graph, support, blocks, switches, devices, 0.1 + 0.8 * share, rng)
        found.setdefault(made)
    return list(found)


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
    turned = [(*devices[first:], *devices[:first]) for first in range(len(devices))]
    found: dict[Affinity, None] = {}
    for number, phase in itertools.product(range(n_parts), range(len(devices))):
        first = {x: (depth[x] if part[x] == number else number) + phase for x in leaders}
        order = {leader: turned[at % len(devices)] for leader, at in first.items()}
        found[on_first_able(graph, support, order)] = None
    return list(found)


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
    return placed(graph, device_of)


def block_affinities(
    graph: OpGraph,
    support: Mapping[str, Collection[str]],
    units: Sequence[Sequence[str]],
    n: int,
) -> list[Affinity]:
    """Return up to ``n`` placements that change the device once, between two blocks.

    ``units`` are as :func:`~hetero_lab.costs.units.block_units` returns them: the ops before
    the first block and after the last one go with those. The first placement is cut in the middle;
    the pairs of devices take turns, in both directions.
    """
    pairs = list(itertools.permutations(support, 2))
    n_cuts = len(units) - 3
    found: dict[Affinity, None] = {}
    for number in range(20 * n_cuts * len(pairs)):
        if len(found) == n:
            break
        before, after = pairs[number % len(pairs)]
        end = 2 + int((0.5 + number * _GOLDEN) % 1.0 * n_cuts)
        parts = ((before, units[:end]), (after, units[end:]))
        if all(set(ops) <= set(support[device]) for device, part in parts for ops in part):
            device_of = {op: device for device, part in parts for ops in part for op in ops}
            found.setdefault(placed(graph, device_of))
    return list(found)


def scattered_affinities(
    graph: OpGraph, support: Mapping[str, Collection[str]], n: int, *, seed: int = 0
) -> list[Affinity]:
    """Return up to ``n`` placements that divide a model by op types, and by neighbourhoods."""
    rng = np.random.default_rng(seed)
    devices = list(support)
    found: dict[Affinity, None] = {}
    for number in range(n):
        pick = _types if number % 2 else _neighbourhoods
        chosen = pick(graph, float(rng.uniform(0.2, 0.8)), rng)
        first = int(rng.integers(len(devices)))
        forward = [*devices[first:], *devices[:first]]
        order = {x: forward if x in chosen else forward[::-1] for x in graph.leader}
        found[on_first_able(graph, support, order)] = None
    return list(found)


def _types(graph: OpGraph, share: float, rng: np.random.Generator) -> set[int]:
    """Return the leaders of about a share of the op types."""
    types = sorted({graph.ops[graph.leader[index]].type for index in graph.placeable})
    kept = set(rng.permutation(types)[: max(1, round(share * len(types)))].tolist())
    leaders = {graph.leader[index] for index in graph.placeable}
    return {leader for leader in leaders if graph.ops[leader].type in kept}


def _neighbourhoods(graph: OpGraph, share: float, rng: np.random.Generator) -> set[int]:
    """Return leaders around some ops, about a share of all."""
    near: dict[int, set[int]] = {graph.leader[index]: set() for index in graph.placeable}
    for index in graph.placeable:
        for producer, _ in graph.ops[index].inputs:
            a, b = graph.leader[index], graph.leader[producer]
            if b in near and a != b:
                near[a].add(b)
                near[b].add(a)
    leaders, chosen = sorted(near), set()
    while len(chosen) < share * len(leaders):
        size = int(rng.integers(2, max(3, len(leaders) // 4)))
        queue = [leaders[int(rng.integers(len(leaders)))]]
        for leader in queue:  # grows as it goes: breadth first
            if size == 0:
                break
            if leader not in chosen:
                chosen.add(leader)
                size -= 1
            queue += sorted(near[leader] - chosen - set(queue))
    return chosen


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
    found = [n + 1 for n in range(len(order) - 1) if whole[n]]
    if most is not None and len(found) > most:
        found = [found[int((number + 0.5) * len(found) / most)] for number in range(most)]
    return [frozenset(names[:n]) for n in found]


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
    return _segmented(graph, support, blocks, switches, list(support), 1 / len(support), rng)


def _segmented(
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
        wanted = devices[int(turn[min(int(np.searchsorted(ends, number + 0.5)), switches)])]
        able = [device for device in devices if set(ops) <= set(support[device])]
        device = wanted if wanted in able else able[int(rng.integers(len(able)))]
        device_of.update(dict.fromkeys(ops, device))
    return placed(graph, device_of)


def placed(graph: OpGraph, device_of: Mapping[str, str]) -> Affinity:
    """Return the affinity with these devices; other nodes follow their leaders."""
    some = next(iter(device_of.values()))
    return Affinity.from_graph(graph, {op.name: device_of.get(op.name, some) for op in graph})
