"""What a bench is asked to do and what it answers: data that travels to worker processes."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from hetero_lab.experiments.profile.measure import ProfileOptions
from hetero_lab.model.language import Scenario
from hetero_lab.runtime.chosen import Chosen
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.runners import HETERO

Answer = TypeVar("Answer")

MEMORY = "memory"  # the kind of an error


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A placement to compile and run.

    ``affinity`` maps names of ops to devices: a worker's graph, read from a file, may order the
    ops in another way. ``compare`` says whether its outputs are compared with a reference,
    ``from_cache`` whether to fill ``cache_dir`` first and then load what is run from there.
    """

    key: str
    label: str
    variant: str
    affinity: dict[str, str]
    device_properties: dict[str, dict[str, Any]]
    direct: bool = False
    executor: str = HETERO
    requests: int = 1
    cache_dir: str = ""
    from_cache: bool = False
    compare: bool = False
    scenario: Scenario | None = None


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A turn: each inference in µs, and the first token if it was a generation."""

    samples_us: tuple[float, ...]
    first_us: float | None = None


class CompileAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a bench reports about a job that it compiled and ran once.

    ``partition``, ``agreement`` and ``spans`` are as profiles store them; ``tokens`` are those
    that a language model generated.
    """

    compile_ms: float
    first_inference_ms: float
    partition: dict[str, Any]
    as_predicted: bool | None
    agreement: tuple[dict[str, Any], ...]
    peak_rss_bytes: int
    spans: tuple[tuple[int, int, float, float], ...]
    chosen: Chosen
    tokens: tuple[tuple[int, ...], ...] = ()


class Request(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True, tag=True):
    """Something that a bench is asked to do; ``answer`` is the type of what it returns."""

    answer: ClassVar[Any]


class SetUp(Request[None], frozen=True, kw_only=True):
    """What a worker is set up with: its first request.

    ``models`` and ``inputs`` map the names of variants to files; inputs that are not there are
    generated from ``seed``. ``emulated`` holds devices as
    :meth:`~hetero_lab.backend.emulation.EmulatedDevice.to_json` gives them. In ``directory``,
    workers leave what the others need not compute again.
    """

    answer = None
    models: dict[str, str]
    inputs: dict[str, str] = {}
    emulated: list[dict[str, Any]] = []
    seed: int = 0
    directory: str = ""


class Compile(Request[CompileAnswer], frozen=True, kw_only=True):
    """Compile a job and infer once."""

    answer = CompileAnswer
    job: Job


class Expect(Request[None], frozen=True, kw_only=True):
    """Compute what the outputs of a job's model are compared with, for benches that come later."""

    answer = None
    job: Job


class WarmUp(Request[float], frozen=True, kw_only=True):
    """Infer until it is stable; the answer is how many seconds an inference takes."""

    answer = float
    key: str
    at_most_s: float


class RunTurn(Request[TurnAnswer], frozen=True, kw_only=True):
    """Run one turn of a compiled job."""

    answer = TurnAnswer
    key: str
    discarded: int
    timed: int


class Hold(Request[tuple[float, ...]], frozen=True, kw_only=True):
    """Run turn after turn for some seconds; the answer is the median of each in µs."""

    answer = tuple[float, ...]
    key: str
    seconds: float


class CompileCounted(Request[None], frozen=True, kw_only=True):
    """Compile a job once more, with counters, which are to be read."""

    answer = None
    job: Job


class ReadCounters(Request[tuple[Counter, ...]], frozen=True, kw_only=True):
    """Read the counters of a job; compile it with counters if that was not asked for before."""

    answer = tuple[Counter, ...]
    job: Job


class MeasureProfile(Request[dict[str, Any]], frozen=True, kw_only=True):
    """Profile a placement; the answer is the profile as files store it."""

    answer = dict[str, Any]
    job: Job
    options: ProfileOptions


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
    """Let go of a compiled job."""

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
    | MeasureProfile
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
