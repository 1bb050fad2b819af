"""Cost models by hand: every op takes as long as any other on a device."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.planning.cost_model import BoundaryCost, CostModel, Unit


def flat_costs(
    graph: OpGraph,
    op_us: tuple[float, float] = (1.0, 3.0),
    *,
    devices: tuple[str, str] = ("ACC", "CPU"),
    lacks: Collection[str] = (),
    boundary_us: float = 5.0,
    subgraph_us: float = 2.0,
    **more: Any,
) -> CostModel:
    """Return costs of two devices; ops of the types that the first one lacks run on the second."""
    first, second = devices
    ops = [graph.ops[index] for index in graph.placeable]
    return CostModel(
        graph=graph,
        devices=devices,
        units=tuple(
            Unit((op.name,), (None if op.type in lacks else op_us[0], op_us[1])) for op in ops
        ),
        boundaries=dict.fromkeys([(first, second), (second, first)], BoundaryCost(boundary_us)),
        subgraph_us=dict.fromkeys(devices, subgraph_us),
        **more,
    )
