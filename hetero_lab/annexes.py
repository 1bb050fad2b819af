"""The one seam between the core and its annexes: what the core runs of them, by name.

Each is imported when it is used, so an annex can be deleted, and only what it does is missing.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from hetero_lab.errors import AnnexError, shorten

# What is done, for which class of results → what does it.
ANNEXES: dict[str, str] = {
    # in measurements
    "parallel": "hetero_lab.parallel.executor.ExecutorSession",  # executor="parallel"
    "scenario": "hetero_lab.llm.generation.GenerationRunner",  # runs a Scenario
    "prompt": "hetero_lab.llm.generation.given_or_random_prompt",  # its inputs
    "expected tokens": "hetero_lab.llm.generation.reference_generation",  # its f32 reference
    "drive": "hetero_lab.machine.driver.drive",  # several models at once
    "memory": "hetero_lab.llm.layer_memory.bytes_by_part",  # what a worker measures
    "data": "hetero_lab.accuracy.sweep_accuracy.SweepData",  # sweep(data=), after the turns
    "client": "hetero_lab.fleet.cluster.cluster_of",  # sweep(client=)
    # in figures, pages, widgets and commands
    "accuracy of a sweep": "hetero_lab.accuracy.accuracy_figures.accuracy_front",
    "board of NpuwPlan": "hetero_lab.interop.interop_figures.board_of_plan",
    "board of Recording": "hetero_lab.interop.interop_figures.board_of_recording",
    "demo": "hetero_lab.advise.demo.run",
    "deploy": "hetero_lab.deploy.contract.check_vacant",
    "freeze": "hetero_lab.deploy.freeze.freeze_placed",
    "graph of NpuwPlan": "hetero_lab.interop.interop_figures.data_of_plan",
    "page of Advice": "hetero_lab.advise.advice.contents_of_advice",
    "page of BlockCurve": "hetero_lab.llm.llm_figures.contents_of_curve",
    "page of Investigation": "hetero_lab.debug.debug_figures.contents_of_search",
    "page of MachinePlan": "hetero_lab.machine.machine_figures.contents_of_plan",
    "page of Recovered": "hetero_lab.accuracy.accuracy_figures.contents_of_recovered",
    "page of Wrong": "hetero_lab.debug.debug_figures.contents_of_search",
    "profile of a frozen placement": "hetero_lab.deploy.deployed_run.profile_frozen",
}


def annex(what: str) -> Any:
    """Return what does something in an annex, with the errors of :func:`imported`."""
    module, _, name = ANNEXES[what].rpartition(".")
    return getattr(imported(module, what), name)


def annex_for(what: str, result: object) -> Any:
    """Return what does something for results of this class; ``None`` without one."""
    own = (kind for kind in type(result).__mro__ if kind.__module__.startswith("hetero_lab."))
    entries = (entry for kind in own if (entry := f"{what} of {kind.__name__}") in ANNEXES)
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
        raise AnnexError(
            f"This installation lacks {error.name}, which {shorten(what)} needs. The whole "
            "package has it: pip install --force-reinstall hetero-lab."
        ) from error
