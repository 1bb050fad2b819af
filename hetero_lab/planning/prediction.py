"""Prediction: the latency of a placement, part by part, and moved op by op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.errors import AffinityError, PlanError, did_you_mean, shorten
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, predict
from hetero_lab.planning.objective import LATENCY, Objective, PlacementCost
from hetero_lab.result import Framed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Predictor:
    """The predicted latency of a placement, which can be moved op by op.

    A move costs a few milliseconds on a model of a thousand ops.
    """

    objective: Objective
    devices: np.ndarray

    @classmethod
    def of(cls, objective: Objective, affinity: Affinity) -> Predictor:
        """Predict an affinity."""
        return cls(objective, objective.device_numbers(affinity))

    @cached_property
    def evaluation(self) -> PlacementCost:
        """The costs part by part."""
        return self.objective.evaluate(self.devices)

    @property
    def predicted_us(self) -> float:
        """Latency in µs."""
        return self.evaluation.value_ns(LATENCY) / 1000.0

    @property
    def n_subgraphs(self) -> int:
        """Number of subgraphs."""
        return int(self.evaluation.real.sum())

    @property
    def affinity(self) -> Affinity:
        """The placement."""
        return self.objective.affinity(self.devices)

    def moved(self, ops: Mapping[str, str]) -> Predictor:
        """Return the prediction with some ops on other devices.

        An op of a stateful path moves the path; a constant, parameter or result stays with the
        op that it belongs to.

        Raises
        ------
        AffinityError
            No op has that name.
        PlanError
            The cost model does not know the device, or the device does not support the op.
        """
        objective, devices = self.objective, self.devices.copy()
        for name, device in ops.items():
            if name not in objective.graph.index_of:
                known = [objective.graph.ops[index].name for index in objective.graph.placeable]
                raise AffinityError(
                    f"No op is called {shorten(str(name))}.{did_you_mean(str(name), known)}"
                )
            if device not in objective.devices:
                raise PlanError(
                    f"This cost model does not know {shorten(str(device))}: it holds for "
                    f"{', '.join(objective.devices)}."
                )
            index = objective.graph.index_of[name]
            if index in objective.placeable_nodes:
                leader = objective.graph.leader[index]
                devices[objective.followers[leader]] = objective.devices.index(device)
        objective.check_support(devices)
        return Predictor(objective, devices)


@dataclass(frozen=True, slots=True)
class UnitShare:
    """Time of the ops of a unit on one device; a torn unit has one share a device."""

    unit: int
    device: str
    ops: tuple[str, ...]
    us: float


@dataclass(frozen=True, slots=True)
class SubgraphShare:
    """A subgraph: its own cost, and the ops' time within it (counted in the units' shares)."""

    index: int
    device: str
    n_ops: int
    us: float
    ops_us: float


@dataclass(frozen=True, slots=True)
class BoundaryShare:
    """A tensor that subgraph ``source`` hands to subgraph ``target``.

    ``pairwise`` tells whether planners see it: it is the first hand-over of this tensor to that
    device, and not within a device.
    """

    tensor: str
    source: int
    target: int
    source_device: str
    target_device: str
    n_bytes: int | None
    us: float
    pairwise: bool


@dataclass(frozen=True, slots=True)
class FusionShare:
    """Fusion lost between two ops that are in different subgraphs."""

    first: str
    second: str
    us: float
    pairwise: bool


@dataclass(frozen=True)
class Prediction(Framed):
    """A predicted latency in its parts, which add up to ``predicted_us``.

    ``pairwise_us`` and ``extra_us`` are the two parts of the objective; ``device_us`` is the
    work of each device, which with the constant is the latency.
    """

    predicted_us: float
    pairwise_us: float
    extra_us: float
    constant_us: float
    spread_us: float
    device_us: Mapping[str, float]
    units: tuple[UnitShare, ...]
    subgraphs: tuple[SubgraphShare, ...]
    boundaries: tuple[BoundaryShare, ...]
    lost_fusion: tuple[FusionShare, ...]
    partition: Partition

    def __repr__(self) -> str:
        return (
            f"Prediction({self.predicted_us:.1f} µs = constant {self.constant_us:.1f} + spread "
            f"memory {self.spread_us:.1f} + ops "
            f"{_sum(self.units):.1f} + {len(self.subgraphs)} subgraphs "
            f"{_sum(self.subgraphs):.1f} + {len(self.boundaries)} boundaries "
            f"{_sum(self.boundaries):.1f} + lost fusion {_sum(self.lost_fusion):.1f})"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row a part: ``kind, name, device, predicted_us, share``, largest first."""
        import pandas as pd

        rows = [("constant", "", "", self.constant_us), ("spread memory", "", "", self.spread_us)]
        rows += [("unit", "\n".join(u.ops), u.device, u.us) for u in self.units]
        rows += [("subgraph", str(s.index), s.device, s.us) for s in self.subgraphs]
        rows += [
            ("boundary", b.tensor, f"{b.source_device} → {b.target_device}", b.us)
            for b in self.boundaries
        ]
        rows += [("lost fusion", f"{f.first}\n{f.second}", "", f.us) for f in self.lost_fusion]
        frame = pd.DataFrame(rows, columns=["kind", "name", "device", "predicted_us"])
        total = self.predicted_us or 1.0
        frame["share"] = frame["predicted_us"] / total
        return frame.sort_values("predicted_us", ascending=False, kind="stable", ignore_index=True)


def breakdown(objective: Objective, affinity: Affinity) -> Prediction:
    """Predict a placement part by part."""
    devices = objective.device_numbers(affinity)
    evaluation = objective.evaluate(devices)
    partition = predict(objective.graph, affinity)
    total = evaluation.value_ns(LATENCY)
    pairwise = objective.pairwise_ns(devices)
    work = zip(objective.devices, (evaluation.busy_ns / 1000.0).tolist(), strict=True)
    return Prediction(
        predicted_us=total / 1000.0,
        pairwise_us=pairwise / 1000.0,
        extra_us=(total - pairwise) / 1000.0,
        constant_us=objective.constant_ns / 1000.0,
        spread_us=evaluation.spread_ns / 1000.0,
        device_us=dict(work),
        units=_units(objective, devices),
        subgraphs=_subgraphs(objective, devices, partition),
        boundaries=_boundaries(objective, devices, evaluation, partition),
        lost_fusion=_lost_fusion(objective, devices, evaluation),
        partition=partition,
    )


def _units(objective: Objective, devices: np.ndarray) -> tuple[UnitShare, ...]:
    costs, index_of = objective.terms, objective.graph.index_of
    shares: list[UnitShare] = []
    for number, unit in enumerate(costs.units):
        where: dict[int, list[str]] = {}
        for op in unit.ops:
            where.setdefault(int(devices[index_of[op]]), []).append(op)
        for device, ops in where.items():
            ns = int(objective.op_ns[[index_of[op] for op in ops], device].sum())
            shares.append(UnitShare(number, costs.devices[device], tuple(ops), ns / 1000.0))
    return tuple(shares)


def _subgraphs(
    objective: Objective, devices: np.ndarray, partition: Partition
) -> tuple[SubgraphShare, ...]:
    costs, index_of = objective.terms, objective.graph.index_of
    shares: list[SubgraphShare] = []
    for subgraph in partition.subgraphs:
        nodes = [index_of[op] for op in subgraph.ops]
        device = costs.devices.index(subgraph.device)
        shares.append(
            SubgraphShare(
                index=subgraph.index,
                device=subgraph.device,
                n_ops=len(nodes),
                us=int(objective.subgraph_ns[device]) / 1000.0,
                ops_us=int(objective.op_ns[nodes, devices[nodes]].sum()) / 1000.0,
            )
        )
    return tuple(shares)


def _boundaries(
    objective: Objective, devices: np.ndarray, evaluation: PlacementCost, partition: Partition
) -> tuple[BoundaryShare, ...]:
    costs, graph, first_tensor = objective.terms, objective.graph, objective.first_tensor
    crossing = evaluation.crossing
    seen: set[tuple[int, int]] = set()
    shares: list[BoundaryShare] = []
    columns = (crossing.tensor, crossing.producer, crossing.user, crossing.ns)
    for tensor, producer, user, ns in zip(*(c.tolist() for c in columns), strict=True):
        source, target = int(devices[producer]), int(devices[user])
        op, port = graph.ops[producer], tensor - int(first_tensor[producer])
        shares.append(
            BoundaryShare(
                tensor=op.name if len(op.outputs) == 1 else f"{op.name}:{port}",
                source=partition.home[producer],
                target=partition.home[user],
                source_device=costs.devices[source],
                target_device=costs.devices[target],
                n_bytes=op.outputs[port].n_bytes,
                us=ns / 1000.0,
                pairwise=source != target and (tensor, target) not in seen,
            )
        )
        seen.add((tensor, target))
    return tuple(shares)


def _lost_fusion(
    objective: Objective, devices: np.ndarray, evaluation: PlacementCost
) -> tuple[FusionShare, ...]:
    costs = objective.terms
    shares: list[FusionShare] = []
    for row in evaluation.lost.tolist():
        first, second = (int(devices[node]) for node in objective.fused[row])
        ns = int(objective.first_ns[row, first] + objective.second_ns[row, second])
        term = costs.lost_fusion[row]
        shares.append(FusionShare(term.first, term.second, ns / 1000.0, first != second))
    return tuple(shares)


def _sum(shares: tuple) -> float:
    return sum(share.us for share in shares)
