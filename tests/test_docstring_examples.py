"""The examples in docstrings say what really happens."""

from __future__ import annotations

import doctest
import importlib
import inspect
import logging
import pkgutil
from collections.abc import Iterator

import pytest
from package_source import public_names

import hetero_lab as hl

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# These measure for longer than a quick test may.
SLOW = {
    "advise", "calibrate", "machine", "measure_noise", "optimize", "plan", "quantize",
    "read_wrong", "recover_accuracy", "verify",
}  # fmt: skip
# What has no example: errors, and what needs a file of the user's or a language model.
WITHOUT = {
    "bisect", "block_curve", "BudgetWarning", "classify", "CostModel", "Dataset", "detokenize",
    "HeteroLabError", "HeteroLabWarning", "measure_memory", "Metric",
    "plan_phases", "plan_static_phases", "read_benchmark_app", "static_phases", "tokenize",
}  # fmt: skip
PUBLIC = public_names(hl, hl.interop, hl.llm)


def examples() -> Iterator[doctest.DocTest]:
    """Find the examples of all modules."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for found in pkgutil.walk_packages(hl.__path__, "hetero_lab."):
        if not found.name.endswith(("__main__", "run_frozen")):
            module = importlib.import_module(found.name)
            yield from (test for test in finder.find(module) if test.examples)


EXAMPLES = {test.name.removeprefix("hetero_lab."): test for test in examples()}


@pytest.fixture(autouse=True)
def quiet():
    """Leave logging as it is in a session without pytest."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(disabled)


@pytest.mark.filterwarnings("ignore::hetero_lab.errors.HeteroLabWarning")  # budgets are tiny
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.rpartition(".")[2] in SLOW else [])
        for name in sorted(EXAMPLES)
    ],
)
def test_an_example_says_what_happens(name, monkeypatch, tmp_path):
    if name.endswith("measure_noise"):  # what it measures while tests run is not worth keeping
        monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path))
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    result = runner.run(EXAMPLES[name], out=said.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(said)


@pytest.mark.parametrize(
    "name",
    sorted(name for name, of in PUBLIC.items() if name not in WITHOUT and not inspect.ismodule(of)),
)
def test_what_is_public_has_an_example(name):
    public = PUBLIC[name]
    where = f"{public.__module__}.{public.__qualname__}".removeprefix("hetero_lab.")
    assert any(f"{test}.".startswith(f"{where}.") for test in EXAMPLES), (
        f"{where} has no example in its docstring; write one, or say in WITHOUT why not"
    )
