"""Cost terms: the cost of each part of a placement, and the checks of them.

The objective has two parts.

**Pairwise**: the constant; the time of each op on its device; each tensor that is handed to
another device, once per receiving device; lost fusion between two ops on different devices.
Each term depends on the devices of at most two ops (or of a tensor's maker and users), so that
planners can minimise the sum exactly.

**Extra**, never negative: the cost of each subgraph; the cost of memory spread over several of
them; a tensor that several subgraphs of one device receive, again for each after the first; a
layout that several tensors keep, again for each that is converted after the first; and for the
cuts that HETERO adds to break cycles, hand-over and lost fusion within a device.

Costs are counted in whole nanoseconds, so that two ways of adding them up agree exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetero_lab.errors import PlanError, names_at_hand, shorten

if TYPE_CHECKING:
    from hetero_lab.planning.cost_model import CostModel

_MOST_US = 2.0**53 / 1000  # a sum of ns in floats is exact up to here


@dataclass(frozen=True, slots=True)
class Unit:
    """Ops that planners place together, with their time on each device of the cost model.

    Parameters
    ----------
    ops
        Names, in topological order.
    time_us
        For each device: µs, or None where it does not support the ops.
    shares
        How the time divides among the ops when a placement tears the unit apart; they add up
        to 1. Equal shares if empty.
    """

    ops: tuple[str, ...]
    time_us: tuple[float | None, ...]
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LostFusion:
    """Extra cost of two ops, in µs, when they are not in one subgraph.

    ``first_us`` is added on the device of ``first``, ``second_us`` on that of ``second``; both
    have an entry for each device of the cost model.
    """

    first: str
    second: str
    first_us: tuple[float, ...]
    second_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BoundaryCost:
    """Cost of handing one tensor over: a fixed part and a part for each byte."""

    fixed_us: float = 0.0
    us_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Reorder:
    """Layout conversions of one tensor when it crosses, in µs for each device.

    ``leave_us`` is paid on the device that makes it, once for each device that receives it;
    ``enter_us`` on the one that receives it, once for each subgraph. Some ops choose a layout,
    where ``leave_us`` is above 0. Others pass on the layout of an input: ``keeps`` names the ops
    that they read, and ``leave_us`` is paid only where one of these has a chosen layout in the
    same subgraph. A tensor that entered a subgraph has the plain layout.
    """

    op: str
    port: int
    leave_us: tuple[float, ...]
    enter_us: tuple[float, ...]
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredBytes:
    """Measured memory of a device, which it takes as soon as it has one of some units.

    ``units`` are their numbers. ``weight_bytes`` are taken once the submodel has run;
    ``state_bytes`` are for the length of the context.
    """

    units: tuple[int, ...]
    weight_bytes: int
    state_bytes: int


def check_terms(costs: CostModel) -> None:
    """Raise PlanError where parts of a cost model contradict each other or are not valid costs."""
    devices, n = costs.devices, len(costs.devices)
    if not devices or len(set(devices)) != n:
        raise PlanError(f"A cost model needs devices, each once: {names_at_hand(devices)}.")
    _check_units(costs)
    for pair in costs.boundaries:
        costs.check_devices(pair)
    for source, target in itertools.permutations(devices, 2):
        if (source, target) not in costs.boundaries:
            raise PlanError(f"The boundary cost from {source} to {target} is missing.")
    missing = [device for device in devices if device not in costs.subgraph_us]
    if missing:
        raise PlanError(f"The subgraph cost of {names_at_hand(missing)} is missing.")
    check_costs([costs.subgraph_us[d] for d in devices], "The cost of a subgraph")
    check_costs([costs.constant_us], "The constant")
    check_costs([costs.spread_us], "The cost of spread memory")
    for cost in costs.boundaries.values():
        check_costs([cost.fixed_us, cost.us_per_byte], "A boundary cost")
    graph = costs.graph
    placeable = {graph.ops[index].name for index in graph.placeable}
    for term in costs.lost_fusion:
        where = f"The lost fusion of {shorten(term.first)} and {shorten(term.second)}"
        _check_names([term.first, term.second], placeable, where)
        _check_columns([term.first_us, term.second_us], n, where)
    for term in costs.reorders:
        where = f"The reorder of {shorten(term.op)}:{term.port}"
        _check_names([term.op], graph.index_of, where)
        if not 0 <= term.port < len(graph.ops[graph.index_of[term.op]].outputs):
            raise PlanError(f"{where}: the op has no such output.")
        _check_columns([term.leave_us, term.enter_us], n, where)
    costs.check_devices(costs.measured_memory)
    for device, parts in costs.measured_memory.items():
        for part in parts:
            check_costs([part.weight_bytes, part.state_bytes], f"The memory measured on {device}")
            if not part.units or not set(part.units) <= set(range(len(costs.units))):
                raise PlanError(
                    f"The memory measured on {device} names units that the model does not have."
                )
    _check_layouts(costs)
    _check_sum(costs)


def _check_units(costs: CostModel) -> None:
    """Raise PlanError unless the units are a partition of the placeable ops, with valid times."""
    devices, graph = costs.devices, costs.graph
    placeable = {graph.ops[index].name for index in graph.placeable}
    unit_of: dict[str, int] = {}
    for number, unit in enumerate(costs.units):
        where = f"Unit {number} ({names_at_hand(unit.ops, 3)})"
        if not unit.ops or len(unit.time_us) != len(devices):
            raise PlanError(f"{where} needs ops and one time for each of {', '.join(devices)}.")
        check_costs([t for t in unit.time_us if t is not None], where)
        if unit.shares and (
            len(unit.shares) != len(unit.ops) or not math.isclose(sum(unit.shares), 1.0)
        ):
            raise PlanError(f"{where} needs one share for each op; they must add up to 1.")
        check_costs(unit.shares, where)
        for op in unit.ops:
            if op not in placeable or op in unit_of:
                why = "is in two units" if op in unit_of else "is not an op that can be placed"
                raise PlanError(f"{shorten(op)} {why}; see {where}.")
            unit_of[op] = number
    left = sorted(placeable - unit_of.keys())
    if left:
        raise PlanError(f"{len(left)} ops are in no unit: {names_at_hand(left)}.")
    for path in graph.stateful_paths:
        names = [graph.ops[index].name for index in path]
        if len({unit_of[name] for name in names if name in unit_of}) > 1:
            raise PlanError(
                f"{names_at_hand(names)} belong to one stateful path and must be in one unit."
            )


def _check_layouts(costs: CostModel) -> None:
    """Raise PlanError unless layouts are kept from ops that are read, each with one output."""
    graph = costs.graph
    for term in costs.reorders:
        inputs = graph.ops[graph.index_of[term.op]].inputs
        read = [graph.ops[producer] for producer, _ in inputs]
        single = {op.name for op in read if len(op.outputs) == 1}
        for name in term.keeps:
            if name not in single:
                raise PlanError(
                    f"{shorten(term.op)} does not have the layout of {shorten(name)}: it does not "
                    "read that op, or that op has several outputs."
                )


def _check_sum(costs: CostModel) -> None:
    """Raise PlanError unless the costs of any placement can be added up exactly."""
    graph = costs.graph
    wires = [graph.ops[producer].outputs[port] for op in graph for producer, port in op.inputs]
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


def check_costs(values: Iterable[float], where: str) -> None:
    """Raise PlanError unless all values are finite numbers of at least 0."""
    for value in values:
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise PlanError(f"{where}: {value!r} is not a cost. Costs are finite and at least 0.")


def _check_names(names: Iterable[str], known: Container[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise PlanError(
                f"{where}: {shorten(name)} is not an op of the model that can be placed."
            )


def _check_columns(columns: Iterable[tuple[float, ...]], length: int, where: str) -> None:
    for column in columns:
        if len(column) != length:
            raise PlanError(f"{where} needs one cost for each of the {length} devices.")
        check_costs(column, where)
