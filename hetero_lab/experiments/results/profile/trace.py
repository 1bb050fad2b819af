"""A Profile as Trace Event JSON, which Perfetto and chrome://tracing open.

Where spans were measured, a slice is when a subgraph really ran. Counters have no start times:
without spans the timeline is reconstructed, subgraphs follow each other in execution order and
executed nodes follow each other within a subgraph. Its name says which of the two it is.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.results.profile.data import ProfileData
from hetero_lab.experiments.results.profile.tables import timeline
from hetero_lab.tables import write_json

# Counters end at a microsecond. A subgraph without length would lie inside of its neighbour, and
# the arrows at it would begin and end there. Perfetto cuts off what is below a nanosecond: only
# sums that are exact, hence powers of two, keep one slice from reaching into the next.
_LEAST_US = 1 / 128
_EXACT = 1024


def write_trace(profile: ProfileData, file: str | os.PathLike[str]) -> None:
    """Write the trace: one lane a device, a slice a subgraph with its nodes, arrows at boundaries.

    Raises
    ------
    MeasurementError
        The profile has neither spans nor counters.
    OutputPathError
        The file cannot be written.
    """
    write_json(file, {"traceEvents": events(profile), "displayTimeUnit": "ms"})


def events(profile: ProfileData) -> list[dict[str, Any]]:
    """Return the trace events; times in µs."""
    lanes = {device: index + 1 for index, device in enumerate(profile.affinity.devices)}
    if profile.spans:
        return _named(profile, lanes, "measured") + _measured(profile, lanes)
    if not profile.counters:
        raise MeasurementError(
            "A trace is made of counters, and this profile has none. Profile with counters=True."
        )
    return _named(profile, lanes, "reconstructed from counters") + _reconstructed(profile, lanes)


def _named(profile: ProfileData, lanes: dict[str, int], how: str) -> list[dict[str, Any]]:
    emulated = dict(profile.environment.emulated)
    made: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{profile.label} ({how})"}}
    ]
    for device, lane in lanes.items():
        name = f"{device} (emulated on {emulated[device]})" if device in emulated else device
        made.append(
            {"ph": "M", "pid": 1, "tid": lane, "name": "thread_name", "args": {"name": name}}
        )
    return made


def _measured(profile: ProfileData, lanes: dict[str, int]) -> list[dict[str, Any]]:
    """Return a slice a run of a subgraph, and the arrows of each request."""
    made: list[dict[str, Any]] = []
    of_request: dict[int, dict[int, tuple[float, float]]] = {}
    for row in timeline(profile):
        start, end = row["start_us"], row["end_us"]
        of_request.setdefault(row["request"], {})[row["subgraph"]] = (start, end)
        made.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": lanes[row["device"]],
                "name": f"subgraph{row['subgraph']}",
                "cat": "subgraph",
                "ts": start,
                "dur": end - start,
                "args": {
                    "request": row["request"],
                    "critical": row["critical"],
                    "ops": len(profile.partition.subgraphs[row["subgraph"]].ops),
                },
            }
        )
    number = itertools.count(1)
    for spans in of_request.values():
        made += _arrows(profile, lanes, spans, number)
    return made


def _reconstructed(profile: ProfileData, lanes: dict[str, int]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    spans: dict[int, tuple[float, float]] = {}
    at = 0.0
    for subgraph in profile.partition.subgraphs:
        start, lane = at, lanes[subgraph.device]
        nodes: list[dict[str, Any]] = []
        for counter in profile.counters:
            if counter.subgraph != subgraph.index or counter.status != "EXECUTED":
                continue
            duration_us = round(counter.real_time_us * _EXACT) / _EXACT
            nodes.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": lane,
                    "name": counter.node_name,
                    "cat": counter.kind,
                    "ts": at,
                    "dur": duration_us,
                    "args": {
                        "type": counter.node_type,
                        "exec_type": counter.exec_type,
                        "tensor": counter.tensor,
                        "fused": "\n".join(counter.fused_ops),
                    },
                }
            )
            at += duration_us
        at = max(at, start + _LEAST_US)
        spans[subgraph.index] = (start, at)
        # Before its nodes: of slices that are equally long, the first is the outer one.
        made.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": lane,
                "name": f"subgraph{subgraph.index}",
                "cat": "subgraph",
                "ts": start,
                "dur": at - start,
                "args": {"ops": len(subgraph.ops)},
            }
        )
        made += nodes
    return made + _arrows(profile, lanes, spans, itertools.count(1))


def _arrows(
    profile: ProfileData,
    lanes: dict[str, int],
    spans: dict[int, tuple[float, float]],
    number: Iterator[int],
) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    subgraphs = profile.partition.subgraphs
    for boundary in profile.partition.boundaries:
        for target in boundary.targets:
            common = {"pid": 1, "id": next(number), "name": boundary.tensor, "cat": "boundary"}
            args = {"n_bytes": boundary.n_bytes}
            out_at = max(spans[boundary.source][0], spans[boundary.source][1] - _LEAST_US / 2)
            made.append(
                {
                    **common,
                    "ph": "s",
                    "tid": lanes[subgraphs[boundary.source].device],
                    "ts": out_at,
                    "args": args,
                }
            )
            made.append(
                {
                    **common,
                    "ph": "f",
                    "bp": "e",
                    "tid": lanes[subgraphs[target].device],
                    "ts": spans[target][0],
                    "args": args,
                }
            )
    return made
