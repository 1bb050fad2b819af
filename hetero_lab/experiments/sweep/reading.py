"""Read a sweep from the header and the records of its store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hetero_lab.errors import ArgumentError, StoredFileError, names_at_hand, shorten
from hetero_lab.experiments.environment import Environment, environment_from_json, noise_of
from hetero_lab.experiments.profile.profile import Profile
from hetero_lab.experiments.profile.storage import (
    agreement_from_json,
    counters_from_json,
    spans_from_json,
)
from hetero_lab.experiments.sweep.accuracy import evaluation_from, nan_notes, problem_from
from hetero_lab.experiments.sweep.hosts import host_of, hosts_of_entry, known_hosts
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.experiments.sweep.row import Row
from hetero_lab.experiments.sweep.store import read_store
from hetero_lab.model.opgraph import OpGraph, graph_from_json
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import partition_from_json
from hetero_lab.runtime.runners import HETERO
from hetero_lab.statistics import Latency, Series, turn_level


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
    ours, reference = (
        {(group + first_group, number): value for (group, number), value in levels.items()}
        for levels in (row.series.ours, row.series.reference)
    )
    return replace(
        row,
        label=f"{name}/{row.label}",
        same_as=row.same_as and f"{name}/{row.same_as}",
        series=replace(row.series, ours=ours, reference=reference),
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
    header: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
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


def _build(
    header: Mapping[str, Any], records: Sequence[Mapping[str, Any]], interrupted: bool
) -> Sweep:
    graphs = {name: graph_from_json(model["graph"]) for name, model in header["models"].items()}
    here = environment_from_json(header["environments"][-1])
    hosts = {name: environment_from_json(own) for name, own in known_hosts(records).items()}
    by_entry: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if "entry" in record:
            by_entry.setdefault(record["entry"], []).append(record)
    references: dict[str, list[Mapping[str, Any]]] = {}
    for r in by_entry.get(header["reference"], ()):
        if r["type"] == "turn":
            references.setdefault(host_of(r), []).append(r)
    reference_devices = next(
        (e["devices"] for e in header["entries"] if e["key"] == header["reference"]), []
    )
    rows: list[Row] = []
    first_label: dict[str, str] = {}
    for entry in header["entries"]:
        if not entry["asked"]:
            continue
        key, label = entry["key"], entry["label"]
        same_as = first_label.setdefault(key, label)
        every = by_entry.get(key, [])
        for host in hosts_of_entry(header, key, every, hosts):
            made = _row(
                entry,
                [r for r in every if host_of(r) == host and r["type"] != "accuracy"],
                graphs[entry["variant"]],
                header["models"][entry["variant"]]["fingerprint"],
                hosts.get(host, here),
                references.get(host, []),
                reference_devices,
                "" if same_as == label else same_as,
                interrupted,
            )
            # Accuracy is evaluated where the sweep was called, whichever host measured the row.
            found = problem = None
            if made.profile is not None:
                found, problem = evaluation_from(every, label), problem_from(every)
            if problem:
                made = replace(made, status="accuracy failed", detail=problem)
            rows.append(replace(made, host=host, evaluation=found))
    labels = {row.key: row.label for row in reversed(rows)}
    return Sweep(
        rows=tuple(rows),
        reference=labels.get(header["reference"], ""),
        environment=here,
        notes=(*_all_notes(records, rows), *nan_notes(rows)),
        interrupted=interrupted,
    )


def _row(
    entry: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    graph: OpGraph,
    fingerprint: str,
    environment: Environment,
    reference_turns: Sequence[Mapping[str, Any]],
    reference_devices: Sequence[str],
    same_as: str,
    interrupted: bool,
) -> Row:
    turns = [r for r in records if r["type"] == "turn"]
    compiled = [r for r in records if r["type"] == "compiled"]
    failed = [r for r in records if r["type"] == "failed"]
    counted = [r for r in records if r["type"] == "counters"]
    sustained = [r for r in records if r["type"] == "sustained"]
    # A failure counts until a later record shows that it was overcome.
    is_failed = bool(failed) and records[-1] is failed[-1]
    status, detail, profile = "ok", "", None
    if entry["problem"]:
        status, detail = "failed", entry["problem"]
    elif is_failed:
        status, detail = failed[-1]["status"], failed[-1]["detail"]
    elif not turns or not compiled:
        status = f"not measured: {'interrupted' if interrupted else 'time budget used up'}"
    else:
        devices = dict(zip((op.name for op in graph), entry["affinity"], strict=True))
        names = set(entry["devices"])
        partition = partition_from_json(compiled[0]["partition"])
        profile = Profile(
            label=entry["label"],
            model_fingerprint=fingerprint,
            graph=graph,
            affinity=Affinity.from_graph(graph, devices),
            latency=_latency(turns),
            partition=partition,
            as_predicted=compiled[0]["as_predicted"],
            counters=counters_from_json(counted[0]["rows"]) if counted else (),
            agreement=agreement_from_json(compiled[0]["agreement"]),
            compile_ms=float(compiled[0]["compile_ms"]),
            first_inference_ms=float(compiled[0]["first_inference_ms"]),
            peak_rss_bytes=int(compiled[0]["peak_rss_bytes"]),
            executor=entry.get("executor", HETERO),
            spans=spans_from_json(compiled[0].get("spans", ()), partition),
            environment=replace(
                environment,
                devices=tuple(d for d in environment.devices if d[0] in names),
                emulated=tuple(d for d in environment.emulated if d[0] in names),
            ),
        )
    return Row(
        label=entry["label"],
        key=entry["key"],
        variant=entry["variant"],
        requests=int(entry["requests"]),
        baseline=bool(entry["baseline"]),
        status=status,
        detail=detail,
        same_as=same_as,
        profile=profile,
        series=Series(
            _levels(turns),
            _levels(reference_turns),
            noise_of(environment, [*entry["devices"], *reference_devices]),
        ),
        reference_latency=_latency(reference_turns) if reference_turns else None,
        sustained_us=tuple(float(v) for r in sustained[-1:] for v in r["medians_us"]),
        executor=entry.get("executor", HETERO),
    )


def _latency(turns: Sequence[Mapping[str, Any]]) -> Latency:
    return Latency(tuple(tuple(map(float, r["samples_us"])) for r in turns))


def _levels(turns: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], float]:
    return {(r["group"], r["round"]): turn_level(r["samples_us"]) for r in turns}


_NOISY_MAD = 0.1
_BUSY_LOAD = 1.5


def _all_notes(records: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[str]:
    """Say what may have disturbed the run, host by host."""
    hosts = list(dict.fromkeys(row.host for row in rows if row.profile))
    return [
        f"{host}: {note}" if len(hosts) > 1 else note
        for host in hosts or [""]
        for note in _notes(
            [r for r in records if host_of(r) == host], [row for row in rows if row.host == host]
        )
    ]


def _notes(records: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[str]:
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
    states = [r for r in records if r["type"] == "state"]
    power = {r["on_battery"] for r in states} - {None}
    if len(power) > 1:
        notes.append("The power source changed during the run.")
    elif power == {True}:
        notes.append("The machine ran on battery.")
    clocks = [r["frequency_mhz"] for r in states if r["frequency_mhz"]]
    if clocks and max(clocks) > 1.1 * min(clocks):
        notes.append(f"The clock moved between {min(clocks):.0f} and {max(clocks):.0f} MHz.")
    foreign = [r["foreign_cpus"] for r in states if r.get("foreign_cpus") is not None]
    if foreign and float(np.median(foreign)) > 0.3:
        notes.append(
            f"Other processes kept {float(np.median(foreign)):.1f} CPUs busy during the run."
        )
    return notes
