"""Measure a placement beside the automatic one, in the background, and keep a history of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from hetero_lab.devices.core import BoundModel
from hetero_lab.errors import HeteroLabError, MeasurementError
from hetero_lab.intervals import Estimate, Noise, Series
from hetero_lab.measure.session import Conditions, Session, StoppedError, SweepControl
from hetero_lab.measure.stopping import LEAST_TURNS, RunOptions
from hetero_lab.measure.trial_grid import by_name, expand
from hetero_lab.measure.worker_process import Workers
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.progress import Stopwatch
from hetero_lab.results.environment import is_busy
from hetero_lab.results.evidence import UNDECIDED, finding
from hetero_lab.results.records import AnyRecord, Compiled, Ledger, State, Turn
from hetero_lab.results.sweep_builder import foreign_cpus
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import pandas as pd

AUTOMATIC = "automatic"
_LOOKS = tuple(LEAST_TURNS * 2**n for n in range(7))  # turns, up to the most of a sweep


@dataclass(frozen=True)
class Attempt:
    """A placement that was measured, or could not be.

    ``configuration`` is the label with the precision that was used, where that is known.
    ``status`` is ``ok`` or the cause, and ``detail`` the message of the runtime. ``ratio`` is to
    the automatic placement in the same run; below 1 is faster. ``median_us`` is that ratio times
    what the automatic placement took when it was measured first, so that rows of several runs can
    be compared; ``raw_median_us`` is the median of the row's own turns.
    """

    label: str
    affinity: Affinity
    status: str = "ok"
    detail: str = ""
    configuration: str = ""
    n_subgraphs: int | None = None
    boundary_bytes: int | None = None
    median_us: float | None = None
    ci95_low_us: float | None = None
    ci95_high_us: float | None = None
    ratio: float | None = None
    ratio_ci95_low: float | None = None
    ratio_ci95_high: float | None = None
    raw_median_us: float | None = None
    predicted: Estimate | None = None

    @property
    def predicted_us(self) -> float | None:
        """Predicted latency in µs."""
        return None if self.predicted is None else self.predicted.us


class Decider:
    """Follows a measurement, tells what is known so far, and may end it once that decides.

    ``tell`` gets a share of 0 to 1 and a text. Looking often finds a difference by chance, so it
    decides only when the turns have doubled, with a p-value corrected for all looks (Bonferroni).
    """

    def __init__(
        self,
        n_placements: int,
        budget_s: float,
        noise: Noise,
        tell: Callable[[float, str], object],
        until_decided: bool,
    ):
        self.n_placements, self.noise = n_placements, noise
        self.tell, self.until_decided, self._budget_s = tell, until_decided, budget_s
        self._watch, self._ledger = Stopwatch.start(budget_s), Ledger()
        self._states: list[State] = []
        self._keys: list[str] = []  # of what is compiled, the automatic placement first

    def take(self, record: AnyRecord) -> None:
        """Take a record of the sweep; StoppedError once it is decided."""
        self._ledger.note(record)
        if isinstance(record, Compiled):
            self._keys.append(record.entry)
            self._say(f"compiled {len(self._keys)} of {self.n_placements}")
        elif isinstance(record, State):
            self._states.append(record)
        elif isinstance(record, Turn):
            self._look()

    def _look(self) -> None:
        n_turns = self._n_turns
        if n_turns < LEAST_TURNS:
            self._say(f"{count_of(n_turns, 'turn')} of each, of at least {LEAST_TURNS}")
        elif len(self._keys) == 1:
            self._say(f"{n_turns} turns so far")
        elif n_turns % LEAST_TURNS == 0:
            text, outcome = self._compare()
            self._say(text)
            if self.until_decided and n_turns in _LOOKS and outcome != UNDECIDED:
                raise StoppedError(text)

    @property
    def verdict(self) -> str:
        """What all turns say of two placements; empty if they are too few."""
        is_known = len(self._keys) > 1 and self._n_turns >= LEAST_TURNS
        return self._compare()[0] if is_known else ""

    @property
    def _n_turns(self) -> int:
        return len(self._ledger.pairs(self._keys[-1], self._keys[0])[0])

    def _compare(self) -> tuple[str, str]:
        first, last = self._keys[0], self._keys[-1]
        busy = is_busy(foreign_cpus(self._states), os.cpu_count() or 1)
        noise, levels = self.noise.when_busy if busy else self.noise, self._ledger.levels_us
        ratio = Series(levels(last), levels(first), noise).ratio
        assert ratio is not None
        outcome = finding(ratio, min(1.0, ratio.p * len(_LOOKS)))
        text = f"{ratio.middle:.3f} × automatic ({ratio.low:.3f} to {ratio.high:.3f}), {outcome}"
        return f"{self._n_turns} turns of each: {text}", outcome

    def _say(self, text: str) -> None:
        self.tell(min(1.0, self._watch.elapsed_s / self._budget_s), text)


def attempt_label(history: Sequence[Attempt], affinity: Affinity, changed: str) -> str:
    """Name a row by its number and what was changed; the same affinity keeps its name."""
    before = next((attempt.label for attempt in history if attempt.affinity == affinity), None)
    others = {attempt.affinity for attempt in history if attempt.label != AUTOMATIC}
    return f"{before}, again" if before is not None else f"{len(others) + 1}. {changed}"


def measure(
    bound: BoundModel,
    affinities: Mapping[str, Affinity],
    device_properties: Mapping[str, Mapping[str, Any]],
    budget_s: float,
    worker_command: Sequence[str] | None,
    control: SweepControl,
) -> list[Attempt]:
    """Measure affinities by label, the automatic one first; empty if ``control`` stopped it."""
    placements = [
        Placement(a, name, {d: device_properties[d] for d in a.devices if d in device_properties})
        for name, a in affinities.items()
    ]
    conditions = Conditions(workers=Workers(command=worker_command))
    with Session(by_name(bound), conditions) as session:
        measured = session.measure(
            expand(session.models, placements, baselines=False),
            RunOptions(counters=False, reference=False),
            Stopwatch.start(budget_s),
            control=control,
        )
    if control.is_stopped:
        return []
    # A placement cannot have the label of the automatic one, so rows keep the order.
    rows = measured.summary.to_dict("records")
    return [attempt_of(row, a) for row, a in zip(rows, affinities.values(), strict=True)]


def attempt_of(row: Mapping[Any, Any], affinity: Affinity) -> Attempt:
    values = {name: row[name] for name in ("status", "detail", "configuration") if name in row}
    if row["status"] == "ok":
        values |= {name: row[name] for name in _NUMBERS if name in row and row[name] == row[name]}
    return Attempt(row["label"], affinity, **values)


def new_rows(history: Sequence[Attempt], rows: Sequence[Attempt]) -> list[Attempt]:
    """Return the rows that a run adds, on the scale of the history.

    A run begins with the automatic placement, which has a new row only if nothing else was run.
    """
    first_us = next((t.median_us for t in history if t.label == AUTOMATIC and t.median_us), None)
    if first_us is None or rows[0].median_us is None:
        return list(rows)
    scale = first_us / rows[0].median_us
    return [_scaled(row, scale) for row in rows if row.label != AUTOMATIC or len(rows) == 1]


def _scaled(row: Attempt, scale: float) -> Attempt:
    times = {name: getattr(row, name) for name in ("median_us", "ci95_low_us", "ci95_high_us")}
    return replace(row, **{name: scale * us for name, us in times.items() if us is not None})


_NUMBERS = tuple(f.name for f in fields(Attempt))[5:-1]


def history_frame(history: Sequence[Attempt]) -> pd.DataFrame:
    """Return one row per measurement: label, status, structure, latency, ratio to automatic."""
    import pandas as pd

    columns = ["label", "configuration", "status", *_NUMBERS, "predicted_us", "detail"]
    rows = [{name: getattr(attempt, name) for name in columns} for attempt in history]
    frame = pd.DataFrame(rows, columns=columns)
    kinds = dict.fromkeys(columns, "str")
    kinds |= dict.fromkeys([*_NUMBERS, "predicted_us"], "float64")
    kinds |= dict.fromkeys(["n_subgraphs", "boundary_bytes"], "Int64")
    return frame.astype(kinds)


def error_text(error: Exception) -> str:
    """Return what a user should read of an error."""
    return str(error) if isinstance(error, HeteroLabError) else f"{type(error).__name__}: {error}"


class Background:
    """Runs work in a thread and keeps its error, whose text ``failed`` gets there."""

    def __init__(self, failed: Callable[[str], object]):
        self._failed = failed
        self._work: Future[None] | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Begin; MeasurementError if the previous work has not ended."""
        if self._work is not None and not self._work.done():
            raise MeasurementError("Something is still running. Wait for it, or press Cancel.")
        future: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._failed(error_text(error))
                future.set_exception(error)
            else:
                future.set_result(None)

        self._work = future
        # A kernel that shuts down does not wait for it; its worker processes end by themselves.
        threading.Thread(target=run, name="hetero_lab tweaker", daemon=True).start()

    def wait(self) -> None:
        """Wait for the end, and raise the error of the work."""
        if self._work is not None:
            self._work.result()
