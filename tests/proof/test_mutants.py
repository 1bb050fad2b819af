"""The sampler of mutants: small changes that parse, on the line they tell, and of no text."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tests.proof.mutants import __main__ as sampler, executed
from tests.proof.mutants.mutations import Mutant, mutants_by_function, sample
from tests.proof.mutants.noting import with_notes

SOURCE = '''
def chosen(values: list[int], most: int = 3) -> list[int]:
    """Not 3 of these."""
    if most < 0:
        raise ValueError(f"{most + 1} is below 0")
    print("most", most + 1)
    return [
        value for value in values[1:]
        if value and not value == most
    ]
'''


def test_each_kind_of_change_by_hand(tmp_path: Path):
    (tmp_path / "m.py").write_text(SOURCE)
    by_kind = mutants_by_function(tmp_path, "m.py")["m.py:chosen"]
    after = {kind: {mutant.after for mutant in found} for kind, found in by_kind.items()}
    assert after == {
        "comparison": {"if most <= 0:", "if most > 0:", "if value and not value != most"},
        "condition": {
            "if not (most < 0):", "if not (value and (not value == most))",
        },
        "guard": {"if False:"},
        "raise": {"pass"},
        "boolean": {
            "if value or not value == most", "if value", "if not value == most",
            "if value and value == most",
        },
        "constant": {
            "if most < 1:", "if most < -1:", "value for value in values[0:]",
            "value for value in values[2:]",
        },
        "slice": {"value for value in values[1 + 1:]", "value for value in values[1 - 1:]"},
        "default": {"[]"},
    }  # fmt: skip
    for found in by_kind.values():
        for mutant in found:
            changed = mutant.applied(SOURCE.encode()).decode()
            ast.parse(changed)
            assert changed.count("\n") == SOURCE.count("\n")
            assert "is below 0" in changed or mutant.kind == "raise"


def test_what_means_the_same_is_no_mutant(tmp_path: Path):
    lines = [
        "pairs = list(zip(one, other, strict=True))",
        "longest = np.hypot(one, other)",
        "assert one < other",
        "groups.merge(one, other)",
        "note: int = other",
        "print(one + other)",
    ]
    (tmp_path / "m.py").write_text("def f(one, other):\n" + "".join(f"    {n}\n" for n in lines))
    (by_kind,) = mutants_by_function(tmp_path, "m.py").values()
    found = {(kind, mutant.after) for kind, every in by_kind.items() for mutant in every}
    assert found == {
        ("swap", "pairs = list(zip(other, one, strict=True))"), ("statement", "pass"),
    }  # fmt: skip


def test_a_sample_is_of_different_functions_and_the_same_for_a_seed():
    root = Path(__file__).parents[2]
    paths = ["hetero_lab/intervals.py", "hetero_lab/results/evidence.py"]
    drawn = sample(root, paths, 12, seed=1)
    assert drawn == sample(root, paths, 12, seed=1) != sample(root, paths, 12, seed=2)
    assert len({mutant.function for mutant in drawn}) == 12
    for mutant in drawn:
        source = (root / mutant.path).read_bytes()
        assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))


def test_what_is_executed_is_noted_line_by_line():
    noted = [0] * 100
    names = {"__noted__": noted}
    exec(compile(with_notes(ast.parse(SOURCE), 50), "m", "exec"), names)
    chosen = names["chosen"]
    assert chosen([5, 3, 0, 4], 3) == [4]  # type: ignore[operator]
    assert [number for number, seen in enumerate(noted) if seen] == [54, 56, 57]
    assert chosen.__doc__ == "Not 3 of these."


def test_a_note_holds_until_a_module_that_ran_changes(tmp_path: Path):
    note = tmp_path / "note.json"
    assert not executed._holds(note, {"a.py": "1"})
    made = {"modules": {"a.py": "1", "b.py": "1"}, "run": ["a.py"], "tests": {}}
    note.write_text(json.dumps(made))
    assert executed._holds(note, {"a.py": "1", "b.py": "2", "c.py": "1"})
    assert not executed._holds(note, {"a.py": "2", "b.py": "1"})
    assert not executed._holds(note, {"b.py": "1"})


def test_the_likeliest_tests_run_first():
    place = ("hetero_lab/planning/problem.py", 9)
    mutant = Mutant(place[0], 9, 9, "f", "guard", 0, 0, "", "", "")

    def seen(name: str, seconds: float, near: int) -> executed.Test:
        return executed.Test(
            name, name.partition("::")[0], seconds, True, {place: near} if near else {}
        )

    own, room = "tests/planning/test_problem.py::", "tests/planning/test_exactness.py::"
    tests = [
        seen("tests/search/test_optimize.py::quick", 0.1, 30),
        *(seen(f"{room}cases[{n}]", 0.1 + n, 12) for n in range(5)),
        seen(f"{room}few_lines", 0.1, 3),
        seen(f"{own}unseen", 0.1, 0),
        seen(f"{own}long", 20.0, 40),
        seen(f"{own}more", 2.0, 9),
        seen(f"{own}less", 1.0, 8),
        seen("tests/planning/test_schedules.py::unseen", 0.1, 0),
    ]
    taken, can = sampler.tests_for(mutant, tests, 60.0)
    assert [test.name.partition("::")[2] for test in taken] == [
        "more", "less", "cases[0]", "cases[1]", "cases[2]", "few_lines", "quick", "long",
        "cases[3]", "cases[4]", "unseen",
    ]  # fmt: skip
    assert can == 11
    assert [test.name.partition("::")[2] for test in sampler.tests_for(mutant, tests, 3.5)[0]] == [
        "cases[0]", "few_lines", "quick", "more", "less", "unseen",
    ]  # fmt: skip
