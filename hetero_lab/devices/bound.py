"""A prepared model bound to the Core that compiles it.

Public functions bind their arguments once; below them nothing is prepared again, and no Core is
chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import openvino as ov

from hetero_lab.devices.core import keep, shared_core
from hetero_lab.model.naming import output_names
from hetero_lab.model.read import PreparedModel, Source, prepare


@dataclass(frozen=True)
class BoundModel(PreparedModel):
    """A prepared model with its Core."""

    core: ov.Core

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """The names of its outputs in order."""
        return tuple(output_names(self.model))


def bind(model: Source, core: ov.Core | None = None) -> BoundModel:
    """Prepare a model and bind it to a Core, by default the shared one."""
    made = prepare(model)
    return BoundModel(made.model, made.graph, made.fingerprint, keep(core or shared_core()))
