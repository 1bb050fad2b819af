"""The halves of HETERO's rule against cycles: convexity repair, then cycle breaking.

**Convexity repair** cuts subgraphs at inputs that close a cycle. A subgraph is convex if no way
leaves it and comes back. One that is not would wait for itself, so it is cut in front of the nodes
that wait for such a way.

The plugin does this in rounds over the whole model. The cuts of a subgraph depend only on its
own members and on the model's edges, not on how other subgraphs are cut, so here each subgraph
is repaired by itself, and its cuts are memoised for the next placement that has it. ``depends``
counts, for every node, the inputs through which it depends on a tensor that leaves the subgraph.
Nodes with a count of 0 are independent; the cuts lie between them and the rest, which then
continues as a smaller subgraph whose counts only fall. Every edge is thus followed a few times, not
once a round.

**Cycle breaking** cuts subgraphs that still form a cycle. Nodes are cut out of the strongly
connected components of the condensed graph (one node for each subgraph), one after another, the
lowest rank first, until there is no cycle. The order of cuts decides which subgraphs remain, so
ranks must equal the plugin's. The plugin ranks the whole model for each cut. Here ranks wait in a
heap, and after a cut only its neighbourhood is ranked again: the smaller parts into which the
subgraph fell, and the subgraphs that are no longer strongly connected with the largest part.

The next cut depends only on the remaining cyclic nodes and their edges, so cuts are memoised
per state: where a placement reaches a state that an earlier placement reached, the rest is known.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from hetero_lab.model.opgraph import grouped
from hetero_lab.placement.topology import CutCache, Topology, separated_parts, strong_components

ConvexityMemo: TypeAlias = CutCache[
    tuple[int, ...], tuple[int, ...]
]  # nodes of a subgraph → cut edges


class ConvexityRepair:
    """Cut subgraphs at the inputs that close a cycle, each from its independent nodes downwards."""

    def __init__(self, top: Topology, cut: bytearray, part: list[int], memo: ConvexityMemo):
        self.top = top
        self.cut = cut  # for each edge
        self.part = part  # for each node, its present subgraph
        self.next_part: int = len(part)
        self.memo = memo
        # Of the subgraph at hand: its number, its last node, the inputs of each node that depend on
        # a tensor leaving it, the entries above its independent nodes, the edges cut in it.
        self.subgraph = self.last = -1
        self.depends: dict[int, int] = {}
        self.bits = _EntryBits(top, cut)
        self.cuts: list[int] = []

    def repair(self, nodes: Iterable[int]) -> None:
        """Repair every subgraph of ``nodes``, which are sorted and hold whole subgraphs."""
        top = self.top
        wired = (node for node in nodes if top.ins[node] or top.outs[node] or top.private[node])
        for group in grouped((self.part[node], node) for node in wired).values():
            if len(group) > 1:
                self._repair_whole(tuple(group))

    def _repair_whole(self, nodes: tuple[int, ...]) -> None:
        cuts = self.memo.get(nodes)
        if cuts is None:
            self.cuts = []
            todo = [list(nodes)]
            while todo:
                todo += self._repair_one(todo.pop())
            self.memo.add(nodes, tuple(self.cuts), len(nodes))
            return
        for edge in cuts:
            self.cut[edge] = 1

    def _cut(self, edge: int) -> None:
        self.cut[edge] = 1
        self.cuts.append(edge)

    def _repair_one(self, members: list[int]) -> list[list[int]]:
        """Repair one subgraph, given sorted; return the smaller parts that were cut off."""
        part = self.part
        self._label(members)
        subgraph = self.subgraph = part[members[0]]
        self.last = members[-1]
        depends = self.depends = self._count(members)
        independent: list[int] = []
        # Fresh nodes have just become independent: no way out of the subgraph leads back to them.
        fresh = [node for node in members if node not in depends]
        if len(fresh) == len(members):
            return []
        self._cut_constants(n for n in members if n in depends and self.top.private[n])
        bits = self.bits = _EntryBits(self.top, self.cut)
        parts: list[list[int]] = []
        while True:
            if not independent:  # nothing refers to the old bits: keep the integers short
                bits.restart()
            bits.add(sorted(fresh))
            independent += fresh
            cuts = self._closing(independent)
            if not cuts:
                return parts
            for edge, _, _ in cuts:
                self._cut(edge)
            new_parts = separated_parts(self.top.around, self.cut, cuts)
            for nodes in new_parts:
                self._label(nodes)
                if any(node in depends for node in nodes):
                    parts.append(sorted(nodes))
            fresh = self._recount(cuts, new_parts)
            independent = [node for node in independent if part[node] == subgraph]
            entered = (w for _, v, w in cuts if part[w] == subgraph != part[v])
            self._cut_constants(w for w in entered if w in depends)

    def _label(self, nodes: list[int]) -> None:
        self.next_part += 1
        for node in nodes:
            self.part[node] = self.next_part

    def _count(self, members: list[int]) -> dict[int, int]:
        """Count, for each node, the inputs that depend on a tensor leaving this subgraph.

        Nodes after the last member in topological order cannot lead back to one: they are left out.
        """
        outs, cut, last = self.top.outs, self.cut, members[-1]
        depends: dict[int, int] = {}
        for node in members:
            for edge, user in outs[node]:
                if cut[edge] and user <= last:
                    depends[user] = depends.get(user, 0) + 1
        part, subgraph = self.part, self.part[last]
        stack = list(depends)
        while stack:
            node = stack.pop()
            inside = part[node] == subgraph
            for edge, user in outs[node]:
                # Edges that leave the subgraph were counted above.
                if user <= last and not (inside and cut[edge]):
                    if user not in depends:
                        stack.append(user)
                    depends[user] = depends.get(user, 0) + 1
        return depends

    def _recount(self, cuts: list[tuple[int, int, int]], new_parts: list[list[int]]) -> list[int]:
        """Update the counts after parts have left; return the members that became independent."""
        outs, cut, part = self.top.outs, self.cut, self.part
        depends, subgraph, last = self.depends, self.subgraph, self.last
        new = {edge for edge, _, _ in cuts}
        for _, producer, user in cuts:
            if part[producer] == subgraph:
                depends[user] += 1
        fresh: list[int] = []
        stack: list[int] = []

        def drop(user: int) -> None:
            if depends[user] > 1:
                depends[user] -= 1
                return
            del depends[user]
            stack.append(user)
            if part[user] == subgraph:
                fresh.append(user)

        # The list is made before any count drops: nodes that become independent in this loop are
        # handled by the stack below, and must not be counted down twice.
        for node in [node for nodes in new_parts for node in nodes if node not in depends]:
            for edge, user in outs[node]:
                if cut[edge] and user <= last and edge not in new:
                    drop(user)
        while stack:
            node = stack.pop()
            inside = part[node] == subgraph
            for edge, user in outs[node]:
                if user <= last and not (inside and cut[edge]):
                    drop(user)
        return fresh

    def _closing(self, independent: list[int]) -> list[tuple[int, int, int]]:
        """Return the edges (number, from, to) out of the independent nodes that have to be cut."""
        top, cut, outs, bits = self.top, self.cut, self.top.outs, self.bits
        common = -1  # entries above every independent node whose tensor leaves the subgraph
        frontier: list[tuple[int, int, int]] = []
        for node in independent:
            for edge, user in outs[node]:
                if cut[edge]:
                    if user <= self.last:
                        common &= bits.above[node]
                elif user in self.depends:
                    frontier.append((edge, node, user))
        cuts: list[tuple[int, int, int]] = []
        unsure: list[tuple[int, int, int]] = []
        for edge, node, user in frontier:
            if top.single_use[edge] and bits.plain[node] and not top.graph_input[node]:
                continue
            closes = bits.above[node] & common or self._reenters(user)
            (cuts if closes else unsure).append((edge, node, user))
        # The unsure ones need the exact set of entries that reach a node through other subgraphs.
        # That walk over the graph is the expensive part, so it comes last.
        if unsure:
            closing = self._closing_bits(independent, max(user for _, _, user in unsure))
            cuts += [e for e in unsure if bits.above[e[1]] & closing.get(e[2], 0)]
        return cuts

    def _closing_bits(self, independent: list[int], last: int) -> dict[int, int]:
        """Return, for each node, the entries that reach it by way of other subgraphs."""
        ins, cut, part = self.top.ins, self.cut, self.part
        depends, bits, subgraph = self.depends, self.bits, self.subgraph
        reached: dict[int, int] = {}
        closing: dict[int, int] = {}
        for node in range(min(independent), last + 1):
            here = closed = 0
            if part[node] == subgraph and node not in depends:
                here = bits.above[node]
                for _, producer in ins[node]:
                    closed |= closing.get(producer, 0)
            else:
                for edge, producer in ins[node]:
                    from_above = reached.get(producer, 0)
                    here |= from_above
                    closed |= closing.get(producer, 0)
                    if cut[edge] and part[producer] == subgraph:
                        closed |= from_above
            if here:
                reached[node] = here
                if part[node] == subgraph and self._reenters(node):
                    closed |= here
            if closed:
                closing[node] = closed
        return closing

    def _reenters(self, node: int) -> bool:
        cut, part = self.cut, self.part
        return any(cut[edge] and part[p] != self.subgraph for edge, p in self.top.ins[node])

    def _cut_constants(self, nodes: Iterable[int]) -> None:
        """Cut off private constants where the cycle re-enters, as HETERO does."""
        for node in nodes:
            if self.top.private[node] and self._reenters(node):
                for edge in self.top.private[node]:
                    self._cut(edge)


class _EntryBits:
    """For each independent node, the entries of its subgraph above it, as bits of an integer.

    ``plain`` tells whether all of them come directly from parameters and constants.
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
        """Add nodes in topological order, after everything above them."""
        for node in nodes:
            above, plain = 0, True
            if self.top.graph_input[node]:
                above, self.next_bit = self.next_bit, self.next_bit << 1
            for edge, producer in self.top.ins[node]:
                if self.cut[edge]:
                    above |= self.next_bit
                    self.next_bit <<= 1
                    plain &= self.top.graph_input[producer]
                else:
                    above |= self.above[producer]
                    plain &= self.plain[producer]
            self.above[node] = above
            self.plain[node] = plain


_STATES = 32  # about how many of the states that a whole graph passes through are memoised

Rank = tuple[bool, bool, bool, bool, int, int]
_Step = tuple[tuple[int, ...], bytes | None]  # cut edges, and the state reached by cutting them
CycleMemo: TypeAlias = CutCache[bytes, _Step]


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


class CycleBreaking:
    """Cut the cycles of subgraphs, each within a strongly connected component of subgraphs.

    It takes over ``cut``, a flag for each edge, and ``uncut``, the ranks of :func:`uncut_ranks`.
    ``subgraphs`` is the subgraph of each node; ``components`` the strongly connected component of
    each subgraph, -1 if it is not cyclic.
    """

    def __init__(
        self,
        top: Topology,
        cut: bytearray,
        subgraphs: np.ndarray,
        components: np.ndarray,
        uncut: list[Rank],
        memo: CycleMemo,
    ):
        self.top = top
        self.cut = cut
        self.uncut = uncut
        self.memo = memo
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
        self.next_id = self.next_component = len(components)
        self.component_of: dict[int, int] = {s: int(components[s]) for s in self.members}
        self.size: Counter[int] = Counter(self.component_of.values())
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
        cuts: list[int] = []
        while (rest := self._rest(state)) is None:
            node = None
            while self.n_cyclic // each == at and (node := self._first()) is not None:
                cuts += self._cut_out(node)
            after = None if node is None else self._state()
            self.memo.add(state, (tuple(cuts), after), len(cuts) + 1)
            if after is None:
                return
            state, at, cuts = after, self.n_cyclic // each, []
        for edge in rest:
            self.cut[edge] = 1

    def _state(self) -> bytes:
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
        while self.heap:
            node = self.heap[0][-1]
            if self.rank.get(node) == self.heap[0] and self._subgraph(node) in self.component_of:
                break
            heapq.heappop(self.heap)
        ranks = self.heap[:1]
        if not ranks or ranks[0][0]:  # no cycle re-enters: a node with no cut input may rank lower
            ranks += self._first_uncut()
        return min(ranks)[-1] if ranks else None

    def _first_uncut(self) -> list[Rank]:
        """Return the lowest rank among cyclic nodes without a cut input, if there is one."""
        while self.n_cyclic and self.n_passed < len(self.uncut):
            rank = self.uncut[self.n_passed]
            node = rank[-1]
            uncut = not any(self.cut[edge] for edge, _ in self.top.all_ins[node])
            if uncut and self._subgraph(node) in self.component_of:
                return [rank]
            self.n_passed += 1
        return []

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
        ids, subgraph = self.ids, self._subgraph(node)
        inside: list[int] = []
        reenters = False
        for edge, producer in self.top.all_ins[node]:
            if not self.cut[edge]:
                inside.append(producer)
            elif not reenters:
                other = ids[producer]
                reenters = other != subgraph and other in self.component_of
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

    def _walk(self, start: int, component: int, upwards: bool, until: int) -> set[int] | None:
        """Return all above (or below) a subgraph in its component; None if ``until`` is one."""
        reached = {start}
        queue = [start]
        for subgraph in queue:
            for other in self._next_to(subgraph, upwards):
                if other not in reached and self.component_of.get(other) == component:
                    if other == until:
                        return None
                    reached.add(other)
                    queue.append(other)
        return reached

    def _settle(self, subgraphs: set[int], component: int) -> list[int]:
        """Move subgraphs into components of their own; return those that are acyclic now."""
        self.size[component] -= len(subgraphs)
        number, self.next_component = self.next_component, self.next_component + 1
        for subgraph in subgraphs:
            self.component_of[subgraph] = number
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
