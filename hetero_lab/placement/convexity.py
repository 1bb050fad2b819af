"""Convexity repair, the first half of HETERO's rule: cut subgraphs at inputs that close a cycle.

A subgraph is convex if no way leaves it and comes back. One that is not would wait for itself, so
it is cut in front of the nodes that wait for such a way.

The plugin does this in rounds over the whole model. The cuts of a subgraph depend only on its
own members and on the model's edges, not on how other subgraphs are cut, so here each subgraph
is repaired by itself, and its cuts are memoised for the next placement that has it. ``depends``
counts, for every node, the inputs through which it depends on a tensor that leaves the subgraph.
Nodes with a count of 0 are independent; the cuts lie between them and the rest, which then
continues as a smaller subgraph whose counts only fall. Every edge is thus followed a few times, not
once a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hetero_lab.model.opgraph import grouped
from hetero_lab.placement.topology import CutCache, Topology, separated_parts

Memo: TypeAlias = CutCache[tuple[int, ...], tuple[int, ...]]  # nodes of a subgraph → cut edges


class ConvexityRepair:
    """Cut subgraphs at the inputs that close a cycle, each from its independent nodes downwards."""

    def __init__(self, top: Topology, cut: bytearray, part: list[int], memo: Memo):
        self.top = top
        self.cut = cut  # for each edge
        self.part = part  # for each node, its present subgraph
        self.next_part: int = len(part)
        self.memo = memo
        # Of the subgraph at hand: its number, its last node, the inputs of each node that depend on
        # a tensor leaving it, the entries above its independent nodes, the edges cut in it.
        self.own = self.last = -1
        self.depends: dict[int, int] = {}
        self.bits = _EntryBits(top, cut)
        self.made: list[int] = []

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
            self.made = []
            todo = [list(nodes)]
            while todo:
                todo += self._repair_one(todo.pop())
            self.memo.add(nodes, tuple(self.made), len(nodes))
            return
        for edge in cuts:
            self.cut[edge] = 1

    def _cut(self, edge: int) -> None:
        self.cut[edge] = 1
        self.made.append(edge)

    def _repair_one(self, members: list[int]) -> list[list[int]]:
        """Repair one subgraph, given sorted; return the smaller parts that were cut off."""
        part = self.part
        self._label(members)
        own = self.own = part[members[0]]
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
            left = separated_parts(self.top.around, self.cut, cuts)
            for nodes in left:
                self._label(nodes)
                if any(node in depends for node in nodes):
                    parts.append(sorted(nodes))
            fresh = self._recount(cuts, left)
            independent = [node for node in independent if part[node] == own]
            entered = (w for _, v, w in cuts if part[w] == own != part[v])
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
        part, own = self.part, self.part[last]
        stack = list(depends)
        while stack:
            node = stack.pop()
            inside = part[node] == own
            for edge, user in outs[node]:
                # Edges that leave the subgraph were counted above.
                if user <= last and not (inside and cut[edge]):
                    if user in depends:
                        depends[user] += 1
                    else:
                        depends[user] = 1
                        stack.append(user)
        return depends

    def _recount(self, cuts: list[tuple[int, int, int]], left: list[list[int]]) -> list[int]:
        """Update the counts after parts have left; return the members that became independent."""
        outs, cut, part = self.top.outs, self.cut, self.part
        depends, own, last = self.depends, self.own, self.last
        new = {edge for edge, _, _ in cuts}
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

        # The list is made before any count drops: nodes that become independent in this loop are
        # handled by the stack below, and must not be counted down twice.
        for node in [node for nodes in left for node in nodes if node not in depends]:
            for edge, user in outs[node]:
                if cut[edge] and user <= last and edge not in new:
                    drop(user)
        while stack:
            node = stack.pop()
            inside = part[node] == own
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
        for crossing in frontier:
            edge, node, user = crossing
            leaf = top.single_use[edge] and bits.plain[node] and not top.graph_input[node]
            if leaf:
                continue
            if bits.above[node] & common or self._reenters(user):
                cuts.append(crossing)
            else:
                unsure.append(crossing)
        # The unsure ones need the exact set of entries that reach a node through other subgraphs.
        # That walk over the graph is the expensive part, so it comes last.
        if unsure:
            closing = self._closing_bits(independent, max(user for _, _, user in unsure))
            cuts += [e for e in unsure if bits.above[e[1]] & closing.get(e[2], 0)]
        return cuts

    def _closing_bits(self, independent: list[int], last: int) -> dict[int, int]:
        """Return, for each node, the entries that reach it by way of other subgraphs."""
        ins, cut, part = self.top.ins, self.cut, self.part
        depends, bits, own = self.depends, self.bits, self.own
        reached: dict[int, int] = {}
        closing: dict[int, int] = {}
        for node in range(min(independent), last + 1):
            here = closed = 0
            if part[node] == own and node not in depends:
                here = bits.above[node]
                for _, producer in ins[node]:
                    closed |= closing.get(producer, 0)
            else:
                for edge, producer in ins[node]:
                    from_above = reached.get(producer, 0)
                    here |= from_above
                    closed |= closing.get(producer, 0)
                    if cut[edge] and part[producer] == own:
                        closed |= from_above
            if here:
                reached[node] = here
                if part[node] == own and self._reenters(node):
                    closed |= here
            if closed:
                closing[node] = closed
        return closing

    def _reenters(self, node: int) -> bool:
        cut, part, own = self.cut, self.part, self.own
        return any(cut[edge] and part[producer] != own for edge, producer in self.top.ins[node])

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
