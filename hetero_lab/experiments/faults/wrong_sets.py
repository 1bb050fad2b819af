"""The search for sets of ops that are wrong by themselves, or only together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.errors import CompileError, names_at_hand
from hetero_lab.experiments.faults.expected import Expected, SetResult
from hetero_lab.experiments.faults.minimal_set import hitting_sets, minimal_set
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import Placement
from hetero_lab.runtime.pieces import TensorKey

_WINDOW = 16  # ops
_MOST_OVERLAPS = 64  # runs that look for sets that share ops with known ones


@dataclass(frozen=True)
class WrongOps:
    """Ops that are wrong together, on a device.

    ``untried`` are those without which the others could not be run.
    """

    device: str
    ops: tuple[str, ...]
    trial: SetResult
    minimal: bool
    untried: tuple[str, ...] = ()


class WrongSetSearch:
    """The sets of ops that were run by themselves, and those of them that are wrong.

    Attributes
    ----------
    found
        The wrong ones.
    isolated
        Leader → the result of running it by itself, with the ops that move with it.
    subgraphs
        The wrong ones: device, and leaders without those that are wrong by themselves.
    """

    def __init__(self, expected: Expected):
        self.expected, self.runs, self.graph = expected, expected.runs, expected.graph
        self.members, self.given = expected.members, expected.given
        self.trials: dict[tuple[str, frozenset[str]], SetResult] = {}
        self.isolated: dict[str, SetResult] = {}
        self.found: list[WrongOps] = []
        self.subgraphs: list[tuple[str, list[str]]] = []

    def take_whole(self, outputs: Sequence[np.ndarray]) -> None:
        """Take the outputs of the given placement for a run of its ops, if it is one subgraph."""
        expected, everything = self.expected, frozenset(self.expected.suspects)
        whole = partition_of(self.runs.given).n_subgraphs == 1
        if whole and not expected.refused and everything == expected.placeable:
            made = dict(zip(expected.output_keys, outputs, strict=True))
            (device,) = self.given.affinity.devices
            self.trials[device, everything] = expected.judged(everything, made)

    def trial(self, device: str, leaders: Iterable[str]) -> SetResult:
        ops = frozenset(member for leader in leaders for member in self.members[leader])
        if (device, ops) not in self.trials:
            self._run(device, [ops])
        return self.trials[device, ops]

    def _run(self, device: str, sets: Sequence[frozenset[str]]) -> list[SetResult]:
        """Run disjoint sets in one compile; in several where the device refuses them together."""
        self.expected.check_budget()
        try:
            made = self.runs.pieces(device, sets, self.expected.transparent.values)
        except CompileError as error:
            self.expected.check_budget()  # it may only have been too slow for it
            if len(sets) > 1:
                half = len(sets) // 2
                return [*self._run(device, sets[:half]), *self._run(device, sets[half:])]
            if self.expected.refused:
                trial = SetResult(True, float("inf"), float("inf"), str(error))
            else:
                ops = names_at_hand(self.expected.ordered(sets[0]))
                self.expected.notes.append(
                    f"{device} refuses to run {ops} apart from the rest, so that could not be "
                    f"tested: {error}"
                )
                trial = SetResult(False, float("nan"), float("nan"), str(error))
            self.trials[device, sets[0]] = trial
            return [trial]
        by_set: list[dict[TensorKey, np.ndarray]] = [{} for _ in sets]
        for index, key, value in made:
            by_set[index][key] = value
        for ops, values in zip(sets, by_set, strict=True):
            self.trials[device, ops] = self.expected.judged(ops, values)
        return [self.trials[device, ops] for ops in sets]

    def unrun(self) -> set[str]:
        """Return the suspects that were not run by themselves."""
        ran = {leader for leader, trial in self.isolated.items() if not trial.refusal}
        return set(self.expected.suspects) - {op for leader in ran for op in self.members[leader]}

    def could_all_run(self) -> bool:
        untested = any(trial.refusal and not trial.wrong for trial in self.trials.values())
        return not untested and not self.unrun()

    def _keep(self, found: WrongOps) -> None:
        known = {(each.device, each.ops) for each in self.found}
        if (found.device, found.ops) not in known:
            self.found.append(found)

    def keep_unshrunk(self) -> None:
        """Keep the smallest wrong sets that share no op with those that are known already.

        Only ops that were run one by one before count: that the whole is wrong is not news.
        """
        taken = {op for found in self.found for op in found.ops}
        alone = {op for leader in self.isolated for op in self.members[leader]}
        for (device, ops), trial in sorted(self.trials.items(), key=lambda known: len(known[0][1])):
            single = sum(op in self.members for op in ops) == 1
            if trial.wrong and (single or ops <= alone) and taken.isdisjoint(ops):
                self._keep(WrongOps(device, self.expected.ordered(ops), trial, minimal=single))
                taken |= ops

    def find_in(self, placement: Placement) -> None:
        """Keep the sets of ops that are wrong in a placement, as far as they are not known."""
        suspects = self.expected.kept_in(placement, self.expected.suspects)
        roots: dict[str, list[frozenset[str]]] = {}
        for subgraph in partition_of(self.runs.bind(placement)).subgraphs:
            ops = frozenset(op for op in subgraph.ops if op in suspects)
            if ops:
                roots.setdefault(subgraph.device, []).append(ops)
        self._run_isolated(suspects)
        alone: set[str] = set()
        for leader, trial in self.isolated.items():
            if trial.wrong and leader in suspects:
                alone.update(self.members[leader])
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
                    self._keep(WrongOps(device, self.expected.ordered(ops), trial, minimal=True))

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
                chosen = minimal_set(
                    left, lambda some: self.trial(device, some).wrong, self._nearest
                )
                self._keep(self._shrunk(device, chosen))
                taken.update(chosen)
                left = [leader for leader in left if leader not in chosen]

    def find_overlapping(self, device: str, leaders: list[str]) -> None:
        """Keep further minimal sets, which share ops with those that are known.

        Reiter's tree of hitting sets (1987): a set that was missed is wrong without at least one
        op of each known set, so all ways to leave out one op of each are run.
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
                    "More combinations that share ops with those that were found may be wrong."
                )
                return
            left = [leader for leader in leaders if leader not in out]
            if not left or not self.trial(device, left).wrong:
                broken.append(out)
                continue
            chosen = minimal_set(left, lambda some: self.trial(device, some).wrong, self._nearest)
            self._keep(self._shrunk(device, chosen))
            known.append(frozenset(chosen))

    def _shrunk(self, device: str, chosen: Sequence[str]) -> WrongOps:
        """Return a set that was shrunk, with the ops without which the rest could not be run."""
        rests = {
            leader: self.trial(device, [each for each in chosen if each != leader])
            for leader in chosen
            if len(chosen) > 1
        }
        untried = [
            member
            for leader, rest in rests.items()
            if rest.refusal and not rest.wrong
            for member in self.members[leader]
        ]
        return WrongOps(
            device,
            self.expected.ordered(member for leader in chosen for member in self.members[leader]),
            self.trial(device, chosen),
            minimal=not untried and not any(rest.wrong for rest in rests.values()),
            untried=self.expected.ordered(untried),
        )

    def _wrong_windows(self, device: str, leaders: list[str]) -> list[list[str]]:
        """Return overlapping stretches of the model that are wrong, run side by side.

        A device fuses ops that are close together, so this mostly replaces a bisection of the
        whole model; it also sees errors that are small beside the rounding of the whole model.
        """
        wrong = []
        for offset in (0, _WINDOW // 2):
            starts = [0, *range(offset or _WINDOW, len(leaders), _WINDOW), len(leaders)]
            windows = [leaders[a:b] for a, b in itertools.pairwise(starts)]
            if len(windows) == 1:
                break
            sets = [frozenset(m for leader in w for m in self.members[leader]) for w in windows]
            for window, trial in zip(windows, self._run(device, sets), strict=True):
                if trial.wrong:
                    wrong.append(window)
        return wrong

    def _nearest(self, leader: str, others: Sequence[str]) -> list[str]:
        """Sort ops by their distance in the graph; among equals, the later ones first."""
        start = self.graph.index_of[leader]
        steps, queue = {start: 0}, [start]
        for index in queue:
            around = [use.index for use in self.graph.consumers[index]]
            around += [producer for producer, _ in self.graph.ops[index].inputs]
            for other in around:
                if other not in steps and self.graph.ops[other].name in self.expected.placeable:
                    steps[other] = steps[index] + 1
                    queue.append(other)
        where = self.graph.index_of
        far = len(self.graph)
        return sorted(others, key=lambda op: (steps.get(where[op], far), -where[op]))
