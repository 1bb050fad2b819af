"""The README's commands are those of this tree, and so is what it and the other pages name."""

import re
from pathlib import Path

import pytest

from docs.module_map import module_map

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
MADE = {"_build", "tutorial", "gallery", "reference"}  # by docs/pages.py
WRITTEN = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if path.relative_to(ROOT / "docs").parts[0] not in MADE
]
PAGES = [ROOT / "README.md", *WRITTEN]
BLOCKS = re.findall(r"^```[a-z]*\n(.*?)^```", README, flags=re.M | re.S)


def first_block(word: str) -> str:
    return next(block for block in BLOCKS if word in block)


def test_the_demo_is_one_line():
    command = first_block("hetero-lab demo")
    assert command.count("\n") == 1
    assert command.endswith("hetero-lab demo\n")
    assert "-m venv .venv &&" in command


def test_the_tests_are_one_line():
    command = first_block("pytest")
    assert command.count("\n") == 1
    assert "-m venv .venv &&" in command


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
        made = link.split("/")[0] in MADE
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
