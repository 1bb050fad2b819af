"""Names that are looked up when they are first used: public ones, and those of annexes.

A module of public names lists them under ``if TYPE_CHECKING:``, one ``from hetero_lab.… import
name as name`` per home, so that type checkers and editors see them while nothing is imported before
its first use. At this door, a function gets its checks (:mod:`hetero_lab.arguments`) and ends in
``KeyboardInterrupt`` after Ctrl-C (:mod:`hetero_lab.interrupts`). Classes pass unchanged; their
public methods check their own arguments.

``ANNEXES`` is the one seam between the core and its annexes: what the core runs of them. An annex
can be deleted, and only what it does is missing.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

# What is done, for which class of results → what does it.
ANNEXES: dict[str, str] = {
    # in measurements
    "parallel": "hetero_lab.parallel.executor.ExecutorSession",  # executor="parallel"
    "scenario": "hetero_lab.llm.generation.GenerationRunner",  # runs a Scenario
    "prompt": "hetero_lab.llm.generation.given_or_random_prompt",  # its inputs
    "expected tokens": "hetero_lab.llm.generation.reference_generation",  # its f32 reference
    "drive": "hetero_lab.machine.drives.drive",  # several models at once
    "memory": "hetero_lab.llm.private_memory.bytes_by_part",  # what a worker measures
    "data": "hetero_lab.accuracy.evaluate.SweepData",  # sweep(data=), after the turns
    "client": "hetero_lab.fleet.cluster.cluster_of",  # sweep(client=)
    # in figures, pages, widgets and commands
    "accuracy of a sweep": "hetero_lab.accuracy.accuracy_figures.accuracy_front",
    "board of NpuwPlan": "hetero_lab.interop.npuw_plan.board_of_plan",
    "board of Recording": "hetero_lab.interop.recording.board_of_recording",
    "demo": "hetero_lab.advise.demo.run",
    "deploy": "hetero_lab.deploy.contract.check_vacant",  # into a directory that has to be vacant
    "freeze": "hetero_lab.deploy.freeze.freeze_placed",
    "graph of NpuwPlan": "hetero_lab.interop.npuw_plan.data_of_plan",
    "page of Advice": "hetero_lab.advise.advice.contents_of_advice",
    "page of BlockCurve": "hetero_lab.llm.llm_figures.contents_of_curve",
    "page of Investigation": "hetero_lab.debug.debug_figures.contents_of_search",
    "page of MachinePlan": "hetero_lab.machine.machine_figures.contents_of_plan",
    "page of Recovered": "hetero_lab.accuracy.accuracy_figures.contents_of_recovered",
    "page of Wrong": "hetero_lab.debug.debug_figures.contents_of_search",
    "profile of a frozen placement": "hetero_lab.deploy.deployed_run.profile_frozen",
}

_IMPORT = re.compile(r"^    from (hetero_lab[\w.]*) import (\([^)]*\)|.+)$", re.M)
_NAME = re.compile(r"\b(\w+) as \1\b")


class Face(ModuleType):
    """A module of public names: each is imported from its home at its first use."""

    _homes: dict[str, str]
    __all__: list[str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        where = self._homes[name]
        if where == "hetero_lab":
            return imported(f"hetero_lab.{name}", name)
        value = getattr(imported(where, name), name)
        if isinstance(value, FunctionType):
            from hetero_lab import arguments, interrupts  # so late that `import` is quick

            value = interrupts.guarded(arguments.checked(value))
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self._homes, *(name for name in vars(self) if name.startswith("__"))})

    def __setattr__(self, name: str, value: object) -> None:
        # The import of hetero_lab.lint.lint sets an attribute `lint`, which has to remain the
        # function.
        if isinstance(value, ModuleType) and self._homes.get(name, "hetero_lab") != "hetero_lab":
            return
        super().__setattr__(name, value)


def attach(name: str) -> None:
    """Make the module of a name one that looks its public names up."""
    module: Any = sys.modules[name]
    module._homes = dict(homes(name))
    module.__all__ = sorted(module._homes)
    module.__class__ = Face


def homes(module: str) -> Iterator[tuple[str, str]]:
    """Yield each public name of a module with the module that defines it."""
    # The source is read without running it; a loader also finds it in a zip file.
    spec: Any = importlib.util.find_spec(module)
    for where, names in _IMPORT.findall(spec.loader.get_source(module)):
        yield from ((name, where) for name in _NAME.findall(names))


def annex(what: str) -> Any:
    """Return what does something in an annex, with the errors of :func:`imported`."""
    module, _, name = ANNEXES[what].rpartition(".")
    return getattr(imported(module, what), name)


def annex_for(what: str, result: object) -> Any:
    """Return what does something for results of this class; ``None`` without one."""
    kinds = (kind for kind in type(result).__mro__ if kind.__module__.startswith("hetero_lab."))
    entries = (entry for kind in kinds if (entry := f"{what} of {kind.__name__}") in ANNEXES)
    return next(map(annex, entries), None)


def imported(module: str, what: str) -> ModuleType:
    """Import a module that ``what`` needs; AnnexError, if the annex that has it is not here.

    ImportError, if a package that the annex needs is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("hetero_lab."):
            raise
        from hetero_lab.errors import AnnexError, shorten

        raise AnnexError(
            f"This installation lacks {error.name}, which {shorten(what)} needs. The whole "
            "package has it: pip install --force-reinstall hetero-lab."
        ) from error
