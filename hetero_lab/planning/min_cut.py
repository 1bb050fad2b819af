"""The best choice of two devices for the pairwise part of the latency: a minimum cut.

Stone, "Multiprocessor scheduling with the aid of network flow algorithms", IEEE Transactions on
Software Engineering 3(1), 1977: each unit is a node between a source (first device) and a sink
(second device). The cut separates the units of the two devices, and its capacity is their cost. A
tensor with several users is paid once: a node of its own stands between its maker and them, and
edges that cannot be cut tie it to the users.

SciPy's ``maximum_flow`` (Dinic 1970) is about fifty times as fast here as networkx's best. It
counts in 32 bits and overflows silently, so larger sums are halved until they fit, and a further
flow is then found in the digits that were dropped.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from hetero_lab.planning.pairwise import Pairwise

_MOST = 1 << 30  # flow and capacities; their sums must stay below 2**31


def min_cut(
    pairwise: Pairwise, devices: tuple[int, int] = (0, 1), surcharge_ns: int = 0
) -> tuple[np.ndarray, int]:
    """Minimise the pairwise part of the latency over two devices, exactly.

    Returns the choice and a proven lower bound in ns on that part, 0 if nothing is proven. Units
    may be allowed on one of the ``devices`` only. If the problem has more devices, the choice is
    the best of those that use these two, and nothing is proven. Nor is it with ``surcharge_ns``,
    which is added to the price of every tensor that is handed over: about the cost of a subgraph
    gives choices with fewer subgraphs. PlanError if some unit is allowed on neither device.
    """
    first, second = devices
    allowed = pairwise.allowed[:, [first, second]]
    nowhere = np.flatnonzero(~allowed.any(axis=1))
    if len(nowhere):
        raise pairwise.unsupported(nowhere, devices)
    n_units = len(pairwise.units)
    network = Network(n_units)
    times = pairwise.time_ns[:, [first, second]].tolist()
    for unit, (on_first, on_second) in enumerate(allowed.tolist()):
        more = times[unit][1] - times[unit][0]
        # Cut from the source a unit is on the second device, so that edge costs its time.
        network.add(network.source, unit, max(0, more) if on_second else None)
        network.add(unit, network.sink, max(0, -more) if on_first else None)
    for terms, more in ((pairwise.tensors, surcharge_ns), (pairwise.pairs, 0)):
        for term in terms:
            there = int(term.leave_ns[first, second] + term.enter_ns[first, second])
            back = int(term.leave_ns[second, first] + term.enter_ns[second, first])
            network.add_tensor(term.source, term.users, there + more, forward=True)
            network.add_tensor(term.source, term.users, back + more, forward=False)
    choice = np.where(network.cut()[:n_units], first, second)
    is_exact = pairwise.n_devices == 2 and not surcharge_ns
    return choice, pairwise.value_ns(choice) if is_exact else 0


class Network:
    """A flow network under construction; a capacity of None cannot be cut."""

    def __init__(self, n_units: int):
        self.source, self.sink = n_units, n_units + 1
        self.n_nodes = n_units + 2
        self.tails: list[int] = []
        self.heads: list[int] = []
        self.capacities: list[int | None] = []

    def add(self, tail: int, head: int, capacity: int | None) -> None:
        if capacity != 0:
            self.tails.append(tail)
            self.heads.append(head)
            self.capacities.append(capacity)

    def add_tensor(
        self, maker: int, users: tuple[int, ...], price: int | None, *, forward: bool
    ) -> None:
        """Let a tensor cost ``price`` if the maker is on one side and any user on the other."""
        edges: list[tuple[int, int, int | None]] = [(maker, user, price) for user in users]
        if len(users) > 1 and price:  # one that cannot be cut needs no node of its own
            # Any user on the other side pulls the node there through its uncuttable edge, so that
            # the priced edge is cut once, however many users follow.
            node, self.n_nodes = self.n_nodes, self.n_nodes + 1
            edges = [(maker, node, price), *((node, user, None) for user in users)]
        for tail, head, capacity in edges:
            self.add(*((tail, head) if forward else (head, tail)), capacity)

    def cut(self) -> np.ndarray:
        """Return which nodes are on the source's side of a minimum cut."""
        shape = (self.n_nodes, self.n_nodes)
        finite = sum(capacity or 0 for capacity in self.capacities)
        # One more than everything together is never worth cutting.
        whole = [finite + 1 if capacity is None else capacity for capacity in self.capacities]
        # Before SciPy 1.15 its flows, as its programs, take indices of 32 bits only.
        edges = np.array(self.tails, np.int32), np.array(self.heads, np.int32)
        left = csr_array((np.array(whole, np.int64), edges), shape=shape)
        # All edges together, those from the source, and those into the sink are cuts each, and no
        # flow exceeds a cut.
        bound = min(finite, int(left[[self.source]].sum()), int(left[:, [self.sink]].sum()))
        while True:
            shift = max(0, bound.bit_length() - _MOST.bit_length() + 1)
            # No flow of at most bound needs more on any edge; one more is never saturated.
            clipped = left.copy()
            clipped.data = np.minimum(left.data >> shift, (bound >> shift) + 1).astype(np.int32)
            flow = maximum_flow(clipped, self.source, self.sink, method="dinic").flow
            # The flow against an edge is negative: what passed along it may flow back.
            left = csr_array(left - flow.astype(np.int64) * (1 << shift))
            open_ = left.copy()
            open_.data >>= shift
            open_.eliminate_zeros()
            reached = np.zeros(self.n_nodes, dtype=bool)
            reached[breadth_first_order(open_, self.source, return_predecessors=False)] = True
            # Capacity left across this cut bounds the flow still possible in the dropped digits.
            # So the next round drops fewer, until none are dropped and the cut is exact.
            if not shift:
                return reached
            bound = int(left[reached][:, ~reached].sum())
