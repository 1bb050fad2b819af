"""The tables of a Profile: one tidy DataFrame each, units in the column names."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from hetero_lab.intervals import Estimate
from hetero_lab.placement.overlap import sources
from hetero_lab.planning.timeline import Span, critical_path, idle_times
from hetero_lab.results.profile_data import Generation, ProfileData
from hetero_lab.runtime.counters import (
    Counter,
    executed_ops_us,
    executed_precisions,
    leaders,
    reorders_us,
    total_us,
)
from hetero_lab.runtime.reference import VERDICTS, Agreement
from hetero_lab.tables import Tables, frame_of

# Precisions that a device may choose from; others (i32, boolean) are given by the model.
_CHOSEN = frozenset(["f64", "f32", "f16", "bf16", "i8", "u8"])


def build_tables(profile: ProfileData) -> Tables:
    """Return all tables of a profile by name; the last five only if they were measured."""
    emulated = dict(profile.environment.emulated)
    tables = Tables(
        {
            "summary": frame_of([summary_row(profile)], SUMMARY_COLUMNS),
            "latency": frame_of(_samples(profile)),
            "subgraphs": frame_of(_subgraphs(profile)),
            "counters": frame_of(counter_rows(profile.counters, emulated), COUNTER_COLUMNS),
            "boundaries": frame_of(_boundaries(profile), _BOUNDARY_COLUMNS),
            "placement": frame_of(_placement(profile)),
            "agreement": frame_of([asdict(a) for a in profile.agreement], COLUMNS["agreement"]),
        }
    )
    if profile.counters:
        tables["transitions"] = frame_of(transitions(profile), TRANSITION_COLUMNS)
    if profile.spans:
        tables["timeline"] = frame_of(timeline(profile))
        devices = dict.fromkeys(subgraph.device for subgraph in profile.partition.subgraphs)
        tables["idle"] = frame_of(idle_times(profile.spans, devices))
    if profile.throughput:
        tables["throughput"] = frame_of(_throughput(profile))
    if profile.generation is not None:
        tables["generation"] = frame_of([_generation(profile.generation)])
    return tables


def _generation(generation: Generation) -> dict[str, Any]:
    tokens = " | ".join(" ".join(map(str, sequence)) for sequence in generation.tokens)
    columns = generation_columns(generation, generation.tpot.estimate)
    return {**asdict(generation.scenario), **columns, "token_ids": tokens}


def generation_columns(generation: Generation, further: Estimate) -> dict[str, float]:
    """Return the times of a generation, with the given estimate of the time per further token."""
    ttft_low, ttft_high = generation.ttft_ci95_ms
    n_per_us = 1e6 * generation.scenario.batch
    return {
        "ttft_ms": generation.ttft_ms,
        "ttft_ci95_low_ms": ttft_low,
        "ttft_ci95_high_ms": ttft_high,
        "tpot_ms": further.us / 1e3,
        "tpot_ci95_low_ms": further.low_us / 1e3,
        "tpot_ci95_high_ms": further.high_us / 1e3,
        "tokens_per_s": n_per_us / further.us,
        "tokens_per_s_ci95_low": n_per_us / further.high_us,
        # With few generations on a busy machine, the interval of the time may begin at 0.
        "tokens_per_s_ci95_high": n_per_us / further.low_us if further.low_us else math.inf,
    }


def _samples(profile: ProfileData) -> list[dict[str, Any]]:
    """Return a row per timed inference, in order."""
    return [
        {"label": profile.label, "turn": number, "index": index, "latency_us": latency_us}
        for number, turn in enumerate(profile.latency.turns)
        for index, latency_us in enumerate(turn)
    ]


INTERVAL = ["median_us", "ci95_low_us", "ci95_high_us"]
_SPLIT = ["n_subgraphs", "n_boundaries", "boundary_bytes"]
_START = ["first_inference_ms", "compile_ms", "peak_rss_bytes"]
_PARTS = ["ops_us", "reorders_us", "rest_us", "counters_exceed_latency"]
_SUBJECT = ["label", "configuration", "model", "status", "executor", "devices", "emulated", "n_ops"]
_LATENCY = ["median_us", "p90_us", "p99_us", "mad_us", "ci95_low_us", "ci95_high_us", "n_samples"]
_CHOICES = ["execution_devices", "n_streams", "optimal_requests", "from_cache"]
_PROOF = ["partition", "as_predicted", "verdict", "max_relative_error"]
_ORIGIN = ["openvino_version", "host", "measured_at", "model_fingerprint"]
SUMMARY_COLUMNS = [*_SUBJECT, *_SPLIT, *_LATENCY, *_START, *_CHOICES, *_PARTS, *_PROOF, *_ORIGIN]
HEADLINE = ["configuration", *INTERVAL, "p90_us", "n_subgraphs", "boundary_bytes", "compile_ms"]
HEADLINE += ["first_inference_ms", "verdict"]
_PLACE = ["subgraph", "device", "emulated"]
_NODE = ["node_name", "node_type", "exec_type", "precision", "status", "real_time_us"]
COUNTER_COLUMNS = [*_PLACE, "kind", "op", "fused_ops", "tensor", *_NODE, "cpu_time_us"]
_EXECUTED = ["n_ops", "n_executed", "ops_us", "reorders_us"]
_CROSSING = ["n_inputs", "input_bytes", "n_outputs", "output_bytes"]
_ENDS = ["source", "source_device", "targets", "target_devices"]
_BOUNDARY_COLUMNS = ["tensor", "shape", "element_type", "n_bytes", *_ENDS, "reorder_us"]
_OP = ["op", "op_type", "device", "emulated", "subgraph"]
_PAIR = ["producer", "consumer", "from_device", "from_precision", "to_device", "to_precision"]
TRANSITION_COLUMNS = [*_PAIR, "where", "handed_over_as", "n_bytes", "from_subgraph", "to_subgraph"]
COLUMNS = {
    "latency": ["turn", "index", "latency_us"],
    "subgraphs": [*_PLACE, *_EXECUTED, *_CROSSING, "precisions", "ops"],
    "counters": COUNTER_COLUMNS,
    "boundaries": _BOUNDARY_COLUMNS,
    "placement": [*_OP, "shape", "output_bytes", "fused_with", "precision", "time_us"],
    "agreement": [field.name for field in fields(Agreement)],
    "transitions": TRANSITION_COLUMNS,
}


def summary_row(profile: ProfileData) -> dict[str, Any]:
    """Return the summary of a profile, with the keys of ``SUMMARY_COLUMNS``."""
    latency, partition, environment = profile.latency, profile.partition, profile.environment
    low, high = latency.ci95_us
    verdicts = (agreement.verdict for agreement in profile.agreement)
    errors = (a.relative_error for a in profile.agreement if a.verdict != "undecided")
    return {
        "label": profile.label,
        "configuration": profile.configuration,
        "model": profile.graph.name,
        "status": "interrupted" if profile.interrupted else "ok",
        "executor": profile.executor,
        "devices": ",".join(profile.affinity.devices),
        "emulated": ",".join(name for name, _ in environment.emulated),
        "n_ops": len(profile.affinity.ops),
        "n_subgraphs": partition.n_subgraphs,
        "n_boundaries": len(partition.boundaries),
        "boundary_bytes": partition.boundary_bytes,
        "median_us": latency.median_us,
        "p90_us": latency.p90_us,
        "p99_us": latency.p99_us,
        "mad_us": latency.mad_us,
        "ci95_low_us": low,
        "ci95_high_us": high,
        "n_samples": len(latency),
        "first_inference_ms": profile.first_inference_ms,
        "compile_ms": profile.compile_ms,
        "peak_rss_bytes": profile.peak_rss_bytes,
        "execution_devices": ",".join(profile.chosen.devices),
        "n_streams": profile.chosen.n_streams,
        "optimal_requests": profile.chosen.n_requests,
        "from_cache": profile.chosen.from_cache,
        **time_parts(profile.counters, latency.median_us),
        "partition": "observed" if partition.observed else "predicted",
        "as_predicted": profile.as_predicted,
        "verdict": max(verdicts, key=VERDICTS.index, default="not compared"),
        "max_relative_error": max(errors, default=None),
        "openvino_version": environment.openvino_version,
        "host": environment.host,
        "measured_at": environment.measured_at,
        "model_fingerprint": profile.model_fingerprint,
    }


def time_parts(counters: Sequence[Counter], latency_us: float) -> dict[str, Any]:
    """Split a latency into ops, reorders, and the rest, which counters do not cover."""
    if not counters:
        return dict.fromkeys(_PARTS)
    ops_us = total_us(counters, "op", "other")
    reordered_us = total_us(counters, "reorder")
    rest_us = latency_us - ops_us - reordered_us
    return {
        "ops_us": ops_us,
        "reorders_us": reordered_us,
        # Counters are from a second compile: their sum may exceed the wall time (overlap, noise).
        "rest_us": max(0.0, rest_us),
        "counters_exceed_latency": rest_us < 0,
    }


def _subgraphs(profile: ProfileData) -> Iterator[dict[str, Any]]:
    emulated = dict(profile.environment.emulated)
    boundaries = profile.partition.boundaries
    precision = executed_precisions(profile.counters)
    for subgraph in profile.partition.subgraphs:
        counters = [c for c in profile.counters if c.subgraph == subgraph.index]
        incoming = [b for b in boundaries if subgraph.index in b.targets]
        outgoing = [b for b in boundaries if b.source == subgraph.index]
        counted = bool(profile.counters)
        yield {
            "subgraph": subgraph.index,
            "device": subgraph.device,
            "emulated": subgraph.device in emulated,
            "n_ops": len(subgraph.ops),
            "n_executed": sum(c.status == "EXECUTED" for c in counters) if counted else None,
            "ops_us": total_us(counters, "op", "other") if counted else None,
            "reorders_us": total_us(counters, "reorder") if counted else None,
            "n_inputs": len(incoming),
            "input_bytes": sum(b.n_bytes or 0 for b in incoming),
            "n_outputs": len(outgoing),
            "output_bytes": sum(b.n_bytes or 0 for b in outgoing),
            "precisions": tally(precision.get(o, "") for o in subgraph.ops),
            "ops": "\n".join(subgraph.ops),
        }


def counter_rows(counters: Iterable[Counter], emulated: Container[str]) -> list[dict[str, Any]]:
    """Return a row per counter, with the keys of ``COUNTER_COLUMNS``."""
    return [
        {
            **asdict(counter),
            "fused_ops": "\n".join(counter.fused_ops),
            "emulated": counter.device in emulated,
        }
        for counter in counters
    ]


def _boundaries(profile: ProfileData) -> Iterator[dict[str, Any]]:
    graph, partition = profile.graph, profile.partition
    device = [s.device for s in partition.subgraphs]
    reorders = reorders_us(profile.counters, partition)
    for boundary in partition.boundaries:
        index = graph.index_of.get(boundary.op)
        tensor = graph.ops[index].outputs[boundary.port] if index is not None else None
        yield {
            "tensor": boundary.tensor,
            "shape": "x".join(map(str, tensor.shape)) if tensor and tensor.shape else "",
            "element_type": tensor.element_type if tensor else "",
            "n_bytes": boundary.n_bytes,
            "source": boundary.source,
            "source_device": device[boundary.source],
            "targets": " ".join(map(str, boundary.targets)),
            "target_devices": " ".join(dict.fromkeys(device[t] for t in boundary.targets)),
            "reorder_us": reorders[boundary.tensor] if profile.counters else None,
        }


def _placement(profile: ProfileData) -> Iterator[dict[str, Any]]:
    graph = profile.graph
    where = profile.partition.subgraph_of
    times = executed_ops_us(profile.counters)
    leader_of = leaders(profile.counters)
    precision = executed_precisions(profile.counters)
    emulated = dict(profile.environment.emulated)
    for name in profile.affinity.ops:
        op = graph.op(name)
        leader = leader_of.get(name, "")
        shape = op.outputs[0].shape if op.outputs else None
        yield {
            "op": name,
            "op_type": op.type,
            "device": profile.affinity[name],
            "emulated": profile.affinity[name] in emulated,
            "subgraph": where.get(name),
            "shape": "x".join(map(str, shape)) if shape else "",
            "output_bytes": sum(t.n_bytes or 0 for t in op.outputs),
            "fused_with": leader if leader != name else "",
            "precision": precision.get(name, ""),
            # None if the counters do not tell, 0 if the time is counted at the group's leader.
            "time_us": times.get(name) if profile.counters else None,
        }


def _throughput(profile: ProfileData) -> Iterator[dict[str, Any]]:
    for measured in profile.throughput:
        low, high = measured.between.ci95_us
        yield {
            "executor": measured.executor,
            "n_requests": measured.n_requests,
            "exclusive": measured.exclusive,
            "time_per_result_us": measured.between.median_us,
            "ci95_low_us": low,
            "ci95_high_us": high,
            "per_second": 1e6 / measured.between.median_us,
            "latency_us": measured.latency.median_us,
        }


def tally(precisions: Iterable[str]) -> str:
    """Say how many ops ran in each precision, the most frequent first: ``"9 bf16, 2 f32"``."""
    counted = Tally(precisions)
    return ", ".join(f"{n} {name}" for name, n in counted.most_common() if name)


def transitions(profile: ProfileData) -> Iterator[dict[str, Any]]:
    """Yield a row per pair of ops between which the precision changes, in the model's order.

    The rows have the keys of ``TRANSITION_COLUMNS``. ``where`` is ``boundary`` (between subgraphs)
    or ``inside`` one. Tensors cross a boundary in the model's own type: two bf16 devices hand over
    f32, so such a pair is in the table too. ``n_bytes`` is the size of the tensors in the model's
    type; a tensor that several ops read is in the row of each.
    """
    graph, home = profile.graph, profile.partition.subgraph_of
    precision = executed_precisions(profile.counters)
    node = leaders(profile.counters)
    for consumer in profile.affinity.ops:
        ports_of: dict[int, set[int]] = {}
        for index, port in graph.op(consumer).inputs:
            ports_of.setdefault(index, set()).add(port)
        for index, ports in ports_of.items():
            producer = graph.ops[index].name
            tensors = [graph.ops[index].outputs[port] for port in sorted(ports)]
            tensors = [t for t in tensors if t.element_type in _CHOSEN]
            ends = precision.get(producer), precision.get(consumer)
            if not tensors or not set(ends) <= _CHOSEN:
                continue
            crosses = home.get(producer) != home.get(consumer)
            if not crosses and node[producer] == node[consumer]:
                continue
            handed_over = tensors[0].element_type if crosses else ""
            if ends[0] == ends[1] and handed_over in ("", ends[0]):
                continue
            sizes = [t.n_bytes for t in tensors]
            yield {
                "producer": producer,
                "consumer": consumer,
                "from_device": profile.affinity[producer],
                "from_precision": ends[0],
                "to_device": profile.affinity[consumer],
                "to_precision": ends[1],
                "where": "boundary" if crosses else "inside",
                "handed_over_as": handed_over,
                "n_bytes": None if None in sizes else sum(size or 0 for size in sizes),
                "from_subgraph": home.get(producer),
                "to_subgraph": home.get(consumer),
            }


def critical_spans(profile: ProfileData) -> frozenset[Span]:
    """Return the spans on the critical path of their own request."""
    waits = sources(profile.partition, profile.graph)
    requests = {span.request for span in profile.spans}
    return frozenset(s for r in requests for s in critical_path(profile.spans, r, waits))


def timeline(profile: ProfileData) -> list[dict[str, Any]]:
    """Return a row per span, with times since the first start; ``request`` counts from 0."""
    critical = critical_spans(profile)
    first_s = min(span.start_s for span in profile.spans)
    number = {r: i for i, r in enumerate(sorted({span.request for span in profile.spans}))}
    return [
        {
            "request": number[span.request],
            "subgraph": span.subgraph,
            "device": span.device,
            "start_us": (span.start_s - first_s) * 1e6,
            "end_us": (span.end_s - first_s) * 1e6,
            "critical": span in critical,
        }
        for span in sorted(profile.spans, key=lambda s: (s.start_s, s.end_s, s.subgraph))
    ]
