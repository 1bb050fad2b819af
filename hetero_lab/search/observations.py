"""Measure placements for a search, and read the observations that a cost model is fitted to."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.arguments import EXECUTORS, PARALLEL
from hetero_lab.costs.counter_costs import ENTERS, LEAVES, Conversion, ExecutedNode, Observation
from hetero_lab.costs.design import on_first_able
from hetero_lab.devices.core import BoundModel
from hetero_lab.errors import MeasurementError
from hetero_lab.measure.bench import Bench
from hetero_lab.measure.profile import opened_bench
from hetero_lab.measure.session import Conditions, Session, SweepControl
from hetero_lab.measure.stopping import FULL, RunOptions
from hetero_lab.measure.trial_grid import by_name, expand, trial_of
from hetero_lab.model.opgraph import OpGraph, grouped
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.progress import Progress, Stopwatch
from hetero_lab.results.records import AnyRecord, Compiled, Counters, Finished, Turn
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import Row
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.executors import TIMED_PER_TURN
from hetero_lab.samples.datasets import ReadData
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    from pathlib import Path

_ROUNDED_DOWN_US = 0.5  # on average, where a device counts whole microseconds
_LEAST_NOISE = 0.02  # the error of the model's form, whatever the number of turns
_ALIVE = 4  # compiled at once in this process; a deployed placement runs alone
# Two set a scale, or give any answer at all; the scatter of fewer than four is mostly chance; more
# than twelve tell less than another placement.
_FIRST_TURNS, _LEAST_TURNS, _MOST_TURNS = 2, 4, 12
_ENOUGH_S = 0.3  # of turns for one placement: another placement tells more than more turns
_ISOLATED_PARTS = 12  # fewer tell less about single ops, more have many hand-overs between them
_SAFETY = 1.2  # placements of many subgraphs take longer than the first ones
_DOING = {Compiled: "compile", Turn: "measure", Counters: "read counters"}


@dataclass
class Search:
    """A session, a budget and a line of progress, which the stages of one question share."""

    bound: BoundModel
    session: Session
    progress: Progress
    watch: Stopwatch
    step: str = ""
    measured: set[str] = field(default_factory=set)  # keys of placements

    @property
    def budget_s(self) -> float:
        """The budget, infinite without one."""
        return math.inf if self.watch.budget_s is None else self.watch.budget_s

    def begin(self, step: str) -> None:
        """Begin a step and show it."""
        self.step = step
        self.progress.step(step)

    def count(self, key: str) -> None:
        """Count a placement that was measured, once."""
        self.measured.add(key)
        self.progress.note(f"{count_of(len(self.measured), 'placement')} measured")

    def within(self, budget_s: float) -> Search:
        """Return the same search with a budget of its own, which begins now."""
        return replace(self, watch=_watch(budget_s))

    def measure(
        self,
        placements: Sequence[Placement],
        options: RunOptions,
        budget_s: float,
        *,
        least: int = 0,
        models: Mapping[str, BoundModel] | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        leave_out: Container[str] = (),
        store: Path | None = None,
        data: ReadData | None = None,
    ) -> Sweep:
        """Measure placements, the first of which is the reference, in turns within a budget.

        If the budget ends before any is measured, the first ``least`` get two turns nevertheless.
        ``models`` are variants to measure instead of the model of the search; the other arguments
        are those of :meth:`Session.measure` and :func:`hetero_lab.sweep`, without some labels.
        """
        with contextlib.ExitStack() as stack:
            session = self.session
            if models is not None:
                session = stack.enter_context(Session(models, session.conditions))
            scenario = session.conditions.scenario
            trials = expand(session.models, placements, grid, scenario=scenario, baselines=False)
            trials = [trial for trial in trials if trial.label not in leave_out]
            measure = partial(session.measure, control=SweepControl(self._on_record))
            sweep = measure(trials, options, _watch(budget_s), store=store, data=data)
            if not least or sweep.interrupted or any(row.profile is not None for row in sweep.rows):
                return sweep
            few = trials[:least]
            if {d for t in few for d in t.devices} != {d for t in trials for d in t.devices}:
                store = None  # which belongs to all these devices
            twice = replace(options, turns=_FIRST_TURNS)
            first = measure(few, twice, Stopwatch.start(None), store=store)
            return replace(first, rows=(*first.rows, *sweep.rows[least:]))

    def _on_record(self, record: AnyRecord) -> None:
        if isinstance(record, Finished):
            self.count(record.entry)
        elif type(record) in _DOING:
            self.progress.step(f"{self.step}: {_DOING[type(record)]}")


def _watch(budget_s: float) -> Stopwatch:
    return Stopwatch.start(None if math.isinf(budget_s) else budget_s)


@contextlib.contextmanager
def searching(
    bound: BoundModel,
    conditions: Conditions,
    watch: Stopwatch,
    *,
    show: bool,
) -> Iterator[Search]:
    """Open a search; few placements are alive at once where they run in this process."""
    if not conditions.isolate:
        conditions = replace(conditions, workers=replace(conditions.workers, group=_ALIVE))
    with (
        Progress("prepare", show=show, budget_s=watch.budget_s) as bar,
        Session(by_name(bound), conditions) as session,
    ):
        yield Search(bound, session, bar, watch)


@dataclass
class Observer:
    """Measures placements of one model, always beside the same reference.

    The reference removes a drift of the machine between two calls: an observation is the ratio to
    it, times its first level. The time of a language model is that of a further token.
    """

    search: Search
    device_properties: Mapping[str, Mapping[str, Any]]
    reference: Affinity
    level_us: float = 0.0  # of the reference, at first
    first_us: float = 0.0  # its first token
    levels_us: list[float] = field(default_factory=list)  # of the reference, turn by turn
    each_s: float = 0.0  # of the latest placements, on average, compiles included
    slowest_subgraph_s: float = 0.0  # compile time of a subgraph
    failed: dict[str, str] = field(default_factory=dict)  # why a placement, by label, does not run
    precisions: dict[str, str] = field(default_factory=dict)  # of devices, as the runtime tells

    def placement(self, affinity: Affinity, label: str) -> Placement:
        """Return the placement that is compiled for an affinity."""
        return Placement(affinity, label, self.device_properties)

    def observe_reference(
        self, others: Mapping[str, Affinity], into: list[Observation], *, counters: bool
    ) -> None:
        """Measure the reference, or the first of the others if it fails, whatever the budget.

        MeasurementError, if none of them runs.
        """
        for affinity in (self.reference, *others.values()):
            every = {"reference": affinity}
            sweep = self._measure(every, _FIRST_TURNS, math.inf, counters=counters)
            first = sweep.rows[0]
            if first.profile is not None:
                self.reference = affinity
                self.level_us = float(np.median(self.levels_us))
                generation = first.profile.generation
                self.first_us = generation.ttft.median_us if generation else 0.0
                # Later placements have more turns.
                self.each_s += (self._turns - _FIRST_TURNS) * self._turn_s
                into.append(self._observation(first, first))
            if sweep.interrupted:
                raise KeyboardInterrupt
            if first.profile is not None:
                return
        raise MeasurementError(f"No placement ran: {first.status}. {first.detail}")

    @property
    def drift(self) -> float:
        """How much slower the reference was in the middle of all its turns than at first."""
        return float(np.median(self.levels_us)) / self.level_us

    def affordable(self, until_s: float) -> int:
        """Return how many more placements can be observed before the watch shows ``until_s``."""
        left_s = until_s - self.search.watch.elapsed_s
        # A whole number also where the budget is infinite.
        return int(min(max(0.0, left_s / (_SAFETY * self.each_s)), 10_000))

    def observe(
        self,
        affinities: Mapping[str, Affinity],
        until_s: float,
        into: list[Observation],
        *,
        counters: bool,
    ) -> None:
        """Measure placements; add the observations for which there was time.

        After Ctrl-C, ``KeyboardInterrupt`` is raised when they are added.
        """
        left_s = until_s - self.search.watch.elapsed_s
        if left_s <= 0.0:
            return
        every = {"reference": self.reference, **affinities}
        sweep = self._measure(every, self._turns, left_s, counters=counters)
        into += [
            self._observation(row, sweep.rows[0])
            for row in sweep.rows[1:]
            if row.profile is not None and row.series.log_ratios
        ]
        if sweep.interrupted:
            raise KeyboardInterrupt

    def parallel_ratios(
        self, base: Affinity, affinity: Affinity, until_s: float
    ) -> list[float] | None:
        """Return what the parallel executor takes for both, by HETERO's time for the first one.

        None if there was no time.
        """
        if not self.affordable(until_s):
            return None
        sweep = self.search.measure(
            [self.placement(base, "base"), self.placement(affinity, "plan")],
            RunOptions(turns=self._turns, counters=False, reference=False),
            math.inf,
            grid={"executor": EXECUTORS},
            leave_out=("plan",),
        )
        if sweep.interrupted:
            raise KeyboardInterrupt
        ratios = [row.series.ratio for row in sweep.rows[1:]]
        return None if None in ratios else [ratio.middle for ratio in ratios if ratio]

    def _measure(
        self,
        affinities: Mapping[str, Affinity],
        turns: int,
        budget_s: float,
        *,
        counters: bool,
    ) -> Sweep:
        began_s = self.search.watch.elapsed_s
        sweep = self.search.measure(
            [self.placement(affinity, label) for label, affinity in affinities.items()],
            RunOptions(turns=turns, counters=counters, reference=False),
            budget_s,
        )
        measured = [row.profile for row in sweep.rows if row.profile is not None]
        if sweep.rows[0].profile is not None:
            self.levels_us += sweep.rows[0].series.ours.values()
        self.failed |= {row.label: row.detail for row in sweep.rows if row.detail}
        for profile in measured:
            self.precisions |= profile.chosen.precisions
            n_subgraphs = profile.partition.n_subgraphs
            if n_subgraphs > 1:
                each_s = profile.compile_ms / 1e3 / n_subgraphs
                self.slowest_subgraph_s = max(self.slowest_subgraph_s, each_s)
        self.each_s = (self.search.watch.elapsed_s - began_s) / max(1, len(measured))
        return sweep

    def _observation(self, row: Row, reference: Row) -> Observation:
        """Read a measured row of a sweep that has this row of the reference."""
        profile = row.profile
        assert profile is not None
        ratios = np.array(list(row.series.log_ratios.values()) or [0.0])
        middle = float(np.median(ratios))
        # 1.48 times the median deviation is the standard deviation of normal noise.
        scatter = 1.48 * float(np.median(np.abs(ratios - middle))) / math.sqrt(len(ratios))
        generation, base = profile.generation, reference.profile and reference.profile.generation
        first_us = None
        if generation and base:
            first_us = self.first_us * generation.ttft.median_us / base.ttft.median_us
        return Observation(
            row.label,
            profile.affinity,
            self.level_us * math.exp(middle),
            *nodes_and_conversions(profile.counters, profile.partition, profile.graph),
            noise=math.hypot(_LEAST_NOISE, scatter),
            first_us=first_us,
        )

    @property
    def _turn_s(self) -> float:
        scenario = self.search.session.conditions.scenario
        if scenario is not None:
            return (self.first_us + (scenario.new_tokens - 1) * self.level_us) / 1e6
        return FULL * self.level_us / 1e6

    @property
    def _turns(self) -> int:
        return int(np.clip(_ENOUGH_S / self._turn_s, _LEAST_TURNS, _MOST_TURNS))


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
    """Return the op beside an inner conversion, in the same subgraph."""
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
    namesakes = [op for op in inside if counter.node_name.startswith(f"{op}_")]
    namesakes = namesakes or [op for op in inside if counter.node_name.endswith(f"_{op}")]
    return max(namesakes, key=len, default="")


def isolated_nodes(
    observer: Observer,
    device: str,
    support: Mapping[str, frozenset[str]],
    counted_nodes: Sequence[ExecutedNode],
) -> tuple[ExecutedNode, ...]:
    """Return a node for each op that a device without counters supports, from timed subgraphs.

    The model is divided into at most 12 parts. Every other part runs on the device, then the
    others, so that two compiles time each part alone. The time of a subgraph is divided among
    its ops as another device's counters divide theirs, or by the bytes of their outputs.
    """
    bound = observer.search.bound
    conditions = replace(observer.search.session.conditions, scenario=None)  # one inference each
    models, weights = by_name(bound), _weights(bound.graph, counted_nodes)
    (variant,) = models
    nodes: list[ExecutedNode] = []
    with Session(models, conditions) as session, opened_bench(session, "isolated") as ask:
        for affinity in _halves(bound.graph, device, support):
            bound_placement = resolve(bound, observer.placement(affinity, "isolated"))
            trial = trial_of(bound_placement, bound_placement.label, variant, executor=PARALLEL)
            compiled: Compiled = ask(Bench.compile, trial=trial)
            ask(Bench.run_turn, key=trial.key)
            spans = ask(Bench.read_spans, key=trial.key, requests=TIMED_PER_TURN)
            ask(Bench.release, key=trial.key)
            times = grouped((subgraph, end_s - start_s) for _, subgraph, start_s, end_s in spans)
            for subgraph in compiled.partition.subgraphs:
                ops = [op for op in subgraph.ops if op in weights]
                if subgraph.device == device and ops:
                    total = sum(weights[op] for op in ops)
                    us = 1e6 * float(np.median(times[subgraph.index]))
                    nodes += [ExecutedNode((op,), device, us * weights[op] / total) for op in ops]
    return tuple(nodes)


def _weights(graph: OpGraph, nodes: Sequence[ExecutedNode]) -> dict[str, float]:
    placeable = [graph.ops[index] for index in graph.placeable]
    times_us: defaultdict[str, list[float]] = defaultdict(list)
    for node in nodes:
        times_us[node.ops[0]].append(node.us)
    if not times_us:
        return {op.name: 1.0 + sum(t.n_bytes or 0 for t in op.outputs) for op in placeable}
    # Ops inside another's node weigh next to nothing, but not nothing.
    return {op.name: float(np.median(times_us.get(op.name, [1e-3]))) for op in placeable}


def _halves(graph: OpGraph, device: str, support: Mapping[str, frozenset[str]]) -> list[Affinity]:
    """Return two placements: even and odd parts of the model on the device."""
    leaders = list(dict.fromkeys(graph.leader[i] for i in graph.placeable))
    part_of = {
        leader: number * _ISOLATED_PARTS // len(leaders) for number, leader in enumerate(leaders)
    }
    others = [other for other in support if other != device]
    first, last = [device, *others], [*others, device]
    return [
        on_first_able(
            graph, support, {x: first if part % 2 == half else last for x, part in part_of.items()}
        )
        for half in range(2)
    ]
