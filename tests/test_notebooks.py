"""The notebooks hold calls and prose: no outputs, no definitions. .ci/run executes them."""

import ast
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
CLEAR = "jupyter nbconvert --clear-output --inplace notebooks/*.ipynb"


def code_cells(path):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def test_there_are_notebooks():
    assert "01_quickstart" in [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs(path):
    for cell in code_cells(path):
        assert not cell.outputs, f"{path.name} has outputs. Take them out: {CLEAR}"
        assert cell.execution_count is None, f"Take the numbers out: {CLEAR}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_definitions(path):
    for cell in code_cells(path):
        if cell.source.startswith("%%"):
            continue
        lines = ["pass" if line.startswith("%") else line for line in cell.source.splitlines()]
        defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        nodes = ast.walk(ast.parse("\n".join(lines)))
        found = [node for node in nodes if isinstance(node, defined)]
        assert not found, f"{path.name} defines something in: {cell.source}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_valid_and_for_any_kernel(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
