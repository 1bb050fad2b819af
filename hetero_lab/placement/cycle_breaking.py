"""Cycle breaking, the second half of HETERO's rule: cut subgraphs that still form a cycle.

Nodes are cut out of the strongly connected components of the condensed graph (one node for each
subgraph), one after another, the lowest rank first, until there is no cycle. The order of cuts
decides which subgraphs remain, so ranks must equal the plugin's. The plugin ranks the whole model
for each cut. Here ranks wait in a heap, and after a cut only its neighbourhood is ranked again: the
smaller parts into which the subgraph fell, and the subgraphs that are no longer strongly
connected with the largest part.

The next cut depends only on the remaining cyclic nodes and their edges, so cuts are memoised
per state: where a placement reaches a state that an earlier placement reached, the rest is known.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass
from typing import TypeAlias

import numpy as np

from hetero_lab.model.opgraph import grouped
from hetero_lab.placement.topology import CutCache, Topology, separated_parts, strong_components

_STATES = 32  # about how many of the states that a whole graph passes through are memoised

Rank = tuple[bool, bool, bool, bool, int, int]
_Step = tuple[tuple[int, ...], bytes | None]  # cut edges, and the state reached by cutting them
Memo: TypeAlias = CutCache[bytes, _Step]


def _rank(top: Topology, node: int, inside: Sequence[int], reenters: bool) -> Rank:
    """Rank a node by the producers of its uncut inputs, and by whether a cycle re-enters here.

    The lowest rank is cut first: nodes where a cycle comes back, then those that read a tensor with
    several uses, then those that do not just follow a first op, and so on. The last element, the
    node's number, breaks ties in topological order.
    """
    shared = trivial = False
    for producer in inside:
        if top.n_uses[producer] > 1:
            shared = True
        elif top.first_op[producer] and top.n_uses[producer] == 1:
            trivial = True
    linear = len(inside) == 1 and top.n_uses[node] <= 1
    return (not reenters, not shared, trivial, linear, len(inside), node)


def uncut_ranks(top: Topology) -> list[Rank]:
    """Return the ranks of all nodes while nothing is cut, the lowest first."""
    producers = ([producer for _, producer in ins] for ins in top.all_ins)
    return sorted(_rank(top, node, p, False) for node, p in enumerate(producers) if p)


@dataclass(eq=False)
class CycleBreaking:
    """Cut the cycles of subgraphs, each within a strongly connected component of subgraphs.

    It takes over ``cut``, a flag for each edge, and ``uncut_ranks``, those of :func:`uncut_ranks`.
    ``subgraphs`` is the subgraph of each node; ``components`` the strongly connected component of
    each subgraph, -1 if it is not cyclic.
    """

    top: Topology
    cut: bytearray
    subgraphs: InitVar[np.ndarray]
    components: InitVar[np.ndarray]
    uncut_ranks: list[Rank]
    memo: Memo

    def __post_init__(self, subgraphs: np.ndarray, components: np.ndarray) -> None:
        top = self.top
        self.ids: list[int] = subgraphs.tolist()
        # Results and private constants are not members: they follow their anchor.
        self.members: dict[int, set[int]] = {}
        self.cyclic: bytearray = bytearray(top.n_nodes)
        self.n_cyclic: int = 0
        cyclic = np.flatnonzero(components[subgraphs] >= 0).tolist()
        for node in cyclic:
            if top.anchor[node] == node:
                self.members.setdefault(self.ids[node], set()).add(node)
                self.cyclic[node] = 1
                self.n_cyclic += 1
        self.next_id: int = len(components)
        self.component_of: dict[int, int] = {s: int(components[s]) for s in self.members}
        self.size: dict[int, int] = {}
        for component in self.component_of.values():
            self.size[component] = self.size.get(component, 0) + 1
        self.next_component: int = len(components)
        self.rank: dict[int, Rank] = {}
        self.heap: list[Rank] = []
        self.n_passed: int = 0  # ranks skipped for good: the node reads a cut edge, or is acyclic
        reads_cut = set(top.target[np.frombuffer(self.cut, bool)].tolist())
        self._rank_again(node for node in cyclic if node in reads_cut)

    def break_cycles(self) -> None:
        """Cut until no subgraph depends on itself through another one."""
        # A digest of the state costs time, so it is taken only when about 1/32 of the nodes have
        # left the cycles since the last one.
        each = self.top.n_nodes // _STATES + 1
        state, at = self._state(), self.n_cyclic // each
        made: list[int] = []
        while (rest := self._rest(state)) is None:
            node = None
            while self.n_cyclic // each == at and (node := self._first()) is not None:
                made += self._cut_out(node)
            after = None if node is None else self._state()
            self.memo.add(state, (tuple(made), after), len(made) + 1)
            if after is None:
                return
            state, at, made = after, self.n_cyclic // each, []
        for edge in rest:
            self.cut[edge] = 1

    def _state(self) -> bytes:
        """Return a digest of the cyclic nodes and of their cut edges."""
        cyclic, cut = np.frombuffer(self.cyclic, bool), np.frombuffer(self.cut, bool)
        relevant = cut & (cyclic[self.top.source] | cyclic[self.top.target])
        return hashlib.blake2b(cyclic.tobytes() + relevant.tobytes(), digest_size=16).digest()

    def _rest(self, state: bytes | None) -> list[int] | None:
        """Return all edges that are cut from a state on, None if they are not memoised."""
        edges: list[int] = []
        while state is not None:
            step = self.memo.get(state)
            if step is None:
                return None
            edges += step[0]
            state = step[1]
        return edges

    def _cut_out(self, node: int) -> list[int]:
        """Cut all inputs of a node and update the changed state; return the cut edges."""
        ins, outs, cut = self.top.ins, self.top.outs, self.cut
        edges = [(edge, producer, node) for edge, producer in ins[node] if not cut[edge]]
        new = [edge for edge, _ in self.top.all_ins[node] if not cut[edge]]
        for edge in new:
            cut[edge] = 1
        again = {node}
        parts = separated_parts(self.top.around, cut, edges)
        if parts:
            subgraph = self.ids[node]
            # Ranks change where an end of a cut edge is now in another subgraph or component.
            for part in parts:
                for member in part:
                    again.update([user for edge, user in outs[member] if cut[edge]])
                    if any(cut[edge] for edge, _ in ins[member]):
                        again.add(member)
            for other in self._update_components(
                subgraph, [self._number(subgraph, p) for p in parts]
            ):
                for member in self.members.pop(other):
                    self.cyclic[member] = 0
                    self.n_cyclic -= 1
                    again.update([user for edge, user in outs[member] if cut[edge]])
        self._rank_again(again)
        return new

    def _first(self) -> int | None:
        """Return the node to cut out next."""
        rank = None
        while self.heap:
            rank = self.heap[0]
            node = rank[-1]
            if self.rank.get(node) == rank and self._subgraph(node) in self.component_of:
                break
            rank = None
            heapq.heappop(self.heap)
        if rank is None or rank[0]:  # no cycle re-enters: a node with no cut input may rank lower
            uncut = self._first_uncut()
            rank = uncut if rank is None or (uncut is not None and uncut < rank) else rank
        return None if rank is None else rank[-1]

    def _first_uncut(self) -> Rank | None:
        """Return the lowest rank among cyclic nodes without a cut input."""
        while self.n_cyclic and self.n_passed < len(self.uncut_ranks):
            rank = self.uncut_ranks[self.n_passed]
            node = rank[-1]
            uncut = not any(self.cut[edge] for edge, _ in self.top.all_ins[node])
            if uncut and self._subgraph(node) in self.component_of:
                return rank
            self.n_passed += 1
        return None

    def _subgraph(self, node: int) -> int:
        return self.ids[self.top.anchor[node]]

    def _rank_again(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            rank = self._rank_of(node) if self._subgraph(node) in self.component_of else None
            if rank is None:
                self.rank.pop(node, None)
            elif self.rank.get(node) != rank:
                self.rank[node] = rank
                heapq.heappush(self.heap, rank)

    def _rank_of(self, node: int) -> Rank | None:
        """Rank a node by its uncut inputs and its cyclic neighbours."""
        ids, own = self.ids, self._subgraph(node)
        inside: list[int] = []
        reenters = False
        for edge, producer in self.top.all_ins[node]:
            if not self.cut[edge]:
                inside.append(producer)
            elif not reenters:
                other = ids[producer]
                reenters = other != own and other in self.component_of
        return _rank(self.top, node, inside, reenters) if inside else None

    def _number(self, subgraph: int, part: list[int]) -> int:
        """Make a part of a subgraph a subgraph of its own in the same component."""
        new, self.next_id = self.next_id, self.next_id + 1
        for node in part:
            self.ids[node] = new
        self.members[subgraph].difference_update(part)
        self.members[new] = set(part)
        component = self.component_of[subgraph]
        self.component_of[new] = component
        self.size[component] += 1
        return new

    def _update_components(self, subgraph: int, parts: list[int]) -> list[int]:
        """Update the component of a subgraph that fell apart; return the now acyclic ones.

        Before the cut, every subgraph of the component reached the one that fell apart and was
        reached from it; so now each reaches some part and is reached from some part. The
        subgraphs that are no longer strongly connected with the main part are therefore found
        from the other parts: all above a part that the main part does not reach, all below a part
        that does not reach the main part, and all that depend on these. Each search ends where it
        meets the main part, which is the largest: most searches are short.
        """
        component = self.component_of[subgraph]
        pieces = [subgraph, *parts]
        main = max(pieces, key=lambda piece: len(self.members[piece]))
        acyclic: list[int] = []
        for upwards in (True, False):
            todo = [piece for piece in pieces if piece != main]
            connected = {main}
            while todo:
                start = todo.pop()
                if start in connected or self.component_of.get(start) != component:
                    continue
                reached = self._walk(start, component, upwards, until=main)
                if reached is None:
                    connected.add(start)
                    continue
                for piece in reached:
                    todo += [
                        other
                        for other in self._next_to(piece, not upwards)
                        if other not in reached and self.component_of.get(other) == component
                    ]
                acyclic += self._settle(reached, component)
        if self.size[component] == 1:  # only the main part is left: nothing leads back to it
            del self.component_of[main]
            acyclic.append(main)
        return acyclic

    def _next_to(self, subgraph: int, upwards: bool) -> Iterable[int]:
        """Yield the subgraphs that this one reads from, or that read from it."""
        edges = self.top.ins if upwards else self.top.outs
        for node in self.members[subgraph]:
            for edge, other in edges[node]:
                if self.cut[edge] and self.ids[other] != subgraph:
                    yield self.ids[other]

    def _walk(
        self, start: int, component: int, upwards: bool, until: int | None
    ) -> set[int] | None:
        """Return all above (or below) a subgraph in its component; None if ``until`` is one."""
        found = {start}
        queue = [start]
        for subgraph in queue:
            for other in self._next_to(subgraph, upwards):
                if other not in found and self.component_of.get(other) == component:
                    if other == until:
                        return None
                    found.add(other)
                    queue.append(other)
        return found

    def _settle(self, subgraphs: set[int], component: int) -> list[int]:
        """Move subgraphs into components of their own; return those that are acyclic now."""
        self.size[component] -= len(subgraphs)
        own, self.next_component = self.next_component, self.next_component + 1
        for subgraph in subgraphs:
            self.component_of[subgraph] = own
        acyclic: list[int] = []
        for members in self._strong_components(subgraphs):
            if len(members) == 1:
                del self.component_of[members[0]]
                acyclic += members
            else:
                for subgraph in members:
                    self.component_of[subgraph] = self.next_component
                self.size[self.next_component] = len(members)
                self.next_component += 1
        return acyclic

    def _strong_components(self, subgraphs: set[int]) -> list[list[int]]:
        if len(subgraphs) == 1:
            return [list(subgraphs)]
        order = list(subgraphs)
        position = {subgraph: at for at, subgraph in enumerate(order)}
        edges = {
            (position[other], at)
            for at, subgraph in enumerate(order)
            for other in self._next_to(subgraph, upwards=True)
            if other in position
        }
        ends = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)
        labels = strong_components(ends[:, 0], ends[:, 1], len(order)).tolist()
        return list(grouped(zip(labels, order, strict=True)).values())
