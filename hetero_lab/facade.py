"""Public names, written once: as imports for type checkers, where they are looked up at run time.

A module of public names lists them under ``if TYPE_CHECKING:``, one ``from hetero_lab.… import
name as name`` per home, so that type checkers and editors see them while nothing is imported before
its first use. At this door, a function gets its checks (:mod:`hetero_lab.arguments`) and ends in
``KeyboardInterrupt`` after Ctrl-C (:mod:`hetero_lab.interrupts`). Classes pass unchanged; their
public methods check their own arguments.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from hetero_lab.annexes import named

_IMPORT = re.compile(r"^    from (hetero_lab[\w.]*) import (\([^)]*\)|.+)$", re.M)
_NAME = re.compile(r"\b(\w+) as \1\b")
_Face = tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]


def attach(module: str) -> _Face:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a module of public names."""
    home = homes(module)

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = public(home[name], name)
        setattr(sys.modules[module], name, found)
        return found

    def listed() -> list[str]:
        own = vars(sys.modules[module])
        return sorted({*home, *(name for name in own if name.startswith("__"))})

    return sorted(home), get, listed


def homes(module: str) -> dict[str, str]:
    """Return the public names of a module with the modules that define them."""
    # The source is read without running it; a loader also finds it in a zip file.
    spec: Any = importlib.util.find_spec(module)
    source = spec.loader.get_source(module)
    return {
        name: where for where, names in _IMPORT.findall(source) for name in _NAME.findall(names)
    }


def public(where: str, name: str) -> Any:
    """Return the object of a name; a function is checked and guarded."""
    if where == "hetero_lab":
        return importlib.import_module(f"hetero_lab.{name}")
    found = named(f"{where}.{name}")
    if isinstance(found, FunctionType):
        # Imported late, so that `import hetero_lab` alone is quick.
        from hetero_lab import arguments, interrupts

        return interrupts.guarded(arguments.checked(found))
    return found
