"""Build a sweep from a header and records, just measured or stored."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec.structs import replace as entry_with

from hetero_lab.errors import ArgumentError, names_at_hand, shorten
from hetero_lab.intervals import Latency, Series
from hetero_lab.model.opgraph import OpGraph, graph_from_json
from hetero_lab.results.environment import busy_note, is_busy, noise_of
from hetero_lab.results.evaluation import evaluation_from, nan_notes
from hetero_lab.results.profile_result import profile_of
from hetero_lab.results.profile_tables import SUMMARY_COLUMNS
from hetero_lab.results.read_tables import FromTables, read_tables, warn_of_edits
from hetero_lab.results.records import (
    FROM_CACHE,
    Accuracy,
    AnyRecord,
    Call,
    Compiled,
    Counters,
    Failed,
    Finished,
    Header,
    Ledger,
    OfEntry,
    State,
    Sustained,
    Trial,
    Turn,
)
from hetero_lab.results.store import HEADER, read_store
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import BUDGET_ENDED, INTERRUPTED, Row
from hetero_lab.results.sweep_tables import distinct
from hetero_lab.runtime.executors import DISCARDED_PER_TURN, TIMED_PER_TURN
from hetero_lab.runtime.inputs import GENERATED
from hetero_lab.runtime.reference import agreement_notes
from hetero_lab.tables import Tables, number, reading
from hetero_lab.terminal import count_of

_HERE = ""  # the host of a record that names none
_NOISY_MAD = 0.1  # share of the median
_COLUMNS = [*SUMMARY_COLUMNS, "ratio", "same_as", "reference"]
_LARGE_SHARE = 0.2  # share of the time for starting workers that is worth a note


class SweepTables(FromTables, Sweep):
    """A sweep that was read from tables alone."""

    _KEPT_BY = "it cannot be ranked again or drawn; hl.sweep(…, store=) keeps what that takes."

    @property
    def _remarks(self) -> list[str]:
        return [self.limit, *self.notes]


def read_sweep(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> Sweep:
    """Read a stored sweep, or several into one; no device is needed.

    With several, labels are prefixed with the name of the directory. Ratios stay within their own
    run. Runs with the same reference, host and OpenVINO version are ranked together by these
    ratios, and their latencies are on the scale of the first run; others are ranked apart.

    Of CSV alone, a file of :meth:`Sweep.to_csv` or a directory of :meth:`Sweep.export`, the tables
    are read; what needs turns says so.

    Raises
    ------
    StoredFileError
        A directory holds no sweep, or a damaged one.

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
        tables = read_tables(directory, HEADER, "sweep", _COLUMNS)
        if tables is not None:
            return _sweep_of(tables, directory)
        sweep = read_one(directory)
        warn_of_edits(directory, sweep.tables, HEADER)
        return sweep
    directories = list(directory)
    names = [Path(d).resolve().name for d in directories]
    if len(set(names)) < len(names):
        names = [os.fspath(d) for d in directories]
    several = [(name, read_one(d)) for name, d in zip(names, directories, strict=True)]
    if not several:
        raise ArgumentError("Name at least one directory.")
    if len(several) == 1:
        return several[0][1]
    rows: list[Row] = []
    # Rows of several runs are ranked together if their ratios are to the same reference; the first
    # run with that reference sets the scale.
    scales: dict[tuple[str, ...], tuple[str, Latency | None]] = {}
    for name, sweep in several:
        first_group = 1 + max((at[0] for row in rows for at in row.series.ours), default=-1)
        reference = next((row.key for row in sweep.rows if row.label == sweep.reference), "")
        for row in sweep.rows:
            environment = row.profile.environment if row.profile else sweep.environment
            beside = (reference, environment.host, environment.openvino_version)
            run, level = scales.setdefault(beside, (name, row.reference_latency))
            rows.append(_beside_others(row, name, first_group, run, level))
    notes = [f"{name}: {note}" for name, sweep in several for note in sweep.notes]
    if len({sweep.reference for _, sweep in several}) > 1:
        notes.append(
            "The runs have different references, so their rows are ranked apart: "
            + ", ".join(f"{name} has {shorten(sweep.reference)}" for name, sweep in several)
            + "."
        )
    return Sweep(
        rows=tuple(rows),
        reference=f"{several[0][0]}/{several[0][1].reference}",
        environment=several[0][1].environment,
        notes=tuple(notes),
    )


def _sweep_of(tables: Tables, path: str | os.PathLike[str]) -> Sweep:
    with reading(path, "sweep"):
        summary = tables["summary"]
        if "ranking" not in tables:
            tables["ranking"] = distinct(summary).sort_values("median_us", ignore_index=True)
        sweep = SweepTables(
            tables,
            path,
            reference=next(iter(summary.loc[summary["reference"], "label"]), ""),
            notes=tuple(tables["notes"]["finding"]) if "notes" in tables else (),
            interrupted=bool((summary["status"] == INTERRUPTED).any()),
        )
        repr(sweep)
    return sweep


def _beside_others(row: Row, name: str, first_group: int, run: str, level: Latency | None) -> Row:
    """Return a row of one run as a row of several runs, its groups numbered after theirs."""
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


def read_one(directory: str | os.PathLike[str], mark: str = "") -> Sweep:
    """Read a stored sweep, ``mark`` behind each of its labels."""
    header, records = read_store(directory)
    entries = [entry_with(trial, label=f"{trial.label}{mark}") for trial in header.entries]
    with reading(directory, "sweep"):
        sweep = sweep_from(entry_with(header, entries=entries), records)
        repr(sweep)
        sweep._repr_html_()  # data that cannot be shown is incomplete too
    return sweep


def sweep_from(
    header: Header,
    records: Sequence[AnyRecord],
    graphs: Mapping[str, OpGraph] | None = None,
    *,
    interrupted: bool = False,
) -> Sweep:
    """Build a Sweep from the content of a store; ``graphs`` are by variant, if they are at hand."""
    graphs = graphs or {name: graph_from_json(m.graph) for name, m in header.models.items()}
    return _Builder(header, records, graphs, interrupted).sweep()


class _Builder:
    """Builds the rows of a sweep from the records of its entries."""

    def __init__(
        self,
        header: Header,
        records: Sequence[AnyRecord],
        graphs: Mapping[str, OpGraph],
        interrupted: bool,
    ):
        self._header = header
        self._records = records
        self._interrupted = interrupted
        self._graphs = graphs
        self._ledger = Ledger(records)
        self._environments = {_HERE: header.environments[-1], **self._ledger.hosts}
        self._calls = {r.host: r for r in records if isinstance(r, Call)}
        self._of_entry: defaultdict[str, list[AnyRecord]] = defaultdict(list)
        for record in records:
            if isinstance(record, OfEntry):
                self._of_entry[record.entry].append(record)
        self._busy = {
            host
            for host, environment in self._environments.items()
            if is_busy(foreign_cpus(r for r in records if r.host == host), environment.n_cpus)
        }
        self._reference_devices = next(
            (e.devices for e in header.entries if e.key == header.reference), ()
        )

    def sweep(self) -> Sweep:
        first_label: dict[str, str] = {}
        rows: list[Row] = []
        for trial in self._header.entries:
            if trial.asked:
                same_as = first_label.setdefault(trial.key, trial.label)
                same_as = same_as if same_as != trial.label else ""
                rows += [self._row(trial, host, same_as) for host in self._hosts_of(trial.key)]
        states = [r for r in self._records if isinstance(r, State)]
        clocks = [state.frequency_mhz for state in states if state.frequency_mhz]
        return Sweep(
            rows=tuple(rows),
            reference=first_label.get(self._header.reference, ""),
            environment=self._environments[_HERE],
            notes=(
                *nan_notes(rows),
                *_wrong_notes(rows),
                *agreement_notes(a for row in rows if row.profile for a in row.profile.agreement),
                *_all_notes(self._records, rows),
                *([f"{GENERATED}."] if self._header.generated and rows else []),
            ),
            interrupted=self._interrupted,
            clock_mhz=float(np.median(clocks)) if clocks else None,
        )

    def _hosts_of(self, key: str) -> list[str]:
        """Return the hosts that have a row for an entry.

        With ``every_host``, each host has a row for each entry. Otherwise the reference has a row
        for each host that measured it, and any other entry has a single row.
        """
        hosts = self._ledger.hosts
        if not self._header.fleet:
            return [_HERE]
        if self._header.every_host:
            return list(hosts) or [_HERE]
        records = self._of_entry[key]
        last = [records[-1].host] if records else [_HERE]
        turns = Counter(r.host for r in records if isinstance(r, Turn))
        if key == self._header.reference:
            return [host for host in hosts if turns[host]] or last
        finished = [r.host for r in records if isinstance(r, Finished)]
        if finished:
            return [finished[-1]]
        # Several workers may have died while measuring it: the one with the most turns counts.
        return [max(turns, key=lambda host: turns[host])] if turns else last

    def _row(self, trial: Trial, host: str, same_as: str) -> Row:
        every = self._of_entry[trial.key]
        records = [r for r in every if r.host == host and not isinstance(r, Accuracy)]
        turns = [r for r in records if isinstance(r, Turn)]
        compiled = next((r for r in records if isinstance(r, Compiled)), None)
        counted = next((r for r in records if isinstance(r, Counters)), None)
        sustained = [r for r in records if isinstance(r, Sustained)]
        last = records[-1] if records else None
        call = None if self._interrupted else self._calls.get(host)
        environment = self._environments.get(host, self._environments[_HERE])
        status, detail, profile, evaluation, needs_s = "ok", "", None, None, 0.0
        if trial.problem:
            status, detail = "failed", trial.problem
        elif isinstance(last, Failed):  # a later record would override the failure
            status, detail = last.status, last.detail
        elif not turns or compiled is None:
            status = INTERRUPTED if self._interrupted else BUDGET_ENDED
            if call is not None:
                detail, needs_s = _what_is_left(call), call.needs_s
        else:
            profile = profile_of(
                trial,
                compiled,
                turns,
                graph=self._graphs[trial.variant],
                fingerprint=self._header.models[trial.variant].fingerprint,
                environment=environment,
                counters=counted.rows if counted else (),
                inputs_digest=self._header.inputs_digest,
            )
            # Accuracy is evaluated where the sweep was called, whichever host measured the row.
            evaluation, problem = evaluation_from(every, trial.label, profile.configuration)
            if problem:
                status, detail = "accuracy failed", problem
        noise = noise_of(environment, [*trial.devices, *self._reference_devices])
        reference = [
            r.samples_us
            for r in self._of_entry[self._header.reference]
            if isinstance(r, Turn) and r.host == host
        ]
        return Row(
            label=trial.label,
            key=trial.key,
            variant=trial.variant,
            requests=trial.requests,
            baseline=trial.baseline,
            status=status,
            detail=detail,
            needs_s=needs_s,
            same_as=same_as,
            profile=profile,
            series=Series(
                self._ledger.levels_us(trial.key, host),
                self._ledger.levels_us(self._header.reference, host),
                noise.when_busy if host in self._busy else noise,
            ),
            reference_latency=Latency(tuple(reference)) if reference else None,
            sustained_us=tuple(v for r in sustained[-1:] for v in r.medians_us),
            executor=trial.executor,
            host=host,
            evaluation=evaluation,
        )


def _what_is_left(call: Call) -> str:
    return (
        f"Turns of {count_of(call.n_left, 'placement')} are missing, which need about "
        f"{math.ceil(call.needs_s)} s: give it that budget_s=, or make the same call with a store= "
        "again."
    )


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
    wrong = [row for row in rows if row.profile and any(a.is_wrong for a in row.profile.agreement)]
    if not wrong:
        return []
    # find_wrong does not take language models.
    search = " hetero_lab.find_wrong(model, placement) finds the ops to blame."
    generated = any(row.profile and row.profile.generation for row in wrong)
    return [
        f"The outputs of {names_at_hand([row.configuration for row in wrong], 4)} differ from the "
        f"f32 reference by more than rounding.{'' if generated else search}"
    ]


def _notes(records: Sequence[AnyRecord], rows: Sequence[Row]) -> Iterator[str]:
    """Say what may have disturbed the run."""
    noisy = [
        row.configuration
        for row in rows
        if row.profile and row.profile.latency.mad_us > _NOISY_MAD * row.profile.latency.median_us
    ]
    if noisy:
        yield (
            f"The samples of {names_at_hand(noisy, 4)} scatter by more than {_NOISY_MAD:.0%} "
            "(median absolute deviation)."
        )
    yield from _cache_notes(rows)
    states = [r for r in records if isinstance(r, State)]
    power = {r.on_battery for r in states} - {None}
    if len(power) > 1:
        yield "The power source changed during the run."
    elif power == {True}:
        yield "The machine ran on battery."
    clocks = [r.frequency_mhz for r in states if r.frequency_mhz]
    if clocks and max(clocks) > 1.1 * min(clocks):
        yield f"The clock moved between {min(clocks):.0f} and {max(clocks):.0f} MHz."
    yield from filter(None, [busy_note(foreign_cpus(records))])
    calls = [r for r in records if isinstance(r, Call)]
    for call in calls[-1:]:
        if call.n_left and all(row.status == "ok" for row in rows):
            yield _what_is_left(call)  # otherwise the rows that were left out say it
        yield from _budget_notes(call)


def foreign_cpus(records: Iterable[AnyRecord]) -> float:
    """Return how many CPUs other processes kept busy (median)."""
    states = [r for r in records if isinstance(r, State)]
    cpus = [r.foreign_cpus for r in states if r.foreign_cpus is not None]
    return float(np.median(cpus)) if cpus else 0.0


def _cache_notes(rows: Sequence[Row]) -> Iterator[str]:
    """Say how long loading from the model cache took, compared with compiling."""
    by_label = {row.label: row.profile for row in rows}
    for label, cached in by_label.items():
        compiled = by_label.get(label.removesuffix(f" · {FROM_CACHE}"))
        if cached is None or not label.endswith(f" · {FROM_CACHE}"):
            continue
        if not cached.chosen.from_cache:
            yield f"OpenVINO did not load {shorten(label)} from its cache."
        elif compiled is not None:
            yield (
                f"From the model cache {shorten(compiled.label)} is loaded in "
                f"{number(cached.compile_ms)} ms; compiling takes {number(compiled.compile_ms)} ms."
            )


def _budget_notes(call: Call) -> Iterator[str]:
    """Say how the time of the last call was spent if the budget was too short for everything."""
    if call.budget_s is None:
        return
    is_short = call.timed < TIMED_PER_TURN
    if is_short or call.n_left or call.startup_s > _LARGE_SHARE * call.elapsed_s:
        yield (
            f"Of {call.elapsed_s:.1f} s, {call.startup_s:.1f} s went into starting workers and "
            f"{call.compile_s:.1f} s into compiling."
        )
    if is_short:
        yield (
            f"For budget_s={call.budget_s:g} turns were cut to {call.discarded} discarded and "
            f"{call.timed} timed inferences (else {DISCARDED_PER_TURN} and {TIMED_PER_TURN})."
        )
