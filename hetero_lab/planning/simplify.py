"""Simplify: why a placement has many subgraphs, and the least change that makes them few.

A change moves a set of ops to one device. The sets are those that a person would try (everything
after the ops that a device lacks, everything before or between them, blocks, stretches of the
model between narrow places) and those of a minimum cut with unit costs. Each one is tried on the
partition itself. What is best is then improved by moving single subgraphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.devices.devices import supported_ops
from hetero_lab.errors import ArgumentError
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.opgraph import OpGraph, work_of
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import MemoryTable
from hetero_lab.placement.placement import PlacementLike, affinity_elsewhere, resolve
from hetero_lab.placement.subgraph_causes import Cause, Division, cause_of
from hetero_lab.planning.pairwise_minimum import Network
from hetero_lab.result import Result
from hetero_lab.tables import bytes_text, frame_of
from hetero_lab.terminal import count_of, one_line

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

    from hetero_lab.costs.cost_model import CostModel

KEEP = 0.5  # of the work stays where it was, so that "everything on one device" is no answer
FEW = 2  # subgraphs; two devices that share a model cannot have fewer
# Nodes times trials, and the least and the most trials: about half a second each. Where HETERO
# breaks cycles, a trial takes up to thirty times as long; so many are for changes, as many for
# merges.
_PLAIN, _CYCLIC, _MERGES = (200_000, 60, 400), (15_000, 5, 35), (1_000_000, 60, 800)
_GROUPS = 8  # subgraphs of one device that are taken as culprits of their own
_MUCH_LESS = 0.5  # times the work of the best change is worth a sentence of its own
_LISTED = 12  # remedies in the summary
_LIGHT, _HEAVY = 0.05, 2.0  # all work in a minimum cut, as a multiple of all tensors
_SCALE = 1000  # whole numbers that a tensor counts on average in a minimum cut
_NAMED = 40  # characters of an op's name in a sentence


@dataclass(frozen=True)
class Remedy:
    """A change that was tried, and what it leaves; ``choice`` has the device number of each node.

    ``what`` says which ops it moves, empty where that takes their names. ``work_moved`` is a share
    of the model's work, ``boundary_bytes`` counts each tensor once.
    """

    division: Division = field(repr=False, compare=False)
    what: str
    choice: np.ndarray = field(repr=False, compare=False)
    n_subgraphs: int
    boundary_bytes: int
    work_moved: float

    @cached_property
    def moved(self) -> tuple[str, ...]:
        """The ops that it moves."""
        division = self.division
        nodes = np.flatnonzero(division.placeable & (self.choice != division.start))
        return tuple(division.graph.ops[index].name for index in nodes.tolist())

    @property
    def label(self) -> str:
        """What it moves, in words."""
        names = self.moved
        ends = " and ".join(one_line(name, _NAMED) for name in names[:1] + names[-1:])
        return self.what or (f"ops between {ends}" if len(names) > 2 else ends)

    @property
    def device(self) -> str:
        """Where it moves them."""
        return " and ".join(dict.fromkeys(self.affinity[op] for op in self.moved))

    @cached_property
    def affinity(self) -> Affinity:
        """The placement that it leads to."""
        graph, devices = self.division.graph, self.division.devices
        return Affinity.from_graph(graph, lambda op: devices[self.choice[graph.index_of[op]]])


@dataclass(frozen=True)
class Simplified(Result):
    """Why a placement has its subgraphs, and the best change.

    Attributes
    ----------
    affinity
        The best placement, the given one if no change makes fewer subgraphs.
    cause
        Why there are so many, and how many there would be without the ops to blame.
    best
        The change that leads to it, ``None`` if none helps.
    remedies
        The changes worth a look, the fewest subgraphs first; the one without a change is last.
    keep
        The least share of the work that stays where it was.
    """

    affinity: Affinity
    cause: Cause
    best: Remedy | None
    remedies: tuple[Remedy, ...]
    keep: float
    predicted_us: tuple[float, ...] = ()

    @property
    def verdict(self) -> str:
        """The cause, then the best change."""
        return f"{self.cause.text}\n{self.way_out}".rstrip()

    @property
    def _whole(self) -> str:
        return "predicted time" if self.predicted_us else "work"

    @property
    def way_out(self) -> str:
        """The best change in a sentence; empty if there is nothing to gain."""
        before = self.remedies[-1]
        if self.best is None:
            few = before.n_subgraphs <= FEW
            share = f"{self.keep:.0%} of the {self._whole}"
            return "" if few else f"No change that keeps {share} where it is makes them fewer."
        crossed = bytes_text(before.boundary_bytes)
        text = (
            f"Moving {self._move(self.best)} leaves {count_of(self.best.n_subgraphs, 'subgraph')}"
        )
        text += f" and {bytes_text(self.best.boundary_bytes)} instead of {crossed} across."
        *_, light = self.changes
        if light.work_moved < _MUCH_LESS * self.best.work_moved:
            across = bytes_text(light.boundary_bytes)
            text += f" Moving only {self._move(light)} leaves as few subgraphs and {across} across."
        return text

    def _move(self, change: Remedy) -> str:
        share = f"{change.work_moved:.1%} of the {self._whole}"
        return f"{change.label} ({count_of(len(change.moved), 'op')}, {share}) to {change.device}"

    @property
    def changes(self) -> tuple[Remedy, ...]:
        """The best change and, if another one, the lightest that leaves as few subgraphs."""
        if self.best is None:
            return ()
        as_few = [r for r in self.remedies if r.n_subgraphs == self.best.n_subgraphs]
        return tuple(dict.fromkeys([self.best, min(as_few, key=lambda r: r.work_moved)]))

    @property
    def remark(self) -> str:
        """The verdict on one line, if there are more subgraphs than two; otherwise nothing."""
        return " ".join(self.verdict.splitlines() if self.remedies[-1].n_subgraphs > FEW else ())

    @property
    def summary(self) -> pd.DataFrame:
        """One row a change: what moves where, what it leaves, whether it is on the front.

        ``remedy``, ``device``, ``n_ops``, ``n_subgraphs``, ``boundary_bytes``, ``work_moved`` (a
        share), ``front`` (no other change leaves as few subgraphs and moves less work), ``best``;
        with costs also ``predicted_us``.
        """
        rows = [
            (
                r.label, r.device, len(r.moved), r.n_subgraphs, r.boundary_bytes, r.work_moved,
                r in _front(self.remedies), r is self.best,
            )
            for r in self.remedies
        ]  # fmt: skip
        names = ["remedy", "device", "n_ops", "n_subgraphs", "boundary_bytes", "work_moved"]
        frame = frame_of(rows, [*names, "front", "best"])
        return frame.assign(predicted_us=self.predicted_us) if self.predicted_us else frame

    def __repr__(self) -> str:
        return self.verdict


def simplify(
    model: Source,
    placement: PlacementLike,
    keep: float = KEEP,
    costs: CostModel | None = None,
    *,
    core: ov.Core | None = None,
) -> Simplified:
    """Say why a placement has so many subgraphs, and find the least change that makes them few.

    Nothing is compiled. Changes are tried on the predicted partition: everything after the ops
    that a device lacks, everything before them, everything between them, whole blocks, stretches
    between narrow places, minimum cuts.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        An Affinity, a Placement, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    keep
        The least share of the work, from 0 to 1, that stays where it was: by the costs, otherwise
        by multiply-adds and bytes.
    costs
        A cost model of the same model, for the work and a prediction of each change. The
        placement may then use devices that are not here.

    Returns
    -------
    Simplified
        ``.verdict`` (the cause and the best change), ``.summary`` (a row a change) and
        ``.affinity``: fewest subgraphs, then fewest bytes across, then least work moved.

    Raises
    ------
    ArgumentError
        ``keep`` is not a number from 0 to 1.
    AffinityError, DeviceError, PlanError
        The affinity or the costs are of another model, or a device cannot run what is placed on
        it.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Concat"})
    >>> found = hl.simplify(model, "HETERO:ACC,CPU")
    >>> hl.partition(model, "HETERO:ACC,CPU").n_subgraphs, found.best.n_subgraphs
    (17, 6)
    """
    return simplify_bound(bind(model, core), placement, keep, costs)


def simplify_bound(
    bound: BoundModel,
    placement: PlacementLike,
    keep: float = KEEP,
    costs: CostModel | None = None,
) -> Simplified:
    """Do as :func:`simplify` for a bound model."""
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0.0 <= keep <= 1.0:
        raise ArgumentError(
            f"keep= is the share of the work that stays where it was, from 0 to 1, not {keep!r}."
        )
    affinity = None
    supported: dict[str, Collection[str]] = {}
    if costs is not None:
        costs.check_graph(bound.graph)
        affinity = affinity_elsewhere(bound, placement, costs)
        supported = {device: costs.supports(device) for device in costs.devices}
    if affinity is None:
        bound_placement = resolve(bound, placement)
        affinity = bound_placement.affinity
        if bound_placement.direct:
            device = affinity.devices[0]
            division = Division(bound.graph, affinity, {})
            whole = Remedy(division, "no change", division.start, 1, 0, 0.0)
            cause = Cause(f"1 subgraph: {device} runs the whole model, without HETERO.")
            return Simplified(affinity, cause, None, (whole,), keep)
        supported = {device: supported_ops(bound, device) for device in affinity.devices}
    return simplify_graph(bound.graph, affinity, supported, keep=keep, costs=costs)


def simplify_graph(
    graph: OpGraph,
    affinity: Affinity,
    supported: Mapping[str, Collection[str]],
    *,
    keep: float = KEEP,
    costs: CostModel | None = None,
) -> Simplified:
    """Do as :func:`simplify`, given the ops that each device supports."""
    affinity.check_model(graph)
    division = Division(graph, affinity, supported)
    search = _Changes(division, _work(graph, affinity, costs), 1.0 - keep)
    search.run()
    now, *others = search.outcomes.values()
    fewer = [trial for trial in others if trial.n_subgraphs < now.n_subgraphs]
    allowed = [trial for trial in fewer if trial.work_moved <= search.most_moved]
    best = min(allowed, key=_worth, default=None)
    listed = _front(fewer)[:_LISTED]
    if best is not None and best not in listed:
        listed = sorted([*listed[: _LISTED - 1], best], key=_worth)
    remedies = (*listed, now)
    predicted = () if costs is None else (costs.predict_us(r.affinity) for r in remedies)
    return Simplified(
        affinity=affinity if best is None else best.affinity,
        cause=cause_of(division),
        best=best,
        remedies=remedies,
        keep=float(keep),
        predicted_us=tuple(predicted),
    )


def simplified_label(label: str) -> str:
    """Return the label of a placement after the best change."""
    return f"{label} simplified"


def simplified_placements(result: Simplified, label: str) -> dict[str, Affinity]:
    """Return what is worth measuring by label: the best change and the lightest one."""
    labels = simplified_label(label), f"{simplified_label(label)}, least moved"
    return {name: change.affinity for name, change in zip(labels, result.changes, strict=False)}


def _worth(trial: Remedy) -> tuple[int, int, float]:
    return trial.n_subgraphs, trial.boundary_bytes, trial.work_moved


def _front(trials: Iterable[Remedy]) -> list[Remedy]:
    """Return the trials for which no other one leaves as few subgraphs and moves less work."""
    front: list[Remedy] = []
    for trial in sorted(trials, key=_worth):
        if not front or trial.work_moved < front[-1].work_moved:
            front.append(trial)
    return front


def _work(graph: OpGraph, affinity: Affinity, costs: CostModel | None) -> np.ndarray:
    """Return each node's share of the work: of the time where it is, or of multiply-adds."""
    work = np.zeros(len(graph))
    for index in graph.placeable:
        op = graph.ops[index]
        if costs is None:
            work[index] = work_of(graph, op)
        else:
            work[index] = costs.op_us[op.name][costs.devices.index(affinity[op.name])] or 0.0
    return work / max(work.sum(), 1e-30)


class _Changes:
    """Trials of changes; ``outcomes`` has theirs by choice, the placement itself first."""

    def __init__(self, division: Division, work: np.ndarray, most_moved: float):
        self.division, self.work, self.most_moved = division, work, most_moved
        self.outcomes: dict[bytes, Remedy] = {}
        self.tensor_bytes = MemoryTable.of(division.graph).n_bytes
        n = len(division.graph)
        self.n_plain, self.n_cyclic, self.n_merges = (
            max(least, min(most, nodes // n)) for nodes, least, most in (_PLAIN, _CYCLIC, _MERGES)
        )

    def run(self) -> None:
        """Try the changes, then improve the best of them, and the placement as it is."""
        division = self.division
        start = self._split("no change", division.start)
        if start is None or start.n_subgraphs <= FEW:
            return
        waiting: list[tuple[int, float, str, np.ndarray]] = []
        choices: set[bytes] = set()
        for device in dict.fromkeys(division.start[division.placeable].tolist()):
            for label, nodes in itertools.islice(self._sets(device), self.n_plain):
                indices = np.array([*nodes], dtype=np.int64)
                choice = division.moved(indices[division.able[device][indices]], device)
                keeps = (moved := self._moved_share(choice)) <= self.most_moved
                if choice.tobytes() in choices or not (keeps or label):
                    continue
                choices.add(choice.tobytes())
                n_parts, is_cyclic = division.components(choice)
                if not is_cyclic:
                    self._split(label, choice)
                elif keeps:
                    waiting.append((n_parts, moved, label, choice))
        n_cyclic = self.n_cyclic
        for n_parts, _, label, choice in sorted(waiting, key=lambda one: one[:2]):
            self._attempt(label, choice, n_parts)
        self.n_cyclic = n_cyclic
        self._merge(min(self.outcomes.values(), key=self._key))
        self._merge(start)

    def _key(self, trial: Remedy) -> tuple[bool, int, int, float]:
        return trial.work_moved > self.most_moved, *_worth(trial)

    def _moved_share(self, choice: np.ndarray) -> float:
        return float(self.work[choice != self.division.start].sum())

    def _attempt(self, label: str, choice: np.ndarray, n_parts: int) -> Remedy | None:
        """Return the outcome of a choice with a cycle, whose connected parts are that many.

        None if it cannot be better, as a part becomes at least one subgraph, or time is over.
        """
        moved = self._moved_share(choice)
        earlier = self.outcomes.values()
        if any(t.n_subgraphs <= n_parts and t.work_moved <= moved for t in earlier):
            return None
        if choice.tobytes() not in self.outcomes:
            if self.n_cyclic <= 0:
                return None
            self.n_cyclic -= 1
        return self._split(label, choice)

    def _split(self, label: str, choice: np.ndarray) -> Remedy | None:
        """Return the outcome of a choice; None if HETERO would cut through a state."""
        key, division = choice.tobytes(), self.division
        if key not in self.outcomes:
            ids, crossing, compiled = division.subgraphs(choice)
            torn = any(np.ptp(ids[[*path]]) for path in division.graph.stateful_paths)
            if torn and self.outcomes:  # the placement itself is kept, whatever it is
                return None
            crossed = np.unique(division.topology.tensor[crossing])
            n_bytes = int(self.tensor_bytes[crossed].sum())
            moved = self._moved_share(choice)
            self.outcomes[key] = Remedy(division, label, choice, len(compiled), n_bytes, moved)
        return self.outcomes[key]

    def _sets(self, device: int) -> Iterator[tuple[str, Collection[int]]]:
        """Yield sets of ops that may go to a device, the likeliest first."""
        graph, division = self.division.graph, self.division
        here = np.flatnonzero(division.placeable & (division.start == device))
        name = division.devices[device]
        ids = division.subgraphs(division.start)[0]
        groups = [here[ids[here] == one] for one in dict.fromkeys(ids[here].tolist())]
        for group in [here, *(groups[:_GROUPS] if len(groups) > 1 else [])]:
            after = graph.reach(group.tolist(), forward=True)
            before = graph.reach(group.tolist(), forward=False)
            if group is here and len(groups) > 1:
                first = f"the ops on {name}"
            else:
                first = one_line(graph.ops[group[0]].name, _NAMED)
            yield f"everything after {first}", after
            yield f"everything before {first}", before
            yield f"everything between the ops on {name}", after & before
        yield from self._cuts(device, here)
        yield from self._blocks()
        yield from self._stretches(here)

    def _blocks(self) -> Iterator[tuple[str, list[int]]]:
        """Yield each repeated layer, all from it on, and all up to it."""
        blocks = find_blocks(self.division.graph)
        of_op = np.array(blocks.of_op)
        step = -(-blocks.n_blocks // 12)
        for block in range(0, blocks.n_blocks, max(1, step)):
            yield f"block {block}", np.flatnonzero(of_op == block).tolist()
            yield f"block {block} and all after it", np.flatnonzero(of_op >= block).tolist()
            yield f"block {block} and all before it", np.flatnonzero(of_op <= block).tolist()

    def _stretches(self, here: np.ndarray) -> Iterator[tuple[str, list[int]]]:
        """Yield the ops between any two narrow places of the topological order."""
        graph = self.division.graph
        order = np.array(graph.placeable)
        n = len(order)
        position = np.full(len(graph), -1)
        position[order] = np.arange(n)
        n_open = np.zeros(n + 1, dtype=np.int64)  # tensors that are made before a place, read after
        for index in order.tolist():
            users = [position[u.index] for u in graph.consumers[index] if position[u.index] >= 0]
            if users:
                n_open[position[index] + 1 : max(users) + 1] += 1
        most = int((2 * self.n_plain) ** 0.5)
        ends = [0, n]
        if len(here):
            ends += [int(position[here[0]]), int(position[here[-1]]) + 1]
        narrow = np.argsort(n_open, kind="stable").tolist()
        places = sorted({*ends, *narrow[:most]})
        pairs = sorted(
            itertools.combinations(places, 2), key=lambda p: int(n_open[p[0]] + n_open[p[1]])
        )
        for first, last in pairs:
            yield "", order[first:last].tolist()

    def _cuts(self, device: int, here: np.ndarray) -> Iterator[tuple[str, list[int]]]:
        """Yield what minimum cuts part from the rest, with the ops that are on the device already.

        Tensors may cross both ways, only towards the device, or only away from it; all have one
        price, or each its bytes. The more the work weighs, the less of it moves.
        """
        leader, able = self.division.leader, self.division.able[device]
        n, tensors = len(leader), list(self._tensors())
        sizes = np.array([n_bytes for *_, n_bytes in tensors], dtype=float)
        by_bytes = _SCALE * len(tensors) * sizes / max(1.0, sizes.sum())
        work = np.bincount(leader, self.work, minlength=n)
        one_price = np.full(len(tensors), _SCALE)
        weighed = (one_price, _LIGHT), (by_bytes, _LIGHT), (one_price, _HEAVY)
        for (prices, weight), way in itertools.product(weighed, (None, True, False)):
            network = Network(n)
            for unit in dict.fromkeys(leader[self.division.placeable].tolist()):
                more = int(weight * _SCALE * len(tensors) * work[unit])
                network.add(network.source, unit, more if able[unit] else None)
            for unit in dict.fromkeys(leader[here].tolist()):
                network.add(unit, network.sink, None)
            for (maker, users, _), price in zip(tensors, prices, strict=True):
                for forward in (True, False):
                    whole = way is None or way == forward
                    network.add_tensor(
                        maker, users, 1 + int(price) if whole else None, forward=forward
                    )
            goes = ~network.cut()[:n]
            yield "", np.flatnonzero(goes[leader] & self.division.placeable).tolist()

    def _tensors(self) -> Iterator[tuple[int, tuple[int, ...], int]]:
        """Yield the leader of each tensor's maker, the leaders that read it, and its bytes."""
        graph, leader = self.division.graph, self.division.leader.tolist()
        placeable = self.division.placeable
        for index in graph.placeable:
            users = {leader[u.index] for u in graph.consumers[index] if placeable[u.index]}
            if users := users - {leader[index]}:
                n_bytes = sum(tensor.n_bytes or 0 for tensor in graph.ops[index].outputs)
                yield leader[index], tuple(sorted(users)), n_bytes

    def _merge(self, trial: Remedy) -> None:
        """Move single subgraphs to the device of a neighbour while that leaves fewer."""
        division, n_left, before = self.division, self.n_merges, None
        while trial is not before:
            before = trial
            for nodes, device in self._neighbours(trial):
                if n_left == 0:
                    return
                n_left -= 1
                choice = np.where(division.moved(nodes, -1) < 0, device, trial.choice)
                n_parts, is_cyclic = division.components(choice)
                after = self._attempt("", choice, n_parts) if is_cyclic else self._split("", choice)
                if after is not None and self._key(after) < self._key(trial):
                    trial = after

    def _neighbours(self, trial: Remedy) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the ops of each subgraph and the devices beside it, the least work first."""
        division, topology = self.division, self.division.topology
        ids, crossing, compiled = division.subgraphs(trial.choice)
        source, target = ids[topology.source[crossing]], ids[topology.target[crossing]]
        work = np.bincount(ids, self.work, minlength=int(ids.max()) + 1)
        for one in sorted(compiled.tolist(), key=lambda number: work[number]):
            near = np.concatenate([target[source == one], source[target == one]])
            nodes = np.flatnonzero((ids == one) & division.placeable)
            for device in np.unique(trial.choice[np.isin(ids, near)]).tolist():
                yield nodes[division.able[device][nodes]], device
