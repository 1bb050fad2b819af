"""Jobs and answers: what a bench is asked to run and what it says, as data that travels."""

from __future__ import annotations

from typing import Any

import msgspec

from hetero_lab.model.language import Scenario
from hetero_lab.runtime.runners import HETERO


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A placement to compile and run.

    ``affinity`` maps names of ops to devices: a worker's graph, read from a file, may order the
    ops in another way. ``compare`` says whether its outputs are compared with a reference.
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
    compare: bool = False
    scenario: Scenario | None = None


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A turn: each inference in µs, and the first token if it was a generation."""

    samples_us: tuple[float, ...]
    first_us: float | None = None


class CompileAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a bench says of a job that it compiled and ran once.

    ``partition``, ``agreement``, ``spans`` and ``chosen`` are as profiles store them; ``tokens``
    are those that a language model generated.
    """

    compile_ms: float
    first_inference_ms: float
    partition: dict[str, Any]
    as_predicted: bool | None
    agreement: tuple[dict[str, Any], ...]
    peak_rss_bytes: int
    spans: tuple[tuple[int, int, float, float], ...]
    chosen: dict[str, Any]
    tokens: tuple[tuple[int, ...], ...] = ()


# The type of the answer to each question that a bench knows.
ANSWERS: dict[str, Any] = {
    "compile": CompileAnswer,
    "warm_up": float,
    "turn": TurnAnswer,
    "hold": tuple[float, ...],
    "counters": tuple[dict[str, Any], ...],
    "profile": dict[str, Any],
    "release": None,
}
