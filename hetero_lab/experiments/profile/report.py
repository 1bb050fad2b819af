"""A Profile as text, in the form of the ``-pc`` output of OpenVINO's samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetero_lab.experiments.profile.precision import executed_precisions, tally
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.runners import HETERO
from hetero_lab.terminal import columns, one_line

if TYPE_CHECKING:
    from hetero_lab.experiments.profile.profile import Profile

_WIDTH = 30
_MOST_SUBGRAPHS = 20


def text(profile: Profile, *, counters: bool = True) -> str:
    """Return the summary, the subgraphs if there are several, and the counters, as text.

    In the lines of counters names are cut to 30 characters as in OpenVINO's samples.
    """
    blocks = [summary(profile)]
    if profile.partition.n_subgraphs > 1:
        blocks.append(_subgraphs(profile))
    if counters and profile.counters:
        lines = counter_lines(profile.counters, hetero=bool(profile.partition.wiring))
        blocks.append("\n".join(["Performance counts for 0-th infer request", *lines]))
    return "\n\n".join(blocks) + "\n"


def summary(profile: Profile) -> str:
    """Return what was measured of the whole, a line each."""
    low, high = profile.latency.ci95_us
    partition = profile.partition
    emulated = [f"{name} (emulated on {base})" for name, base in profile.environment.emulated]
    real = [d for d in profile.affinity.devices if d not in dict(profile.environment.emulated)]
    lines = [
        f"Model:     {one_line(profile.graph.name)}",
        f"Placement: {one_line(profile.label)} on {', '.join([*real, *emulated])}",
        f"Partition: {partition.n_subgraphs} subgraphs, {len(partition.boundaries)} boundaries, "
        f"{partition.boundary_bytes} bytes ({'observed' if partition.observed else 'predicted'})",
        f"Latency:   median {profile.latency.median_us:.1f} us, 95 % [{low:.1f}, {high:.1f}], "
        f"p90 {profile.latency.p90_us:.1f} us, {len(profile.latency)} inferences in this run",
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
    return "\n".join(lines)


def _subgraphs(profile: Profile) -> str:
    rows = [["SUBGRAPH", "DEVICE", "OPS", "FROM … TO"]]
    subgraphs = profile.partition.subgraphs
    for subgraph in subgraphs[:_MOST_SUBGRAPHS]:
        ops = subgraph.ops or ("",)
        span = ops[0] if len(ops) == 1 else f"{ops[0]} … {ops[-1]}"
        rows.append([str(subgraph.index), subgraph.device, str(len(subgraph.ops)), span])
    lines = [columns(rows)]
    if len(subgraphs) > _MOST_SUBGRAPHS:
        lines.append(f"… {len(subgraphs) - _MOST_SUBGRAPHS} more")
    if profile.as_predicted is False:
        lines.append("The runtime compiled other subgraphs than these, which are predicted.")
    return "\n".join(lines)


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
