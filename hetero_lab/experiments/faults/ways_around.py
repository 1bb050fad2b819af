"""Ways around ops that are wrong: which of them move, and the cheapest that is right."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import HeteroLabError, PlanError
from hetero_lab.experiments.faults.wrong_sets import WrongSetSearch
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import Placement
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.planner import plan_graph

if TYPE_CHECKING:
    import openvino as ov

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
_MOST_WAYS_OUT = 8  # that are run
_MOST_CHOICES = 256  # that are priced
_MOST_WIDENED = 10  # one in so many ops may move along, where nothing is known of their times
_PLAN_S = 5.0


@dataclass(frozen=True)
class Way:
    """A placement around the fault: how far its outputs are off, NaN if it was not run."""

    placement: Placement
    after: float
    right: bool


class WaysAround:
    """Ways around the sets that were found: those that were run, and the last choice."""

    def __init__(self, sets: WrongSetSearch, costs: CostModel | None):
        self.sets, self.found, self.costs = sets, sets.found, costs
        self.expected, self.runs, self.graph = sets.expected, sets.runs, sets.graph
        self.members, self.given = sets.members, sets.given
        self.ways: dict[Affinity, Way] = {}
        self.way: Way | None = None

    def way_out(self) -> Way:
        """Run the ways around the fault, the cheapest first; return the first that is right.

        Where none is, return the last, in which all that is known to be wrong has moved.
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
            right=self.expected.is_right(outputs, placement),
        )

    def best_way(self) -> Way:
        """Return the way around that is right, or may be; in the end, all on the trusted device."""
        if self.way is not None and self.way.right:
            return self.way
        whole = self.moves_all()
        if self.found and whole not in self.ways:
            return Way(self._mended(whole), float("nan"), right=False)
        if self.expected.right is None or (self.expected.random and self.expected.right):
            return Way(self.given, self.expected.before, right=False)  # it may be right
        # The reference was made in this way, so it was run.
        trusted = self.runs.trusted
        placement = Placement(
            Affinity.on_one(self.graph, trusted),
            f"{self.given.label} mended",
            {trusted: F32},
            True,
        )
        compared = self.expected.compared(self.expected.trusted_outputs)
        right = all(error <= self.expected.thresholds[key] for key, *_, error in compared)
        return Way(
            placement,
            self.expected.error(self.expected.trusted_outputs),
            right=bool(compared) and right,
        )

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
        """Return a cheaper affinity in which more moves than in this one, if one is known."""
        if self.costs is not None:
            return self._planned(affinity, self.costs)
        given = self.given.affinity
        most = n_moved(affinity, given) + len(self.expected.suspects) // _MOST_WIDENED
        return widened(self.graph, affinity, given, self.runs.trusted, most, self.runs.core)

    def _planned(self, affinity: Affinity, costs: CostModel) -> Affinity | None:
        """Return the best plan that keeps the ops that moved in ``affinity`` where they are."""
        given = self.given.affinity
        pins = {
            rf"\A{re.escape(op)}\Z": affinity[op] for op in given.ops if affinity[op] != given[op]
        }
        try:
            return plan_graph(self.graph, costs, pin=pins, budget_s=_PLAN_S).affinity
        except PlanError:
            return None

    def _price(self, affinity: Affinity) -> tuple[float, ...]:
        if self.costs is not None:
            return (self.costs.predict_us(affinity),)
        return price_without_costs(self.graph, affinity, self.given.affinity)

    def moves_all(self) -> Affinity:
        return self._moved(op for found in self.found for op in found.ops)

    def _moved(self, ops: Iterable[str]) -> Affinity:
        moves = dict.fromkeys(ops, self.runs.trusted)
        return self.given.affinity.fix(ops=moves, core=self.runs.core)

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


def n_moved(affinity: Affinity, given: Affinity) -> int:
    """Count the ops that are elsewhere than in the given affinity."""
    return sum(affinity[op] != given[op] for op in given.ops)


def price_without_costs(
    graph: OpGraph, affinity: Affinity, given: Affinity
) -> tuple[int, int, int]:
    """Return the number of subgraphs, the bytes at their boundaries, and the ops that moved."""
    partition = predict(graph, affinity)
    return partition.n_subgraphs, partition.boundary_bytes, n_moved(affinity, given)


def widened(
    graph: OpGraph,
    affinity: Affinity,
    given: Affinity,
    target: str,
    most_moved: int,
    core: ov.Core,
) -> Affinity:
    """Move more ops to a device as long as that lowers the price.

    In each step the cheapest of these moves: an op beside one that has moved, or a whole subgraph
    that is cut off from the rest.

    Parameters
    ----------
    affinity
        One in which all ops that have to move have moved.
    given
        The affinity in question.
    target
        The device that ops move to.
    most_moved
        The ops that may move, with those that have.
    """
    best, price = affinity, price_without_costs(graph, affinity, given)
    while True:
        wider = {
            best.fix(ops=dict.fromkeys(ops, target), core=core): None
            for ops in _beside(graph, best, given, target, most_moved - price[2])
        }
        priced = [(price_without_costs(graph, each, given), each) for each in wider]
        priced = [each for each in priced if each[0][2] <= most_moved and each[0] < price]
        if not priced:
            return best
        price, best = min(priced, key=lambda each: each[0])


def _beside(
    graph: OpGraph, affinity: Affinity, given: Affinity, target: str, most: int
) -> Iterator[tuple[str, ...]]:
    """Return single ops beside those that have moved, and small subgraphs elsewhere."""
    placeable = [graph.ops[index] for index in graph.placeable]
    free = {op.name for op in placeable if affinity[op.name] != target}
    beside: dict[str, None] = {}
    for op in placeable:
        if affinity[op.name] != given[op.name]:
            near = [producer for producer, _ in op.inputs]
            near += [use.index for use in graph.consumers[op.index]]
            beside.update((graph.ops[index].name, None) for index in near)
    if most < 1:
        return
    yield from ((name,) for name in beside if name in free)
    for subgraph in predict(graph, affinity).subgraphs:
        if subgraph.device != target and 1 < len(subgraph.ops) <= most:
            yield subgraph.ops
