"""The errors that hetero_lab raises.

Every message says the fact, the names at hand and the way out. Kinds about an argument are
also ``ValueError``. Where the runtime failed, its own text is reachable as ``__cause__``.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Iterable
from typing import Any

from hetero_lab.terminal import first_of, one_line, plain_text

_LONGEST = 400  # characters of an error of the runtime in a message
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class HeteroLabError(Exception):
    """Base of everything that hetero_lab raises on purpose."""

    def __str__(self) -> str:
        return plain_text(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Show IPython the caller's line and the message; ``%xmode Verbose`` shows every frame."""
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None and shell.InteractiveTB.mode == "Verbose":
            return shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__)
        frames = traceback.extract_tb(self.__traceback__)
        outside = itertools.takewhile(lambda f: not f.filename.startswith(_PACKAGE), frames)
        callers = [f for f in outside if f"{os.sep}IPython{os.sep}" not in f.filename]
        lines = [_frame_text(shell, frame) for frame in callers[-2:]]
        return [*lines, "", f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


def _frame_text(shell: Any, frame: traceback.FrameSummary) -> str:
    """Return place and text of a line, as IPython shows them."""
    code_name = shell and shell.compile.format_code_name(frame.filename)
    place = " ".join(code_name) if code_name else frame.filename
    return f"{place}, line {frame.lineno}\n----> {frame.lineno} {frame.line or ''}"


class ArgumentError(HeteroLabError, ValueError):
    """An invalid argument."""


class DeviceError(ArgumentError):
    """A device that does not exist here, or that cannot run what it is given."""


class CrashError(DeviceError):
    """A ``device`` that crashes when it is asked which ops of a model it supports."""

    device = ""


class ModelError(ArgumentError):
    """A model that cannot be read or prepared."""


class AffinityError(ArgumentError):
    """An affinity or fix that does not fit the model."""


class PropertyError(ArgumentError):
    """A device property that does not exist or has a value of the wrong kind."""


class InputError(ArgumentError):
    """Model inputs of the wrong name, shape or element type."""


class PlanError(ArgumentError):
    """A cost model, limit or pin with which no plan can be made."""


class OutputPathError(ArgumentError):
    """A file or directory that cannot be written."""


class StoredFileError(ArgumentError):
    """A stored file that is broken or of another kind."""


class StoreError(ArgumentError):
    """A store of a sweep that belongs to another one, or that another process is using."""


class SampleError(HeteroLabError):
    """A sample model or data set that is unavailable here."""


class CompileError(HeteroLabError):
    """The runtime refused to compile a placement."""


class InferenceError(HeteroLabError, RuntimeError):
    """The runtime compiled a placement and failed while running it."""


class QuantizationError(HeteroLabError):
    """A quantised variant of a model that cannot be made."""


class ClosedError(HeteroLabError, RuntimeError):
    """A ParallelExecutor was closed."""


class MeasurementError(HeteroLabError):
    """A measurement without a result."""


class AnnexError(HeteroLabError):
    """A part of hetero_lab that is missing from this installation."""


class HeteroLabWarning(UserWarning):
    """Something was assumed or differs from what was asked for."""


class BudgetWarning(HeteroLabWarning):
    """A time budget was too short for the whole call; the result says what is missing."""


def shorten(name: str, limit: int = 120) -> str:
    """Quote a name for a message: one line, at most ``limit`` characters."""
    return one_line(repr(name), limit)


def last_line(error: BaseException) -> str:
    """Return the last line of an error of the runtime, the cause, below its trace; no full stop.

    Below a cause that begins with its name, the GPU plugin writes details: a layout, the op's type.
    Below a value that it refuses, it describes the property.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Property description: ")]
    cause = lines[-1] if lines else type(error).__name__
    for line in reversed(lines):
        if line.startswith(("Exception from ", "Check '")):
            break
        if line.startswith("[GPU] ") and not line.endswith("build failed!"):
            cause = line
    return _abridge(cause.rstrip("."))


def reason(error: BaseException) -> str:
    """Return an error of the runtime as one sentence, without the lines of its trace."""
    lines = [line.strip() for line in str(error).splitlines()]
    facts = [line for line in lines if line and not line.startswith(("Exception from ", "Check '"))]
    return _abridge(" ".join(facts) or type(error).__name__)


def _abridge(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2].rsplit(' ', 1)[0]} …"


def names_at_hand(names: Iterable[str], most: int = 8) -> str:
    """List the first ``most`` names for a message."""
    return first_of([shorten(name) for name in names], most)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` or an empty string."""
    every = list(names)
    same = [n for n in every if n.lower() == name.lower()]
    close = same or difflib.get_close_matches(name[:200], [n[:200] for n in every], n=1)
    return f" Did you mean {shorten(close[0])}?" if close else ""


def unknown(fact: str, name: object, names: Iterable[str], kind: str, most: int = 8) -> str:
    """Return a message: ``fact`` and an unknown name, the one that was meant, those of its kind."""
    every, text = [str(n) for n in names], str(name)
    at_hand = names_at_hand(every, most)
    return f"{fact} {shorten(text)}.{did_you_mean(text, every)} {kind}: {at_hand}."


def warn(message: str, category: type[Warning] = HeteroLabWarning) -> None:
    """Warn at the line outside this package that led here, however many calls are in between."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(plain_text(message), category, stacklevel=level)
