"""Imports run one way, and heavy packages are loaded only where they are used."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Collection
from pathlib import Path

import pytest
from other_process import run_python
from package_source import PACKAGE, parsed

# A module may import what stands before it, and its own layer.
LAYERS = [
    {
        "arguments", "clock", "errors", "extensions", "facade", "fetch", "fork_server", "grouping",
        "interrupts", "minimal_sets", "processes", "progress", "result", "statistics", "tables",
        "terminal",
    },
    *({room} for room in ("samples", "model", "backend", "placement", "planning", "lint")),
    *({room} for room in ("runtime", "experiments", "views", "widgets", "cli")),
]  # fmt: skip

# Programs that are copied out of the package, and import nothing of it.
STANDALONE = {"run_frozen.py", "show_fault.py"}

# Where a package may be imported: directories end in a slash.
ALLOWED = {
    "openvino": (
        "model/read.py", "model/language.py", "model/static_phases.py",
        "devices/", "runtime/", "debug/wrong.py",
    ),
    "nncf": ("accuracy/quantize.py",),
    "openvino_genai": ("samples/made_models.py",),
    "plotly": ("views/", "widgets/"),
    "ipywidgets": ("widgets/",),
    "anywidget": ("widgets/",),
    "IPython": ("cli/magics.py", "widgets/"),
    "dask": ("experiments/",),
    "distributed": ("experiments/",),
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@functools.cache
def all_imports(path: Path) -> list[tuple[int, str, bool]]:
    """Return line and dotted name of each import, and whether it is for the type checker only."""
    found: list[tuple[int, str, bool]] = []

    def visit(node: ast.AST, of_types: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                visit(child, True)
            for child in node.orelse:
                visit(child, of_types)
        elif isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name, of_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(PACKAGE.parent).parent.parts
                base = ".".join([*package[: len(package) - node.level + 1], base]).rstrip(".")
            # `from hetero_lab.runtime import timing` imports a module, so each name counts.
            found.extend((node.lineno, f"{base}.{alias.name}", of_types) for alias in node.names)
        elif not isinstance(node, ast.expr):  # no expression holds an import
            for child in ast.iter_child_nodes(node):
                visit(child, of_types)

    visit(parsed(path), False)
    return found


def imports(path: Path, *, of_types: bool = False) -> list[tuple[int, str]]:
    """Return line and dotted name of each import, those in functions too.

    What is imported for the type checker only counts if ``of_types``.
    """
    return [(line, name) for line, name, typing in all_imports(path) if of_types or not typing]


def layer_of(part: str) -> int:
    for number, names in enumerate(LAYERS):
        if part in names:
            return number
    return len(LAYERS)  # magics, commands and the rest of what people call


def test_imports_run_one_way():
    back = [
        f"{name_of(path)}, line {line}: {name}"
        for path in modules()
        for line, name in imports(path)
        if name.startswith("hetero_lab.")
        and layer_of(name.split(".")[1]) > layer_of(name_of(path).split("/")[0].removesuffix(".py"))
        # The package itself has lazy names; its version is everybody's.
        and name != "hetero_lab.__version__"
    ]
    assert back == []


def test_packages_are_imported_only_where_they_belong():
    wrong = [
        f"{name_of(path)}, line {line}: {module}"
        for path in modules()
        for line, module in imports(path)
        if (places := ALLOWED.get(module.split(".")[0])) and not name_of(path).startswith(places)
    ]
    assert wrong == []


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, known: Collection[str]) -> set[str]:
    """Return the modules of the package that a file imports: at its top, in functions, for types.

    What the ``__init__`` of a package imports for types are the public names that it looks up
    when they are used, so those do not count.
    """
    found = set()
    for _, name in imports(path, of_types=path.name != "__init__.py"):
        module = name
        while module and module not in known:
            module = module.rpartition(".")[0]
        found.add(module)
    # A name of the package itself is looked up when it is used, or the version.
    return found - {"", "hetero_lab", module_of(path)}


def test_no_files_import_each_other():
    known = {module_of(path): path for path in modules()}
    graph = {module: imported_modules(path, known) for module, path in known.items()}
    assert graph["hetero_lab.runtime.timing"] >= {"hetero_lab.clock"}
    assert sum(map(len, graph.values())) > len(graph)
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the files of a circle


def test_a_name_stands_for_one_class():
    seen: dict[str, list[str]] = {}
    for path in modules():
        if path.name in STANDALONE:
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                seen.setdefault(node.name.lstrip("_"), []).append(name_of(path))
    assert {name: paths for name, paths in seen.items() if len(paths) > 1} == {}


def test_the_reader_of_imports_reads(tmp_path):
    source = (
        "from __future__ import annotations\nimport openvino as ov\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import plotly\nelse:\n    import dask\n"
        "def f():\n    from hetero_lab.views import graph\n    import pandas.api\n"
    )
    path = tmp_path / "module.py"
    path.write_text(source)
    found = {name for _, name in imports(path)}
    assert found >= {"openvino", "dask", "hetero_lab.views.graph", "pandas.api"}
    assert "plotly" not in found
    assert "plotly" in {name for _, name in imports(path, of_types=True)}
    assert layer_of("errors") < layer_of("model") < layer_of("views") < layer_of("magics")
    assert len(modules()) > 30


def test_import_pulls_in_nothing_heavy():
    code = (
        "import sys, hetero_lab\n"
        "heavy = ('openvino', 'nncf', 'plotly', 'pandas', 'numpy', 'scipy', 'ipywidgets',"
        " 'IPython', 'dask')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run_python(code).stdout == "[]\n"


def test_every_public_name_is_there():
    code = (
        "import hetero_lab as hl; from hetero_lab import *\n"
        "missing = [name for name in hl.__all__ if name not in globals()]\n"
        "print(missing, set(hl.__all__) <= set(dir(hl)))"
    )
    assert run_python(code).stdout == "[] True\n"
    import hetero_lab as hl

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
