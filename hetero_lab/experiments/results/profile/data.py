"""The data of a profile, from which tables, texts, traces and files are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from hetero_lab.experiments.measure.environment import Environment
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.runtime.compiled import Chosen
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.generation import Generation
from hetero_lab.runtime.reference import Agreement
from hetero_lab.runtime.runners import HETERO
from hetero_lab.runtime.timeline import Span
from hetero_lab.statistics import Latency


@dataclass(frozen=True)
class Throughput:
    """What one executor did with several requests in flight, and with one at a time.

    Attributes
    ----------
    exclusive
        Whether ``EXCLUSIVE_ASYNC_REQUESTS`` held on every device; ``None`` where no device
        knows it.
    between
        Times from one result to the next, a turn each round.
    latency
        One request at a time, in the same rounds.
    """

    executor: str
    n_requests: int
    exclusive: bool | None
    between: Latency
    latency: Latency


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
