"""The requests to a bench and the types of its answers, which worker processes get as JSON."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, Union, cast, get_args

import msgspec

from hetero_lab.devices.core import EmulatedDevice
from hetero_lab.measure.loads import Driven, Load
from hetero_lab.model.language import Scenario
from hetero_lab.results.records import Compiled, Counters, StoredSpan, Trial, Turn
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.reference import Agreement

Answer = TypeVar("Answer")


class Request(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True, tag=True):
    """A request to a bench; ``answer`` is the type of its answer."""

    answer: ClassVar[Any]

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        (cls.answer,) = get_args(vars(cls)["__orig_bases__"][0])


class SetUp(Request[None], frozen=True, kw_only=True):
    """Set up a worker; its first request.

    ``models`` and ``inputs`` map the names of variants to files in ``directory``; missing inputs
    are generated. Workers keep the reference outputs for each other there. ``ops`` names the ops of
    each model in the order of the trials' affinities, since a worker reads its graph from a file
    and may get another order. ``blobs`` maps keys of trials to directories of OpenVINO's model
    cache.
    """

    models: dict[str, str]
    inputs: dict[str, str] = {}
    ops: dict[str, tuple[str, ...]] = {}
    emulated: tuple[EmulatedDevice, ...] = ()
    directory: str = ""
    blobs: dict[str, str] = {}


class Compile(Request[Compiled], frozen=True, kw_only=True):
    """Compile a trial and infer once; with ``compare``, compare its outputs with the reference."""

    trial: Trial
    compare: bool = False


class Expect(Request[None], frozen=True, kw_only=True):
    """Compute the reference outputs of a trial's model, for later benches."""

    trial: Trial


class WarmUp(Request[float], frozen=True, kw_only=True):
    """Infer until turns agree or the time is over; the answer is the seconds per inference.

    With ``inferences``, infer that many times; a language model generates as often.
    """

    key: str
    at_most_s: float
    inferences: int | None = None


class RunTurn(Request[Turn], frozen=True, kw_only=True):
    """Run one turn of a compiled trial; ``group`` and ``round`` are those of its record.

    Its times are in µs: of inferences, with several requests in flight between results, for a
    language model per further token. In the last two cases, its length is fixed. With ``alone``,
    one request is in flight at a time, however many the trial has.
    """

    key: str
    group: int = 0
    round: int = 0
    discarded: int
    timed: int
    alone: bool = False


class CompileCounted(Request[None], frozen=True, kw_only=True):
    """Compile a trial once more, with counters, to be read later."""

    trial: Trial


class ReadCounters(Request[Counters], frozen=True, kw_only=True):
    """Read the counters of a trial; compile it with counters unless that is done."""

    trial: Trial


class Compare(Request[tuple[Agreement, ...]], frozen=True, kw_only=True):
    """Compare the last outputs of a compiled trial with the reference; ``rows``: its counters."""

    trial: Trial
    rows: tuple[Counter, ...] = ()


class ReadSpans(Request[tuple[StoredSpan, ...]], frozen=True, kw_only=True):
    """Return when the subgraphs of the last ``requests`` inferences ran, if known."""

    key: str
    requests: int


class MeasureMemory(Request[dict[str, tuple[int, int]]], frozen=True, kw_only=True):
    """Measure the private memory of the parts of a language model on ``device``.

    ``parts`` maps ops to names of parts. The answer holds, for each part, the bytes of its weights
    and the bytes that grow with the context; without parts, those of a process that runs the whole
    model on the device.
    """

    variant: str
    parts: dict[str, str]
    device: str
    properties: dict[str, Any]
    scenario: Scenario


class Drive(Request[tuple[Driven, ...]], frozen=True, kw_only=True):
    """Drive compiled trials at the same time for ``seconds``, from ``starts_at`` (Unix time) on.

    ``check`` compares each output with that of the first inference.
    """

    loads: tuple[Load, ...]
    starts_at: float
    seconds: float
    check: bool = False


class Release(Request[None], frozen=True, kw_only=True):
    """Let go of a compiled trial."""

    key: str


class InferFile(Request[tuple[dict[str, str], tuple[Counter, ...]]], frozen=True, kw_only=True):
    """Infer a model from a file once, write the outputs; see :func:`.executors.infer_once`.

    ``affinities`` maps every node to a device, since model files do not store them. The answer has
    the precision hints and the counters.
    """

    path: str
    target: str
    properties: dict[str, Any]
    affinities: dict[str, str] | None
    inputs: str
    outputs: str


AnyRequest: Any = Union[tuple(cast(Any, Request).__subclasses__())]  # noqa: UP007


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's answer, one line: a value, or the text of an error and its status."""

    value: Any = None
    error: str | None = None
    status: str = ""
    warnings: tuple[str, ...] = ()
