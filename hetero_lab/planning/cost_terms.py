"""Cost terms: the cost of each part of a placement.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hetero_lab.model.opgraph import OpGraph


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


class Terms(Protocol):
    """What an objective adds up; a cost model has it."""

    @property
    def graph(self) -> OpGraph: ...
    @property
    def devices(self) -> tuple[str, ...]: ...
    @property
    def units(self) -> tuple[Unit, ...]: ...
    @property
    def boundaries(self) -> Mapping[tuple[str, str], BoundaryCost]: ...
    @property
    def subgraph_us(self) -> Mapping[str, float]: ...
    @property
    def constant_us(self) -> float: ...
    @property
    def lost_fusion(self) -> tuple[LostFusion, ...]: ...
    @property
    def reorders(self) -> tuple[Reorder, ...]: ...
    @property
    def spread_us(self) -> float: ...
    @property
    def measured_memory(self) -> Mapping[str, tuple[MeasuredBytes, ...]]: ...
    def check_devices(self, devices: Iterable[str]) -> None: ...
