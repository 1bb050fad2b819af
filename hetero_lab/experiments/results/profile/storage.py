"""A profile as plain data, for files and for workers' answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hetero_lab.errors import shorten
from hetero_lab.experiments.measure.environment import environment_from_json
from hetero_lab.experiments.results.profile.data import ProfileData, Throughput
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import graph_from_json, graph_to_json
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, partition_from_json, partition_to_json
from hetero_lab.runtime.chosen import Chosen
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.generation import Generation
from hetero_lab.runtime.reference import Agreement
from hetero_lab.runtime.runners import HETERO
from hetero_lab.runtime.timeline import Span
from hetero_lab.statistics import Latency
from hetero_lab.tables import SCHEMA_VERSION


def to_json(profile: ProfileData) -> dict[str, Any]:
    """Return a profile as plain data."""
    return {
        "kind": "profile",
        "schema_version": SCHEMA_VERSION,
        "label": profile.label,
        "model_fingerprint": profile.model_fingerprint,
        "graph": graph_to_json(profile.graph),
        "affinity": [profile.affinity[op.name] for op in profile.graph],
        "turns_us": [list(turn) for turn in profile.latency.turns],
        "partition": partition_to_json(profile.partition),
        "as_predicted": profile.as_predicted,
        "counters": [asdict(c) for c in profile.counters],
        "agreement": agreement_to_json(profile.agreement),
        "compile_ms": profile.compile_ms,
        "first_inference_ms": profile.first_inference_ms,
        "peak_rss_bytes": profile.peak_rss_bytes,
        "environment": asdict(profile.environment),
        "interrupted": profile.interrupted,
        "executor": profile.executor,
        "chosen": asdict(profile.chosen),
        "spans": spans_to_json(profile.spans),
        "generation": generation_to_json(profile.generation),
        "throughput": [
            {
                **{k: getattr(t, k) for k in ("executor", "n_requests", "exclusive")},
                "between_us": [list(turn) for turn in t.between.turns],
                "latency_us": [list(turn) for turn in t.latency.turns],
            }
            for t in profile.throughput
        ],
    }


def from_json(data: Mapping[str, Any]) -> ProfileData:
    """Build a profile's data from plain data; raises all sorts of errors where it is not whole."""
    graph = graph_from_json(data["graph"])
    partition = partition_from_json(data["partition"])
    devices = dict(zip((op.name for op in graph), data["affinity"], strict=True))
    return ProfileData(
        label=_text(data["label"]),
        model_fingerprint=data["model_fingerprint"],
        graph=graph,
        affinity=Affinity.from_graph(graph, devices),
        latency=_latency(data["turns_us"]),
        partition=partition,
        as_predicted=data["as_predicted"],
        counters=counters_from_json(data["counters"]),
        agreement=agreement_from_json(data["agreement"]),
        compile_ms=float(data["compile_ms"]),
        first_inference_ms=float(data["first_inference_ms"]),
        peak_rss_bytes=int(data["peak_rss_bytes"]),
        environment=environment_from_json(data["environment"]),
        interrupted=bool(data["interrupted"]),
        # What was stored before there was another executor has none of these.
        executor=str(data.get("executor", HETERO)),
        spans=spans_from_json(data.get("spans", ()), partition),
        chosen=chosen_from_json(data.get("chosen", {})),
        generation=generation_from_json(data.get("generation"), _latency(data["turns_us"])),
        throughput=tuple(
            Throughput(
                executor=t["executor"],
                n_requests=int(t["n_requests"]),
                exclusive=t["exclusive"],
                between=_latency(t["between_us"]),
                latency=_latency(t["latency_us"]),
            )
            for t in data.get("throughput", ())
        ),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shorten(repr(value))} is no text")
    return value


def _latency(turns: Sequence[Sequence[float]]) -> Latency:
    return Latency(tuple(tuple(map(float, turn)) for turn in turns))


def generation_to_json(generation: Generation | None) -> dict[str, Any] | None:
    """Return a generation as plain data, but for the times of further tokens."""
    if generation is None:
        return None
    return {
        "scenario": asdict(generation.scenario),
        "first_us": list(generation.ttft.samples_us),
        "tokens": [list(sequence) for sequence in generation.tokens],
    }


def generation_from_json(data: Mapping[str, Any] | None, further: Latency) -> Generation | None:
    """Build a generation from plain data and the times of its further tokens."""
    if data is None:
        return None
    return Generation(
        scenario=Scenario(**data["scenario"]),
        ttft=Latency(tuple((float(first_us),) for first_us in data["first_us"])),
        tpot=further,
        tokens=tuple(tuple(map(int, sequence)) for sequence in data["tokens"]),
    )


def spans_to_json(spans: Sequence[Span]) -> list[list[Any]]:
    """Return spans as plain data."""
    return [[s.request, s.subgraph, s.start_s, s.end_s] for s in spans]


def spans_from_json(rows: Sequence[Sequence[Any]], partition: Partition) -> tuple[Span, ...]:
    """Build spans from plain data; IndexError where one is of no subgraph."""
    return tuple(
        Span(int(request), int(subgraph), partition.subgraphs[subgraph].device, start_s, end_s)
        for request, subgraph, start_s, end_s in rows
    )


def counters_from_json(rows: Sequence[Mapping[str, Any]]) -> tuple[Counter, ...]:
    """Build counters from plain data."""
    return tuple(Counter(**{**row, "fused_ops": tuple(row["fused_ops"])}) for row in rows)


def agreement_to_json(agreement: Sequence[Agreement]) -> list[dict[str, Any]]:
    """Return agreements as plain data; JSON knows no NaN, so it becomes null."""
    return [{k: (None if v != v else v) for k, v in asdict(a).items()} for a in agreement]


def agreement_from_json(rows: Sequence[Mapping[str, Any]]) -> tuple[Agreement, ...]:
    """Build agreements from plain data."""
    nan = float("nan")
    whole: list[dict[str, Any]] = [
        {k: (nan if v is None else v) for k, v in row.items()} for row in rows
    ]
    return tuple(Agreement(**row) for row in whole)


def chosen_from_json(data: Mapping[str, Any]) -> Chosen:
    """Build from what ``asdict`` gives; empty where it was not stored."""
    return Chosen(**{**data, "devices": tuple(data.get("devices", ()))})
