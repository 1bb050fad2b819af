"""What the core runs of the annexes: one table, and each function is imported when it is used.

The core imports no annex, so that each can be taken away: what is missed then is what it does.
"""

from __future__ import annotations

import importlib
from typing import Any

from hetero_lab.errors import HeteroLabError

# What is done, for which class of results → the function that does it.
_DONE_BY = {
    "accuracy of a sweep": "hetero_lab.accuracy.accuracy_figures.accuracy_front",
    "board of NpuwPlan": "hetero_lab.interop.interop_figures.board_of_plan",
    "board of Recording": "hetero_lab.interop.interop_figures.board_of_recording",
    "demo": "hetero_lab.advise.demo.run",
    "freeze": "hetero_lab.deploy.freeze.freeze_placed",
    "graph of NpuwPlan": "hetero_lab.interop.interop_figures.data_of_plan",
    "page of Advice": "hetero_lab.advise.advise_figures.contents_of_advice",
    "page of BlockCurve": "hetero_lab.llm.llm_figures.contents_of_curve",
    "page of Investigation": "hetero_lab.debug.debug_figures.contents_of_search",
    "page of Recovered": "hetero_lab.accuracy.accuracy_figures.contents_of_recovered",
    "page of Wrong": "hetero_lab.debug.debug_figures.contents_of_search",
    "profile of a frozen placement": "hetero_lab.deploy.frozen_profile.profile_frozen",
}


def annexed(what: str) -> Any:
    """Return the function of an annex that does something."""
    return named(_DONE_BY[what])


def annexed_for(what: str, result: object) -> Any:
    """Return the function that does something for results of this class; ``None`` without one."""
    own = (kind for kind in type(result).__mro__ if kind.__module__.startswith("hetero_lab."))
    known = (what_for for kind in own if (what_for := f"{what} of {kind.__name__}") in _DONE_BY)
    return next(map(annexed, known), None)


def named(dotted: str) -> Any:
    """Return what has a dotted name; HeteroLabError if the annex that has it is not installed."""
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package, _, rest = (error.name or "").partition(".")
        if package != "hetero_lab":
            raise  # what the annex itself needs
        raise HeteroLabError(
            f"{name} needs hetero_lab.{rest.partition('.')[0]}, which is not installed here. "
            "Install the whole of hetero-lab."
        ) from error
