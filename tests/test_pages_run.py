"""What the README and the how-to pages tell people to type is parsed, and run where it can be.

A block that needs other hardware, a network or files of the user's has a comment above it,
``<!-- not run: needs … -->``. The others run on the bundled model and an emulated device.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import hetero_lab as hl
from hetero_lab.cli.main import COMMANDS, ERROR, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs/install.md", *sorted((ROOT / "docs/howto").glob("*.md"))]
BLOCK = re.compile(
    r"(?P<aside> *<!-- not run: needs .+ -->\n)?^ *```(?P<language>[a-z]+)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
# Programs of others, which are neither parsed nor run here.
OTHERS = {"clinfo", "conda", "dask", "git", "ls", "lspci", "pip", "python", "python3", "sudo"}
# Pages speak of a model and a GPU that the reader has.
HERE = {"model.onnx": "digits_inception", "GPU": "ACC"}
EMULATED = "ACC:unsupported=Softmax"
BUDGET_S = 10
ALL = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    text: str
    is_run: bool


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [
        Block(each["language"], inspect.cleandoc("\n" + each["text"]), each["aside"] is None)
        for each in found
    ]


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a block of a shell, or of a workflow."""
    if block.language not in ("sh", "yaml"):
        return
    lines = block.text.splitlines()
    if block.language == "yaml":
        lines = [line.partition("- run: ")[2] for line in lines]
    for line in lines:
        words = shlex.split(line.partition("|")[0], comments=True)
        for command in " ".join(map(shlex.quote, words)).split(" '&&' "):
            if command:
                yield shlex.split(command)


def on_this_machine(text: str) -> str:
    return functools.reduce(lambda said, name: said.replace(name, HERE[name]), HERE, text)


@ALL
def test_what_a_page_tells_to_type_is_understood(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)
        if block.language == "toml":
            example = (ROOT / "tests/example_extension/pyproject.toml").read_text()
            points = tomllib.loads(block.text)["project"]["entry-points"]
            assert tomllib.loads(example)["project"]["entry-points"] == points
        for program, *rest in commands(block):
            if Path(program).name == "hetero-lab":
                COMMANDS[rest[0]].parser().parse_args(rest[1:])
                continue
            assert Path(program).name in OTHERS, program
            if "-m" in rest:
                assert importlib.util.find_spec(rest[rest.index("-m") + 1]), rest
            for named in re.findall(r"\[(.*?)\]", " ".join(rest)):
                assert set(named.split(",")) <= set(project["optional-dependencies"]), rest


@pytest.fixture
def beside_a_model(tmp_path, monkeypatch):
    """A directory with what pages speak of, little time for each call, and a device for the GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path / "cache"))
    hl.emulate("ACC", unsupported={"Softmax"})
    hl.Affinity.automatic("digits_inception", "HETERO:ACC,CPU").to_json("placement.json")
    for name in hl.__all__:
        function = getattr(hl, name)
        if inspect.isfunction(function) and "budget_s" in inspect.signature(function).parameters:
            monkeypatch.setattr(hl, name, functools.partial(function, budget_s=BUDGET_S))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::hetero_lab.errors.HeteroLabWarning")  # budgets are tiny
@ALL
def test_the_code_of_a_page_runs(page, beside_a_model):
    names: dict[str, object] = {}
    run = [block.text for block in blocks(page) if block.language == "python" and block.is_run]
    for text in run:
        exec(compile(on_this_machine(text), str(page), "exec"), names)
    if page.stem in ("README", "recipes"):
        assert isinstance(names["profile"], hl.types.Profile)


@pytest.mark.slow
@pytest.mark.timeout(900)
@ALL
def test_the_commands_of_a_page_run(page, beside_a_model):
    for block in blocks(page):
        for program, *rest in commands(block) if block.is_run else ():
            if Path(program).name == "hetero-lab" and rest[0] != "demo":
                assert main(_quickly(on_this_machine(shlex.join(rest)))) != ERROR, rest


def _quickly(command: str) -> list[str]:
    """Return the words of a command with a short budget, its files named, its device emulated."""
    words = []
    for word in shlex.split(command):
        words += sorted(map(str, Path().glob(word))) if "*" in word else [word]
    options = COMMANDS[words[0]].options.split()
    if "budget" in options and "--budget" not in words:
        words += ["--budget", str(BUDGET_S)]
    if "emulate" in options and "--emulate" not in words and "ACC" in command:
        words += ["--emulate", EMULATED]
    return words
