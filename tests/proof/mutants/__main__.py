"""Do the quick tests see a change of meaning? A sample of mutants of the package.

    python -m tests.proof.mutants --sample 60 --seed 1
    python -m tests.proof.mutants --rooms views parallel --sample 20 --seed 2
    python -m tests.proof.mutants --only "planner.py:keeps_limits"

Random functions are drawn, and one change of each: a comparison, a condition, a number, a slice,
an argument, a guard that is dropped, … (``mutations.py``). Each is made in a copy of the tree. Of
the quick tests, those that execute the changed statement run, those of the module's own file and
room first, then the other tests of their files (``executed.py``), until one fails; a mutant on
which they take many times as long as without it is killed, too. The first call runs all quick
tests once to see what they execute. ``--tests`` names files or directories that may kill, else
all may.
Mutants that mean the same (``equivalent.py``) do not count. The exit code is 1 if fewer than five
of six are killed.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from tests.proof.mutants import chosen
from tests.proof.mutants.equivalent import EQUIVALENT
from tests.proof.mutants.executed import Test, read_or_record
from tests.proof.mutants.mutations import Mutant, mutants_by_function, sample
from tests.proof.mutants.noting import modules
from tests.proof.mutants.warm import Tree, Warm

ROOT = Path(__file__).parents[3]
# The pure rooms and the engine. A module at the top of the package is a room of its own.
ROOMS = (
    "intervals", "tables", "placement", "costs", "planning", "lint", "results",
    "runtime", "measure", "search",
)  # fmt: skip
KILLED_OF_SIX = 5
FEW_CASES = 3  # of one test, before those of others


def copy_of_the_tree(to: Path) -> None:
    """Copy what git knows, and new files that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def room_of(path: str) -> str:
    """Return the room of a module or of a test file."""
    parts = PurePosixPath(path).parts
    return parts[1] if len(parts) > 2 else PurePosixPath(path).stem.removeprefix("test_")


def tests_for(mutant: Mutant, tests: list[Test], most_s: float) -> tuple[list[Test], int]:
    """Return the tests that can see a mutant, the likeliest first, and how many can.

    Those of the module's file come first, then those of its room; those that execute most of the
    lines near the change, then the quickest. Few of one test's cases come before other tests.
    Where none executes it in a process that is noted, those of the room can.
    """
    room, place = room_of(mutant.path), (mutant.path, mutant.statement)
    seeing = [test for test in tests if place in test.executed]
    files = {test.file for test in seeing} or {t.file for t in tests if room_of(t.file) == room}
    names = {test.name for test in seeing}
    module = PurePosixPath(mutant.path).stem

    def rank(test: Test) -> tuple[bool, bool, bool, bool, int, float]:
        elsewhere, is_long = room_of(test.file) != room, test.seconds > most_s / 4
        near = test.executed.get(place, 0)
        other = module not in test.file
        return test.name not in names, is_long, elsewhere, other, -near, test.seconds

    n_cases: Counter[str] = Counter()

    def is_one_more(test: Test) -> tuple[bool, bool]:
        n_cases[test.name.partition("[")[0]] += 1
        return test.name not in names, n_cases[test.name.partition("[")[0]] > FEW_CASES

    can = sorted((test for test in tests if test.file in files), key=rank)
    can.sort(key=is_one_more)
    taken, took = [], 0.0
    for test in can:
        if took + test.seconds <= most_s:
            taken.append(test)
            took += test.seconds
    return taken, len(can)


def fate_of(mutant: Mutant, tests: list[Test], tree: Tree, most_s: float) -> tuple[str, str]:
    """Return what became of a mutant, and who killed it: a test that fails twice."""
    left, can = tests_for(mutant, tests, most_s)
    source, n_left = (tree.root / mutant.path).read_bytes(), len(left)
    tree.write(mutant.path, mutant.applied(source))
    try:
        while left:
            code, name = _run(left, tree)
            if code is None:
                return "timed out", ""
            if code and not name:
                return "killed", f"pytest ended with {code}"
            if not name:
                break
            at = [test.name for test in left].index(name)
            if _run([left[at]], tree) != (0, ""):
                return "killed", name
            left = left[at + 1 :]  # it failed for another reason
    finally:
        tree.write(mutant.path, source)
    return "survived", f"{n_left} of the {can} tests that can see it passed"


def _run(tests: list[Test], tree: Tree) -> tuple[int | None, str]:
    """Run tests up to the first that fails; return pytest's exit code and the name of that one."""
    listed, failed = tree.scratch / "chosen.json", tree.scratch / "failed"
    listed.write_text(json.dumps([test.name for test in tests]))
    failed.unlink(missing_ok=True)
    environment = {
        "TMPDIR": str(tree.scratch), "XDG_CACHE_HOME": str(tree.scratch / "cache"),
        chosen.CHOSEN: str(listed), chosen.FAILED: str(failed),
    }  # fmt: skip
    plugin = ("-p", "tests.proof.mutants.chosen", "-p", "no:cacheprovider")
    most_s = 60 + 5 * sum(test.seconds for test in tests)
    files = sorted({test.file for test in tests})
    code = tree.warm.run(["-x", "-q", *plugin, *files], environment, most_s)
    return code, failed.read_text() if failed.exists() else ""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=ROOMS)
    parser.add_argument("--tests", nargs="+", default=["tests/"])
    parser.add_argument("--only", help="all mutants of the functions whose place ends like this")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for one mutant")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="show the mutants, try none")
    return parser.parse_args()


def main() -> int:
    """Try the mutants, print what became of each and the sum."""
    given = arguments()
    rooms = {room.removesuffix(".py") for name in given.rooms for room in name.split(",")}
    paths = [path for path in modules(ROOT) if room_of(path) in rooms]
    if given.only:
        mutants = [
            mutant
            for path in modules(ROOT)
            for place, by_kind in mutants_by_function(ROOT, path).items()
            if place.endswith(given.only)
            for of_kind in by_kind.values()
            for mutant in of_kind
        ]
    else:
        mutants = sample(ROOT, paths, given.sample, given.seed)
    if given.list:
        for mutant in mutants:
            print(text_of(mutant))
        return 0

    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        trees = []
        for job in range(given.jobs):
            root, temporary = Path(scratch, str(job), "tree"), Path(scratch, str(job), "tmp")
            temporary.mkdir(parents=True)
            copy_of_the_tree(root)
            trees.append(Tree(root, temporary, Warm(sys.executable, root)))
        tests = read_or_record(
            trees, tuple(given.tests), {(mutant.path, mutant.statement) for mutant in mutants}
        )
        for test in tests:
            if not test.passed:
                print(f"fails without any change, and is left out: {test.name}")
        able = [test for test in tests if test.passed]

        idle: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for tree in trees:
            idle.put(tree)

        def tried(mutant: Mutant) -> str:
            if reason := EQUIVALENT.get((mutant.path, mutant.before, mutant.after)):
                fate, who = "equivalent", reason
            else:
                tree = idle.get()
                began = time.monotonic()
                fate, who = fate_of(mutant, able, tree, given.seconds)
                who = f"{who} ({time.monotonic() - began:.0f} s)"
                idle.put(tree)
            mark = fate.upper() if fate == "survived" else fate
            print(f"{text_of(mutant)}\n    {mark}: {who}", flush=True)
            return fate

        with ThreadPoolExecutor(given.jobs) as pool:
            fates = Counter(pool.map(tried, mutants))
        for tree in trees:
            tree.warm.close()
    killed, of = fates["killed"] + fates["timed out"], len(mutants) - fates["equivalent"]
    print(f"{killed} of {of} killed ({', '.join(f'{n} {fate}' for fate, n in fates.items())})")
    return int(6 * killed < KILLED_OF_SIX * of)


def text_of(mutant: Mutant) -> str:
    """Return the place of a mutant and what it changes."""
    return (
        f"{mutant.path}:{mutant.line} {mutant.function} [{mutant.kind}]\n"
        f"    {mutant.before}\n  → {mutant.after}"
    )


if __name__ == "__main__":
    sys.exit(main())
