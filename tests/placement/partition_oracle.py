"""The partition rule of OpenVINO's HETERO plugin, written down slowly, to be compared with.

This follows ``SubgraphCollector`` of the plugin (src/plugins/hetero, 2026.4; Apache-2.0, see
NOTICE) step by step: sets of inputs, every round over the whole model, subgraphs joined anew
after each change. Nothing is remembered and nothing is left out, so that it can be read beside
the description of the rule. It shares no code with ``hetero_lab.placement``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_lab.model.opgraph import OpGraph

Input = tuple[int, int]  # (node, number of its input)
Tensor = tuple[int, int]  # (node, number of its output)
Nodes = frozenset[int]
SELF = -1  # the "input" of a parameter or constant: it begins a subgraph by itself


@dataclass(frozen=True)
class Parts:
    """Subgraphs as sets of nodes, and the tensors that cross: producing → receiving subgraphs.

    ``n_starts`` is the number of cut inputs before any cycle was looked at, ``n_closing`` the
    number after the inputs that close a cycle were cut, ``n_cut`` that in the end.
    """

    subgraphs: frozenset[Nodes]
    crossings: Mapping[Tensor, tuple[Nodes, frozenset[Nodes]]]
    n_starts: int
    n_closing: int
    n_cut: int


def partition(graph: OpGraph, devices: Sequence[str]) -> Parts:
    """Apply the rule.

    Parameters
    ----------
    graph
        The model.
    devices
        The device of every node; that of a Result does not matter.
    """
    cut = cut_where_devices_differ(graph, devices)
    n_starts = len(cut)
    while closing := inputs_that_close_a_cycle(graph, cut) - cut:
        cut |= closing
    n_closing = len(cut)
    while more := inputs_of_one_cyclic_node(graph, cut):
        cut |= more
    return collect(graph, cut, (n_starts, n_closing, len(cut)))


def is_graph_input(graph: OpGraph, node: int) -> bool:
    """Whether a node is a parameter or a constant."""
    return graph.ops[node].type in ("Parameter", "Constant")


def inputs_of(graph: OpGraph, node: int) -> list[tuple[Input, int]]:
    """List the inputs of a node, each with the node that produces it."""
    return [((node, n), producer) for n, (producer, _) in enumerate(graph.ops[node].inputs)]


def cut_where_devices_differ(graph: OpGraph, devices: Sequence[str]) -> set[Input]:
    """Cut every input whose producer is on another device, but for those of results."""
    cut: set[Input] = set()
    for op in graph:
        if is_graph_input(graph, op.index):
            cut.add((op.index, SELF))
        elif op.type != "Result":
            for edge, producer in inputs_of(graph, op.index):
                if devices[producer] != devices[op.index]:
                    cut.add(edge)
    return cut


def join(graph: OpGraph, cut: set[Input]) -> list[Nodes]:
    """Join nodes over every input that is not cut; return each node's subgraph."""
    subgraph = [{op.index} for op in graph]
    for op in graph:
        for edge, producer in inputs_of(graph, op.index):
            if edge not in cut and subgraph[producer] is not subgraph[op.index]:
                merged = subgraph[producer] | subgraph[op.index]
                for node in merged:
                    subgraph[node] = merged
    frozen = {id(nodes): frozenset(nodes) for nodes in subgraph}
    return [frozen[id(nodes)] for nodes in subgraph]


def source_of(graph: OpGraph, edge: Input) -> int:
    """Return the node that an input reads, or the graph input itself."""
    node, number = edge
    return node if number == SELF else graph.ops[node].inputs[number][0]


def inputs_that_close_a_cycle(graph: OpGraph, cut: set[Input]) -> set[Input]:
    """Find the inputs at which subgraphs that depend on themselves have to be split."""
    subgraph = join(graph, cut)
    # All cut inputs that a node depends on, its own included.
    depends: list[set[Input]] = []
    for op in graph:
        above: set[Input] = {(op.index, SELF)} & cut
        for edge, producer in inputs_of(graph, op.index):
            above |= ({edge} & cut) | depends[producer]
        depends.append(above)

    def enters(node: int) -> set[Input]:
        """Of these, the inputs of the node's own subgraph."""
        return {e for e in depends[node] if subgraph[e[0]] == subgraph[node]}

    def leaves(node: int) -> set[Input]:
        """Of these, the inputs that read from the node's own subgraph: a cycle."""
        return {
            e
            for e in depends[node]
            if e[1] != SELF and subgraph[source_of(graph, e)] == subgraph[node]
        }

    closing: set[Input] = set()
    for op in graph:
        node = op.index
        cycle = leaves(node)
        if not cycle:
            continue
        needed: set[Input] = set()
        for edge in cycle:
            needed |= enters(source_of(graph, edge))
        for edge in enters(node):  # where another subgraph's data comes back into this one
            if edge[1] != SELF and subgraph[source_of(graph, edge)] != subgraph[node]:
                needed |= enters(edge[0])
        for edge, producer in inputs_of(graph, node):
            if leaves(producer) & cycle or not needed & enters(producer):
                continue
            if not is_private_leaf(graph, edge, enters(producer), leaves(producer)):
                closing.add(edge)
    return closing


def is_private_leaf(graph: OpGraph, edge: Input, entering: set[Input], leaving: set[Input]) -> bool:
    """Whether an input is the only use of something made of graph inputs alone."""
    producer, port = graph.ops[edge[0]].inputs[edge[1]]
    uses = [use for use in graph.consumers[producer] if use.source_port == port]
    return (
        len(uses) == 1
        and not is_graph_input(graph, producer)
        and not leaving
        and all(is_graph_input(graph, source_of(graph, e)) for e in entering)
    )


def cyclic_subgraphs(graph: OpGraph, cut: set[Input], subgraph: list[Nodes]) -> set[Nodes]:
    """Find the subgraphs that depend on themselves through others, by following every way."""
    feeds: dict[Nodes, set[Nodes]] = {nodes: set() for nodes in subgraph}
    for node, number in cut:
        if number != SELF:
            source = subgraph[source_of(graph, (node, number))]
            if source != subgraph[node]:
                feeds[source].add(subgraph[node])

    def reaches_itself(start: Nodes) -> bool:
        seen: set[Nodes] = set()
        todo = [start]
        while todo:
            for following in feeds[todo.pop()] - seen:
                seen.add(following)
                todo.append(following)
        return start in seen

    return {nodes for nodes in feeds if reaches_itself(nodes)}


def inputs_of_one_cyclic_node(graph: OpGraph, cut: set[Input]) -> set[Input]:
    """Choose the node to take out of what is still cyclic; return its inputs, none if all is well.

    First choice is a node into which the cycle comes back, then one that shares an input with
    others, then one without a leaf above it, one that is no mere link of a chain, one with few
    inputs, and the first in topological order.
    """
    subgraph = join(graph, cut)
    cyclic = cyclic_subgraphs(graph, cut, subgraph)

    def n_users(node: int) -> int:
        return sum(graph.ops[use.index].type != "Result" for use in graph.consumers[node])

    def is_leaf(node: int) -> bool:
        reads = [producer for producer, _ in graph.ops[node].inputs]
        return (
            not is_graph_input(graph, node)
            and n_users(node) == 1
            and all(is_graph_input(graph, producer) for producer in reads)
        )

    choices = []
    for op in graph:
        own = subgraph[op.index]
        if own not in cyclic:
            continue
        inside = [(e, p) for e, p in inputs_of(graph, op.index) if e not in cut]
        outside = [p for e, p in inputs_of(graph, op.index) if e in cut]
        if inside:
            rank = (
                not any(subgraph[p] != own and subgraph[p] in cyclic for p in outside),
                not any(n_users(p) > 1 for _, p in inside),
                any(is_leaf(p) for _, p in inside),
                len(inside) == 1 and n_users(op.index) <= 1,
                len(inside),
                op.index,
            )
            choices.append((rank, {edge for edge, _ in inside}))
    return min(choices, key=lambda choice: choice[0])[1] if choices else set()


def collect(graph: OpGraph, cut: set[Input], counts: tuple[int, int, int]) -> Parts:
    """List what becomes a submodel, and what is handed over.

    A tensor that is cut somewhere goes as one result to each other subgraph that uses it; a
    constant is copied instead. What has no input, output or sink of its own is no submodel.
    """
    subgraph = join(graph, cut)
    crossings: dict[Tensor, tuple[Nodes, frozenset[Nodes]]] = {}
    for node, number in cut:
        if number == SELF or graph.ops[source_of(graph, (node, number))].type == "Constant":
            continue
        producer, port = graph.ops[node].inputs[number]
        users = {
            subgraph[use.index]
            for use in graph.consumers[producer]
            if use.source_port == port and subgraph[use.index] != subgraph[producer]
        }
        if users:
            crossings[producer, port] = subgraph[producer], frozenset(users)
    real = {subgraph[op.index] for op in graph if op.type in ("Parameter", "Result", "Assign")}
    for source, targets in crossings.values():
        real |= {source, *targets}
    return Parts(frozenset(real), crossings, *counts)
