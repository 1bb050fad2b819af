"""Sweep: the measurements of many placements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from hetero_lab.errors import ArgumentError, shorten, unknown
from hetero_lab.intervals import Noise
from hetero_lab.result import Result
from hetero_lab.results import sweep_tables
from hetero_lab.results.environment import Environment, noise_of, noise_sentence
from hetero_lab.results.evidence import Ranking, rank
from hetero_lab.results.profile_report import overhead
from hetero_lab.results.profile_result import Profile
from hetero_lab.results.sweep_row import Row
from hetero_lab.tables import Tables, time_text
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Sweep(Result):
    """Many placements, measured in turn.

    Attributes
    ----------
    rows
        One row per label, in the given order, baselines last.
    reference
        Label of the placement that ratios are to.
    notes
        Anything that may have disturbed the measurement.
    interrupted
        Whether Ctrl-C cut the sweep short; the rows that were measured are valid.
    clock_mhz
        The clock of the processor (median over the run), where the system tells it.
    decided
        Findings that :func:`hetero_lab.optimize` decided on, by label.
    """

    rows: tuple[Row, ...]
    reference: str
    environment: Environment
    notes: tuple[str, ...]
    interrupted: bool = False
    clock_mhz: float | None = None
    decided: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def tables(self) -> Tables:
        """DataFrames: summary, ranking, samples, subgraphs, counters, boundaries, placements…"""
        return sweep_tables.build(self.rows, self.ranked, self.reference, self.notes)

    @cached_property
    def ranked(self) -> Ranking:
        """The distinct measured rows from fast to slow, with their groups."""
        return rank(self.rows, self.decided)

    @property
    def summary(self) -> pd.DataFrame:
        """One row per label: status, structure, latency with intervals, ratio to the reference.

        ``configuration`` is the label with the precision of each device. ``median_us`` is the
        reference's latency times ``ratio``, so that latency, ratio and rank agree. ``p90_us``,
        ``p99_us``, ``mad_us`` and the interval (``ci95_low_us``, ``ci95_high_us``) are of the row's
        own turns on that scale; the ratio has an interval of its own. ``raw_median_us`` and the
        other raw columns are off that scale: on a machine that drifts they differ, because
        placements are measured in groups, one after the other. ``compile_spread`` says how much
        two compiles of the placement differ, ``noise_measured`` whether that was measured.
        """
        return self.tables["summary"]

    @property
    def ranking(self) -> pd.DataFrame:
        """The measured rows from fast to slow; rows of one ``group`` cannot be told apart."""
        return self.tables["ranking"]

    @property
    def smallest_difference(self) -> float:
        """The relative difference that this run could have shown between two placements."""
        return self.ranked.smallest_difference

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that measured rows, in order."""
        return tuple(
            dict.fromkeys(row.profile.environment.host for row in self.rows if row.profile)
        )

    @property
    def noise(self) -> Mapping[str, Noise]:
        """How much two compiles of one placement differ on each device, measured or assumed."""
        return {name: noise_of(self.environment, [name]) for name, _ in self.environment.devices}

    def name_of(self, row: Row) -> str:
        """Return the label of a row, with its host if there are several."""
        return f"{row.label} @ {row.host}" if row.host and len(self.hosts) > 1 else row.label

    def shown_name(self, row: Row) -> str:
        """Return the name of a row for a figure: its configuration, with its host likewise."""
        return replace(row, label=self.name_of(row)).configuration

    def configuration_of(self, label: str) -> str:
        """Return the label of a row with the precision of its devices, once it was measured."""
        columns = (self.summary.get(name, ()) for name in ("label", "configuration"))
        return dict(zip(*columns, strict=True)).get(label, label)

    def profile(self, label: str, host: str = "") -> Profile:
        """Return the measurements of one row as a Profile: graph, counters, samples.

        The configuration of a row names it too. If several hosts measured it, it is the profile of
        ``host``, by default of the first.
        Its samples are on the scale of the reference, so that its latency is that of the row.

        Raises
        ------
        ArgumentError
            No row has that label, or the row was not measured.
        """
        rows = [row for row in self.rows if label in (row.label, row.configuration)]
        rows = [row for row in rows if host in ("", row.host)]
        for row in rows:
            if row.scaled_profile is not None:
                return row.scaled_profile
        for row in rows:
            raise ArgumentError(f"{shorten(label)} was not measured: {row.status}.")
        labels = list(dict.fromkeys(row.label for row in self.rows))
        raise ArgumentError(unknown("No row is called", label, labels, "Rows", 20))

    def report(self) -> str:
        """Return the whole ranking, what went wrong and every note, as text."""
        return sweep_tables.text(self.tables, self._heading, self._remarks, most=None)

    def __repr__(self) -> str:
        return sweep_tables.text(self.tables, self._heading, self._remarks).rstrip()

    def _answer(self) -> str:
        return sweep_tables.verdict(self.tables)

    def _sentences(self) -> list[str]:
        return [self._heading, *self._remarks]

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        return sweep_tables.ranking_and_failures(self.tables)

    @property
    def _heading(self) -> str:
        distinct = sum(not same_as for same_as in self.summary.get("same_as", ()))
        some = f"{len(self.ranking)} of " if len(self.ranking) < distinct else ""
        sentences = f"{some}{count_of(distinct, 'placement')}, ratios to "
        sentences += f"{shorten(self.configuration_of(self.reference))} (below 1 is faster)"
        if len(self.ranking) > 1:
            sentences += ", latencies on its scale"
            sentences += ", findings to the best" if "finding" in self.ranking else ""
        if lacking := self._lacking():
            sentences += f"; {' and '.join(lacking)} alone cannot run every op"
        return sentences

    def _lacking(self) -> list[str]:
        """Return the devices of splits that have no row alone although baselines have."""
        if not any(self.summary.get("baseline", ())):
            return []
        devices = {d: None for names in self.summary["devices"].dropna() for d in names.split(",")}
        return [device for device in devices if device and device not in {*self.summary["label"]}]

    @property
    def _remarks(self) -> list[str]:
        """What a reader of the ranking has to know."""
        if not self.ranked.rows:
            return list(self.notes)
        return [
            *filter(None, [self._cause()]),
            sweep_tables.resolution_note(self.ranked),
            *self.notes,
            noise_sentence(self.environment),
        ]

    def _cause(self) -> str:
        """Say why a split is slower than one device alone, where the figures carry it."""
        ranked = [
            (profile.partition.n_subgraphs > 1, group, profile)
            for row, group in zip(self.ranked.rows, self.ranked.groups, strict=True)
            if (profile := row.scaled_profile) is not None
        ]
        split = next((one for one in ranked if one[0]), None)
        alone = next((one for one in ranked if not one[0]), None)
        if len(self.hosts) > 1 or split is None or alone is None or split[1] <= alone[1]:
            return ""
        slow, quick, why = split[2], alone[2], overhead(split[2])
        took = f"{shorten(quick.configuration, 80)} takes {time_text(quick.latency.median_us)}."
        return why and f"{shorten(slow.configuration, 80)}: {why} {took}"
