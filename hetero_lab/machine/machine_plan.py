"""The plan of a machine: the way of each model, how all fare together, and beside what."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_lab.devices.core import emulated_devices
from hetero_lab.errors import MeasurementError, names_at_hand
from hetero_lab.intervals import Noise
from hetero_lab.machine.goal import DEADLINES, SHARE, Alone, Goal, holds, pooled
from hetero_lab.machine.race import LEAST_TURNS, NOT_MEASURED, Together, Turn, best_of, ratio_of
from hetero_lab.machine.ways import Way
from hetero_lab.placement.placement import Placement
from hetero_lab.result import Result
from hetero_lab.results.evidence import ALIKE, AS_FAST, SLOWER, TOLERANCE, UNDECIDED
from hetero_lab.tables import frame_of, number

if TYPE_CHECKING:
    import pandas as pd

OWN_BEST, ALL_AUTO = "each on its own best device", "all on AUTO"


@dataclass(frozen=True)
class MachinePlan(Result):
    """How to run several models on one machine.

    Attributes
    ----------
    goal
        The demands, the objective, and the rate of each model on its best way alone.
    ways
        The ways of each model that were considered, by label.
    alone
        How each model is on each of its ways, driven alone.
    sets
        The sets that were measured together, the reference first: each model on its own best
        device.
    pairs
        Results per second of two models on two ways at the same time, by model and way.
    loads
        How each model fared when all rates were multiplied by a factor, up to the first at which
        a deadline is missed.
    left_out
        Ways and sets that were not measured, and why.
    noise
        How much two compiles differ on the devices, which no number of turns averages out.
    interrupted
        Whether Ctrl-C ended it.
    processes
        ``1`` if all models share a process, ``None`` for a process each.
    """

    goal: Goal
    ways: Mapping[str, Mapping[str, Way]]
    alone: Mapping[str, Mapping[str, Alone]]
    sets: tuple[Together, ...]
    pairs: Mapping[tuple[str, str, str, str], tuple[float, float]]
    loads: Mapping[float, Turn]
    left_out: Mapping[str, str]
    noise: Noise
    interrupted: bool = False
    processes: int | None = None

    _TABLES: ClassVar[tuple[str, ...]] = ("summary", "measured_sets", "slowdown", "load")

    @property
    def chosen(self) -> Together:
        """The set that is advised."""
        return best_of(self.sets)

    @property
    def best(self) -> dict[str, Placement]:
        """The placement of each model."""
        return {n: self.ways[n][way].placed.placement for n, way in self.chosen.chosen.items()}

    @property
    def emulated(self) -> dict[str, str]:
        """The emulated devices of its ways, and the device that really runs each."""
        placed = [way.placed for ways in self.ways.values() for way in ways.values()]
        known = {name: e.base for p in placed for name, e in emulated_devices(p.core).items()}
        return {d: known[d] for p in placed for d in p.placement.devices if d in known}

    @property
    def reference(self) -> Together:
        """What it is compared with, as a rule each model on its own best device."""
        return self.sets[0]

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a model: its way, what it gets alone and together, and beside what.

        ``way``; ``alone_per_s`` on its best way; ``rate_per_s``, ``share`` of what is wanted (with
        a rate that, otherwise the rate alone) with its interval, ``median_us``, ``p99_us``,
        ``missed`` (share of deadlines) together; the same of the reference (``own_best_…``) and
        of AUTO (``auto_…``); ``predicted_share``. What was not measured is missing.
        """
        beside = {"own_best": self._named(OWN_BEST), "auto": self._named(ALL_AUTO)}
        rows = []
        for name in self.goal.demands:
            row: dict[str, object] = {"model": name, "way": self.chosen.chosen[name]}
            row["alone_per_s"] = self.goal.alone_per_s[name]
            row |= self._fared(self.chosen, name)
            row["predicted_share"] = self._predicted(self.chosen, name)
            for prefix, other in beside.items():
                if other is not None:
                    row[f"{prefix}_way"] = other.chosen[name]
                    fared = self._fared(other, name)
                    for column in ("share", "p99_us", "missed"):
                        row[f"{prefix}_{column}"] = fared[column]
            rows.append(row)
        return frame_of(rows)

    @cached_property
    def measured_sets(self) -> pd.DataFrame:
        """One row a set: the way of each model, its judgement, and its cost beside the reference's.

        ``ratio`` is that of the costs (below 1 is better): of the least share for ``"share"``, of
        the mean share for ``"throughput"``, of the largest part of a deadline that a 99th
        percentile uses up for ``"deadlines"``.
        """
        rows = []
        for one in self.sets:
            found = ratio_of(one, self.reference, self.goal.cost, self.noise)
            shares = [self._median_share(one, name) for name in one.chosen] if one.seen else []
            rows.append(
                {
                    "set": one.label,
                    **{f"{name}_way": way for name, way in one.chosen.items()},
                    "judgement": one.judgement,
                    "least_share": min(shares, default=math.nan),
                    "mean_share": float(np.mean(shares)) if shares else math.nan,
                    "ratio": found.middle if found else math.nan,
                    "ratio_ci95_low": found.low if found else math.nan,
                    "ratio_ci95_high": found.high if found else math.nan,
                    "n_turns": len(one.seen),
                }
            )
        return frame_of(rows)

    @cached_property
    def slowdown(self) -> pd.DataFrame:
        """One row a model and way beside a way of another: its share of the rate alone there."""
        return frame_of(
            [
                {
                    "model": one,
                    "way": first,
                    "beside": other,
                    "beside_way": second,
                    "share": min(1.0, rates[0] / self.alone[one][first].per_s),
                }
                for (one, first, other, second), rates in self.pairs.items()
            ]
            or [dict.fromkeys(("model", "way", "beside", "beside_way", "share"))]
        ).dropna()

    @cached_property
    def load(self) -> pd.DataFrame:
        """One row a factor of all rates and a model with a deadline: the share that missed it."""
        return frame_of(
            [
                {
                    "factor": factor,
                    "model": name,
                    "p99_us": self.goal.p99_us(name, driven),
                    "missed": self.goal.missed(name, driven),
                }
                for factor, turn in self.loads.items()
                for name, driven in turn.items()
                if self.goal.demands[name].deadline_ms is not None
            ]
            or [dict.fromkeys(("factor", "model", "p99_us", "missed"))]
        ).dropna()

    def deploy(
        self, directory: str | os.PathLike[str], *, tolerance: float | None = TOLERANCE
    ) -> Path:
        """Freeze each model with its contract, and write what runs all of them.

        Each is in a directory of its own name, which :func:`hetero_lab.verify` takes, as it takes
        the whole. ``run_machine.py`` keeps all busy with openvino and numpy alone, as
        ``machine.json`` says, and has ``start()`` for a program of your own.
        ``model_server.json`` is for OpenVINO Model Server, ``model_server.txt`` says how, and
        what it cannot carry over, of which a warning tells, too.

        Returns
        -------
        pathlib.Path
            The directory.

        Raises
        ------
        MeasurementError, OutputPathError, CompileError
            Nothing was measured together; as for :func:`hetero_lab.freeze`.
        """
        from hetero_lab.machine.machine_deploy import deploy

        if not self.chosen.seen:
            raise MeasurementError(f"Nothing was measured together to deploy. {self.chosen.why}")
        ways = {name: self.ways[name][label] for name, label in self.chosen.chosen.items()}
        demands, processes = self.goal.demands, self.processes
        return deploy(directory, ways, demands, processes=processes, tolerance=tolerance)

    # -- words --------------------------------------------------------------------------------

    @cached_property
    def verdict(self) -> str:
        """The answer, then its reasons."""
        if not self.chosen.seen:
            ended = " Ctrl-C ended it early." * self.interrupted
            return f"Nothing was measured together.{ended} {self.chosen.why}".strip()
        sentences = [self._answer_sentence(), *self._ratio_sentences(), *self._load_sentences()]
        for label, why in list(self.left_out.items())[:3]:
            sentences.append(f"Left out: {label}: {why.rstrip('.')}.")
        if len(self.left_out) > 3:
            sentences.append(f"… and {len(self.left_out) - 3} more, in left_out.")
        if len(self.reference.turns) < LEAST_TURNS and len(self.sets) > 1:
            sentences.append("The budget was too short to tell the best sets apart: give it more.")
        n_predicted = sum(one.judgement == NOT_MEASURED and not one.why for one in self.sets)
        if n_predicted:
            sentences.append(f"Predicted and not measured: {n_predicted} of {len(self.sets)} sets.")
        if self.interrupted:
            sentences.append(
                "Ctrl-C ended it early; the verdict rests on what was measured by then."
            )
        return "\n".join(sentences)

    def _answer_sentence(self) -> str:
        timed = [n for n, d in self.goal.demands.items() if d.deadline_ms is not None]
        where = ", ".join(f"{name} on {way}" for name, way in self.chosen.chosen.items())
        if self.goal.objective == DEADLINES:
            late = {n: self._missed(self.chosen, n) for n in timed}
            failing = {n: share for n, share in late.items() if not holds(share)}
            count = {1: "The deadline holds", 2: "Both deadlines hold"}.get(
                len(timed), f"All {number(len(timed))} deadlines hold"
            )
            said = count if not failing else _misses(failing)
            return f"{said}: {where}.{self._without()}"
        name, share = self._least(self.chosen)
        if self.goal.objective == SHARE:
            return f"{name} gets least, {share:.0%} of {self._of(name)}: {where}.{self._without()}"
        mean = np.mean([self._median_share(self.chosen, n) for n in self.goal.demands])
        return f"The models get {mean:.0%} on average of what they want: {where}.{self._without()}"

    def _without(self) -> str:
        """Say what happens with each model on its own best device."""
        reference = self.reference
        if reference is self.chosen:
            return " That is each on its own best device." * (reference.label == OWN_BEST)
        if not reference.seen:
            return ""
        if self.goal.objective == DEADLINES:
            timed = [n for n, d in self.goal.demands.items() if d.deadline_ms is not None]
            late = {n: self._missed(reference, n) for n in timed}
            failing = {n: share for n, share in late.items() if not holds(share)}
            return f" Without a plan {_misses(failing)}." if failing else ""
        name, share = self._least(reference)
        return f" Without a plan, {reference.label}, {name} gets {share:.0%}."

    def _ratio_sentences(self) -> list[str]:
        sentences: list[str] = []
        found = ratio_of(self.reference, self.chosen, self.goal.cost, self.noise)
        if found is not None and self.reference is not self.chosen:
            what = {
                SHARE: "The least share is {} times as large",
                DEADLINES: "The tightest deadline has {} times as much room",
            }.get(self.goal.objective, "The mean share is {} times as large")
            sentences.append(
                f"{what.format(f'{found.middle:.2f}')} (95 %: {found.low:.2f} to {found.high:.2f})."
            )
        for judgement, begins in (
            (ALIKE, f"As good, within {AS_FAST:.0%}"),
            (UNDECIDED, "Undecided"),
            (SLOWER, "Worse"),
        ):
            labels = [one.label for one in self.sets if one.judgement == judgement]
            if labels:
                sentences.append(f"{begins}: {names_at_hand(labels, 2)}.")
        return sentences

    def _load_sentences(self) -> list[str]:
        if not self.loads:
            return []
        factor, turn = max(self.loads.items())
        late = {name: self.goal.missed(name, driven) for name, driven in turn.items()}
        failing = {name: share for name, share in late.items() if not holds(share)}
        rates = "the rates asked for" if factor == 1 else f"{factor:g} times the rates"
        if not failing:
            return [f"At {rates} all deadlines hold."]
        return [f"The first deadline is missed at {rates}: {_misses(failing)}."]

    # -- figures ------------------------------------------------------------------------------

    def _named(self, label: str) -> Together | None:
        return next((one for one in self.sets if one.label == label), None)

    def _of(self, name: str) -> str:
        return "what it gets alone" if self.goal.demands[name].rate_per_s is None else "its rate"

    def _shares(self, one: Together, name: str) -> list[float]:
        return [self.goal.share(name, turn[name].rate_per_s) for turn in one.seen]

    def _median_share(self, one: Together, name: str) -> float:
        return float(np.median(self._shares(one, name)))

    def _least(self, one: Together) -> tuple[str, float]:
        shares = {name: self._median_share(one, name) for name in one.chosen}
        name = min(shares, key=lambda each: shares[each])
        return name, shares[name]

    def _missed(self, one: Together, name: str) -> float:
        """Return the share of all requests of a model that missed their deadline."""
        return self.goal.missed(name, pooled([turn[name] for turn in one.seen]))

    def _predicted(self, one: Together, name: str) -> float:
        if not one.predicted:
            return math.nan
        could = one.predicted[name] * self.alone[name][one.chosen[name]].per_s
        share = self.goal.share(name, could)
        return share if self.goal.demands[name].rate_per_s is None else min(1.0, share)

    def _fared(self, one: Together, name: str) -> dict[str, object]:
        """Return how a model fared in a set, as columns."""
        columns = (
            "rate_per_s",
            "share",
            "share_ci95_low",
            "share_ci95_high",
            "median_us",
            "p99_us",
        )
        if not one.seen:
            return dict.fromkeys((*columns, "missed"), math.nan)
        fared = pooled([turn[name] for turn in one.seen])
        shares = np.array(self._shares(one, name))
        half = math.nan
        if len(shares) > 1:
            from scipy import stats

            error = float(shares.std(ddof=1)) / math.sqrt(len(shares))
            half = float(stats.t.ppf(0.975, len(shares) - 1)) * error
        share = float(np.median(shares))
        median_us = float(np.median(fared.latencies_us)) if fared.latencies_us else math.nan
        found = (fared.rate_per_s, share, share - half, share + half, median_us)
        values = (*found, self.goal.p99_us(name, fared), self.goal.missed(name, fared))
        return dict(zip((*columns, "missed"), values, strict=True))

    def __repr__(self) -> str:
        return f"MachinePlan({self.chosen.label!r})\n{self.verdict}"

    def __str__(self) -> str:
        return f"{self.verdict}\n"


def _misses(failing: Mapping[str, float]) -> str:
    parts = [f"{name} misses {share:.0%}" for name, share in failing.items()]
    return f"{', '.join(parts)} of {'its' if len(parts) == 1 else 'their'} deadlines"
