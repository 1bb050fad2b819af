"""Difference between two placements, and where the predicted difference comes from.

A difference is ``after`` minus ``before``: below 0, after is faster. One frame holds every part of
both predictions in whole nanoseconds, so that parts add up exactly; all tables are made from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.prediction import (
    BOUNDARIES,
    KINDS,
    LOST_FUSION,
    OPS,
    SPREAD,
    SUBGRAPHS,
    Prediction,
)
from hetero_lab.errors import MeasurementError, PlanError, shorten
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.result import Displayed
from hetero_lab.tables import frame_of, number
from hetero_lab.terminal import count_of, first_of

if TYPE_CHECKING:
    import pandas as pd

_PART = ["kind", "name", "before", "after"]
_TIMES = ["before_us", "after_us", "difference_us"]
# A sentence names so many; the tables have all.
_MOST_TYPES, _MOST_PARTS = 4, 3


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two placements."""

    label: str
    affinity: Affinity
    partition: Partition

    @property
    def structure(self) -> tuple[int, int, int]:
        """Numbers of subgraphs and boundaries, and bytes of the boundaries."""
        partition = self.partition
        return partition.n_subgraphs, len(partition.boundaries), partition.boundary_bytes


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured latencies and their difference with its 95 % interval, in µs.

    The difference is taken turn by turn, paired where one run measured both, so it need not equal
    the difference of the medians. ``ops_*`` are the counters of ops, None where a device has none.
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


@dataclass(frozen=True, eq=False)
class Difference(Displayed):
    """Differences between two placements of one model.

    Attributes
    ----------
    before, after
        The two placements: label, affinity, partition.
    predicted_ns
        One row for each part of the two predictions: ``kind, name, before, after``, ``before_ns``
        and ``after_ns``. None without costs.
    margin_us
        By how much the predicted difference may be off, at 90 %; infinite without validation.
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
    predicted_ns: pd.DataFrame | None = None
    margin_us: float = math.inf
    measurement: Measurement | None = None
    emulated: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def priced_ns(self) -> pd.DataFrame:
        """``predicted_ns``; raises PlanError if no costs were given."""
        if self.predicted_ns is None:
            raise PlanError(
                "This difference has no prediction. Give costs: hetero_lab.explain(model, before, "
                "after, hetero_lab.calibrate(model, devices))."
            )
        return self.predicted_ns

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
    def predicted_us(self) -> float:
        """Predicted latency of after minus that of before, in µs; PlanError without costs."""
        return float(self.kinds["difference_us"].iloc[-1])

    @property
    def summary(self) -> pd.DataFrame:
        """Rows ``before``, ``after``, ``difference``: structure, predicted and measured latency."""
        sides = [self.before.structure, self.after.structure]
        minus = [new - old for old, new in zip(*sides, strict=True)]
        frame = frame_of(
            [
                ("before", self.before.label, 0, *sides[0]),
                ("after", self.after.label, 0, *sides[1]),
                ("difference", "after − before", len(self.moved), *minus),
            ],
            ["placement", "label", "n_ops_moved", "n_subgraphs", "n_boundaries", "boundary_bytes"],
        )
        if self.predicted_ns is not None:
            frame["predicted_us"] = self.kinds.iloc[-1][_TIMES].tolist()
        if self.measurement is not None:
            timed = self.measurement
            values = [
                (timed.before_us, *timed.before_ci95_us),
                (timed.after_us, *timed.after_ci95_us),
                (timed.difference_us, timed.low_us, timed.high_us),
            ]
            frame[["measured_us", "measured_ci95_low_us", "measured_ci95_high_us"]] = values
        return frame

    @cached_property
    def moved(self) -> pd.DataFrame:
        """The ops on another device: ``op, op_type, before, after``."""
        frame = self.after.affinity.diff(self.before.affinity)
        ops, index_of = self.graph.ops, self.graph.index_of
        frame.insert(1, "op_type", [ops[index_of[name]].type for name in frame["op"]])
        return frame

    @property
    def ops(self) -> pd.DataFrame:
        """The ops that move: ``op, op_type, before, after``, with costs their times."""
        if self.predicted_ns is None:
            return self.moved
        parts = self.predicted_ns
        of_ops = parts[parts["kind"] == OPS].rename(columns={"name": "op"})
        times = _in_us(of_ops)[["op", *_TIMES]]
        return self.moved.merge(times, on="op", how="left")

    @property
    def devices(self) -> pd.DataFrame:
        """Number of ops on each device: ``device, before, after, arrived, left``."""
        counts = [
            self.before.affinity.counts(),
            self.after.affinity.counts(),
            Counter(self.moved["after"]),
            Counter(self.moved["before"]),
        ]
        rows = [
            (device, *(count.get(device, 0) for count in counts))
            for device in dict.fromkeys([*counts[0], *counts[1]])
        ]
        return frame_of(rows, ["device", "before", "after", "arrived", "left"])

    @property
    def subgraphs(self) -> pd.DataFrame:
        """The subgraphs that only one placement has: ``change, device, n_ops, ops``."""
        old, new = (
            Counter((s.device, s.ops) for s in side.partition.subgraphs)
            for side in (self.before, self.after)
        )
        rows = [
            (change, device, len(ops), "\n".join(ops))
            for change, only in (("gone", old - new), ("new", new - old))
            for device, ops in only.elements()
        ]
        return frame_of(rows, ["change", "device", "n_ops", "ops"])

    @property
    def boundaries(self) -> pd.DataFrame:
        """Hand-overs that appear and vanish, with bytes; with costs their predicted time."""
        sides = [self.before.partition, self.after.partition]
        old, new = map(_hand_overs, sides)
        n_bytes = {b.tensor: b.n_bytes for side in sides for b in side.boundaries}
        changed = [key for key in dict.fromkeys([*old, *new]) if old[key] != new[key]]
        key, counts = ["tensor", "source_device", "target_device"], ["n_before", "n_after"]
        frame = frame_of(
            [(*k, n_bytes[k[0]], _change(old[k], new[k]), old[k], new[k]) for k in changed],
            [*key, "n_bytes", "change", *counts],
        )
        if self.predicted_ns is not None:
            parts = self.parts
            prices = parts[parts["kind"] == BOUNDARIES].set_index(_PART[1:])["difference_us"]
            # A hand-over whose price does not change has no row in parts.
            frame["difference_us"] = [float(prices.get(key, 0.0)) for key in changed]
        return frame

    @property
    def kinds(self) -> pd.DataFrame:
        """The prediction by kind and in total: ``kind, before_us, after_us, difference_us``.

        PlanError without costs.
        """
        totals = self.priced_ns.groupby("kind")[["before_ns", "after_ns"]].sum()
        totals = totals.reindex(list(KINDS), fill_value=0)
        totals.loc["total"] = totals.sum()
        return _in_us(totals.rename_axis("kind").reset_index())

    @property
    def parts(self) -> pd.DataFrame:
        """Every part that differs, largest first; they add up to ``predicted_us``.

        ``before`` and ``after`` are the devices of the part in the two placements; for a boundary
        they are the devices that it leaves and enters, whichever placement has it. PlanError
        without costs.
        """
        parts = self.priced_ns
        differ = _in_us(parts[parts["before_ns"] != parts["after_ns"]])
        return differ.sort_values(
            "difference_us", key=abs, ascending=False, kind="stable", ignore_index=True
        )

    @property
    def measured(self) -> pd.DataFrame:
        """Measured beside predicted: the latency and, where there are counters, ops and rest.

        Counters come from a compilation of their own, and have no interval. MeasurementError
        without profiles.
        """
        timed, nan = self.timed, math.nan
        rows: list[tuple[str, float, float, float]] = []
        if timed.ops_before_us is not None and timed.ops_after_us is not None:
            by_counters = timed.ops_after_us - timed.ops_before_us
            rows.append(("ops", by_counters, nan, nan))
            rows.append(("rest", timed.difference_us - by_counters, nan, nan))
        rows.append(("latency", timed.difference_us, timed.low_us, timed.high_us))
        frame = frame_of(
            rows, ["part", "measured_us", "measured_ci95_low_us", "measured_ci95_high_us"]
        )
        if self.predicted_ns is not None:
            kinds = self.kinds.set_index("kind")["difference_us"]
            of_ops, whole = kinds[OPS] + kinds[LOST_FUSION], kinds["total"]
            predicted = {"ops": of_ops, "rest": whole - of_ops, "latency": whole}
            frame.insert(1, "predicted_us", frame["part"].map(predicted))
        return frame

    def __repr__(self) -> str:
        return "\n".join(self._sentences())

    def _sentences(self) -> list[str]:
        """Describe the structure, the prediction and the measurement, one sentence per line."""
        before, after = self.before, self.after
        lines = [f"Before is {shorten(before.label, 80)}, after is {shorten(after.label, 80)}."]
        if before.label == after.label:
            both = shorten(before.label, 80)
            lines = [f"Both are called {both}: before is the first, after the second."]
        lines += [_moved_sentence(self), _structure_sentence(before, after)]
        if self.predicted_ns is not None:
            lines += _predicted_sentences(self)
        if self.measurement is not None:
            lines += _measured_sentences(self)
        return [*lines, *self.notes]

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        tables = {"": self.summary}
        if self.predicted_ns is not None and len(self.parts):
            tables["Where the difference comes from"] = self.parts
        if len(self.moved):
            tables["Ops that move"] = self.ops
        return tables


def change(difference_us: float) -> str:
    """Write a difference with its sign: ``+12.0 µs``."""
    if not difference_us:
        return "±0 µs"
    sign = "−" if difference_us < 0 else "+"
    return f"{sign}{number(abs(difference_us))} µs"


def part_name(part: Any) -> str:
    """Describe a row of ``parts`` in a few words."""
    if part.kind == OPS:
        return f"{shorten(part.name, 60)} on {part.after} instead of {part.before}"
    if part.kind == BOUNDARIES:
        return f"{shorten(part.name, 60)} crossing from {part.before} to {part.after}"
    if part.kind == SUBGRAPHS:
        return f"subgraphs on {part.after}"
    if part.kind == SPREAD:
        return "memory spread over subgraphs"
    first, _, second = part.name.partition("\n")
    return f"fusion of {shorten(first, 40)} and {shorten(second, 40)}"


def _moved_sentence(difference: Difference) -> str:
    moved = difference.moved
    if moved.empty:
        return "No op moves: both put every op on the same device."
    moves = [
        f"{len(ops)} from {before} to {after} ({_types(ops['op_type'])})"
        for (before, after), ops in moved.groupby(["before", "after"], sort=False)
    ]
    n, of = len(moved), len(difference.before.affinity.ops)
    return f"{n} of {of} ops {'moves' if n == 1 else 'move'}: {'; '.join(moves)}."


def _types(types: Iterable[str]) -> str:
    counts = [f"{n} {op_type}" for op_type, n in Counter(types).most_common()]
    return first_of(counts, _MOST_TYPES, "types")


def _structure_sentence(before: Side, after: Side) -> str:
    if before.structure == after.structure:
        return f"Both have {_shape(*after.structure)}."
    return f"After has {_shape(*after.structure)}; before has {_shape(*before.structure)}."


def _shape(n_subgraphs: int, n_boundaries: int, n_bytes: int) -> str:
    subgraphs = count_of(n_subgraphs, "subgraph")
    if not n_boundaries:
        return f"{subgraphs} and no boundary"
    return f"{subgraphs} and {count_of(n_boundaries, 'boundary')} with {n_bytes:,} bytes"


def _predicted_sentences(difference: Difference) -> Iterator[str]:
    before_us, after_us, total = difference.kinds.iloc[-1][_TIMES].tolist()
    levels = f"{number(before_us)} → {number(after_us)} µs"
    parts = difference.parts
    if parts.empty:
        yield f"Both are predicted to take {number(after_us)} µs."
        return
    by_kind = parts.groupby("kind", sort=False)["difference_us"].sum().round(3)
    kinds = ", ".join(f"{kind} {change(us)}" for kind, us in by_kind.items())
    if total:
        word, margin = "faster" if total < 0 else "slower", difference.margin_us
        by = number(abs(total)) + (f" ± {number(margin)}" if margin < math.inf else "")
        if abs(total) <= margin < math.inf:
            word += ", too little to tell them apart"
        yield f"After is predicted {by} µs {word} ({levels}): {kinds}."
    else:
        yield f"After is predicted as fast as before ({levels}): {kinds}."
    largest = [
        f"{part_name(part)} {change(us)}"
        for part, us in zip(
            parts.head(_MOST_PARTS).itertuples(), parts["difference_us"], strict=False
        )
    ]
    rest = len(parts) - len(largest)
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
        start, caveat = "After looks", ", within chance"
    else:
        start, caveat = "After was measured", ""
    word = "faster" if timed.difference_us < 0 else "slower"
    yield f"{start} {number(abs(timed.difference_us))} µs {word}{caveat} ({interval}; {level})."
    if difference.predicted_ns is not None:
        inside = timed.low_us <= difference.predicted_us <= timed.high_us
        yield f"The prediction lies {'within' if inside else 'outside'} that interval."


def compare_placements(
    graph: OpGraph,
    before: Side,
    after: Side,
    costs: CostModel | None = None,
    *,
    measurement: Measurement | None = None,
    emulated: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Difference:
    """Compare two placements of ``graph``."""
    for side in (before, after):
        side.affinity.check_model(graph)
    predicted_ns, margin_us = None, math.inf
    if costs is not None:
        costs.check_graph(graph)
        predicted_ns = _predicted_ns(costs, before.affinity, after.affinity)
        margin_us = costs.predictor(before.affinity).margin_us(costs.predictor(after.affinity))
    bases = dict(emulated or {})
    return Difference(graph, before, after, predicted_ns, margin_us, measurement, bases, notes)


def _predicted_ns(costs: CostModel, before: Affinity, after: Affinity) -> pd.DataFrame:
    """Return every part of the two predictions, in ns."""
    import pandas as pd

    sides = [_parts_ns(costs.explain(affinity)) for affinity in (before, after)]
    others = pd.concat(sides, axis=1, keys=["before_ns", "after_ns"], sort=False)
    others = others.fillna(0).astype("int64").reset_index()
    index_of, op_ns = costs.graph.index_of, costs.objective.op_ns
    column = {device: at for at, device in enumerate(costs.devices)}
    nodes = [index_of[op] for op in after.ops]
    ops = pd.DataFrame({"kind": OPS, "name": after.ops})
    for name, side in (("before", before), ("after", after)):
        ops[name] = [side[op] for op in after.ops]
    for name in ("before", "after"):
        ops[f"{name}_ns"] = op_ns[nodes, ops[name].map(column)]
    return pd.concat([ops, others], ignore_index=True)


def _parts_ns(prediction: Prediction) -> pd.Series:
    """Return all parts but the ops, added up by kind, name, first and second device."""
    rows = [
        # Subgraphs of two placements have nothing in common but their device.
        (s.kind, "" if s.kind == SUBGRAPHS else s.name, s.device, s.target, round(s.us * 1000.0))
        for s in prediction.shares
        if s.kind != OPS
    ]
    return frame_of(rows, [*_PART, "ns"]).groupby(_PART, sort=False)["ns"].sum()


def _hand_overs(partition: Partition) -> Counter[tuple[str, str, str]]:
    """Count (tensor, source device, target device), once a receiving subgraph."""
    device = [subgraph.device for subgraph in partition.subgraphs]
    return Counter(
        (boundary.tensor, device[boundary.source], device[target])
        for boundary in partition.boundaries
        for target in boundary.targets
    )


def _change(n_before: int, n_after: int) -> str:
    if not n_before:
        return "new"
    if not n_after:
        return "gone"
    return "more" if n_after > n_before else "fewer"


def _in_us(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace ``before_ns`` and ``after_ns`` by their times and difference in µs."""
    before, after = frame["before_ns"], frame["after_ns"]
    times = zip(_TIMES, (before, after, after - before), strict=True)
    rest = frame.drop(columns=["before_ns", "after_ns"])
    return rest.assign(**{name: ns / 1000.0 for name, ns in times})
