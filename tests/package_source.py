"""The source of the package, parsed once for all tests that read it."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hetero_lab"


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module by its path within the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
