"""The predicted latency of a placement: part by part, moved op by op, and how far it may be off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.costs.objective import LATENCY, Objective, PlacementCost, check_devices
from hetero_lab.errors import AffinityError, did_you_mean, shorten
from hetero_lab.intervals import Estimate
from hetero_lab.model.opgraph import grouped
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, predict
from hetero_lab.result import Framed
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

CONSTANT, SPREAD, OPS, LOST_FUSION = "constant", "spread memory", "ops", "lost fusion"
SUBGRAPHS, BOUNDARIES = "subgraphs", "boundaries"
KINDS = (CONSTANT, SPREAD, OPS, LOST_FUSION, SUBGRAPHS, BOUNDARIES)
_COVERED = 0.9  # of the intervals hold the latency: results say 90 %


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """The error of predictions, which grows with the distance from what was fitted.

    A placement is described by its parts in µs: the work of each device, and all hand-overs. Its
    distance is the share of its latency by which these differ from those of the nearest placement
    in ``fitted_us``, of shape ``[placement, part]``. ``scale`` is the error (root mean square of
    the logarithm) at distance 0 of ``n`` validated placements; the error at distance d is 1 + d
    times as large. The interval is that of a further observation, by Student's t.
    """

    fitted_us: np.ndarray
    scale: float
    n: int

    def distance(self, parts_us: np.ndarray) -> float:
        """Return how unlike to all fitted placements one is; 0 if that is unknown."""
        if not len(self.fitted_us):
            return 0.0
        apart = np.abs(self.fitted_us - parts_us).sum(axis=1)
        return float(apart.min() / max(1e-9, parts_us.sum()))

    def interval(self, us: float, parts_us: np.ndarray) -> Estimate:
        """Return a prediction with its 90 % interval, 0 to infinite without validation."""
        factor = self.factor(self.distance(parts_us))
        return Estimate(us, us / factor, us * factor)

    def margin_us(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return by how much the predicted difference of two placements may be off, at 90 %.

        What the two have in common does not count.
        """
        share = self.factor(max(self.distance(first), self.distance(second))) - 1.0
        different = float(np.abs(first - second).sum())
        return share * different if different else 0.0

    def factor(self, distance: float) -> float:
        """Return by which factor a prediction may be too high or too low, at 90 %."""
        from scipy import stats

        if not self.n:
            return math.inf
        quantile = float(stats.t.ppf((1.0 + _COVERED) / 2.0, self.n))
        further = math.sqrt(1.0 + 1.0 / self.n)
        return math.exp(quantile * further * self.scale * (1.0 + distance))


@dataclass(frozen=True, eq=False)
class Predictor:
    """The predicted latency of a placement; a move takes milliseconds on a thousand ops."""

    objective: Objective
    devices: np.ndarray
    uncertainty: Uncertainty

    @cached_property
    def evaluation(self) -> PlacementCost:
        """The costs part by part."""
        return self.objective.evaluate(self.devices)

    @property
    def predicted_us(self) -> float:
        """Latency in µs."""
        return self.evaluation.value_ns(LATENCY) / 1000.0

    @property
    def estimate(self) -> Estimate:
        """Latency with its 90 % interval."""
        return self.uncertainty.interval(self.predicted_us, self.evaluation.parts_us)

    def margin_us(self, other: Predictor) -> float:
        """By how much the difference from another prediction may be off, at 90 %."""
        parts = self.evaluation.parts_us, other.evaluation.parts_us
        return self.uncertainty.margin_us(*parts)

    @property
    def n_subgraphs(self) -> int:
        """Number of subgraphs."""
        return self.evaluation.n_subgraphs

    @property
    def affinity(self) -> Affinity:
        """The placement."""
        return self.objective.affinity(self.devices)

    def moved(self, ops: Mapping[str, str]) -> Predictor:
        """Return the prediction with some ops on other devices.

        An op of a stateful path moves the path. A constant, parameter or result stays with its op.
        AffinityError if no op has that name; PlanError if the cost model does not know the device,
        or the device does not support the op.
        """
        objective, graph = self.objective, self.objective.graph
        leader, placeable = np.array(graph.leader), set(graph.placeable)
        targets = np.full(len(graph), -1)  # for each leader that moves
        for name, device in ops.items():
            if name not in graph.index_of:
                names = [graph.ops[index].name for index in graph.placeable]
                raise AffinityError(
                    f"No op is called {shorten(str(name))}.{did_you_mean(str(name), names)}"
                )
            check_devices([device], objective.devices)
            index = graph.index_of[name]
            if index in placeable:
                targets[leader[index]] = objective.devices.index(device)
        devices = np.where(targets[leader] < 0, self.devices, targets[leader])
        objective.check_support(devices)
        return Predictor(objective, devices, self.uncertainty)


@dataclass(frozen=True, slots=True)
class PredictedShare:
    """A part of a predicted latency; ``kind`` is one of ``KINDS``.

    A unit on one device (a torn unit has a share on each), a subgraph (its own cost, without its
    ops), a tensor that one subgraph hands to another, or fusion that is lost between two ops.
    ``target`` is the device that a tensor enters, else the same as ``device``. ``numbers`` are
    those of the unit, of the subgraph, or of the source and target subgraphs.
    """

    kind: str
    name: str
    device: str
    target: str
    us: float
    ops: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Prediction(Framed):
    """A predicted latency in its shares, which add up to ``predicted_us``.

    ``device_us`` is the work of each device. Their sum plus the constant and spread memory is the
    latency.
    """

    predicted_us: float
    device_us: Mapping[str, float]
    shares: tuple[PredictedShare, ...]
    partition: Partition

    def of(self, kind: str) -> list[PredictedShare]:
        """Return the shares of one kind; subgraphs are in the order of the partition."""
        return [share for share in self.shares if share.kind == kind]

    def __repr__(self) -> str:
        parts = []
        for kind in KINDS:
            every = self.of(kind)
            count = f"{len(every)} " if kind in (SUBGRAPHS, BOUNDARIES) else ""
            parts.append(f"{count}{kind} {sum(share.us for share in every):.1f}")
        return f"Prediction({self.predicted_us:.1f} µs = {' + '.join(parts)})"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per part: ``kind, name, device, predicted_us, share``, largest first."""
        rows = [
            (s.kind, s.name, " → ".join(dict.fromkeys([s.device, s.target])), s.us)
            for s in self.shares
        ]
        frame = frame_of(rows, ["kind", "name", "device", "predicted_us"])
        frame["share"] = frame["predicted_us"] / (self.predicted_us or 1.0)
        return frame.sort_values("predicted_us", ascending=False, kind="stable", ignore_index=True)


def breakdown(objective: Objective, affinity: Affinity) -> Prediction:
    """Predict a placement part by part."""
    devices = objective.device_numbers(affinity)
    evaluation = objective.evaluate(devices)
    partition = predict(objective.graph, affinity)
    busy_us = (evaluation.busy_ns / 1000.0).tolist()
    return Prediction(
        predicted_us=evaluation.value_ns(LATENCY) / 1000.0,
        device_us=dict(zip(objective.devices, busy_us, strict=True)),
        shares=(
            PredictedShare(CONSTANT, "", "", "", objective.constant_ns / 1000.0),
            PredictedShare(SPREAD, "", "", "", evaluation.spread_ns / 1000.0),
            *_units(objective, devices),
            *_lost_fusion(objective, devices, evaluation),
            *_subgraphs(objective, partition),
            *_boundaries(objective, evaluation, partition),
        ),
        partition=partition,
    )


def _units(objective: Objective, devices: np.ndarray) -> Iterator[PredictedShare]:
    index_of = objective.graph.index_of
    for number, unit in enumerate(objective.units):
        where = grouped((int(devices[index_of[op]]), op) for op in unit.ops)
        for at, ops in where.items():
            ns = int(objective.op_ns[[index_of[op] for op in ops], at].sum())
            device = objective.devices[at]
            yield PredictedShare(
                OPS, "\n".join(ops), device, device, ns / 1000.0, tuple(ops), (number,)
            )


def _lost_fusion(
    objective: Objective, devices: np.ndarray, evaluation: PlacementCost
) -> Iterator[PredictedShare]:
    for row in evaluation.lost.tolist():
        nodes = objective.fused[row].tolist()
        first, second = devices[nodes].tolist()
        ns = int(objective.first_ns[row, first] + objective.second_ns[row, second])
        ops = tuple(objective.graph.ops[node].name for node in nodes)
        yield PredictedShare(LOST_FUSION, "\n".join(ops), "", "", ns / 1000.0, ops)


def _subgraphs(objective: Objective, partition: Partition) -> Iterator[PredictedShare]:
    for subgraph in partition.subgraphs:
        device, number = subgraph.device, subgraph.index
        ns = int(objective.subgraph_ns[objective.devices.index(device)])
        yield PredictedShare(
            SUBGRAPHS, str(number), device, device, ns / 1000.0, subgraph.ops, (number,)
        )


def _boundaries(
    objective: Objective, evaluation: PlacementCost, partition: Partition
) -> Iterator[PredictedShare]:
    top, edges = objective.top, evaluation.crossing.tolist()
    device = [objective.devices[number] for number in evaluation.devices]
    for edge, ns in zip(edges, evaluation.crossing_ns.tolist(), strict=True):
        producer, user = top.source[edge], top.target[edge]
        yield PredictedShare(
            BOUNDARIES,
            objective.graph.ops[producer].tensor_name(top.source_port[edge]),
            device[producer],
            device[user],
            ns / 1000.0,
            numbers=(partition.home[producer], partition.home[user]),
        )
