"""Topology of a graph: its edges as arrays and adjacency lists, and connected components.

Cuts that were found once are cached: most placements of a graph differ little from earlier ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from hetero_lab.model.opgraph import CONSTANT, RESULT, Op, OpGraph

Key = TypeVar("Key")
Cuts = TypeVar("Cuts")
_CAPACITY = 1_000_000  # nodes and edges over all cached cut sets
Adjacency: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]  # node → (edge, other end)


@dataclass(frozen=True, eq=False)
class Topology:
    """The edges of a graph, in order of receiving node and input port.

    ``ins`` and ``outs`` leave out results and private constants: those with a single use, which
    always follow it. ``private`` lists, for each node, the edges from such constants.
    """

    source: np.ndarray
    target: np.ndarray
    source_port: tuple[int, ...]
    tensor: np.ndarray  # number of the tensor on each edge
    to_result: np.ndarray
    from_constant: np.ndarray
    ins: Adjacency
    outs: Adjacency
    private: tuple[tuple[int, ...], ...]
    ends: np.ndarray  # nodes whose subgraph is always compiled
    single_use: tuple[bool, ...]  # for each edge: it is the only use of its tensor
    graph_input: tuple[bool, ...]
    n_uses: tuple[int, ...]  # for each node: uses of its outputs, results not counted
    first_op: tuple[bool, ...]  # for each node: an op whose inputs are parameters or constants
    around: Adjacency  # ins and outs together
    all_ins: Adjacency  # with results and private constants
    anchor: tuple[int, ...]  # for each node: itself, or the node that it always follows

    @property
    def n_nodes(self) -> int:
        return len(self.graph_input)

    def between_devices(self, devices: np.ndarray) -> np.ndarray:
        """Tell which edges HETERO cuts first; a result never parts from its producer."""
        return (devices[self.source] != devices[self.target]) & ~self.to_result

    def crossing(self, ids: np.ndarray) -> np.ndarray:
        """Return edges between subgraphs, one for each tensor and subgraph that receives it.

        ``ids`` is the subgraph of each node. Constants do not cross: they are copied.
        """
        edges = np.flatnonzero((ids[self.source] != ids[self.target]) & ~self.from_constant)
        keys = self.tensor[edges] * (int(ids.max()) + 1) + ids[self.target[edges]]
        return edges[np.unique(keys, return_index=True)[1]]

    def compiled(self, ids: np.ndarray, crossing: np.ndarray) -> np.ndarray:
        """Return the subgraphs that are compiled; one of constants alone is copied to its users."""
        real = np.zeros(int(ids.max()) + 1, dtype=bool)
        for nodes in (self.ends, self.source[crossing], self.target[crossing]):
            real[ids[nodes]] = True
        return np.flatnonzero(real)


def topology(graph: OpGraph) -> Topology:
    """Return the topology of a graph, made once and kept with it."""
    return graph.derived(_topology)


def _topology(graph: OpGraph) -> Topology:
    edges = [(p, op.index, port) for op in graph for p, port in op.inputs]
    source = np.array([w[0] for w in edges], dtype=np.int32)
    target = np.array([w[1] for w in edges], dtype=np.int32)
    first_port = np.cumsum([0, *(len(op.outputs) for op in graph)], dtype=np.int64)
    tensor = first_port[source] + np.array([w[2] for w in edges], dtype=np.int64)
    types = [op.type for op in graph]
    result = np.array([t == RESULT for t in types], dtype=bool)
    constant = np.array([t == CONSTANT for t in types], dtype=bool)
    to_result = result[target]
    uses_of_tensor = np.bincount(tensor, minlength=int(first_port[-1]))
    n_all = np.bincount(source, minlength=len(graph))
    n_uses = np.bincount(source[~to_result], minlength=len(graph))
    private_nodes = _private_nodes(graph, n_all)
    sinks = [op.index for op in graph if op.type == "Assign"]
    ins, outs, all_ins = ([list[tuple[int, int]]() for _ in types] for _ in range(3))
    private: list[list[int]] = [[] for _ in types]
    for edge, (producer, user, _) in enumerate(edges):
        all_ins[user].append((edge, producer))
        if types[user] == RESULT or user in private_nodes:
            continue
        if producer not in private_nodes:
            ins[user].append((edge, producer))
            outs[producer].append((edge, user))
        elif types[producer] == CONSTANT:
            private[user].append(edge)
    return Topology(
        source=source,
        target=target,
        source_port=tuple(w[2] for w in edges),
        tensor=tensor,
        to_result=to_result,
        from_constant=constant[source],
        ins=tuple(map(tuple, ins)),
        outs=tuple(map(tuple, outs)),
        private=tuple(map(tuple, private)),
        ends=np.array([*graph.parameters, *graph.results, *sinks], dtype=np.int64),
        single_use=tuple((uses_of_tensor[tensor] == 1).tolist()),
        graph_input=tuple(op.is_graph_input for op in graph),
        n_uses=tuple(n_uses.tolist()),
        first_op=tuple(
            not op.is_graph_input and all(graph.ops[p].is_graph_input for p, _ in op.inputs)
            for op in graph
        ),
        around=tuple((*a, *b) for a, b in zip(ins, outs, strict=True)),
        all_ins=tuple(map(tuple, all_ins)),
        anchor=tuple(_anchors(graph, private_nodes)),
    )


def _private_nodes(graph: OpGraph, n_uses: np.ndarray) -> set[int]:
    """Find constants, and ops computed from these alone, with a single use by another op.

    That op must have another input too: the constant then follows it into whichever subgraph the
    other input leads to, so it never changes where anything is cut, and can be left out.
    """
    user_of: dict[int, Op] = {}
    for op in graph:
        if op.index in graph.constant_side and n_uses[op.index] == 1:
            user = graph.ops[graph.consumers[op.index][0].index]
            if user.type != RESULT and all(producer in user_of for producer, _ in op.inputs):
                user_of[op.index] = user
    private: set[int] = set()
    for index, user in reversed(user_of.items()):  # each after its user
        if user.index in private or any(producer not in user_of for producer, _ in user.inputs):
            private.add(index)
    return private


def _anchors(graph: OpGraph, private: set[int]) -> list[int]:
    anchor = list(range(len(graph)))
    for op in reversed(graph.ops):
        if op.index in private:
            anchor[op.index] = anchor[graph.consumers[op.index][0].index]
    for index in graph.results:
        anchor[index] = graph.ops[index].inputs[0][0]
    return anchor


def weak_components(top: Topology, cut: np.ndarray) -> np.ndarray:
    """Number the weakly connected components that remain when ``cut`` edges are removed."""
    inside, n = ~cut, top.n_nodes
    # Edges are ordered by receiving node, so they are the rows of a CSR matrix already.
    rows = np.zeros(n + 1, dtype=np.int32)
    np.cumsum(np.bincount(top.target[inside], minlength=n), out=rows[1:])
    links = csr_array((np.ones(rows[-1]), top.source[inside], rows), shape=(n, n))
    return connected_components(links, connection="weak")[1]


def strong_components(source: np.ndarray, target: np.ndarray, n: int) -> np.ndarray:
    """Number the strongly connected components of ``n`` nodes with the given edges."""
    links = coo_array((np.ones(len(source)), (source, target)), shape=(n, n)).tocsr()
    return connected_components(links, connection="strong")[1]


def separated_parts(
    around: Adjacency, cut: Sequence[int], cuts: Iterable[tuple[int, int, int]]
) -> list[list[int]]:
    """Return the parts into which the new ``cuts`` separate a subgraph, except the one found last.

    The parts are searched in turn, one node at a time, and the search ends when one is left: the
    largest part is never traversed as a whole, so many small cuts of a large subgraph stay cheap. A
    cut is (edge, from, to); edges of ``around`` that are ``cut`` are not followed.
    """
    group_of: dict[int, int] = {}
    members: list[list[int]] = []
    for _, producer, user in cuts:
        for node in (producer, user):
            if node not in group_of:
                group_of[node] = len(members)
                members.append([node])
    waiting = [deque(nodes) for nodes in members]
    alias = list(range(len(members)))
    active = alias[:]
    parts: list[list[int]] = []
    turn = 0
    while len(active) > 1:
        turn %= len(active)
        group = active[turn]
        queue = waiting[group]
        if not queue:
            del active[turn]
            parts.append(members[group])
            continue
        for edge, other in around[queue.popleft()]:
            if cut[edge]:
                continue
            neighbour = group_of.get(other)
            if neighbour is None:
                group_of[other] = group
                members[group].append(other)
                queue.append(other)
            elif neighbour != group:
                # Two searches met, so they are in one part. Groups are merged as in union-find.
                while alias[neighbour] != neighbour:
                    neighbour = alias[neighbour]
                if neighbour != group:
                    alias[neighbour] = group
                    members[group] += members[neighbour]
                    queue += waiting[neighbour]
                    active.remove(neighbour)
        turn += 1
    return parts


class CutCache(dict[Key, Cuts]):
    """Cut sets by whatever determines them; all are dropped when they become too many."""

    _size = 0

    def add(self, key: Key, cuts: Cuts, size: int) -> None:
        """Cache a cut set that takes up ``size`` nodes and edges."""
        self._size += size
        if self._size > _CAPACITY:
            self.clear()
            self._size = size
        self[key] = cuts


def islands(graph: OpGraph) -> int:
    """Return into how many parts a model falls whose inputs or ops no tensor connects."""
    top = topology(graph)
    inside = np.ones(len(graph), dtype=bool)
    inside[list(graph.constant_side)] = False
    ids = weak_components(top, ~inside[top.source])
    return len(set(ids[inside].tolist()))
