"""Where HETERO cuts a model: the rule of ``partition`` on plain arrays, close to linear time.

The rule (OpenVINO's ``SubgraphCollector``, see NOTICE) works in rounds over the whole model: in
each, every subgraph is cut at the inputs that close a cycle, until no round finds one. What a
subgraph's cuts are depends on its own members and on the model's wires alone, not on how the
others are cut. So here each subgraph is peeled by itself: ``depends`` counts, for every node,
the inputs through which it depends on a tensor that leaves the subgraph. Nodes with a count of
0 form the calm top; the cuts lie between it and the rest, which then goes on as a smaller
subgraph whose counts only fall. Every wire is thus followed a few times, not once a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.model.opgraph import CONSTANT, RESULT, OpGraph

_Wires = tuple[tuple[tuple[int, int], ...], ...]  # for each node: (wire, node at its other end)


@dataclass(frozen=True, eq=False)
class Topology:
    """The wires of a graph as arrays, in order of receiving node and input port.

    ``ins`` and ``outs`` leave out results and private constants: those with one use, which go
    wherever that use goes. ``private`` lists, for each node, the wires from such constants.
    """

    graph: OpGraph
    source: np.ndarray
    target: np.ndarray
    tensor: np.ndarray  # number of the tensor on each wire
    to_result: np.ndarray
    from_constant: np.ndarray
    ins: _Wires
    outs: _Wires
    private: tuple[tuple[int, ...], ...]
    single_use: tuple[bool, ...]  # for each wire: it is the only use of its tensor
    graph_input: tuple[bool, ...]
    n_uses: tuple[int, ...]  # for each node: uses of its outputs, results not counted
    first_op: tuple[bool, ...]  # for each node: an op whose inputs are parameters or constants
    first_wire: tuple[int, ...]  # for each node and one more: number of its first input wire
    users: tuple[tuple[int, ...], ...]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.graph_input)


@dataclass(frozen=True, eq=False)
class Split:
    """Which wires are cut, and the subgraph number of every node."""

    cut: np.ndarray
    ids: np.ndarray


def topology(graph: OpGraph) -> Topology:
    """Return the wires of a graph; they are made once and kept with it."""
    known = graph.__dict__.get("_topology")
    if known is None:
        known = graph.__dict__["_topology"] = _topology(graph)
    return known


def _topology(graph: OpGraph) -> Topology:
    wires = [(p, op.index, port) for op in graph for p, port in op.inputs]
    source = np.array([w[0] for w in wires], dtype=np.int32)
    target = np.array([w[1] for w in wires], dtype=np.int32)
    first_port = np.zeros(len(graph) + 1, dtype=np.int64)
    np.cumsum([len(op.outputs) for op in graph], out=first_port[1:])
    tensor = first_port[source] + np.array([w[2] for w in wires], dtype=np.int64)
    types = [op.type for op in graph]
    result = np.array([t == RESULT for t in types], dtype=bool)
    constant = np.array([t == CONSTANT for t in types], dtype=bool)
    to_result = result[target]
    uses_of_tensor = np.bincount(tensor, minlength=int(first_port[-1]))
    n_all = np.bincount(source, minlength=len(graph))
    n_uses = np.bincount(source[~to_result], minlength=len(graph))
    private_nodes = _private_nodes(graph, n_all)
    ins: list[list[tuple[int, int]]] = [[] for _ in types]
    outs: list[list[tuple[int, int]]] = [[] for _ in types]
    private: list[list[int]] = [[] for _ in types]
    for wire, (producer, user, _) in enumerate(wires):
        if types[user] == RESULT or user in private_nodes:
            continue
        if producer not in private_nodes:
            ins[user].append((wire, producer))
            outs[producer].append((wire, user))
        elif types[producer] == CONSTANT:
            private[user].append(wire)
    return Topology(
        graph=graph,
        source=source,
        target=target,
        tensor=tensor,
        to_result=to_result,
        from_constant=constant[source],
        ins=tuple(map(tuple, ins)),
        outs=tuple(map(tuple, outs)),
        private=tuple(map(tuple, private)),
        single_use=tuple((uses_of_tensor[tensor] == 1).tolist()),
        graph_input=tuple(op.is_graph_input for op in graph),
        n_uses=tuple(n_uses.tolist()),
        first_op=tuple(
            not op.is_graph_input and all(graph.ops[p].is_graph_input for p, _ in op.inputs)
            for op in graph
        ),
        first_wire=tuple(np.searchsorted(target, np.arange(len(graph) + 1)).tolist()),
        users=tuple(tuple({use.index for use in uses}) for uses in graph.consumers),
    )


def _private_nodes(graph: OpGraph, n_uses: np.ndarray) -> set[int]:
    """Find constants, and ops computed from such alone, that have one use by another op.

    That op must have another input too: they then never change where something is cut.
    """
    private: set[int] = set()
    for op in graph:
        if op.index in graph.constant_side and n_uses[op.index] == 1:
            user = graph.ops[graph.consumers[op.index][0].index]
            whole = all(producer in private for producer, _ in op.inputs)
            if whole and user.type != RESULT:
                private.add(op.index)
    for op in graph:
        alone = op.inputs and all(producer in private for producer, _ in op.inputs)
        if alone and op.index not in private:
            for producer, _ in op.inputs:
                _forget(graph, private, producer)
    return private


def _forget(graph: OpGraph, private: set[int], node: int) -> None:
    queue = [node]
    while queue:
        index = queue.pop()
        private.discard(index)
        queue += [producer for producer, _ in graph.ops[index].inputs if producer in private]


def split(top: Topology, devices: np.ndarray) -> Split:
    """Cut a model where HETERO cuts it.

    Parameters
    ----------
    top
        The wires.
    devices
        Number of the device of each node, shape ``[n_nodes]``; a result's is not looked at.
    """
    cut = (devices[top.source] != devices[top.target]) & ~top.to_result
    ids = _connected(top, cut)
    cyclic = _cyclic(top, cut, ids)
    if not cyclic.any():
        return Split(cut, ids)
    flags = bytearray(cut.tobytes())
    _Peeler(top, flags, ids.tolist()).peel(np.flatnonzero(cyclic[ids]).tolist())
    cut = np.frombuffer(flags, dtype=bool)
    ids = _connected(top, cut)
    cyclic = _cyclic(top, cut, ids)
    if not cyclic.any():
        return Split(cut, ids)
    return _split_components(top, cut.copy(), ids, cyclic)


def _connected(top: Topology, cut: np.ndarray) -> np.ndarray:
    """Join nodes over every wire that is not cut; number the parts by their first node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    kept = ~cut
    n = top.n_nodes
    ones = np.ones(int(kept.sum()), dtype=np.int8)
    links = coo_array((ones, (top.source[kept], top.target[kept])), shape=(n, n))
    return connected_components(links.tocsr(), directed=False)[1]


def _cyclic(top: Topology, cut: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return for each subgraph whether it depends on itself through another one."""
    n = int(ids.max()) + 1 if len(ids) else 0
    labels = _strong_labels(ids[top.source[cut]], ids[top.target[cut]], n)
    return np.bincount(labels, minlength=n)[labels] > 1


def _strong_labels(source: np.ndarray, target: np.ndarray, n: int) -> np.ndarray:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(source), dtype=np.int8), (source, target)), shape=(n, n))
    return connected_components(links.tocsr(), directed=True, connection="strong")[1]


class _Peeler:
    """Cut subgraphs at the inputs that close a cycle, each from its calm top downwards."""

    def __init__(self, top: Topology, cut: bytearray, part: list[int]):
        self.top = top
        self.cut = cut  # for each wire
        self.part = part  # for each node, the subgraph that it is in now
        self.next_part = len(part)

    def peel(self, nodes: Iterable[int]) -> None:
        """Peel every subgraph of ``nodes``, which are sorted and hold whole subgraphs."""
        members: dict[int, list[int]] = {}
        lone = self.top.private
        for node in nodes:
            if self.top.ins[node] or self.top.outs[node] or lone[node]:
                members.setdefault(self.part[node], []).append(node)
        todo = [nodes for nodes in members.values() if len(nodes) > 1]
        while todo:
            todo += self._peel_one(todo.pop())

    def _peel_one(self, members: list[int]) -> list[list[int]]:
        """Peel one subgraph, given sorted; return the smaller parts that it fell into."""
        part = self.part
        self._label(members)
        own = part[members[0]]
        depends = self._count(members)
        calm: list[int] = []
        fresh = [node for node in members if node not in depends]
        if len(fresh) == len(members):
            return []
        self._cut_constants((n for n in members if n in depends and self.top.private[n]), own)
        bits = _EntryBits(self.top, self.cut)
        parts: list[list[int]] = []
        last = members[-1]
        while True:
            if not calm:
                bits.restart()
            bits.add(sorted(fresh))
            calm += fresh
            cuts = self._closing(calm, depends, bits, own, last)
            if not cuts:
                return parts
            for wire, _, _ in cuts:
                self.cut[wire] = 1
            left = self._fall_apart(cuts)
            for nodes in left:
                self._label(nodes)
                if any(node in depends for node in nodes):
                    parts.append(sorted(nodes))
            fresh = self._recount(depends, cuts, left, own, last)
            calm = [node for node in calm if part[node] == own]
            self._cut_constants(
                (w for _, v, w in cuts if part[w] == own != part[v] and w in depends), own
            )

    def _label(self, nodes: list[int]) -> None:
        self.next_part += 1
        for node in nodes:
            self.part[node] = self.next_part

    def _count(self, members: list[int]) -> dict[int, int]:
        """Count, for each node, the inputs that depend on a tensor leaving this subgraph.

        Nodes that come after the last member do not matter and are left out.
        """
        outs, cut, last = self.top.outs, self.cut, members[-1]
        depends: dict[int, int] = {}
        for node in members:
            for wire, user in outs[node]:
                if cut[wire] and user <= last:
                    depends[user] = depends.get(user, 0) + 1
        part, own = self.part, self.part[last]
        stack = list(depends)
        while stack:
            node = stack.pop()
            inside = part[node] == own
            for wire, user in outs[node]:
                # A wire that leaves the subgraph is counted already.
                if user <= last and not (inside and cut[wire]):
                    if user in depends:
                        depends[user] += 1
                    else:
                        depends[user] = 1
                        stack.append(user)
        return depends

    def _recount(
        self,
        depends: dict[int, int],
        cuts: list[tuple[int, int, int]],
        left: list[list[int]],
        own: int,
        last: int,
    ) -> list[int]:
        """Update the counts after parts have left; return the members that became calm."""
        outs, cut, part = self.top.outs, self.cut, self.part
        new = {wire for wire, _, _ in cuts}
        for _, producer, user in cuts:
            if part[producer] == own:
                depends[user] += 1
        fresh: list[int] = []
        stack: list[int] = []

        def drop(user: int) -> None:
            if depends[user] > 1:
                depends[user] -= 1
                return
            del depends[user]
            stack.append(user)
            if part[user] == own:
                fresh.append(user)

        for nodes in left:
            for node in nodes:
                if node not in depends:
                    for wire, user in outs[node]:
                        if cut[wire] and user <= last and wire not in new:
                            drop(user)
        while stack:
            node = stack.pop()
            inside = part[node] == own
            for wire, user in outs[node]:
                if user <= last and not (inside and cut[wire]):
                    drop(user)
        return fresh

    def _closing(
        self,
        calm: list[int],
        depends: dict[int, int],
        bits: _EntryBits,
        own: int,
        last: int,
    ) -> list[tuple[int, int, int]]:
        """Return the wires (number, from, to) out of the calm top that have to be cut."""
        top, cut, outs = self.top, self.cut, self.top.outs
        common = -1  # entries above every calm node whose tensors leave the subgraph
        frontier: list[tuple[int, int, int]] = []
        for node in calm:
            for wire, user in outs[node]:
                if cut[wire]:
                    if user <= last:
                        common &= bits.above[node]
                elif user in depends:
                    frontier.append((wire, node, user))
        cuts: list[tuple[int, int, int]] = []
        unsure: list[tuple[int, int, int]] = []
        for edge in frontier:
            wire, node, user = edge
            leaf = top.single_use[wire] and bits.plain[node] and not top.graph_input[node]
            if leaf:
                continue
            if bits.above[node] & common or self._reenters(user, own):
                cuts.append(edge)
            else:
                unsure.append(edge)
        if unsure:
            closing = self._closing_bits(calm, depends, bits, own, max(u for _, _, u in unsure))
            cuts += [e for e in unsure if bits.above[e[1]] & closing.get(e[2], 0)]
        return cuts

    def _closing_bits(
        self, calm: list[int], depends: dict[int, int], bits: _EntryBits, own: int, last: int
    ) -> dict[int, int]:
        """Return, for each node, the entries above something that left and came back above it."""
        ins, cut, part = self.top.ins, self.cut, self.part
        reached: dict[int, int] = {}
        closing: dict[int, int] = {}
        for node in range(min(calm), last + 1):
            here = closed = 0
            if part[node] == own and node not in depends:
                here = bits.above[node]
                for _, producer in ins[node]:
                    closed |= closing.get(producer, 0)
            else:
                for wire, producer in ins[node]:
                    from_above = reached.get(producer, 0)
                    here |= from_above
                    closed |= closing.get(producer, 0)
                    if cut[wire] and part[producer] == own:
                        closed |= from_above
            if here:
                reached[node] = here
                if part[node] == own and self._reenters(node, own):
                    closed |= here
            if closed:
                closing[node] = closed
        return closing

    def _reenters(self, node: int, own: int) -> bool:
        cut, part = self.cut, self.part
        return any(cut[wire] and part[producer] != own for wire, producer in self.top.ins[node])

    def _cut_constants(self, nodes: Iterable[int], own: int) -> None:
        """Cut private constants off where the cycle comes in, as HETERO does."""
        for node in nodes:
            if self.top.private[node] and self._reenters(node, own):
                for wire in self.top.private[node]:
                    self.cut[wire] = 1

    def _fall_apart(self, cuts: list[tuple[int, int, int]]) -> list[list[int]]:
        """Return the parts of the subgraph that the cuts separate, all but the one found last.

        The parts are searched in turns, a node each, so that the largest is not walked through.
        """
        ins, outs, cut = self.top.ins, self.top.outs, self.cut
        group_of: dict[int, int] = {}
        members: list[list[int]] = []
        queues: list[list[int]] = []
        for _, producer, user in cuts:
            for node in (producer, user):
                if node not in group_of:
                    group_of[node] = len(queues)
                    members.append([node])
                    queues.append([node])
        alias = list(range(len(queues)))
        active = set(alias)
        done: list[list[int]] = []
        while len(active) > 1:
            for group in list(active):
                if group not in active or len(active) == 1:
                    continue
                if not queues[group]:
                    active.discard(group)
                    done.append(members[group])
                    continue
                node = queues[group].pop()
                for wire, other in (*ins[node], *outs[node]):
                    if cut[wire]:
                        continue
                    found = group_of.get(other)
                    if found is None:
                        group_of[other] = group
                        members[group].append(other)
                        queues[group].append(other)
                        continue
                    while alias[found] != found:
                        found = alias[found]
                    if found != group:
                        alias[found] = group
                        members[group] += members[found]
                        queues[group] += queues[found]
                        active.discard(found)
        return done


class _EntryBits:
    """For each calm node, the entries of its subgraph above it, as bits of an integer.

    ``plain`` tells whether all of them come straight from parameters and constants.
    """

    def __init__(self, top: Topology, cut: bytearray):
        self.top = top
        self.cut = cut
        self.restart()

    def restart(self) -> None:
        self.above: dict[int, int] = {}
        self.plain: dict[int, bool] = {}
        self.next_bit = 1

    def add(self, nodes: Sequence[int]) -> None:
        """Add nodes in topological order; what is above them must be there already."""
        for node in nodes:
            above, plain = 0, True
            if self.top.graph_input[node]:
                above, self.next_bit = self.next_bit, self.next_bit << 1
            for wire, producer in self.top.ins[node]:
                if self.cut[wire]:
                    above |= self.next_bit
                    self.next_bit <<= 1
                    plain &= self.top.graph_input[producer]
                else:
                    above |= self.above[producer]
                    plain &= self.plain[producer]
            self.above[node] = above
            self.plain[node] = plain


def _split_components(
    top: Topology, cut: np.ndarray, ids: np.ndarray, cyclic: np.ndarray
) -> Split:
    """Cut single nodes out of what is still cyclic, one a round, until nothing is."""
    knots = _Knots(top, cut, ids, cyclic)
    while knots.cut_best():
        pass
    cut = np.frombuffer(knots.cut, dtype=bool)
    return Split(cut, _connected(top, cut))


_Candidate = tuple[tuple[int, ...], list[int]]  # rank (least first), wires to cut


class _Knots:
    """Subgraphs that depend on each other, and the best node to cut out of each."""

    def __init__(self, top: Topology, cut: np.ndarray, ids: np.ndarray, cyclic: np.ndarray):
        self.top = top
        self.cut = bytearray(cut.tobytes())
        self.ids = ids.tolist()
        self.members: dict[int, list[int]] = {}
        for node in np.flatnonzero(cyclic[ids]).tolist():
            self.members.setdefault(self.ids[node], []).append(node)
        self.next_id = len(cyclic)
        self.knot_of: dict[int, int] = {}  # cyclic subgraph → its strongly connected component
        self.knots: dict[int, list[int]] = {}
        self.next_knot = 0
        self.best: dict[int, _Candidate | None] = {}
        self._tie(list(self.members))

    def cut_best(self) -> bool:
        """Make the next cut; return whether there was one to make."""
        for subgraph in self.knot_of:
            if subgraph not in self.best:
                self.best[subgraph] = self._best_of(subgraph)
        candidates = [c for s in self.knot_of if (c := self.best[s]) is not None]
        if not candidates:
            return False
        rank, wires = min(candidates)
        for wire in wires:
            self.cut[wire] = 1
        subgraph = self.ids[rank[-1]]
        group = self.knots.pop(self.knot_of[subgraph])
        for other in group:
            del self.knot_of[other]
        group.remove(subgraph)
        self._tie([*group, *self._separate(subgraph)])
        return True

    def _best_of(self, subgraph: int) -> _Candidate | None:
        top, ids, cut = self.top, self.ids, self.cut
        best: _Candidate | None = None
        for node in self.members[subgraph]:
            inside: list[int] = []
            reenters = shared = trivial = False
            for wire in range(top.first_wire[node], top.first_wire[node + 1]):
                producer = int(top.source[wire])
                if cut[wire]:
                    other = ids[producer]
                    reenters |= other != subgraph and other in self.knot_of
                else:
                    inside.append(wire)
                    shared |= top.n_uses[producer] > 1
                    trivial |= top.first_op[producer] and top.n_uses[producer] == 1
            if inside:
                linear = len(inside) == 1 and top.n_uses[node] <= 1
                rank = (not reenters, not shared, trivial, linear, len(inside), node)
                if best is None or rank < best[0]:
                    best = (rank, inside)
        return best

    def _separate(self, subgraph: int) -> list[int]:
        """Give the parts that a subgraph fell into numbers of their own."""
        nodes = self.members.pop(subgraph)
        position = {node: at for at, node in enumerate(nodes)}
        parent = list(range(len(nodes)))

        def find(at: int) -> int:
            while parent[at] != at:
                parent[at] = parent[parent[at]]
                at = parent[at]
            return at

        for at, node in enumerate(nodes):
            for wire in range(self.top.first_wire[node], self.top.first_wire[node + 1]):
                if not self.cut[wire]:
                    a, b = find(at), find(position[int(self.top.source[wire])])
                    parent[max(a, b)] = min(a, b)
        parts: list[int] = []
        numbers: dict[int, int] = {}
        for at, node in enumerate(nodes):
            root = find(at)
            if root not in numbers:
                numbers[root] = self.next_id
                parts.append(self.next_id)
                self.next_id += 1
            self.ids[node] = numbers[root]
            self.members.setdefault(numbers[root], []).append(node)
        return parts

    def _tie(self, subgraphs: list[int]) -> None:
        """Find the strongly connected components among subgraphs that were in one before."""
        top, ids = self.top, self.ids
        position = {subgraph: at for at, subgraph in enumerate(subgraphs)}
        source: list[int] = []
        target: list[int] = []
        for at, subgraph in enumerate(subgraphs):
            self.best.pop(subgraph, None)
            for node in self.members[subgraph]:
                for wire in range(top.first_wire[node], top.first_wire[node + 1]):
                    other = ids[int(top.source[wire])]
                    if self.cut[wire] and other != subgraph and other in position:
                        source.append(position[other])
                        target.append(at)
                for user in top.users[node]:
                    # Whether an input comes from a cyclic subgraph counts in the rank.
                    self.best.pop(ids[user], None)
        labels = _strong_labels(np.array(source), np.array(target), len(subgraphs))
        counts = np.bincount(labels)
        for subgraph, label in zip(subgraphs, labels.tolist(), strict=True):
            if counts[label] > 1:
                self.knot_of[subgraph] = self.next_knot + label
                self.knots.setdefault(self.next_knot + label, []).append(subgraph)
        self.next_knot += len(counts)
