"""An example of a package that extends hetero_lab: a device, a lint rule, a solver and a view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

import hetero_lab as hl
from hetero_lab.lint.context import INFO, Draft, LintContext
from hetero_lab.planning.memory import Pools
from hetero_lab.planning.pairwise import Pairwise
from hetero_lab.planning.solver import Choice

if TYPE_CHECKING:
    import openvino as ov
    import plotly.graph_objects as go

WIDE_BYTES = 1024


def register_accelerator(core: ov.Core) -> None:
    """Register an emulated accelerator that has no Softmax."""
    hl.emulate("ACCELERATOR", unsupported={"Softmax"}, core=core)


def wide_boundaries(context: LintContext) -> Iterator[Draft]:
    """Find subgraphs that exchange a kibibyte or more with others."""
    for subgraph, nodes, exchange in context.subgraphs():
        if nodes and exchange.n_bytes >= WIDE_BYTES:
            yield Draft(
                rule="wide-boundary",
                severity=INFO,
                nodes=tuple(sorted(nodes)),
                finding=f"Subgraph {subgraph.index} exchanges {exchange.n_bytes} bytes.",
                options=context.moves(nodes, exchange.bytes_with),
                gone=context.merged(nodes),
                slack=0,
                weight=exchange.n_bytes,
            )


def fastest(
    pairwise: Pairwise, objective: str, /, *, memory_limit: Pools, budget_s: float
) -> Choice:
    """Put each unit where it takes least time, whatever its boundaries cost."""
    time_ns = np.where(pairwise.allowed, pairwise.time_ns, np.iinfo(np.int64).max)
    devices = time_ns.argmin(axis=1)
    value = int(pairwise.values_ns(devices[None], objective)[0])
    return Choice(tuple(devices.tolist()), value, bound_ns=0)


def subgraph_sizes(profile: hl.types.Profile) -> go.Figure:
    """Draw how many ops each subgraph has."""
    import plotly.graph_objects as go

    sizes = [len(subgraph.ops) for subgraph in profile.partition.subgraphs]
    return go.Figure(go.Bar(y=sizes), layout={"title": "Ops by subgraph"})
