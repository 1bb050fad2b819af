"""The best placement of a model, computed from its cost model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, overload

from hetero_lab.arguments import EXECUTORS, HETERO, PARALLEL
from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.objective import LATENCY
from hetero_lab.errors import ArgumentError
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.memory_limits import MemoryLimit
from hetero_lab.planning.planner import Plan, plan_graph
from hetero_lab.planning.schedules import SchedulePlan, plan_schedule
from hetero_lab.progress import Progress


@overload
def plan(
    model: Source,
    costs: CostModel,
    *,
    objective: str = ...,
    memory_limit: MemoryLimit | None = ...,
    pin: Mapping[str, str] | None = ...,
    budget_s: float = ...,
    executor: Literal["hetero"] = ...,
    solver: str | None = ...,
    progress: bool = ...,
) -> Plan: ...


@overload
def plan(
    model: Source,
    costs: CostModel,
    *,
    budget_s: float = ...,
    executor: Literal["parallel"],
    progress: bool = ...,
) -> SchedulePlan: ...


def plan(
    model: Source,
    costs: CostModel,
    *,
    objective: str = LATENCY,
    memory_limit: MemoryLimit | None = None,
    pin: Mapping[str, str] | None = None,
    budget_s: float = 60.0,
    executor: str = HETERO,
    solver: str | None = None,
    progress: bool = True,
) -> Plan | SchedulePlan:
    """Compute the best placement of a model for its cost model.

    With up to 12 units that are free to move, the best placement is found and proven. Beyond,
    the part of the cost that depends on pairs of ops is minimised exactly: for two devices by a
    minimum cut (Stone 1977), for more or with limits by an integer program. The result is then
    repaired on the whole prediction.

    For the parallel executor, whose subgraphs run side by side, a local search improves the best
    of the greedy choice, the single devices and the plan for latency. It simulates every move. A
    split that is not surely faster than the best device is not proposed.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    costs
        The result of :func:`hetero_lab.calibrate` for this model.
    objective
        ``"latency"`` of one request; ``"throughput"``: the least time of the busiest device
        when requests pipeline; or ``"balanced_memory"``: the least latency among placements that
        spread weights and states evenly, for instance over ``GPU.0`` and ``GPU.1``: the fullest
        device has at most 5 % more than in the most even placement.
    memory_limit
        Bytes by device, ``{"GPU.0": "2GiB"}``, or by several that share a memory,
        ``{("GPU.0", "CPU"): "6GiB"}``. Counted are weights as they are stored, once for each
        subgraph that uses them, states, and tensors between subgraphs, where they are made and
        where they are received. Other allocations of a plugin and dynamic shapes are not.
    pin
        Device by pattern (``re.search`` in an op's name).
    budget_s
        Time limit. The plan then has the bound proven so far.
    executor
        ``"hetero"``, or ``"parallel"`` for :class:`hetero_lab.ParallelExecutor`: its plan is for
        the latency of one request and takes no limits and pins.
    solver
        ``"milp"`` uses the integer program, whatever the size. Only its choice is repaired.
    progress
        Show how long it takes, if it takes more than two seconds.

    Returns
    -------
    Plan or SchedulePlan
        ``.affinity``, ``.predicted_us``, ``.regret`` of the greedy choice and of each single
        device; of a Plan ``.lower_bound_us`` and ``.gap``, of a SchedulePlan ``.schedule``.
        After Ctrl-C, :func:`hetero_lab.last_interrupted` returns the best plan found so far.

    Raises
    ------
    ArgumentError
        ``costs`` is not a cost model, there is no such executor, or an argument belongs to the
        other executor.
    PlanError
        The cost model is of another model or knows one device only, there is no such solver or
        it returns no valid choice, an op is supported nowhere, pins contradict each other,
        nothing fits the memory limit, or time runs out before anything is found.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> costs = hl.calibrate(model, ["ACC", "CPU"], budget_s=15, progress=False)
    >>> best = hl.plan(model, costs, pin={"^head_": "CPU"}, budget_s=5)
    >>> best.affinity["head_digit/matmul"]
    'CPU'
    >>> best.lower_bound_us <= best.predicted_us
    True
    """
    if executor not in EXECUTORS:
        raise ArgumentError(f"executor= is {HETERO!r} or {PARALLEL!r}, not {executor!r}.")
    graph = prepare(model).graph
    limited = objective != LATENCY or memory_limit or pin or solver
    if executor == PARALLEL and limited:
        raise ArgumentError(
            "A plan for the parallel executor is for the latency of one request; leave "
            "objective=, memory_limit=, pin= and solver= out, or plan with executor='hetero'."
        )
    with Progress("plan", show=progress):
        if executor == PARALLEL:
            return plan_schedule(graph, costs, budget_s=budget_s)
        return plan_graph(
            graph,
            costs,
            objective=objective,
            memory_limit=memory_limit,
            pin=pin,
            budget_s=budget_s,
            solver=solver,
            keep=True,
        )
