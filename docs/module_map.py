"""Write the map of modules, docs/modules.md, from the first line of each module's docstring.

Run it after adding, moving or renaming a module: ``python -m docs.module_map``.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hetero_lab"
PAGE = Path(__file__).with_name("modules.md")

_HEAD = """\
# Modules

What each module is, in the words of its docstring. `python -m docs.module_map` writes this page. \
What the rooms are for, and what each may import: [architecture.md](architecture.md).
"""


def summary(module: Path) -> str:
    """Return the first sentence or paragraph line of a module's docstring.

    Raises
    ------
    ValueError
        The module has no docstring.
    """
    text = ast.get_docstring(ast.parse(module.read_text("utf-8")))
    if not text:
        raise ValueError(f"{module} has no docstring")
    first = " ".join(text.split("\n\n")[0].split())
    return first.replace("``", "`").replace(":func:", "").replace(":class:", "").rstrip(".")


def module_map() -> str:
    """Return the page: one table a room, rooms and modules by name."""
    rooms = sorted({path.parent for path in PACKAGE.rglob("*.py")})
    lines = [_HEAD]
    for room in rooms:
        name = room.relative_to(PACKAGE.parent).as_posix()
        lines += [f"## {name}/", "", f"{summary(room / '__init__.py')}.", ""]
        modules = sorted(path for path in room.glob("*.py") if path.name != "__init__.py")
        if modules:
            lines += ["| module | what it is |", "| --- | --- |"]
            lines += [f"| `{path.name}` | {summary(path)} |" for path in modules]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(module_map(), "utf-8")
