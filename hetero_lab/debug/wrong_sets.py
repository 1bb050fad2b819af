"""The search for sets of ops that are wrong by themselves or together, and ways around them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.debug.expected import Expected, SetResult
from hetero_lab.debug.minimal_sets import disjoint_sets, overlapping_sets
from hetero_lab.debug.wrong import F32, WrongSet
from hetero_lab.errors import CompileError, HeteroLabError, PlanError, names_at_hand
from hetero_lab.model.opgraph import grouped
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import partition_of, predict
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.problem import only
from hetero_lab.runtime.pieces import cut_pieces

# Ops. Stretches of so many, and those shifted by half of it, hold any eight neighbours together.
_WINDOW = 16
# Compiles that look for sets that share ops with others: all ways to leave out an op of six pairs.
_MOST_OVERLAPS = 64
_MOST_WAYS_OUT = 8  # run at most: a compile each
_MOST_CHOICES = 256  # priced at most, which takes milliseconds each: eight pairs have so many
_MOST_WIDENED = 10  # without costs, one in so many ops may move along
_PLAN_S = 5.0  # a way around need not be the best one


class _EnoughError(Exception):
    """More combinations are not searched for."""


class WrongSetSearch:
    """Runs sets of ops by themselves and keeps those that are wrong."""

    def __init__(self, expected: Expected):
        self.expected, self.runs, self.members = expected, expected.runs, expected.members
        self.trials: dict[tuple[str, frozenset[str]], SetResult] = {}
        self.isolated: dict[str, SetResult] = {}  # by leader, with the ops that move with it
        self.sets: list[WrongSet] = []
        # Wrong subgraphs: device, leaders that are right by themselves, and disjoint wrong sets.
        self._subgraphs: list[tuple[str, list[str], list[list[str]]]] = []

    def _with_members(self, leaders: Iterable[str]) -> frozenset[str]:
        return frozenset(member for leader in leaders for member in self.members[leader])

    def _trial(self, device: str, leaders: Iterable[str]) -> SetResult:
        """Return the result of running some ops by themselves, once."""
        ops = self._with_members(leaders)
        if (device, ops) not in self.trials:
            self._run(device, [ops])
        return self.trials[device, ops]

    def _run(self, device: str, sets: Sequence[frozenset[str]]) -> list[SetResult]:
        """Run disjoint sets in one compile, or in several if the device refuses them together."""
        self.expected.check_budget()
        try:
            tensors = self.runs.pieces(device, sets, self.expected.values)
        except CompileError as error:
            self.expected.check_budget()  # the device may only have been too slow
            if len(sets) > 1:
                half = len(sets) // 2
                return [*self._run(device, sets[:half]), *self._run(device, sets[half:])]
            results = [self._refused(device, sets[0], str(error))]
        else:
            results = list(map(self.expected.judged, sets, tensors))
        self.trials.update(zip(((device, ops) for ops in sets), results, strict=True))
        return results

    def _refused(self, device: str, ops: frozenset[str], error: str) -> SetResult:
        """Judge a refusal: the fault itself if the placement is refused, else of the cut."""
        if self.expected.refused:
            return SetResult(True, math.inf, math.inf, error)
        names = names_at_hand(self.expected.ordered(ops))
        self.expected.notes.append(
            f"{device} refuses to run {names} apart from the rest, so they could not be tested: "
            f"{error}"
        )
        return SetResult(False, math.nan, math.nan, error)

    def unrun(self) -> set[str]:
        """Return the suspects that did not run by themselves."""
        ran = [leader for leader, trial in self.isolated.items() if not trial.refusal]
        return set(self.expected.suspects) - self._with_members(ran)

    def could_all_run(self) -> bool:
        """Tell whether every suspect, and every set that was tried, ran or is known to be wrong."""
        untested = any(trial.refusal and not trial.wrong for trial in self.trials.values())
        return not untested and not self.unrun()

    def _keep(
        self, device: str, ops: Iterable[str], *, minimal: bool, untried: Collection[str] = ()
    ) -> None:
        """Keep a wrong set, cut out of the model, unless it is there already."""
        trial, names = self.trials[device, frozenset(ops)], self.expected.ordered(ops)
        if any((device, names) == (other.device, other.ops) for other in self.sets):
            return
        values = self.expected.values
        model, inputs, outputs = cut_pieces(self.runs.bound, [names], values)
        self.sets.append(
            WrongSet(
                device=device,
                ops=names,
                error=trial.error,
                damage=trial.damage,
                minimal=minimal,
                model=model,
                inputs=tuple(values[key] for key in inputs),
                makers=tuple(op for _, (op, _) in outputs),
                untried=self.expected.ordered(untried),
                refusal=trial.refusal,
            )
        )

    def keep_unshrunk(self) -> None:
        """Keep the smallest disjoint wrong sets, of ops that also ran one by one."""
        taken = {op for each in self.sets for op in each.ops}
        alone = self._with_members(self.isolated)
        for (device, ops), trial in sorted(self.trials.items(), key=lambda item: len(item[0][1])):
            single = sum(op in self.members for op in ops) == 1
            if trial.wrong and (single or ops <= alone) and taken.isdisjoint(ops):
                self._keep(device, ops, minimal=single)
                taken |= ops

    def find_in(self, placement: Placement) -> None:
        suspects = self.expected.kept_in(placement, self.expected.suspects)
        self._run_isolated(suspects)
        alone = self._with_members(
            leader for leader, trial in self.isolated.items() if trial.wrong and leader in suspects
        )
        subgraphs = partition_of(BoundPlacement(self.runs.bound, placement)).subgraphs
        rests = grouped(
            (s.device, frozenset(suspects.keys() & {*s.ops} - alone)) for s in subgraphs
        )
        for device, sets in rests.items():
            if untried := [ops for ops in sets if ops and (device, ops) not in self.trials]:
                self._run(device, untried)
            for ops in sets:
                leaders = [leader for leader in self.members if leader in ops]
                self._find_combinations(device, leaders)

    def _run_isolated(self, suspects: Collection[str]) -> None:
        affinity = self.expected.placement.affinity
        by_device = grouped(
            (affinity[leader], leader)
            for leader, members in self.members.items()
            if leader not in self.isolated and all(op in suspects for op in members)
        )
        for device, leaders in by_device.items():
            sets = [frozenset(self.members[leader]) for leader in leaders]
            trials = self._run(device, sets)
            self.isolated.update(zip(leaders, trials, strict=True))
            for ops in (ops for ops, trial in zip(sets, trials, strict=True) if trial.wrong):
                self._keep(device, ops, minimal=True)

    def _find_combinations(self, device: str, leaders: list[str]) -> None:
        """Keep minimal sets of a subgraph's ops that are wrong together and share no op."""
        is_wrong = partial(self._is_wrong, device)
        if leaders and is_wrong(leaders):
            disjoint: list[list[str]] = []
            self._subgraphs.append((device, leaders, disjoint))
            for chosen in disjoint_sets(leaders, is_wrong, self._wrong_windows(device, leaders)):
                self._keep_shrunk(device, chosen)
                disjoint.append(chosen)

    def _is_wrong(self, device: str, leaders: Iterable[str]) -> bool:
        return self._trial(device, leaders).wrong

    def find_overlapping(self) -> None:
        """Keep further minimal sets, which share ops with those of their subgraph."""
        most = self.runs.n_compiles + _MOST_OVERLAPS

        def check() -> None:
            self.expected.check_budget()
            if self.runs.n_compiles >= most:
                raise _EnoughError

        try:
            for device, leaders, disjoint in self._subgraphs:
                is_wrong = partial(self._is_wrong, device)
                for chosen in overlapping_sets(leaders, disjoint, is_wrong, check):
                    self._keep_shrunk(device, chosen)
        except _EnoughError:
            self.expected.notes.append(
                "More combinations that share ops with the known ones may be wrong."
            )

    def _keep_shrunk(self, device: str, chosen: Sequence[str]) -> None:
        """Keep a minimal set of wrong ops; say which are only there for the rest to run at all."""
        rests = {
            leader: self._trial(device, [each for each in chosen if each != leader])
            for leader in chosen
            if len(chosen) > 1
        }
        untried = [leader for leader, rest in rests.items() if rest.refusal and not rest.wrong]
        self._keep(
            device,
            self._with_members(chosen),
            minimal=not untried and not any(rest.wrong for rest in rests.values()),
            untried=self._with_members(untried),
        )

    def _wrong_windows(self, device: str, leaders: list[str]) -> list[list[str]]:
        """Run overlapping stretches of the model side by side; return the wrong ones.

        A device fuses neighbours, so this mostly replaces a bisection of the whole model. It also
        shows errors that are smaller than the rounding of the whole model.
        """
        wrong: list[list[str]] = []
        for offset in (0, _WINDOW // 2):
            starts = [0, *range(offset or _WINDOW, len(leaders), _WINDOW), len(leaders)]
            windows = [leaders[a:b] for a, b in itertools.pairwise(starts)]
            if len(windows) == 1:
                break
            trials = self._run(device, list(map(self._with_members, windows)))
            wrong += [window for window, trial in zip(windows, trials, strict=True) if trial.wrong]
        return wrong


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
            return WayOut(placement, math.nan, right=False)
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
            return WayOut(self._mended(whole), math.nan, right=False)
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
