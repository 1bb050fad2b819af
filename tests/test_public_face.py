"""One vocabulary in the public face: one argument has one name and one default everywhere."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, HeteroLabWarning

# Arguments whose default differs on purpose, and why.
ON_PURPOSE = {
    "budget_s": "how long it is worth waiting depends on the question",
    "counters": "what reports counters asks for them; what runs a model does not pay for them",
    "device": "measure_noise needs one, block_curve takes every one of its costs",
    "examples": "freeze(None) generates requests, an Advice without data has none",
    "group_size": "rows in a group of a sweep, weights in a group of a compression",
    "isolate": "workers for what races placements, this process for what asks one",
    "requests": "a sweep takes several numbers",
    "timeout_s": "of a turn in a sweep, of one compile, of a whole profile",
    "turns": "a sweep turns until its budget ends, a verification so often",
    "unsupported": "emulate(None) lacks nothing, which a device stores as an empty set",
}
IMPORTS = re.compile(r"^ *from (hetero_lab[\w.]*) import (\([^)]*\)|.+)$", re.M)
RACES = {"advise", "optimize", "recover_accuracy", "sweep"}


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in hl.__all__:
        value = getattr(hl, name)
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
    for name, function in public_functions():
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
    taking = {
        f"{inspect.unwrap(function).__module__}.{inspect.unwrap(function).__name__}"
        for name, function in public_functions()
        if "." not in name and "Source" in str(inspect.signature(function))
    }
    assert "hetero_lab.experiments.sweep.sweep.sweep" in taking
    found = {
        (path.relative_to(package).as_posix(), f"{module}.{name}")
        for path in package.rglob("*.py")
        if path != package / "__init__.py" and path.parent.name != "cli"
        for module, names in IMPORTS.findall(path.read_text("utf-8"))
        for name in re.findall(r"\w+", names)
        if f"{module}.{name}" in taking
    }
    # Whose model is a sample of its own.
    assert found == {("experiments/sweep/measure_noise.py", "hetero_lab.model.read.load")}


@pytest.mark.parametrize("name", sorted(hl._RENAMED))  # pyright: ignore[reportPrivateUsage]
def test_a_former_name_leads_to_one_that_is_there(name):
    value = getattr(hl, name)
    functions = [of for whole, of in public_functions() if whole.partition(".")[0] == name]
    taken = {n for of in functions for n in inspect.signature(of).parameters}
    names = hl._RENAMED[name]  # pyright: ignore[reportPrivateUsage]
    assert value is not None
    assert names
    assert {new for new in names.values() if new is not None} <= taken
    if inspect.isfunction(value):
        assert not names.keys() & taken


@pytest.mark.parametrize("make", [hl.compile, hl.ParallelExecutor])
def test_properties_of_a_compile_are_taken_by_their_former_name(make):
    with pytest.warns(HeteroLabWarning, match="properties= is called compile_properties= now"):
        made = make("digits_inception", "CPU", properties={"PERF_COUNT": True})
    models = [made.compiled_model] if make is hl.compile else made.compiled_models
    assert [model.get_property("PERF_COUNT") for model in models] == ["YES"]
    with pytest.raises(ArgumentError, match="one argument"):
        make("digits_inception", "CPU", properties={}, compile_properties={})
