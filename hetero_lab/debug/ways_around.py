"""Ways around wrong ops: which of them move, and the cheapest way with right outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.debug.wrong import F32
from hetero_lab.debug.wrong_sets import WrongSetSearch
from hetero_lab.errors import HeteroLabError, PlanError
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import Placement
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.problem import only

_MOST_WAYS_OUT = 8  # run at most: a compile each
_MOST_CHOICES = 256  # priced at most, which takes milliseconds each: eight pairs have so many
_MOST_WIDENED = 10  # without costs, one in so many ops may move along
_PLAN_S = 5.0  # a way around need not be the best one


@dataclass(frozen=True)
class WayOut:
    """A placement around the fault; ``after`` is the error of its outputs, NaN if not run."""

    placement: Placement
    after: float
    right: bool


class WaysAround:
    """Finds a way around the wrong sets; ``ways`` holds those that ran, ``way`` the last one."""

    def __init__(self, search: WrongSetSearch, costs: CostModel | None):
        self.search, self.costs = search, costs
        self.expected, self.runs, self.graph = search.expected, search.runs, search.expected.graph
        self.given = self.expected.placement
        self.ways: dict[Affinity, WayOut] = {}
        self.way: WayOut | None = None

    def way_out(self) -> WayOut:
        """Run ways around the fault, the cheapest first, until one is right.

        If none is, return the last, which moves all ops known to be wrong.
        """
        for affinity in self._ways_out():
            if affinity not in self.ways:
                self.ways[affinity] = self._run_way(self._mended(affinity))
            self.way = self.ways[affinity]
            if self.way.right:
                break
        assert self.way is not None
        return self.way

    def _run_way(self, placement: Placement) -> WayOut:
        self.expected.check_budget()
        try:
            outputs, _ = self.runs.run(placement)
        except HeteroLabError as error:
            self.expected.notes.append(f"A way around the fault does not run: {error}")
            return WayOut(placement, float("nan"), right=False)
        right = all(self.expected.explained(outputs, placement))
        return WayOut(placement, self.expected.error(outputs), right)

    def best_way(self) -> WayOut:
        """Return a way that is or may be right; the last resort is the trusted device alone."""
        expected = self.expected
        if self.way is not None and self.way.right:
            return self.way
        as_it_is = WayOut(self.given, expected.before, right=False)
        if expected.stuck:
            return as_it_is
        if self.search.sets and (whole := self.moves_all()) not in self.ways:
            return WayOut(self._mended(whole), float("nan"), right=False)
        if expected.right is None or (expected.random and expected.right):
            return as_it_is  # it may be right
        # This is how the reference was made, so it was run.
        placement = replace(self.runs.reference, label=f"{self.given.label} mended")
        errors = expected.errors(expected.trusted_outputs)
        right = all(error <= expected.thresholds[key] for key, error in errors)
        after = expected.error(expected.trusted_outputs)
        return WayOut(placement, after, right=bool(errors) and right)

    def _ways_out(self) -> list[Affinity]:
        """Return affinities that break up every set, the cheapest first, and one that moves all."""
        whole, leaders = self.moves_all(), self.expected.members
        options = [[op for op in each.ops if op in leaders] for each in self.search.sets]
        if math.prod(map(len, options)) > _MOST_CHOICES:
            return [whole]
        ways = dict.fromkeys(self._moved(choice) for choice in itertools.product(*options))
        ways.pop(whole, None)
        ranked = [*sorted(ways, key=self._price)[:_MOST_WAYS_OUT], whole]
        widened = self._widened(ranked[0])
        if widened is not None and self._price(widened) < self._price(ranked[0]):
            ranked.insert(0, widened)
        return ranked

    def _widened(self, affinity: Affinity) -> Affinity | None:
        """Return the cheapest known affinity that moves more ops than this one."""
        if self.costs is None:
            return self._with_neighbours(affinity)
        pins = {only([op]): affinity[op] for op in self._differing(affinity)}
        try:
            return plan_graph(self.graph, self.costs, pin=pins, budget_s=_PLAN_S).affinity
        except PlanError:
            return None

    def _with_neighbours(self, affinity: Affinity) -> Affinity:
        """Move more ops to the trusted device as long as that lowers the price, the best first."""
        most = self.n_moved(affinity) + len(self.expected.suspects) // _MOST_WIDENED
        while True:
            wider = dict.fromkeys(self._moved(ops, affinity) for ops in self._beside(affinity))
            allowed = [other for other in wider if self.n_moved(other) <= most]
            cheapest = min([affinity, *allowed], key=self._price)  # of equal ones, the first
            if cheapest is affinity:
                return affinity
            affinity = cheapest

    def _beside(self, affinity: Affinity) -> Iterator[tuple[str, ...]]:
        """Yield single ops beside those that have moved, then whole subgraphs."""
        index_of = self.graph.index_of
        for op in self._differing(affinity):
            near = (self.graph.ops[index].name for index in self.graph.neighbours(index_of[op]))
            yield from ((name,) for name in near if name in self.expected.placeable)
        yield from (subgraph.ops for subgraph in predict(self.graph, affinity).subgraphs)

    def _price(self, affinity: Affinity) -> tuple[float, ...]:
        """Return the predicted latency; without costs: subgraphs, boundary bytes, moved ops."""
        if self.costs is not None:
            return (self.costs.predict_us(affinity),)
        partition = predict(self.graph, affinity)
        return partition.n_subgraphs, partition.boundary_bytes, self.n_moved(affinity)

    def _differing(self, affinity: Affinity) -> list[str]:
        before = self.given.affinity
        return [op for op in before.ops if affinity[op] != before[op]]

    def n_moved(self, affinity: Affinity) -> int:
        return len(self._differing(affinity))

    def moves_all(self) -> Affinity:
        """Move all ops that are known to be wrong."""
        return self._moved(op for each in self.search.sets for op in each.ops)

    def _moved(self, ops: Iterable[str], affinity: Affinity | None = None) -> Affinity:
        moves = dict.fromkeys(ops, self.runs.trusted)
        return (affinity or self.given.affinity).fix(ops=moves, core=self.runs.core)

    def _mended(self, affinity: Affinity) -> Placement:
        mended = replace(
            self.given,
            affinity=affinity,
            label=f"{self.given.label} mended",
            direct=self.given.direct and len(affinity.devices) == 1,
        )
        return mended.with_properties({self.runs.trusted: F32})
