"""The search for sets of ops that are wrong by themselves, or only together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from hetero_lab.debug.expected import Expected, SetResult
from hetero_lab.debug.minimal_sets import disjoint_sets, overlapping_sets
from hetero_lab.debug.wrong import WrongSet
from hetero_lab.errors import CompileError, names_at_hand
from hetero_lab.model.opgraph import grouped
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.runtime.pieces import cut_pieces

# Ops. Stretches of so many, and those shifted by half of it, hold any eight neighbours together.
_WINDOW = 16
# Compiles that look for sets that share ops with others: all ways to leave out an op of six pairs.
_MOST_OVERLAPS = 64


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
            results = [self._refused(device, sets[0], str(error))]
        else:
            results = list(map(self.expected.judged, sets, tensors))
        self.trials.update(zip(((device, ops) for ops in sets), results, strict=True))
        return results

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
                self._keep(device, ops, minimal=single)
                taken |= ops

    def find_in(self, placement: Placement) -> None:
        """Find the sets of ops that are wrong in a placement."""
        suspects = self.expected.kept_in(placement, self.expected.suspects)
        self._run_isolated(suspects)
        alone = self._with_members(
            leader for leader, trial in self.isolated.items() if trial.wrong and leader in suspects
        )
        subgraphs = partition_of(BoundPlacement(self.runs.bound, placement)).subgraphs
        rests = grouped((s.device, suspects.keys() & set(s.ops) - alone) for s in subgraphs)
        for device, parts in rests.items():
            sets = list(map(frozenset, parts))
            untried = [ops for ops in sets if ops and (device, ops) not in self.trials]
            if untried:
                self._run(device, untried)
            for ops in sets:
                self._find_combinations(
                    device, [leader for leader in self.members if leader in ops]
                )

    def _run_isolated(self, suspects: Collection[str]) -> None:
        """Run each op by itself, and keep those that are wrong."""
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
            for ops, trial in zip(sets, trials, strict=True):
                if trial.wrong:
                    self._keep(device, ops, minimal=True)

    def _find_combinations(self, device: str, leaders: list[str]) -> None:
        """Keep minimal sets of a subgraph's ops that are wrong together and share no op."""
        is_wrong = partial(self._is_wrong, device)
        if not leaders or not is_wrong(leaders):
            return
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
