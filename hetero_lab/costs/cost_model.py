"""CostModel: the cost of every part of a placement of a model, learnt, validated and stored."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import statistics
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import numpy as np

from hetero_lab.arguments import checked
from hetero_lab.costs.objective import (
    BoundaryCost,
    CostRow,
    LostFusion,
    MeasuredBytes,
    Objective,
    Reorder,
    Unit,
    check_devices,
    whole_ns,
)
from hetero_lab.costs.prediction import Prediction, Predictor, Uncertainty, breakdown
from hetero_lab.errors import PlanError, StoredFileError, names_at_hand, shorten
from hetero_lab.intervals import Estimate
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import OpGraph, graph_from_json, graph_to_json
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import MemoryTable
from hetero_lab.placement.topology import topology
from hetero_lab.result import Framed
from hetero_lab.tables import SCHEMA_VERSION, frame_of, read_json, write_json
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import pandas as pd

_KIND = "cost model"
_MOST_US = 2.0**53 / 1000  # a sum of ns in floats is exact up to here


class ValidationRow(CostRow, frozen=True):
    """Predicted and measured latency of a placement unlike the fitted ones by ``distance``."""

    label: str
    predicted_us: float
    measured_us: float
    n_subgraphs: int = 0
    distance: float = 0.0

    def __post_init__(self) -> None:
        where = f"The validation placement {shorten(self.label)}"
        _check_costs([self.predicted_us, self.measured_us, self.distance], where)
        if self.measured_us == 0:
            raise PlanError(f"{where} was measured to take no time.")

    @property
    def error(self) -> float:
        """Relative error of the prediction, positive where it is too high."""
        return self.predicted_us / self.measured_us - 1.0


@dataclass(frozen=True)
class CostModel(Framed):
    """Costs of one model on some devices, their origin, and how well they predict.

    Parameters
    ----------
    graph
        The model.
    devices
        In order of priority, which HETERO's greedy choice follows.
    units
        A partition of the graph's placeable ops; a stateful path lies in one unit.
    boundaries
        For each pair (source device, target device). A device to itself is for the cuts that
        HETERO adds within a device; such a pair is free if it is left out. A tensor of unknown
        size pays the fixed part only.
    subgraph_us
        For each device, the cost of one subgraph on it beside its ops.
    constant_us
        Cost of an inference that does not depend on the placement.
    lost_fusion, reorders
        Terms for single pairs of ops and single tensors.
    spread_us
        Extra time of an inference whose memory is spread over many subgraphs: each has its own,
        so that caches hold less of it. With n subgraphs, (n − 1)/(n + 4) of it is paid.
    measured_memory
        The memory of each device whose memory was measured. That of the others is counted from
        the graph.
    device_properties, environment, fingerprint
        Conditions of the costs: properties of the devices, versions and names, model hash.
    validation_rows
        Placements that the fit has not seen.
    emulated
        Emulated device → the device that ran it during the measurement.
    notes
        Measurements for which there was no time.
    interrupted
        Whether Ctrl-C ended the measuring.
    scenario
        Of a language model: the tokens that it generated. The costs are those of a further token.
    prefill
        Of a language model: the cost model of the first token.
    seen_us
        Of each placement that the fit has seen, the predicted work of each device and of all
        hand-overs.
    executor_us
        What the parallel executor takes longer than HETERO for a request on one device.
    contention
        How many times as long a device takes while another one works beside it, in the parallel
        executor. Where there was no time to measure it, nothing is assumed to be gained: 2 for two
        devices.

    Raises
    ------
    PlanError
        The parts contradict each other.
    """

    graph: OpGraph
    devices: tuple[str, ...]
    units: tuple[Unit, ...]
    boundaries: Mapping[tuple[str, str], BoundaryCost]
    subgraph_us: Mapping[str, float]
    constant_us: float = 0.0
    lost_fusion: tuple[LostFusion, ...] = ()
    reorders: tuple[Reorder, ...] = ()
    spread_us: float = 0.0
    measured_memory: Mapping[str, tuple[MeasuredBytes, ...]] = field(default_factory=dict)
    device_properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    validation_rows: tuple[ValidationRow, ...] = ()
    emulated: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    scenario: Scenario | None = None
    prefill: CostModel | None = None
    seen_us: tuple[tuple[float, ...], ...] = ()
    executor_us: float = 0.0
    contention: float = 1.0

    def __post_init__(self) -> None:
        _check_terms(self)

    def __repr__(self) -> str:
        fit = f", MAPE {self.mape:.1%}" if self.validation_rows else ""
        return (
            f"CostModel({self.graph.name!r} on {', '.join(self.devices)}: "
            f"{len(self.units)} units{fit})"
        )

    def _sentences(self) -> list[str]:
        fit = f", off by {self.mape:.1%} on average" if self.validation_rows else ""
        return [f"Costs of {count_of(len(self.units), 'unit')}{fit}. {self.origin}"]

    @property
    def origin(self) -> str:
        """Machine that measured, runtime, time and devices."""
        about = self.environment
        parts = [f"on {about['host']}" if about.get("host") else ""]
        version = about.get("openvino_version", "").partition("-")[0]
        parts += [f"OpenVINO {version}" if version else "", about.get("measured_at", "")[:10]]
        parts += [f"{device} is {about[device]}" for device in self.devices if about.get(device)]
        where = ", ".join(text for text in parts if text) or "on an unknown machine"
        return f"Measured {where}."

    @cached_property
    def objective(self) -> Objective:
        """The costs as arrays."""
        return _as_arrays(self)

    @cached_property
    def op_us(self) -> Mapping[str, tuple[float | None, ...]]:
        """The time of each op on each device: its share of the time of its unit."""
        return {
            op: tuple(None if time is None else time * share for time in unit.time_us)
            for unit in self.units
            for op, share in zip(unit.ops, unit.share_of_each, strict=True)
        }

    @cached_property
    def fused_into(self) -> Mapping[str, str]:
        """Each op that runs inside another one → that op, which has the time of both."""
        return {
            op: unit.ops[int(np.argmax(unit.shares))]
            for unit in self.units
            for op, share in zip(unit.ops, unit.share_of_each, strict=True)
            if share == 0.0
        }

    def supports(self, device: str) -> frozenset[str]:
        """Return the ops that a device supports."""
        at = self.devices.index(device)
        return frozenset(op for u in self.units if u.time_us[at] is not None for op in u.ops)

    @checked
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

    @checked
    def predict(self, affinity: Affinity) -> Estimate:
        """Predict the latency of a placement with its 90 % interval, in µs; errors as predict_us.

        The interval follows from the validation and from how unlike the placement is to those that
        the costs were fitted to. Without validation it reaches from 0 to infinity. It holds for a
        placement that is alone in its process, on a machine as fast as when the costs were learnt.

        Returns
        -------
        Estimate
            ``.us``, ``.low_us``, ``.high_us``.
        """
        return self.predictor(affinity).estimate

    def predict_ttft_ms(self, affinity: Affinity) -> float:
        """Predict how long a language model takes for the first token; errors as predict_us.

        Raises
        ------
        PlanError
            These are not the costs of a language model.
        """
        if self.prefill is None:
            raise PlanError(
                "These costs are of one inference: only those of a language model know a first "
                "token. Make them with hetero_lab.calibrate(model, devices, scenario=…)."
            )
        return self.prefill.predict_us(affinity) / 1e3

    def predict_tpot_ms(self, affinity: Affinity) -> float:
        """Predict the time of a further token of a language model; errors as predict_us."""
        return self.predict_us(affinity) / 1e3

    def predictor(self, affinity: Affinity) -> Predictor:
        """Return a prediction whose ops can move: ``predictor(a).moved({"op": "CPU"})``."""
        devices = self.objective.device_numbers(affinity)
        return Predictor(self.objective, devices, self.uncertainty)

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far predictions may be off."""
        rows = self.validation_rows
        squares = [
            (math.log(row.predicted_us / row.measured_us) / (1.0 + row.distance)) ** 2
            for row in rows
            if row.predicted_us > 0.0
        ]
        scale = math.sqrt(statistics.fmean(squares)) if squares else math.inf
        parts_us = np.array(self.seen_us).reshape(-1, len(self.devices) + 1)
        return Uncertainty(parts_us, scale, len(squares))

    @checked
    def explain(self, affinity: Affinity) -> Prediction:
        """Predict with the share of each unit, subgraph, boundary and lost fusion."""
        return breakdown(self.objective, affinity)

    def with_boundaries_scaled(self, factor: float) -> CostModel:
        """Return a copy in which hand-overs between devices cost ``factor`` times as much."""
        boundaries = {
            (source, target): BoundaryCost(cost.fixed_us * factor, cost.us_per_byte * factor)
            for (source, target), cost in self.boundaries.items()
            if source != target
        }
        return dataclasses.replace(self, boundaries={**self.boundaries, **boundaries})

    @property
    def mape(self) -> float:
        """Mean absolute relative error on the validation placements."""
        return statistics.fmean(abs(row.error) for row in self._require_validation())

    @property
    def r2(self) -> float:
        """Share of the variance of the measured latencies that is predicted."""
        rows = self._require_validation()
        mean = statistics.fmean(row.measured_us for row in rows)
        total = math.fsum((row.measured_us - mean) ** 2 for row in rows)
        rest = math.fsum((row.measured_us - row.predicted_us) ** 2 for row in rows)
        if total == 0.0:
            raise PlanError("All validation placements took the same time: R² is not defined.")
        return 1.0 - rest / total

    @property
    def validation(self) -> pd.DataFrame:
        """One row per validation placement: label, subgraphs, predicted and measured µs, error."""
        names = ["label", "n_subgraphs", "predicted_us", "measured_us", "error"]
        rows = [[getattr(row, name) for name in names] for row in self.validation_rows]
        return frame_of(rows, names).astype({"label": "str", **dict.fromkeys(names[2:], float)})

    def _require_validation(self) -> tuple[ValidationRow, ...]:
        if not self.validation_rows:
            raise PlanError(
                "This cost model was not validated: it holds no placement that the fit has not "
                "seen. Calibrate with a larger budget."
            )
        return self.validation_rows

    def to_frame(self) -> pd.DataFrame:
        """Return one row per unit: ``unit, ops, n_ops`` and one column of µs per device."""
        rows = [
            (number, "\n".join(unit.ops), len(unit.ops), *unit.time_us)
            for number, unit in enumerate(self.units)
        ]
        times = [f"{device}_us" for device in self.devices]
        return frame_of(rows, ["unit", "ops", "n_ops", *times]).astype(dict.fromkeys(times, float))

    def check_graph(self, graph: OpGraph) -> None:
        """Raise PlanError unless this is the cost model of ``graph``."""
        nodes, others = _signature(self.graph), _signature(graph)
        missing = [name for name in others if name not in nodes]
        gone = [name for name in nodes if name not in others]
        common = [name for name in nodes if name in others]
        different = [name for name in common if not _same_op(nodes[name], others[name])]
        if not (missing or gone or different):
            return

        def some(names: list[str]) -> str:
            return f" ({names_at_hand(names, 3)})" if names else ""

        if missing or gone:
            what = f"{len(missing)} of the model's nodes are not in it{some(missing)}, "
            what += f"{len(gone)} of its nodes are not in the model{some(gone)}"
        else:
            what = f"{len(different)} ops differ{some(different)}"
        raise PlanError(
            f"This cost model belongs to another model ({shorten(self.graph.name)}, not "
            f"{shorten(graph.name)}): {what}. Make one with hetero_lab.calibrate(model, devices)."
        )

    def check_devices(self, devices: Iterable[str]) -> None:
        """Raise PlanError unless every one of ``devices`` is known."""
        check_devices(devices, self.devices)

    def check_scenario(self, scenario: Scenario | None) -> None:
        """Raise PlanError unless the times and the cache are those of this scenario."""
        if self.scenario != scenario:
            raise PlanError(
                f"This cost model holds for scenario={self.scenario!r}, not {scenario!r}. "
                "Calibrate with that, or leave costs= out."
            )

    def check_conditions(
        self, devices: tuple[str, ...], properties: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Raise PlanError unless the costs hold for these devices with these properties."""
        if devices != self.devices:
            raise PlanError(
                f"This cost model holds for {', '.join(self.devices)}, in this order, not for "
                f"{', '.join(devices)}."
            )
        for device in devices:
            ours, other = self.device_properties.get(device, {}), properties.get(device, {})
            if {k: str(v) for k, v in ours.items()} != {k: str(v) for k, v in other.items()}:
                raise PlanError(
                    f"This cost model holds for {device} with {dict(ours)!r}, not {dict(other)!r}. "
                    "Leave device_properties= out, or calibrate with these."
                )

    def check_support(self, support: Mapping[str, Collection[str]]) -> None:
        """Raise PlanError if a device no longer supports ops that it has costs for."""
        for device in self.devices:
            gone = sorted(self.supports(device) - set(support[device]))
            if gone:
                raise PlanError(
                    f"This cost model places {names_at_hand(gone)} on {device}, which does not "
                    "support that now. Calibrate again."
                )

    @checked
    def to_json(self, file: str | os.PathLike[str]) -> None:
        """Write a JSON file, whole or not at all."""
        write_json(file, {"kind": _KIND, "schema_version": SCHEMA_VERSION, **_to_data(self)})

    @classmethod
    @checked
    def from_json(cls, file: str | os.PathLike[str]) -> CostModel:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        StoredFileError
            The file is missing or is not a cost model.
        """
        data = read_json(file, kind=_KIND)
        try:
            return _from_data(data)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            why = str(error) if isinstance(error, ValueError) else repr(error)
            raise StoredFileError(
                f"{shorten(os.fspath(file))} is not a complete cost model: {why}. Make one with "
                "hetero_lab.calibrate(model, devices)."
            ) from error


def _as_arrays(costs: CostModel) -> Objective:
    """Lay out cost terms."""
    graph, devices = costs.graph, costs.devices
    n, d = len(graph), len(devices)
    index_of = graph.index_of
    unit_of_leader = np.full(n, -1, dtype=np.int64)
    op_ns = np.zeros((n, d), dtype=np.int64)
    supported = np.ones((n, d), dtype=bool)
    for number, unit in enumerate(costs.units):
        nodes = [index_of[op] for op in unit.ops]
        unit_of_leader[nodes] = number
        shares = np.cumsum(unit.share_of_each)
        shares[-1] = 1.0
        for column, time in enumerate(unit.time_us):
            supported[nodes, column] = time is not None
            total = np.rint((time or 0.0) * 1000.0)
            op_ns[nodes, column] = np.diff(np.rint(shares * total), prepend=0.0)
    first_tensor = MemoryTable.of(graph).first_tensor
    leave, enter = (np.zeros((first_tensor[-1], d), dtype=np.int64) for _ in range(2))
    chooses = np.zeros((n, d), dtype=bool)
    for term in costs.reorders:
        tensor = first_tensor[index_of[term.op]] + term.port
        leave[tensor] += whole_ns(term.leave_us)
        enter[tensor] += whole_ns(term.enter_us)
        if not term.keeps:
            chooses[index_of[term.op]] |= leave[tensor] > 0
    keeps = [(index_of[t.op], index_of[name]) for t in costs.reorders for name in t.keeps]
    free = BoundaryCost()
    boundary = [[costs.boundaries.get((s, t), free) for t in devices] for s in devices]
    fused = [(index_of[term.first], index_of[term.second]) for term in costs.lost_fusion]
    return Objective(
        graph=graph,
        devices=devices,
        units=costs.units,
        measured_memory=costs.measured_memory,
        top=topology(graph),
        unit_of=unit_of_leader[list(graph.leader)],
        op_ns=op_ns,
        supported=supported,
        fixed_ns=np.array([[cost.fixed_us * 1e3 for cost in row] for row in boundary]),
        ns_per_byte=np.array([[cost.us_per_byte * 1e3 for cost in row] for row in boundary]),
        leave_ns=leave,
        enter_ns=enter,
        chooses=chooses,
        keeps=np.array(sorted(keeps), dtype=np.int64).reshape(-1, 2)[:, ::-1],
        fused=np.array(fused, dtype=np.int64).reshape(-1, 2),
        first_ns=whole_ns([t.first_us for t in costs.lost_fusion]).reshape(-1, d),
        second_ns=whole_ns([t.second_us for t in costs.lost_fusion]).reshape(-1, d),
        subgraph_ns=whole_ns([costs.subgraph_us[device] for device in devices]),
        constant_ns=int(whole_ns([costs.constant_us])[0]),
        most_spread_ns=int(whole_ns([costs.spread_us])[0]),
    )


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


def _same_op(node: Any, other: Any) -> bool:
    """Compare two entries of a signature; sizes count where both know them."""
    if node[:2] != other[:2] or len(node[2]) != len(other[2]):
        return False
    return all(a is None or b is None or a == b for a, b in zip(node[2], other[2], strict=True))


def _to_data(costs: CostModel) -> dict[str, Any]:
    """Return the document that is stored."""
    data = {name: getattr(costs, name) for name in _TYPES}
    data["validation"] = data.pop("validation_rows")
    data["graph"] = graph_to_json(costs.graph)
    data["boundaries"] = [
        (*pair, cost.fixed_us, cost.us_per_byte) for pair, cost in costs.boundaries.items()
    ]
    if costs.prefill is not None:
        data["prefill"] = _to_data(costs.prefill)
        del data["prefill"]["graph"]
    return msgspec.to_builtins(data, enc_hook=np.generic.item)


def _from_data(data: dict[str, Any]) -> CostModel:
    fields: dict[str, Any] = {"graph": graph_from_json(data["graph"])}
    data = {**data, "validation_rows": data["validation"]}
    for name, kind in {**_TYPES, "boundaries": list[tuple[str, str, float, float]]}.items():
        if name == "prefill" and data.get(name):
            fields[name] = _from_data({**data[name], "graph": data["graph"]})
        elif name != "graph" and (name in data or name not in _ADDED_LATER):
            try:
                fields[name] = msgspec.convert(data[name], kind)
            except msgspec.ValidationError as error:
                raise ValueError(f"{name}: {error}") from error
    boundaries = {(source, end): BoundaryCost(*cost) for source, end, *cost in fields["boundaries"]}
    return CostModel(**{**fields, "boundaries": boundaries})


_TYPES = get_type_hints(CostModel)
# Files of earlier versions lack these.
_ADDED_LATER = {"notes", "interrupted", "scenario", "prefill", "seen_us", "measured_memory"}
_ADDED_LATER |= {"executor_us", "contention"}


def _check_terms(costs: CostModel) -> None:
    """Raise PlanError where parts of a cost model contradict each other or are not valid costs."""
    devices, n = costs.devices, len(costs.devices)
    if not devices or len(set(devices)) != n:
        raise PlanError(f"A cost model needs devices, each once: {names_at_hand(devices)}.")
    _check_units(costs)
    check_devices([*itertools.chain(*costs.boundaries), *costs.measured_memory], devices)
    _check_costs(map(costs.subgraph_us.get, devices), "The cost of a subgraph")
    _check_costs([costs.constant_us], "The constant")
    _check_costs([costs.spread_us], "The cost of spread memory")
    _check_costs([costs.executor_us], "The parallel executor")
    _check_costs([costs.contention - 1.0], "The contention above 1")
    for pair in {*itertools.permutations(devices, 2), *costs.boundaries}:
        price = costs.boundaries.get(pair, BoundaryCost(math.nan))
        _check_costs(
            [price.fixed_us, price.us_per_byte], f"The boundary from {pair[0]} to {pair[1]}"
        )
    if any(len(parts) != n + 1 or not all(map(math.isfinite, parts)) for parts in costs.seen_us):
        raise PlanError(f"A placement that was seen has {n + 1} parts, each a finite number.")
    graph = costs.graph
    placeable = {graph.ops[index].name for index in graph.placeable}
    for term in costs.lost_fusion:
        where = f"The lost fusion of {shorten(term.first)} and {shorten(term.second)}"
        _check_names([term.first, term.second], placeable, where)
        _check_columns([term.first_us, term.second_us], n, where)
    for term in costs.reorders:
        where = f"The reorder of {shorten(term.op)}:{term.port}"
        _check_names([term.op], graph.index_of, where)
        op = graph.op(term.op)
        if not 0 <= term.port < len(op.outputs):
            raise PlanError(f"{where}: the op has no such output.")
        _check_columns([term.leave_us, term.enter_us], n, where)
        producers = [graph.ops[producer] for producer, _ in op.inputs]
        single = {other.name for other in producers if len(other.outputs) == 1}
        for name in term.keeps:
            if name not in single:
                raise PlanError(
                    f"{shorten(term.op)} does not have the layout of {shorten(name)}: it does not "
                    "read that op, or that op has several outputs."
                )
    for device, parts in costs.measured_memory.items():
        for part in parts:
            _check_costs([part.weight_bytes, part.state_bytes], f"The memory measured on {device}")
            if not part.units or not set(part.units) <= set(range(len(costs.units))):
                raise PlanError(
                    f"The memory measured on {device} names units that the model does not have."
                )
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
        _check_costs([t for t in unit.time_us if t is not None], where)
        if unit.shares and (
            len(unit.shares) != len(unit.ops) or not math.isclose(sum(unit.shares), 1.0)
        ):
            raise PlanError(f"{where} needs one share for each op; they must add up to 1.")
        _check_costs(unit.shares, where)
        for op in unit.ops:
            if op not in placeable or op in unit_of:
                why = "is in two units" if op in unit_of else "is not an op that can be placed"
                raise PlanError(f"{shorten(op)} {why}; see {where}.")
            unit_of[op] = number
    orphans = sorted(placeable - unit_of.keys())
    if orphans:
        raise PlanError(f"{len(orphans)} ops are in no unit: {names_at_hand(orphans)}.")
    for path in graph.stateful_paths:
        names = [graph.ops[index].name for index in path]
        if len({unit_of[name] for name in names if name in unit_of}) > 1:
            raise PlanError(
                f"{names_at_hand(names)} belong to one stateful path and must be in one unit."
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


def _check_costs(values: Iterable[float | None], where: str) -> None:
    """Raise PlanError unless all values are finite numbers of at least 0."""
    for value in values:
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise PlanError(f"{where}: {value!r} is not a cost. Costs are finite and at least 0.")


def _check_names(names: Iterable[str], available: Container[str], where: str) -> None:
    for name in names:
        if name not in available:
            raise PlanError(
                f"{where}: {shorten(name)} is not an op of the model that can be placed."
            )


def _check_columns(columns: Iterable[tuple[float, ...]], length: int, where: str) -> None:
    for column in columns:
        if len(column) != length:
            raise PlanError(f"{where} needs one cost for each of the {length} devices.")
        _check_costs(column, where)
