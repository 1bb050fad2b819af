"""The one seam between the core and its annexes: what the core runs of them, by kind.

Each is imported when it is used, so an annex can be deleted, and only what it does is missing.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from hetero_lab.errors import AnnexError, shorten

ANNEXES: dict[str, str] = {
    "parallel": "hetero_lab.parallel.executor:ExecutorSession",  # executor="parallel"
    "scenario": "hetero_lab.llm.generation:GenerationRunner",  # runs a Scenario
    "prompt": "hetero_lab.llm.generation:given_or_random_prompt",  # its inputs
    "expected tokens": "hetero_lab.llm.generation:reference_generation",  # its f32 reference
    "memory": "hetero_lab.llm.private_memory:bytes_by_part",  # what a worker measures
    "data": "hetero_lab.accuracy.sweep_accuracy:SweepData",  # sweep(data=), after the turns
    "client": "hetero_lab.fleet.cluster:cluster_of",  # sweep(client=)
    "fleet": "hetero_lab.fleet.fleet_run:FleetRun",  # a run on that cluster
}


def annex(kind: str) -> Any:
    """Import what an annex has for ``kind``; AnnexError, if the annex is not here.

    ImportError, if a package that the annex needs is not installed.
    """
    module, _, name = ANNEXES[kind].partition(":")
    return getattr(imported(module, kind), name)


def imported(module: str, what: str) -> ModuleType:
    """Import a module that ``what`` needs, with the errors of :func:`annex`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("hetero_lab."):
            raise
        raise AnnexError(
            f"This installation lacks {error.name}, which {shorten(what)} needs. The whole "
            "package has it: pip install --force-reinstall hetero-lab."
        ) from error
