"""The difficult topologies: what about a partition costs more than it needs to.

Each rule is a function from a :class:`~hetero_lab.lint.context.Situation` to drafts of
findings. None of them needs costs; where there are some, "small" and "fused" are what the costs
say instead of what experience says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hetero_lab.lint.context import (
    ERROR,
    INFO,
    WARNING,
    Draft,
    Situation,
    count_of,
    together,
)
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.topology import connected, strong_labels, topology

TORN_STATE, CYCLE, CUT_FUSION = "torn-state", "cycle", "cut-fusion"
PING_PONG, TINY, COPY_ONLY = "ping-pong", "tiny-subgraph", "copy-only"

# What nearly every device runs as one node: a heavy op, then biases, then an activation.
_CONVOLUTIONS = ("Convolution", "GroupConvolution")
HEAVY = frozenset([*_CONVOLUTIONS, *(f"{kind}BackpropData" for kind in _CONVOLUTIONS), "MatMul"])
BIAS = frozenset(["Add", "Subtract", "Multiply"])
_SIGMOIDS = ("Sigmoid", "HSigmoid", "Swish", "HSwish", "Mish", "Tanh")
ACTIVATION = frozenset([*_SIGMOIDS, "Relu", "PRelu", "Clamp", "Elu", "Gelu", "SoftPlus"])
# Never cheap either: they hold a whole model inside.
WHOLE = frozenset(["If", "Loop", "TensorIterator", "LSTMSequence", "GRUSequence", "RNNSequence"])
FEW, SMALL = 2, 8  # ops of a tiny subgraph; of the middle of a ping-pong


def torn_state(at: Situation) -> Iterator[Draft]:
    """Find stateful paths that are not in one subgraph: they cannot be compiled."""
    for path in at.graph.stateful_paths:
        homes = {at.partition.home[index] for index in path}
        if len(homes) < 2:
            continue
        devices = list(dict.fromkeys(at.device_of[index] for index in path))
        if len(devices) > 1:
            where = f"is torn over {' and '.join(devices)}"
            options = at.moves(path, devices)
        else:
            where = f"is cut into {count_of(len(homes), 'subgraph')} of {devices[0]} by a cycle"
            others = dict.fromkeys(d for d in at.device_names if d != devices[0])
            between = _between(at, path)
            options = (*at.moves(between, devices), *at.moves(path, others))
        yield Draft(
            rule=TORN_STATE,
            severity=ERROR,
            nodes=path,
            finding=(
                f"The stateful path {at.named(path)} {where}: the runtime cannot compile that, "
                "a ReadValue, its Assign and all between them must share one subgraph."
            ),
            options=options,
            gone=together(path),
            slack=None,
            weight=np.inf,
            stuck="No single move brings it together: put all of it, and what lies between its "
            "ops, on one device that supports it.",
        )


def _between(at: Situation, path: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ops of other devices on a way from the path's subgraphs back to them."""
    home, device = at.partition.home, at.device_of[path[0]]
    seeds = [op.index for op in at.graph if home[op.index] in {home[i] for i in path}]
    after, before = set(seeds), set(seeds)
    for op in at.graph:
        if any(producer in after for producer, _ in op.inputs):
            after.add(op.index)
    for op in reversed(at.graph.ops):
        if any(use.index in before for use in at.graph.consumers[op.index]):
            before.add(op.index)
    ways = after & before
    return tuple(i for i in at.graph.placeable if i in ways and at.device_of[i] != device)


def cycles(at: Situation) -> Iterator[Draft]:
    """Find ops on another device through which a subgraph would depend on itself.

    Plain merging of neighbours on one device gives components. HETERO splits a component from
    which a way leads through others back to itself; each first step out gives the shortest such
    way.
    """
    top, placeable = topology(at.graph), set(at.graph.placeable)
    number = {device: n for n, device in enumerate(at.device_names)}
    devices = np.array([number[device] for device in at.device_of])
    cut = (devices[top.source] != devices[top.target]) & ~top.to_result
    component = connected(top, cut)
    homes: dict[int, set[int]] = {}
    for part, home in zip(component.tolist(), at.partition.home, strict=True):
        if home >= 0:
            homes.setdefault(part, set()).add(home)
    split = [part for part, found in homes.items() if len(found) > 1]
    if not split:
        return
    # A constant that parts on two devices share is a way, too, until it is copied.
    sources, targets = component[top.source[cut]], component[top.target[cut]]
    labels = strong_labels(sources, targets, int(component.max()) + 1).tolist()
    feeds: dict[int, dict[int, None]] = {}
    fed_by: dict[int, dict[int, None]] = {}
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        if labels[source] == labels[target] and source != target:
            feeds.setdefault(source, {})[target] = None
            fed_by.setdefault(target, {})[source] = None
    ops: dict[int, list[int]] = {}
    for index in at.graph.placeable:
        ops.setdefault(int(component[index]), []).append(index)
    seen: set[tuple[int, ...]] = set()
    for part in split:
        following = _ways_back(part, fed_by)
        for step in feeds.get(part, ()):
            way: list[int] = []
            while step != part:
                way.append(step)
                step = following[step]
            between = tuple(sorted(i for p in way for i in ops.get(p, ())))
            split_ops = ops.get(part, [])
            if not between or between in seen or not split_ops:
                continue
            # Where both sides are split by each other, the smaller one is in between.
            if len(way) == 1 and way[0] in split and len(split_ops) < len(between):
                continue
            seen.add(between)
            device = at.device_of[split_ops[0]]
            options = [(len(between), at.move(between, device))]
            if len(way) == 1:
                options.append((len(split_ops), at.move(split_ops, at.device_of[between[0]])))
            n_bytes = sum(
                at.graph.ops[i].outputs[0].n_bytes or 0
                for i in between
                if any(use.index in placeable for use in at.graph.consumers[i])
            )
            yield Draft(
                rule=CYCLE,
                severity=WARNING,
                nodes=between,
                finding=(
                    f"On a way from {device} back to {device}: "
                    f"{count_of(len(between), 'op')} of "
                    f"{' and '.join(dict.fromkeys(at.device_of[i] for i in between))} "
                    f"({at.named(between)}). "
                    f"{count_of(len(split_ops), 'connected op')} of {device} "
                    f"({at.named(split_ops)}): {len(homes[part])} subgraphs instead of 1."
                ),
                options=tuple(o for _, o in sorted(options, key=lambda pair: pair[0]) if o),
                gone=None,  # what is moved is one component with the other part then
                slack=-1,
                weight=_overhead(at, between) if at.costs else float(n_bytes),
            )


def _ways_back(part: int, fed_by: dict[int, dict[int, None]]) -> dict[int, int]:
    """Return, for each component that leads to ``part``, the next one on the shortest way."""
    following: dict[int, int] = {}
    queue = deque([part])
    while queue:
        here = queue.popleft()
        for other in fed_by.get(here, ()):
            if other not in following and other != part:
                following[other] = here
                queue.append(other)
    return following


def _overhead(at: Situation, nodes: tuple[int, ...]) -> float:
    return sum(at.overhead_us[s] for s in {at.partition.home[i] for i in nodes})


def fusion_pairs(graph: OpGraph) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the wires within well-known fusion groups, each with its whole group.

    A group is a heavy op, then biases (an operand is constant), then one activation, each the
    only user of the one before.
    """
    pairs: dict[tuple[int, int], tuple[int, ...]] = {}
    for op in graph:
        if op.type not in HEAVY or op.index in graph.constant_side:
            continue
        group = [op.index]
        while True:
            uses = graph.consumers[group[-1]]
            if len(uses) != 1:
                break
            user = graph.ops[uses[0].index]
            bias = user.type in BIAS and all(
                producer == group[-1] or producer in graph.constant_side
                for producer, _ in user.inputs
            )
            if bias or user.type in ACTIVATION:
                group.append(user.index)
            if not bias:
                break
        for pair in pairwise(group):
            pairs[pair] = tuple(group)
    return pairs


def cut_fusions(at: Situation) -> Iterator[Draft]:
    """Find boundaries between ops that a device would run as one node."""
    home, index_of = at.partition.home, at.graph.index_of
    lost: dict[tuple[int, int], float] = {}
    if at.costs:
        for share in at.explained.lost_fusion:
            pair = index_of[share.first], index_of[share.second]
            lost[pair] = lost.get(pair, 0.0) + share.us
        groups = _priced_groups(at)
        torn = {pair: groups[pair[0]] for pair, us in lost.items() if us > 0.0}
    else:
        pairs = fusion_pairs(at.graph)
        torn = {pair: group for pair, group in pairs.items() if home[pair[0]] != home[pair[1]]}
    for (first, second), group in torn.items():
        devices = at.device_of[first], at.device_of[second]
        over = " and ".join(dict.fromkeys(devices))
        if at.costs:
            weight = lost[first, second]
            price = f"the lost fusion costs {weight:.1f} µs beside the hand-over"
        else:
            weight = float(at.graph.ops[first].outputs[0].n_bytes or 0)
            price = f"{weight:,.0f} bytes are handed over in between"
        how = "are on" if devices[0] != devices[1] else "are in two subgraphs of"
        yield Draft(
            rule=CUT_FUSION,
            severity=WARNING,
            nodes=tuple(sorted((first, second))),
            finding=(
                f"{at.named([first, second])} ({at.graph.ops[first].type}, "
                f"{at.graph.ops[second].type}) fuse into one node, but {how} {over}: {price}."
            ),
            options=(
                *at.moves(group, devices),
                *at.moves([second], devices[:1]),
                *at.moves([first], devices[1:]),
            ),
            gone=together((first, second)),
            slack=0,
            weight=weight,
        )


def _priced_groups(at: Situation) -> dict[int, tuple[int, ...]]:
    """Return, for each op in a term of lost fusion, all ops that hang together by such terms."""
    assert at.costs is not None
    group: dict[int, list[int]] = {}
    for term in at.costs.lost_fusion:
        a, b = (at.graph.index_of[name] for name in (term.first, term.second))
        first, second = group.setdefault(a, [a]), group.setdefault(b, [b])
        if first is not second:
            first += second
            for index in second:
                group[index] = first
    return {index: tuple(sorted(nodes)) for index, nodes in group.items()}


def small_subgraphs(at: Situation) -> Iterator[Draft]:
    """Find ping-pong (A→B→A with little on B) and other subgraphs that are not worth theirs."""
    subgraphs = at.partition.subgraphs
    for subgraph, nodes, link in zip(subgraphs, at.members, at.links, strict=True):
        if not nodes or not link.n_tensors:
            continue
        around = link.feeds | link.fed_by
        devices = {subgraphs[other].device for other in around} - {subgraph.device}
        n_around = sum(len(subgraphs[other].ops) for other in around)
        cheap = not any(at.graph.ops[i].type in HEAVY | WHOLE for i in nodes)
        if at.costs:
            own_us = at.overhead_us[subgraph.index]
            ops_us = at.explained.subgraphs[subgraph.index].ops_us
            few = ops_us < own_us
            price = f"; its ops take {ops_us:.1f} µs, to have it apart costs {own_us:.1f} µs"
            weight = own_us
        else:
            few, price = cheap and len(nodes) <= FEW, ""
            weight = float(link.n_bytes)
        there_and_back = (
            len(devices) == 1
            and all(subgraphs[other].device in devices for other in around)
            and link.feeds
            and link.fed_by
            and (few or (cheap and len(nodes) <= SMALL))
            and len(nodes) <= n_around
        )
        exchanged = f"{count_of(link.n_tensors, 'hand-over')} of {link.n_bytes:,} bytes"
        what = f"{count_of(len(nodes), 'op')} ({at.named(nodes)})"
        if there_and_back:
            (other,) = devices
            text = (
                f"{other} → {subgraph.device} → {other} for {what} on {subgraph.device}: "
                f"{exchanged} there and back{price}."
            )
        elif few:
            text = f"A subgraph of {subgraph.device} has only {what} and {exchanged}{price}."
        else:
            continue
        yield Draft(
            rule=PING_PONG if there_and_back else TINY,
            severity=WARNING,
            nodes=nodes,
            finding=text,
            options=at.moves(nodes, _nearest(at, subgraph.index)),
            gone=at.merged(nodes),
            slack=-1,
            weight=weight,
        )


def _nearest(at: Situation, subgraph: int) -> list[str]:
    """Return the devices that a subgraph exchanges tensors with, most bytes first."""
    own = at.partition.subgraphs[subgraph].device
    bytes_with = at.links[subgraph].bytes_with
    return sorted((d for d in bytes_with if d != own), key=lambda d: -bytes_with[d])


def copy_only(at: Situation) -> Iterator[Draft]:
    """Find subgraphs without an op: they only copy inputs or constants."""
    for subgraph, nodes, link in zip(at.partition.subgraphs, at.members, at.links, strict=True):
        copied = () if nodes else at.copied(subgraph.index)
        if not copied:
            continue
        constant = all(index in at.graph.constant_side for index in copied)
        users = _placed_users(at.graph, copied)
        devices = dict.fromkeys([*(at.device_of[i] for i in users), subgraph.device])
        kind = "constant" if constant else "input"
        yield Draft(
            rule=COPY_ONLY,
            severity=WARNING if users else INFO,
            nodes=copied,
            finding=(
                f"A subgraph of {subgraph.device} has no op, it only copies "
                f"{count_of(len(copied), kind)} ({at.named(copied)}): {link.n_bytes:,} bytes"
                + (f" for ops on {' and '.join(dict.fromkeys(at.device_of[i] for i in users))}."
                   if users else " straight to an output of the model.")
            ),
            options=at.moves(users, devices) if users else (),
            gone=_has_op(at, copied[0]),
            slack=None,
            weight=at.overhead_us[subgraph.index] if at.costs else float(link.n_bytes),
            stuck="" if users else "That lies in the model: no placement avoids the copy.",
        )  # fmt: skip


def _placed_users(graph: OpGraph, nodes: tuple[int, ...]) -> tuple[int, ...]:
    placeable, found, queue = set(graph.placeable), set(), list(nodes)
    while queue:
        for use in graph.consumers[queue.pop()]:
            if use.index in placeable:
                found.add(use.index)
            else:
                queue.append(use.index)
    return tuple(sorted(found))


def _has_op(at: Situation, node: int):
    return lambda ids: bool((ids[at.is_placeable] == ids[node]).any())


TOPOLOGY_RULES = (torn_state, cycles, cut_fusions, small_subgraphs, copy_only)
