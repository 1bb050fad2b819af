"""The best choice for the pairwise part of the costs: a minimum cut or an integer program.

**For two devices**, Stone, "Multiprocessor scheduling with the aid of network flow algorithms",
IEEE Transactions on Software Engineering 3(1), 1977: each unit is a node between a source (first
device) and a sink (second device). The cut separates the units of the two devices, and its capacity
is their cost. A tensor with several users is paid once: a node of its own stands between its maker
and them, and edges that cannot be cut tie it to the users.

SciPy's ``maximum_flow`` (Dinic 1970) is about fifty times as fast here as networkx's best. It
counts in 32 bits and overflows silently, so larger sums are halved until they fit, and a further
flow is then found in the digits that were dropped.

**For more devices, and with limits**, a mixed-integer linear program: for each unit, exactly one of
the variables "on device d" is 1. For two units that share a term, there is a variable for each pair
of devices; these add up to the units' own variables (the local polytope: Schlesinger 1976; Chekuri,
Khanna, Naor and Zosin 2004). With two devices and no limit, the relaxation alone gives a minimum
cut. HiGHS (Huangfu and Hall 2018) solves it through ``scipy.optimize.milp``, with a proven lower
bound if time runs out.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from hetero_lab.clock import now
from hetero_lab.costs.objective import LATENCY, THROUGHPUT
from hetero_lab.errors import PlanError
from hetero_lab.interrupts import interruptible
from hetero_lab.placement.memory_limits import Pools
from hetero_lab.planning.problem import Pairwise, Term

_MOST = 1 << 30  # flow and capacities; their sums must stay below 2**31
_INFEASIBLE = 2  # a status of SciPy's milp
_MOST_US = 1e6  # sum of all costs as the solver sees them; its tolerances are absolute
_TOLERANCE_NS = 0.01  # of the solver's bound, before scaling: far below the whole ns that costs are
_LEAST_S = 0.1  # to solve a program that took all its time to be built
_EVEN_GAP = 0.01  # to the least that the fullest device can hold


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
        raise pairwise.support_error(nowhere, devices)
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
        residual = csr_array((np.array(whole, np.int64), edges), shape=shape)
        # All edges together, those from the source, and those into the sink are cuts each, and no
        # flow exceeds a cut.
        bound = min(finite, int(residual[[self.source]].sum()), int(residual[:, [self.sink]].sum()))
        while True:
            shift = max(0, bound.bit_length() - _MOST.bit_length() + 1)
            # No flow of at most bound needs more on any edge; one more is never saturated.
            clipped = residual.copy()
            clipped.data = np.minimum(residual.data >> shift, (bound >> shift) + 1).astype(np.int32)
            flow = maximum_flow(clipped, self.source, self.sink, method="dinic").flow
            # The flow against an edge is negative: what passed along it may flow back.
            residual = csr_array(residual - flow.astype(np.int64) * (1 << shift))
            open_ = residual.copy()
            open_.data >>= shift
            open_.eliminate_zeros()
            reached = np.zeros(self.n_nodes, dtype=bool)
            reached[breadth_first_order(open_, self.source, return_predecessors=False)] = True
            # Capacity left across this cut bounds the flow still possible in the dropped digits.
            # So the next round drops fewer, until none are dropped and the cut is exact.
            if not shift:
                return reached
            bound = int(residual[reached][:, ~reached].sum())


def milp(
    pairwise: Pairwise,
    objective: str = LATENCY,
    *,
    memory_limit: Pools | None = None,
    budget_s: float = 60.0,
) -> tuple[np.ndarray, int] | None:
    """Minimise the pairwise part of the latency, or of the busiest device's time.

    The memory limits count constants and states once for each device that uses them, and boundary
    tensors once for each device that makes or receives them. Returns the choice and a proven lower
    bound in ns; None if time ran out before any choice was found. PlanError if no choice keeps
    within the limits, or some unit is allowed nowhere.
    """
    deadline = now() + budget_s
    pairwise = pairwise.restricted(np.ones_like(pairwise.allowed))
    program = _Program(pairwise)
    program.limit_memory(memory_limit or {})
    program.minimise(objective)
    result = program.solve(deadline)
    if result.status == _INFEASIBLE:
        raise PlanError("No placement keeps within the memory limits.")
    if result.x is None:
        return None
    choice = program.choice(result.x)
    value = int(pairwise.values_ns(choice[None], objective)[0])
    proven = result.mip_dual_bound
    bound = 0
    if proven is not None and np.isfinite(proven):
        # Costs are whole ns, so the bound may be rounded up, less the solver's tolerance.
        least = np.ceil((proven * 1000.0 - _TOLERANCE_NS) * program.scale)
        bound = int(least) + pairwise.objective.constant_ns
    return choice, max(0, min(bound, value))


def even_choice(pairwise: Pairwise, pools: Pools, budget_s: float) -> np.ndarray | None:
    """Return a choice within limits whose fullest device has nearly the least weights and states.

    None if time ran out, or nothing keeps within the limits.
    """
    deadline = now() + budget_s
    program = _Program(pairwise)
    program.limit_memory(pools)
    program.minimise_fullest()
    result = program.solve(deadline, gap=_EVEN_GAP)
    return None if result.x is None else program.choice(result.x)


class _Program:
    """Variables, rows and costs under construction; costs are in µs."""

    def __init__(self, pairwise: Pairwise):
        self.pairwise = pairwise
        self.scale = 1.0  # µs that the solver counts as one
        self.n_variables = 0
        self.upper: list[np.ndarray] = []
        self.rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # row, variable, factor
        self.low: list[np.ndarray] = []
        self.high: list[np.ndarray] = []
        self.n_rows = 0
        n_units, n_devices = pairwise.allowed.shape
        self.on = self._variables(pairwise.allowed.astype(float).ravel()).reshape(
            n_units, n_devices
        )
        self._add(self.on, np.ones_like(self.on, dtype=float), 1.0, 1.0)
        # Work of each device: (device, variable, µs).
        self.work: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [
            (np.tile(np.arange(n_devices), n_units), self.on.ravel(), pairwise.time_ns.ravel())
        ]
        self.together: dict[tuple[int, int], np.ndarray] = {}
        # By device: variables, and the bytes of each.
        self.memory: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.boundaries: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.handed = [self._term(term) for term in pairwise.terms]

    def _variables(self, upper: np.ndarray) -> np.ndarray:
        start, self.n_variables = self.n_variables, self.n_variables + len(upper)
        self.upper.append(upper)
        return np.arange(start, self.n_variables)

    def _add(self, variables: np.ndarray, factors: np.ndarray, low: float, high: float) -> None:
        """Add rows ``[rows, terms]`` with the same limits."""
        count, width = variables.shape
        row = np.repeat(np.arange(self.n_rows, self.n_rows + count), width)
        self.rows.append((row, variables.ravel(), factors.ravel()))
        self.low.append(np.full(count, low))
        self.high.append(np.full(count, high))
        self.n_rows += count

    def _joint(self, first: int, second: int) -> np.ndarray:
        """Return the variables "first on s and second on t", shape ``[devices, devices]``."""
        if first > second:
            return self._joint(second, first).T
        joint = self.together.get((first, second))
        if joint is not None:
            return joint
        n = self.pairwise.n_devices
        joint = self._variables(np.ones(n * n)).reshape(n, n)
        ones = np.ones((n, n + 1))
        ones[:, -1] = -1.0
        self._add(np.column_stack([joint, self.on[first]]), ones, 0.0, 0.0)
        self._add(np.column_stack([joint.T, self.on[second]]), ones, 0.0, 0.0)
        self.together[first, second] = joint
        return joint

    def _term(self, term: Term) -> np.ndarray:
        """Return the variables "handed from s to t", shape ``[devices, devices]``."""
        n = self.pairwise.n_devices
        joints = [self._joint(term.source, user) for user in term.users]
        if len(joints) == 1:
            handed = joints[0]
        else:
            handed = self._variables(np.ones(n * n)).reshape(n, n)
            for joint in joints:
                pair = np.column_stack([handed.ravel(), joint.ravel()])
                self._add(pair, np.tile([1.0, -1.0], (n * n, 1)), 0.0, np.inf)
        for device, ns in zip(np.indices((n, n)), (term.leave_ns, term.enter_ns), strict=True):
            self.work.append((device.ravel(), handed.ravel(), ns.ravel()))
        return handed

    def limit_memory(self, pools: Pools) -> None:
        """Add a row for each limit."""
        for pool, limit in pools.items():
            parts = [self._memory_of(device) for device in pool.devices]
            parts += [self._traffic_of(device) for device in pool.devices if pool.boundaries]
            variables, sizes = (np.concatenate(each) for each in zip(*parts, strict=True))
            if len(variables):
                # In shares of the limit, so that the solver sees numbers near 1.
                factors = sizes[None] / max(1, limit)
                self._add(variables[None], factors, -np.inf, 1.0 if limit else 0.0)

    def _memory_of(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Return variables that are 1 for constants and states on a device, and their bytes."""
        if device not in self.memory:
            sizes = self.pairwise.held_bytes[:, device]
            users_of = [u for u, size in zip(self.pairwise.memory, sizes, strict=True) if size]
            variables = np.zeros(len(users_of), dtype=np.int64)
            for at, users in enumerate(users_of):
                variables[at] = self.on[users[0], device]
                if len(users) > 1:
                    variables[at] = self._variables(np.ones(1))[0]
                    self._at_least(variables[at], [self.on[u, device] for u in users])
            self.memory[device] = variables, sizes[sizes > 0].astype(float)
        return self.memory[device]

    def _traffic_of(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Return variables that are 1 for tensors a device sends or receives, and their bytes."""
        if device not in self.boundaries:
            n = self.pairwise.n_devices
            others = [d for d in range(n) if d != device]
            variables: list[int] = []
            sizes: list[float] = []
            for term, handed in zip(self.pairwise.terms, self.handed, strict=True):
                if term.n_bytes and others:
                    sends = int(self._variables(np.ones(1))[0])
                    self._at_least(sends, [handed[device, d] for d in others])
                    variables += [sends, *(int(handed[d, device]) for d in others)]
                    sizes += [term.n_bytes] * n
            self.boundaries[device] = np.array(variables, dtype=np.int64), np.array(sizes)
        return self.boundaries[device]

    def _at_least(self, variable: int, others: Sequence[int]) -> None:
        # Nothing gains from a larger variable, so it can be the maximum of the others, which are
        # 0 or 1 in a solution. It need not be a whole number itself: HiGHS never branches on it.
        pairs = np.array([[variable, other] for other in others])
        self._add(pairs, np.tile([1.0, -1.0], (len(others), 1)), 0.0, np.inf)

    def minimise(self, objective: str) -> None:
        """Set the costs; the constant is left out."""
        device, variable, ns = (np.concatenate(parts) for parts in zip(*self.work, strict=True))
        self.scale = max(1.0, float(ns.sum()) / 1000.0 / _MOST_US)
        us = ns / (1000.0 * self.scale)
        if objective == THROUGHPUT:
            self._minimise_most(device, variable, us)
        else:
            self.costs = np.bincount(variable, weights=us, minlength=self.n_variables)

    def minimise_fullest(self) -> None:
        """Set as the cost the weights and states of the device that holds most, as a share."""
        whole = max(1, int(self.pairwise.held_bytes.max(axis=1).sum()))
        holdings = [self._memory_of(device) for device in range(self.pairwise.n_devices)]
        device = np.repeat(np.arange(len(holdings)), [len(variables) for variables, _ in holdings])
        variable, size = (np.concatenate(parts) for parts in zip(*holdings, strict=True))
        self._minimise_most(device, variable, size / whole)

    def _minimise_most(self, device: np.ndarray, variable: np.ndarray, load: np.ndarray) -> None:
        """Minimise the largest sum of loads of a device: a variable that bounds each sum."""
        n = self.pairwise.n_devices
        most = int(self._variables(np.array([np.inf]))[0])
        self.rows.append((device + self.n_rows, variable, load))
        last = np.arange(self.n_rows, self.n_rows + n)
        self.rows.append((last, np.full(n, most), np.full(n, -1.0)))
        self.low.append(np.full(n, -np.inf))
        self.high.append(np.zeros(n))
        self.n_rows += n
        self.costs = np.zeros(self.n_variables)
        self.costs[most] = 1.0

    def choice(self, values: np.ndarray) -> np.ndarray:
        """Return the device of each unit that the values of the variables mean."""
        share = values[: self.on.size].reshape(self.on.shape)
        return np.where(self.pairwise.allowed, share, -1.0).argmax(axis=1)

    def solve(self, deadline: float, gap: float = 0.0) -> Any:
        """Run HiGHS until the relative gap is proven, or the deadline (``clock.now()``)."""
        # Slow to import, and whoever simplifies a placement needs the network alone.
        from scipy.optimize import Bounds, LinearConstraint, milp as solve

        row, column, factor = (np.concatenate(p) for p in zip(*self.rows, strict=True))
        at = row.astype(np.int32), column.astype(np.int32)
        matrix = csr_array((factor, at), shape=(self.n_rows, self.n_variables))
        whole = np.zeros(self.n_variables)
        whole[self.on.ravel()] = 1
        low, high, upper = (np.concatenate(p) for p in (self.low, self.high, self.upper))
        limits: Any = (LinearConstraint, Bounds)  # SciPy's stubs know single numbers only
        options = {
            "time_limit": max(_LEAST_S, deadline - now()),
            "mip_rel_gap": gap,
            # The layers of a model are alike, and to find that takes HiGHS minutes without a look
            # at its time limit.
            "mip_detect_symmetry": False,
        }
        with warnings.catch_warnings():
            # SciPy warns of options that it does not know, and passes them on to HiGHS.
            warnings.filterwarnings("ignore", "Unrecognized options", RuntimeWarning)
            return interruptible(
                solve,
                self.costs,
                integrality=whole,
                constraints=limits[0](matrix, low, high),
                bounds=limits[1](0.0, upper),
                options=options,
            )
