"""The data of a profile, and its form in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np

from hetero_lab.arguments import HETERO
from hetero_lab.intervals import Latency
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import OpGraph, graph_from_json, graph_to_json
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, check_partition
from hetero_lab.planning.timeline import Span
from hetero_lab.results.configuration import configuration
from hetero_lab.results.environment import Environment
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.executors import Chosen
from hetero_lab.runtime.reference import Agreement
from hetero_lab.tables import SCHEMA_VERSION, json_value


@dataclass(frozen=True)
class Throughput:
    """What one executor did with several requests in flight, and with one at a time.

    ``between`` holds the times from one result to the next, a turn each round, ``latency`` those of
    one request at a time in the same rounds. ``exclusive`` tells whether
    ``EXCLUSIVE_ASYNC_REQUESTS`` held on every device; it is ``None`` where no device knows it.
    """

    executor: str
    n_requests: int
    exclusive: bool | None
    between: Latency
    latency: Latency


@dataclass(frozen=True)
class Generation:
    """The tokens that a language model generated, and the time it took.

    Attributes
    ----------
    scenario
        The lengths of prompt and generation, and the batch size.
    ttft
        Time to the first token, one sample per generation.
    tpot
        Time per further token, one turn per generation.
    tokens
        The tokens of each sequence.
    """

    scenario: Scenario
    ttft: Latency
    tpot: Latency
    tokens: tuple[tuple[int, ...], ...]

    @property
    def token_ids(self) -> np.ndarray:
        """The tokens as an array of shape ``[batch, new_tokens]``."""
        return np.array(self.tokens, dtype=np.int64)

    @property
    def ttft_ms(self) -> float:
        """Median time to the first token."""
        return self.ttft.median_us / 1e3

    @property
    def ttft_ci95_ms(self) -> tuple[float, float]:
        """Its 95 % interval."""
        low, high = self.ttft.ci95_us
        return low / 1e3, high / 1e3

    @property
    def tpot_ms(self) -> float:
        """Median time per further token."""
        return self.tpot.median_us / 1e3

    @property
    def tpot_ci95_ms(self) -> tuple[float, float]:
        """Its 95 % interval."""
        low, high = self.tpot.ci95_us
        return low / 1e3, high / 1e3

    @property
    def tokens_per_s(self) -> float:
        """Further tokens per second, all sequences together."""
        return 1e3 * self.scenario.batch / self.tpot_ms

    @property
    def tokens_per_s_ci95(self) -> tuple[float, float]:
        """Its 95 % interval."""
        low, high = self.tpot_ci95_ms
        n_per_ms = 1e3 * self.scenario.batch
        return n_per_ms / high, n_per_ms / low if low else math.inf


@dataclass(frozen=True)
class ProfileData:
    """The measurements of one placement; ``Profile`` documents each field."""

    label: str
    model_fingerprint: str
    graph: OpGraph
    affinity: Affinity
    latency: Latency
    partition: Partition
    as_predicted: bool | None
    counters: tuple[Counter, ...]
    agreement: tuple[Agreement, ...]
    compile_ms: float
    first_inference_ms: float
    peak_rss_bytes: int
    environment: Environment
    interrupted: bool = False
    executor: str = HETERO
    spans: tuple[Span, ...] = ()
    throughput: tuple[Throughput, ...] = ()
    chosen: Chosen = field(default_factory=Chosen)
    generation: Generation | None = None
    generated: bool = False
    few_subgraphs: str = ""
    device_properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inputs_digest: str = ""
    foreign_cpus: float = 0.0

    @property
    def configuration(self) -> str:
        """The label with the precision of its devices: ``CPU (bf16, default)``."""
        return configuration(self.label, self.chosen.precisions, self.device_properties)


# Fields that are stored unchanged, with their types.
_PLAIN: dict[str, Any] = {
    "label": str,
    "model_fingerprint": str,
    "as_predicted": bool | None,
    "counters": tuple[Counter, ...],
    "compile_ms": float,
    "first_inference_ms": float,
    "peak_rss_bytes": int,
    "environment": Environment,
    "interrupted": bool,
    "generated": bool,
    "few_subgraphs": str,
    "device_properties": dict[str, dict[str, Any]],
    "inputs_digest": str,
    "foreign_cpus": float,
    "executor": str,
    "chosen": Chosen,
    "partition": Partition,
    "agreement": tuple[Agreement, ...],
}
_TURNS = tuple[tuple[float, ...], ...]


def to_json(profile: ProfileData) -> dict[str, Any]:
    """Return a profile as plain data."""
    return {
        "kind": "profile",
        "schema_version": SCHEMA_VERSION,
        **json_value(msgspec.to_builtins({name: getattr(profile, name) for name in _PLAIN})),
        "graph": graph_to_json(profile.graph),
        "affinity": [profile.affinity[op.name] for op in profile.graph],
        "turns_us": profile.latency.turns,
        "spans": [[s.request, s.subgraph, s.start_s, s.end_s] for s in profile.spans],
        "generation": _generation_to_json(profile.generation),
        "throughput": [
            {
                **{k: getattr(t, k) for k in ("executor", "n_requests", "exclusive")},
                "between_us": t.between.turns,
                "latency_us": t.latency.turns,
            }
            for t in profile.throughput
        ],
    }


def fields_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a profile; raises various errors if the data is incomplete."""
    graph = graph_from_json(data["graph"])
    # Older files lack some that have a default; Profile asks for all others.
    fields = {n: msgspec.convert(data[n], kind) for n, kind in _PLAIN.items() if n in data}
    check_partition(fields["partition"], graph)
    devices = dict(zip((op.name for op in graph), data["affinity"], strict=True))
    latency = _latency(data["turns_us"])
    return {
        **fields,
        "graph": graph,
        "affinity": Affinity.from_graph(graph, devices),
        "latency": latency,
        "spans": spans_from_json(data["spans"], fields["partition"]),
        "generation": _generation_from_json(data.get("generation"), latency),
        "throughput": tuple(
            Throughput(
                executor=t["executor"],
                n_requests=int(t["n_requests"]),
                exclusive=t["exclusive"],
                between=_latency(t["between_us"]),
                latency=_latency(t["latency_us"]),
            )
            for t in data["throughput"]
        ),
    }


def _latency(turns: Any) -> Latency:
    return Latency(msgspec.convert(turns, _TURNS))


def _generation_to_json(generation: Generation | None) -> dict[str, Any] | None:
    """Return a generation without the times of further tokens, which are the profile's turns."""
    if generation is None:
        return None
    return {
        "scenario": asdict(generation.scenario),
        "first_us": list(generation.ttft.samples_us),
        "tokens": generation.tokens,
    }


def _generation_from_json(data: Mapping[str, Any] | None, further: Latency) -> Generation | None:
    if data is None:
        return None
    return Generation(
        scenario=Scenario(**data["scenario"]),
        ttft=_latency([[first_us] for first_us in data["first_us"]]),
        tpot=further,
        tokens=msgspec.convert(data["tokens"], tuple[tuple[int, ...], ...]),
    )


def spans_from_json(rows: Sequence[Sequence[Any]], partition: Partition) -> tuple[Span, ...]:
    """Build spans from plain data; raise IndexError if the subgraph of a span does not exist."""
    return tuple(
        Span(int(request), int(subgraph), partition.subgraphs[subgraph].device, start_s, end_s)
        for request, subgraph, start_s, end_s in rows
    )
