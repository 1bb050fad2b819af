"""Rooms import those above them, annexes what the table says; heavy packages have their places.

A room is a package of ``hetero_lab``; the modules at its top are the room ``base``. All imports
count: at the top, in functions, for type checkers. The lists of public names (``FACES``) import
nothing until a name is used, so what they import for type checkers does not.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest
from other_process import run_python
from package_source import PACKAGE, parsed

# The core: a room may import those before it.
ROOMS = (
    "base", "samples", "model", "devices", "placement", "costs", "planning", "lint", "runtime",
    "results", "measure", "search", "views", "widgets", "widgets/explorer", "widgets/tweaker",
    "cli",
)  # fmt: skip

# The annexes: each may import the core, and of the other annexes those that are listed here.
ANNEXES = {
    "accuracy": set(),
    "doctor": set(),
    "fleet": set(),
    "parallel": set(),
    "llm": set(),
    "debug": {"llm"},
    "deploy": {"accuracy", "llm"},
    "interop": {"debug"},
    "advise": {"accuracy", "deploy", "interop"},
    "machine": {"deploy", "interop"},
}  # fmt: skip

# Lists of public names. The package's own imports what people type from everywhere.
FACES = {"__init__.py", "types.py", "views/__init__.py", "interop/__init__.py", "llm/__init__.py"}

# A program that is copied out of the package, and imports nothing of it.
STANDALONE = {"show_fault.py"}

# Where a package may be imported: directories end in a slash.
ALLOWED = {
    "openvino": (
        "model/extension_ops.py", "model/language.py", "model/read.py", "model/static_phases.py",
        "devices/", "runtime/", "parallel/", "accuracy/quantize.py", "llm/private_memory.py",
        "llm/tokenizer.py", "deploy/run_frozen.py", "debug/show_fault.py",
        "debug/placed_runs.py", "debug/wrong.py",
    ),
    "nncf": ("accuracy/quantize.py",),
    "openvino_genai": ("samples/made_models.py",),
    "plotly": (
        "views/", "widgets/", "accuracy/accuracy_figures.py", "debug/debug_figures.py",
        "llm/llm_figures.py", "machine/machine_figures.py",
    ),
    "ipywidgets": ("widgets/",),
    "anywidget": ("widgets/",),
    "IPython": ("cli/magics.py", "widgets/"),
    "dask": ("fleet/",),
    "distributed": ("fleet/",),
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(path: Path, *, of_types: bool = False) -> list[tuple[int, str]]:
    """Return line and dotted name of each import, those in functions too.

    What is imported for the type checker only counts if ``of_types``.
    """
    found: list[tuple[int, str]] = []
    nodes: list[ast.AST] = [parsed(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}, line {node.lineno}: name the package"
            # `from hetero_lab.runtime import timing` imports a module, so each name counts.
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not of_types:
            nodes += node.orelse
        elif not isinstance(node, ast.expr):  # no expression holds an import
            nodes += ast.iter_child_nodes(node)
    return sorted(found)


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, known: Collection[str]) -> dict[str, int]:
    """Return the modules of the package that a file imports, with the first line of each."""
    lines: dict[str, int] = {}
    for line, name in imports(path, of_types=name_of(path) not in FACES):
        module = name
        while module and module not in known:
            module = module.rpartition(".")[0]
        lines.setdefault(module, line)
    # A name of the package itself is looked up when it is used, or the version.
    return {m: line for m, line in lines.items() if m not in ("", "hetero_lab", module_of(path))}


def room_of(path: Path) -> str:
    """Return the room of a file; ``python -m hetero_lab`` belongs to the command line."""
    folder = path.parent.relative_to(PACKAGE).as_posix()
    if folder != ".":
        return folder
    return "cli" if path.name == "__main__.py" else "base"


def may_import(room: str, other: str) -> bool:
    if room == other:
        return True
    if room in ANNEXES:
        return other in ROOMS or other in ANNEXES[room]
    return other in ROOMS and ROOMS.index(other) < ROOMS.index(room)


@functools.cache
def graph() -> dict[str, dict[str, int]]:
    """Return each module with those that it imports, and the first line that does."""
    known = {module_of(path): path for path in modules()}
    return {module: imported_modules(path, known) for module, path in known.items()}


@functools.cache
def rooms() -> dict[str, str]:
    """Return the room of each module."""
    return {module_of(path): room_of(path) for path in modules()}


def test_every_package_is_a_room_or_an_annex():
    assert {*rooms().values()} - {*ROOMS, *ANNEXES} == set()
    # One that was deleted is missed by those that may import it alone.
    assert {*ROOMS} - {*rooms().values()} == set()


def test_a_room_imports_those_above_it_and_an_annex_what_the_table_says():
    assert [
        f"{module}, line {line}: {rooms()[module]} must not import {rooms()[other]}"
        for module, others in graph().items()
        for other, line in others.items()
        if not may_import(rooms()[module], rooms()[other])
    ] == []


def test_no_annex_is_allowed_another_that_it_does_not_import():
    used = {(rooms()[module], rooms()[other]) for module in graph() for other in graph()[module]}
    allowed = {(annex, other) for annex, others in ANNEXES.items() for other in others}
    assert allowed - used == set()


def test_annexes_do_not_need_each_other_in_a_circle():
    graphlib.TopologicalSorter(ANNEXES).prepare()  # CycleError names the annexes
    assert set().union(*ANNEXES.values()) <= set(ANNEXES)


def test_packages_are_imported_only_where_they_belong():
    wrong = [
        f"{name_of(path)}, line {line}: {module}"
        for path in modules()
        for line, module in imports(path)
        if (places := ALLOWED.get(module.split(".")[0])) and not name_of(path).startswith(places)
    ]
    assert wrong == []


def test_no_files_import_each_other():
    assert "hetero_lab.clock" in graph()["hetero_lab.runtime.executors"]
    assert sum(map(len, graph().values())) > len(graph())
    graphlib.TopologicalSorter(graph()).prepare()  # CycleError names the files of a circle


def test_a_name_stands_for_one_module():
    stems = Counter(path.stem for path in modules() if path.name != "__init__.py")
    assert [stem for stem, count in stems.items() if count > 1] == []
    # The import of a module sets its name in its package, where a public name would be lost.
    import hetero_lab as hl

    for space in (hl.interop, hl.llm, hl.views):
        folder = PACKAGE / space.__name__.split(".")[1]
        assert {path.stem for path in folder.glob("*.py")} & set(space.__all__) == set()


def test_a_name_stands_for_one_class():
    classes = Counter(
        name
        for path in modules()
        if path.name not in STANDALONE
        for name in re.findall(r"^ *class _?(\w+)", path.read_text("utf-8"), re.MULTILINE)
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_the_reader_of_imports_reads(tmp_path):
    source = (
        "from __future__ import annotations\nimport openvino as ov\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import plotly\nelse:\n    import dask\n"
        "def f():\n    from hetero_lab.views import theme\n    import pandas.api\n"
    )
    path = tmp_path / "module.py"
    path.write_text(source)
    found = {name for _, name in imports(path)}
    assert found >= {"openvino", "dask", "hetero_lab.views.theme", "pandas.api"}
    assert "plotly" not in found
    assert "plotly" in {name for _, name in imports(path, of_types=True)}
    assert len(modules()) > 30
    assert all(
        may_import(*pair) for pair in [("model", "base"), ("cli", "views"), ("fleet", "cli")]
    )
    assert not any(may_import(*pair) for pair in [("base", "model"), ("cli", "advise")])


def test_import_pulls_in_nothing_heavy():
    code = (
        "import sys, hetero_lab\n"
        "heavy = ('openvino', 'nncf', 'plotly', 'pandas', 'numpy', 'scipy', 'ipywidgets',"
        " 'IPython', 'dask')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run_python(code).stdout == "[]\n"


def test_every_public_name_is_there():
    import hetero_lab as hl

    names: dict[str, object] = {}
    exec("from hetero_lab import *", names)
    assert set(hl.__all__) <= set(names)
    for module in (hl, hl.interop, hl.llm, hl.types, hl.views):
        assert {name for name in dir(module) if not name.startswith("_")} >= set(module.__all__)
        assert not {"sys", "importlib", "Any", "runtime", "theme"} & set(dir(module))
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = hl.no_such_name


def test_errors_about_arguments_are_value_errors():
    from hetero_lab import errors

    kinds = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.ArgumentError)
    ]
    assert len(kinds) >= 8
    assert all(issubclass(kind, ValueError) for kind in kinds)
    assert issubclass(errors.HeteroLabWarning, UserWarning)
