"""A Profile as text, in the form of the ``-pc`` output of OpenVINO's samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetero_lab.experiments.precision_tables import executed_precisions, tally
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.runners import HETERO

if TYPE_CHECKING:
    from hetero_lab.experiments.profiling import Profile

_WIDTH = 30


def text(profile: Profile) -> str:
    """Return latency and counters as text; names are cut to 30 characters as in the samples."""
    low, high = profile.latency.ci95_us
    partition = profile.partition
    emulated = [f"{name} (emulated on {base})" for name, base in profile.environment.emulated]
    real = [d for d in profile.affinity.devices if d not in dict(profile.environment.emulated)]
    lines = [
        f"Model:     {one_line(profile.graph.name, 200)}",
        f"Placement: {one_line(profile.label, 200)} on {', '.join([*real, *emulated])}",
        f"Partition: {partition.n_subgraphs} subgraphs, {len(partition.boundaries)} boundaries, "
        f"{partition.boundary_bytes} bytes ({'observed' if partition.observed else 'predicted'})",
        f"Latency:   median {profile.latency.median_us:.1f} us, 95 % [{low:.1f}, {high:.1f}], "
        f"p90 {profile.latency.p90_us:.1f} us, {len(profile.latency)} inferences",
        f"Start:     compile {profile.compile_ms:.1f} ms, "
        f"first inference {profile.first_inference_ms:.3f} ms",
    ]
    if profile.executor != HETERO:
        lines.append(f"Executor:  {profile.executor}, independent subgraphs at the same time")
    for row in profile.throughput:
        exclusive = {True: ", exclusive", False: ", not exclusive", None: ""}[row.exclusive]
        low, high = row.between.ci95_us
        lines.append(
            f"In flight: {row.n_requests} requests, {row.executor}{exclusive}: "
            f"{row.between.median_us:.1f} us a result, 95 % [{low:.1f}, {high:.1f}], "
            f"{1e6 / row.between.median_us:.1f} a second; latency of one "
            f"{row.latency.median_us:.1f} us"
        )
    for agreement in profile.agreement:
        lines.append(
            f"Output:    {one_line(agreement.output, 60)}: {agreement.verdict} to the f32 "
            f"reference (relative error {agreement.relative_error:.2g}, "
            f"executed in {agreement.precision})"
        )
    if profile.counters:
        precision = executed_precisions(profile.counters)
        n = len(profile.tables["transitions"])
        lines.append(
            f"Precision: {tally(precision.values()) or 'not told by the counters'}"
            f"{f'; it changes between {n} pairs of ops' if n else ''}"
        )
    if profile.interrupted:
        lines.append("The measurement was interrupted; the numbers are of what was measured.")
    if not profile.counters:
        return "\n".join(lines) + "\n"
    lines += ["", "Performance counts for 0-th infer request"]
    lines += counter_lines(profile.counters, hetero=bool(partition.wiring))
    return "\n".join(lines) + "\n"


def counter_lines(counters: Sequence[Counter], *, hetero: bool) -> list[str]:
    """Return a line a counter and the totals; ``hetero`` puts the subgraph before each name."""
    lines = []
    for counter in counters:
        prefix = f"subgraph{counter.subgraph}: " if hetero else ""
        lines.append(
            f"{_cell(prefix + counter.node_name)} {counter.status:<14}"
            f"layerType: {_cell(counter.node_type, 20)} "
            f"execType: {_cell(counter.exec_type)} "
            f"realTime (ms): {counter.real_time_us / 1e3:<10.3f} "
            f"cpuTime (ms): {counter.cpu_time_us / 1e3:<10.3f}"
        )
    real_ms = sum(c.real_time_us for c in counters) / 1e3
    cpu_ms = sum(c.cpu_time_us for c in counters) / 1e3
    return [
        *lines,
        f"Total time:     {real_ms:.3f} milliseconds",
        f"Total CPU time: {cpu_ms:.3f} milliseconds",
    ]


def _cell(value: str, width: int = _WIDTH) -> str:
    return one_line(value, width).ljust(width)


def one_line(value: str, width: int = 200) -> str:
    """Return text that a terminal shows on one line of at most ``width`` characters."""
    shown = "".join(c if c.isprintable() else " " for c in value)
    return shown if len(shown) <= width else shown[: width - 3] + "..."
