"""Rules of lint: parts of a partition that cost more than necessary.

Each rule is a function from a :class:`~hetero_lab.lint.context.LintContext` to drafts of
findings. Without costs, rules of thumb say which subgraphs are small and which ops fuse; with
costs, measurements do, and two more rules apply. A rule runs once `RULES` in `lint/findings.py`
lists it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from hetero_lab.lint.context import ERROR, INFO, WARNING, Draft, Gone, LintContext, together
from hetero_lab.model.opgraph import CONVOLUTIONS, OpGraph
from hetero_lab.placement.partition import Boundary
from hetero_lab.terminal import count_of

SLOW_DEVICE = "slow-device"
SLOWER = 2.0  # times as slow as on the best device
SHARE = 0.01  # of the predicted latency that the better device would save


def slow_devices(context: LintContext) -> Iterator[Draft]:
    """Find units much slower where they are than on another device that supports them."""
    if context.costs is None:
        return
    devices, index_of = context.costs.devices, context.graph.index_of
    for share in context.evaluation.of("ops"):
        times = context.costs.units[share.numbers[0]].time_us
        now = times[devices.index(share.device)]
        best_us, best = min((t, d) for t, d in zip(times, devices, strict=True) if t is not None)
        # A torn unit takes its share of both times.
        saved = share.us * (1.0 - best_us / now) if now else 0.0
        if not now or now < SLOWER * best_us or saved < SHARE * context.evaluation.predicted_us:
            continue
        nodes = tuple(sorted(index_of[op] for op in share.ops))
        homes = {context.partition.home[index] for index in nodes}
        whole = sorted({index for home in homes for index in context.members[home]} | set(nodes))
        # Every option ends the finding: no device is faster than the best one.
        yield Draft(
            nodes=nodes,
            finding=(
                f"{count_of(len(nodes), 'op')} ({context.names(nodes)}): {share.us:.1f} µs on "
                f"{share.device}, {share.us - saved:.1f} µs on {best}."
            ),
            options=(*context.moves(nodes, [best]), *context.moves(whole, [best])),
            weight=saved,
        )


def expensive_boundaries(context: LintContext) -> Iterator[Draft]:
    """Find subgraphs that may be cheaper on a neighbour's device."""
    if context.costs is None:
        return
    number = {device: n for n, device in enumerate(context.costs.devices)}
    op_us = context.costs.op_us
    for subgraph, nodes, boundaries in context.subgraphs():
        options: list[tuple[float, dict[str, str]]] = []
        for device in context.bytes_with(subgraph.index, boundaries):
            remedy = context.move(nodes, device) if device != subgraph.device else {}
            # An upper limit: all overhead of the subgraph, and the difference of its ops' times.
            gain = context.overhead_us[subgraph.index]
            for op, to in remedy.items():
                here, there = (op_us[op][number[d]] for d in (context.affinity[op], to))
                gain += (here or 0.0) - (there or 0.0)
            if remedy and gain > 0.0:
                options.append((gain, remedy))
        if not options:
            continue
        options.sort(key=lambda option: -option[0])
        yield Draft(
            nodes=nodes,
            finding=(
                f"A subgraph of {subgraph.device} with {count_of(len(nodes), 'op')} "
                f"({context.names(nodes)}) has {_exchanged(boundaries)}; keeping it separate costs "
                f"{context.overhead_us[subgraph.index]:.1f} µs, more than it saves."
            ),
            options=tuple(remedy for _, remedy in options),
            gone=context.merged(nodes),
            weight=options[0][0],
            must_save=True,
        )


def _n_bytes(boundaries: Sequence[Boundary]) -> int:
    return sum(boundary.n_bytes or 0 for boundary in boundaries)


def _exchanged(boundaries: Sequence[Boundary]) -> str:
    return f"{count_of(len(boundaries), 'boundary')} of {_n_bytes(boundaries):,} bytes"


PING_PONG = "ping-pong"
# Nearly every device runs these as one node: a heavy op, then biases, then an activation.
HEAVY = CONVOLUTIONS | {"MatMul"}
BIAS = frozenset(["Add", "Subtract", "Multiply"])
_SIGMOIDS = ("Sigmoid", "HSigmoid", "Swish", "HSwish", "Mish", "Tanh")
ACTIVATION = frozenset([*_SIGMOIDS, "Relu", "PRelu", "Clamp", "Elu", "Gelu", "SoftPlus"])
# Not cheap either: they contain a whole model.
WHOLE = frozenset(["If", "Loop", "TensorIterator", "LSTMSequence", "GRUSequence", "RNNSequence"])
FEW, SMALL = 2, 8  # ops of a tiny subgraph; of the middle of a ping-pong


def torn_state(context: LintContext) -> Iterator[Draft]:
    """Find stateful paths that are not in one subgraph: they cannot be compiled."""
    for path in context.graph.stateful_paths:
        homes = {context.partition.home[index] for index in path}
        if len(homes) < 2:
            continue
        devices = list(dict.fromkeys(context.device_of[index] for index in path))
        if len(devices) > 1:
            where = f"is torn over {' and '.join(devices)}"
            options = context.moves(path, devices)
        else:
            where = f"is cut into {count_of(len(homes), 'subgraph')} of {devices[0]} by a cycle"
            others = dict.fromkeys(d for d in context.device_names if d != devices[0])
            between = _between(context, path)
            options = (*context.moves(between, devices), *context.moves(path, others))
        yield Draft(
            severity=ERROR,
            nodes=path,
            finding=(
                f"The stateful path {context.names(path)} {where}: the runtime cannot compile it, "
                "a ReadValue, its Assign and all between them must share one subgraph."
            ),
            options=options,
            gone=together(path),
            weight=np.inf,
            stuck="No single move brings it together: put all of it, and the ops between its "
            "ends, on one device that supports them.",
        )


def _between(context: LintContext, path: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ops of other devices on ways from the path's subgraphs back to them."""
    home, device = context.partition.home, context.device_of[path[0]]
    graph, homes = context.graph, {home[i] for i in path}
    seeds = [op.index for op in graph if home[op.index] in homes]
    ways = graph.reach(seeds, forward=True) & graph.reach(seeds, forward=False)
    return tuple(i for i in graph.placeable if i in ways and context.device_of[i] != device)


def fusion_pairs(graph: OpGraph) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the edges within well-known fusion groups, each with its whole group.

    A group is a heavy op, then biases (an operand is constant), then one activation, each the
    only user of the one before.
    """
    pairs: dict[tuple[int, int], tuple[int, ...]] = {}
    for op in graph:
        if op.type not in HEAVY or op.index in graph.constant_side:
            continue
        group, bias = [op.index], True
        while bias and len(uses := graph.consumers[group[-1]]) == 1:
            user = graph.ops[uses[0].index]
            bias = user.type in BIAS and all(
                producer == group[-1] or producer in graph.constant_side
                for producer, _ in user.inputs
            )
            if bias or user.type in ACTIVATION:
                group.append(user.index)
        for pair in itertools.pairwise(group):
            pairs[pair] = tuple(group)
    return pairs


def cut_fusions(context: LintContext) -> Iterator[Draft]:
    """Find boundaries between ops that a device would run as one node."""
    home, index_of = context.partition.home, context.graph.index_of
    lost: dict[tuple[int, int], float] = {}
    if context.costs:
        for share in context.evaluation.of("lost fusion"):
            pair = index_of[share.ops[0]], index_of[share.ops[1]]
            lost[pair] = lost.get(pair, 0.0) + share.us
        groups = _priced_groups(context)
        torn = {pair: groups[pair[0]] for pair, us in lost.items() if us > 0.0}
    else:
        pairs = fusion_pairs(context.graph)
        torn = {pair: group for pair, group in pairs.items() if home[pair[0]] != home[pair[1]]}
    for (first, second), group in torn.items():
        devices = context.device_of[first], context.device_of[second]
        over = " and ".join(dict.fromkeys(devices))
        if context.costs:
            weight = lost[first, second]
            price = f"the lost fusion costs {weight:.1f} µs beside the boundary"
        else:
            weight = float(context.graph.ops[first].outputs[0].n_bytes or 0)
            price = f"{weight:,.0f} bytes cross in between"
        how = "are on" if devices[0] != devices[1] else "are in two subgraphs of"
        yield Draft(
            nodes=tuple(sorted((first, second))),
            finding=(
                f"{context.names([first, second])} ({context.graph.ops[first].type}, "
                f"{context.graph.ops[second].type}) fuse into one node, but {how} {over}: {price}."
            ),
            options=(
                *context.moves(group, devices),
                *context.moves([second], devices[:1]),
                *context.moves([first], devices[1:]),
            ),
            gone=together((first, second)),
            slack=0,
            weight=weight,
        )


def _priced_groups(context: LintContext) -> dict[int, tuple[int, ...]]:
    """Return, for each op in a term of lost fusion, all ops that such terms connect."""
    assert context.costs is not None
    index_of = context.graph.index_of
    pairs = [(index_of[term.first], index_of[term.second]) for term in context.costs.lost_fusion]
    groups = DisjointSet(itertools.chain(*pairs))
    for pair in pairs:
        groups.merge(*pair)
    return {index: tuple(sorted(groups.subset(index))) for index in groups}


def small_subgraphs(context: LintContext) -> Iterator[Draft]:
    """Find ping-pong (A→B→A with little on B) and other subgraphs too small to pay off."""
    subgraphs = context.partition.subgraphs
    for subgraph, nodes, boundaries in context.subgraphs():
        if not nodes or not boundaries:
            continue
        fed_by = {b.source for b in boundaries} - {subgraph.index}
        feeds = {i for b in boundaries if b.source == subgraph.index for i in b.targets}
        around = feeds | fed_by
        devices = {subgraphs[other].device for other in around} - {subgraph.device}
        n_around = sum(len(subgraphs[other].ops) for other in around)
        cheap = not any(context.graph.ops[i].type in HEAVY | WHOLE for i in nodes)
        if context.costs:
            own_us = context.overhead_us[subgraph.index]
            at = context.costs.devices.index(subgraph.device)
            ops_us = sum(context.costs.op_us[op][at] or 0.0 for op in subgraph.ops)
            few = ops_us < own_us
            price = f"; its ops take {ops_us:.1f} µs, being apart costs {own_us:.1f} µs by itself"
        else:
            few, price = cheap and len(nodes) <= FEW, ""
        there_and_back = (
            len(devices) == 1
            and all(subgraphs[other].device in devices for other in around)
            and feeds
            and fed_by
            and (few or (cheap and len(nodes) <= SMALL))
            and len(nodes) <= n_around
        )
        exchanged = _exchanged(boundaries)
        what = f"{count_of(len(nodes), 'op')} ({context.names(nodes)})"
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
        by_bytes = context.bytes_with(subgraph.index, boundaries).most_common()
        yield Draft(
            rule=PING_PONG if there_and_back else "",
            nodes=nodes,
            finding=text,
            options=context.moves(nodes, [device for device, _ in by_bytes]),
            gone=context.merged(nodes),
            slack=-1,
            weight=context.weight([subgraph.index], _n_bytes(boundaries)),
        )


def copy_only(context: LintContext) -> Iterator[Draft]:
    """Find subgraphs without an op: they only copy inputs or constants."""
    for subgraph, nodes, boundaries in context.subgraphs():
        copies = () if nodes else context.copies(subgraph.index)
        if not copies:
            continue
        constant = all(index in context.graph.constant_side for index in copies)
        users = _placed_users(context.graph, copies)
        user_devices = list(dict.fromkeys(context.device_of[i] for i in users))
        kind, n_bytes = "constant" if constant else "input", _n_bytes(boundaries)
        yield Draft(
            severity=WARNING if users else INFO,
            nodes=copies,
            finding=(
                f"A subgraph of {subgraph.device} has no op, it only copies "
                f"{count_of(len(copies), kind)} ({context.names(copies)}): {n_bytes:,} bytes"
                + (f" for ops on {' and '.join(user_devices)}." if users else " to a model output.")
            ),
            options=context.moves(users, [*user_devices, subgraph.device]) if users else (),
            gone=_has_op(context, copies[0]),
            weight=context.weight([subgraph.index], n_bytes),
            stuck="" if users else "It is part of the model: no placement avoids the copy.",
        )


def _placed_users(graph: OpGraph, nodes: tuple[int, ...]) -> tuple[int, ...]:
    placeable, users, queue = set(graph.placeable), set(), list(nodes)
    while queue:
        for use in graph.consumers[queue.pop()]:
            if use.index in placeable:
                users.add(use.index)
            else:
                queue.append(use.index)
    return tuple(sorted(users))


def _has_op(context: LintContext, node: int) -> Gone:
    return lambda ids: bool((ids[context.is_placeable] == ids[node]).any())
