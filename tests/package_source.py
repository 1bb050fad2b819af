"""The source of the package, parsed once for all tests that read it, and its public names."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from types import FunctionType
from typing import Any

PACKAGE = Path(__file__).parents[1] / "hetero_lab"


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"))


def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module by its path within the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): parsed(path) for path in sorted(PACKAGE.rglob("*.py"))
    }


def public_names(*modules: Any) -> dict[str, Any]:
    """Return each public name of the modules with what it stands for."""
    return {name: getattr(module, name) for module in modules for name in module.__all__}


def public_functions(*modules: Any) -> dict[str, FunctionType]:
    """Return the functions among the public names."""
    names = public_names(*modules).items()
    return {name: value for name, value in names if isinstance(value, FunctionType)}
