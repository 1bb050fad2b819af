"""Variants of a model in a sweep: made already, or made when the sweep begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.errors import ArgumentError, HeteroLabError, ModelError, shorten
from hetero_lab.model.read import Source

if TYPE_CHECKING:
    import openvino as ov

Variant: TypeAlias = "Source | Callable[[], Source]"


def bind_variants(
    model: Source | Mapping[str, Variant], core: ov.Core
) -> tuple[dict[str, BoundModel], dict[str, str]]:
    """Return the bound model of each variant, and why some could not be made.

    A variant that could not be made is there with the model of another one, so that its rows
    can be named.

    Raises
    ------
    ArgumentError
        There is none, or an argument of one is wrong.
    HeteroLabError
        None of them could be made.
    """
    if not isinstance(model, Mapping):
        return by_name(bind(model, core)), {}
    if not model:
        raise ArgumentError("There is no model to sweep: the mapping of variants is empty.")
    made: dict[str, BoundModel] = {}
    failures: dict[str, Exception] = {}
    for name, variant in model.items():
        if not callable(variant):
            made[str(name)] = bind(variant, core)
            continue
        try:
            made[str(name)] = bind(variant(), core)
        except ArgumentError as error:
            raise type(error)(f"The variant {shorten(str(name))}: {error}") from error
        except Exception as error:  # a recipe of the user's own may call NNCF itself
            failures[str(name)] = error
    if not made:
        name, error = next(iter(failures.items()))
        if isinstance(error, HeteroLabError):
            raise error
        raise ModelError(f"The variant {shorten(name)} cannot be made: {_said(error)}") from error
    stand_in = next(iter(made.values()))
    bound = {str(name): made.get(str(name), stand_in) for name in model}
    return bound, {name: _said(error) for name, error in failures.items()}


def by_name(bound: BoundModel) -> dict[str, BoundModel]:
    """Return a model that is the only variant."""
    return {bound.graph.name or "model": bound}


def _said(error: Exception) -> str:
    if isinstance(error, HeteroLabError):
        return str(error)
    return f"{type(error).__name__}: {shorten(str(error), 500)}"
