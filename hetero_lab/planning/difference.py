"""Difference between two placements, and where the predicted difference comes from.

A difference is that of ``after`` minus that of ``before``, so that below 0 after is faster.
Predictions are kept in whole nanoseconds, so that parts add up exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import MeasurementError, PlanError, shorten
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.prediction import Prediction
from hetero_lab.result import Displayed
from hetero_lab.tables import number

if TYPE_CHECKING:
    import pandas as pd

OPS, LOST_FUSION, SUBGRAPHS, BOUNDARIES = "ops", "lost fusion", "subgraphs", "boundaries"
CONSTANT, SPREAD = "constant", "spread memory"
KINDS = (OPS, LOST_FUSION, SUBGRAPHS, BOUNDARIES, SPREAD)
NEW, GONE = "new", "gone"
_TIMES = ["before_us", "after_us", "difference_us"]
_MOST_TYPES = 4
_MOST_PARTS = 3


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two placements; ``kinds_ns`` is its prediction by kind, None without costs."""

    label: str
    affinity: Affinity
    partition: Partition
    kinds_ns: Mapping[str, int] | None = None

    @property
    def predicted_us(self) -> float:
        """Predicted latency in µs; 0 without costs."""
        return sum((self.kinds_ns or {}).values()) / 1000.0


@dataclass(frozen=True, slots=True)
class MovedOp:
    """An op that is on another device, with its predicted time on both."""

    op: str
    op_type: str
    before: str
    after: str
    before_ns: int | None = None
    after_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SubgraphChange:
    """A subgraph that only one of the placements has; ``change`` is ``new`` or ``gone``."""

    change: str
    device: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BoundaryChange:
    """Hand-overs of one tensor between two devices, where their number differs."""

    tensor: str
    source_device: str
    target_device: str
    n_bytes: int | None
    n_before: int
    n_after: int

    @property
    def change(self) -> str:
        """``new``, ``gone``, ``more`` or ``fewer``."""
        if not self.n_before:
            return NEW
        if not self.n_after:
            return GONE
        return "more" if self.n_after > self.n_before else "fewer"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the predicted latency: one op, pair of ops, boundary, or a device's subgraphs.

    ``kind`` is one of ``KINDS``; ``device_before`` and ``device_after`` say where, if anywhere.
    """

    kind: str
    name: str
    device_before: str
    device_after: str
    before_ns: int
    after_ns: int

    @property
    def difference_ns(self) -> int:
        """After minus before."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured latencies and their difference with its 95 % interval, in µs.

    The difference is that of turns, paired where both were measured in one run, so it need not
    be that of the medians. ``ops_*`` are the counters of ops, None where they do not tell.
    """

    before_us: float
    before_ci95_us: tuple[float, float]
    after_us: float
    after_ci95_us: tuple[float, float]
    difference_us: float
    low_us: float
    high_us: float
    ops_before_us: float | None = None
    ops_after_us: float | None = None


@dataclass(frozen=True)
class Difference(Displayed):
    """Differences between two placements of one model.

    Attributes
    ----------
    before, after
        The two placements: label, affinity, partition.
    moved
        Ops on another device.
    subgraph_changes, boundary_changes
        Subgraphs and hand-overs that appear or vanish.
    predicted_parts
        Where the predicted difference comes from, largest first; they add up to it. None
        without costs.
    measurement
        The measured difference, None without profiles.
    emulated
        Emulated device → the device that runs it.
    notes
        Caveats about the comparison.
    """

    graph: OpGraph
    before: Side
    after: Side
    moved: tuple[MovedOp, ...]
    subgraph_changes: tuple[SubgraphChange, ...]
    boundary_changes: tuple[BoundaryChange, ...]
    predicted_parts: tuple[Part, ...] | None = None
    measurement: Measurement | None = None
    emulated: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def predicted_us(self) -> float:
        """Predicted latency of after minus that of before, in µs.

        Raises
        ------
        PlanError
            No costs were given.
        """
        return sum(part.difference_ns for part in self.priced) / 1000.0

    @property
    def priced(self) -> tuple[Part, ...]:
        """The predicted parts; raises PlanError if no costs were given."""
        if self.predicted_parts is None:
            raise PlanError(
                "This difference has no prediction. Give costs: hetero_lab.explain(model, before, "
                "after, hetero_lab.calibrate(model, devices))."
            )
        return self.predicted_parts

    @property
    def timed(self) -> Measurement:
        """The measurement; raises MeasurementError if no profiles were given."""
        if self.measurement is None:
            raise MeasurementError(
                "This difference was not measured. Give profiles=(profile_before, profile_after) "
                "or a sweep to hetero_lab.explain."
            )
        return self.measurement

    @property
    def summary(self) -> pd.DataFrame:
        """Rows ``before``, ``after``, ``difference``: structure, predicted and measured latency."""
        counted = ["n_ops_moved", "n_subgraphs", "n_boundaries", "boundary_bytes"]
        sides = [_structure(side.partition) for side in (self.before, self.after)]
        minus = [new - old for old, new in zip(*sides, strict=True)]
        columns = ["placement", "label", *counted]
        frame = _frame(
            [
                ("before", self.before.label, 0, *sides[0]),
                ("after", self.after.label, 0, *sides[1]),
                ("difference", "after − before", len(self.moved), *minus),
            ],
            columns,
        )
        if self.predicted_parts is not None:
            levels = [self.before.predicted_us, self.after.predicted_us]
            frame["predicted_us"] = [*levels, self.predicted_us]
        if self.measurement is not None:
            timed = self.measurement
            values = [
                (timed.before_us, *timed.before_ci95_us),
                (timed.after_us, *timed.after_ci95_us),
                (timed.difference_us, timed.low_us, timed.high_us),
            ]
            frame[["measured_us", "measured_ci95_low_us", "measured_ci95_high_us"]] = values
        return frame

    @property
    def ops(self) -> pd.DataFrame:
        """The ops that move: ``op, op_type, before, after``, with costs their times."""
        columns = ["op", "op_type", "before", "after"]
        if self.predicted_parts is None:
            return _frame([(op.op, op.op_type, op.before, op.after) for op in self.moved], columns)
        rows = [
            (op.op, op.op_type, op.before, op.after, *_times(op.before_ns or 0, op.after_ns or 0))
            for op in self.moved
        ]
        return _frame(rows, [*columns, *_TIMES])

    @property
    def devices(self) -> pd.DataFrame:
        """How many ops each device has: ``device, before, after, arrived, left``."""
        before, after = self.before.affinity.counts(), self.after.affinity.counts()
        arrived = Counter(op.after for op in self.moved)
        left = Counter(op.before for op in self.moved)
        rows = [
            (device, before.get(device, 0), after.get(device, 0), arrived[device], left[device])
            for device in dict.fromkeys([*before, *after])
        ]
        return _frame(rows, ["device", "before", "after", "arrived", "left"])

    @property
    def subgraphs(self) -> pd.DataFrame:
        """The subgraphs that only one placement has: ``change, device, n_ops, ops``."""
        rows = [(c.change, c.device, len(c.ops), "\n".join(c.ops)) for c in self.subgraph_changes]
        return _frame(rows, ["change", "device", "n_ops", "ops"])

    @property
    def boundaries(self) -> pd.DataFrame:
        """Hand-overs that appear and vanish, with bytes; with costs their predicted time."""
        columns = [
            "tensor", "source_device", "target_device", "n_bytes", "change", "n_before", "n_after",
        ]  # fmt: skip
        frame = _frame([[getattr(c, at) for at in columns] for c in self.boundary_changes], columns)
        if self.predicted_parts is not None:
            prices = {
                (part.name, part.device_before, part.device_after): part.difference_ns / 1000.0
                for part in self.predicted_parts
                if part.kind == BOUNDARIES
            }
            # A hand-over whose price does not change is no part, so that it has no row there.
            keys = [(c.tensor, c.source_device, c.target_device) for c in self.boundary_changes]
            frame["difference_us"] = [prices.get(key, 0.0) for key in keys]
        return frame

    @property
    def kinds(self) -> pd.DataFrame:
        """The prediction by kind and in total: ``kind, before_us, after_us, difference_us``.

        Raises
        ------
        PlanError
            No costs were given.
        """
        _ = self.priced  # says what is missing without costs
        before, after = self.before.kinds_ns or {}, self.after.kinds_ns or {}
        rows = [(kind, *_times(before[kind], after[kind])) for kind in before]
        rows.append(("total", *_times(sum(before.values()), sum(after.values()))))
        return _frame(rows, ["kind", *_TIMES])

    @property
    def parts(self) -> pd.DataFrame:
        """Every part that differs, largest first; they add up to ``predicted_us``.

        Raises
        ------
        PlanError
            No costs were given.
        """
        rows = [
            (p.kind, p.name, p.device_before, p.device_after, *_times(p.before_ns, p.after_ns))
            for p in self.priced
        ]
        # Of a boundary these are the devices that it leaves and enters, whichever placement has it.
        return _frame(rows, ["kind", "name", "before", "after", *_TIMES])

    @property
    def measured(self) -> pd.DataFrame:
        """Measured beside predicted: the latency and, where counters tell, ops and rest.

        Counters come from a compile of their own, and have no interval.

        Raises
        ------
        MeasurementError
            No profiles were given.
        """
        timed = self.timed
        rows: list[dict[str, Any]] = []
        predicted: dict[str, float] = {}
        if self.predicted_parts is not None:
            of_ops = sum(p.difference_ns for p in self.priced if p.kind in (OPS, LOST_FUSION))
            whole = sum(p.difference_ns for p in self.priced)
            predicted = {"ops": of_ops / 1000.0, "rest": (whole - of_ops) / 1000.0}
            predicted["latency"] = whole / 1000.0
        if timed.ops_before_us is not None and timed.ops_after_us is not None:
            by_counters = timed.ops_after_us - timed.ops_before_us
            rows.append({"part": "ops", "measured_us": by_counters})
            rows.append({"part": "rest", "measured_us": timed.difference_us - by_counters})
        rows.append(
            {
                "part": "latency",
                "measured_us": timed.difference_us,
                "measured_ci95_low_us": timed.low_us,
                "measured_ci95_high_us": timed.high_us,
            }
        )
        columns = ["part", "measured_us", "measured_ci95_low_us", "measured_ci95_high_us"]
        if predicted:
            rows = [{**row, "predicted_us": predicted[row["part"]]} for row in rows]
            columns.insert(1, "predicted_us")
        return _frame(rows, columns)

    def __repr__(self) -> str:
        return "\n".join(_sentences(self))

    def _sentences(self) -> list[str]:
        return _sentences(self)

    def _shown(self) -> dict[str, pd.DataFrame]:
        shown = {"": self.summary}
        if self.predicted_parts:
            shown["Where the difference comes from"] = self.parts
        if self.moved:
            shown["Ops that move"] = self.ops
        return shown


def _sentences(difference: Difference) -> list[str]:
    """Say what differs, what is predicted and what was measured, one sentence per line."""
    before, after = difference.before, difference.after
    lines = [f"Before is {shorten(before.label, 80)}, after is {shorten(after.label, 80)}."]
    if before.label == after.label:
        lines = [
            f"Both are called {shorten(before.label, 80)}: before is the first, after the second."
        ]
    lines.append(_moved_sentence(difference))
    lines += _structure_sentences(difference)
    if difference.predicted_parts is not None:
        lines += _predicted_sentences(difference)
    if difference.measurement is not None:
        lines += _measured_sentences(difference)
    return [*lines, *difference.notes]


def change(difference_us: float) -> str:
    """Write a difference with its sign: ``+12.0 µs``."""
    if not difference_us:
        return "±0 µs"
    sign = "−" if difference_us < 0 else "+"
    return f"{sign}{number(abs(difference_us))} µs"


def part_name(part: Part) -> str:
    """Say what a part of a prediction is about, on one line."""
    if part.kind == OPS:
        return f"{shorten(part.name, 60)} on {part.device_after} instead of {part.device_before}"
    if part.kind == BOUNDARIES:
        where = f"{part.device_before} to {part.device_after}"
        return f"{shorten(part.name, 60)} crossing from {where}"
    if part.kind == SUBGRAPHS:
        return f"subgraphs on {part.device_after}"
    if part.kind == SPREAD:
        return "memory spread over subgraphs"
    first, _, second = part.name.partition("\n")
    return f"fusion of {shorten(first, 40)} and {shorten(second, 40)}"


def _moved_sentence(difference: Difference) -> str:
    if not difference.moved:
        return "No op moves: both put every op on the same device."
    ways: dict[tuple[str, str], Counter[str]] = {}
    for op in difference.moved:
        ways.setdefault((op.before, op.after), Counter())[op.op_type] += 1
    moves = [
        f"{sum(types.values())} from {before} to {after} ({_types(types)})"
        for (before, after), types in ways.items()
    ]
    n, of = len(difference.moved), len(difference.before.affinity.ops)
    return f"{n} of {of} ops {'moves' if n == 1 else 'move'}: {'; '.join(moves)}."


def _types(types: Counter[str]) -> str:
    shown = [f"{n} {op_type}" for op_type, n in types.most_common(_MOST_TYPES)]
    rest = len(types) - len(shown)
    return ", ".join(shown) + (f" and {rest} more types" if rest else "")


def _structure_sentences(difference: Difference) -> Iterator[str]:
    old, new = _structure(difference.before.partition), _structure(difference.after.partition)
    if old == new:
        yield f"Both have {_shape(*new)}."
    else:
        yield f"After has {_shape(*new)}; before has {_shape(*old)}."


def _shape(n_subgraphs: int, n_boundaries: int, n_bytes: int) -> str:
    subgraphs = f"{n_subgraphs} subgraph{'s' * (n_subgraphs != 1)}"
    if not n_boundaries:
        return f"{subgraphs} and no boundary"
    word = "boundary" if n_boundaries == 1 else "boundaries"
    return f"{subgraphs} and {n_boundaries} {word} with {n_bytes:,} bytes"


def _predicted_sentences(difference: Difference) -> Iterator[str]:
    total = difference.predicted_us
    levels = (
        f"{number(difference.before.predicted_us)} → {number(difference.after.predicted_us)} µs"
    )
    if not difference.priced:
        yield f"Both are predicted to take {number(difference.after.predicted_us)} µs."
        return
    by_kind: dict[str, int] = {}
    for part in difference.priced:
        by_kind[part.kind] = by_kind.get(part.kind, 0) + part.difference_ns
    kinds = ", ".join(f"{kind} {change(ns / 1000.0)}" for kind, ns in by_kind.items())
    if total:
        word = "faster" if total < 0 else "slower"
        yield f"After is predicted {number(abs(total))} µs {word} ({levels}): {kinds}."
    else:
        yield f"After is predicted as fast as before ({levels}): {kinds}."
    largest = [
        f"{part_name(part)} {change(part.difference_ns / 1000.0)}"
        for part in difference.priced[:_MOST_PARTS]
    ]
    rest = len(difference.priced) - len(largest)
    more = f"; {rest} smaller parts" if rest > 1 else "; one smaller part" if rest else ""
    yield f"Largest parts: {'; '.join(largest)}{more}."


def _measured_sentences(difference: Difference) -> Iterator[str]:
    timed = difference.timed
    level = f"{number(timed.before_us)} → {number(timed.after_us)} µs"
    if not math.isfinite(timed.high_us):
        yield (
            f"After was measured {change(timed.difference_us)} ({level}), with too few turns for "
            "an interval."
        )
        return
    interval = f"95 % interval {change(timed.low_us)} to {change(timed.high_us)}"
    if timed.low_us <= 0.0 <= timed.high_us:
        yield (
            f"No difference was seen in the measurement: after takes "
            f"{change(timed.difference_us)} "
            f"({interval}; {level})."
        )
    else:
        word = "faster" if timed.difference_us < 0 else "slower"
        yield (
            f"After was measured {number(abs(timed.difference_us))} µs {word} "
            f"({interval}; {level})."
        )
    if difference.predicted_parts is not None:
        inside = timed.low_us <= difference.predicted_us <= timed.high_us
        yield f"The prediction lies {'within' if inside else 'outside'} that interval."


def compare_placements(
    graph: OpGraph,
    before: tuple[str, Affinity, Partition],
    after: tuple[str, Affinity, Partition],
    costs: CostModel | None = None,
    *,
    measurement: Measurement | None = None,
    emulated: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Difference:
    """Compare two placements, each given as label, affinity and partition.

    Raises
    ------
    AffinityError
        An affinity is of another model.
    PlanError
        The costs are of another model, or do not know a device of the placements.
    """
    sides = [Side(*before), Side(*after)]
    for side in sides:
        side.affinity.check_model(graph)
    parts = None
    if costs is not None:
        costs.check_graph(graph)
        first, second = (costs.explain(side.affinity) for side in sides)
        parts = _parts(costs, sides[0].affinity, sides[1].affinity, first, second)
        sides = [
            replace(side, kinds_ns=_by_kind(prediction))
            for side, prediction in zip(sides, (first, second), strict=True)
        ]
    return Difference(
        graph=graph,
        before=sides[0],
        after=sides[1],
        moved=_moved(graph, sides[0].affinity, sides[1].affinity, costs),
        subgraph_changes=_subgraph_changes(sides[0].partition, sides[1].partition),
        boundary_changes=_boundary_changes(sides[0].partition, sides[1].partition),
        predicted_parts=parts,
        measurement=measurement,
        emulated=dict(emulated or {}),
        notes=notes,
    )


def _moved(
    graph: OpGraph, before: Affinity, after: Affinity, costs: CostModel | None
) -> tuple[MovedOp, ...]:
    found = []
    for name, old, new in after.diff(before).itertuples(index=False, name=None):
        node = graph.index_of[name]
        times = (None, None)
        if costs is not None:
            times = tuple(
                int(costs.objective.op_ns[node, costs.devices.index(d)]) for d in (old, new)
            )
        found.append(MovedOp(name, graph.ops[node].type, old, new, *times))
    return tuple(found)


def _subgraph_changes(before: Partition, after: Partition) -> tuple[SubgraphChange, ...]:
    old, new = (Counter((s.device, s.ops) for s in p.subgraphs) for p in (before, after))
    changes = [SubgraphChange(GONE, *key) for key in (old - new).elements()]
    changes += [SubgraphChange(NEW, *key) for key in (new - old).elements()]
    return tuple(changes)


def _boundary_changes(before: Partition, after: Partition) -> tuple[BoundaryChange, ...]:
    old, new = _hand_overs(before), _hand_overs(after)
    n_bytes = {b.tensor: b.n_bytes for p in (before, after) for b in p.boundaries}
    return tuple(
        BoundaryChange(*key, n_bytes[key[0]], old[key], new[key])
        for key in dict.fromkeys([*old, *new])
        if old[key] != new[key]
    )


def _hand_overs(partition: Partition) -> Counter[tuple[str, str, str]]:
    """Count (tensor, source device, target device), once a receiving subgraph."""
    device = [subgraph.device for subgraph in partition.subgraphs]
    return Counter(
        (boundary.tensor, device[boundary.source], device[target])
        for boundary in partition.boundaries
        for target in boundary.targets
    )


def _parts(
    costs: CostModel, a: Affinity, b: Affinity, before: Prediction, after: Prediction
) -> tuple[Part, ...]:
    parts = [
        Part(OPS, op.op, op.before, op.after, op.before_ns or 0, op.after_ns or 0)
        for op in _moved(costs.graph, a, b, costs)
    ]
    old, new = _priced(before), _priced(after)
    parts += [
        Part(*key, before_ns=old.get(key, 0), after_ns=new.get(key, 0))
        for key in dict.fromkeys([*old, *new])
    ]
    different = [part for part in parts if part.difference_ns]
    return tuple(sorted(different, key=lambda part: -abs(part.difference_ns)))


def _priced(prediction: Prediction) -> dict[tuple[str, str, str, str], int]:
    """Return kind, name, first and second device → ns, of all but the ops."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for subgraph in prediction.subgraphs:
        found[SUBGRAPHS, "", subgraph.device, subgraph.device] += _ns(subgraph.us)
    found[SPREAD, "", "", ""] += _ns(prediction.spread_us)
    for boundary in prediction.boundaries:
        source, target = boundary.source_device, boundary.target_device
        found[BOUNDARIES, boundary.tensor, source, target] += _ns(boundary.us)
    for pair in prediction.lost_fusion:
        found[LOST_FUSION, f"{pair.first}\n{pair.second}", "", ""] += _ns(pair.us)
    return dict(found)


def _by_kind(prediction: Prediction) -> dict[str, int]:
    shares = {
        OPS: prediction.units,
        LOST_FUSION: prediction.lost_fusion,
        SUBGRAPHS: prediction.subgraphs,
        BOUNDARIES: prediction.boundaries,
    }
    by_kind = {kind: sum(_ns(share.us) for share in every) for kind, every in shares.items()}
    alone = {CONSTANT: _ns(prediction.constant_us), SPREAD: _ns(prediction.spread_us)}
    return {**alone, **by_kind}


def _ns(us: float) -> int:
    """Return the whole nanoseconds that a share was made of."""
    return round(us * 1000.0)


def _times(before_ns: int, after_ns: int) -> tuple[float, float, float]:
    """Return before, after and their difference in µs, subtracted as whole nanoseconds."""
    return before_ns / 1000.0, after_ns / 1000.0, (after_ns - before_ns) / 1000.0


def _structure(partition: Partition) -> tuple[int, int, int]:
    """Return numbers of subgraphs and boundaries, and bytes of the boundaries."""
    return partition.n_subgraphs, len(partition.boundaries), partition.boundary_bytes


def _frame(rows: Sequence[Any], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)
