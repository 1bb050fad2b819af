"""Local repair: move units and whole subgraphs as long as the prediction gets better.

Planners minimise the pairwise part. It does not see a subgraph's own cost and the cuts that
HETERO adds; these are repaired here on the real prediction. A move is worth predicting if its
exact pairwise difference, less the subgraphs that it may save, is a gain. Where no move helps
any more, kicks look further away.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetero_lab.clock import now
from hetero_lab.planning.constraints import fits
from hetero_lab.planning.memory import Pools, excess_bytes
from hetero_lab.planning.objective import LATENCY, PlacementCost
from hetero_lab.planning.pairwise import PairTerm, Pairwise, TensorTerm

# Moves without a pairwise gain that are tried all the same: one may spare a cut of HETERO's.
_PATIENCE = 1500
_MOST_KICKS = 40
_KICK_WORK = 1_000_000  # kicks × units × nodes; counted, not timed, so that plans repeat


@dataclass(frozen=True, eq=False)
class Placed:
    """A device for each unit, its evaluation and its predicted value."""

    choice: np.ndarray
    evaluation: PlacementCost
    value_ns: int


def place(pairwise: Pairwise, choice: np.ndarray, objective: str) -> Placed:
    """Predict a choice."""
    evaluation = pairwise.objective.evaluate(pairwise.devices(choice))
    return Placed(choice, evaluation, evaluation.value_ns(objective))


def repair(
    pairwise: Pairwise,
    start: Placed,
    objective: str,
    pools: Pools,
    deadline: float,
    patience: int = _PATIENCE,
) -> Placed:
    """Climb from a placement to one that no single move improves.

    Parameters
    ----------
    pairwise, objective
        The problem.
    start
        Where to begin; it keeps to the limits.
    pools
        Memory limits.
    deadline
        When to stop, as ``clock.now()`` tells it.
    patience
        How many moves to try that have no pairwise gain.
    """
    moves = _Moves(pairwise, objective)
    best = start
    while True:
        for units, device in moves.promising(best):
            better = _try(pairwise, best, units, device, objective, pools)
            if better is not None or now() > deadline:
                break
        else:
            for units, device in moves.all_small(best):
                better = _try(pairwise, best, units, device, objective, pools)
                patience -= 1
                if better is not None or patience <= 0 or now() > deadline:
                    break
            else:
                return best
        if better is None:
            return best
        best = better


def kick(
    pairwise: Pairwise,
    start: Placed,
    objective: str,
    pools: Pools,
    deadline: float,
) -> Placed:
    """Move patches of neighbours at random and repair, keeping improvements.

    Iterated local search (Lourenço, Martin and Stützle 2003). Arguments as in :func:`repair`.
    """
    n_units, n_devices = len(pairwise.units), pairwise.n_devices
    kicks = min(_MOST_KICKS, _KICK_WORK // (n_units * len(pairwise.objective.graph)))
    rng = random.Random(0)
    best = start
    for _ in range(kicks):
        if now() > deadline:
            break
        device, size = rng.randrange(n_devices), rng.randint(2, max(3, n_units // 4))
        patch = pairwise.around(rng.randrange(n_units), size)
        choice = best.choice.copy()
        choice[[unit for unit in patch if pairwise.allowed[unit, device]]] = device
        moved = place(pairwise, choice, objective)
        moved = repair(pairwise, moved, objective, pools, deadline, patience=0)
        if moved.value_ns < best.value_ns and fits(
            pairwise.objective, pairwise.devices(moved.choice), moved.evaluation, pools
        ):
            best = moved
    return best


def squeeze(
    pairwise: Pairwise,
    start: Placed,
    objective: str,
    pools: Pools,
    deadline: float,
) -> Placed | None:
    """Move units and pairs of units until a placement keeps to the limits.

    Returns
    -------
    Placed or None
        None if no move makes the excess smaller, or the deadline is over.
    """

    def excess(placed: Placed) -> int:
        devices = pairwise.devices(placed.choice)
        held = pairwise.objective.memory_bytes(devices, placed.evaluation)
        return sum(excess_bytes(held, pools).values())

    groups = [[unit] for unit in range(len(pairwise.units))]
    groups += [list(link) for link in pairwise.links]
    devices = range(pairwise.n_devices)
    moves = [(g, d) for g in groups for d in devices if pairwise.allowed[g, d].all()]
    best, left = start, excess(start)
    since = 0  # moves tried since the last that helped
    for units, device in itertools.cycle(moves):
        if left == 0:
            return best
        since += 1
        if since > len(moves) or now() > deadline:
            return None
        if (best.choice[units] != device).any():
            choice = best.choice.copy()
            choice[units] = device
            moved = place(pairwise, choice, objective)
            if excess(moved) < left:
                best, left, since = moved, excess(moved), 0
    return best if left == 0 else None


def _try(
    pairwise: Pairwise,
    placed: Placed,
    units: tuple[int, ...],
    device: int,
    objective: str,
    pools: Pools,
) -> Placed | None:
    """Return the placement after a move if it is better and keeps to the limits."""
    choice = placed.choice.copy()
    choice[list(units)] = device
    moved = place(pairwise, choice, objective)
    if moved.value_ns < placed.value_ns and fits(
        pairwise.objective, pairwise.devices(choice), moved.evaluation, pools
    ):
        return moved
    return None


class _Moves:
    """Moves of units and subgraphs to a neighbour's device, the most promising first."""

    def __init__(self, pairwise: Pairwise, objective: str):
        self.pairwise = pairwise
        self.objective = objective
        self.terms: list[list[TensorTerm | PairTerm]] = [[] for _ in pairwise.units]
        for tensor in pairwise.tensors:
            for unit in {tensor.source, *tensor.users}:
                self.terms[unit].append(tensor)
        for pair in pairwise.pairs:
            self.terms[pair.first].append(pair)
            self.terms[pair.second].append(pair)
        self.nodes = [
            [pairwise.objective.graph.index_of[op] for op in unit] for unit in pairwise.units
        ]

    def promising(self, placed: Placed) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield (units, device) whose optimistic difference is a gain, largest gain first."""
        found: list[tuple[int, tuple[int, ...], int]] = []
        choice, ids = placed.choice, placed.evaluation.ids
        subgraph_ns = self.pairwise.objective.subgraph_ns
        n = int(placed.evaluation.real.sum())
        spread_ns = self.pairwise.objective.spread_ns(np.arange(n + 1))
        home = [int(ids[nodes[0]]) for nodes in self.nodes]
        members: dict[int, list[int]] = {}
        for unit, subgraph in enumerate(home):
            members.setdefault(subgraph, []).append(unit)
        groups = list(members.values())
        groups += [[unit] for units in members.values() if len(units) > 1 for unit in units]
        for units in groups:
            own = int(choice[units[0]])
            inside = set(units)
            near = {n for unit in units for n in self.pairwise.neighbours[unit]} - inside
            whole = len(units) == len(members[home[units[0]]])
            for device in {int(choice[n]) for n in near} - {own}:
                if not self.pairwise.allowed[units, device].all():
                    continue
                # At best it joins all its neighbours on that device into one subgraph, and
                # those on its own that were cut off from each other are joined elsewhere.
                joined = len({home[n] for n in near if choice[n] == device})
                saved = (joined - 1) * int(subgraph_ns[device]) + whole * int(subgraph_ns[own])
                saved += int(spread_ns[n] - spread_ns[max(1, n - joined + 1 - whole)])
                change = (
                    self._difference(choice, units, device) if (self.objective == LATENCY) else -1
                )
                if change - saved < 0 or joined > 1:
                    found.append((change - saved, tuple(units), device))
        found.sort(key=lambda move: move[0])
        for _, units, device in found:
            yield units, device

    def all_small(self, placed: Placed) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield every move of one unit, and of two neighbours together, that could be a gain.

        A move that makes the pairwise part worse by more than all that is not pairwise is none.
        """
        near = self.pairwise.neighbours
        pairs = [(a, b) for a, others in enumerate(near) for b in others if a < b]
        extra = placed.value_ns - self.pairwise.value_ns(placed.choice)
        extra -= int(self.pairwise.objective.subgraph_ns.min())
        found: list[tuple[int, tuple[int, ...], int]] = []
        for units in [*((unit,) for unit in range(len(near))), *pairs]:
            where = list(units)
            for device in range(self.pairwise.n_devices):
                allowed = self.pairwise.allowed[where, device].all()
                if allowed and (placed.choice[where] != device).any():
                    change = self._difference(placed.choice, where, device)
                    if change < extra or self.objective != LATENCY:
                        found.append((change, units, device))
        found.sort(key=lambda move: move[0])
        for _, units, device in found:
            yield units, device

    def _difference(self, choice: np.ndarray, units: list[int], device: int) -> int:
        """Return by how much the pairwise part changes, in ns."""
        moved = set(units)
        time_ns = self.pairwise.time_ns
        change = int(time_ns[units, device].sum() - time_ns[units, choice[units]].sum())

        def after(unit: int) -> int:
            return device if unit in moved else int(choice[unit])

        terms = {id(term): term for unit in units for term in self.terms[unit]}
        for term in terms.values():
            if isinstance(term, PairTerm):
                a, b = int(choice[term.first]), int(choice[term.second])
                if a != b:
                    change -= int(term.first_ns[a] + term.second_ns[b])
                a, b = after(term.first), after(term.second)
                if a != b:
                    change += int(term.first_ns[a] + term.second_ns[b])
            else:
                source = int(choice[term.source])
                for target in {int(choice[user]) for user in term.users} - {source}:
                    change -= int(term.leave_ns[source, target] + term.enter_ns[source, target])
                source = after(term.source)
                for target in {after(user) for user in term.users} - {source}:
                    change += int(term.leave_ns[source, target] + term.enter_ns[source, target])
        return change
