"""Measure placements and read from each what a cost model is fitted to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.measure.budget import RunOptions
from hetero_lab.experiments.measure.trial import by_name, expand
from hetero_lab.experiments.progress import SearchProgress
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.results.sweep.row import Row
from hetero_lab.experiments.session import Conditions, Session
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.planning.design import placed
from hetero_lab.planning.observations import ENTERS, LEAVES, Conversion, ExecutedNode, Observation
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.inputs import given_or_generated
from hetero_lab.runtime.parallel import ParallelExecutor
from hetero_lab.runtime.timing import DISCARDED_PER_TURN, TIMED_PER_TURN, Stopwatch

_ROUNDED_DOWN_US = 0.5  # on average, where a device counts whole microseconds
_LEAST_NOISE = 0.02  # what the model's form leaves open, whatever the number of turns
_ALIVE = 4  # compiled at once in this process; who deploys a placement has it alone
_FIRST_TURNS, _LEAST_TURNS, _MOST_TURNS = 2, 4, 12
_ENOUGH_S = 0.3  # of turns for one placement: another placement tells more than more turns
_ISOLATED_PARTS, _ISOLATED_RUNS, _ISOLATED_DISCARDED = 12, 12, 2
_SAFETY = 1.2  # placements of many subgraphs take longer than the first ones


def search_session(
    bound: BoundModel, conditions: Conditions, scenario: Scenario | None = None
) -> Session:
    """Return a session in which few placements are alive at once in this process."""
    if not conditions.isolate:
        workers = replace(conditions.workers, group=_ALIVE)
        conditions = replace(conditions, workers=workers)
    return Session(by_name(bound), conditions, scenario=scenario)


@dataclass
class Observer:
    """Measures placements of one model, always beside the same reference.

    A drift of the machine between two calls is taken out by the reference: what is observed is
    the ratio to it, times what it took at first.

    Parameters
    ----------
    bound, device_properties
        The model, and the properties of each device for every placement.
    reference
        The affinity that is measured every time.
    watch
        The budget of the whole call.
    scenario
        What a language model generates. What is observed is then the time of a further token.
    """

    bound: BoundModel
    device_properties: Mapping[str, Mapping[str, Any]]
    reference: Affinity
    watch: Stopwatch
    session: Session
    progress: SearchProgress
    scenario: Scenario | None = None
    level_us: float = 0.0
    first_us: float = 0.0  # the first token of a language model
    levels_us: list[float] = field(default_factory=list)  # of the reference, turn by turn
    interrupted: bool = False
    each_s: float = 0.0  # what the latest placements took on average, compiles included
    slowest_subgraph_s: float = 0.0  # compile time of a subgraph
    failed: dict[str, str] = field(default_factory=dict)  # label of what does not run: why

    def placement(self, affinity: Affinity, label: str) -> Placement:
        """Return what is compiled for an affinity."""
        return Placement(affinity, label, self.device_properties)

    def observe_reference(self, others: Mapping[str, Affinity], *, counters: bool) -> Observation:
        """Measure the reference, or the first of the others if it fails, whatever the budget.

        Raises
        ------
        MeasurementError
            None of them runs.
        """
        for affinity in (self.reference, *others.values()):
            made = self._sweep({"reference": affinity}, _FIRST_TURNS, None, counters=counters)
            first = made.rows[0]
            if first.profile is not None:
                self.reference = affinity
                self.level_us = float(np.median(self.levels_us))
                generation = first.profile.generation
                self.first_us = generation.ttft.median_us if generation else 0.0
                # Later ones have more turns.
                self.each_s += (self._turns - _FIRST_TURNS) * self._turn_s
                return observation(first, self.level_us, self.first_us, first)
            if self.interrupted:
                raise KeyboardInterrupt
        raise MeasurementError(f"No placement ran: {first.status}. {first.detail}")

    @property
    def drift(self) -> float:
        """How much slower the reference was in the middle of all its turns than at first."""
        return float(np.median(self.levels_us)) / self.level_us

    def affordable(self, until_s: float) -> int:
        """Return how many more placements can be observed before the watch shows ``until_s``."""
        left_s = until_s - self.watch.elapsed_s
        return int(min(max(0.0, left_s / (_SAFETY * self.each_s)), 10_000))

    def observe(
        self, affinities: Mapping[str, Affinity], until_s: float, *, counters: bool
    ) -> list[Observation]:
        """Measure placements; return those for which the time sufficed and that ran."""
        left_s = until_s - self.watch.elapsed_s
        if left_s <= 0.0:
            return []
        budget_s = None if math.isinf(left_s) else left_s
        every = {"reference": self.reference, **affinities}
        made = self._sweep(every, self._turns, budget_s, counters=counters)
        return [
            observation(row, self.level_us, self.first_us, made.rows[0])
            for row in made.rows[1:]
            if row.profile is not None and row.series.log_ratios
        ]

    def _sweep(
        self,
        affinities: Mapping[str, Affinity],
        turns: int,
        budget_s: float | None,
        *,
        counters: bool,
    ) -> Sweep:
        began_s = self.watch.elapsed_s
        placements = [self.placement(affinity, label) for label, affinity in affinities.items()]
        models = self.session.models
        made = self.session.measure(
            expand(models, placements, scenario=self.scenario, baselines=False),
            RunOptions(turns=turns, counters=counters, reference=False),
            Stopwatch.start(budget_s),
            control=self.progress.control(),
        )
        self.interrupted |= made.interrupted
        if made.rows[0].profile is not None:
            self.levels_us += made.rows[0].series.ours.values()
        self.failed |= {row.label: row.detail for row in made.rows if row.detail}
        for row in made.rows:
            if row.profile is not None and row.profile.partition.n_subgraphs > 1:
                each_s = row.profile.compile_ms / 1e3 / row.profile.partition.n_subgraphs
                self.slowest_subgraph_s = max(self.slowest_subgraph_s, each_s)
        n_measured = sum(row.profile is not None for row in made.rows)
        self.each_s = (self.watch.elapsed_s - began_s) / max(1, n_measured)
        return made

    @property
    def _turn_s(self) -> float:
        if self.scenario is not None:
            return (self.first_us + (self.scenario.new_tokens - 1) * self.level_us) / 1e6
        return (DISCARDED_PER_TURN + TIMED_PER_TURN) * self.level_us / 1e6

    @property
    def _turns(self) -> int:
        return int(np.clip(_ENOUGH_S / self._turn_s, _LEAST_TURNS, _MOST_TURNS))


def observation(
    row: Row, level_us: float, first_level_us: float = 0.0, reference: Row | None = None
) -> Observation:
    """Read a measured row of a sweep whose reference takes ``level_us``.

    Of a language model, ``first_level_us`` is what the first token of the reference took at first,
    and ``reference`` its row in the same sweep.
    """
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
        first_us=_first_us(row, first_level_us, reference),
    )


def _first_us(row: Row, level_us: float, reference: Row | None) -> float | None:
    both = [r.profile.generation for r in (row, reference) if r is not None and r.profile]
    if len(both) < 2 or both[0] is None or both[1] is None:
        return None
    return level_us * both[0].ttft.median_us / both[1].ttft.median_us


def nodes_and_conversions(
    counters: Sequence[Counter], partition: Partition, graph: OpGraph
) -> tuple[tuple[ExecutedNode, ...], tuple[Conversion, ...]]:
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
            nodes.append(ExecutedNode(ops, counter.device, us, counter.subgraph))
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


def isolated_nodes(
    observer: Observer,
    device: str,
    support: Mapping[str, frozenset[str]],
    known: Sequence[ExecutedNode],
) -> tuple[ExecutedNode, ...]:
    """Return a node for each op that a device without counters supports, from timed subgraphs.

    The model is divided into at most 12 parts; every other part runs on the device, then the
    rest, so that two compiles show all of them apart. The time of a subgraph is divided among
    its ops as another device's counters divide theirs, or by the bytes that they make.
    """
    bound, conditions = observer.bound, observer.session.conditions
    weights = _weights(bound.graph, known)
    arrays = given_or_generated(bound, conditions.inputs, conditions.seed)
    found: list[ExecutedNode] = []
    for affinity in _halves(bound.graph, device, support):
        executor = ParallelExecutor.of(resolve(bound, observer.placement(affinity, "isolated")))
        try:
            for _ in range(_ISOLATED_RUNS):
                executor(arrays)
            spans, partition = executor.timeline, executor.partition
        finally:
            executor.close()
        times: defaultdict[int, list[float]] = defaultdict(list)
        for span in spans:
            if span.request >= _ISOLATED_DISCARDED:
                times[span.subgraph].append((span.end_s - span.start_s) * 1e6)
        for subgraph in partition.subgraphs:
            ops = [op for op in subgraph.ops if op in weights]
            if subgraph.device == device and ops:
                total = sum(weights[op] for op in ops)
                us = float(np.median(times[subgraph.index]))
                found += [ExecutedNode((op,), device, us * weights[op] / total) for op in ops]
    return tuple(found)


def _weights(graph: OpGraph, known: Sequence[ExecutedNode]) -> dict[str, float]:
    counted: defaultdict[str, list[float]] = defaultdict(list)
    for node in known:
        counted[node.ops[0]].append(node.us)
    if counted:
        # Ops inside another's node weigh next to nothing, but not nothing.
        return {
            graph.ops[i].name: float(np.median(counted.get(graph.ops[i].name, [1e-3])))
            for i in graph.placeable
        }
    return {
        graph.ops[i].name: 1.0 + sum(t.n_bytes or 0 for t in graph.ops[i].outputs)
        for i in graph.placeable
    }


def _halves(graph: OpGraph, device: str, support: Mapping[str, frozenset[str]]) -> list[Affinity]:
    """Return two placements: even and odd parts of the model on the device."""
    leaders = list(dict.fromkeys(graph.leader[i] for i in graph.placeable))
    part_of = {
        leader: number * _ISOLATED_PARTS // len(leaders) for number, leader in enumerate(leaders)
    }
    others = [other for other in support if other != device]
    halves = []
    for half in range(2):
        device_of = {}
        for index in graph.placeable:
            name = graph.ops[index].name
            own = part_of[graph.leader[index]] % 2 == half and name in support[device]
            other = next((d for d in others if name in support[d]), device)
            device_of[name] = device if own else other
        halves.append(placed(graph, device_of))
    return halves
