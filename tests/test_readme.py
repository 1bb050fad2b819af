"""The README and the other pages name what is in this tree, and what they tell to type works.

A block that needs other hardware, a network or files of the user's has a comment above it,
``<!-- not run: needs … -->``. The others of the README and the how-to pages run, on the bundled
model and an emulated device.
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

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from docs.module_map import module_map
from hetero_lab.cli.commands import COMMANDS, ERROR
from hetero_lab.cli.main import main
from tests.other_process import run_python

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MADE = {"_build", "tutorial", "gallery", "reference"}  # by docs/pages.py
WRITTEN = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if path.relative_to(ROOT / "docs").parts[0] not in MADE
]
PAGES = [README, *WRITTEN]
TO_DO = [
    page for page in PAGES if page.parent.name == "howto" or page.stem in ("README", "install")
]
BLOCK = re.compile(
    r"(?P<aside> *<!-- not run: needs .+ -->\n)?^ *```(?P<language>[a-z]+)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
# Programs of others, which are neither parsed nor run here.
OTHERS = {"clinfo", "conda", "dask", "git", "ls", "lspci", "pip", "python", "python3", "sudo"}
# Pages speak of a model and a GPU that the reader has.
HERE = {"model.onnx": "digits_inception", "GPU": "ACC"}
EMULATED = "ACC:unsupported=LSTMCell"  # runs all of the model, as some commands need
BUDGET_S = 10
EACH = pytest.mark.parametrize("page", TO_DO, ids=lambda page: page.stem)


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


@pytest.mark.parametrize("word", ["hetero-lab demo", "pytest"])
def test_the_demo_and_the_tests_are_one_line(word):
    first = next(block.text for block in blocks(README) if word in block.text)
    assert "\n" not in first
    assert "-m venv .venv &&" in first


def test_the_map_of_modules_is_current():
    page = (ROOT / "docs" / "modules.md").read_text("utf-8")
    assert page == module_map(), "run python -m docs.module_map"


def words_of_the_code() -> set[str]:
    files = [
        path for room in ("hetero_lab", "tests", "docs") for path in (ROOT / room).rglob("*.*")
    ]
    code = [path for path in files if path.suffix in (".py", ".js", ".css", ".c")]
    texts = [path.read_text("utf-8") for path in [*code, ROOT / "pyproject.toml"]]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    return words | {path.stem for path in code} | {"SEND", "CLONE_k"}  # types of OpenVINO's nodes


def test_what_pages_about_the_code_quote_is_in_it():
    words = words_of_the_code()
    for name in ("architecture.md", "contributing.md", "guards.md"):
        text = (ROOT / "docs" / name).read_text("utf-8")
        quoted = re.findall(
            r"`([A-Za-z_][\w.]*)(?:\(\))?`", re.sub(r"```.*?```", "", text, flags=re.S)
        )
        assert len(quoted) > 20
        parts = {part for whole in quoted for part in whole.split(".") if part}
        assert sorted(parts - words) == [], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_and_names_is_there(page):
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", text):
        made = link.removeprefix("../").split("/")[0] in MADE
        assert made or (page.parent / link).exists(), link
    every = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`(test_\w+)(?:\[.*?\])?`", text):
        assert f"def {name}(" in every, name
    for path in re.findall(r"`((?:tests|docs|hetero_lab)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(
        r"`((?:backend|experiments|planning|placement|runtime)/[\w/]+\.py)`", text
    ):
        assert (ROOT / "hetero_lab" / path).exists(), path


@EACH
def test_what_a_page_tells_to_type_is_understood(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)
        if block.language == "toml" and page.stem == "extend":
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
    hl.emulate("ACC", unsupported={"Softmax"})  # as the device that pages apply it to
    hl.Affinity.automatic("digits_inception", "HETERO:ACC,CPU").to_json("placement.json")
    monkeypatch.syspath_prepend(Path.cwd())  # as a program there finds what is beside it
    hl.emulate("ACC", unsupported={"LSTMCell"})
    several = blocks(ROOT / "docs" / "howto" / "several_models.md")
    (machine,) = [block.text for block in several if block.language == "toml"]
    Path("machine.toml").write_text(on_this_machine(machine), "utf-8")
    for name in hl.__all__:
        function = getattr(hl, name)
        if inspect.isfunction(function) and "budget_s" in inspect.signature(function).parameters:
            monkeypatch.setattr(hl, name, functools.partial(function, budget_s=BUDGET_S))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::hetero_lab.errors.HeteroLabWarning")  # budgets are tiny
@EACH
def test_the_code_of_a_page_runs(page, beside_a_model):
    names: dict[str, object] = {}
    run = [block.text for block in blocks(page) if block.language == "python" and block.is_run]
    for text in run:
        exec(compile(on_this_machine(text), str(page), "exec"), names)
    if page.stem in ("README", "recipes"):
        assert isinstance(names["profile"], hl.types.Profile)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::hetero_lab.errors.HeteroLabWarning")  # budgets are tiny
def test_the_code_for_ones_own_model_runs_for_one_without_matmul(beside_a_model):
    image = op.parameter([1, 3, 32, 32], np.float32, name="image")
    maps = image
    for width in (3, 8, 8, 8):
        weights = np.random.default_rng(width).standard_normal((8, width, 3, 3), np.float32)
        maps = op.relu(op.convolution(maps, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
    share = op.softmax(op.reduce_mean(maps, [2, 3], False), 1)
    ov.save_model(ov.Model([share], [image], "own"), "own.xml", compress_to_fp16=False)
    names: dict[str, object] = {}
    for text in (block.text for block in blocks(README) if block.language == "python"):
        own = on_this_machine(text.replace("model.onnx", "own.xml"))
        exec(compile(own, str(README), "exec"), names)
    assert "MatMul" not in {str(node.get_type_name()) for node in names["model"].get_ops()}
    parts = hl.verify("deploy").summary.set_index("part")["status"]
    assert {*parts.drop("latency")} == {"ok"}  # which hangs on what else runs


def test_pages_and_paragraphs_are_short():
    def prose(page: Path) -> str:
        return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.M | re.DOTALL)

    pages = [prose(page) for page in WRITTEN if page.name not in ("modules.md", "SKILL.md")]
    assert sum(len(page.split()) for page in pages) <= 16_000
    paragraphs = [each for each in prose(README).split("\n\n") if not each.lstrip().startswith("|")]
    assert [each for each in paragraphs if len(each) > 400] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@EACH
def test_the_commands_of_a_page_run(page, beside_a_model):
    for block in blocks(page):
        for program, *rest in commands(block) if block.is_run else ():
            if Path(program).name == "hetero-lab" and rest[0] != "demo":
                assert main(_quickly(on_this_machine(shlex.join(rest)))) != ERROR, rest


def test_the_proposal_prints_what_it_shows(tmp_path):
    program, shown = blocks(ROOT / "docs" / "upstream" / "affinity_in_the_ir.md")
    assert run_python(program.text, cwd=tmp_path).stdout.strip() == shown.text.strip()


def _quickly(command: str) -> list[str]:
    """Return the words of a command with a short budget, its files named, its device emulated."""
    words = []
    for word in shlex.split(command):
        words += sorted(map(str, Path().glob(word))) if "*" in word else [word]
    options = COMMANDS[words[0]].options.split()
    if {"budget", "own-budget"} & {*options}:
        words += ["--budget", str(BUDGET_S)]  # the last one counts
    if "emulate" in options and "--emulate" not in words and "ACC" in command:
        words += ["--emulate", EMULATED]
    return words
