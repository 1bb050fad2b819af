"""The first half of HETERO's rule: cut each subgraph at the inputs that close a cycle.

The plugin does this in rounds over the whole model. What a subgraph's cuts are depends on its
own members and on the model's wires alone, not on how the others are cut, so here each is
peeled by itself, and its cuts are kept for the next placement that has it. ``depends`` counts,
for every node, the inputs through which it depends on a tensor that leaves the subgraph. Nodes
with a count of 0 form the calm top; the cuts lie between it and the rest, which then goes on as
a smaller subgraph whose counts only fall. Every wire is thus followed a few times, not once a
round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetero_lab.placement.cut_cache import KnownCuts
from hetero_lab.placement.topology import Topology, fall_apart


class Peeler:
    """Cut subgraphs at the inputs that close a cycle, each from its calm top downwards."""

    def __init__(self, top: Topology, cut: bytearray, part: list[int]):
        self.top = top
        self.cut = cut  # for each wire
        self.part = part  # for each node, the subgraph that it is in now
        self.next_part = len(part)
        self.known: KnownCuts[tuple[int, ...], tuple[int, ...]] = KnownCuts.of(top.graph, "peeled")
        self.made: list[int] = []  # wires cut in the subgraph at hand

    def peel(self, nodes: Iterable[int]) -> None:
        """Peel every subgraph of ``nodes``, which are sorted and hold whole subgraphs."""
        members: dict[int, list[int]] = {}
        lone = self.top.private
        for node in nodes:
            if self.top.ins[node] or self.top.outs[node] or lone[node]:
                members.setdefault(self.part[node], []).append(node)
        for group in members.values():
            if len(group) > 1:
                self._peel_whole(tuple(group))

    def _peel_whole(self, nodes: tuple[int, ...]) -> None:
        cuts = self.known.get(nodes)
        if cuts is None:
            self.made = []
            todo = [list(nodes)]
            while todo:
                todo += self._peel_one(todo.pop())
            self.known.add(nodes, tuple(self.made), len(nodes))
            return
        for wire in cuts:
            self.cut[wire] = 1

    def _cut(self, wire: int) -> None:
        self.cut[wire] = 1
        self.made.append(wire)

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
                self._cut(wire)
            left = fall_apart(self.top.around, self.cut, cuts)
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

        # Listed first: what turns calm only now is dropped from the stack below.
        for node in [node for nodes in left for node in nodes if node not in depends]:
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
                    self._cut(wire)


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
