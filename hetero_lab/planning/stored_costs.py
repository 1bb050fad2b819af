"""Cost models as JSON files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import PlanError, StoredFileError, shorten
from hetero_lab.model.opgraph import PARAMETER, RESULT, OpGraph, graph_from_json, graph_to_json
from hetero_lab.tables import SCHEMA_VERSION, read_json, write_json

if TYPE_CHECKING:
    from hetero_lab.planning.cost_model import CostModel

_KIND = "cost model"
_EMULATED = re.compile(r"\(emulated on (.+)\)$")


def write_cost_model(costs: CostModel, path: str | os.PathLike[str]) -> None:
    """Write a cost model, whole or not at all."""
    write_json(
        path,
        {
            "kind": _KIND,
            "schema_version": SCHEMA_VERSION,
            "graph": graph_to_json(costs.graph),
            "devices": list(costs.devices),
            "device_properties": {d: dict(p) for d, p in costs.device_properties.items()},
            "environment": dict(costs.environment),
            "emulated": dict(costs.emulated),
            "notes": list(costs.notes),
            "interrupted": costs.interrupted,
            "fingerprint": costs.fingerprint,
            "units": [[list(u.ops), list(u.time_us), list(u.shares)] for u in costs.units],
            "boundaries": [
                [source, target, cost.fixed_us, cost.us_per_byte]
                for (source, target), cost in costs.boundaries.items()
            ],
            "subgraph_us": dict(costs.subgraph_us),
            "constant_us": costs.constant_us,
            "spread_us": costs.spread_us,
            "lost_fusion": [
                [t.first, t.second, list(t.first_us), list(t.second_us)] for t in costs.lost_fusion
            ],
            "reorders": [
                [t.op, t.port, list(t.leave_us), list(t.enter_us), t.layout_of]
                for t in costs.reorders
            ],
            "validation": [
                [r.label, r.predicted_us, r.measured_us, r.n_subgraphs]
                for r in costs.validation_rows
            ],
        },
    )


def read_cost_model(path: str | os.PathLike[str]) -> CostModel:
    """Read what :func:`write_cost_model` wrote.

    Raises
    ------
    StoredFileError
        The file is missing or is not a cost model.
    """
    data = read_json(path, kind=_KIND)
    try:
        return _from_data(data)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        why = str(error) if isinstance(error, PlanError) else repr(error)
        raise StoredFileError(
            f"{shorten(os.fspath(path))} is not a whole cost model: {why}"
        ) from error


def _from_data(data: dict[str, Any]) -> CostModel:
    from hetero_lab.planning.cost_model import (
        BoundaryCost,
        CostModel,
        LostFusion,
        Reorder,
        Unit,
        ValidationRow,
    )

    graph = graph_from_json(data["graph"])
    _check_graph(graph)
    environment = {str(k): str(v) for k, v in data["environment"].items()}
    emulated = data["emulated"] if "emulated" in data else _marked_emulated(environment)
    return CostModel(
        graph=graph,
        devices=tuple(map(str, data["devices"])),
        units=tuple(
            Unit(
                tuple(map(str, ops)),
                tuple(None if time is None else float(time) for time in times),
                _floats(shares),
            )
            for ops, times, shares in data["units"]
        ),
        boundaries={
            (str(source), str(target)): BoundaryCost(float(fixed), float(per_byte))
            for source, target, fixed, per_byte in data["boundaries"]
        },
        subgraph_us={str(device): float(us) for device, us in data["subgraph_us"].items()},
        constant_us=float(data["constant_us"]),
        spread_us=float(data["spread_us"]),
        lost_fusion=tuple(
            LostFusion(str(first), str(second), _floats(first_us), _floats(second_us))
            for first, second, first_us, second_us in data["lost_fusion"]
        ),
        reorders=tuple(
            Reorder(str(op), int(port), _floats(leave), _floats(enter), str(layout_of))
            for op, port, leave, enter, layout_of in data["reorders"]
        ),
        device_properties={str(d): dict(p) for d, p in data["device_properties"].items()},
        environment=environment,
        emulated={str(k): str(v) for k, v in emulated.items()},
        notes=tuple(map(str, data.get("notes", ()))),
        interrupted=bool(data.get("interrupted", False)),
        fingerprint=str(data["fingerprint"]),
        validation_rows=tuple(
            ValidationRow(str(label), float(predicted), float(measured), int(n))
            for label, predicted, measured, n in data["validation"]
        ),
    )


def _marked_emulated(environment: Mapping[str, str]) -> dict[str, str]:
    """Read what files of version 0.1 say only in the full names of devices."""
    marks = {device: _EMULATED.search(name) for device, name in environment.items()}
    return {device: mark[1] for device, mark in marks.items() if mark}


def _check_graph(graph: OpGraph) -> None:
    """Raise ValueError where a graph is none that a model could have."""
    if len(graph.index_of) != len(graph):
        raise ValueError("two ops have one name")
    for op in graph:
        if not (op.variable is None or isinstance(op.variable, str)):
            raise ValueError(f"the variable of op {op.index} is no name")
        if op.type == RESULT and len(op.inputs) != 1:
            raise ValueError(f"result {op.index} has {len(op.inputs)} inputs")
        for tensor in op.outputs:
            n_bytes = tensor.n_bytes
            if n_bytes is not None and not (isinstance(n_bytes, int) and 0 <= n_bytes < 1 << 50):
                raise ValueError(f"{n_bytes!r} is no number of bytes (op {op.index})")
    for indices, kind in ((graph.parameters, PARAMETER), (graph.results, RESULT)):
        if sorted(indices) != [op.index for op in graph if op.type == kind]:
            raise ValueError(f"the {kind.lower()}s are not those of the ops")


def _floats(values: list[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))
