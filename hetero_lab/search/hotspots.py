"""Hotspots: which ops take the time, and what it would gain to move them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, Literal

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.prediction import OPS
from hetero_lab.errors import ArgumentError, MeasurementError
from hetero_lab.intervals import Estimate
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement, greedy_by_costs
from hetero_lab.progress import Stopwatch
from hetero_lab.result import Result
from hetero_lab.results.profile_report import counted_beyond
from hetero_lab.results.profile_result import Profile
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.runtime.counters import executed_ops_us, leaders
from hetero_lab.tables import frame_of, text_table, time_text
from hetero_lab.terminal import count_of, one_line

if TYPE_CHECKING:
    import pandas as pd

_MOST, _SHOWN = 0.8, 10  # the share of the time that a sentence is about; rows of the text
_MOVING_S = 2.0  # for predicting moves: one takes 1 to 4 µs a node, or much more with cycles


@dataclass(frozen=True)
class Hotspot:
    """Ops that run as one, or those of a repeated layer on one device, and their time there.

    ``times_us`` are the measured times by device, ``predicted_us`` those of a cost model. ``gain``
    is the predicted latency now minus that with the ops on ``move_to``, with its 90 % interval.
    """

    name: str
    ops: tuple[str, ...]
    device: str
    us: float
    times_us: Mapping[str, float] = field(default_factory=dict)
    predicted_us: Mapping[str, float] = field(default_factory=dict)
    move_to: str = ""
    gain: Estimate | None = None


@dataclass(frozen=True)
class Hotspots(Result):
    """The ops of a placement by their time, the slowest first.

    Attributes
    ----------
    rows
        One per group of ops.
    graph, affinity
        The model, and where its ops are.
    notes
        Reasons to be careful with the times.
    is_measured
        Whether the times are measured, not predicted.
    emulated
        Emulated device → the device that really runs it.
    """

    rows: tuple[Hotspot, ...]
    graph: OpGraph
    affinity: Affinity
    notes: tuple[str, ...] = ()
    is_measured: bool = True
    emulated: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_us(self) -> float:
        """The time of all ops in µs."""
        return sum(row.us for row in self.rows)

    @property
    def priced(self) -> tuple[Hotspot, ...]:
        """The rows with a predicted gain, the largest first."""
        gains = [(row.gain.us, row) for row in self.rows if row.gain]
        return tuple(row for _, row in sorted(gains, key=itemgetter(0), reverse=True))

    @cached_property
    def verdict(self) -> str:
        """How few ops take most of the time, and which move gains most."""
        before = accumulate((row.us for row in self.rows), initial=0.0)
        most = self.rows[: bisect_left([*before], _MOST * self.total_us)]
        n_ops = sum(len(row.ops) for row in most)
        sentence = (
            f"{n_ops} of {count_of(len(self.affinity.ops), 'op')}, in "
            f"{count_of(len(most), 'group')}, take 80 % of the "
            f"{'' if self.is_measured else 'predicted '}time of all ops."
        )
        return f"{sentence} {_best_move(self.priced[0])}" if self.priced else sentence

    @property
    def summary(self) -> pd.DataFrame:
        """One row per group of ops, the slowest first.

        ``op`` (the one that names the group, or the block), ``op_types``, ``n_ops``, ``device``,
        ``time_us`` (``predicted_us`` without a measurement), ``share`` of the time of all ops,
        ``cumulative_share``; the measured time on each device in ``CPU_us`` and so on, where the
        same ops were measured there, and the predicted one in ``CPU_predicted_us``; with costs
        ``move_to``, ``gain_us`` and the ends of its 90 % interval; ``ops``, a name a line.
        """
        column, rows = "time_us" if self.is_measured else "predicted_us", self.rows
        op_type, total = {op.name: op.type for op in self.graph}, self.total_us or 1.0
        types = [dict.fromkeys(op_type[op] for op in row.ops) for row in rows]
        frame = frame_of(
            {
                "op": [row.name for row in rows],
                "op_types": [", ".join(names) for names in types],
                "n_ops": [len(row.ops) for row in rows],
                "device": [row.device for row in rows],
                column: [row.us for row in rows],
            }
        )
        frame["share"] = frame[column] / total
        frame["cumulative_share"] = frame[column].cumsum() / total
        if self.priced:
            frame["move_to"] = [row.move_to for row in rows]
            for end in ("us", "low_us", "high_us"):
                frame[f"gain_{end}"] = [row.gain and getattr(row.gain, end) for row in rows]
        for device in dict.fromkeys(device for row in rows for device in row.times_us):
            frame[f"{device}_us"] = [row.times_us.get(device) for row in rows]
        for device in dict.fromkeys(device for row in rows for device in row.predicted_us):
            frame[f"{device}_predicted_us"] = [row.predicted_us.get(device) for row in rows]
        return frame.assign(ops=["\n".join(row.ops) for row in rows])

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        return {"": self.summary.drop(columns=["ops", "op_types"])}

    def __repr__(self) -> str:
        first = self._front_tables()[""].head(_SHOWN)
        table = first.assign(op=[one_line(op, 60) for op in first["op"]])
        more = len(self.rows) - _SHOWN
        rest = [f"… {more:,} more"] if more > 0 else []
        return "\n".join([self.verdict, *self.notes, text_table(table), *rest])


def hotspots(
    measured: Profile | Sweep | CostModel,
    costs: CostModel | None = None,
    *,
    placement: Affinity | Placement | None = None,
    by: Literal["group", "block"] = "group",
) -> Hotspots:
    """List the ops that take the time, and what it would gain to move them.

    An op that runs inside another's node is in the group of that one. Nothing is measured, and a
    gain needs costs: it is predicted with the boundaries that come and go and the fusion that is
    lost.

    Parameters
    ----------
    measured
        The result of :func:`hetero_lab.profile`; of :func:`hetero_lab.sweep`, whose fastest
        placement is listed beside the times that other placements show for the same ops on other
        devices; or of :func:`hetero_lab.calibrate`, whose times are predicted.
    costs
        A cost model of the same model, to predict times on other devices, and gains.
    placement
        Where the ops of a cost model are; by default each is on the first device that can run it.
    by
        ``"group"``: ops that a device runs as one node; or ``"block"``: the repeated layers of a
        network, each as a whole where its ops are on one device.

    Raises
    ------
    ArgumentError
        A placement beside a profile or a sweep, which have their own.
    MeasurementError
        Nothing has counters.
    AffinityError, PlanError
        The costs or the placement are of another model or other devices.

    Notes
    -----
    Moves are predicted for at most 2 s, those of the slowest first.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> measured = hl.profile("digits_inception", "CPU", iterations=20, progress=False)
    >>> round(float(hl.hotspots(measured).summary["share"].sum()), 6)
    1.0
    """
    if isinstance(measured, CostModel):
        result, costs = _from_costs(measured, placement), measured
    elif placement is not None:
        raise ArgumentError(f"A {type(measured).__name__} has its own placement: leave it out.")
    else:
        result = _from_profile(*_profiles(measured))
    rows = _by_block(result.rows, result.graph) if by == "block" else result.rows
    result = replace(result, rows=tuple(sorted(rows, key=lambda row: -row.us)))
    return result if costs is None else _with_gains(result, costs)


def _from_costs(costs: CostModel, placement: Affinity | Placement | None) -> Hotspots:
    """List the units of a cost model."""
    affinity = placement.affinity if isinstance(placement, Placement) else placement
    if affinity is None:
        affinity = greedy_by_costs(costs.graph, costs.devices, costs)
    shares = costs.explain(affinity).of(OPS)
    rows = tuple(Hotspot(s.ops[0], s.ops, s.device, s.us) for s in shares)
    return Hotspots(rows, costs.graph, affinity, costs.notes, False, costs.emulated)


def _profiles(measured: Profile | Sweep) -> tuple[Profile, list[Profile]]:
    """Return the profile to list, of a sweep the fastest, and all of the same model."""
    if isinstance(measured, Profile):
        every = [measured]
    else:
        every = [row.scaled_profile for row in measured.ranked.rows]
    profiles = [profile for profile in every if profile is not None and profile.counters]
    if not profiles:
        why = "Measure with counters=True; some op must take at least 1 µs."
        raise MeasurementError(f"There are no times of single ops. {why}")
    same = profiles[0].model_fingerprint
    return profiles[0], [p for p in profiles if p.model_fingerprint == same]


def _from_profile(profile: Profile, every: Sequence[Profile]) -> Hotspots:
    """List the nodes that ran, with the times of the same ops elsewhere."""
    ops: dict[str, tuple[str, ...]] = {}
    took: defaultdict[tuple[str, str], float] = defaultdict(float)
    for counter in profile.counters:
        if counter.kind in ("op", "other"):
            name = counter.op or counter.node_name
            took[name, counter.device] += counter.real_time_us
            ops.setdefault(name, (counter.op, *counter.fused_ops) if counter.op else ())
    runs = [(p.affinity, executed_ops_us(p.counters), leaders(p.counters)) for p in every]
    rows = [
        Hotspot(name, ops[name], device, us, {**_elsewhere(ops[name], runs), device: us})
        for (name, device), us in took.items()
        if ops[name] or us
    ]
    n_unknown = len(profile.affinity.ops) - sum(len(row.ops) for row in rows)
    notes = [*filter(None, [counted_beyond(profile)])]
    if n_unknown > 0:
        notes.append(f"The counters do not tell the time of {count_of(n_unknown, 'op')}.")
    emulated = dict(profile.environment.emulated)
    return Hotspots(tuple(rows), profile.graph, profile.affinity, tuple(notes), emulated=emulated)


def _elsewhere(
    ops: Sequence[str],
    runs: Iterable[tuple[Affinity, Mapping[str, float], Mapping[str, str]]],
) -> dict[str, float]:
    """Return the median time of some ops on each device that ran all of them by themselves."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for affinity, op_us, leader in runs:
        devices = {affinity[op] for op in ops}
        if len(devices) == 1 and {leader.get(op) for op in ops} <= {*ops}:
            times[devices.pop()].append(sum(op_us[op] for op in ops))
    return {device: median(us) for device, us in times.items()}


def _by_block(rows: Iterable[Hotspot], graph: OpGraph) -> Iterator[Hotspot]:
    """Yield the rows of each block and device as one, and those outside of blocks."""
    blocks, parts_of = find_blocks(graph), dict[tuple[int | None, str], list[Hotspot]]()
    for row in rows:
        number = blocks.numbered(graph.index_of[row.ops[0]]) if row.ops else None
        if number is None:
            yield row
        else:
            parts_of.setdefault((number, row.device), []).append(row)
    for (number, device), parts in parts_of.items():
        ops = tuple(op for part in parts for op in part.ops)
        devices = set.intersection(*({*part.times_us} for part in parts))
        times_us = {d: sum(part.times_us[d] for part in parts) for d in sorted(devices)}
        us = sum(part.us for part in parts)
        yield Hotspot(f"block {number}", ops, device, us, times_us)


def _with_gains(result: Hotspots, costs: CostModel) -> Hotspots:
    """Predict the time of each row on each device, and the best move of it."""
    costs.check_graph(result.graph)
    now = costs.predictor(result.affinity)
    able = {device: costs.supports(device) for device in costs.devices}
    watch, rows = Stopwatch.start(_MOVING_S), list[Hotspot]()
    for row in result.rows:
        fits = [d for d in costs.devices if row.ops and able[d].issuperset(row.ops)]
        nodes = [costs.graph.index_of[op] for op in row.ops]
        # In whole nanoseconds, as the placement is predicted.
        ns = costs.objective.op_ns[nodes].sum(axis=0)
        times_us = {d: int(ns[costs.devices.index(d)]) / 1000.0 for d in fits}
        row = replace(row, predicted_us=times_us)
        for device in (d for d in fits if d != row.device and not watch.is_over):
            move = now.moved(dict.fromkeys(row.ops, device))
            us, margin = now.predicted_us - move.predicted_us, now.margin_us(move)
            if row.gain is None or us > row.gain.us:
                row = replace(row, move_to=device, gain=Estimate(us, us - margin, us + margin))
        rows.append(row)
    notes = result.notes
    if any(row.gain is None and {*row.predicted_us} - {row.device} for row in rows):
        notes += ("Only the moves of the slowest ops were predicted, for lack of time.",)
    if not costs.uncertainty.n:
        notes += ("The costs are not validated, so nobody knows how far a gain may be off.",)
    return replace(result, rows=tuple(rows), notes=notes)


def _best_move(row: Hotspot) -> str:
    gain = row.gain
    assert gain is not None
    if gain.us <= 0.0:
        return "Moving one group alone gains nothing."
    where = f"Moving {one_line(row.name, 60)} from {row.device} to {row.move_to}"
    gains = "gains most" if gain.low_us > 0.0 else "may gain most, or nothing"
    ends = f", 90 % {time_text(gain.low_us)} to {time_text(gain.high_us)}"
    return f"{where} {gains}: {time_text(gain.us)}{ends if gain.low_us > float('-inf') else ''}."
