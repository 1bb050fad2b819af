"""The plan of a machine: the way of each model, how all fare together, and how to deploy it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hetero_lab.devices.core import emulated_devices
from hetero_lab.errors import MeasurementError, names_at_hand, warn
from hetero_lab.fetch import file_digest
from hetero_lab.intervals import Noise
from hetero_lab.machine.contention import Alone
from hetero_lab.machine.demand import DEADLINES, SHARE, Goal, Turn
from hetero_lab.machine.race import LEAST_TURNS, NOT_MEASURED, Together, best_of, ratio_of
from hetero_lab.machine.ways import Way
from hetero_lab.placement.placement import Placement
from hetero_lab.result import Result
from hetero_lab.results.evidence import ALIKE, AS_FAST, SLOWER, TOLERANCE, UNDECIDED
from hetero_lab.runtime.stored_placement import standalone
from hetero_lab.tables import frame_of, number, write_json, write_text

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
        placements = [way.placed for ways in self.ways.values() for way in ways.values()]
        bases = {name: e.base for p in placements for name, e in emulated_devices(p.core).items()}
        return {d: bases[d] for p in placements for d in p.placement.devices if d in bases}

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
        sets = {one.label: one for one in self.sets}
        rows = []
        for name, way in self.chosen.chosen.items():
            row: dict[str, object] = {"model": name, "way": way}
            row["alone_per_s"] = self.goal.alone_per_s[name]
            row |= self._columns_of(self.chosen, name)
            row["predicted_share"] = self._prediction(self.chosen, name)
            for prefix, label in (("own_best", OWN_BEST), ("auto", ALL_AUTO)):
                if (other := sets.get(label)) is not None:
                    row[f"{prefix}_way"] = other.chosen[name]
                    columns = self._columns_of(other, name)
                    row |= {f"{prefix}_{n}": columns[n] for n in ("share", "p99_us", "missed")}
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
            ratio = ratio_of(one, self.reference, self.goal.cost, self.noise)
            shares = [*self._shares(one).values()]
            rows.append(
                {
                    "set": one.label,
                    **{f"{name}_way": way for name, way in one.chosen.items()},
                    "judgement": one.judgement,
                    "least_share": min(shares, default=math.nan),
                    "mean_share": float(np.mean(shares)) if shares else math.nan,
                    "ratio": ratio.middle if ratio else math.nan,
                    "ratio_ci95_low": ratio.low if ratio else math.nan,
                    "ratio_ci95_high": ratio.high if ratio else math.nan,
                    "n_turns": len(one.seen),
                }
            )
        return frame_of(rows)

    @cached_property
    def slowdown(self) -> pd.DataFrame:
        """One row a model and way beside a way of another: its share of the rate alone there."""
        rows = [
            (*names, min(1.0, rate / self.alone[names[0]][names[1]].per_s))
            for names, (rate, _) in self.pairs.items()
        ]
        return frame_of(rows, ["model", "way", "beside", "beside_way", "share"])

    @cached_property
    def load(self) -> pd.DataFrame:
        """One row a factor of all rates and a model with a deadline: the share that missed it."""
        goal = self.goal
        rows = [
            (factor, name, goal.p99_us(name, turn[name]), goal.missed(name, turn[name]))
            for factor, turn in self.loads.items()
            for name in goal.deadlines_us
        ]
        return frame_of(rows, ["factor", "model", "p99_us", "missed"])

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
        if not self.chosen.seen:
            raise MeasurementError(f"Nothing was measured together to deploy. {self.chosen.why}")
        # A plan is made without the annexes that deploy it.
        from hetero_lab.deploy import machine_file
        from hetero_lab.deploy.contract import check_vacant
        from hetero_lab.deploy.freeze import freeze_placed
        from hetero_lab.machine import run_machine

        target, models = Path(directory), dict[str, dict[str, Any]]()
        ways = {name: self.ways[name][label] for name, label in self.chosen.chosen.items()}
        for name, way in ways.items():  # nothing is written where one of them is refused
            check_vacant(target / name, way.placed.bound.model)
        for name, way in ways.items():
            freeze_placed(way.placed, target / name, tolerance=tolerance)
            demand, keys = self.goal.demands[name], ("requests", "rate_per_s", "deadline_ms")
            models[name] = {"way": way.label, **{key: getattr(demand, key) for key in keys}}
        _write_for_server(target, ways, models)
        program = target / machine_file.PROGRAM
        write_text(program, standalone(run_machine))
        about = {"processes": self.processes, "program": file_digest(program), "models": models}
        write_json(target / machine_file.FILE, {**machine_file.ABOUT, **about})
        return target

    # -- words --------------------------------------------------------------------------------

    @cached_property
    def verdict(self) -> str:
        """The answer, then its reasons."""
        if not self.chosen.seen:
            ended = " Ctrl-C ended it early." if self.interrupted else ""
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
        where = ", ".join(f"{name} on {way}" for name, way in self.chosen.chosen.items())
        if self.goal.objective == DEADLINES:
            n = len(self.goal.deadlines_us)
            hold = {1: "The deadline holds", 2: "Both deadlines hold"}.get(
                n, f"All {number(n)} deadlines hold"
            )
            answer = _misses(self.goal.late(self.chosen.pooled)) or hold
        elif self.goal.objective == SHARE:
            name, share = self._least(self.chosen)
            is_closed = self.goal.demands[name].rate_per_s is None
            of = "what it gets alone" if is_closed else "its rate"
            answer = f"{name} gets least, {share:.0%} of {of}"
        else:
            mean = np.mean([*self._shares(self.chosen).values()])
            answer = f"The models get {mean:.0%} on average of what they want"
        return f"{answer}: {where}.{self._without()}"

    def _without(self) -> str:
        """Say what happens with each model on its own best device."""
        reference = self.reference
        if reference is self.chosen:
            return " That is each on its own best device." if reference.label == OWN_BEST else ""
        if not reference.seen:
            return ""
        if self.goal.objective == DEADLINES:
            missed = _misses(self.goal.late(reference.pooled))
            return f" Without a plan {missed}." if missed else ""
        name, share = self._least(reference)
        return f" Without a plan, {reference.label}, {name} gets {share:.0%}."

    def _ratio_sentences(self) -> list[str]:
        sentences: list[str] = []
        ratio = ratio_of(self.reference, self.chosen, self.goal.cost, self.noise)
        if ratio is not None and self.reference is not self.chosen:
            what = {
                SHARE: "The least share is {} times as large",
                DEADLINES: "The tightest deadline has {} times as much room",
            }.get(self.goal.objective, "The mean share is {} times as large")
            sentences.append(
                f"{what.format(f'{ratio.middle:.2f}')} (95 %: {ratio.low:.2f} to {ratio.high:.2f})."
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
        rates = "the rates asked for" if factor == 1 else f"{factor:g} times the rates"
        if missed := _misses(self.goal.late(turn)):
            return [f"The first deadline is missed at {rates}: {missed}."]
        return [f"At {rates} all deadlines hold."]

    # -- figures ------------------------------------------------------------------------------

    def _shares(self, one: Together) -> dict[str, float]:
        return {n: self.goal.share(n, driven.rate_per_s) for n, driven in one.pooled.items()}

    def _least(self, one: Together) -> tuple[str, float]:
        return min(self._shares(one).items(), key=lambda item: item[1])

    def _prediction(self, one: Together, name: str) -> float:
        if not one.predicted:
            return math.nan
        return self.goal.served(
            name, one.predicted[name] * self.alone[name][one.chosen[name]].per_s
        )

    def _columns_of(self, one: Together, name: str) -> dict[str, float]:
        """Return how a model fared in a set, as columns."""
        share_columns = ("share", "share_ci95_low", "share_ci95_high")
        columns = ("rate_per_s", *share_columns, "median_us", "p99_us", "missed")
        if not one.seen:
            return dict.fromkeys(columns, math.nan)
        driven, half = one.pooled[name], math.nan
        if len(one.seen) > 1:
            from scipy import stats

            shares = [self.goal.share(name, turn[name].rate_per_s) for turn in one.seen]
            half = float(stats.sem(shares) * stats.t.ppf(0.975, len(shares) - 1))
        share = self._shares(one)[name]
        median_us = float(np.median(driven.latencies_us)) if driven.latencies_us else math.nan
        figures = (driven.rate_per_s, share, share - half, share + half, median_us)
        values = (*figures, self.goal.p99_us(name, driven), self.goal.missed(name, driven))
        return dict(zip(columns, values, strict=True))

    def __repr__(self) -> str:
        return f"MachinePlan({self.chosen.label!r})\n{self.verdict}"

    def __str__(self) -> str:
        return f"{self.verdict}\n"


def _misses(late: Mapping[str, float]) -> str:
    """Say which deadlines are missed how often; empty if none is."""
    parts = [f"{name} misses {share:.0%}" for name, share in late.items()]
    return (
        f"{', '.join(parts)} of {'its' if len(parts) == 1 else 'their'} deadlines" if parts else ""
    )


def _write_for_server(
    target: Path, ways: Mapping[str, Way], models: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the configuration for Model Server, with a note of what it cannot carry over."""
    from hetero_lab.deploy import machine_file
    from hetero_lab.interop.nearest_recipe import recipe_for

    configs, losses = list[dict[str, Any]](), list[str]()
    for name, way in ways.items():
        remarks, brace, config = recipe_for(way.placed, "ovms").partition("{")
        (recipe,) = json.loads(brace + config)["model_config_list"]
        entry = {"name": name, "base_path": f"/models/{name}", "nireq": models[name]["requests"]}
        configs.append({"config": {**recipe["config"], **entry}})
        losses += [f"{name}: {remark[3:]}" for remark in remarks.splitlines()[:-1]]
        emulated = [d for d in emulated_devices(way.placed.core) if d in way.placed.devices]
        losses += [f"{name}: {device} is emulated, and not there." for device in emulated]
    for loss in losses:
        warn(f"OpenVINO Model Server cannot run the plan as it is. {loss}")
    command = [
        "docker run --rm -p 9000:9000",
        *(f'-v "$PWD/{name}:/models/{name}/1:ro"' for name in ways),
        f'-v "$PWD/{machine_file.SERVER_FILE}:/config.json:ro"',
        "openvino/model_server --config_path /config.json --port 9000",
    ]
    write_json(target / machine_file.SERVER_FILE, {"model_config_list": configs})
    note = [" \\\n    ".join(command), "", *losses, "All models are in one process there.", ""]
    write_text(target / machine_file.SERVER_NOTE, "\n".join(note))
