"""The notebooks hold calls and prose: no outputs, no definitions. .ci/run executes them."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slices import sliced

nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MOST_WORDS = 500  # who runs a notebook wants to get to the next cell
CLEAR = "jupyter nbconvert --clear-output --inplace notebooks/*.ipynb"


def text_of(path):
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(c.source for c in cells if c.cell_type == "markdown")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_calls_for_any_kernel_a_picture_and_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    for cell in cells:
        assert not cell.outputs, f"{path.name} has outputs. Take them out: {CLEAR}"
        assert cell.execution_count is None, f"Take the numbers out: {CLEAR}"
        if not cell.source.startswith("%%"):
            lines = ["pass" if line.startswith("%") else line for line in cell.source.splitlines()]
            found = [n for n in ast.walk(ast.parse("\n".join(lines))) if isinstance(n, defined)]
            assert not found, f"{path.name} defines something in: {cell.source}"
    assert len(text_of(path).split()) <= MOST_WORDS
    code = "\n".join(cell.source for cell in cells)
    assert "hl.views." in code
    # The devices are chosen once.
    assert code.count('name.startswith(("GPU", "NPU"))') == 1
    assert not re.search(r"HETERO:ACC|\[\"ACC\", \"CPU\"\]", code)


def test_they_are_one_course():
    numbers = [path.name[:2] for path in NOTEBOOKS]
    assert len(set(numbers)) == len(numbers)
    assert NOTEBOOKS[0].stem == "01_quickstart"
    for path, following in zip(NOTEBOOKS, [*NOTEBOOKS[1:], NOTEBOOKS[0]], strict=True):
        text = text_of(path)
        headings = re.findall(r"^## (.*)$", text, flags=re.M)
        assert [h for h in headings if h in ("Conclusion", "Exercise")] == [
            "Conclusion",
            "Exercise",
        ], path.name
        last = nbformat.read(path, as_version=4).cells[-1].source
        assert f"]({following.name})" in last, path.name
        introduction = text.partition("\n## ")[0]
        assert "?" in introduction, f"{path.name} begins without a question"
        for link in re.findall(r"\]\(([^):]+)\)", text):
            assert (path.parent / link).exists(), link


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("condition", sliced(["no-bf16", "offline", "one-core", "wide"], 0, 0))
def test_the_first_runs_as_on_other_machines(condition):
    """The others run by ``python -m tests.notebooks_everywhere --conditions …``."""
    if not sys.platform.startswith("linux") or not (shutil.which("cc") and shutil.which("objdump")):
        pytest.skip("making this machine another one needs Linux, a C compiler and objdump")
    command = [sys.executable, "-m", "tests.notebooks_everywhere", "01", "--conditions", condition]
    done = subprocess.run(command, cwd=NOTEBOOKS[0].parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
