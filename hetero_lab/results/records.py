"""Trials, which are to be measured, records of their measurements, and a ledger over records.

The fields are those of the stored files: ``sweep.json`` holds the header with its trials,
``records.jsonl`` the records. A bench answers with records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from hetero_lab.arguments import HETERO
from hetero_lab.devices.core import BoundModel, EmulatedDevice
from hetero_lab.devices.devices import parse_virtual
from hetero_lab.intervals import At, in_common, turn_level
from hetero_lab.model.language import Scenario
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.results.environment import Environment
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.executors import Chosen
from hetero_lab.runtime.reference import Agreement
from hetero_lab.tables import SCHEMA_VERSION

FROM_CACHE = "model cache"  # ends the label of a trial that is loaded from it

StoredSpan: TypeAlias = tuple[int, int, float, float]  # request, subgraph, start and end in s


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=str.lower):
    """Something that was measured or observed; ``host`` and ``worker`` are set on a fleet."""

    host: str = ""
    worker: str = ""


class OfEntry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A record of one entry; ``entry`` is its key."""

    entry: str


class Compiled(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry was compiled and has inferred once."""

    compile_ms: float
    first_inference_ms: float
    partition: Partition
    as_predicted: bool | None
    agreement: tuple[Agreement, ...]
    peak_rss_bytes: int
    spans: tuple[StoredSpan, ...] = ()
    chosen: Chosen = Chosen()
    tokens: tuple[tuple[int, ...], ...] = ()


class Turn(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A turn; turns of the same group and round ran directly after one another."""

    group: int
    round: int
    samples_us: tuple[float, ...]
    first_us: float | None = None  # language models: time to the first token


class Counters(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """OpenVINO's counters of an entry; empty if its devices have none."""

    rows: tuple[Counter, ...]


class Sustained(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry was held for a while; the median of each of its turns."""

    medians_us: tuple[float, ...]


class Failed(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry could not be measured; a later record of the entry overrides this one."""

    status: str
    detail: str


class Finished(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry has all the turns that were asked for."""


class Accuracy(OfEntry, frozen=True, kw_only=True, omit_defaults=True):
    """The evaluation of an entry on ``n`` examples; ``problem`` says why there is none.

    Flags are strings with one sign for each example: ``1``, ``0``, or ``-`` for unknown.
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
    """The state of the machine before a turn, at most once a second."""

    frequency_mhz: float | None
    on_battery: bool | None
    foreign_cpus: float | None = None


class Host(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A host of a fleet took part."""

    environment: Environment


class Call(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A call of the sweep ended: how its time was spent, and how much is left to do.

    Each placement could have at least ``turns`` of ``discarded`` and ``timed`` inferences.
    ``n_left`` placements are left; they are expected to take ``needs_s``.
    """

    budget_s: float | None
    elapsed_s: float
    startup_s: float
    compile_s: float
    turns: int
    discarded: int
    timed: int
    n_left: int
    needs_s: float


AnyRecord: TypeAlias = (
    Compiled | Turn | Counters | Sustained | Failed | Finished | Accuracy | State | Host | Call
)


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of the model; ``graph`` is the output of ``graph_to_json``."""

    name: str
    fingerprint: str
    graph: dict[str, Any]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A placement to measure: a row of this call or (if not ``asked``) of an earlier one.

    Trials of one ``key``, whatever their labels, share one measurement. ``affinity`` has the device
    of each op in graph order; ``problem`` says why the trial cannot be measured.
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
    def runs_on(self) -> set[str]:
        """The real devices; for AUTO and similar, the devices it may choose from."""
        virtual = {name: parse_virtual(name) for name in self.affinity}
        return {d for name, of in virtual.items() for d in (of.devices if of else [name])}

    def placed(self, bound: BoundModel, ops: Sequence[str] = ()) -> BoundPlacement:
        """Return the placement of a model; ``ops`` is the order of ``affinity``, if another."""
        names = ops or [op.name for op in bound.graph]
        devices = dict(zip(names, self.affinity, strict=True))
        affinity = Affinity.from_graph(bound.graph, devices)
        placement = Placement(affinity, self.label, self.device_properties, self.direct)
        return BoundPlacement(bound, placement)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The models and trials (``entries``) of a sweep, with one environment for each call."""

    models: dict[str, StoredModel]
    entries: list[Trial]
    reference: str
    emulated: list[EmulatedDevice]
    seed: int
    inputs_digest: str
    environments: list[Environment]
    kind: str = "sweep"
    schema_version: int = SCHEMA_VERSION
    fleet: bool = False
    every_host: bool = False
    generated: bool = False


def by_key(trials: Iterable[Trial]) -> dict[str, Trial]:
    """Return trials by key, in order; of trials that share a key, the first."""
    found: dict[str, Trial] = {}
    for trial in trials:
        found.setdefault(trial.key, trial)
    return found


class Ledger:
    """Turns and kinds of records of each entry, on each host.

    A sweep on one machine has records without a host: the machine is the one in its header. Turns
    of two hosts are never mixed: a row belongs to one host, and so does the reference beside it.
    ``append`` takes each record after the given ones.
    """

    def __init__(
        self,
        records: Iterable[AnyRecord] = (),
        append: Callable[[AnyRecord], object] = lambda _: None,
    ):
        self._append = append
        self._levels: defaultdict[tuple[str, str], dict[At, float]] = defaultdict(dict)
        self._kinds: defaultdict[tuple[str, str], set[type]] = defaultdict(set)
        self.hosts: dict[str, Environment] = {}  # in order, each as of its last measurement
        self.next_group = 0
        for record in records:
            self.note(record)

    def append(self, record: AnyRecord) -> None:
        """Append a record and take it into account."""
        self._append(record)
        self.note(record)

    def note(self, record: AnyRecord) -> None:
        """Take a record into account."""
        if isinstance(record, Host):
            self.hosts[record.host] = record.environment
        elif isinstance(record, OfEntry):
            self._kinds[record.entry, record.host].add(type(record))
            if isinstance(record, Turn):
                at = (record.group, record.round)
                self._levels[record.entry, record.host][at] = turn_level(record.samples_us)
                self.next_group = max(self.next_group, record.group + 1)

    def has(self, kind: type[OfEntry], key: str, host: str = "") -> bool:
        """Tell whether an entry has a record of a kind."""
        return kind in self._kinds[key, host]

    def levels_us(self, key: str, host: str = "") -> dict[At, float]:
        """Return the level of each turn of an entry."""
        return self._levels[key, host]

    def paired(self, key: str, reference: str, host: str = "") -> tuple[list[float], list[float]]:
        """Return the levels of an entry and of the reference in the rounds that have both."""
        return in_common(self.levels_us(key, host), self.levels_us(reference, host))

    def is_done(self, key: str, host: str, reference: str, turns: int | None) -> bool:
        """Tell whether a host has finished an entry, with at least ``turns`` turns if given."""
        if not self.has(Finished, key, host):
            return False
        if turns is None:
            return True
        if not self.levels_us(reference, host):
            return len(self.levels_us(key, host)) >= turns
        return len(self.paired(key, reference, host)[0]) >= turns
