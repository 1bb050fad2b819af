"""Every argument of every public function and view, given a thing of the wrong kind.

The cases are made from the signatures, so a new argument is tested as soon as it is there.
"""

from __future__ import annotations

import inspect
import typing
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from counting_core import core_with_acc
from small_models import diamond

import hetero_lab as hl
from hetero_lab import arguments
from hetero_lab.errors import ArgumentError, HeteroLabError


class Wrong:
    """Nothing takes one."""

    def __repr__(self) -> str:
        return "Wrong()"


FUNCTIONS = {
    (f"{space}." if space else "") + name: getattr(module, name)
    for space, module in {"": hl, "interop": hl.interop, "llm": hl.llm, "views": hl.views}.items()
    for name in module.__all__
    if isinstance(getattr(module, name), FunctionType)
}


def takes_anything(hint: Any) -> bool:
    return hint is Any or any(part is Any for part in typing.get_args(hint))


CASES = [
    (name, parameter)
    for name, function in FUNCTIONS.items()
    for parameter, hint in arguments.hints_of(inspect.unwrap(function)).items()
    if not takes_anything(hint)
]


@pytest.fixture(scope="module")
def good() -> SimpleNamespace:
    core = core_with_acc(unsupported=["Sigmoid"])
    model = hl.load(diamond())
    affinity = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    example = np.zeros((1, 8), np.float32)
    return SimpleNamespace(
        core=core,
        values={
            "model": model,
            "source": model,
            "placement": affinity,
            "placements": [affinity],
            "affinity": affinity,
            "devices": ["ACC", "CPU"],
            "fast": "ACC",
            "accurate": "CPU",
            "calibration": [example],
            "data": [example],
            "name": "digits",
            "before": affinity,
            "after": affinity,
            "a": affinity,
            "b": affinity,
        },
    )


def test_the_cases_are_many():
    assert len(CASES) > 200
    assert ("sweep", "control") in CASES
    assert ("views.schedule", "plan") in CASES


@pytest.mark.parametrize(
    ("name", "parameter"), CASES, ids=[f"{name}, {parameter}" for name, parameter in CASES]
)
def test_a_thing_of_the_wrong_kind_is_an_error_that_says_so(name, parameter, good, tmp_path):
    function = FUNCTIONS[name]
    given: dict[str, Any] = {}
    for each in inspect.signature(function).parameters.values():
        if each.name == parameter:
            given[each.name] = Wrong()
        elif each.name == "core":
            given[each.name] = good.core
        elif each.name == "progress":
            given[each.name] = False
        elif each.default is inspect.Parameter.empty:
            given[each.name] = good.values.get(each.name, tmp_path / "t")
    compiled = good.core.n_compiled
    with pytest.raises(HeteroLabError) as caught:
        function(**given)
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
    needed = {
        each.name: good.values[each.name]
        for each in inspect.signature(FUNCTIONS[name]).parameters.values()
        if each.default is inspect.Parameter.empty
    }
    (parameter,) = more
    with pytest.raises(ArgumentError, match=f"^{parameter}= is at most"):
        FUNCTIONS[name](**needed, **more)


@pytest.mark.parametrize(
    ("old", "value", "says"),
    [
        ("requests", [0], "grid={'requests': "),
        ("executor", "warp", "grid={'executor': "),
        ("timeout_s", -1, "workers=hetero_lab.Workers\\(timeout_s="),
        ("worker_command", "", "workers=hetero_lab.Workers\\(command="),
    ],
)
def test_arguments_of_sweep_that_are_parts_now_are_taken_with_a_warning(old, value, says):
    with (
        pytest.warns(hl.HeteroLabWarning, match=f"{old}= is {says}"),
        pytest.raises(hl.HeteroLabError),
    ):
        hl.sweep("digits_inception", ["CPU"], **{old: value})


def test_text_is_no_list_of_text():
    hint = list[str]
    assert not arguments.fits("CPU", hint)
    assert arguments.fits(["CPU"], hint)
    assert not arguments.fits(["CPU", 3], hint)


def test_true_is_no_number():
    assert not arguments.fits(True, int)
    assert not arguments.fits(True, float | None)
    assert arguments.fits(1, float)
