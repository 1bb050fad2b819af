"""Each statement of a function of the package notes that it was executed, in memory on a file.

Child processes share the memory. Only the standard library is imported: this runs at the start of
every process, before those that say what they import.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import mmap
import os
from pathlib import Path
from typing import Any

NOTES, PACKAGE_NOTED = "MUTANTS_NOTES", "MUTANTS_NOTED_PACKAGE"
# Notes of a file: one byte a line.
MOST_LINES = 2048


def modules(root: Path) -> list[str]:
    """Return the paths of all modules of the package, in an order that is always the same."""
    return sorted(p.relative_to(root).as_posix() for p in (root / "hetero_lab").rglob("*.py"))


def note_statements() -> None:
    """From now on each statement in a function of the package notes that it was executed."""
    root = Path(os.environ[PACKAGE_NOTED])
    with open(os.environ[NOTES], "r+b") as file:
        builtins.__noted__ = mmap.mmap(file.fileno(), 0)  # type: ignore[attr-defined]
    numbers = {str(root / path): at for at, path in enumerate(modules(root))}
    plain = importlib.machinery.SourceFileLoader.source_to_code

    def noting(self: Any, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        if path in numbers and not isinstance(data, ast.AST):
            data = with_notes(ast.parse(data), numbers[path] * MOST_LINES)
        return plain(self, data, path, _optimize=_optimize)

    importlib.machinery.SourceFileLoader.source_to_code = noting


def with_notes(tree: ast.Module, first: int) -> ast.Module:
    """Return a module whose statements set ``__noted__[first + line]`` when they are executed."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = function.body[: ast.get_docstring(function) is not None]
            function.body = docstring + _noted_body(function.body[len(docstring) :], first)
    return ast.fix_missing_locations(tree)


def _noted_body(body: list[ast.stmt], first: int) -> list[ast.stmt]:
    noted: list[ast.stmt] = []
    for statement in body:
        note = ast.parse(f"__noted__[{first + statement.lineno}] = 1").body[0]
        for part in ast.walk(note):
            ast.copy_location(part, statement)
        noted += [note, statement]
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for holder in (statement, *getattr(statement, "handlers", ())):
                for field in ("body", "orelse", "finalbody"):
                    if inner := getattr(holder, field, None):
                        setattr(holder, field, _noted_body(inner, first))
            for case in getattr(statement, "cases", ()):
                case.body = _noted_body(case.body, first)
    return noted
