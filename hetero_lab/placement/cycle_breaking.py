"""The second half of HETERO's rule: untie subgraphs that still depend on each other.

Node after node is cut out of what is cyclic, the least in rank of all first, until nothing is.
The plugin looks at the whole model for each cut. Here ranks wait in a heap, and after a cut only
the neighbourhood is looked at again: the smaller parts into which the subgraph fell, and what
is no longer strongly connected with the largest.

What is cut next follows from the nodes that are still tied and their wires alone. So the cuts
are kept by such states: where a placement comes to one that an earlier placement came to, the
rest is known.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from hetero_lab.placement.cut_cache import KnownCuts
from hetero_lab.placement.topology import Topology, fall_apart, strong_labels

_FEW = 16  # strongly connected components of so few are found without SciPy
_STATES = 32  # about so many of the states that a whole graph goes through are kept

_Rank = tuple[bool, bool, bool, bool, int, int]
_Step = tuple[tuple[int, ...], bytes | None]  # wires that were cut, and the state that it led to


def _rank(top: Topology, node: int, inside: Sequence[int], reenters: bool) -> _Rank:
    """Rank a node by the producers of its uncut inputs, and by whether a cycle comes in here."""
    shared = trivial = False
    for producer in inside:
        if top.n_uses[producer] > 1:
            shared = True
        elif top.first_op[producer] and top.n_uses[producer] == 1:
            trivial = True
    linear = len(inside) == 1 and top.n_uses[node] <= 1
    return (not reenters, not shared, trivial, linear, len(inside), node)


def _ranks_of_the_whole(top: Topology) -> list[_Rank]:
    """Return the ranks of all nodes where nothing is cut, the least first."""
    known = top.graph.__dict__.get("_ranks_of_the_whole")
    if known is None:
        producers = ([producer for _, producer in ins] for ins in top.all_ins)
        known = sorted(_rank(top, node, p, False) for node, p in enumerate(producers) if p)
        top.graph.__dict__["_ranks_of_the_whole"] = known
    return known


class Knots:
    """Subgraphs that depend on each other; a knot is a strongly connected component of them."""

    def __init__(self, top: Topology, cut: bytearray, ids: np.ndarray, knots: np.ndarray):
        """Take over the wires' ``cut``; ``knots`` numbers each subgraph's knot, -1 for none."""
        self.top = top
        self.cut = cut
        self.ids: list[int] = ids.tolist()
        # Results and private constants are not members: they are where their anchor is.
        self.members: dict[int, set[int]] = {}
        self.tied = bytearray(top.n_nodes)
        self.n_tied = 0
        tied = np.flatnonzero(knots[ids] >= 0).tolist()
        for node in tied:
            if top.anchor[node] == node:
                self.members.setdefault(self.ids[node], set()).add(node)
                self.tied[node] = 1
                self.n_tied += 1
        self.next_id = len(knots)
        self.knot_of: dict[int, int] = {s: int(knots[s]) for s in self.members}
        self.size: dict[int, int] = {}
        for knot in self.knot_of.values():
            self.size[knot] = self.size.get(knot, 0) + 1
        self.next_knot = len(knots)
        self.rank: dict[int, _Rank] = {}
        self.heap: list[_Rank] = []
        self.whole = _ranks_of_the_whole(top)
        self.n_passed = 0  # of these: they read something that is cut now, or are not tied
        reads_cut = set(top.target[np.frombuffer(cut, bool)].tolist())
        self._rank_again(node for node in tied if node in reads_cut)
        self.known: KnownCuts[bytes, _Step] = KnownCuts.of(top.graph, "untied")

    def untie(self) -> None:
        """Cut until no subgraph depends on itself through another one."""
        each = self.top.n_nodes // _STATES + 1
        state, at = self._state(), self.n_tied // each
        made: list[int] = []
        while (rest := self._rest(state)) is None:
            node = None
            while self.n_tied // each == at and (node := self._first()) is not None:
                made += self._cut_out(node)
            after = None if node is None else self._state()
            self.known.add(state, (tuple(made), after), len(made) + 1)
            if after is None:
                return
            state, at, made = after, self.n_tied // each, []
        for wire in rest:
            self.cut[wire] = 1

    def _state(self) -> bytes:
        """Return a digest of the nodes that are tied, and of which of their wires are cut."""
        tied, cut = np.frombuffer(self.tied, bool), np.frombuffer(self.cut, bool)
        theirs = cut & (tied[self.top.source] | tied[self.top.target])
        return hashlib.blake2b(tied.tobytes() + theirs.tobytes(), digest_size=16).digest()

    def _rest(self, state: bytes | None) -> list[int] | None:
        """Return all wires that are cut from a state on, None if that is not known."""
        wires: list[int] = []
        while state is not None:
            step = self.known.get(state)
            if step is None:
                return None
            wires += step[0]
            state = step[1]
        return wires

    def _cut_out(self, node: int) -> list[int]:
        """Cut what a node reads, and look again at what that changes; return the cut wires."""
        ins, outs, cut = self.top.ins, self.top.outs, self.cut
        wires = [(wire, producer, node) for wire, producer in ins[node] if not cut[wire]]
        new = [wire for wire, _ in self.top.all_ins[node] if not cut[wire]]
        for wire in new:
            cut[wire] = 1
        again = {node}
        parts = fall_apart(self.top.around, cut, wires)
        if parts:
            subgraph = self.ids[node]
            # Ranks change where a cut wire's ends are in other subgraphs or knots than before.
            for part in parts:
                for member in part:
                    again.update([user for wire, user in outs[member] if cut[wire]])
                    if any(cut[wire] for wire, _ in ins[member]):
                        again.add(member)
            for other in self._retie(subgraph, [self._number(subgraph, p) for p in parts]):
                for member in self.members.pop(other):
                    self.tied[member] = 0
                    self.n_tied -= 1
                    again.update([user for wire, user in outs[member] if cut[wire]])
        self._rank_again(again)
        return new

    def _first(self) -> int | None:
        """Return the node to cut out next."""
        rank = None
        while self.heap:
            rank = self.heap[0]
            node = rank[-1]
            if self.rank.get(node) == rank and self._subgraph(node) in self.knot_of:
                break
            rank = None
            heapq.heappop(self.heap)
        if rank is None or rank[0]:  # it does not re-enter: one that reads nothing cut may be less
            whole = self._first_whole()
            rank = whole if rank is None or (whole is not None and whole < rank) else rank
        return None if rank is None else rank[-1]

    def _first_whole(self) -> _Rank | None:
        """Return the least rank of a node that reads nothing that is cut."""
        while self.n_tied and self.n_passed < len(self.whole):
            rank = self.whole[self.n_passed]
            node = rank[-1]
            whole = not any(self.cut[wire] for wire, _ in self.top.all_ins[node])
            if whole and self._subgraph(node) in self.knot_of:
                return rank
            self.n_passed += 1
        return None

    def _subgraph(self, node: int) -> int:
        return self.ids[self.top.anchor[node]]

    def _rank_again(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            rank = self._rank_of(node) if self._subgraph(node) in self.knot_of else None
            if rank is None:
                self.rank.pop(node, None)
            elif self.rank.get(node) != rank:
                self.rank[node] = rank
                heapq.heappush(self.heap, rank)

    def _rank_of(self, node: int) -> _Rank | None:
        """Rank a node by what its uncut inputs and its cyclic neighbours are like."""
        ids, own = self.ids, self._subgraph(node)
        inside = []
        reenters = False
        for wire, producer in self.top.all_ins[node]:
            if not self.cut[wire]:
                inside.append(producer)
            elif not reenters:
                other = ids[producer]
                reenters = other != own and other in self.knot_of
        return _rank(self.top, node, inside, reenters) if inside else None

    def _number(self, subgraph: int, part: list[int]) -> int:
        """Make a part of a subgraph a subgraph of the same knot."""
        new, self.next_id = self.next_id, self.next_id + 1
        for node in part:
            self.ids[node] = new
        self.members[subgraph].difference_update(part)
        self.members[new] = set(part)
        knot = self.knot_of[subgraph]
        self.knot_of[new] = knot
        self.size[knot] += 1
        return new

    def _retie(self, subgraph: int, parts: list[int]) -> list[int]:
        """Find the knots that remain after a subgraph fell apart; return who is in none now.

        Whatever was in the knot reaches some part and is reached from some part. So what is not
        tied to the main part any more is found from the other parts: everything above one that
        the main part does not reach, everything below one that does not reach it, and what
        hangs on those. Each walk ends where it meets the main part.
        """
        knot = self.knot_of[subgraph]
        pieces = [subgraph, *parts]
        main = max(pieces, key=lambda piece: len(self.members[piece]))
        loose: list[int] = []
        for upwards in (True, False):
            todo = [piece for piece in pieces if piece != main]
            tied = {main}
            while todo:
                start = todo.pop()
                if start in tied or self.knot_of.get(start) != knot:
                    continue
                found = self._walk(start, knot, upwards, until=main)
                if found is None:
                    tied.add(start)
                    continue
                for piece in found:
                    todo += [
                        other
                        for other in self._next_to(piece, not upwards)
                        if other not in found and self.knot_of.get(other) == knot
                    ]
                loose += self._settle(found, knot)
        if self.size[knot] == 1:
            del self.knot_of[main]
            loose.append(main)
        return loose

    def _next_to(self, subgraph: int, upwards: bool) -> Iterable[int]:
        """Yield the subgraphs that this one reads from, or that read from it."""
        wires = self.top.ins if upwards else self.top.outs
        for node in self.members[subgraph]:
            for wire, other in wires[node]:
                if self.cut[wire] and self.ids[other] != subgraph:
                    yield self.ids[other]

    def _walk(self, start: int, knot: int, upwards: bool, until: int | None) -> set[int] | None:
        """Return all above (or below) a subgraph in its knot; None if ``until`` is among them."""
        found = {start}
        queue = [start]
        for subgraph in queue:
            for other in self._next_to(subgraph, upwards):
                if other not in found and self.knot_of.get(other) == knot:
                    if other == until:
                        return None
                    found.add(other)
                    queue.append(other)
        return found

    def _settle(self, subgraphs: set[int], knot: int) -> list[int]:
        """Take subgraphs out of their knot, tie them among each other, return the loose ones."""
        self.size[knot] -= len(subgraphs)
        own, self.next_knot = self.next_knot, self.next_knot + 1
        for subgraph in subgraphs:
            self.knot_of[subgraph] = own
        loose: list[int] = []
        for component in self._strong_components(subgraphs):
            if len(component) == 1:
                del self.knot_of[component[0]]
                loose += component
            else:
                for subgraph in component:
                    self.knot_of[subgraph] = self.next_knot
                self.size[self.next_knot] = len(component)
                self.next_knot += 1
        return loose

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
        if len(order) > _FEW:
            ends = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)
            labels = strong_labels(ends[:, 0], ends[:, 1], len(order)).tolist()
        else:
            reach = [1 << at for at in range(len(order))]
            for _ in order:
                for source, target in edges:
                    reach[source] |= reach[target]
            labels = [
                min(b for b in range(len(order)) if reach[a] >> b & 1 and reach[b] >> a & 1)
                for a in range(len(order))
            ]
        components: dict[int, list[int]] = {}
        for subgraph, label in zip(order, labels, strict=True):
            components.setdefault(label, []).append(subgraph)
        return list(components.values())
