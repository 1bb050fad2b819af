"""The result of a profile: its data, with tables, text, trace and files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_lab.arguments import checked
from hetero_lab.errors import MeasurementError, StoredFileError, shorten
from hetero_lab.intervals import Latency
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import check_partition
from hetero_lab.result import Result
from hetero_lab.results.environment import Environment
from hetero_lab.results.profile_data import (
    Generation,
    ProfileData,
    fields_from_json,
    spans_from_json,
    to_json,
)
from hetero_lab.results.profile_report import summary, text
from hetero_lab.results.profile_tables import HEADLINE, SUMMARY_COLUMNS, build_tables
from hetero_lab.results.read_tables import FromTables, read_tables, warn_of_edits
from hetero_lab.results.records import Compiled, Trial, Turn
from hetero_lab.results.trace import write_trace
from hetero_lab.tables import (
    SCHEMA_VERSION,
    Tables,
    read_json,
    reading,
    text_table,
    write_json,
    write_tables,
)

if TYPE_CHECKING:
    import pandas as pd

FILE_NAME = "profile.json"


class Profile(Result, ProfileData):
    """The measurements of one placement.

    Attributes
    ----------
    latency
        Steady-state wall-clock latency, compiled without counters.
    partition
        Subgraphs and boundaries as observed on the runtime.
    as_predicted
        Whether the partition is the predicted one; ``None`` if it could not be observed.
    counters
        OpenVINO's counters of a second compile, joined to ops; empty with ``counters=False``.
    agreement
        Each output against the single-device f32 reference; empty with ``reference=False``.
    first_inference_ms, compile_ms, peak_rss_bytes
        First inference after compiling, the compile call, peak memory of the process meanwhile.
    interrupted
        Whether Ctrl-C cut the measurement short; the numbers up to then are valid.
    executor
        The executor: ``hetero`` or ``parallel``.
    spans
        When each subgraph ran in the last turn, with the given number of requests in flight; only
        with the parallel executor, since HETERO does not tell.
    throughput
        Times between results with several requests in flight, if asked for.
    chosen
        The choices of the runtime: devices, streams, requests in flight.
    generation
        For a language model: time to the first token and per further token, and the tokens. The
        latency is then the time per further token.
    generated
        Whether the inputs were generated, so that the outputs are those of random values.
    device_properties
        The properties that were asked for, by device.
    inputs_digest
        A digest of the inputs; empty in older files.
    foreign_cpus
        How many CPUs other processes kept busy from the compile to the last turn.
    few_subgraphs
        Why there are more than two subgraphs, and the change that leaves fewer, as
        :func:`hetero_lab.simplify` says.
    """

    @cached_property
    def tables(self) -> Tables:
        """DataFrames: summary, latency, subgraphs, counters, boundaries, placement, agreement.

        With counters also transitions, with measured spans also timeline and idle, with requests
        in flight also throughput, for a language model also generation.
        """
        return build_tables(self)

    @property
    def precision_transitions(self) -> pd.DataFrame:
        """The pairs of ops between which the executed precision changes.

        ``producer``, ``consumer``, device and precision of both, ``where`` (at a ``boundary`` of
        subgraphs or ``inside`` one), ``handed_over_as`` (the type that crosses the boundary) and
        ``n_bytes``.

        Raises
        ------
        MeasurementError
            The profile has no counters, which hold the precision.
        """
        if not self.counters:
            raise MeasurementError(
                "This profile has no counters, so it does not tell in which precision ops were "
                "executed. Measure with counters=True on a device that has them."
            )
        return self.tables["transitions"]

    @checked
    def report(self, *, tables: bool = True, counters: bool = True) -> str:
        """Return the summary, the subgraphs and boundaries, and the counters, as text.

        The counters have the form of the ``-pc`` output of OpenVINO's samples.
        """
        return text(self, tables=tables, counters=counters)

    @checked
    def export(self, directory: str | os.PathLike[str], format: str = "csv") -> None:
        """Write every table as CSV or Parquet, and profile.json for ``read_profile``.

        Raises
        ------
        ArgumentError
            The format is unknown.
        OutputPathError
            The directory cannot be made or written.
        """
        data = to_json(self)
        tables = {name: frame.copy() for name, frame in self.tables.items()}
        for table in tables.values():
            table.insert(0, "schema_version", SCHEMA_VERSION)
        target = write_tables(directory, tables, format)
        write_json(target / FILE_NAME, data)

    @checked
    def to_trace(self, file: str | os.PathLike[str]) -> None:
        """Write a timeline as Trace Event JSON for Perfetto.

        It shows the measured spans, or is reconstructed from the counters if there are none.

        Raises
        ------
        MeasurementError
            The profile has neither spans nor counters.
        OutputPathError
            The file cannot be written.
        """
        write_trace(self, file)

    def __repr__(self) -> str:
        return summary(self)

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        subgraphs = self.tables["subgraphs"].drop(columns=["ops"])
        return {"Subgraphs": subgraphs.dropna(axis="columns", how="all")}


def profile_of(
    trial: Trial,
    compiled: Compiled,
    turns: Sequence[Turn],
    *,
    graph: OpGraph,
    fingerprint: str,
    environment: Environment,
    **more: Any,
) -> Profile:
    """Build a profile from the records of a trial; the graph is that of its variant.

    The times of a language model are per further token. ``environment`` may have more devices than
    the trial. ``more`` are other fields, for instance ``counters``.
    """
    check_partition(compiled.partition, graph)
    latency = Latency(tuple(turn.samples_us for turn in turns))
    generation = None
    if trial.scenario is not None:
        first_us = tuple((turn.first_us,) for turn in turns if turn.first_us is not None)
        generation = Generation(trial.scenario, Latency(first_us), latency, compiled.tokens)
    devices = dict(zip((op.name for op in graph), trial.affinity, strict=True))
    return Profile(
        label=trial.label,
        model_fingerprint=fingerprint,
        graph=graph,
        affinity=Affinity.from_graph(graph, devices),
        latency=latency,
        partition=compiled.partition,
        agreement=compiled.agreement,
        as_predicted=compiled.as_predicted,
        compile_ms=compiled.compile_ms,
        first_inference_ms=compiled.first_inference_ms,
        peak_rss_bytes=compiled.peak_rss_bytes,
        executor=trial.executor,
        chosen=compiled.chosen,
        device_properties=trial.device_properties,
        generation=generation,
        environment=environment.of(trial.devices),
        spans=spans_from_json(compiled.spans, compiled.partition),
        **more,
    )


class ProfileTables(FromTables, Profile):
    """A profile that was read from tables alone."""

    _KEPT_BY = "what was measured is in profile.json, which Profile.export writes beside them."

    def __repr__(self) -> str:
        return f"{text_table(self.tables['summary'][HEADLINE])}\n{self.limit}"

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        return {"": self.tables["summary"]}


def read_profile(directory: str | os.PathLike[str]) -> Profile:
    """Read a profile that :meth:`Profile.export` wrote; no device is needed.

    Of CSV alone, without ``profile.json``, a file or a directory, the tables are read; what needs
    more says so.

    Raises
    ------
    StoredFileError
        The directory holds no profile, or a damaged one.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> import tempfile
    >>> measured = hl.profile(model, "CPU", iterations=20, progress=False)
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     directory = measured.export(f"{scratch}/results")
    ...     hl.read_profile(f"{scratch}/results").latency == measured.latency
    True
    """
    tables = read_tables(directory, FILE_NAME, "profile", SUMMARY_COLUMNS)
    if tables is not None:
        row, *more = tables["summary"].to_dict("records") or [{}]
        if more or "ratio" in row:
            name = shorten(os.fspath(directory))
            raise StoredFileError(f"{name} holds a sweep: hetero_lab.read_sweep reads it.")
        columns = {f.name: row[f.name] for f in fields(ProfileData) if f.name in row}
        return ProfileTables(tables, directory, **columns)
    path = Path(directory) / FILE_NAME
    profile = profile_from(read_json(path, kind="profile"), path)
    warn_of_edits(directory, profile.tables, FILE_NAME)
    return profile


def profile_from(data: Mapping[str, Any], path: str | os.PathLike[str]) -> Profile:
    """Build a profile from plain data; StoredFileError naming ``path`` if it is incomplete."""
    with reading(path, "profile"):
        result = Profile(**fields_from_json(data))
        result._repr_html_()  # data that cannot be shown is incomplete too
    return result
