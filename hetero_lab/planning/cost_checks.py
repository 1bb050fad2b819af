"""What has to be true of a cost model: it covers the graph, and its costs can be counted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hetero_lab.errors import PlanError, names_at_hand, shorten
from hetero_lab.model.opgraph import Op, OpGraph, Tensor

if TYPE_CHECKING:
    from hetero_lab.planning.cost_model import CostModel

_MOST_US = 2.0**53 / 1000  # a sum of ns in floats is exact up to here


def check(costs: CostModel) -> None:
    """Raise PlanError where the parts of a cost model contradict each other or are no costs."""
    devices = costs.devices
    if not devices or len(set(devices)) != len(devices):
        raise PlanError(f"A cost model needs devices, each once: {names_at_hand(devices)}.")
    graph = costs.graph
    placeable = {graph.ops[index].name for index in graph.placeable}
    unit_of: dict[str, int] = {}
    for number, unit in enumerate(costs.units):
        where = f"Unit {number} ({names_at_hand(unit.ops, 3)})"
        if not unit.ops or len(unit.time_us) != len(devices):
            raise PlanError(f"{where} needs ops and one time for each of {', '.join(devices)}.")
        _check_costs([t for t in unit.time_us if t is not None], where)
        if unit.shares and (
            len(unit.shares) != len(unit.ops) or not math.isclose(sum(unit.shares), 1.0)
        ):
            raise PlanError(f"{where} needs one share for each op; they must add up to 1.")
        _check_costs(unit.shares, where)
        for op in unit.ops:
            if op not in placeable or op in unit_of:
                why = "is in two units" if op in unit_of else "is no op that can be placed"
                raise PlanError(f"{shorten(op)} {why}; see {where}.")
            unit_of[op] = number
    left = [name for name in placeable if name not in unit_of]
    if left:
        raise PlanError(f"{len(left)} ops are in no unit: {names_at_hand(sorted(left))}.")
    for path in graph.stateful_paths:
        names = [graph.ops[index].name for index in path]
        if len({unit_of[name] for name in names if name in unit_of}) > 1:
            raise PlanError(
                f"{names_at_hand(names)} belong to one stateful path and must be in one unit."
            )
    for pair in costs.boundaries:
        costs.check_devices(pair)
    for source in devices:
        for target in devices:
            if source != target and (source, target) not in costs.boundaries:
                raise PlanError(f"The boundary cost from {source} to {target} is missing.")
    missing = [device for device in devices if device not in costs.subgraph_us]
    if missing:
        raise PlanError(f"The subgraph cost of {names_at_hand(missing)} is missing.")
    _check_costs([costs.subgraph_us[d] for d in devices], "The cost of a subgraph")
    _check_costs([costs.constant_us], "The constant")
    _check_costs([costs.spread_us], "The cost of spread memory")
    for cost in costs.boundaries.values():
        _check_costs([cost.fixed_us, cost.us_per_byte], "A boundary cost")
    for term in costs.lost_fusion:
        where = f"The lost fusion of {shorten(term.first)} and {shorten(term.second)}"
        _check_names([term.first, term.second], placeable, where)
        _check_lengths([term.first_us, term.second_us], len(devices), where)
        _check_costs([*term.first_us, *term.second_us], where)
    for term in costs.reorders:
        where = f"The reorder of {shorten(term.op)}:{term.port}"
        _check_names([term.op], set(graph.index_of), where)
        if not 0 <= term.port < len(graph.ops[graph.index_of[term.op]].outputs):
            raise PlanError(f"{where}: the op has no such output.")
        _check_lengths([term.leave_us, term.enter_us], len(devices), where)
        _check_costs([*term.leave_us, *term.enter_us], where)
    _check_layouts(costs)
    for row in costs.validation_rows:
        where = f"The validation placement {shorten(row.label)}"
        _check_costs([row.predicted_us, row.measured_us], where)
        if row.measured_us == 0:
            raise PlanError(f"{where} was measured to take no time.")
    _check_sum(costs)


def _check_layouts(costs: CostModel) -> None:
    """Raise PlanError unless every layout comes from an op over ops that keep it."""
    layout_of = {term.op: term.layout_of for term in costs.reorders if term.layout_of}
    for name, root in layout_of.items():
        op = costs.graph.ops[costs.graph.index_of[name]]
        read = [costs.graph.ops[producer] for producer, _ in op.inputs]
        if not any(
            root in (above.name, layout_of.get(above.name)) and len(above.outputs) == 1
            for above in read
        ):
            raise PlanError(
                f"{shorten(name)} does not have the layout of {shorten(root)}: it reads neither "
                "that op nor one that keeps its layout, each with one output."
            )


def _check_sum(costs: CostModel) -> None:
    """Raise PlanError unless the costs of any placement can be added up exactly."""
    graph = costs.graph
    wires = [tensor for op in graph for tensor in _read_by(graph, op)]
    fixed = max((c.fixed_us for c in costs.boundaries.values()), default=0.0)
    per_byte = max((c.us_per_byte for c in costs.boundaries.values()), default=0.0)
    most_us = [
        costs.constant_us,
        costs.spread_us,
        len(graph) * max(costs.subgraph_us[device] for device in costs.devices),
        len(wires) * fixed + sum(tensor.n_bytes or 0 for tensor in wires) * per_byte,
        *(max((t for t in unit.time_us if t is not None), default=0.0) for unit in costs.units),
        *(max(t.first_us) + max(t.second_us) for t in costs.lost_fusion),
        *(
            (max(t.leave_us) + max(t.enter_us)) * len(graph.consumers[graph.index_of[t.op]])
            for t in costs.reorders
        ),
    ]
    total = sum(most_us)
    if total > _MOST_US:
        raise PlanError(
            f"The costs add up to {total:.2g} µs, too much to be counted in whole ns. Costs are "
            f"in µs; all of them together have to stay below {_MOST_US:.0e}."
        )


def _read_by(graph: OpGraph, op: Op) -> list[Tensor]:
    return [graph.ops[producer].outputs[port] for producer, port in op.inputs]


def _check_costs(values: Iterable[float], where: str) -> None:
    for value in values:
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise PlanError(f"{where}: {value!r} is not a cost. Costs are finite and at least 0.")


def _check_names(names: Iterable[str], known: set[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise PlanError(f"{where}: {shorten(name)} is no op of the model that can be placed.")


def _check_lengths(columns: Iterable[tuple[float, ...]], length: int, where: str) -> None:
    if any(len(column) != length for column in columns):
        raise PlanError(f"{where} needs one cost for each of the {length} devices.")
