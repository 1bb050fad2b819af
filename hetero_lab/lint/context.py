"""Lint context: a placement with everything that the rules of :func:`hetero_lab.lint` need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from hetero_lab.errors import names_at_hand
from hetero_lab.model.opgraph import CONSTANT, PARAMETER, OpGraph, grouped
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import (
    Boundary,
    Partition,
    Subgraph,
    SubgraphCollector,
    devices_of,
    predict,
)
from hetero_lab.placement.topology import topology

if TYPE_CHECKING:
    from hetero_lab.costs.cost_model import CostModel
    from hetero_lab.costs.prediction import Predictor
    from hetero_lab.placement.placement import Placement

INFO, WARNING, ERROR = "info", "warning", "error"
WRONG_NUMBERS = "wrong-numbers"  # the rule for the result of a search for wrong ops
SUBGRAPHS = "many-subgraphs"  # the rule for the partition as a whole
EMPTY_DEVICE = "empty-device"  # the rule for placements that HETERO divides by itself
_NAMED = 3  # ops in a sentence
Gone: TypeAlias = Callable[[np.ndarray], bool]  # given the subgraph of every node after a remedy


@dataclass(frozen=True)
class Finding:
    """Something that makes a placement slow or impossible, and the way out.

    ``remedy`` maps ops to devices, ready for ``affinity.fix(ops=remedy)``; it is empty where
    there is none. ``cost_us`` is the predicted latency now minus that after the remedy, 0 without
    a remedy and None without a cost model; ``margin_us`` is by how much that may be off, at 90 %.
    ``cause`` says why the ops are apart from their neighbours; related findings share one.
    """

    rule: str
    severity: str
    ops: tuple[str, ...]
    finding: str
    advice: str
    remedy: Mapping[str, str] = field(default_factory=dict)
    cost_us: float | None = None
    cause: str = ""
    margin_us: float | None = None


class KnownFaults:
    """Wrong ops of a placement: the result of :func:`hetero_lab.find_wrong` for the model."""

    given: Placement

    def _findings(
        self, partition: Partition, affinity: Affinity, costs: CostModel | None = None
    ) -> list[Finding]:
        """Return a finding for each set of ops that a placement leaves as it was found."""
        raise NotImplementedError


@dataclass(frozen=True)
class Draft:
    """A finding of a rule before its remedies were tried.

    ``nodes`` are the sorted indices of its ops, ``options`` the remedies to try, the likeliest
    first. ``weight`` is the bytes (with costs: µs) that it affects: the heaviest is tried first. An
    empty ``rule`` stands for the name under which the rule is listed.

    ``gone`` is None if every option removes the finding, whatever else happens. ``slack`` is the
    largest change that a remedy may make to the sum of subgraphs and boundaries; None if that does
    not matter. With costs the prediction decides instead; with ``must_save`` there is no finding
    unless its remedy lowers the prediction. ``stuck`` is the advice if no remedy is known.
    """

    nodes: tuple[int, ...]
    finding: str
    options: tuple[dict[str, str], ...]
    weight: float
    rule: str = ""
    severity: str = WARNING
    gone: Gone | None = None
    slack: int | None = None
    must_save: bool = False
    stuck: str = ""


@dataclass(frozen=True, eq=False)
class LintContext:
    """A graph, an affinity, the ops that each device can run (``able``), and perhaps costs."""

    graph: OpGraph
    affinity: Affinity
    able: Mapping[str, frozenset[str]]
    costs: CostModel | None = None

    @cached_property
    def evaluation(self) -> Any:
        """The predicted latency by part; only with costs."""
        assert self.costs is not None
        return self.costs.explain(self.affinity)

    @cached_property
    def partition(self) -> Partition:
        return self.evaluation.partition if self.costs else predict(self.graph, self.affinity)

    @cached_property
    def predictor(self) -> Predictor | None:
        """The predicted latency as a whole; None without costs."""
        return self.costs.predictor(self.affinity) if self.costs else None

    @cached_property
    def ids(self) -> np.ndarray:
        """The number of the subgraph of each node; numbers are in no order."""
        if self.predictor is not None:
            return self.predictor.evaluation.ids
        number = {device: n for n, device in enumerate(self.device_names)}
        devices = np.array([number[self.affinity[op.name]] for op in self.graph])
        return SubgraphCollector.of(self.graph).split(devices)[1]

    @cached_property
    def counts(self) -> tuple[int, int]:
        """How many subgraphs and boundaries there are."""
        top = topology(self.graph)
        crossing = top.crossing(self.ids)
        return len(top.compiled(self.ids, crossing)), len(np.unique(top.tensor[crossing]))

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.able, *self.affinity.devices]))

    @cached_property
    def device_of(self) -> tuple[str, ...]:
        """The device of each node; a result is where its producer is."""
        return tuple(devices_of(self.graph, self.affinity))

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        index_of = self.graph.index_of
        return tuple(tuple(index_of[op] for op in s.ops) for s in self.partition.subgraphs)

    def subgraphs(self) -> Iterator[tuple[Subgraph, tuple[int, ...], list[Boundary]]]:
        """Yield each subgraph with its placeable ops and the boundaries on either side of it."""
        beside = grouped((i, b) for b in self.partition.boundaries for i in (b.source, *b.targets))
        for subgraph, nodes in zip(self.partition.subgraphs, self.members, strict=True):
            yield subgraph, nodes, beside.get(subgraph.index, [])

    def bytes_with(self, subgraph: int, boundaries: Iterable[Boundary]) -> Counter[str]:
        """Return the bytes that a subgraph exchanges with others, by their device."""
        exchanged = Counter[str]()
        for boundary in boundaries:
            others = boundary.targets if boundary.source == subgraph else (boundary.source,)
            for other in others:
                exchanged[self.partition.subgraphs[other].device] += boundary.n_bytes or 0
        return exchanged

    @cached_property
    def overhead_us(self) -> tuple[float, ...]:
        """For each subgraph, its fixed cost with that of its boundaries and of lost fusion."""
        where, index_of = self.partition.home, self.graph.index_of
        total = [share.us for share in self.evaluation.of("subgraphs")]
        for share in self.evaluation.of("boundaries"):
            for number in share.numbers:
                total[number] += share.us
        for share in self.evaluation.of("lost fusion"):
            for op in share.ops:
                total[where[index_of[op]]] += share.us
        return tuple(total)

    def weight(self, subgraphs: Iterable[int], n_bytes: int) -> float:
        """Return the overhead of subgraphs in µs; without costs, the bytes that they exchange."""
        if self.costs is None:
            return float(n_bytes)
        return sum(self.overhead_us[subgraph] for subgraph in set(subgraphs))

    @cached_property
    def is_placeable(self) -> np.ndarray:
        """For each node, whether its device can be chosen."""
        flags = np.zeros(len(self.graph), dtype=bool)
        flags[list(self.graph.placeable)] = True
        return flags

    @cached_property
    def _bundles(self) -> dict[int, tuple[int, ...]]:
        """For each op that can be moved, all ops that have to move with it.

        These are the ops of one leader and of one state; a set with an op whose device is decided
        by an input or constant cannot be moved.
        """
        group = DisjointSet(self.graph.placeable)
        # An affinity from a file may name other leaders than the graph does.
        index_of = self.graph.index_of
        ties = [(index_of[node.name], index_of[node.leader]) for node in self.affinity.nodes]
        ties += [(path[0], other) for path in self.graph.stateful_paths for other in path]
        for first, second in ties:
            if first in group and second in group:
                group.merge(first, second)
        free = set(self.affinity.ops)
        bundles: dict[int, tuple[int, ...]] = {}
        for nodes in group.subsets():
            if all(self.graph.ops[index].name in free for index in nodes):
                bundles.update(dict.fromkeys(nodes, tuple(sorted(nodes))))
        return bundles

    def move(self, nodes: Collection[int], device: str) -> dict[str, str]:
        """Return the remedy that moves ops to a device; empty if there is none."""
        if not self._bundles.keys() >= {*nodes}:
            return {}
        every = {index for node in nodes for index in self._bundles[node]}
        names = [self.graph.ops[index].name for index in sorted(every)]
        if not self.able.get(device, frozenset()).issuperset(names):
            return {}
        return {name: device for name in names if self.affinity[name] != device}

    def moves(self, nodes: Collection[int], devices: Iterable[str]) -> tuple[dict[str, str], ...]:
        """Return the remedies that move ops to one of the devices."""
        options = (self.move(nodes, device) for device in dict.fromkeys(devices))
        return tuple(filter(None, options))

    def after(self, remedy: Mapping[str, str]) -> LintContext:
        """Return the context of ``affinity.fix(ops=remedy)``, without asking the runtime."""
        nodes = self.affinity.nodes
        devices = {node.leader: self.affinity[node.leader] for node in nodes}
        devices |= {node.leader: remedy[node.name] for node in nodes if node.name in remedy}
        return replace(self, affinity=Affinity(nodes, devices))

    def merged(self, nodes: Sequence[int]) -> Gone:
        """Return a test whether some ops no longer form a separate subgraph."""
        placeable = np.array(self.graph.placeable)
        return lambda ids: placeable[ids[placeable] == ids[nodes[0]]].tolist() != sorted(nodes)

    def names(self, nodes: Iterable[int]) -> str:
        """List ops for a sentence, the first few of them."""
        return names_at_hand((self.graph.ops[index].name for index in nodes), _NAMED)

    def copies(self, subgraph: int) -> tuple[int, ...]:
        """Return the inputs and constants that a subgraph without ops consists of."""
        return tuple(
            op.index
            for op in self.graph
            if self.partition.home[op.index] == subgraph
            and (op.type in (PARAMETER, CONSTANT) or op.index in self.graph.constant_side)
        )


def together(nodes: Sequence[int]) -> Gone:
    """Return a test whether some ops share one subgraph."""
    return lambda ids: bool((ids[[*nodes]] == ids[nodes[0]]).all())
