"""Local search: move units and whole subgraphs as long as the prediction gets better.

Planners minimise the pairwise part, which leaves out the cost of a subgraph and the cuts that
HETERO adds. The moves here are judged by the whole prediction. A move is worth predicting if its
exact pairwise difference, less the cost of the subgraphs that it may save, is a gain. Where no move
helps any more, kicks search further away.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

import numpy as np

from hetero_lab.costs.objective import LATENCY, PlacementCost
from hetero_lab.model.opgraph import grouped
from hetero_lab.planning.problem import Problem

_PATIENCE = 1500  # moves to try without a pairwise gain: one may save a cut of HETERO's
_MANY_UNITS = 1000  # above it, single moves would take minutes; below, they end at better plans
_MOST_KICKS = 40  # of a small problem; _KICK_WORK allows a large one fewer
_KICK_WORK = 1_000_000  # kicks × units × nodes; counted, not timed, so that plans repeat

Move = tuple[list[int], int]  # units, and the device they go to


def repair(
    problem: Problem, start: PlacementCost, patience: int = _PATIENCE
) -> Iterator[PlacementCost]:
    """Climb from a placement within limits to one that no single move improves; yield each step.

    ``patience`` is the number of moves without a pairwise gain to try.
    """
    best = start
    while True:
        better = None
        for effort, ranked, at in _moves(problem, best):
            better = _if_better(problem, best, best, ranked[at : at + 1])
            patience -= effort
            if better is not None:
                if len(problem.pairwise.units) > _MANY_UNITS:
                    better = _with_others(problem, best, better, ranked[at:])
                best = better
                break
            if (effort and patience <= 0) or problem.is_late:
                break
        if better is None:
            return
        yield best


def kick(problem: Problem, start: PlacementCost) -> Iterator[PlacementCost]:
    """Move random patches and repair: iterated local search (Lourenço, Martin, Stützle 2003).

    Yields each placement that is better than those before.
    """
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
        moved = _after_moves(problem, best, [(able, device)])
        *_, moved = moved, *repair(problem, moved, patience=0)
        if problem.value_ns(moved) < problem.value_ns(best) and not problem.excess_bytes(moved):
            yield (best := moved)


def squeeze(problem: Problem, start: PlacementCost) -> PlacementCost | None:
    """Move units and pairs of them until limits are kept; None if no move helps or time is over."""

    def excess(placed: PlacementCost) -> int:
        return sum(problem.excess_bytes(placed).values())

    pairwise = problem.pairwise
    groups = [[unit] for unit in range(len(pairwise.units))]
    groups += [list(link) for link in pairwise.links]
    devices = range(pairwise.n_devices)
    moves = [(g, d) for g in groups for d in devices if pairwise.allowed[g, d].all()]
    best, choice, over = start, problem.choice(start), excess(start)
    since = 0  # moves tried since the last that helped
    for units, device in itertools.cycle(moves):
        if over == 0:
            return best
        since += 1
        if since > len(moves) or problem.is_late:
            return None
        if (choice[units] != device).any():
            moved = _after_moves(problem, best, [(units, device)])
            if excess(moved) < over:
                best, choice, over, since = moved, problem.choice(moved), excess(moved), 0
    return best if over == 0 else None


def _after_moves(problem: Problem, placed: PlacementCost, moves: Iterable[Move]) -> PlacementCost:
    choice = problem.choice(placed)
    for units, device in moves:
        choice[units] = device
    return problem.place(choice)


def _if_better(
    problem: Problem, start: PlacementCost, best: PlacementCost, moves: Iterable[Move]
) -> PlacementCost | None:
    """Return the placement that moves make of ``start`` if it is valid and better than ``best``."""
    moved = _after_moves(problem, start, moves)
    is_better = problem.value_ns(moved) < problem.value_ns(best)
    return moved if is_better and not problem.excess_bytes(moved) else None


def _with_others(
    problem: Problem, start: PlacementCost, better: PlacementCost, ranked: Sequence[Move]
) -> PlacementCost:
    """Make other moves together with the first, twice as many as before while that is better.

    Moves of units that are no neighbours have gains that add up, so that a large graph needs few
    predictions.
    """
    near = problem.pairwise.neighbours
    touched: set[int] = set()
    apart: list[Move] = []
    for units, device in ranked:
        if touched.isdisjoint(units):
            touched.update(units, *(near[unit] for unit in units))
            apart.append((units, device))
    n = 1
    while n < len(apart) and not problem.is_late:
        n *= 2
        more = _if_better(problem, start, better, apart[:n])
        if more is None:
            break
        better = more
    return better


def _moves(problem: Problem, placed: PlacementCost) -> Iterator[tuple[int, list[Move], int]]:
    """Yield (patience used up, moves, position): promising moves, then all small ones, by gain."""
    for effort, kind in enumerate((_promising, _all_small)):
        ranked = sorted(kind(problem, placed), key=itemgetter(0))
        moves = [(units, device) for _, units, device in ranked]
        for at in range(len(moves)):
            yield effort, moves, at


def _promising(problem: Problem, placed: PlacementCost) -> Iterator[tuple[int, list[int], int]]:
    """Yield (optimistic difference, units, device) of promising moves to a neighbour's device."""
    pairwise, choice = problem.pairwise, problem.choice(placed)
    objective = pairwise.objective
    subgraph_ns, n = objective.subgraph_ns, placed.n_subgraphs
    spread_ns = objective.spread_ns(np.arange(n + 1))
    home = placed.ids[pairwise.first_node].tolist()
    members = grouped((subgraph, unit) for unit, subgraph in enumerate(home))
    groups = list(members.values())
    groups += [[unit] for units in members.values() if len(units) > 1 for unit in units]
    for units in groups:
        if problem.is_late:
            return
        old = int(choice[units[0]])
        near = {n for unit in units for n in pairwise.neighbours[unit]} - set(units)
        whole = len(units) == len(members[home[units[0]]])
        for device in {int(choice[n]) for n in near} - {old}:
            if not pairwise.allowed[units, device].all():
                continue
            # At best it joins all its neighbours on that device into one subgraph, and the rest
            # of its old subgraph, if that was cut apart, is joined elsewhere.
            joined = len({home[n] for n in near if choice[n] == device})
            saved = (joined - 1) * int(subgraph_ns[device]) + whole * int(subgraph_ns[old])
            saved += int(spread_ns[n] - spread_ns[max(1, n - joined + 1 - whole)])
            latency = problem.objective == LATENCY
            change = (pairwise.change_ns(choice, units, device) if latency else -1) - saved
            if change < 0 or joined > 1:
                yield change, units, device


def _all_small(problem: Problem, placed: PlacementCost) -> Iterator[tuple[int, list[int], int]]:
    """Yield every move of a unit, and of two neighbours together, that could be a gain.

    Each is (pairwise difference, units, device). A move that makes the pairwise part worse by more
    than the whole extra part cannot be one.
    """
    pairwise, choice = problem.pairwise, problem.choice(placed)
    extra = problem.value_ns(placed) - pairwise.value_ns(choice)
    extra -= int(pairwise.objective.subgraph_ns.min())
    near = pairwise.neighbours
    groups = [[unit] for unit in range(len(near))]
    groups += [[a, b] for a, others in enumerate(near) for b in others if a < b]
    for units in groups:
        if problem.is_late:
            return
        for device in range(pairwise.n_devices):
            if pairwise.allowed[units, device].all() and (choice[units] != device).any():
                change = pairwise.change_ns(choice, units, device)
                if change < extra or problem.objective != LATENCY:
                    yield change, units, device
