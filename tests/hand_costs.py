"""Cost models by hand: what is not said takes as long as any other op of a device."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from hetero_lab.costs.cost_model import BoundaryCost, CostModel, Unit
from hetero_lab.model.opgraph import Op, OpGraph

Time = float | tuple[float | None, ...]


def flat_costs(
    graph: OpGraph,
    times: Mapping[str, Time] | None = None,
    *,
    op_us: Time = (1.0, 3.0),
    devices: tuple[str, str] = ("ACC", "CPU"),
    lacks: Collection[str] = (),
    boundary_us: float = 5.0,
    subgraph_us: float = 2.0,
    **more: Any,
) -> CostModel:
    """Return costs of two devices with a unit for each op, which takes ``op_us`` if not in `times`.

    A single number is the time on both. Ops of the types that the first device lacks run on the
    second one only.
    """

    def unit(op: Op) -> Unit:
        us = (times or {}).get(op.name, op_us)
        first, second = us if isinstance(us, tuple) else (us, us)
        return Unit((op.name,), (None if op.type in lacks else first, second))

    return CostModel(
        graph=graph,
        devices=devices,
        units=tuple(unit(graph.ops[index]) for index in graph.placeable),
        boundaries=dict.fromkeys([devices, devices[::-1]], BoundaryCost(boundary_us)),
        subgraph_us=dict.fromkeys(devices, subgraph_us),
        **more,
    )


costs_by_op = partial(flat_costs, devices=("A", "B"), boundary_us=0.0, subgraph_us=0.0)
