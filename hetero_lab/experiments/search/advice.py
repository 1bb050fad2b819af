"""Advice: what to deploy, how sure that is, and what was measured for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_lab.backend.bound import BoundModel
from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.deployment.contract import AccuracyPromise
from hetero_lab.experiments.deployment.freeze import freeze_placed
from hetero_lab.experiments.evidence import BEST
from hetero_lab.experiments.search.optimize import Optimized
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.experiments.sweep.row import Row
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.result import Result
from hetero_lab.runtime.inputs import Inputs

if TYPE_CHECKING:
    import pandas as pd

WRONG, INACCURATE, UNMEASURED = "wrong outputs", "less accurate", "not measured"


@dataclass(frozen=True)
class Judged:
    """A candidate: what it was measured as, and what became of it.

    Attributes
    ----------
    stage
        ``race`` or ``final``.
    judgement
        ``best``, ``as fast``, ``slower``, ``wrong outputs``, ``less accurate`` or ``not measured``.
    """

    row: Row
    placement: Placement
    bound: BoundModel
    stage: str
    judgement: str
    why: str = ""


@dataclass(frozen=True)
class Advice(Result):
    """What to deploy.

    Attributes
    ----------
    best
        The placement to deploy.
    verdict
        Sentences: what is best, by how much and how sure, what was wrong or unusable and why,
        what would change the answer.
    candidates
        All that was measured or tried, in order of simplicity.
    left_out
        What could not be a candidate, and why.
    executor
        What runs the best placement fastest: ``hetero``, or ``parallel`` for
        :class:`hetero_lab.ParallelExecutor`.
    sweep
        The last measurement of the best few.
    optimized
        What :func:`hetero_lab.optimize` found, if it was asked.
    interrupted
        Whether Ctrl-C ended it; what is known is sound.
    """

    best: Placement
    verdict: str
    candidates: tuple[Judged, ...]
    left_out: tuple[tuple[str, str], ...]
    executor: str
    sweep: Sweep
    examples: tuple[Inputs, ...] = ()
    optimized: Optimized | None = None
    interrupted: bool = False

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a candidate: columns as in ``sweep.summary``, and ``stage``, ``judgement``."""
        import pandas as pd

        frames = []
        for stage in dict.fromkeys(c.stage for c in self.candidates):
            own = [c for c in self.candidates if c.stage == stage]
            rows = tuple(c.row for c in own)
            reference = next((c.row.label for c in own if c.row.key == self._reference_key), "")
            frame = Sweep(rows, reference, self.sweep.environment, ()).summary.copy()
            frame.insert(1, "stage", stage)
            frame.insert(2, "judgement", [c.judgement for c in own])
            frame.insert(3, "why", [c.why for c in own])
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    @property
    def chosen(self) -> Judged:
        """The candidate that is advised.

        Raises
        ------
        MeasurementError
            Nothing was measured.
        """
        for candidate in self.candidates:
            if candidate.judgement == BEST:
                return candidate
        raise MeasurementError("Nothing was measured, so there is no choice to look at.")

    def deploy(self, directory: str | os.PathLike[str]) -> Path:
        """Freeze the advised placement with its contract, as :func:`hetero_lab.freeze` does.

        Returns
        -------
        pathlib.Path
            The directory, which :func:`hetero_lab.verify` holds to the contract.

        Raises
        ------
        MeasurementError, OutputPathError, CompileError
            Nothing was measured; as for :func:`hetero_lab.freeze`.
        """
        chosen = self.chosen
        found = chosen.row.evaluation
        accuracy = None
        if found is not None and found.is_labelled:
            accuracy = AccuracyPromise(
                accuracy=float(found.accuracy or 0.0),
                drop=float(found.paired.drop),
                n_examples=len(found),
            )
        return freeze_placed(
            resolve(chosen.bound, self.best),
            directory,
            examples=self.examples or None,
            accuracy=accuracy,
        )

    @property
    def _reference_key(self) -> str:
        return next((r.key for r in self.sweep.rows if r.label == self.sweep.reference), "")

    def __repr__(self) -> str:
        return f"Advice({self.best.label!r})\n{self.verdict}"

    def __str__(self) -> str:
        return f"{self.verdict}\n"

    def _sentences(self) -> list[str]:
        return [self.verdict]

    def _shown(self) -> dict[str, pd.DataFrame]:
        shown = ["label", "judgement", "why", "stage", "median_us", "ratio", "ratio_ci95_low"]
        shown += ["ratio_ci95_high", "execution_devices", "verdict"]
        return {"": self.summary.loc[:, shown]}


def by_label(candidates: Sequence[Judged], judgement: str) -> list[Judged]:
    """Return the candidates with a judgement."""
    return [candidate for candidate in candidates if candidate.judgement == judgement]
