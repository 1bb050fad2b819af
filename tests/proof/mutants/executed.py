"""Which statements of the package each quick test executes, and how long it takes.

Each statement of a function notes itself in memory that child processes share. The notes are kept
in the user's cache by the content of the tests' modules and the test file, and hold as long as the
modules of the package that were imported or executed are the same, so that little is run again
after a change. What runs from text (``run.py``) or without the environment is not seen.
"""

from __future__ import annotations

import base64
import builtins
import hashlib
import json
import os
import queue
import shutil
import sys
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from tests.proof.mutants.noting import MOST_LINES, NOTES, PACKAGE_NOTED, modules
from tests.proof.mutants.warm import Tree

ANSWER = "MUTANTS_ANSWER"
_NEAR = 20  # lines before and after a statement
_MOST_S = 3600.0  # of one test file


@dataclass(frozen=True)
class Test:
    """A quick test, and which of the asked statements it executes: pairs of path and line.

    With each comes how many lines near it the test executes, too.
    """

    name: str
    file: str
    seconds: float
    passed: bool
    executed: Mapping[tuple[str, int], int]


def read_or_record(
    trees: Sequence[Tree], wanted: tuple[str, ...], statements: Collection[tuple[str, int]]
) -> list[Test]:
    """Return the quick tests of the files that begin as wanted, run where that was not noted."""
    root = trees[0].root
    contents = _contents(root)
    kept = Path(platformdirs.user_cache_dir("hetero_lab_mutants"))
    kept.mkdir(parents=True, exist_ok=True)
    shared = hashlib.sha256()
    for path in sorted((root / "tests").rglob("*.py")):
        if not path.name.startswith("test_") and path.parent.name != "mutants":
            shared.update(path.read_bytes())
    aside = {"gpu_rig", "real_gpu", "benchmarks"}
    files = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        if file.startswith(wanted) and not aside & set(path.parts):
            digest = shared.copy()
            digest.update(path.read_bytes())
            files[file] = kept / f"{digest.hexdigest()}.json"
    missing = [file for file, note in files.items() if not _holds(note, contents)]
    idle: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for tree in trees:
        idle.put(tree)

    def record(file: str) -> None:
        tree, began = idle.get(), time.monotonic()
        _record(tree, file, files[file])
        idle.put(tree)
        print(f"recorded {file} in {time.monotonic() - began:.0f} s", flush=True)

    with ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(record, missing))
    tests = []
    for file, note in files.items():
        answer = json.loads(note.read_text())
        start = {path: at * MOST_LINES for at, path in enumerate(answer["modules"])}
        for name, (seconds, passed, executed) in answer["tests"].items():
            noted = zlib.decompress(base64.b64decode(executed))
            near = {}
            for path, line in statements:
                number = start.get(path, len(noted)) + line
                if any(noted[number : number + 1]):
                    near[path, line] = sum(noted[max(0, number - _NEAR) : number + _NEAR + 1])
            tests.append(Test(name, file, seconds, passed, near))
    return tests


def _contents(root: Path) -> dict[str, str]:
    """Return a digest of each module of the package."""
    return {p: hashlib.sha256((root / p).read_bytes()).hexdigest() for p in modules(root)}


def _holds(note: Path, contents: Mapping[str, str]) -> bool:
    """Return whether no module that a test file runs has changed since its note was taken."""
    if not note.exists():
        return False
    answer = json.loads(note.read_text())
    return all(contents.get(path) == answer["modules"][path] for path in answer["run"])


def _record(tree: Tree, file: str, note: Path) -> None:
    root, scratch = tree.root, tree.scratch
    hook = scratch / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(
        "from tests.proof.mutants import noting\nnoting.note_statements()\n"
    )
    notes = scratch / f"{note.stem}.notes"
    notes.write_bytes(bytes(MOST_LINES * len(modules(root))))
    answer = scratch / note.name
    environment = {
        "PYTHONPATH": os.pathsep.join([str(hook), str(root)]),
        "PYTHONPYCACHEPREFIX": str(scratch / "noted"),
        NOTES: str(notes), PACKAGE_NOTED: str(root), ANSWER: str(answer),
    }  # fmt: skip
    plugin = ("-p", "tests.proof.mutants.executed", "-p", "no:cacheprovider")
    tree.warm.run(["-q", *plugin, file], environment, _MOST_S)
    notes.unlink()
    if answer.exists():
        shutil.move(answer, note)
    else:
        print(f"{file} ended too early: its tests kill nothing", flush=True)
        note.write_text(json.dumps({"modules": {}, "run": [], "tests": {}}))


# In the process of the tests that are noted

_answers: dict[str, list[Any]] = {}
_run: set[int] = set()  # the numbers of modules that were executed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    """Note what a test executes and how long it takes, with what it sets up."""
    notes = vars(builtins)["__noted__"]
    notes[:] = bytes(len(notes))
    answer = _answers[item.nodeid] = [0.0, True, ""]
    began = time.monotonic()
    result = yield
    answer[0] = round(time.monotonic() - began, 3)
    noted = notes[:]
    firsts = range(0, len(noted), MOST_LINES)
    _run.update(at for at, first in enumerate(firsts) if any(noted[first : first + MOST_LINES]))
    answer[2] = base64.b64encode(zlib.compress(noted, 1)).decode()
    return result


def pytest_runtest_logreport(report: Any) -> None:
    """Note which tests pass."""
    if report.failed and report.nodeid in _answers:
        _answers[report.nodeid][1] = False


def pytest_sessionfinish() -> None:
    """Write the notes, with the modules of the package and those that were imported or executed."""
    root = Path(os.environ[PACKAGE_NOTED])
    contents = _contents(root)
    imported = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    run = [path for at, path in enumerate(contents) if at in _run or str(root / path) in imported]
    answer = {"modules": contents, "run": run, "tests": _answers}
    Path(os.environ[ANSWER]).write_text(json.dumps(answer))
