"""Local search: move units and whole subgraphs as long as the prediction gets better.

Planners minimise the pairwise part, which leaves out the cost of a subgraph and the cuts that
HETERO adds. The moves here are judged by the whole prediction. A move is worth predicting if its
exact pairwise difference, less the cost of the subgraphs that it may save, is a gain. Where no move
helps any more, kicks search further away.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from operator import itemgetter

import numpy as np

from hetero_lab.grouping import grouped
from hetero_lab.planning.constraints import Placed, Problem
from hetero_lab.planning.objective import LATENCY

_PATIENCE = 1500  # moves to try without a pairwise gain: one may save a cut of HETERO's
_MOST_KICKS = 40
_KICK_WORK = 1_000_000  # kicks × units × nodes; counted, not timed, so that plans repeat


def repair(problem: Problem, start: Placed, patience: int = _PATIENCE) -> Placed:
    """Climb from a placement within limits to one that no single move improves.

    ``patience`` is the number of moves without a pairwise gain to try.
    """
    best = start
    while True:
        better = None
        for used, units, device in _moves(problem, best):
            moved = _moved(problem, best, units, device)
            if moved.value_ns < best.value_ns and not problem.excess_bytes(moved):
                better = moved
            patience -= used
            if better is not None or (used and patience <= 0) or problem.is_late:
                break
        if better is None:
            return best
        best = better


def kick(problem: Problem, start: Placed) -> Placed:
    """Move random patches and repair: iterated local search (Lourenço, Martin, Stützle 2003)."""
    pairwise = problem.pairwise
    n_units = len(pairwise.units)
    kicks = min(_MOST_KICKS, _KICK_WORK // (n_units * len(pairwise.objective.graph)))
    rng = random.Random(0)
    best = start
    for _ in range(kicks):
        if problem.is_late:
            break
        device, size = rng.randrange(pairwise.n_devices), rng.randint(2, max(3, n_units // 4))
        patch = pairwise.around(rng.randrange(n_units), size)
        able = [unit for unit in patch if pairwise.allowed[unit, device]]
        moved = repair(problem, _moved(problem, best, able, device), patience=0)
        if moved.value_ns < best.value_ns and not problem.excess_bytes(moved):
            best = moved
    return best


def squeeze(problem: Problem, start: Placed) -> Placed | None:
    """Move units and pairs of them until limits are kept; None if no move helps or time is over."""

    def excess(placed: Placed) -> int:
        return sum(problem.excess_bytes(placed).values())

    pairwise = problem.pairwise
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
        if since > len(moves) or problem.is_late:
            return None
        if (best.choice[units] != device).any():
            moved = _moved(problem, best, units, device)
            if excess(moved) < left:
                best, left, since = moved, excess(moved), 0
    return best if left == 0 else None


def _moved(problem: Problem, placed: Placed, units: list[int], device: int) -> Placed:
    choice = placed.choice.copy()
    choice[units] = device
    return problem.place(choice)


def _moves(problem: Problem, placed: Placed) -> Iterator[tuple[int, list[int], int]]:
    """Yield (patience used up, units, device): promising moves, then all small ones, by gain."""
    for used, kind in enumerate((_promising, _all_small)):
        for _, units, device in sorted(kind(problem, placed), key=itemgetter(0)):
            yield used, units, device


def _promising(problem: Problem, placed: Placed) -> Iterator[tuple[int, list[int], int]]:
    """Yield (optimistic difference, units, device) of promising moves to a neighbour's device."""
    pairwise, choice = problem.pairwise, placed.choice
    objective = pairwise.objective
    subgraph_ns, n = objective.subgraph_ns, placed.cost.n_subgraphs
    spread_ns = objective.spread_ns(np.arange(n + 1))
    home = placed.cost.ids[pairwise.first_node].tolist()
    members = grouped((subgraph, unit) for unit, subgraph in enumerate(home))
    groups = list(members.values())
    groups += [[unit] for units in members.values() if len(units) > 1 for unit in units]
    for units in groups:
        own = int(choice[units[0]])
        near = {n for unit in units for n in pairwise.neighbours[unit]} - set(units)
        whole = len(units) == len(members[home[units[0]]])
        for device in {int(choice[n]) for n in near} - {own}:
            if not pairwise.allowed[units, device].all():
                continue
            # At best it joins all its neighbours on that device into one subgraph, and the rest
            # of its old subgraph, if that was cut apart, is joined elsewhere.
            joined = len({home[n] for n in near if choice[n] == device})
            saved = (joined - 1) * int(subgraph_ns[device]) + whole * int(subgraph_ns[own])
            saved += int(spread_ns[n] - spread_ns[max(1, n - joined + 1 - whole)])
            latency = problem.objective == LATENCY
            change = (pairwise.change_ns(choice, units, device) if latency else -1) - saved
            if change < 0 or joined > 1:
                yield change, units, device


def _all_small(problem: Problem, placed: Placed) -> Iterator[tuple[int, list[int], int]]:
    """Yield every move of a unit, and of two neighbours together, that could be a gain.

    Each is (pairwise difference, units, device). A move that makes the pairwise part worse by more
    than the whole extra part cannot be one.
    """
    pairwise, choice = problem.pairwise, placed.choice
    extra = placed.value_ns - pairwise.value_ns(choice)
    extra -= int(pairwise.objective.subgraph_ns.min())
    near = pairwise.neighbours
    groups = [[unit] for unit in range(len(near))]
    groups += [[a, b] for a, others in enumerate(near) for b in others if a < b]
    for units in groups:
        for device in range(pairwise.n_devices):
            if pairwise.allowed[units, device].all() and (choice[units] != device).any():
                change = pairwise.change_ns(choice, units, device)
                if change < extra or problem.objective != LATENCY:
                    yield change, units, device
