"""A prepared model bound to the Core that compiles it.

Public functions bind their arguments once; below them nothing is prepared again, and no Core is
chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import openvino as ov

from hetero_lab.backend.core import keep, shared_core
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import PreparedModel, Source, output_names, prepare


@dataclass(frozen=True)
class BoundModel:
    """A prepared model with its Core."""

    prepared: PreparedModel
    core: ov.Core

    @property
    def model(self) -> ov.Model:
        """The prepared ``ov.Model``."""
        return self.prepared.model

    @property
    def graph(self) -> OpGraph:
        """Its graph."""
        return self.prepared.graph

    @property
    def fingerprint(self) -> str:
        """The hash of its structure and weights."""
        return self.prepared.fingerprint

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """The names of its outputs in order."""
        return tuple(output_names(self.model))


def bind(model: Source, core: ov.Core | None = None) -> BoundModel:
    """Prepare a model and bind it to a Core, by default the shared one."""
    return BoundModel(prepare(model), keep(core or shared_core()))
