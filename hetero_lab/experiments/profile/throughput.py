"""Throughput: the time between results with several requests in flight, executors side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.properties import check_properties
from hetero_lab.errors import PropertyError
from hetero_lab.model.read import PreparedModel
from hetero_lab.placement.placement import Placement, compile_properties
from hetero_lab.runtime.runners import HETERO, PARALLEL, Execution, Runner, open_runner
from hetero_lab.runtime.timing import Stopwatch, run_turn, warm_up
from hetero_lab.statistics import Latency

if TYPE_CHECKING:
    import openvino as ov

_EXCLUSIVE = "EXCLUSIVE_ASYNC_REQUESTS"
_WARM_UP_S = 0.3
ROUNDS = 10


@dataclass(frozen=True)
class Throughput:
    """What one executor did with several requests in flight, and with one at a time.

    Attributes
    ----------
    exclusive
        Whether ``EXCLUSIVE_ASYNC_REQUESTS`` held on every device; ``None`` where no device
        knows it.
    between
        Times from one result to the next, a turn each round.
    latency
        One request at a time, in the same rounds.
    """

    executor: str
    n_requests: int
    exclusive: bool | None
    between: Latency
    latency: Latency


def measure_throughput(
    runner: Runner,
    prepared: PreparedModel,
    arrays: list[np.ndarray],
    execution: Execution,
    *,
    rounds: int,
    budget_s: float | None,
    core: ov.Core,
) -> tuple[Throughput, ...]:
    """Measure HETERO with and without exclusive requests, and ``runner`` if it is not HETERO.

    In each round each has a turn of one request at a time and one with the requests in flight,
    so that a drift of the machine hits all alike; ``runner`` is the last in a round. All are
    compiled in this process; a sweep over executors measures each in a process of its own.

    Parameters
    ----------
    runner
        What is profiled, already warm.
    execution
        How it is run.
    rounds
        Turns of each; fewer when ``budget_s`` is over, but one at least.
    """
    placement = runner.placement
    own = execution.executor == PARALLEL
    measured: list[tuple[str, bool | None, Runner, list[Any], list[Any]]] = []
    with contextlib.ExitStack() as stack:
        for exclusive, changed in _with_exclusive(placement, core):
            as_hetero = Execution(HETERO, execution.requests)
            other = open_runner(prepared, changed, arrays, as_hetero, core=core)
            stack.callback(other.close)
            warm_up(other.infer, at_most_s=_WARM_UP_S)
            measured.append((HETERO, exclusive, other, [], []))
        if own:
            measured.append((PARALLEL, _is_exclusive(placement, core), runner, [], []))
        watch = Stopwatch.start(budget_s)
        for _ in range(rounds):
            for _, _, one, latency, between in measured:
                latency.append(run_turn(one.infer))
                between.append(one.queue_turn())
            if watch.is_over:
                break
    return tuple(
        Throughput(name, execution.requests, exclusive, Latency(tuple(b)), Latency(tuple(a)))
        for name, exclusive, _, a, b in measured
    )


def _with_exclusive(placement: Placement, core: ov.Core) -> Sequence[tuple[bool | None, Placement]]:
    """Return the placement with exclusive requests and without, where some device knows them."""
    able = [d for d in placement.devices if _knows(d, core)]
    if not able:
        return [(None, placement)]
    found = []
    for value in (True, False):
        properties = {d: dict(p) for d, p in placement.device_properties.items()}
        for device in able:
            properties.setdefault(device, {})[_EXCLUSIVE] = value
        found.append((value, replace(placement, device_properties=properties)))
    return found


def _knows(device: str, core: ov.Core) -> bool:
    try:
        check_properties(device, {_EXCLUSIVE: False}, core=core)
    except PropertyError:
        return False
    return True


def _is_exclusive(placement: Placement, core: ov.Core) -> bool:
    values = [p.get(_EXCLUSIVE, False) for p in compile_properties(placement, core).values()]
    return all(str(value).upper() in ("TRUE", "YES", "ON") for value in values)
