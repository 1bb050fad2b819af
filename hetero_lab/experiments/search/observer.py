"""Measure placements and read from each what a cost model is fitted to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.experiments.sweep.result import Row, Sweep
from hetero_lab.experiments.sweep.rounds import GROUP_SIZE
from hetero_lab.experiments.sweep.sweep import sweep
from hetero_lab.model.opgraph import CONSTANT, OpGraph
from hetero_lab.model.read import PreparedModel
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import Placement
from hetero_lab.planning.observations import ENTERS, LEAVES, Conversion, Node, Observation
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.timing import DISCARDED_PER_TURN, TIMED_PER_TURN, Stopwatch

if TYPE_CHECKING:
    import openvino as ov

_ROUNDED_DOWN_US = 0.5  # on average, where a device counts whole microseconds
_LEAST_BUDGET_S = 0.1
_LEAST_NOISE = 0.02  # what the model's form leaves open, whatever the number of turns
_MOST_ALIVE, _ALIVE_BYTES = 16, 2 << 30  # compiled at once, so that they share the same moods
_LEAST_TURNS, _MOST_TURNS = 6, 12
_ENOUGH_S = 0.5  # of turns for one placement: another placement tells more than more turns


@dataclass
class Observer:
    """Measures placements of one model, always beside the same reference.

    A drift of the machine between two calls is taken out by the reference: what is observed is
    the ratio to it, times what it took at first.

    Parameters
    ----------
    prepared, device_properties, core
        The model, the properties of each device for every placement, OpenVINO's core.
    reference
        The affinity that is measured every time.
    watch
        The budget of the whole call.
    options
        More arguments for :func:`hetero_lab.sweep`: inputs, isolate, progress, requests.
    """

    prepared: PreparedModel
    device_properties: Mapping[str, Mapping[str, Any]]
    reference: Affinity
    watch: Stopwatch
    options: Mapping[str, Any]
    core: ov.Core
    level_us: float = 0.0
    sweeps: list[Sweep] = field(default_factory=list)
    spent_s: float = 0.0
    n_observed: int = 0

    @property
    def each_s(self) -> float:
        """What observing a placement took on average, compiles included."""
        return self.spent_s / max(1, self.n_observed)

    def placement(self, affinity: Affinity, label: str) -> Placement:
        """Return what is compiled for an affinity."""
        return Placement(affinity, label, self.device_properties)

    def observe(
        self, affinities: Mapping[str, Affinity], *, budget_s: float | None, counters: bool
    ) -> list[Observation]:
        """Measure placements; return those for which the budget sufficed.

        The first time the reference is returned, too.
        """
        placements = [self.placement(self.reference, "reference")]
        placements += [self.placement(affinity, label) for label, affinity in affinities.items()]
        left = budget_s
        if self.watch.budget_s is not None:
            rest = self.watch.budget_s - self.watch.elapsed_s
            left = rest if budget_s is None else min(budget_s, rest)
        began_s = self.watch.elapsed_s
        made = sweep(
            self.prepared,
            placements,
            turns=self._turns,
            group_size=self._group_size,
            budget_s=None if left is None else max(_LEAST_BUDGET_S, left),
            counters=counters,
            reference=False,
            baselines=False,
            core=self.core,
            **self.options,
        )
        self.sweeps.append(made)
        self.spent_s += self.watch.elapsed_s - began_s
        self.n_observed += sum(row.profile is not None for row in made.rows)
        measured = [row for row in made.rows[1:] if row.profile is not None]
        first = made.rows[0]
        if first.profile is not None and not self.level_us:
            self.level_us = first.profile.latency.median_us
            measured.insert(0, first)
        return [observation(row, self.level_us) for row in measured if self.level_us]

    @property
    def _group_size(self) -> int:
        if self.options.get("isolate"):
            return GROUP_SIZE  # each has a process
        graph = self.prepared.graph
        weights = sum(t.n_bytes or 0 for op in graph if op.type == CONSTANT for t in op.outputs)
        return int(np.clip(_ALIVE_BYTES // max(1, weights), 2, _MOST_ALIVE))

    @property
    def _turns(self) -> int:
        if not self.level_us:
            return _MOST_TURNS
        turn_s = (DISCARDED_PER_TURN + TIMED_PER_TURN) * self.level_us / 1e6
        return int(np.clip(_ENOUGH_S / turn_s, _LEAST_TURNS, _MOST_TURNS))


def observation(row: Row, level_us: float) -> Observation:
    """Read a measured row of a sweep whose reference takes ``level_us``."""
    profile = row.profile
    assert profile is not None
    ratios = np.array(list(row.series.log_ratios.values()) or [0.0])
    middle = float(np.median(ratios))
    scatter = 1.48 * float(np.median(np.abs(ratios - middle))) / math.sqrt(len(ratios))
    nodes, conversions = nodes_and_conversions(profile.counters, profile.partition, profile.graph)
    return Observation(
        row.label,
        profile.affinity,
        level_us * math.exp(middle),
        nodes,
        conversions,
        noise=math.hypot(_LEAST_NOISE, scatter),
    )


def nodes_and_conversions(
    counters: Sequence[Counter], partition: Partition, graph: OpGraph
) -> tuple[tuple[Node, ...], tuple[Conversion, ...]]:
    """Sort the counters of a placement into executed nodes and conversions at boundaries.

    A conversion that serves no boundary, inside a subgraph or at the model's own inputs and
    outputs, counts with the op beside it.
    """
    if not counters:
        return (), ()
    whole = all(float(c.real_time_us).is_integer() for c in counters)
    extra = _ROUNDED_DOWN_US if whole else 0.0
    crossing = {boundary.tensor for boundary in partition.boundaries}
    at_boundary: defaultdict[tuple[str, int], float] = defaultdict(float)
    beside: defaultdict[tuple[int, str], float] = defaultdict(float)
    for counter in counters:
        if counter.kind == "reorder":
            us = counter.real_time_us + extra
            if counter.tensor in crossing:
                at_boundary[counter.tensor, counter.subgraph] += us
            else:
                beside[counter.subgraph, _neighbour(counter, partition, graph)] += us
    nodes = []
    for counter in counters:
        if counter.kind == "op":
            ops = (counter.op, *counter.fused_ops)
            us = counter.real_time_us + extra
            us += sum(beside.pop((counter.subgraph, op), 0.0) for op in ops)
            nodes.append(Node(ops, counter.device, us, counter.subgraph))
    conversions = []
    for boundary in partition.boundaries:
        for subgraph, way in [(boundary.source, LEAVES), *((t, ENTERS) for t in boundary.targets)]:
            device = partition.subgraphs[subgraph].device
            us = at_boundary[boundary.tensor, subgraph]
            conversions.append(Conversion(boundary.op, boundary.port, device, way, us))
    return tuple(nodes), tuple(conversions)


def _neighbour(counter: Counter, partition: Partition, graph: OpGraph) -> str:
    """Return the op of the same subgraph that an inner conversion stands beside."""
    if counter.op:
        return counter.op
    inside = partition.subgraphs[counter.subgraph].ops
    if counter.tensor in graph.index_of:
        index = graph.index_of[counter.tensor]
        users = [graph.ops[use.index].name for use in graph.consumers[index]]
        makers = [graph.ops[producer].name for producer, _ in graph.ops[index].inputs]
        for name in (*users, *makers):
            if name in inside:
                return name
    named = [op for op in inside if counter.node_name.startswith(f"{op}_")]
    named = named or [op for op in inside if counter.node_name.endswith(f"_{op}")]
    return max(named, key=len, default="")
