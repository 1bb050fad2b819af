"""What a bench is asked to do and what it answers: data that travels to worker processes."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from hetero_lab.experiments.measure.records import (
    Compiled,
    Counters,
    Json,
    StoredSpan,
    Sustained,
    Trial,
    Turn,
)
from hetero_lab.model.language import Scenario
from hetero_lab.runtime.counters import Counter

Answer = TypeVar("Answer")

MEMORY = "memory"  # the kind of an error


class Request(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True, tag=True):
    """Something that a bench is asked to do; ``answer`` is the type of what it returns."""

    answer: ClassVar[Any]


class SetUp(Request[None], frozen=True, kw_only=True):
    """What a worker is set up with: its first request.

    ``models`` and ``inputs`` map the names of variants to files; inputs that are not there are
    generated from ``seed``. ``ops`` names the ops of each model in the order that affinities of
    trials follow: a worker's graph, read from a file, may order them in another way. ``emulated``
    holds devices as :meth:`~hetero_lab.backend.emulation.EmulatedDevice.to_json` gives them. In
    ``directory``, workers leave what the others need not compute again. ``blobs`` maps keys of
    trials to directories of OpenVINO's model cache.
    """

    answer = None
    models: dict[str, str]
    inputs: dict[str, str] = {}
    ops: dict[str, tuple[str, ...]] = {}
    emulated: list[dict[str, Any]] = []
    seed: int = 0
    directory: str = ""
    blobs: dict[str, str] = {}


class Compile(Request[Compiled], frozen=True, kw_only=True):
    """Compile a trial and infer once; ``compare`` its outputs with a reference."""

    answer = Compiled
    trial: Trial
    compare: bool = False


class Expect(Request[None], frozen=True, kw_only=True):
    """Compute the expected outputs of a trial's model, for benches that come later."""

    answer = None
    trial: Trial


class WarmUp(Request[float], frozen=True, kw_only=True):
    """Infer until it is stable, or so many times; the answer is the seconds an inference takes."""

    answer = float
    key: str
    at_most_s: float
    inferences: int | None = None


class RunTurn(Request[Turn], frozen=True, kw_only=True):
    """Run one turn of a compiled trial; ``group`` and ``round`` are those of its record.

    With ``alone``, one request at a time, however many the trial has in flight.
    """

    answer = Turn
    key: str
    group: int = 0
    round: int = 0
    discarded: int
    timed: int
    alone: bool = False


class Hold(Request[Sustained], frozen=True, kw_only=True):
    """Run turn after turn for some seconds."""

    answer = Sustained
    key: str
    seconds: float


class CompileCounted(Request[None], frozen=True, kw_only=True):
    """Compile a trial once more, with counters, which are read later."""

    answer = None
    trial: Trial


class ReadCounters(Request[Counters], frozen=True, kw_only=True):
    """Read the counters of a trial; compile it with counters if that was not asked for before."""

    answer = Counters
    trial: Trial


class Compare(Request[tuple[Json, ...]], frozen=True, kw_only=True):
    """Compare the last outputs of a compiled trial with a reference; ``rows`` are its counters."""

    answer = tuple[dict[str, Any], ...]
    trial: Trial
    rows: tuple[Counter, ...] = ()


class ReadSpans(Request[tuple[StoredSpan, ...]], frozen=True, kw_only=True):
    """Tell when the subgraphs of the last ``requests`` inferences ran, where that is known."""

    answer = tuple[StoredSpan, ...]
    key: str
    requests: int


class MeasureMemory(Request[dict[str, tuple[int, int]]], frozen=True, kw_only=True):
    """Measure the private memory that the parts of a language model take on ``device``.

    ``parts`` maps ops to names of parts. The answer is, for each part, bytes of weights and of
    what comes with the context; without parts, for the process that runs all on the device.
    """

    answer = dict[str, tuple[int, int]]
    variant: str
    parts: dict[str, str]
    device: str
    properties: dict[str, Any]
    scenario: Scenario


class Release(Request[None], frozen=True, kw_only=True):
    """Let go of a compiled trial."""

    answer = None
    key: str


class InferFile(Request[dict[str, str]], frozen=True, kw_only=True):
    """Infer a model from a file once and write the outputs to one.

    ``affinities`` maps every node to a device, as model files do not keep them. The answer is
    the precision hint of each device that reports one.
    """

    answer = dict[str, str]
    path: str
    target: str
    properties: dict[str, Any]
    affinities: dict[str, str] | None
    inputs: str
    outputs: str


AnyRequest: TypeAlias = (
    SetUp
    | Compile
    | Expect
    | WarmUp
    | RunTurn
    | Hold
    | CompileCounted
    | ReadCounters
    | Compare
    | ReadSpans
    | MeasureMemory
    | Release
    | InferFile
)


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The line that a worker sends back: a value, or the text and the kind of an error."""

    value: Any = None
    error: str | None = None
    kind: str = ""
    warnings: tuple[str, ...] = ()
