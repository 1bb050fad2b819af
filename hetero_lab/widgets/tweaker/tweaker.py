"""AffinityTweaker: change a placement by hand and see the effect at once."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ipywidgets

from hetero_lab.arguments import checked
from hetero_lab.costs.cost_model import CostModel
from hetero_lab.devices.core import BoundModel, bind, emulated_devices
from hetero_lab.errors import (
    AffinityError,
    ArgumentError,
    MeasurementError,
    names_at_hand,
    shorten,
)
from hetero_lab.lint.context import KnownFaults
from hetero_lab.lint.lint import able_ops, to_frame
from hetero_lab.lookup import annex, annex_for
from hetero_lab.measure.session import SweepControl
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity, greedy
from hetero_lab.placement.placement import Placement, affinity_elsewhere, resolve
from hetero_lab.placement.priorities import Priorities, device_list
from hetero_lab.planning.planner import plan_graph
from hetero_lab.planning.simplify import simplify_graph
from hetero_lab.progress import Stopwatch
from hetero_lab.result import Displayed
from hetero_lab.results.environment import noise_here
from hetero_lab.results.evidence import TOLERANCE
from hetero_lab.search.hotspots import Hotspots
from hetero_lab.tables import time_text, write_csv
from hetero_lab.widgets.last_picture import LastPicture
from hetero_lab.widgets.tweaker.board_picture import BoardPicture, attributes_of, board_image
from hetero_lab.widgets.tweaker.tweaker_measurement import (
    AUTOMATIC,
    Attempt,
    Background,
    Decider,
    attempt_label,
    error_text,
    history_frame,
    measure,
    new_rows,
)
from hetero_lab.widgets.tweaker.tweaker_state import TweakerState, WhatIf
from hetero_lab.widgets.tweaker.tweaker_view import ABOVE, EXPORTS, FILES, PANEL, TweakerView

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_T = TypeVar("_T")


def connect(tweaker: AffinityTweaker, view: TweakerView) -> None:
    """Connect every control to its Python method; errors become messages."""
    controls = view.controls

    def guarded(action: Callable[[], object], at: str = ABOVE) -> None:
        with view.lock:
            try:
                action()
            except Exception as error:  # nobody would see the exception of a callback
                controls.say(error_text(error), is_error=True, at=at)
                # A control may show the refused value: put everything back.
                tweaker.refresh()

    def on_click(button: Any, action: Callable[[], object], at: str = ABOVE) -> None:
        button.on_click(lambda _button: guarded(action, at))

    def on_change(control: Any, name: str, action: Callable[[Any], object]) -> None:
        def handle(change: Any) -> None:
            if not view.is_refreshing:
                guarded(lambda: action(change["new"]))

        control.observe(handle, names=name)

    def pick(control: Any, nothing: Any, select: Callable[[Any], object]) -> None:
        """Select by a dropdown, which then offers the same choice again."""

        def handle(value: Any) -> None:
            if value != nothing:
                try:
                    select(value)
                finally:
                    control.value = nothing

        on_change(control, "value", handle)

    def after() -> None:
        if not tweaker.selection:
            raise AffinityError("Select an op first; everything after it is then selected.")
        tweaker.select(after=tweaker.selection)

    def by_pattern(_value: object = None) -> None:
        tweaker.select(pattern=controls.pattern.value)

    on_change(controls.pattern, "value", by_pattern)
    on_click(controls.by_pattern, by_pattern)
    pick(controls.by_type, "", lambda op_type: tweaker.select(op_type=op_type))
    pick(controls.by_subgraph, -1, lambda index: tweaker.select(subgraph=index))
    on_click(controls.after, after)
    on_click(controls.clear, lambda: tweaker.select(ops=[]))
    for device, button in controls.devices.items():
        on_click(button, lambda device=device: tweaker.assign(device, partly=True))
    on_click(controls.undo, tweaker.undo)
    on_click(controls.redo, tweaker.redo)
    on_change(controls.cut, "value", tweaker.cut)
    for control in (controls.before, controls.behind):
        on_change(control, "value", lambda _: tweaker.cut(controls.cut.value))
    on_click(
        controls.measure,
        lambda: tweaker.measure(wait=False, until_decided=controls.until_decided.value),
    )
    on_click(controls.cancel, tweaker.cancel)
    on_click(controls.suggest, lambda: tweaker.suggest(wait=False))
    on_click(controls.simplify, lambda: tweaker.simplify(wait=False))
    on_click(controls.export, lambda: _export(tweaker, view), FILES)
    on_click(controls.load, lambda: tweaker.load(_path(view)), FILES)

    def on_panel(_panel: Any, message: Any, _buffers: Any) -> None:
        do, index = message.get("do"), message.get("index")
        if not isinstance(index, int):
            return
        is_old = view.panel.is_looking and do in ("show", "fix")
        if is_old or ("is_old" in view.panel.hotspots and do in ("hotspot", "move")):
            return  # the click was on a row of the previous placement
        actions = {
            "show": tweaker.select_finding,
            "fix": tweaker.apply,
            "return": tweaker.go_to,
            "hotspot": lambda i: tweaker.select(_row(tweaker.hotspots.rows, i, "hotspot").ops),
            "move": tweaker.move,
        }
        if do in actions:
            guarded(lambda: actions[do](index), ABOVE if do == "return" else PANEL)

    taken = set[str]()

    def on_click_of_board(clicked: Mapping[str, Any]) -> None:
        """Select what was clicked; a click comes twice, and the first time counts."""
        number, names = clicked["click"], view.picture.names
        if number in taken:
            return
        taken.add(number)
        ops = [names[place] for place in clicked["places"] if 0 <= place < len(names)]
        with view.lock, view.board.hold_sync():  # the selection comes with the click it follows
            view.board.taken = number
            guarded(lambda: tweaker.select(ops=ops))

    def on_board(_board: Any, message: Any, _buffers: Any) -> None:
        keys = {"undo": tweaker.undo, "redo": tweaker.redo}
        if message.get("do") == "select":
            on_click_of_board(message)
        elif message.get("do") in keys:
            guarded(keys[message["do"]])

    view.board.observe(lambda change: on_click_of_board(change["new"]), "clicked")
    view.summary.on_msg(on_panel)
    view.panel.on_msg(on_panel)
    view.board.on_msg(on_board)


def _path(view: TweakerView) -> Path:
    text = view.controls.path.value.strip()
    if not text:
        raise ArgumentError("Write a path into the field first.")
    return Path(text)


def _export(tweaker: AffinityTweaker, view: TweakerView) -> None:
    writers: tuple[tuple[Callable[[Path], object], str], ...] = (
        (tweaker.to_json, ".json"),
        (tweaker.to_csv, ".csv"),
        (tweaker.freeze, ""),
        (tweaker.history_to_csv, ".csv"),
    )
    write, suffix = writers[EXPORTS.index(str(view.controls.export_kind.value))]
    path = _path(view)
    if suffix and path.name in ("", ".."):
        raise ArgumentError(f"{path} is a directory. Add the name of a file.")
    if suffix and not path.suffix:
        path = path.with_suffix(suffix)
    write(path)
    view.controls.say(f"Written: {path}", at=FILES)


def _row(rows: Sequence[_T], index: int, kind: str) -> _T:
    if not 0 <= index < len(rows):
        raise ArgumentError(f"No {kind} has the number {index}: there are {len(rows)}.")
    return rows[index]


_PLANNING_S = 20.0  # somebody waits; the planner then says how far off its plan may be
_NEEDS_KERNEL = "Moving ops and measuring"
_NO_COSTS = (
    "This has to know what ops and boundaries cost. Learn it with costs = "
    "hetero_lab.calibrate(model, devices) and open AffinityTweaker(model, devices, costs)."
)


class AffinityTweaker(LastPicture):
    """Change a placement by hand and see the effect at once.

    Graph and table show the same ops; select in either, then move the selection to a device or
    drag the cut through the model. Everything that the widget does can also be done from Python,
    which updates the widget.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes. Or the result of
        :func:`hetero_lab.interop.read_recording`, which brings devices and costs along: the
        history begins with what was recorded, and *Measure* looks there. Or that of
        :func:`hetero_lab.interop.npuw`: ops then move to another of its groups, or to a new group
        on one of its devices, and ``plan.regrouped(tweaker.affinity)`` is the changed plan.
    devices
        In order of priority; the tweaker starts from their automatic placement.
    costs
        The result of :func:`hetero_lab.calibrate` for this model and these devices. The latency is
        then predicted at every change, and *Suggest* works, even if a device of the costs is not
        here.
    device_properties
        For measuring and freezing, as in a Placement; by default those of ``costs``.
    budget_s
        Time limit of *Measure* in seconds.
    worker_command
        How to start a worker process, as in :func:`hetero_lab.sweep`.
    wrong
        The result of :func:`hetero_lab.find_wrong` for this model. Its ops are marked while they
        are placed as they were found, and the way around them is a finding.

    Attributes
    ----------
    board
        Graph and table alone, for front ends that show a single anywidget, such as marimo:
        ``mo.ui.anywidget(tweaker.board)``. It selects, and shows every change.
    state, view, background
        The selection and the changes, the widgets that show them, and the thread that measures.

    Raises
    ------
    ArgumentError
        A device is not here, no device supports some op, the costs are of another model, or
        ``budget_s`` is not a number above 0.

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

    @checked
    def __init__(
        self,
        model: Source | Displayed,
        devices: Sequence[str] | None = None,
        costs: CostModel | None = None,
        *,
        device_properties: Mapping[str, Mapping[str, Any]] | None = None,
        budget_s: float = 20.0,
        worker_command: Sequence[str] | None = None,
        wrong: KnownFaults | None = None,
        core: ov.Core | None = None,
    ):
        if budget_s is None:
            raise ArgumentError("budget_s= is how many seconds Measure may take, not None.")
        Stopwatch.start(budget_s)  # raises unless it is a number above 0
        self._history: list[Attempt] = []
        if board_in_annex := annex_for("board", model):
            state, picture, self._history = board_in_annex(model, costs)
            self._open(state, picture, None)
            return
        bound = bind(cast(Source, model), core)
        far, names = None, device_list(devices or (), bound.core)
        if costs is not None:
            costs.check_graph(bound.graph)
            far = affinity_elsewhere(bound, Priorities(names), costs)
        if far is None:
            Priorities.parse(names, bound.core)
        if costs is not None:
            costs.check_devices(names)
        if wrong is not None:
            wrong.given.affinity.check_model(bound.graph)
        if device_properties is None:
            device_properties = costs.device_properties if costs is not None else {}
        emulated = {d: spec.base for d, spec in emulated_devices(bound.core).items()}
        if costs is not None and far is not None:  # predictions only: a device is elsewhere
            automatic = far
            able = {device: costs.supports(device) for device in names}
            emulated = {**emulated, **costs.emulated}
        else:
            automatic = greedy(bound, names)
            # Mistakes in the properties show now, not in a worker.
            resolve(bound, Placement(automatic, AUTOMATIC, device_properties))
            able = {device: able_ops(bound, device) for device in names}
        self._device_properties = device_properties
        self._budget_s, self._worker_command = budget_s, worker_command
        state = TweakerState(bound.graph, automatic, able, costs, wrong)
        self._open(state, BoardPicture(bound.graph, names, emulated, attributes_of(bound)), bound)

    def _open(self, state: TweakerState, picture: BoardPicture, bound: BoundModel | None) -> None:
        self.state, self._bound = state, bound
        self._control: SweepControl | None = None
        self.view = TweakerView(self.state, picture)
        self.background = Background(lambda text: self.view.controls.say(text, is_error=True))
        self.board = self.view.board
        connect(self, self.view)
        self.refresh()
        view, controls = self.view, self.view.controls
        middle = [view.summary, view.board, controls.messages[PANEL], view.panel]
        if bound is None and not self._history:  # groups, not devices
            controls.measure.disabled = controls.simplify.disabled = True
        heading = [ipywidgets.HTML(picture.heading)] if picture.heading else []
        super().__init__([*heading, *controls.above, *middle, *controls.below], _NEEDS_KERNEL)

    def _picture(self) -> tuple[str, str]:
        board, devices = self.board, ", ".join(self.state.devices)
        sentence = f"{self.state.graph.name} on {devices}: {self.what_if}."
        image = board_image(board.picture, board.palette, board.placed)
        return sentence, f"<p>{html.escape(sentence)}</p>{image}"

    # State

    @property
    def affinity(self) -> Affinity:
        """The device of every node; setting it moves the widget."""
        return self.state.affinity

    @affinity.setter
    def affinity(self, affinity: Affinity) -> None:
        self._change(lambda: self.state.replace(affinity, "set from Python"))

    @property
    def selection(self) -> tuple[str, ...]:
        """Names of the selected ops; setting it selects."""
        return self.state.selection

    @selection.setter
    def selection(self, names: Iterable[str]) -> None:
        self._change(lambda: self.state.select(names))

    @property
    def what_if(self) -> WhatIf:
        """Subgraphs, boundaries, bytes and, with costs, the predicted latency."""
        return self.state.what_if

    @property
    def findings(self) -> pd.DataFrame:
        """Known wrong numbers and awkward topologies, as from :func:`hetero_lab.lint`."""
        return to_frame(self.state.findings, priced=self.state.costs is not None)

    @property
    def hotspots(self) -> Hotspots:
        """Where the time is predicted to go, as from :func:`hetero_lab.hotspots`.

        Raises
        ------
        ArgumentError
            There are no costs, or they do not hold for this placement.
        """
        result = self.state.hotspots_of(self.affinity)
        if result is None:
            raise ArgumentError(self.what_if.problem or _NO_COSTS)
        return result

    @property
    def history(self) -> pd.DataFrame:
        """One row per measurement, in order: status, latency with interval, ratio to automatic."""
        return history_frame(self._history)

    @property
    def tried(self) -> tuple[Attempt, ...]:
        """The measurements, with the affinities."""
        return tuple(self._history)

    # Actions

    def select(
        self,
        ops: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        op_type: str | None = None,
        subgraph: int | None = None,
        after: str | Iterable[str] | None = None,
        add: bool = False,
    ) -> None:
        """Select ops by name, pattern, op type or subgraph, or everything after some op.

        Raises
        ------
        AffinityError
            Nothing matches; the selection stays.
        ArgumentError
            Not exactly one of these is given.
        """
        state = self.state
        ways: dict[str, tuple[Callable[..., None], Any]] = {
            "ops": (state.select, ops),
            "pattern": (state.select_pattern, pattern),
            "op_type": (state.select_type, op_type),
            "subgraph": (state.select_subgraph, subgraph),
            "after": (state.select_after, after),
        }
        criteria = {name: way for name, way in ways.items() if way[1] is not None}
        if len(criteria) != 1:
            raise ArgumentError(
                "Select by one of ops=, pattern=, op_type=, subgraph= and after=, not by "
                f"{names_at_hand(criteria) or 'nothing'}."
            )
        ((select, value),) = criteria.values()
        self._change(lambda: select(value, add=add))

    def assign(self, device: str, *, partly: bool = False) -> None:
        """Move the selection to a device, or ``partly`` those of its ops that the device can run.

        Raises
        ------
        AffinityError
            Nothing is selected.
        DeviceError
            The device does not support one of the ops, with ``partly`` none of them.
        """
        self._change(lambda: self.state.assign(device, partly=partly))

    def cut(self, position: int, before: str | None = None, after: str | None = None) -> None:
        """Put the first ``position`` ops on one device and the others on another one.

        The devices beside the slider are the defaults. Unsupported ops stay where they are.
        """
        first, second = self.view.controls.cut_devices
        self._change(lambda: self.state.cut(position, before or first, after or second))

    def select_finding(self, index: int) -> None:
        """Select the ops of a row of ``findings``."""
        placeable = set(self.state.ops)
        ops = [n for n in _row(self.state.findings, index, "finding").ops if n in placeable]
        if not ops:
            raise ArgumentError("This finding is about nothing whose device can be chosen.")
        self.select(ops)

    def apply(self, index: int) -> None:
        """Follow the advice of a row of ``findings``."""
        finding = _row(self.state.findings, index, "finding")
        if not finding.remedy:
            raise ArgumentError(f"There is no remedy for finding {index}: {finding.advice}")
        self._change(lambda: self.state.apply(finding.remedy, f"remedy for {finding.rule}"))

    def move(self, index: int) -> None:
        """Move the ops of a row of ``hotspots`` to the device where that gains most."""
        row = _row(self.hotspots.rows, index, "hotspot")
        if not row.move_to:
            raise ArgumentError(f"No other device is known to run {shorten(row.name)}.")
        moved = dict.fromkeys(row.ops, row.move_to)
        self._change(lambda: self.state.apply(moved, f"{row.name} to {row.move_to}"))

    def undo(self) -> None:
        """Go back one change."""
        self._change(self.state.undo)

    def redo(self) -> None:
        """Go forward one change that was undone."""
        self._change(self.state.redo)

    def measure(self, *, wait: bool = True, until_decided: bool = True) -> None:
        """Measure the present placement in turns with the automatic one, in worker processes.

        Parameters
        ----------
        wait
            Whether to wait for the end. The result becomes a row of ``history`` either way.
        until_decided
            Whether to end as soon as the turns show which of the two is faster, or that they differ
            by less than 5 %. Otherwise only precision or ``budget_s`` ends it.

        Raises
        ------
        MeasurementError
            Something is running, or this is a recording that lacks the present placement.
        """
        bound = self._bound
        if bound is None:
            attempt = next((t for t in self._history if t.affinity == self.affinity), None)
            if attempt is None:
                raise MeasurementError("This was not measured. The history has all that was.")
            time = time_text(attempt.median_us or 0)
            self.view.controls.say(f"{attempt.label}: {time}, in the history.")
            return
        step, what_if = self.state.step, self.state.what_if
        affinities = {AUTOMATIC: self.state.automatic}
        if step.affinity != self.state.automatic:
            label = attempt_label(self._history, step.affinity, step.label)
            affinities[label] = step.affinity
        decider = Decider(
            n_placements=len(affinities),
            budget_s=self._budget_s,
            until_decided=until_decided,
            noise=noise_here(self.state.devices, bound.core),
            tell=self.view.controls.show_progress,
        )
        control = SweepControl(decider.take)

        def work() -> None:
            options = self._device_properties, self._budget_s, self._worker_command
            rows = measure(bound, affinities, *options, control)
            self._keep(rows, what_if, decider.verdict)

        self._begin(work, "starting workers", wait, control)

    def cancel(self) -> None:
        """Stop measuring; the history stays as it is."""
        if self._control is not None:
            self._control.stop()

    def suggest(self, *, wait: bool = True) -> None:
        """Ask the planner for the best placement, and take it over.

        Raises
        ------
        ArgumentError
            There are no costs.
        """
        costs = self.state.costs
        if costs is None:
            raise ArgumentError(_NO_COSTS)

        def work() -> None:
            plan = plan_graph(self.state.graph, costs, budget_s=_PLANNING_S)
            before = self.affinity
            self._change(lambda: self.state.replace(plan.affinity, "suggested"))
            same = " It is where you are." if before == self.affinity else ""
            self.view.controls.say(
                f"The planner predicts {time_text(plan.predicted_us)}; no placement can be below "
                f"{time_text(plan.lower_bound_us)} by these costs.{same}"
            )

        self._begin(work, "planning", wait)

    def simplify(self, *, wait: bool = True) -> None:
        """Take over the change that leaves fewest subgraphs, as :func:`hetero_lab.simplify`."""

        def work() -> None:
            state = self.state
            result = simplify_graph(state.graph, state.affinity, state.able, costs=state.costs)
            self._change(lambda: state.replace(result.affinity, "simplified"))
            self.view.controls.say(result.remark or result.verdict)

        self._begin(work, "trying changes", wait)

    def go_to(self, index: int) -> None:
        """Return to the placement of a row of the history."""
        attempt = _row(self._history, index, "measurement")
        self._change(lambda: self.state.replace(attempt.affinity, f"back to {attempt.label}"))

    def load(self, file: str | os.PathLike[str]) -> None:
        """Take over an affinity from a JSON or CSV file."""
        path = Path(file)
        read = Affinity.from_csv if path.suffix.lower() == ".csv" else Affinity.from_json
        self._change(lambda: self.state.replace(read(path), f"loaded {path.name}"))

    def to_json(self, file: str | os.PathLike[str]) -> None:
        """Write the affinity as JSON."""
        self.affinity.to_json(file)

    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write the affinity as CSV."""
        self.affinity.to_csv(file)

    def history_to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write the history as CSV."""
        write_csv(file, self.history)

    def freeze(
        self, directory: str | os.PathLike[str], *, tolerance: float | None = TOLERANCE
    ) -> Path:
        """Write the placement as :func:`hetero_lab.freeze` does."""
        if self._bound is None:
            raise AffinityError("There are no weights here: freeze the model itself.")
        devices = self.affinity.devices
        properties = {d: p for d, p in self._device_properties.items() if d in devices}
        placement = Placement(self.affinity, self.state.step.label, properties)
        bound_placement = resolve(self._bound, placement)
        return annex("freeze")(bound_placement, directory, tolerance=tolerance)

    def refresh(self) -> None:
        """Bring the widget up to date."""
        self.view.refresh(self._history)

    # Inside

    def _change(self, action: Callable[[], object]) -> None:
        with self.view.lock:
            action()
            self.view.controls.say("")
            self.refresh()

    def _begin(
        self, work: Callable[[], object], text: str, wait: bool, control: SweepControl | None = None
    ) -> None:
        """Start work in the background and show that it is going on; perhaps wait for its end."""

        def shown() -> None:
            try:
                work()
            finally:
                with self.view.lock:
                    self._control = None
                    self.view.controls.show_busy(False, can_cancel=False)
                    self.view.controls.show_progress(0.0, "")

        with self.view.lock:  # the thread's end waits until its beginning is shown
            self.background.start(shown)
            self._control = control
            self.view.controls.say("")
            self.view.controls.show_progress(0.0, text)
            self.view.controls.show_busy(True, can_cancel=control is not None)
        if wait:
            self.background.wait()

    def _keep(self, rows: list[Attempt], what_if: WhatIf, verdict: str) -> None:
        if not rows:
            self.view.controls.say("Cancelled. The history is as it was.")
            return
        automatic = self.state.what_if_automatic
        with self.view.lock:
            for row in new_rows(self._history, rows):
                numbers = automatic if row.label == AUTOMATIC else what_if
                self._history.append(replace(row, predicted=numbers.estimate))
            self.refresh()
            self.view.controls.say(verdict)
            failed = [row for row in rows if row.status != "ok"]
            if failed:
                text = "; ".join(f"{row.label}: {row.status} {row.detail}" for row in failed)
                self.view.controls.say(f"Measuring failed. {text}", is_error=True)
