"""Extensions: devices, lint rules, solvers and views that other installed packages bring.

A package names them as entry points; they are looked for and loaded when first needed. One that
fails, or whose name is taken, is left out with a warning that names its package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from hetero_lab.errors import last_line, shorten, warn

DEVICES = "hetero_lab.devices"
LINT_RULES = "hetero_lab.lint_rules"
SOLVERS = "hetero_lab.solvers"
VIEWS = "hetero_lab.views"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Extension:
    """A function that a package offers as an entry point; it is loaded when first asked for."""

    entry: EntryPoint

    @functools.cached_property
    def function(self) -> Callable[..., Any] | None:
        """The object of the entry point; None, after a warning, if it cannot be loaded."""
        entry = self.entry
        try:
            function = entry.load()
        except Exception as error:
            _leave_out(entry, f"cannot be loaded from {shorten(entry.value)} ({_told(error)})")
            return None
        if not callable(function):
            _leave_out(entry, f"is {shorten(entry.value)}, which is not a function")
            return None
        return function

    def attempt(self, act: Callable[[Callable[..., Any]], _T]) -> _T | None:
        """Return what ``act`` does with the function; None, after a warning, if that fails."""
        function = self.function
        if function is None:
            return None
        try:
            return act(function)
        except Exception as error:
            _leave_out(self.entry, f"failed ({_told(error)})")
            return None


@functools.cache
def found(group: str, taken: frozenset[str] = frozenset()) -> dict[str, Extension]:
    """Return the extensions of a group of entry points by name, without loading them.

    ``taken`` are the names of what is built in; an extension cannot have one of them.
    """
    usable: dict[str, Extension] = {}
    for entry in sorted(entry_points(group=group), key=lambda e: (_package_of(e), e.name)):
        if entry.name in taken:
            _leave_out(entry, "has a name that hetero_lab itself uses")
        elif entry.name in usable:
            other = _package_of(usable[entry.name].entry)
            _leave_out(entry, f"has the name of another one, of the package {shorten(other)}")
        else:
            usable[entry.name] = Extension(entry)
    return usable


def _package_of(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def _told(error: Exception) -> str:
    kind, text = type(error).__name__, last_line(error).rstrip(".")
    return kind if text == kind else f"{kind}: {text}"


def _leave_out(entry: EntryPoint, why: str) -> None:
    warn(
        f"{shorten(entry.name)} of {entry.group} is left out: it {why}. It comes with the package "
        f"{shorten(_package_of(entry))}; update or uninstall that."
    )
