"""Ways around wrong ops: which of them move, and the cheapest way with right outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.debug.wrong_sets import WrongSetSearch
from hetero_lab.errors import HeteroLabError, PlanError
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import Placement
from hetero_lab.placement.topology import topology
from hetero_lab.planning.constraints import only
from hetero_lab.planning.planner import plan_graph

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
_MOST_WAYS_OUT = 8  # run at most
_MOST_CHOICES = 256  # priced at most
_MOST_WIDENED = 10  # without costs, one in so many ops may move along
_PLAN_S = 5.0


@dataclass(frozen=True)
class Way:
    """A placement around the fault; ``after`` is the error of its outputs, NaN if not run."""

    placement: Placement
    after: float
    right: bool


class WaysAround:
    """Finds a way around the wrong sets; ``ways`` holds those that ran, ``way`` the last one."""

    def __init__(self, sets: WrongSetSearch, costs: CostModel | None):
        self.sets, self.found, self.costs = sets, sets.found, costs
        self.expected, self.runs, self.graph = sets.expected, sets.runs, sets.graph
        self.members, self.given = sets.members, sets.given
        self.ways: dict[Affinity, Way] = {}
        self.way: Way | None = None

    def way_out(self) -> Way:
        """Run ways around the fault, the cheapest first, until one is right.

        If none is, return the last, which moves all ops known to be wrong.
        """
        for affinity in self._ways_out():
            if affinity not in self.ways:
                self.ways[affinity] = self._run_way(self._mended(affinity))
            if self.ways[affinity].right:
                break
        self.way = self.ways[affinity]
        return self.way

    def _run_way(self, placement: Placement) -> Way:
        self.expected.check_budget()
        try:
            outputs, _ = self.runs.placed(placement)
        except HeteroLabError as error:
            self.expected.notes.append(f"A way around the fault does not run: {error}")
            return Way(placement, float("nan"), right=False)
        return Way(
            placement,
            self.expected.error(outputs),
            right=all(self.expected.explained(outputs, placement)),
        )

    def best_way(self) -> Way:
        """Return a way that is or may be right; the last resort is the trusted device alone."""
        if self.way is not None and self.way.right:
            return self.way
        if self.expected.stuck:
            return Way(self.given, self.expected.before, right=False)
        whole = self.moves_all()
        if self.found and whole not in self.ways:
            return Way(self._mended(whole), float("nan"), right=False)
        if self.expected.right is None or (self.expected.random and self.expected.right):
            return Way(self.given, self.expected.before, right=False)  # it may be right
        # This is how the reference was made, so it was run.
        placement = replace(self.runs.reference, label=f"{self.given.label} mended")
        compared = self.expected.compared(self.expected.trusted_outputs)
        right = all(error <= self.expected.thresholds[key] for key, *_, error in compared)
        after = self.expected.error(self.expected.trusted_outputs)
        return Way(placement, after, right=bool(compared) and right)

    def _ways_out(self) -> list[Affinity]:
        """Return affinities that break up every set, the cheapest first, and one that moves all."""
        whole = self.moves_all()
        options = [[op for op in found.ops if op in self.members] for found in self.found]
        if math.prod(map(len, options)) > _MOST_CHOICES:
            return [whole]
        ways = {self._moved(choice): None for choice in itertools.product(*options)}
        ways.pop(whole, None)
        ranked = sorted(ways, key=self._price)[:_MOST_WAYS_OUT]
        ranked.append(whole)
        widened = self._widened(ranked[0])
        if widened is not None and self._price(widened) < self._price(ranked[0]):
            ranked.insert(0, widened)
        return ranked

    def _widened(self, affinity: Affinity) -> Affinity | None:
        """Return the cheapest known affinity that moves more ops than this one."""
        if self.costs is None:
            return self._with_neighbours(affinity)
        given = self.given.affinity
        pins = {only([op]): affinity[op] for op in given.ops if affinity[op] != given[op]}
        try:
            return plan_graph(self.graph, self.costs, pin=pins, budget_s=_PLAN_S).affinity
        except PlanError:
            return None

    def _with_neighbours(self, affinity: Affinity) -> Affinity:
        """Move more ops to the trusted device as long as that lowers the price.

        Each step makes the cheapest of these moves: an op beside one that has moved, or a whole
        subgraph that is cut off from the rest.
        """
        most = self.n_moved(affinity) + len(self.expected.suspects) // _MOST_WIDENED
        best, price = affinity, self._price(affinity)
        while True:
            beside = self._beside(best, most - self.n_moved(best))
            wider = dict.fromkeys(self._moved(ops, best) for ops in beside)
            prices = {each: self._price(each) for each in wider if self.n_moved(each) <= most}
            cheapest = min(prices, key=prices.__getitem__, default=best)
            if not prices or prices[cheapest] >= price:
                return best
            best, price = cheapest, prices[cheapest]

    def _beside(self, affinity: Affinity, most: int) -> Iterator[tuple[str, ...]]:
        """Yield single ops beside those that have moved, and small subgraphs elsewhere."""
        if most < 1:
            return
        graph, trusted = self.graph, self.runs.trusted
        placeable = [graph.ops[index] for index in graph.placeable]
        free = {op.name for op in placeable if affinity[op.name] != trusted}
        beside: dict[str, None] = {}
        for op in placeable:
            if affinity[op.name] != self.given.affinity[op.name]:
                near = topology(graph).around[op.index]
                beside.update((graph.ops[index].name, None) for _, index in near)
        yield from ((name,) for name in beside if name in free)
        for subgraph in predict(graph, affinity).subgraphs:
            if subgraph.device != trusted and 1 < len(subgraph.ops) <= most:
                yield subgraph.ops

    def _price(self, affinity: Affinity) -> tuple[float, ...]:
        """Return the predicted latency; without costs: subgraphs, boundary bytes, moved ops."""
        if self.costs is not None:
            return (self.costs.predict_us(affinity),)
        partition = predict(self.graph, affinity)
        return partition.n_subgraphs, partition.boundary_bytes, self.n_moved(affinity)

    def n_moved(self, affinity: Affinity) -> int:
        """Count the ops that are on another device than in the given placement."""
        given = self.given.affinity
        return sum(affinity[op] != given[op] for op in given.ops)

    def moves_all(self) -> Affinity:
        """Move all ops that are known to be wrong."""
        return self._moved(op for found in self.found for op in found.ops)

    def _moved(self, ops: Iterable[str], affinity: Affinity | None = None) -> Affinity:
        moves = dict.fromkeys(ops, self.runs.trusted)
        return (affinity or self.given.affinity).fix(ops=moves, core=self.runs.core)

    def _mended(self, affinity: Affinity) -> Placement:
        properties: dict[str, Mapping[str, Any]] = dict(self.given.device_properties)
        trusted = self.runs.trusted
        properties[trusted] = {**properties.get(trusted, {}), **F32}
        return replace(
            self.given,
            affinity=affinity,
            label=f"{self.given.label} mended",
            device_properties=properties,
            direct=self.given.direct and len(affinity.devices) == 1,
        )
