"""The search for sets of ops that are wrong by themselves, or only together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

from hetero_lab.debug.expected import Expected, SetResult
from hetero_lab.debug.minimal_sets import disjoint_sets, hitting_sets, minimal_set
from hetero_lab.debug.wrong import WrongSet
from hetero_lab.errors import CompileError, names_at_hand
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.placement.topology import topology
from hetero_lab.runtime.pieces import cut_pieces

# Ops. Stretches of so many, and those shifted by half of it, hold any eight neighbours together.
_WINDOW = 16
# Runs that look for sets that share ops with others: all ways to leave out an op of six pairs.
_MOST_OVERLAPS = 64


class WrongSetSearch:
    """Runs sets of ops by themselves and keeps those that are wrong."""

    def __init__(self, expected: Expected):
        self.expected, self.runs, self.graph = expected, expected.runs, expected.graph
        self.members = expected.members
        self.trials: dict[tuple[str, frozenset[str]], SetResult] = {}
        self.isolated: dict[str, SetResult] = {}  # by leader, with the ops that move with it
        self.sets: list[WrongSet] = []
        # Wrong subgraphs: device, and leaders except those that are wrong by themselves.
        self.subgraphs: list[tuple[str, list[str]]] = []

    def _with_members(self, leaders: Iterable[str]) -> frozenset[str]:
        return frozenset(member for leader in leaders for member in self.members[leader])

    def trial(self, device: str, leaders: Iterable[str]) -> SetResult:
        """Return the result of running some ops by themselves; the device runs them once."""
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
            self.trials[device, sets[0]] = self._refused(device, sets[0], str(error))
        else:
            for ops, values in zip(sets, tensors, strict=True):
                self.trials[device, ops] = self.expected.judged(ops, values)
        return [self.trials[device, ops] for ops in sets]

    def _refused(self, device: str, ops: frozenset[str], error: str) -> SetResult:
        """Judge a refusal: the fault itself if the placement is refused, else of the cut."""
        if self.expected.refused:
            return SetResult(True, float("inf"), float("inf"), error)
        names = names_at_hand(self.expected.ordered(ops))
        self.expected.notes.append(
            f"{device} refuses to run {names} apart from the rest, so they could not be tested: "
            f"{error}"
        )
        return SetResult(False, float("nan"), float("nan"), error)

    def unrun(self) -> set[str]:
        """Return the suspects that did not run by themselves."""
        ran = [leader for leader, trial in self.isolated.items() if not trial.refusal]
        return set(self.expected.suspects) - self._with_members(ran)

    def could_all_run(self) -> bool:
        untested = any(trial.refusal and not trial.wrong for trial in self.trials.values())
        return not untested and not self.unrun()

    def _keep(
        self,
        device: str,
        ops: Iterable[str],
        trial: SetResult,
        *,
        minimal: bool,
        untried: Collection[str] = (),
    ) -> None:
        """Keep a wrong set, cut out of the model, unless it is there already."""
        names = self.expected.ordered(ops)
        if any((device, names) == (other.device, other.ops) for other in self.sets):
            return
        values = self.expected.values
        piece = cut_pieces(self.runs.bound, [names], values)
        self.sets.append(
            WrongSet(
                device=device,
                ops=names,
                error=trial.error,
                damage=trial.damage,
                minimal=minimal,
                model=piece.model,
                inputs=tuple(values[key] for key in piece.inputs),
                makers=tuple(op for _, (op, _) in piece.outputs),
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
                self._keep(device, ops, trial, minimal=single)
                taken |= ops

    def find_in(self, placement: Placement) -> None:
        """Find the sets of ops that are wrong in a placement."""
        suspects = self.expected.kept_in(placement, self.expected.suspects)
        self._run_isolated(suspects)
        alone = self._with_members(
            leader for leader, trial in self.isolated.items() if trial.wrong and leader in suspects
        )
        rests: dict[str, list[frozenset[str]]] = {}
        for subgraph in partition_of(BoundPlacement(self.runs.bound, placement)).subgraphs:
            ops = suspects.keys() & subgraph.ops
            rests.setdefault(subgraph.device, []).append(frozenset(ops - alone))
        for device, sets in rests.items():
            untried = [ops for ops in sets if ops and (device, ops) not in self.trials]
            if untried:
                self._run(device, untried)
            for ops in sets:
                self._find_combinations(device, ops)

    def _run_isolated(self, suspects: Collection[str]) -> None:
        """Run each op by itself, and keep those that are wrong."""
        by_device: dict[str, list[str]] = {}
        for leader, members in self.members.items():
            if leader not in self.isolated and all(op in suspects for op in members):
                device = self.expected.placement.affinity[leader]
                by_device.setdefault(device, []).append(leader)
        for device, leaders in by_device.items():
            sets = [frozenset(self.members[leader]) for leader in leaders]
            trials = self._run(device, sets)
            self.isolated.update(zip(leaders, trials, strict=True))
            for ops, trial in zip(sets, trials, strict=True):
                if trial.wrong:
                    self._keep(device, ops, trial, minimal=True)

    def _find_combinations(self, device: str, ops: frozenset[str]) -> None:
        """Keep minimal sets of a subgraph's ops that are wrong together."""
        leaders = [leader for leader in self.members if leader in ops]
        if not leaders or not self.trial(device, leaders).wrong:
            return
        self.subgraphs.append((device, leaders))
        windows = self._wrong_windows(device, leaders)
        for chosen in disjoint_sets(
            leaders, lambda some: self.trial(device, some).wrong, windows, self._nearest
        ):
            self._keep_shrunk(device, chosen)

    def find_overlapping(self, device: str, leaders: list[str]) -> None:
        """Keep further minimal sets, which share ops with those of a subgraph.

        A missed set stays wrong if one op of each set is left out and none of its own. So the
        search runs all ways to leave out one op of each set.
        """
        together = [
            frozenset(op for op in each.ops if op in self.members)
            for each in self.sets
            if each.device == device and len(each.ops) > 1
        ]
        together = [ops for ops in together if ops <= set(leaders)]
        broken: list[frozenset[str]] = []  # leaving these out leaves nothing wrong
        for n_run, out in enumerate(hitting_sets(together, broken, self.expected.check_budget)):
            if n_run == _MOST_OVERLAPS:
                self.expected.notes.append(
                    "More combinations that share ops with the known ones may be wrong."
                )
                return
            left = [leader for leader in leaders if leader not in out]
            if not left or not self.trial(device, left).wrong:
                broken.append(out)
                continue
            chosen = minimal_set(left, lambda some: self.trial(device, some).wrong, self._nearest)
            self._keep_shrunk(device, chosen)
            together.append(frozenset(chosen))

    def _keep_shrunk(self, device: str, chosen: Sequence[str]) -> None:
        """Keep a minimal set of wrong ops; say which are only there for the rest to run at all."""
        rests = {
            leader: self.trial(device, [each for each in chosen if each != leader])
            for leader in chosen
            if len(chosen) > 1
        }
        untried = [leader for leader, rest in rests.items() if rest.refusal and not rest.wrong]
        self._keep(
            device,
            self._with_members(chosen),
            self.trial(device, chosen),
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

    def _nearest(self, leader: str, others: Sequence[str]) -> list[str]:
        """Sort ops by their distance in the graph; of equally distant ones, later ones first."""
        start = self.graph.index_of[leader]
        steps, queue, around = {start: 0}, [start], topology(self.graph).around
        for index in queue:
            for _, other in around[index]:
                if other not in steps and self.graph.ops[other].name in self.expected.placeable:
                    steps[other] = steps[index] + 1
                    queue.append(other)
        where = self.graph.index_of
        far = len(self.graph)
        return sorted(others, key=lambda op: (steps.get(where[op], far), -where[op]))
