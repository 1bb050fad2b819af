"""CostModel: what every part of a placement costs, and the latency that follows.

The objective has two parts.

**Pairwise**: the constant; the time of each op on its device; each tensor that is handed to
another device, once per receiving device; lost fusion between two ops on different devices.
Each term depends on the devices of at most two ops (or of a tensor's maker and users), so that
planners can minimise the sum exactly.

**Extra**, never negative: the cost of each subgraph; what it costs that memory is spread over
several of them; a tensor that several subgraphs of one device receive, again for each after the
first; a layout that several tensors keep, again for each that is converted after the first; and
for the cuts that HETERO adds to break cycles, hand-over and lost fusion within a device.

Costs are counted in whole nanoseconds, so that two ways of adding them up agree exactly.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import ArgumentError, PlanError, names_at_hand, shorten
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.planning.cost_checks import check
from hetero_lab.planning.objective import Objective
from hetero_lab.planning.prediction import Prediction, explain
from hetero_lab.planning.predictor import Predictor

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.placement.affinity import Affinity


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
    """What two ops cost more, in µs, when they are not in one subgraph.

    ``first_us`` is added on the device of ``first``, ``second_us`` on that of ``second``; both
    have an entry for each device of the cost model.
    """

    first: str
    second: str
    first_us: tuple[float, ...]
    second_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BoundaryCost:
    """What handing one tensor over costs: a fixed part and a part for each byte."""

    fixed_us: float = 0.0
    us_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Reorder:
    """Layout conversions of one tensor when it crosses, in µs for each device.

    ``leave_us`` is paid on the device that makes it, once for each device that receives it;
    ``enter_us`` on the one that receives it, once for each subgraph. An elementwise op keeps the
    layout of what it reads: ``layout_of`` then names the op that chose it, and ``leave_us`` is
    paid only where that op is in the same subgraph. What entered was converted already.
    """

    op: str
    port: int
    leave_us: tuple[float, ...]
    enter_us: tuple[float, ...]
    layout_of: str = ""


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """Predicted and measured latency of one placement that the fit has not seen."""

    label: str
    predicted_us: float
    measured_us: float
    n_subgraphs: int = 0

    @property
    def error(self) -> float:
        """Relative error of the prediction, positive where it is too high."""
        return self.predicted_us / self.measured_us - 1.0


@dataclass(frozen=True)
class CostModel:
    """Costs of one model on some devices, and everything that follows from them.

    Parameters
    ----------
    graph
        The model.
    devices
        In order of priority: HETERO's greedy choice goes by it.
    units
        A partition of the graph's placeable ops; a stateful path lies in one unit.
    boundaries
        For each pair (source device, target device). A device to itself is for the cuts that
        HETERO adds within a device; such a pair is free if it is left out.
    subgraph_us
        For each device, what one subgraph on it costs beside its ops.
    constant_us
        What an inference costs whatever the placement.
    lost_fusion, reorders
        Terms for single pairs of ops and single tensors.
    device_properties, environment, fingerprint
        What it holds for: properties of the devices, versions and names, hash of the model.
    validation_rows
        Placements that the fit has not seen.
    spread_us
        What an inference takes longer when its memory is spread over many subgraphs: each has
        its own, so that caches hold less of it. With n subgraphs (n − 1)/(n + 4) of it is paid.
    emulated
        What each emulated device ran on when it was measured.
    notes
        What the time for measuring did not allow.
    interrupted
        Whether Ctrl-C ended the measuring.

    Raises
    ------
    PlanError
        The parts contradict each other.

    Notes
    -----
    A tensor whose size is not known pays the fixed part only.
    """

    graph: OpGraph
    devices: tuple[str, ...]
    units: tuple[Unit, ...]
    boundaries: Mapping[tuple[str, str], BoundaryCost]
    subgraph_us: Mapping[str, float]
    constant_us: float = 0.0
    lost_fusion: tuple[LostFusion, ...] = ()
    reorders: tuple[Reorder, ...] = ()
    device_properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    validation_rows: tuple[ValidationRow, ...] = ()
    spread_us: float = 0.0
    emulated: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    def __post_init__(self) -> None:
        check(self)

    def __repr__(self) -> str:
        fit = f", MAPE {self.mape:.1%}" if self.validation_rows else ""
        return (
            f"CostModel({self.graph.name!r} on {', '.join(self.devices)}: "
            f"{len(self.units)} units{fit})"
        )

    def _repr_html_(self) -> str:
        from hetero_lab.tables import html_table

        return html_table(self.to_frame(), caption=repr(self))

    @cached_property
    def objective(self) -> Objective:
        """The costs as arrays."""
        return Objective.build(self)

    def predict_us(self, affinity: Affinity) -> float:
        """Predict the latency of a placement in µs.

        Raises
        ------
        AffinityError
            The affinity is of another model.
        PlanError
            It uses a device that this cost model does not know, or that does not support an op.
        """
        return self.predictor(affinity).predicted_us

    def predictor(self, affinity: Affinity) -> Predictor:
        """Return a prediction that can be moved: ``predictor(a).moved({"op": "CPU"})``."""
        return Predictor.of(self.objective, affinity)

    def explain(self, affinity: Affinity) -> Prediction:
        """Predict with the share of each unit, subgraph, boundary and lost fusion."""
        return explain(self, affinity)

    def supports(self, device: str) -> frozenset[str]:
        """Return the ops that a device supports."""
        at = self.devices.index(device)
        return frozenset(op for u in self.units if u.time_us[at] is not None for op in u.ops)

    def with_boundaries_scaled(self, factor: float) -> CostModel:
        """Return a copy in which hand-overs between devices cost ``factor`` times as much.

        Planning with several factors gives placements worth measuring while the price of a
        boundary is still uncertain.
        """
        scaled = {
            pair: BoundaryCost(cost.fixed_us * factor, cost.us_per_byte * factor)
            if pair[0] != pair[1]
            else cost
            for pair, cost in self.boundaries.items()
        }
        return dataclasses.replace(self, boundaries=scaled)

    @property
    def mape(self) -> float:
        """Mean absolute relative error on the validation placements."""
        rows = self._validated()
        return math.fsum(abs(row.error) for row in rows) / len(rows)

    @property
    def r2(self) -> float:
        """Share of the variance of the measured latencies that is predicted."""
        rows = self._validated()
        mean = math.fsum(row.measured_us for row in rows) / len(rows)
        total = math.fsum((row.measured_us - mean) ** 2 for row in rows)
        rest = math.fsum((row.measured_us - row.predicted_us) ** 2 for row in rows)
        if total == 0.0:
            raise PlanError("All validation placements took the same time: R² is not defined.")
        return 1.0 - rest / total

    @property
    def validation(self) -> pd.DataFrame:
        """One row a validation placement: label, subgraphs, predicted and measured µs, error."""
        import pandas as pd

        rows = [
            (r.label, r.n_subgraphs, r.predicted_us, r.measured_us, r.error)
            for r in self.validation_rows
        ]
        frame = pd.DataFrame(
            rows, columns=["label", "n_subgraphs", "predicted_us", "measured_us", "error"]
        )
        return frame.astype(
            {"label": "str", "predicted_us": float, "measured_us": float, "error": float}
        )

    def _validated(self) -> tuple[ValidationRow, ...]:
        if not self.validation_rows:
            raise PlanError(
                "This cost model was not validated: it holds no placement that the fit has not "
                "seen. Calibrate with a larger budget_s."
            )
        return self.validation_rows

    def to_frame(self) -> pd.DataFrame:
        """Return one row a unit: ``unit, ops, n_ops`` and one column of µs a device."""
        import pandas as pd

        rows = [
            {
                "unit": number,
                "ops": "\n".join(unit.ops),
                "n_ops": len(unit.ops),
                **{
                    f"{device}_us": float("nan") if time is None else time
                    for device, time in zip(self.devices, unit.time_us, strict=True)
                },
            }
            for number, unit in enumerate(self.units)
        ]
        columns = ["unit", "ops", "n_ops", *(f"{device}_us" for device in self.devices)]
        return pd.DataFrame(rows, columns=columns)

    def check_graph(self, graph: OpGraph) -> None:
        """Raise PlanError unless this is the cost model of ``graph``."""
        mine, theirs = _signature(self.graph), _signature(graph)
        if mine == theirs:
            return
        missing = [name for name in theirs if name not in mine]
        gone = [name for name in mine if name not in theirs]
        what = f"{len(missing)} of the model's nodes are not in it"
        if missing:
            what += f" ({names_at_hand(missing, 3)})"
        what += f", {len(gone)} of its nodes are not in the model"
        if gone:
            what += f" ({names_at_hand(gone, 3)})"
        if not missing and not gone:
            different = [name for name in mine if mine[name] != theirs[name]]
            what = f"{len(different)} ops differ ({names_at_hand(different, 3)})"
        raise PlanError(
            f"This cost model belongs to another model ({shorten(self.graph.name)}, not "
            f"{shorten(graph.name)}): {what}. Make one with hetero_lab.calibrate(model, devices)."
        )

    def check_devices(self, devices: Iterable[str]) -> None:
        """Raise PlanError unless the cost model knows every one of ``devices``."""
        unknown = [device for device in devices if device not in self.devices]
        if unknown:
            raise PlanError(
                f"This cost model does not know {names_at_hand(unknown)}: it holds for "
                f"{', '.join(self.devices)}. Calibrate with these devices: "
                "hetero_lab.calibrate(model, devices)."
            )

    def check_conditions(
        self, devices: tuple[str, ...], properties: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Raise PlanError unless it holds for these devices with these properties."""
        if devices != self.devices:
            raise PlanError(
                f"This cost model holds for {', '.join(self.devices)}, in this order, not for "
                f"{', '.join(devices)}."
            )
        for device in devices:
            own, other = self.device_properties.get(device, {}), properties.get(device, {})
            if {k: str(v) for k, v in own.items()} != {k: str(v) for k, v in other.items()}:
                raise PlanError(
                    f"This cost model holds for {device} with {dict(own)!r}, not {dict(other)!r}. "
                    "Leave device_properties= out, or calibrate with these."
                )

    def check_support(self, support: Mapping[str, Collection[str]]) -> None:
        """Raise PlanError if it places ops on a device that does not support them now."""
        for device in self.devices:
            gone = sorted(self.supports(device) - set(support[device]))
            if gone:
                raise PlanError(
                    f"This cost model places {names_at_hand(gone)} on {device}, which does not "
                    "support that now. Calibrate again."
                )

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, whole or not at all."""
        from hetero_lab.planning.stored_costs import write_cost_model

        write_cost_model(self, path)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> CostModel:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        StoredFileError
            The file is missing or is not a cost model.
        """
        from hetero_lab.planning.stored_costs import read_cost_model

        return read_cost_model(path)


def expect_costs(given: object) -> CostModel:
    """Return what was given as ``costs=``, or raise ArgumentError."""
    if not isinstance(given, CostModel):
        raise ArgumentError(
            "costs= is what hetero_lab.calibrate(model, devices) returns, not "
            f"{type(given).__name__}."
        )
    return given


def _signature(graph: OpGraph) -> dict[str, Any]:
    names = [op.name for op in graph]
    return {
        op.name: (
            op.type,
            tuple((names[producer], port) for producer, port in op.inputs),
            tuple(tensor.n_bytes for tensor in op.outputs),
        )
        for op in graph
    }
