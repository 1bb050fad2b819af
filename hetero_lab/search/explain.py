"""Before and after: two placements, predicted and measured, and two sweeps of the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_lab.arguments import HETERO
from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.difference import Difference, Measurement, Side, compare_placements
from hetero_lab.devices.core import bases_of, bind, storable
from hetero_lab.errors import ArgumentError, names_at_hand, shorten
from hetero_lab.intervals import (
    Estimate,
    holm,
    largest_noise,
    series_ratio,
    turn_level,
    unpaired_ratio,
)
from hetero_lab.model.read import Source
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.result import Result
from hetero_lab.results.environment import noise_of
from hetero_lab.results.evidence import finding, ratio_across, reason
from hetero_lab.results.profile_result import Profile
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import Row
from hetero_lab.runtime.counters import total_us
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

Measured: TypeAlias = Profile | Row


def explain(
    model: Source,
    before: PlacementLike,
    after: PlacementLike,
    costs: CostModel | None = None,
    *,
    profiles: Sequence[Measured] | Sweep | None = None,
    core: ov.Core | None = None,
) -> Difference:
    """Say what differs between two placements, and where a difference in latency comes from.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    before, after
        Each an Affinity, a Placement, ``"HETERO:ACC,CPU"`` or ``"CPU"``. A difference is after
        minus before: below 0, after is faster.
    costs
        A cost model of the same model; with it the predicted difference is divided into parts
        that add up to it.
    profiles
        Measurements: ``(profile_before, profile_after)``, two rows of a Sweep, or the Sweep with
        both placements. Turns of one sweep are paired, which narrows the interval.

    Returns
    -------
    Difference
        Prints as sentences; tables ``summary``, ``ops``, ``devices``, ``subgraphs``,
        ``boundaries``, with costs ``kinds`` and ``parts``, with profiles ``measured``.

    Raises
    ------
    AffinityError, DeviceError
        A placement is of another model, or a device cannot run what is placed on it.
    PlanError
        The costs are of another model or do not know a device.
    ArgumentError
        ``costs`` is not a cost model, or a profile is not of its placement.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> print(hl.explain(model, "CPU", "HETERO:ACC,CPU"))
    Before is 'CPU', after is 'HETERO:ACC,CPU'.
    91 of 92 ops move: 91 from CPU to ACC ...
    """
    bound = bind(model, core)
    first, second = (resolve(bound, placement) for placement in (before, after))
    measurement, measured_notes = None, []
    names = [_label(first), _label(second)]
    if profiles is not None:
        sides = _pair(profiles, first, second)
        names = [side.configuration for side in sides]
        pair = (_match("before", first, sides[0]), _match("after", second, sides[1]))
        measurement, measured_notes = _measurement(sides, pair, costs)
    devices = dict.fromkeys([*first.affinity.devices, *second.affinity.devices])
    return compare_placements(
        bound.graph,
        Side(names[0], first.affinity, partition_of(first)),
        Side(names[1], second.affinity, partition_of(second)),
        costs,
        measurement=measurement,
        emulated=bases_of(devices, bound.core),
        notes=(*_notes(first, second, costs), *measured_notes),
    )


def explain_rows(before: Row, after: Row) -> Difference:
    """Say what differs between two measured rows of one model, as they were stored.

    No device is needed: the partitions are those that were observed. ArgumentError, if a row was
    not measured, or they are of different models.
    """
    a, b = (_profile(row, shorten(row.label)) for row in (before, after))
    if a.model_fingerprint != b.model_fingerprint:
        raise ArgumentError(
            f"{shorten(before.label)} and {shorten(after.label)} are of different models or "
            "weights; their placements cannot be compared."
        )
    measurement, notes = _measurement((before, after), (a, b), None)
    has_latency = before.requests == after.requests == 1
    if not has_latency:
        notes.append("A row with several requests in flight has no latency to compare.")
    return compare_placements(
        a.graph,
        Side(before.configuration, a.affinity, a.partition),
        Side(after.configuration, b.affinity, b.partition),
        None,
        measurement=measurement if has_latency else None,
        emulated={**dict(a.environment.emulated), **dict(b.environment.emulated)},
        notes=tuple(notes),
    )


def _label(placement: BoundPlacement) -> str:
    return placement.label or "affinity"


def _pair(
    profiles: Sequence[Measured] | Sweep, before: BoundPlacement, after: BoundPlacement
) -> tuple[Measured, Measured]:
    if isinstance(profiles, Sweep):
        return _row_of("before", profiles, before), _row_of("after", profiles, after)
    pair = tuple(profiles) if isinstance(profiles, Sequence) else ()
    if len(pair) == 2 and all(isinstance(side, Profile | Row) for side in pair):
        return pair[0], pair[1]
    raise ArgumentError(
        "profiles= is (profile_before, profile_after), two rows of a Sweep, or a Sweep with both "
        f"placements, not {shorten(repr(profiles))}."
    )


def _row_of(name: str, sweep: Sweep, placement: BoundPlacement) -> Row:
    """Return the measured row of a placement; one of its label if there are several."""
    rows = [
        row
        for row in sweep.rows
        if row.profile is not None
        and row.requests == 1
        and row.profile.affinity == placement.affinity
    ]
    if not rows:
        raise ArgumentError(
            f"The sweep has no measured row with the affinity of {name} "
            f"({shorten(_label(placement))}). Sweep both placements, or give two profiles."
        )
    return min(rows, key=lambda row: (row.label != placement.label, row.executor != HETERO))


def _profile(source: Measured, name: str) -> Profile:
    """Return the profile of a measurement; ArgumentError if there is none."""
    if isinstance(source, Profile):
        return source
    if source.profile is None or source.latency is None:
        raise ArgumentError(f"{name} was not measured: {source.status}.")
    return source.profile


def _latency(source: Measured) -> Estimate:
    """Return the latency of what was measured; that of a row is on the scale of its sweep."""
    latency = source.latency.estimate if isinstance(source, Profile) else source.latency
    assert latency is not None
    return latency


def _match(name: str, placement: BoundPlacement, source: Measured) -> Profile:
    """Return a profile; ArgumentError if it is not of its placement, or not of a latency."""
    profile = _profile(source, f"The row of {name}")
    if isinstance(source, Row) and source.requests != 1:
        raise ArgumentError(
            f"The row of {name} has {source.requests} requests in flight, so its times "
            "are not latencies. Give a row with one request."
        )
    if profile.model_fingerprint != placement.bound.fingerprint:
        raise ArgumentError(f"The profile of {name} is of another model or of other weights.")
    if profile.affinity != placement.affinity:
        raise ArgumentError(
            f"The profile of {name} ({shorten(profile.label)}) is of another placement: "
            f"{len(profile.affinity.diff(placement.affinity))} ops are on other devices."
        )
    return profile


def _measurement(
    sides: tuple[Measured, Measured], profiles: tuple[Profile, Profile], costs: CostModel | None
) -> tuple[Measurement, list[str]]:
    """Return the measured difference and its caveats; paired if both were measured in turn."""
    notes: list[str] = []
    before, after = map(_latency, sides)
    one, other = (None if isinstance(side, Profile) else side.series for side in sides)
    # One run measured both beside the same reference turns.
    if one and other and one.log_ratios and one.reference == other.reference:
        ratio = series_ratio(other, one)
    else:
        notes.append(
            "The two were not measured in the same turns, so any drift of the machine between them "
            "also shows as a difference."
        )
        noise = largest_noise(noise_of(p.environment, p.affinity.devices) for p in profiles)
        old, new = ([turn_level(turn) for turn in p.latency.turns] for p in profiles)
        ratio = unpaired_ratio(new, old, noise)
    executors = [profile.executor for profile in profiles]
    if executors[0] != executors[1]:
        notes.append(
            f"before ran on the executor {executors[0]}, after on the executor {executors[1]}."
        )
    if costs is not None and any(executor != HETERO for executor in executors):
        notes.append("The prediction is of subgraphs that run one after the other.")
    measurement = Measurement(
        before_us=before.us,
        before_ci95_us=(before.low_us, before.high_us),
        after_us=after.us,
        after_ci95_us=(after.low_us, after.high_us),
        difference_us=after.us - before.us,
        low_us=after.us * ratio.low / ratio.middle - before.us,
        high_us=after.us * ratio.high / ratio.middle - before.us,
        **_op_times(*profiles),
    )
    return measurement, notes


def _op_times(before: Profile, after: Profile) -> dict[str, float]:
    """Return the counters of ops, if every device of both placements has some."""
    times = {}
    for name, profile in (("ops_before_us", before), ("ops_after_us", after)):
        # What takes less than a microsecond counts as not run.
        devices = {c.device for c in profile.counters}
        if not {s.device for s in profile.partition.subgraphs} <= devices:
            return {}
        times[name] = total_us(profile.counters, "op", "other")
    return times


def _notes(before: BoundPlacement, after: BoundPlacement, costs: CostModel | None) -> Iterator[str]:
    """Say which conditions a prediction does not cover."""
    common = [d for d in before.affinity.devices if d in after.affinity.devices]
    if any(_properties(before, d) != _properties(after, d) for d in common):
        yield "The placements also set different device properties, which no prediction covers."
    if costs is None:
        return
    for name, placement in (("before", before), ("after", after)):
        for device in placement.affinity.devices:
            properties = _properties(placement, device)
            if properties and properties != storable(costs.device_properties.get(device, {})):
                yield f"The costs hold for other properties of {device} than {name} sets."


def _properties(placement: BoundPlacement, device: str) -> Mapping[str, Any]:
    return placement.placement.device_properties.get(device, {})


# -- two sweeps -------------------------------------------------------------------------------

_APART = (
    "The two were not measured in turn. The intervals include how far the machine drifted within "
    "each run; anything else that changed between the runs shows up as a difference."
)


@dataclass(frozen=True)
class Comparison(Result):
    """Two sweeps side by side.

    ``table`` has a row per label that both measured of the same ops: ``median_us`` of each,
    ``ratio`` of after to before (below 1 is faster now) with its 95 % interval, ``finding``
    (``faster``, ``slower``, ``as fast`` within 5 %, or ``undecided``) and its ``reason``.
    ``machines`` has what differs between the machines: ``fact``, ``before`` and ``after``.
    """

    _TABLES = ("table", "machines")

    before: Sweep
    after: Sweep

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per label."""
        first, second = (
            {
                sweep.name_of(row): (row, row.latency, row.profile)
                for row in sweep.rows
                if row.latency is not None and row.profile is not None
            }
            for sweep in (self.before, self.after)
        )
        before, after = (
            {label: profile.affinity.keys() for label, (_, _, profile) in rows.items()}
            for rows in (first, second)
        )
        common = [label for label in before if before[label] == after.get(label)]
        ratios = [ratio_across(second[label][0], first[label][0]) for label in common]
        p_values = holm([p for *_, p in ratios]) if ratios else []
        rows = [
            {
                "label": label,
                "configuration": self.after.shown_name(second[label][0]),
                "median_us_before": first[label][1].us,
                "median_us_after": second[label][1].us,
                "ratio": ratio.middle,
                "ratio_ci95_low": ratio.low,
                "ratio_ci95_high": ratio.high,
                "finding": finding(ratio, p),
                "reason": reason(ratio),
                "n_subgraphs_before": first[label][2].partition.n_subgraphs,
                "n_subgraphs_after": second[label][2].partition.n_subgraphs,
            }
            for label, ratio, p in zip(common, ratios, p_values, strict=True)
        ]
        return frame_of(rows)

    @cached_property
    def machines(self) -> pd.DataFrame:
        """What differs between the machines and the versions on them, one row per fact."""
        before, after = _facts(self.before), _facts(self.after)
        rows = [
            (fact, before.get(fact, ""), after.get(fact, ""))
            for fact in before | after
            if before.get(fact) != after.get(fact)
        ]
        return frame_of(rows, ["fact", "before", "after"])

    @property
    def verdict(self) -> str:
        """How many placements are faster, slower, as fast and undecided, in a sentence."""
        findings = self.table["finding"].value_counts()
        return f"After against before: {', '.join(f'{n} {word}' for word, n in findings.items())}."

    @property
    def notes(self) -> list[str]:
        """What was not measured in turn, and what disturbed each run."""
        runs = (("before", self.before), ("after", self.after))
        return [_APART, *(f"{when}: {note}" for when, run in runs for note in run.notes)]

    def __repr__(self) -> str:
        return f"Comparison({self.verdict})"

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        return {"What differs between the machines": self.machines, "Placements": self.table}


def _facts(sweep: Sweep) -> dict[str, str]:
    """Return what is known about the machine of a sweep."""
    here = sweep.environment
    return {
        "measured at": here.measured_at,
        "host": here.host,
        "system": here.system,
        "processors": str(here.n_cpus),
        "clock": f"{sweep.clock_mhz:,.0f} MHz" if sweep.clock_mhz else "",
        "governor": here.governor,
        "on battery": "" if here.on_battery is None else str(here.on_battery).lower(),
        "OpenVINO": here.openvino_version,
        "Python": here.python_version,
        "hetero-lab": here.hetero_lab_version,
        **dict(here.devices),
        **{f"{name} emulated on": base for name, base in here.emulated},
    }


def compare(before: Sweep, after: Sweep) -> Comparison:
    """Compare two sweeps by label, with intervals, for instance around an OpenVINO upgrade.

    Parameters
    ----------
    before, after
        Sweeps, for instance from :func:`hetero_lab.read_sweep`.

    Raises
    ------
    ArgumentError
        An argument is not a sweep, or no label was measured in both.

    Notes
    -----
    The runs are not paired, so the intervals are Welch's (1947) on the logarithms of the turns,
    widened by the noise between compiles and by the drift of the machine within each run. If the
    machine drifts further between the runs than within one, this shows up as a difference.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> options = {"turns": 2, "isolate": False, "counters": False, "progress": False}
    >>> before, after = (hl.sweep(model, ["CPU"], **options) for _ in range(2))
    >>> hl.compare(before, after)
    Comparison(...)
    """
    comparison = Comparison(before, after)
    if not len(comparison.table):
        raise ArgumentError(
            "No label was measured in both sweeps with the same model. Before: "
            f"{names_at_hand([r.label for r in before.rows])}; after: "
            f"{names_at_hand([r.label for r in after.rows])}."
        )
    return comparison
