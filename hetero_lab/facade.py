"""Public names, written once: as imports for type checkers, where they are looked up at run time.

A module of public names lists them under ``if TYPE_CHECKING:``, one ``from hetero_lab.… import
name as name`` per home, so that type checkers and editors see them while nothing is imported before
its first use. At this door, a function gets its checks (:mod:`hetero_lab.arguments`) and ends in
``KeyboardInterrupt`` after Ctrl-C (:mod:`hetero_lab.interrupts`). Classes pass unchanged; their
public methods check their own arguments.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

_IMPORT = re.compile(r"^    from (hetero_lab[\w.]*) import (\([^)]*\)|.+)$", re.M)
_NAME = re.compile(r"\b(\w+) as \1\b")


class Face(ModuleType):
    """A module of public names: each is imported from its home at its first use."""

    _homes: dict[str, str]
    __all__: list[str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        # Imported late, so that `import hetero_lab` alone is quick.
        from hetero_lab.annexes import imported

        where = self._homes[name]
        if where == "hetero_lab":
            return imported(f"hetero_lab.{name}", name)
        found = getattr(imported(where, name), name)
        if isinstance(found, FunctionType):
            from hetero_lab import arguments, interrupts

            found = interrupts.guarded(arguments.checked(found))
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*self._homes, *(name for name in vars(self) if name.startswith("__"))})

    def __setattr__(self, name: str, value: object) -> None:
        # The import of hetero_lab.lint.lint sets an attribute `lint`, which has to remain the
        # function.
        if isinstance(value, ModuleType) and self._homes.get(name, "hetero_lab") != "hetero_lab":
            return
        super().__setattr__(name, value)


def attach(name: str) -> None:
    """Make the module of a name one that looks its public names up."""
    module: Any = sys.modules[name]
    module._homes = dict(homes(name))
    module.__all__ = sorted(module._homes)
    module.__class__ = Face


def homes(module: str) -> Iterator[tuple[str, str]]:
    """Yield each public name of a module with the module that defines it."""
    # The source is read without running it; a loader also finds it in a zip file.
    spec: Any = importlib.util.find_spec(module)
    for where, names in _IMPORT.findall(spec.loader.get_source(module)):
        yield from ((name, where) for name in _NAME.findall(names))
