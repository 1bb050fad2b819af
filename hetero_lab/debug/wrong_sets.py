"""The search for sets of ops that are wrong by themselves, or only together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

from hetero_lab.debug.expected import Expected, SetResult
from hetero_lab.debug.minimal_sets import hitting_sets, minimal_set
from hetero_lab.debug.wrong import WrongSet
from hetero_lab.errors import CompileError, names_at_hand
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.placement.topology import topology
from hetero_lab.runtime.pieces import cut_pieces

_WINDOW = 16  # ops
_MOST_OVERLAPS = 64  # runs that look for sets that share ops with known ones


class WrongSetSearch:
    """Runs sets of ops by themselves and keeps those that are wrong."""

    def __init__(self, expected: Expected):
        self.expected, self.runs, self.graph = expected, expected.runs, expected.graph
        self.members, self.given = expected.members, expected.given
        self.trials: dict[tuple[str, frozenset[str]], SetResult] = {}
        self.isolated: dict[str, SetResult] = {}  # by leader, with the ops that move with it
        self.found: list[WrongSet] = []
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
            made = self.runs.pieces(device, sets, self.expected.values)
        except CompileError as error:
            self.expected.check_budget()  # the device may only have been too slow
            if len(sets) > 1:
                half = len(sets) // 2
                return [*self._run(device, sets[:half]), *self._run(device, sets[half:])]
            if self.expected.refused:
                trial = SetResult(True, float("inf"), float("inf"), str(error))
            else:
                ops = names_at_hand(self.expected.ordered(sets[0]))
                self.expected.notes.append(
                    f"{device} refuses to run {ops} apart from the rest, so they could not be "
                    f"tested: {error}"
                )
                trial = SetResult(False, float("nan"), float("nan"), str(error))
            self.trials[device, sets[0]] = trial
            return [trial]
        for ops, values in zip(sets, made, strict=True):
            self.trials[device, ops] = self.expected.judged(ops, values)
        return [self.trials[device, ops] for ops in sets]

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
        """Keep a wrong set, cut out of the model, unless it is known."""
        names = self.expected.ordered(ops)
        if any((device, names) == (found.device, found.ops) for found in self.found):
            return
        values = self.expected.values
        piece = cut_pieces(self.runs.bound, [names], values)
        self.found.append(
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
        taken = {op for found in self.found for op in found.ops}
        alone = self._with_members(self.isolated)
        for (device, ops), trial in sorted(self.trials.items(), key=lambda known: len(known[0][1])):
            single = sum(op in self.members for op in ops) == 1
            if trial.wrong and (single or ops <= alone) and taken.isdisjoint(ops):
                self._keep(device, ops, trial, minimal=single)
                taken |= ops

    def find_in(self, placement: Placement) -> None:
        """Find the sets of ops that are wrong in a placement."""
        suspects = self.expected.kept_in(placement, self.expected.suspects)
        roots: dict[str, list[frozenset[str]]] = {}
        for subgraph in partition_of(BoundPlacement(self.runs.bound, placement)).subgraphs:
            ops = frozenset(op for op in subgraph.ops if op in suspects)
            if ops:
                roots.setdefault(subgraph.device, []).append(ops)
        self._run_isolated(suspects)
        alone = self._with_members(
            leader for leader, trial in self.isolated.items() if trial.wrong and leader in suspects
        )
        for device, sets in roots.items():
            rests = [ops - alone for ops in sets]
            asked = [ops for ops in rests if ops and (device, ops) not in self.trials]
            if asked:
                self._run(device, asked)
            for rest in rests:
                self._find_combinations(device, rest)

    def _run_isolated(self, suspects: Collection[str]) -> None:
        """Run each op by itself, and keep those that are wrong."""
        by_device: dict[str, list[str]] = {}
        for leader, members in self.members.items():
            if leader not in self.isolated and all(op in suspects for op in members):
                by_device.setdefault(self.given.affinity[leader], []).append(leader)
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
        taken: set[str] = set()
        # The whole comes last: ops that are far apart can be wrong together, too.
        for part in [*self._wrong_windows(device, leaders), leaders]:
            left = [leader for leader in part if leader not in taken]
            while left and self.trial(device, left).wrong:
                chosen = self._shrink(device, left)
                taken.update(chosen)
                left = [leader for leader in left if leader not in chosen]

    def find_overlapping(self, device: str, leaders: list[str]) -> None:
        """Keep further minimal sets, which share ops with known ones.

        A missed set stays wrong if one op of each known set is left out and none of its own. So
        the search runs all ways to leave out one op of each known set.
        """
        known = [
            frozenset(op for op in found.ops if op in self.members)
            for found in self.found
            if found.device == device and len(found.ops) > 1
        ]
        known = [ops for ops in known if ops <= set(leaders)]
        broken: list[frozenset[str]] = []  # leaving these out leaves nothing wrong
        for n_run, out in enumerate(hitting_sets(known, broken, self.expected.check_budget)):
            if n_run == _MOST_OVERLAPS:
                self.expected.notes.append(
                    "More combinations that share ops with the known ones may be wrong."
                )
                return
            left = [leader for leader in leaders if leader not in out]
            if not left or not self.trial(device, left).wrong:
                broken.append(out)
                continue
            known.append(frozenset(self._shrink(device, left)))

    def _shrink(self, device: str, leaders: Sequence[str]) -> list[str]:
        """Keep a minimal set of wrong ops, including ops without which the rest cannot run."""
        chosen = minimal_set(leaders, lambda some: self.trial(device, some).wrong, self._nearest)
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
        return chosen

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
