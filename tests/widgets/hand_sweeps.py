"""Sweeps made by hand, of three measured rows and two that failed."""

from __future__ import annotations

from dataclasses import replace

from big_graphs import by_type, transformer_graph
from views.hand_made import small_profile

from hetero_lab.intervals import ASSUMED_NOISE, Latency, Noise, Series
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, Subgraph, predict
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import Row

SPLIT, ALONE, SLOW = "HETERO:ACC,CPU", "CPU", "slow"
LEVELS = (100.0, 102.0, 101.0)


def turns(factor: float) -> Latency:
    return Latency(tuple(tuple(factor * level + i for i in range(4)) for level in LEVELS))


def measured_row(label: str, profile, factor: float = 1.0, noise: Noise = ASSUMED_NOISE) -> Row:
    """Make a row that takes ``factor`` times the reference's 102.5 µs."""
    return Row(
        label=label, key=label, variant="", requests=1, baseline=False, status="ok", detail="",
        same_as="", profile=replace(profile, label=label, latency=turns(factor)),
        series=Series(
            {(0, turn): factor * level for turn, level in enumerate(LEVELS)},
            {(0, turn): level for turn, level in enumerate(LEVELS)},
            noise,
        ),
        sustained_us=(), reference_latency=turns(1.0),
    )  # fmt: skip


def failed_row(label: str, status: str = "compile failed", detail: str = "no kernel") -> Row:
    return Row(
        label=label, key=label, variant="", requests=1, baseline=False, status=status,
        detail=detail, same_as="", profile=None, series=Series({}, {}, ASSUMED_NOISE),
        sustained_us=(),
    )  # fmt: skip


def on_cpu_alone(profile):
    names = tuple(name for s in profile.partition.subgraphs for name in s.ops)
    return replace(
        profile,
        affinity=Affinity.from_graph(profile.graph, {op.name: "CPU" for op in profile.graph}),
        partition=Partition((Subgraph("CPU", names),), (), observed=True),
        counters=(),
    )


def small_sweep(*, failed: int = 1, measured: bool = True, nasty: str = "") -> Sweep:
    """Build a sweep of three measured rows, the last twice as slow, and some that failed."""
    profile = small_profile(relu=nasty) if nasty else small_profile()
    rows = []
    if measured:
        rows = [
            measured_row(nasty or SPLIT, profile),
            measured_row(ALONE, on_cpu_alone(profile), 1.5),
            measured_row(SLOW, profile, 2.0),
        ]
    rows += [failed_row(f"broken {i}") for i in range(failed)]
    return Sweep(
        rows=tuple(rows), reference=rows[0].label if rows else "",
        environment=small_profile().environment, notes=(),
    )  # fmt: skip


def big_sweep(n_ops: int) -> Sweep:
    """Build a sweep of one row whose model has about ``n_ops`` ops, all on ACC."""
    graph = transformer_graph(n_ops)
    affinity = by_type(graph, set())
    profile = replace(
        small_profile(), graph=graph, affinity=affinity, partition=predict(graph, affinity),
        counters=(),
    )  # fmt: skip
    row = measured_row("big", profile)
    return Sweep((row,), "big", profile.environment, ())
