"""One vocabulary in the public face: one argument has one name and one default everywhere."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from other_process import run_python
from package_source import public_names

import hetero_lab as hl
from hetero_lab.errors import ArgumentError

# Arguments whose default differs on purpose, and why.
ON_PURPOSE = {
    "budget_s": "how long it is worth waiting depends on the question",
    "counters": "what reports counters asks for them; what runs a model does not pay for them",
    "device": "measure_noise needs one, block_curve takes every one of its costs",
    "examples": "freeze(None) generates requests, an Advice without data has none",
    "isolate": "workers for what races placements, this process for what asks one",
    "objective": "one model is quick, or several results are; several models share a machine",
    "timeout_s": "of a turn in a sweep, of one compile, of a whole profile",
    "tolerance": "freeze makes a promise, verify holds to it, find_wrong knows one by precision",
    "turns": "a sweep turns until its budget ends, a verification so often",
    "unsupported": "emulate(None) lacks nothing, which a device stores as an empty set",
}
IMPORTS = re.compile(r"^ *from (hetero_lab[\w.]*) import (\([^)]*\)|.+)$", re.M)
RACES = {"advise", "optimize", "recover_accuracy", "sweep"}


def functions_and_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in public_names(hl, hl.interop, hl.llm, hl.types).items():
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value) and not issubclass(value, BaseException):
            for method, kept in inspect.getmembers_static(value):
                of = getattr(kept, "__func__", kept)  # of a class method
                own = inspect.isfunction(of) and of.__module__.startswith("hetero_lab")
                if own and (method == "__init__" or not method.startswith("_")):
                    yield f"{name}.{method}", of


def defaults() -> dict[str, dict[str, set[str]]]:
    """Return argument → default → the functions that have it."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, function in functions_and_methods():
        for argument in inspect.signature(function).parameters.values():
            default = repr(argument.default)  # "<factory>" is a field's, made anew each time
            if argument.default is not argument.empty and default != "<factory>":
                found.setdefault(argument.name, {}).setdefault(default, set()).add(name)
    return found


def test_an_argument_has_one_default():
    found = defaults()
    several = {name: by_default for name, by_default in found.items() if len(by_default) > 1}
    assert {name: several[name] for name in several.keys() - ON_PURPOSE} == {}
    assert ON_PURPOSE.keys() - several.keys() == set()
    assert found["isolate"]["True"] == RACES
    assert found["progress"].keys() == {"True"}
    assert found["max_drop"].keys() == {"0.01"}


def test_below_the_public_face_no_model_is_prepared_again():
    # Functions that take whatever a user has are called by users, and by the command line.
    package = Path(hl.__file__).parent
    faces = ("__init__", "types", "interop/__init__", "llm/__init__")
    face = {package / f"{name}.py" for name in faces}
    taking = {
        f"{inspect.unwrap(function).__module__}.{inspect.unwrap(function).__name__}"
        for name, function in functions_and_methods()
        if "." not in name and "Source" in str(inspect.signature(function))
    }
    assert "hetero_lab.measure.sweep.sweep" in taking
    found = {
        (path.relative_to(package).as_posix(), f"{module}.{name}")
        for path in package.rglob("*.py")
        if path not in face and path.parent.name != "cli"
        for module, names in IMPORTS.findall(path.read_text("utf-8"))
        for name in re.findall(r"\w+", names)
        if f"{module}.{name}" in taking
    }
    # Whose model is a sample of its own.
    assert found == {("search/noise.py", "hetero_lab.model.read.load")}


def test_the_top_is_short_and_every_name_is_in_one_place():
    spaces = [hl, hl.interop, hl.llm, hl.types, hl.views]
    names = [name for module in spaces for name in module.__all__]
    assert len(hl.__all__) <= 63
    # A view may be called as the function that makes what it shows.
    assert {name for name in names if names.count(name) > 1} <= {"block_curve"}


SAME = """
from hetero_lab.intervals import Latency
from hetero_lab.placement.affinity import Affinity
before = [dict(vars(kind)) for kind in (Latency, Affinity)]
import hetero_lab as hl
assert (hl.types.Latency, hl.Affinity) == (Latency, Affinity)
assert [dict(vars(kind)) for kind in (Latency, Affinity)] == before
"""


def test_a_class_is_the_same_before_and_after_its_public_name_was_used():
    run_python(SAME)


@pytest.mark.parametrize(
    "call",
    [
        lambda affinity: hl.Affinity.from_csv(3),
        lambda affinity: affinity.to_json("a.json", flat="yes"),
        lambda affinity: hl.Placement(affinity, label=3),
        lambda affinity: hl.Metric("accuracy", "accuracy"),
        lambda affinity: hl.CostModel.from_json(3),
        lambda affinity: hl.ParallelExecutor("digits_inception", affinity, compile_properties=3),
    ],
)
def test_methods_and_constructors_check_their_arguments(call):
    with pytest.raises(ArgumentError, match="= is "):
        call(hl.Affinity.uniform("digits_inception", "CPU"))


def test_an_unknown_argument_is_told_with_the_nearest():
    with pytest.raises(ArgumentError, match=r"advise has no argument budget=\. .* 'budget_s='\?"):
        hl.advise("digits_inception", budget=10)
    with pytest.raises(ArgumentError, match="sweep has no argument executor=. Arguments: .* grid,"):
        hl.sweep("digits_inception", ["CPU"], executor="parallel")
