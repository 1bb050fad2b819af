"""Trials and records: what is measured, and what was; a bench answers with records.

The fields are those of the files: ``sweep.json`` holds the header with its trials,
``records.jsonl`` the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import msgspec

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.virtual import parse_virtual
from hetero_lab.experiments.measure.environment import Environment
from hetero_lab.model.language import Scenario
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.runtime.compiled import Chosen
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.reference import Agreement
from hetero_lab.runtime.runners import HETERO, Execution
from hetero_lab.tables import SCHEMA_VERSION

Json: TypeAlias = "dict[str, Any]"
StoredSpan: TypeAlias = tuple[int, int, float, float]  # request, subgraph, start and end in s


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=str.lower):
    """Something that was measured or seen; ``host`` and ``worker`` are those of a fleet."""

    host: str = ""
    worker: str = ""


class OfEntry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A record of one entry, which ``entry`` is the key of."""

    entry: str


class Compiled(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry was compiled and has inferred once."""

    compile_ms: float
    first_inference_ms: float
    partition: Json
    as_predicted: bool | None
    agreement: tuple[Json, ...]
    peak_rss_bytes: int
    spans: tuple[StoredSpan, ...] = ()
    chosen: Chosen = Chosen()
    tokens: tuple[tuple[int, ...], ...] = ()


class Turn(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A turn; those of one group and round were run right after one another."""

    group: int
    round: int
    samples_us: tuple[float, ...]
    first_us: float | None = None  # of a language model: the first token


class Counters(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """OpenVINO's counters of an entry; none if its devices have none."""

    rows: tuple[Counter, ...]


class Sustained(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry was run for a while; the median of each of its turns."""

    medians_us: tuple[float, ...]


class Failed(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry could not be measured; a later record shows that this was overcome."""

    status: str
    detail: str


class Finished(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry has all the turns that it was to have."""


class Accuracy(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry was evaluated on ``n`` examples, or why it could not be.

    One sign (``1``, ``0``, or ``-`` for unknown) and one number for each example.
    """

    metric: str | None
    output: str | int | None
    n: int
    problem: str = ""
    right: str = ""
    reference_right: str = ""
    is_nan: str = ""
    reference_is_nan: str = ""
    relative_error: tuple[float | None, ...] = ()
    cosine: tuple[float | None, ...] = ()
    top1_agreement: tuple[float | None, ...] = ()


class State(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The machine at the beginning of a round."""

    cpu_percent: float | None
    load: float | None
    frequency_mhz: float | None
    on_battery: bool | None
    foreign_cpus: float | None = None


class Host(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A host of a fleet took part."""

    environment: Environment


class Call(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A call of the sweep ended: what its time went into, and what it would have needed.

    ``turns`` of ``discarded`` and ``timed`` inferences are what it could give each placement at
    least; ``needs_s`` is how long what is left is expected to take, ``n_left`` how many
    placements that is.
    """

    budget_s: float | None
    elapsed_s: float
    startup_s: float
    compile_s: float
    longest_compile_s: float = 0.0
    turns: int
    discarded: int
    timed: int
    n_left: int
    needs_s: float


AnyRecord: TypeAlias = (
    Compiled | Turn | Counters | Sustained | Failed | Finished | Accuracy | State | Host | Call
)


def agreement_to_json(agreement: Iterable[Agreement]) -> list[Json]:
    """Return agreements as plain data; JSON knows no NaN, so it becomes null."""
    return [{k: (None if v != v else v) for k, v in asdict(a).items()} for a in agreement]


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of the model; ``graph`` is as ``graph_to_json`` gives it."""

    name: str
    fingerprint: str
    graph: Json


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A placement to measure: a row that was asked for, now or (not ``asked``) by an earlier call.

    Trials that share a ``key``, which does not depend on the label, share one measurement.
    ``affinity`` holds the device of each op in the order of the graph; ``problem`` says why it
    cannot be tried.
    """

    key: str
    label: str
    variant: str
    affinity: tuple[str, ...]
    devices: tuple[str, ...]
    device_properties: dict[str, dict[str, Any]]
    direct: bool = False
    requests: int = 1
    baseline: bool = False
    problem: str = ""
    asked: bool = True
    executor: str = HETERO
    scenario: Scenario | None = None
    model_cache: bool = False

    @property
    def execution(self) -> Execution:
        """How it is run."""
        return Execution(self.executor, self.requests, self.scenario)

    @property
    def runs_on(self) -> set[str]:
        """The real devices; of AUTO and the like, those that it may choose."""
        virtual = {name: parse_virtual(name) for name in self.affinity}
        return {d for name, of in virtual.items() for d in (of.devices if of else [name])}

    def placed(self, bound: BoundModel, ops: Sequence[str] = ()) -> BoundPlacement:
        """Return what is compiled, which was checked when the trial was made.

        ``ops`` is the order that ``affinity`` follows, if it is not that of this graph.
        """
        names = ops or [op.name for op in bound.graph]
        devices = dict(zip(names, self.affinity, strict=True))
        affinity = Affinity.from_graph(bound.graph, devices)
        placement = Placement(affinity, self.label, self.device_properties, self.direct)
        return BoundPlacement(bound, placement)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and where: one environment for each call."""

    models: dict[str, StoredModel]
    entries: list[Trial]
    reference: str
    emulated: list[Json]
    seed: int
    inputs_digest: str
    environments: list[Environment]
    kind: str = "sweep"
    schema_version: int = SCHEMA_VERSION
    fleet: bool = False
    every_host: bool = False
