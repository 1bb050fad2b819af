"""The symptoms of a fault, and the evidence of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

# What PlacedRuns says of a run without outputs: the devices, then the worker's status.
_FAILED = re.compile(r"[^:]*: (crashed|timed out|out of memory)")
_OUT_OF_MEMORY = re.compile(
    r"out.of.(\w+.)?memory|bad_alloc|failed to allocate|crashed \(signal 9\)", re.I
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|[^A-Za-z ]+")


class Symptom(StrEnum):
    """What a user sees of a fault, in the order of severity."""

    OK = "ok"
    SLOWER = "slower"
    WRONG = "wrong"
    NAN = "NaN"
    REFUSED = "refused"
    MEMORY = "out of memory"
    HANG = "hang"
    CRASH = "crash"

    @property
    def has_outputs(self) -> bool:
        """Whether the device answers."""
        return self in (Symptom.OK, Symptom.SLOWER, Symptom.WRONG, Symptom.NAN)

    @property
    def title(self) -> str:
        """The symptom as a report names it."""
        return {"wrong": "wrong numbers", "hang": "no answer"}.get(self, self.value)


@dataclass(frozen=True)
class Evidence:
    """The symptom of one run, and the sentence that proves it.

    ``error`` is the largest relative error of an output (Euclidean norm), NaN if none was compared.
    ``step`` is the inference at which the symptom begins, from 1, where several run in a row;
    ``output`` names the output that shows it. ``ratio`` is the latency relative to that of the
    baseline.
    """

    symptom: Symptom
    told: str
    error: float = float("nan")
    output: str = ""
    step: int | None = None
    ratio: float = float("nan")

    def is_like(self, other: Evidence) -> bool:
        """Tell whether another run has the same fault: of a refusal, also in the same words."""
        if self.symptom is not other.symptom:
            return False
        return self.symptom is not Symptom.REFUSED or _words(self.told) == _words(other.told)


def failure(text: str) -> Symptom:
    """Return the symptom of a run without outputs, from the text of its CompileError."""
    # SIGKILL is the only trace of the kernel's out-of-memory killer.
    if _OUT_OF_MEMORY.search(text):
        return Symptom.MEMORY
    found = _FAILED.match(text)
    how = found[1] if found else ""
    return {"crashed": Symptom.CRASH, "timed out": Symptom.HANG}.get(how, Symptom.REFUSED)


def _words(text: str) -> str:
    return " ".join(_QUOTED.sub(" ", text).split())
