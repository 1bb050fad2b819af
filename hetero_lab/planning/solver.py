"""Solver: a function from the pairwise problem to a choice of devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hetero_lab.planning.memory import Pools
from hetero_lab.planning.pairwise import Pairwise


@dataclass(frozen=True)
class Choice:
    """A device for each unit, its cost, and a proven lower bound on the cost of any choice.

    ``value_ns`` is the pairwise part of the objective. A ``bound_ns`` of 0 proves nothing.
    """

    devices: tuple[int, ...]
    value_ns: int
    bound_ns: int


class Solver(Protocol):
    """Minimise the pairwise part of the latency, or of the busiest device's time.

    :func:`hetero_lab.planning.milp.milp` is one. Other packages bring theirs as entry points of
    ``hetero_lab.solvers``; ``hetero_lab.plan(solver=NAME)`` uses them.

    ``pairwise`` is the problem: ``time_ns`` and ``allowed``, of shape ``[units, devices]``, and the
    terms between units, ``tensors`` and ``pairs``; pins are in ``allowed``. ``objective`` is
    ``"latency"`` or ``"throughput"``: ``pairwise.values_ns(choices, objective)`` computes it for
    choices of shape ``[n, units]``. ``memory_limit`` are bytes by pool, the numbers of the devices
    that share a limit; ``pairwise.least_bytes`` counts those of each device. A solver stops after
    ``budget_s``. It returns None if time ran out before any choice was found, and raises PlanError
    if no choice keeps within the limits.
    """

    def __call__(
        self,
        pairwise: Pairwise,
        objective: str,
        /,
        *,
        memory_limit: Pools,
        budget_s: float,
    ) -> Choice | None: ...
