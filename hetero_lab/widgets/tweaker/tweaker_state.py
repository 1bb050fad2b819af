"""State of the tweaker, without a browser: selection, changes, undo, what-if numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hetero_lab.errors import (
    AffinityError,
    DeviceError,
    HeteroLabError,
    did_you_mean,
    names_at_hand,
    shorten,
    unknown,
)
from hetero_lab.intervals import Estimate
from hetero_lab.lint.context import Finding, KnownFaults
from hetero_lab.lint.findings import find_problems
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity, of_pattern, of_type
from hetero_lab.placement.partition import Partition, partition_of_split, predict
from hetero_lab.search.hotspots import Hotspots, hotspots
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import squeeze

if TYPE_CHECKING:
    from hetero_lab.costs.cost_model import CostModel

# The first so many ops on one device, the others on another.
Cut: TypeAlias = tuple[int, str, str]
_REMEMBERED = 8  # affinities whose numbers are kept, so that undo is instant


@dataclass(frozen=True)
class WhatIf:
    """The facts about a placement that are known without compiling it.

    ``estimate``, the predicted latency with its 90 % interval, is ``None`` without a cost model, or
    if the cost model does not hold; ``problem`` then says why.
    """

    partition: Partition
    estimate: Estimate | None = None
    problem: str = ""

    @property
    def predicted_us(self) -> float | None:
        """Predicted latency in µs."""
        return None if self.estimate is None else self.estimate.us

    @property
    def n_subgraphs(self) -> int:
        """Number of subgraphs."""
        return self.partition.n_subgraphs

    @property
    def n_boundaries(self) -> int:
        """Number of tensors that cross."""
        return len(self.partition.boundaries)

    @property
    def boundary_bytes(self) -> int:
        """Bytes that cross, as far as they are known."""
        return self.partition.boundary_bytes

    def __repr__(self) -> str:
        return f"WhatIf({self})"

    def __str__(self) -> str:
        time = f", {self.predicted_us:.1f} µs predicted" if self.predicted_us is not None else ""
        return (
            f"{count_of(self.n_subgraphs, 'subgraph')}, "
            f"{count_of(self.n_boundaries, 'boundary')}, "
            f"{self.boundary_bytes} bytes{time}"
        )


@dataclass(frozen=True)
class Step:
    """One state of the affinity: how it came about, and the cut if one made it."""

    affinity: Affinity
    label: str
    cut: Cut | None = None


class TweakerState:
    """An affinity that is changed step by step, and the effect of each change.

    It starts from ``automatic`` and is compared with it. ``able`` maps each device to the ops that
    it can run together with their followers; ``costs`` know these devices. Every method that
    changes something raises beforehand, so the state stays as it was.
    """

    def __init__(
        self,
        graph: OpGraph,
        automatic: Affinity,
        able: Mapping[str, frozenset[str]],
        costs: CostModel | None = None,
        wrong: KnownFaults | None = None,
    ):
        self.graph, self.automatic, self.able = graph, automatic, able
        self.costs, self.wrong = costs, wrong
        self.devices = tuple(able)
        self._placeable = tuple(graph.ops[index] for index in graph.placeable)
        # The ops whose device can be chosen, in topological order, and their types.
        self.ops = tuple(op.name for op in self._placeable)
        self.op_types = tuple(sorted({op.type for op in self._placeable}))
        self._names = frozenset(self.ops)
        self._steps = [Step(automatic, "automatic")]
        self._at = 0
        self._selected: frozenset[str] = frozenset()
        self._what_if = lru_cache(_REMEMBERED)(self._find_what_if)
        # The wrong numbers and awkward topologies of any affinity of this graph.
        self.findings_of = lru_cache(_REMEMBERED)(self._find_problems)
        # What takes the time with any affinity, if the costs tell.
        self.hotspots_of = lru_cache(_REMEMBERED)(self._find_hotspots)

    @property
    def step(self) -> Step:
        return self._steps[self._at]

    @property
    def affinity(self) -> Affinity:
        return self.step.affinity

    @property
    def what_if(self) -> WhatIf:
        return self._what_if(self.affinity)

    @cached_property
    def what_if_automatic(self) -> WhatIf:
        return self._find_what_if(self.automatic)

    @property
    def findings(self) -> list[Finding]:
        """Wrong numbers and awkward topologies of the present affinity, worst first."""
        return self.findings_of(self.affinity)

    @property
    def selection(self) -> tuple[str, ...]:
        """Names of the selected ops, in topological order."""
        return tuple(name for name in self.ops if name in self._selected)

    # Selecting

    def select(self, names: Iterable[str], *, add: bool = False) -> None:
        """Select ops by name; none clears the selection."""
        ops = list(names)
        for name in ops:
            if name not in self._names:
                fact = "No op whose device can be chosen is called"
                raise AffinityError(unknown(fact, name, self.ops, "Ops", 5))
        self._selected = frozenset(ops) | (self._selected if add else frozenset())

    def select_pattern(self, pattern: str, *, add: bool = False) -> None:
        """Select the ops in whose name a regular expression is found."""
        if not pattern:
            raise AffinityError("Write a part of a name, or a regular expression.")
        self.select([op.name for op in of_pattern(self._placeable, pattern)], add=add)

    def select_type(self, op_type: str, *, add: bool = False) -> None:
        self.select([op.name for op in of_type(self._placeable, op_type)], add=add)

    def select_subgraph(self, index: int, *, add: bool = False) -> None:
        subgraphs = self.what_if.partition.subgraphs
        if not 0 <= index < len(subgraphs):
            raise AffinityError(
                f"There is no subgraph {index}; they are numbered from 0 to {len(subgraphs) - 1}."
            )
        if not subgraphs[index].ops:
            raise AffinityError(f"Subgraph {index} only copies: it has no op.")
        self.select(subgraphs[index].ops, add=add)

    def select_after(self, names: str | Iterable[str], *, add: bool = False) -> None:
        """Select all ops that depend on one of some ops, directly or not."""
        names = [names] if isinstance(names, str) else list(names)
        if not self._names.issuperset(names):
            self.select(names)  # says what is wrong
        graph = self.graph
        users = [use.index for name in names for use in graph.consumers[graph.index_of[name]]]
        reached = graph.reach(users, forward=True)
        followers = [name for name in self.ops if graph.index_of[name] in reached]
        if not followers:
            raise AffinityError(f"Nothing comes after {names_at_hand(names, 2)}.")
        self.select(followers, add=add)

    # Changing

    def refused(self, device: str) -> tuple[str, ...]:
        able = self.able[device]
        return tuple(name for name in self.selection if name not in able)

    def assign(self, device: str, *, partly: bool = False) -> None:
        """Move the selection, or ``partly`` those of its ops that the device can run.

        AffinityError if nothing is selected, DeviceError if the device refuses it.
        """
        if not self._selected:
            raise AffinityError("Nothing is selected. Click an op, or select some by name.")
        self._check_device(device)
        refused = self.refused(device)
        moved = self._selected.difference(refused)
        if refused and not (partly and moved):
            raise DeviceError(self.why_not(device))
        what = squeeze(min(moved), 32) if len(moved) == 1 else count_of(len(moved), "op")
        self._move(dict.fromkeys(moved, device), f"{what} to {device}")

    def why_not(self, device: str) -> str:
        refused = [squeeze(name, 32) for name in self.refused(device)]
        n = len(self._selected)
        how_many = f"{len(refused)} of the {n} selected ops" if n > 1 else "this op"
        return f"{device} does not support {how_many}: {names_at_hand(refused, 2)}."

    def cut(self, position: int, before: str, after: str) -> None:
        """Put the first ``position`` ops on one device and the others on another, where supported.

        Cuts that follow each other are one step of undo.
        """
        self._check_device(before)
        self._check_device(after)
        if not 0 <= position <= len(self.ops):
            raise AffinityError(
                f"The cut is between 0 and {len(self.ops)} ops, not {shorten(str(position))}."
            )
        goal: dict[str, str] = {}
        for number, name in enumerate(self.ops):
            # A stateful path follows its first op.
            goal.setdefault(self._leader(name), before if number < position else after)
        moves = {n: d for n, d in goal.items() if n in self.able[d]}
        label = f"cut before op {position}: {before}, then {after}"
        if position in (0, len(self.ops)):
            n_left = len(goal) - len(moves)
            label = f"all{f' but {n_left}' if n_left else ''} to {before if position else after}"
        self._move(moves, label, (position, before, after))

    def nearest_cut(self, now: tuple[str, str]) -> tuple[Cut, int]:
        """Return the cut that is most like the affinity, and how many ops it would move.

        Of cuts that are as near, it is between the devices ``now`` if they are among them.
        """
        off = {
            device: [self.affinity[n] != device and n in able for n in self.ops]
            for device, able in self.able.items()
        }
        first = {device: np.cumsum([0, *moved]) for device, moved in off.items()}
        rest = {device: np.cumsum([0, *moved[::-1]])[::-1] for device, moved in off.items()}
        moved = {pair: first[pair[0]] + rest[pair[1]] for pair in product(off, repeat=2)}
        before, after = min([now, *moved], key=lambda pair: moved[pair].min())
        ops_moved = moved[before, after]
        return (int(ops_moved.argmin()), before, after), int(ops_moved.min())

    def apply(self, remedy: Mapping[str, str], label: str) -> None:
        """Put single ops on single devices, as a finding proposes."""
        for name, device in remedy.items():
            self._check_device(device)
            if name not in self.able[device]:
                raise DeviceError(f"{device} does not support {shorten(name)}.")
        self._move(remedy, label)

    def replace(self, affinity: Affinity, label: str) -> None:
        """Take over an affinity; AffinityError if of another model, DeviceError if refused."""
        if not isinstance(affinity, Affinity):
            raise AffinityError(
                f"An affinity is an hetero_lab.Affinity, not {type(affinity).__name__}."
            )
        affinity.check_model(self.graph)
        for device in affinity.devices:
            self._check_device(device)
        refused = [name for name in self.ops if name not in self.able[affinity[name]]]
        if refused:
            device = affinity[refused[0]]
            same = [name for name in refused if affinity[name] == device]
            raise DeviceError(f"{device} does not support {names_at_hand(same, 4)}.")
        self._push(Step(Affinity.from_graph(self.graph, affinity), label))

    @property
    def can_undo(self) -> bool:
        return self._at > 0

    @property
    def can_redo(self) -> bool:
        return self._at + 1 < len(self._steps)

    def undo(self) -> None:
        if not self.can_undo:
            raise AffinityError("There is nothing to undo.")
        self._at -= 1

    def redo(self) -> None:
        if not self.can_redo:
            raise AffinityError("There is nothing to redo.")
        self._at += 1

    def _leader(self, name: str) -> str:
        graph = self.graph
        return graph.ops[graph.leader[graph.index_of[name]]].name

    def _move(self, moves: Mapping[str, str], label: str, cut: Cut | None = None) -> None:
        moved = {self._leader(name): device for name, device in moves.items()}
        self._push(Step(Affinity.from_graph(self.graph, {**self.affinity, **moved}), label, cut))

    def _push(self, step: Step) -> None:
        drags_on = step.cut is not None and self.step.cut is not None and not self.can_redo
        if step.affinity == self.affinity and not drags_on:
            return
        keep = self._at if drags_on else self._at + 1
        self._steps[keep:] = [step]
        self._at = keep

    def _check_device(self, device: str) -> None:
        if device not in self.able:
            raise DeviceError(
                f"The tweaker does not know {shorten(str(device))}."
                f"{did_you_mean(str(device), self.devices)} "
                f"It was made for {', '.join(self.devices)}."
            )

    def _find_what_if(self, affinity: Affinity) -> WhatIf:
        if self.costs is None:
            return WhatIf(predict(self.graph, affinity))
        try:
            predictor = self.costs.predictor(affinity)
        except HeteroLabError as error:
            return WhatIf(predict(self.graph, affinity), problem=str(error))
        # The prediction has already split the model, which takes longest.
        partition = partition_of_split(self.graph, affinity, predictor.evaluation.ids)
        return WhatIf(partition, predictor.estimate)

    def _find_problems(self, affinity: Affinity) -> list[Finding]:
        costs = None if self._what_if(affinity).problem else self.costs
        problems = find_problems(self.graph, affinity, self.able, costs)
        return [*self.faults(affinity, costs), *problems]

    def _find_hotspots(self, affinity: Affinity) -> Hotspots | None:
        if self.costs is None or self._what_if(affinity).problem:
            return None
        return hotspots(self.costs, placement=affinity)

    def faults(self, affinity: Affinity, costs: CostModel | None = None) -> list[Finding]:
        """Return the sets of ops that compute wrong numbers with an affinity."""
        if self.wrong is None:
            return []
        return self.wrong._findings(self._what_if(affinity).partition, affinity, costs)
