"""Every argument of every public function and view, given a thing of the wrong kind.

The cases are made from the signatures, so a new argument is tested as soon as it is there.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from bad_calls import GOOD
from package_source import public_functions

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, HeteroLabError


class Stranger:
    """Nothing takes one."""

    def __repr__(self) -> str:
        return "Stranger()"


FUNCTIONS = {
    **public_functions(hl),
    **{
        f"{space}.{name}": function
        for space in ("interop", "llm", "views")
        for name, function in public_functions(getattr(hl, space)).items()
    },
}


CASES = [
    (name, parameter.name)
    for name, function in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters.values()
    if parameter.annotation != "Any"
]


def given(function: Any, good: SimpleNamespace, default: Any = None) -> dict[str, Any]:
    """Return good arguments, by name, for all that a function needs."""
    k = SimpleNamespace(**vars(good), tmp=default, files=lambda *_: default)
    needed = {
        each.name: GOOD.get(each.name, default)
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty or each.name in ("core", "progress")
    }
    return {name: value(k) if callable(value) else value for name, value in needed.items()}


def test_the_cases_are_many():
    assert len(CASES) > 200
    assert ("sweep", "control") in CASES
    assert ("views.schedule", "plan") in CASES


@pytest.mark.parametrize(
    ("name", "parameter"), CASES, ids=[f"{name}, {parameter}" for name, parameter in CASES]
)
def test_a_thing_of_the_wrong_kind_is_an_error_that_says_so(name, parameter, good, tmp_path):
    compiled = good.core.n_compiled
    function = FUNCTIONS[name]
    with pytest.raises(HeteroLabError) as caught:
        function(**given(function, good, tmp_path / "t") | {parameter: Stranger()})
    assert isinstance(caught.value, ArgumentError)
    assert good.core.n_compiled == compiled
    assert list(tmp_path.iterdir()) == []


BEYOND = [
    ("profile", {"iterations": 10**30}),
    ("profile", {"warmup": 10**30}),
    ("profile", {"budget_s": float("inf")}),
    ("profile", {"budget_s": float("nan")}),
    ("sweep", {"turns": 10**30}),
    ("sweep", {"budget_s": float("nan")}),
    ("quantize", {"subset_size": 10**30}),
    ("recover_accuracy", {"budget_s": float("inf")}),
    ("calibrate", {"validate": 10**30}),
    ("optimize", {"budget_s": float("nan")}),
]


@pytest.mark.parametrize(("name", "more"), BEYOND, ids=str)
def test_numbers_that_nobody_can_mean(name, more, good):
    (parameter,) = more
    with pytest.raises(ArgumentError, match=f"^{parameter}= is at most"):
        FUNCTIONS[name](**given(FUNCTIONS[name], good), **more)


@pytest.mark.parametrize("between", ["2026.2", ["2026.2", 3]], ids=str)
def test_text_is_no_list_of_text(between):
    with pytest.raises(ArgumentError, match=r"^between= is a list of text or None, not "):
        hl.bisect(__file__, between=between)


@pytest.mark.parametrize(
    ("wrong", "kind"), [({"seed": True}, "a whole number"), ({"precision": True}, "a number")]
)
def test_true_is_no_number(wrong, kind, good):
    with pytest.raises(ArgumentError, match=rf"^\w+= is {kind}, not True \(bool\)"):
        hl.sweep(good.model, ["CPU"], core=good.core, **wrong)


def test_a_class_that_is_imported_for_checkers_only_is_told_by_its_name(good):
    class CountedCore(type(good.core)):
        pass

    assert "CPU" in set(hl.devices(core=CountedCore()).device)
    with pytest.raises(ArgumentError, match=r"^core= is a Core or None, not 'CPU' \(str\)"):
        hl.devices(core="CPU")


def test_a_misspelt_argument_is_named_before_anything_happens(good):
    with pytest.raises(ArgumentError, match=r"sweep has no argument turn=. Did you mean 'turns='"):
        hl.sweep(5, ["CPU"], turn=3)
    with pytest.raises(ArgumentError, match=r"^Placement has no argument lable=. Did you mean"):
        hl.Placement(good.affinity, lable="mine")
