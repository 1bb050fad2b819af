"""A Profile as Trace Event JSON, for Perfetto and chrome://tracing.

If spans were measured, a slice shows when a subgraph ran. Counters have no start times, so without
spans the timeline is reconstructed: subgraphs follow each other in execution order, and executed
nodes follow each other within a subgraph. The name of the process says which of the two it is.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any, TypeAlias

from hetero_lab.errors import MeasurementError
from hetero_lab.results.profile_data import ProfileData
from hetero_lab.results.profile_tables import timeline
from hetero_lab.tables import write_json

# Counters have a resolution of a microsecond, so a subgraph may have no length at all. It would lie
# inside its neighbour, and its arrows would begin and end there: every slice gets a least length.
# Perfetto cuts off fractions of a nanosecond. Only exact sums, hence powers of two, keep a slice
# from reaching into the next.
_LEAST_US = 1 / 128
_EXACT = 1024  # steps of a microsecond, about a nanosecond each

_Times: TypeAlias = tuple[float, float]  # start and end in µs
_Lanes: TypeAlias = tuple[list[dict[str, Any]], list[dict[int, _Times]]]  # slices; requests


def write_trace(profile: ProfileData, file: str | os.PathLike[str]) -> None:
    """Write lanes, slices and arrows; MeasurementError if there are neither spans nor counters."""
    write_json(file, {"traceEvents": events(profile), "displayTimeUnit": "ms"})


def events(profile: ProfileData) -> list[dict[str, Any]]:
    """Return the trace events; times in µs."""
    ran_on = (subgraph.device for subgraph in profile.partition.subgraphs)
    devices = dict.fromkeys([*profile.affinity.devices, *ran_on])
    lanes = {device: index + 1 for index, device in enumerate(devices)}
    if profile.spans:
        how, (slices, requests) = "measured", _span_lanes(profile, lanes)
    elif profile.counters:
        how, (slices, requests) = "reconstructed from counters", _counter_lanes(profile, lanes)
    else:
        raise MeasurementError(
            "A trace needs counters. Profile with counters=True; some op must take at least 1 µs."
        )
    number = itertools.count(1)
    arrows = [arrow for spans in requests for arrow in _arrows(profile, lanes, spans, number)]
    return [*_metadata(profile, lanes, how), *slices, *arrows]


def _metadata(profile: ProfileData, lanes: dict[str, int], how: str) -> list[dict[str, Any]]:
    emulated = dict(profile.environment.emulated)
    metadata: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{profile.label} ({how})"}}
    ]
    for device, lane in lanes.items():
        name = f"{device} (emulated on {emulated[device]})" if device in emulated else device
        metadata.append(
            {"ph": "M", "pid": 1, "tid": lane, "name": "thread_name", "args": {"name": name}}
        )
    return metadata


def _slice(name: str, category: str, lane: int, span: _Times, **args: Any) -> dict[str, Any]:
    start, end = span
    place = {"ph": "X", "pid": 1, "tid": lane}
    return {**place, "name": name, "cat": category, "ts": start, "dur": end - start, "args": args}


def _of_subgraph(
    profile: ProfileData, lanes: dict[str, int], index: int, span: _Times, **args: Any
) -> dict[str, Any]:
    subgraph = profile.partition.subgraphs[index]
    args["ops"] = len(subgraph.ops)
    return _slice(f"subgraph{index}", "subgraph", lanes[subgraph.device], span, **args)


def _span_lanes(profile: ProfileData, lanes: dict[str, int]) -> _Lanes:
    slices: list[dict[str, Any]] = []
    requests: dict[int, dict[int, _Times]] = {}
    for row in timeline(profile):
        span = row["start_us"], row["end_us"]
        requests.setdefault(row["request"], {})[row["subgraph"]] = span
        more = {name: row[name] for name in ("request", "critical")}
        slices.append(_of_subgraph(profile, lanes, row["subgraph"], span, **more))
    return slices, list(requests.values())


def _counter_lanes(profile: ProfileData, lanes: dict[str, int]) -> _Lanes:
    slices: list[dict[str, Any]] = []
    spans: dict[int, _Times] = {}
    at = 0.0
    for subgraph in profile.partition.subgraphs:
        start, lane = at, lanes[subgraph.device]
        nodes: list[dict[str, Any]] = []
        for counter in profile.counters:
            if counter.subgraph != subgraph.index or counter.status != "EXECUTED":
                continue
            span = at, at + round(counter.real_time_us * _EXACT) / _EXACT
            more = {"type": counter.node_type, "exec_type": counter.exec_type}
            more |= {"tensor": counter.tensor, "fused": "\n".join(counter.fused_ops)}
            nodes.append(_slice(counter.node_name, counter.kind, lane, span, **more))
            at = span[1]
        at = max(at, start + _LEAST_US)
        spans[subgraph.index] = (start, at)
        # The subgraph precedes its nodes: of slices with equal times, the first is the outer one.
        slices += [_of_subgraph(profile, lanes, subgraph.index, (start, at)), *nodes]
    return slices, [spans]


def _arrows(
    profile: ProfileData, lanes: dict[str, int], spans: dict[int, _Times], number: Iterator[int]
) -> Iterator[dict[str, Any]]:
    lane_of = [lanes[subgraph.device] for subgraph in profile.partition.subgraphs]
    for boundary in profile.partition.boundaries:
        source = boundary.source
        start, end = spans[source]
        out_at = max(start, end - _LEAST_US / 2)
        for target in boundary.targets:
            common = {
                "pid": 1,
                "id": next(number),
                "name": boundary.tensor,
                "cat": "boundary",
                "args": {"n_bytes": boundary.n_bytes},
            }
            into = spans[target][0]
            yield {**common, "ph": "s", "tid": lane_of[source], "ts": out_at}
            yield {**common, "ph": "f", "bp": "e", "tid": lane_of[target], "ts": into}
