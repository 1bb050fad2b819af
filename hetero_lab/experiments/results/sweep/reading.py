"""Read a sweep from the header and the records of its store."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hetero_lab.errors import ArgumentError, StoredFileError, names_at_hand, shorten
from hetero_lab.experiments.measure.environment import Environment, noise_of
from hetero_lab.experiments.measure.records import (
    Accuracy,
    AnyRecord,
    Call,
    Compiled,
    Counters,
    Failed,
    Finished,
    Header,
    Host,
    OfEntry,
    State,
    Sustained,
    Trial,
    Turn,
)
from hetero_lab.experiments.measure.store import read_store
from hetero_lab.experiments.measure.trial import FROM_CACHE
from hetero_lab.experiments.results.answers import evaluation_from, nan_notes, problem_from
from hetero_lab.experiments.results.profile.result import profile_of
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.results.sweep.row import BUDGET_ENDED, INTERRUPTED, Row
from hetero_lab.model.opgraph import OpGraph, graph_from_json
from hetero_lab.runtime.timing import DISCARDED_PER_TURN, TIMED_PER_TURN
from hetero_lab.statistics import Latency, Series, turn_level
from hetero_lab.tables import number


def read_sweep(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> Sweep:
    """Read a stored sweep, or several into one; no device is needed.

    Of several, labels get the directory's name in front. Ratios stay within their own run. Runs
    that had the same reference on the same host and OpenVINO version are ranked together by them,
    and their latencies are on the scale of the first run; others are ranked apart.

    Raises
    ------
    StoredFileError
        A directory holds no sweep, or a broken one.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     measured = hl.sweep(model, ["CPU"], turns=2, store=scratch, progress=False)
    ...     stored = hl.read_sweep(scratch)
    >>> stored.summary.equals(measured.summary)
    True
    """
    if isinstance(directory, str | os.PathLike):
        return _shown(sweep_from(*read_store(directory), where=str(directory)), directory)
    directories = list(directory)
    names = [Path(d).resolve().name for d in directories]
    if len(set(names)) < len(names):
        names = [os.fspath(d) for d in directories]
    several = [(name, read_sweep(d)) for name, d in zip(names, directories, strict=True)]
    if not several:
        raise ArgumentError("Name at least one directory.")
    if len(several) == 1:
        return several[0][1]
    rows: list[Row] = []
    # Rows of several runs can be ranked together where ratios are to the same reference; the first
    # run that had it sets the scale.
    scales: dict[tuple[str, ...], tuple[str, Latency | None]] = {}
    for name, sweep in several:
        first_group = 1 + max((at[0] for row in rows for at in row.series.ours), default=-1)
        reference = next((row.key for row in sweep.rows if row.label == sweep.reference), "")
        for row in sweep.rows:
            own = row.profile.environment if row.profile else sweep.environment
            beside = (reference, own.host, own.openvino_version)
            run, level = scales.setdefault(beside, (name, row.reference_latency))
            rows.append(_beside_others(row, name, first_group, run, level))
    notes = [f"{name}: {note}" for name, sweep in several for note in sweep.notes]
    if len({sweep.reference for _, sweep in several}) > 1:
        notes.append(
            "The runs have different references, so that their rows are ranked apart: "
            + ", ".join(f"{name} has {shorten(sweep.reference)}" for name, sweep in several)
            + "."
        )
    return Sweep(
        rows=tuple(rows),
        reference=f"{several[0][0]}/{several[0][1].reference}",
        environment=several[0][1].environment,
        notes=tuple(notes),
    )


def _beside_others(row: Row, name: str, first_group: int, run: str, level: Latency | None) -> Row:
    """Return a row of one run as one of several: no turn of another is in the same round."""
    of_this, reference = (
        {(group + first_group, number): value for (group, number), value in levels.items()}
        for levels in (row.series.ours, row.series.reference)
    )
    return replace(
        row,
        label=f"{name}/{row.label}",
        same_as=row.same_as and f"{name}/{row.same_as}",
        series=replace(row.series, ours=of_this, reference=reference),
        reference_latency=level,
        run=run,
    )


def _shown(sweep: Sweep, directory: str | os.PathLike[str]) -> Sweep:
    """Return a sweep that was read from a file, if it can be shown too."""
    try:
        repr(sweep)
        sweep._repr_html_()
    except Exception as error:
        raise StoredFileError(
            f"{shorten(os.fspath(directory))} is not a whole sweep: {type(error).__name__}: {error}"
        ) from error
    return sweep


def sweep_from(
    header: Header,
    records: Sequence[AnyRecord],
    *,
    interrupted: bool = False,
    where: str = "",
) -> Sweep:
    """Build a Sweep from what a store holds."""
    try:
        return _build(header, records, interrupted)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise StoredFileError(
            f"{shorten(where)} is not a whole sweep: {type(error).__name__}: {error}"
        ) from error


def _build(header: Header, records: Sequence[AnyRecord], interrupted: bool) -> Sweep:
    graphs = {name: graph_from_json(model.graph) for name, model in header.models.items()}
    here = header.environments[-1]
    hosts = {r.host: r.environment for r in records if isinstance(r, Host)}
    calls = {r.host: r for r in records if isinstance(r, Call)}
    by_entry: dict[str, list[AnyRecord]] = {}
    for record in records:
        if isinstance(record, OfEntry):
            by_entry.setdefault(record.entry, []).append(record)
    references: dict[str, list[Turn]] = {}
    for r in by_entry.get(header.reference, ()):
        if isinstance(r, Turn):
            references.setdefault(r.host, []).append(r)
    busy = {
        host: _foreign_cpus(records, host) > _BUSY * environment.n_cpus
        for host, environment in {"": here, **hosts}.items()
    }
    reference_devices = next((e.devices for e in header.entries if e.key == header.reference), ())
    rows: list[Row] = []
    first_label: dict[str, str] = {}
    for entry in header.entries:
        if not entry.asked:
            continue
        same_as = first_label.setdefault(entry.key, entry.label)
        every = by_entry.get(entry.key, [])
        for host in _hosts_of(header, entry.key, every, hosts):
            made = _row(
                entry,
                [r for r in every if r.host == host and not isinstance(r, Accuracy)],
                graphs[entry.variant],
                header.models[entry.variant].fingerprint,
                hosts.get(host, here),
                references.get(host, []),
                reference_devices,
                busy.get(host, False),
                "" if same_as == entry.label else same_as,
                None if interrupted else calls.get(host),
                interrupted,
            )
            # Accuracy is evaluated where the sweep was called, whichever host measured the row.
            found = problem = None
            if made.profile is not None:
                found, problem = evaluation_from(every, entry.label), problem_from(every)
            if problem:
                made = replace(made, status="accuracy failed", detail=problem)
            rows.append(replace(made, host=host, evaluation=found))
    labels = {row.key: row.label for row in reversed(rows)}
    return Sweep(
        rows=tuple(rows),
        reference=labels.get(header.reference, ""),
        environment=here,
        notes=(*nan_notes(rows), *_wrong_notes(rows), *_all_notes(records, rows)),
        interrupted=interrupted,
    )


_HERE = ""  # the host of a record that names none


def _hosts_of(
    header: Header, key: str, records: Sequence[AnyRecord], hosts: Iterable[str]
) -> list[str]:
    """Return the hosts of which an entry has a row.

    Parameters
    ----------
    header
        What is measured. With ``every_host`` each host has a row of each entry; otherwise the
        reference has one on each host that measured it and any other entry one in all.
    key, records
        The entry, and its records in order.
    hosts
        All hosts that took part.
    """
    if not header.fleet:
        return [_HERE]
    if header.every_host:
        return list(hosts) or [_HERE]
    turns = Counter(r.host for r in records if isinstance(r, Turn))
    if key == header.reference:
        return [host for host in hosts if turns[host]] or _last(records)
    finished = [r.host for r in records if isinstance(r, Finished)]
    if finished:
        return [finished[-1]]
    # What a worker left half done when it died counts for less than what was said last of it.
    return [max(turns, key=lambda host: turns[host])] if turns else _last(records)


def _last(records: Sequence[AnyRecord]) -> list[str]:
    return [records[-1].host] if records else [_HERE]


def _row(
    entry: Trial,
    records: Sequence[AnyRecord],
    graph: OpGraph,
    fingerprint: str,
    environment: Environment,
    reference_turns: Sequence[Turn],
    reference_devices: Sequence[str],
    is_busy: bool,
    same_as: str,
    call: Call | None,
    interrupted: bool,
) -> Row:
    turns = [r for r in records if isinstance(r, Turn)]
    compiled = next((r for r in records if isinstance(r, Compiled)), None)
    counted = next((r for r in records if isinstance(r, Counters)), None)
    sustained = [r for r in records if isinstance(r, Sustained)]
    last = records[-1] if records else None
    status, detail, profile, needs_s = "ok", "", None, 0.0
    noise = noise_of(environment, [*entry.devices, *reference_devices])
    if entry.problem:
        status, detail = "failed", entry.problem
    elif isinstance(last, Failed):  # a later record would show that it was overcome
        status, detail = last.status, last.detail
    elif not turns or compiled is None:
        status = INTERRUPTED if interrupted else BUDGET_ENDED
        if call is not None:
            detail, needs_s = _what_is_left(call), call.needs_s
    else:
        profile = profile_of(
            entry,
            compiled,
            turns,
            graph=graph,
            fingerprint=fingerprint,
            environment=environment,
            counters=counted.rows if counted else (),
        )
    return Row(
        label=entry.label,
        key=entry.key,
        variant=entry.variant,
        requests=entry.requests,
        baseline=entry.baseline,
        status=status,
        detail=detail,
        needs_s=needs_s,
        same_as=same_as,
        profile=profile,
        series=Series(
            _levels(turns), _levels(reference_turns), noise.when_busy if is_busy else noise
        ),
        reference_latency=_latency(reference_turns) if reference_turns else None,
        sustained_us=tuple(v for r in sustained[-1:] for v in r.medians_us),
        executor=entry.executor,
    )


def _latency(turns: Sequence[Turn]) -> Latency:
    return Latency(tuple(r.samples_us for r in turns))


def _levels(turns: Sequence[Turn]) -> dict[tuple[int, int], float]:
    return {(r.group, r.round): turn_level(r.samples_us) for r in turns}


def _what_is_left(call: Call) -> str:
    return (
        f"What is left of the sweep ({call.n_left} placements) needs about "
        f"{math.ceil(call.needs_s)} s: give it that budget_s=, or make the same call with a store= "
        "again."
    )


_NOISY_MAD = 0.1
_BUSY = 0.2  # share of the CPUs that others keep busy, from which two compiles differ more
_LARGE_SHARE = 0.2


def _all_notes(records: Sequence[AnyRecord], rows: Sequence[Row]) -> list[str]:
    """Say what may have disturbed the run, host by host."""
    hosts = list(dict.fromkeys(row.host for row in rows if row.profile))
    return [
        f"{host}: {note}" if len(hosts) > 1 else note
        for host in hosts or [""]
        for note in _notes(
            [r for r in records if r.host == host], [row for row in rows if row.host == host]
        )
    ]


def _wrong_notes(rows: Sequence[Row]) -> list[str]:
    """Say which rows have outputs that rounding does not explain."""
    wrong = [
        row
        for row in rows
        if row.profile
        and any(a.verdict in ("different", "not a number") for a in row.profile.agreement)
    ]
    if not wrong:
        return []
    # It does not take a language model.
    search = " hetero_lab.find_wrong(model, placement) finds the ops to blame."
    generated = any(row.profile and row.profile.generation for row in wrong)
    return [
        f"The outputs of {names_at_hand([row.label for row in wrong], 4)} differ from the f32 "
        f"reference by more than rounding.{'' if generated else search}"
    ]


def _notes(records: Sequence[AnyRecord], rows: Sequence[Row]) -> list[str]:
    """Say what may have disturbed the run."""
    notes = []
    noisy = [
        row.label
        for row in rows
        if row.profile and row.profile.latency.mad_us > _NOISY_MAD * row.profile.latency.median_us
    ]
    if noisy:
        notes.append(
            f"The samples of {names_at_hand(noisy, 4)} scatter by more than {_NOISY_MAD:.0%} "
            "(median absolute deviation)."
        )
    notes += _cache_notes(rows)
    states = [r for r in records if isinstance(r, State)]
    power = {r.on_battery for r in states} - {None}
    if len(power) > 1:
        notes.append("The power source changed during the run.")
    elif power == {True}:
        notes.append("The machine ran on battery.")
    clocks = [r.frequency_mhz for r in states if r.frequency_mhz]
    if clocks and max(clocks) > 1.1 * min(clocks):
        notes.append(f"The clock moved between {min(clocks):.0f} and {max(clocks):.0f} MHz.")
    foreign_cpus = _foreign_cpus(records)
    if foreign_cpus > 0.3:
        notes.append(f"Other processes kept {foreign_cpus:.1f} CPUs busy during the run.")
    calls = [r for r in records if isinstance(r, Call)]
    if not calls:
        return notes
    if calls[-1].n_left and all(row.status == "ok" for row in rows):
        notes.append(_what_is_left(calls[-1]))  # else the rows without a number say it
    return notes + _budget_notes(calls[-1])


def _foreign_cpus(records: Sequence[AnyRecord], host: str | None = None) -> float:
    """Return how many CPUs other processes kept busy, on one host or on all: the median."""
    seen = [
        r.foreign_cpus
        for r in records
        if isinstance(r, State) and r.foreign_cpus is not None and host in (None, r.host)
    ]
    return float(np.median(seen)) if seen else 0.0


def _cache_notes(rows: Sequence[Row]) -> list[str]:
    """Say how long loading from the model cache took, beside the compile of the same."""
    by_label = {row.label: row.profile for row in rows}
    notes = []
    for label, cached in by_label.items():
        compiled = by_label.get(label.removesuffix(f" · {FROM_CACHE}"))
        if cached is None or not label.endswith(f" · {FROM_CACHE}"):
            continue
        if not cached.chosen.from_cache:
            notes.append(f"OpenVINO did not load {shorten(label)} from its cache.")
        elif compiled is not None:
            notes.append(
                f"From the model cache {shorten(compiled.label)} is loaded in "
                f"{number(cached.compile_ms)} ms; compiling takes {number(compiled.compile_ms)} ms."
            )
    return notes


def _budget_notes(call: Call) -> list[str]:
    """Say what the budget of the last call went into, where it was not enough for everything."""
    if call.budget_s is None:
        return []
    notes = []
    is_short = call.timed < TIMED_PER_TURN
    if is_short or call.n_left or call.startup_s > _LARGE_SHARE * call.elapsed_s:
        notes.append(
            f"Of {call.elapsed_s:.1f} s, {call.startup_s:.1f} s went into starting workers and "
            f"{call.compile_s:.1f} s into compiling."
        )
    if is_short:
        notes.append(
            f"For budget_s={call.budget_s:g} turns were cut to {call.discarded} discarded and "
            f"{call.timed} timed inferences (else {DISCARDED_PER_TURN} and {TIMED_PER_TURN})."
        )
    return notes
