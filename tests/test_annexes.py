"""What the core runs of the annexes, by name."""

from __future__ import annotations

import inspect

import pytest
from other_process import run_python

from hetero_lab import annexes
from hetero_lab.errors import HeteroLabError


def test_each_name_is_that_of_a_function_of_an_annex():
    for what in annexes._DONE_BY:
        assert inspect.isfunction(annexes.annexed(what))


def test_a_class_of_another_package_with_a_known_name_has_nothing_in_an_annex():
    strange = type("Advice", (), {"__module__": "elsewhere"})
    assert annexes.annexed_for("page", strange()) is None
    known = type("Mine", (type("Advice", (), {"__module__": "hetero_lab.advise.advice"}),), {})
    assert annexes.annexed_for("page", known()) is annexes.annexed("page of Advice")
    assert annexes.annexed_for("board", known()) is None


def test_a_missing_annex_is_named_and_a_missing_package_of_it_stays_as_it_is():
    code = (
        "import sys, hetero_lab as hl\n"
        "sys.modules['hetero_lab.deploy'] = None\n"
        "try: hl.freeze\n"
        "except hl.HeteroLabError as error: print(error)"
    )
    assert run_python(code).stdout == (
        "freeze needs hetero_lab.deploy, which is not installed here. "
        "Install the whole of hetero-lab.\n"
    )
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        annexes.named("no_such_package.function")
    with pytest.raises(HeteroLabError, match=r"f needs hetero_lab\.no_annex, which"):
        annexes.named("hetero_lab.no_annex.f")
