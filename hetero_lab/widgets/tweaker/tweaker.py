"""AffinityTweaker: touch a placement, and see at once what that does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets

from hetero_lab.backend.core import shared_core
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import ArgumentError, names_at_hand
from hetero_lab.experiments.deployment.deploy import freeze
from hetero_lab.experiments.search.wrong import Wrong
from hetero_lab.experiments.sweep.control import SweepControl
from hetero_lab.lint.context import Finding
from hetero_lab.lint.lint import able_ops, to_frame
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.placement.priorities import Priorities
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.plan import plan
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.tables import write_csv
from hetero_lab.widgets.background import Background
from hetero_lab.widgets.tweaker.board_picture import BoardPicture
from hetero_lab.widgets.tweaker.events import connect
from hetero_lab.widgets.tweaker.measurement import (
    AUTOMATIC,
    Trial,
    Tried,
    control_of,
    history_frame,
    measure,
    new_rows,
)
from hetero_lab.widgets.tweaker.state import Tweaking, WhatIf
from hetero_lab.widgets.tweaker.view import Showing

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_PLANNING_S = 20.0
_NO_COSTS = (
    "Suggest has to know what ops and boundaries cost. Learn it with costs = "
    "hetero_lab.calibrate(model, devices) and open AffinityTweaker(model, devices, costs)."
)


class AffinityTweaker(ipywidgets.VBox):
    """Change a placement by hand and see at once what that does.

    Graph and table show the same ops; select in either, then move the selection to a device or
    drag the cut through the model. Everything that the widget does can be done from Python
    too, and moves it.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    devices
        In order of priority: the automatic placement is where it starts.
    costs
        What :func:`hetero_lab.calibrate` returned for this model and these devices; then the
        latency is predicted at every change, and *Suggest* works.
    device_properties
        For measuring and freezing, as in a Placement; those of ``costs`` if they are left out.
    budget_s
        How many seconds *Measure* may take.
    worker_command
        How to start a worker process, as in :func:`hetero_lab.sweep`.
    wrong
        What :func:`hetero_lab.find_wrong` found in this model: its ops are marked as long as
        they are placed as they were found, and the way around it is a finding.

    Raises
    ------
    ArgumentError
        A device is not here, no device supports some op, the costs are of another model, or
        ``budget_s`` is no number above 0.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> tweaker = hl.AffinityTweaker(model, ["ACC", "CPU"])
    >>> tweaker.select(pattern="^head_")
    >>> tweaker.assign("CPU")
    >>> tweaker.what_if.n_subgraphs, tweaker.affinity["head_digit/matmul"]
    (3, 'CPU')
    """

    def __init__(
        self,
        model: Source,
        devices: Sequence[str],
        costs: CostModel | None = None,
        *,
        device_properties: Mapping[str, Mapping[str, Any]] | None = None,
        budget_s: float = 20.0,
        worker_command: Sequence[str] | None = None,
        wrong: Wrong | None = None,
        core: ov.Core | None = None,
    ):
        core = core or shared_core()
        if budget_s is None:
            raise ArgumentError("budget_s= is how many seconds Measure may take, not None.")
        Stopwatch.start(budget_s)  # raises if it is no number above 0
        prepared = prepare(model)
        names = Priorities.parse(devices, core).devices
        if costs is not None:
            if not isinstance(costs, CostModel):
                raise ArgumentError(
                    "costs= is what hetero_lab.calibrate(model, devices) returns, not "
                    f"{type(costs).__name__}."
                )
            costs.check_graph(prepared.graph)
            costs.check_devices(names)
        if wrong is not None:
            if not isinstance(wrong, Wrong):
                raise ArgumentError(
                    "wrong= is what hetero_lab.find_wrong(model, placement) returns, not "
                    f"{type(wrong).__name__}."
                )
            wrong.given.affinity.check_model(prepared.graph)
        if device_properties is None:
            device_properties = costs.device_properties if costs is not None else {}
        automatic = Affinity.automatic(prepared, names, core=core)
        # Mistakes in the properties show now, not in a worker.
        resolve(prepared, Placement(automatic, AUTOMATIC, device_properties), core=core)
        able = {device: able_ops(prepared, device, core) for device in names}
        emulated = {d: spec.base for d, spec in emulated_devices(core).items()}
        self._tweaking = Tweaking(prepared.graph, automatic, able, costs, wrong)
        self._trial = Trial(prepared, automatic, device_properties, budget_s, worker_command, core)
        self._history: list[Tried] = []
        self._control: SweepControl | None = None
        self._showing = Showing(self._tweaking, BoardPicture(prepared.graph, names, emulated))
        self._controls = self._showing.controls
        self._background = Background(lambda text: self._controls.say(text, is_error=True))
        connect(self, self._showing)
        self.refresh()
        board, panel = self._showing.board, self._showing.panel
        super().__init__([*self._controls.above, board, panel, *self._controls.below])

    def __repr__(self) -> str:
        return (
            f"AffinityTweaker({self._tweaking.graph.name!r} on "
            f"{', '.join(self._tweaking.devices)}; {self.what_if!r})"
        )

    # State

    @property
    def affinity(self) -> Affinity:
        """The device of every node; setting it moves the widget."""
        return self._tweaking.affinity

    @affinity.setter
    def affinity(self, affinity: Affinity) -> None:
        self._change(lambda: self._tweaking.replace(affinity, "set from Python"))

    @property
    def selection(self) -> tuple[str, ...]:
        """Names of the selected ops; setting it selects."""
        return self._tweaking.selection

    @selection.setter
    def selection(self, names: Iterable[str]) -> None:
        self._change(lambda: self._tweaking.select(names))

    @property
    def what_if(self) -> WhatIf:
        """Subgraphs, boundaries, bytes and, with costs, the predicted latency."""
        return self._tweaking.what_if

    @property
    def findings(self) -> pd.DataFrame:
        """Wrong numbers that were found, and difficult topologies, as :func:`hetero_lab.lint`."""
        return to_frame(self._tweaking.findings, priced=self._tweaking.costs is not None)

    @property
    def history(self) -> pd.DataFrame:
        """One row a measurement, in order: status, latency with interval, ratio to automatic."""
        return history_frame(self._history)

    @property
    def tried(self) -> tuple[Tried, ...]:
        """What was measured, with the affinities."""
        return tuple(self._history)

    # Actions

    def select(
        self,
        ops: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        op_type: str | None = None,
        subgraph: int | None = None,
        after: str | None = None,
        add: bool = False,
    ) -> None:
        """Select ops by name, pattern, op type or subgraph, or everything after an op.

        Raises
        ------
        AffinityError
            Nothing matches; the selection stays.
        ArgumentError
            Not exactly one of these is given.
        """
        given = {
            name: value
            for name, value in (("ops", ops), ("pattern", pattern), ("op_type", op_type),
                                ("subgraph", subgraph), ("after", after))
            if value is not None
        }  # fmt: skip
        if len(given) != 1:
            raise ArgumentError(
                "Select by one of ops=, pattern=, op_type=, subgraph= and after=, not by "
                f"{names_at_hand(given) or 'nothing'}."
            )
        ((name, value),) = given.items()
        state = self._tweaking
        by: dict[str, Callable[..., None]] = {
            "ops": state.select, "pattern": state.select_pattern, "op_type": state.select_type,
            "subgraph": state.select_subgraph, "after": state.select_after,
        }  # fmt: skip
        self._change(lambda: by[name](value, add=add))

    def assign(self, device: str) -> None:
        """Move the selection to a device."""
        self._change(lambda: self._tweaking.assign(device))

    def cut(self, position: int, before: str | None = None, after: str | None = None) -> None:
        """Put the first ``position`` ops on one device and the others on another one.

        Devices that are left out are those beside the slider. Unsupported ops stay.
        """
        first = before or str(self._controls.before.value)
        second = after or str(self._controls.behind.value)
        self._change(lambda: self._tweaking.cut(position, first, second))

    def select_finding(self, index: int) -> None:
        """Select the ops of a row of ``findings``."""
        placeable = set(self._tweaking.ops)
        ops = [name for name in self._finding(index).ops if name in placeable]
        if not ops:
            raise ArgumentError("This finding is about nothing whose device can be chosen.")
        self.select(ops)

    def apply(self, index: int) -> None:
        """Do what a row of ``findings`` advises."""
        finding = self._finding(index)
        if not finding.remedy:
            raise ArgumentError(f"There is no remedy for finding {index}: {finding.advice}")
        self._change(lambda: self._tweaking.apply(finding.remedy, f"remedy for {finding.rule}"))

    def undo(self) -> None:
        """Go back one change."""
        self._change(self._tweaking.undo)

    def redo(self) -> None:
        """Go forward one change that was undone."""
        self._change(self._tweaking.redo)

    def measure(self, *, wait: bool = True) -> None:
        """Measure the present placement in turns with the automatic one, in worker processes.

        Parameters
        ----------
        wait
            Whether to return when it is done. The result is a row of ``history`` either way.

        Raises
        ------
        MeasurementError
            Something is running.
        """
        step, what_if = self._tweaking.step, self._tweaking.what_if
        number = 1 + sum(tried.label != AUTOMATIC for tried in self._history)
        label = AUTOMATIC if step.affinity == self._trial.automatic else f"{number}. {step.label}"

        control = control_of(self._trial, step.affinity, self._controls.show_progress)

        def work() -> None:
            self._keep(measure(self._trial, step.affinity, label, control), what_if)

        self._begin(work, "starting workers", control)
        if wait:
            self._background.wait()

    def cancel(self) -> None:
        """Stop measuring; the history stays as it is."""
        if self._control is not None:
            self._control.stop()

    def suggest(self, *, wait: bool = True) -> None:
        """Ask the planner for the best placement, and go there.

        Raises
        ------
        ArgumentError
            There are no costs.
        """
        costs = self._tweaking.costs
        if costs is None:
            raise ArgumentError(_NO_COSTS)

        def work() -> None:
            found = plan(self._trial.prepared, costs, budget_s=_PLANNING_S)
            before = self.affinity
            self._change(lambda: self._tweaking.replace(found.affinity, "suggested"))
            same = " It is where you are." if before == self.affinity else ""
            self._controls.say(
                f"The planner predicts {found.predicted_us:,.1f} µs, at least "
                f"{found.lower_bound_us:,.1f} µs for any placement.{same}"
            )

        self._begin(work, "planning")
        if wait:
            self._background.wait()

    def go_to(self, index: int) -> None:
        """Return to a placement of the history, by its row."""
        if not 0 <= index < len(self._history):
            raise ArgumentError(f"The history has {len(self._history)} rows, no row {index}.")
        tried = self._history[index]
        self._change(lambda: self._tweaking.replace(tried.affinity, f"back to {tried.label}"))

    def load(self, file: str | os.PathLike[str]) -> None:
        """Take over an affinity from a JSON or CSV file."""
        path = Path(file)
        read = Affinity.from_csv if path.suffix.lower() == ".csv" else Affinity.from_json
        self._change(lambda: self._tweaking.replace(read(path), f"loaded {path.name}"))

    def to_json(self, file: str | os.PathLike[str]) -> None:
        """Write the affinity as JSON."""
        self.affinity.to_json(file)

    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write the affinity as CSV."""
        self.affinity.to_csv(file)

    def history_to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write the history as CSV."""
        write_csv(file, self.history)

    def freeze(self, directory: str | os.PathLike[str]) -> Path:
        """Write a directory that runs the placement with openvino and numpy alone."""
        used = self.affinity.devices
        properties = {d: p for d, p in self._trial.device_properties.items() if d in used}
        placement = Placement(self.affinity, self._tweaking.step.label, properties)
        return freeze(self._trial.prepared, placement, directory, core=self._trial.core)

    def refresh(self) -> None:
        """Bring the widget up to date."""
        self._showing.refresh(self._history)

    # Inside

    def _change(self, action: Callable[[], object]) -> None:
        with self._showing.lock:
            action()
            self._controls.say("")
            self.refresh()

    def _finding(self, index: int) -> Finding:
        findings = self._tweaking.findings
        if not 0 <= index < len(findings):
            raise ArgumentError(f"There are {len(findings)} findings, no number {index}.")
        return findings[index]

    def _begin(
        self, work: Callable[[], object], text: str, control: SweepControl | None = None
    ) -> None:
        """Start work in the background, and show that it is going on."""

        def shown() -> None:
            try:
                work()
            finally:
                with self._showing.lock:
                    self._control = None
                    self._controls.show_busy(False, can_cancel=False)
                    self._controls.show_progress(0.0, "")

        with self._showing.lock:  # the thread's end waits until its beginning is shown
            self._background.start(shown)
            self._control = control
            self._controls.say("")
            self._controls.show_progress(0.0, text)
            self._controls.show_busy(True, can_cancel=control is not None)

    def _keep(self, rows: list[Tried], what_if: WhatIf) -> None:
        """Put what was measured into the history and show it."""
        if not rows:
            self._controls.say("Cancelled. The history is as it was.")
            return
        automatic = self._tweaking.what_if_automatic
        with self._showing.lock:
            for row in new_rows(self._history, rows):
                numbers = automatic if row.label == AUTOMATIC else what_if
                self._history.append(replace(row, predicted_us=numbers.predicted_us))
            self.refresh()
            failed = [row for row in rows if row.status != "ok"]
            if failed:
                text = "; ".join(f"{row.label}: {row.status} {row.detail}" for row in failed)
                self._controls.say(f"Measuring failed. {text}", is_error=True)
