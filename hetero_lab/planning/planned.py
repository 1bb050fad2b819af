"""The best placement of a model, computed from its cost model."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_lab.errors import ArgumentError
from hetero_lab.model.read import Source, prepare
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.objective import LATENCY
from hetero_lab.planning.planner import Plan, plan_graph


def plan(
    model: Source,
    costs: CostModel,
    *,
    objective: str = LATENCY,
    memory_limit: Mapping[str, int | str] | None = None,
    pin: Mapping[str, str] | None = None,
    time_limit_s: float = 60.0,
) -> Plan:
    """Compute the best placement of a model for its cost model.

    With up to 12 units that are free to move, the best placement is found and proven. Beyond,
    the part of the cost that depends on pairs of ops is minimised exactly, for two devices by a
    minimum cut (Stone 1977), for more or with limits by an integer program, and the result is
    repaired on the whole prediction.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    costs
        What :func:`hetero_lab.calibrate` returned for this model.
    objective
        ``"latency"`` of one request, or ``"throughput"``: the least time of the busiest device
        when requests pipeline.
    memory_limit
        Bytes by device, ``{"GPU": "2GiB"}``, for weights and boundary tensors.
    pin
        Device by pattern (``re.search`` in an op's name).
    time_limit_s
        About when to stop; the plan then says what is proven.

    Returns
    -------
    Plan
        ``.affinity``, ``.predicted_us``, ``.lower_bound_us``, ``.gap``, ``.regret`` of the greedy
        choice and of each single device.

    Raises
    ------
    ArgumentError
        ``costs`` is no cost model.
    PlanError
        The cost model is of another model or knows one device only, an op is supported
        nowhere, pins contradict each other, nothing fits the memory limit, or time runs out
        before anything is found.
    """
    if not isinstance(costs, CostModel):
        raise ArgumentError(
            "costs= is what hetero_lab.calibrate(model, devices) returns, not "
            f"{type(costs).__name__}."
        )
    return plan_graph(
        prepare(model).graph,
        costs,
        objective=objective,
        memory_limit=memory_limit,
        pin=pin,
        time_limit_s=time_limit_s,
    )
