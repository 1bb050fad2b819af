"""View of the tweaker: board, panel and controls, updated after every change."""

from __future__ import annotations

import html
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from hetero_lab.errors import names_at_hand
from hetero_lab.intervals import Estimate
from hetero_lab.lint.context import Finding
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, displacements
from hetero_lab.search.hotspots import Hotspots
from hetero_lab.tables import bytes_text, interval_text
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import squeeze, time_text
from hetero_lab.widgets.tweaker.board_picture import BoardPicture
from hetero_lab.widgets.tweaker.tweaker_measurement import AUTOMATIC, Attempt
from hetero_lab.widgets.tweaker.tweaker_state import Cut, TweakerState, WhatIf

_HERE = Path(__file__).parent


class Board(anywidget.AnyWidget):
    """Graph and table side by side, linked both ways.

    ``picture`` and ``palette`` are set once. ``placed`` has the numbers of the device and the
    subgraph of each node, and for some nodes the reason why their numbers are wrong or why they
    are not on the device of their choice. ``selected`` has places in the list of nodes. A
    click is a message ``{"do": "select", "click": …, "places": …}`` and a change of ``clicked``;
    ``taken`` is the last click that ``selected`` follows.
    """

    _esm = _HERE / "board.js"
    _css = _HERE / "board.css"
    picture = traitlets.Dict().tag(sync=True)
    palette = traitlets.List().tag(sync=True)
    placed = traitlets.Dict().tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    clicked = traitlets.Dict().tag(sync=True)
    taken = traitlets.Unicode().tag(sync=True)


class Panel(anywidget.AnyWidget):
    """Its ``parts`` of numbers, history, findings and hotspots.

    Its buttons send ``{"do": …, "index": …}``.
    """

    _esm = _HERE / "panel.js"
    _css = _HERE / "panel.css"
    parts = traitlets.List().tag(sync=True)
    numbers = traitlets.List().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)
    findings = traitlets.List().tag(sync=True)
    n_findings = traitlets.Int().tag(sync=True)
    hotspots = traitlets.Dict().tag(sync=True)
    is_looking = traitlets.Bool().tag(sync=True)
    tried = traitlets.List().tag(sync=True)


SHOWN_ROWS = 100  # in a list; they are sent at every change, and nobody reads on
_LONGEST = 400  # characters of a text in a list: about four lines


def number_rows(now: WhatIf, automatic: WhatIf) -> list[dict[str, str]]:
    """Return one row per number: ``key, name, now, automatic``."""
    rows = (
        ("subgraphs", "subgraphs", lambda x: str(x.n_subgraphs)),
        ("boundaries", "boundaries", lambda x: str(x.n_boundaries)),
        ("bytes", "bytes", lambda x: bytes_text(x.boundary_bytes)),
        ("predicted", "predicted latency", lambda x: estimate_text(x.estimate)),
    )
    return [
        {"key": key, "name": name, "now": text(now), "automatic": text(automatic)}
        for key, name, text in rows
    ]


def finding_rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return one row for each of the worst findings; the panel groups them by rule and cause."""
    return [
        {
            "rule": finding.rule,
            "severity": finding.severity,
            "cause": finding.cause,
            "finding": squeeze(finding.finding, _LONGEST),
            "advice": squeeze(finding.advice, _LONGEST),
            "fix": bool(finding.remedy),
        }
        for finding in findings[:SHOWN_ROWS]
    ]


def hotspot_table(hotspots: Hotspots | None) -> dict[str, Any]:
    """Return what the hotspots come to, their number, and a row for each of the slowest.

    ``best`` is the number of the row whose move gains most, -1 if none gains.
    """
    if hotspots is None:
        return {}
    total = hotspots.total_us or 1.0
    best = next((row for row in hotspots.priced if row.gain and row.gain.us > 0.0), None)
    devices = list(dict.fromkeys(device for row in hotspots.rows for device in row.predicted_us))
    summed = accumulate(row.us for row in hotspots.rows)
    rows = [
        {
            "name": squeeze(row.name, _LONGEST),
            "n": count_of(len(row.ops), "op"),
            "device": row.device,
            "us": [us_text(row.predicted_us.get(device)) for device in devices],
            "share": f"{us / total:.0%}",
            "gain": estimate_text(row.gain),
            "to": row.move_to if row.gain and row.gain.us > 0 else "",
        }
        for row, us in zip(hotspots.rows[:SHOWN_ROWS], summed, strict=False)
    ]
    return {
        "verdict": hotspots.verdict,
        "notes": " ".join(hotspots.notes),
        "n": len(hotspots.rows),
        "best": hotspots.rows.index(best) if best else -1,
        "devices": devices,
        "rows": rows,
    }


def attempt_rows(history: Sequence[Attempt], now: Affinity) -> list[dict[str, Any]]:
    """Return one row per measurement; ``is_here`` where it is of the present affinity.

    The machine may be slower or faster than when the costs were learnt. What the automatic
    placement tells of that is taken out of the predictions.
    """
    pairs = [(t.median_us, t.predicted_us) for t in history if t.label == AUTOMATIC]
    level = next((us / predicted for us, predicted in pairs if us and predicted), 1.0)
    return [
        {
            "label": squeeze(attempt.configuration or attempt.label, 100),
            "status": attempt.status,
            "detail": squeeze(attempt.detail, _LONGEST),
            "is_here": attempt.affinity == now,
            **_numbers(attempt, level),
        }
        for attempt in history
    ]


def _numbers(row: Attempt, level: float) -> dict[str, Any]:
    low, high, of = row.ci95_low_us, row.ci95_high_us, row.predicted
    if row.median_us is None or low is None or high is None:
        return {}
    now = of and Estimate(*(level * us for us in (of.us, of.low_us, of.high_us)))
    return {
        "subgraphs": "" if row.n_subgraphs is None else str(row.n_subgraphs),
        "median": row.median_us,
        "low": low,
        "high": high,
        "latency": us_text(row.median_us),
        "interval": f"{us_text(low)} to {us_text(high)}",
        "ratio": interval_text(row.ratio, row.ratio_ci95_low, row.ratio_ci95_high, _ratio),
        "predicted": estimate_text(now),
    }


def estimate_text(estimate: Estimate | None) -> str:
    """Write an estimate with its interval, if that is finite; a dash if there is none."""
    if estimate is None or math.isinf(estimate.high_us):
        return us_text(estimate and estimate.us)
    three = estimate.us, estimate.low_us, estimate.high_us
    if max(map(abs, three)) < 999.5:
        return interval_text(*three, us_text)
    return interval_text(*three, lambda us: f"{us / 1e3:,.2f} ms")


def us_text(us: float | None) -> str:
    """Write a time; a dash if it is not known."""
    return "–" if us is None else time_text(us)


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


class Later:
    """Debounce: call a function in a thread of its own, once, a moment after the last request."""

    def __init__(self, work: Callable[[], object], delay_s: float = 0.3):
        self._work = work
        self._delay_s = delay_s
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Ask for the work, from any thread; an earlier request that still waits is dropped."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._delay_s, self._work)
            self._timer.daemon = True
            self._timer.start()


class TweakerView:
    """The widgets of one tweaker. Only differences are sent to the browser.

    Events of the kernel and of a measuring thread change the same widgets: both hold ``lock``.
    ``is_refreshing`` tells handlers that a change came from here and not from a person.
    """

    def __init__(self, state: TweakerState, picture: BoardPicture):
        self._state = state
        self.picture = picture
        self._later = Later(self.look)
        self._shown: Affinity | None = None
        self.lock = threading.RLock()
        self.is_refreshing = False
        palette = picture.palette
        self.board = Board(picture=picture.to_json(state.able, state.costs), palette=palette)
        self.summary = Panel(parts=["numbers", "history"])
        self.panel = Panel(parts=["findings", "hotspots"])
        labels = {look["device"]: look["label"] for look in palette}
        has_costs = state.costs is not None
        self.controls = Controls(labels, state.op_types, len(state.ops), has_costs)

    def refresh(self, history: Sequence[Attempt]) -> None:
        """Update everything but findings and hotspots, which follow a moment later."""
        state, controls = self._state, self.controls
        with self.lock:
            affinity, self.is_refreshing = state.affinity, True
            try:
                if affinity != self._shown:
                    self._show_affinity(affinity)
                self.summary.tried = attempt_rows(history, affinity)
                self.board.selected = sorted(
                    self.picture.place_of[name] for name in state.selection
                )
                self._show_selection()
                controls.undo.disabled = not state.can_undo
                controls.redo.disabled = not state.can_redo
                cut = state.step.cut
                controls.show_cut(*((cut, 0) if cut else state.nearest_cut(controls.cut_devices)))
            finally:
                self.is_refreshing = False

    def look(self) -> None:
        """Find problems and hotspots and show them, unless something has changed meanwhile."""
        state, affinity = self._state, self._state.affinity  # takes long: clicks do not wait
        self._show_values(affinity, {"hotspots": hotspot_table(state.hotspots_of(affinity))})
        items = state.findings_of(affinity)  # takes longer
        rows = {"findings": finding_rows(items), "n_findings": len(items), "is_looking": False}
        self._show_values(affinity, rows)

    def _show_values(self, affinity: Affinity, values: Mapping[str, Any]) -> None:
        with self.lock, self.panel.hold_sync():
            if affinity == self._state.affinity:
                for name, value in values.items():
                    setattr(self.panel, name, value)

    def _show_affinity(self, affinity: Affinity) -> None:
        state, summary, panel = self._state, self.summary, self.panel
        what_if = state.what_if
        self.board.placed = {
            "devices": self.picture.devices_of(affinity),
            "subgraphs": self.picture.subgraphs_of(what_if.partition),
            "wrong": [
                [self.picture.place_of[op], _mark_text(fault, op, affinity[op])]
                for fault in state.faults(affinity)
                for op in fault.ops
            ],
            "displaced": [
                [self.picture.place_of[op], "cause" if why.is_cause else "consequence", str(why)]
                for op, why in displacements(state.graph, what_if.partition, state.able).items()
            ],
        }
        with summary.hold_sync():
            summary.numbers = number_rows(what_if, state.what_if_automatic)
            summary.note = what_if.problem or ("" if state.costs else _WITHOUT_COSTS)
        with panel.hold_sync():
            panel.is_looking = True
            panel.hotspots = {**panel.hotspots, "is_old": True}
        self.controls.show_subgraphs(what_if.partition)
        self._shown = affinity
        self._later.ask()

    def _show_selection(self) -> None:
        state = self._state
        selected = state.selection
        able = {device: len(selected) - len(state.refused(device)) for device in state.devices}
        if not selected:
            text = f"Nothing selected of {len(state.ops)} ops. Click one in the graph or table."
        else:
            text = f"{len(selected)} of {len(state.ops)} ops selected: "
            text += names_at_hand([squeeze(name, 32) for name in selected], 2) + "."
            for device, n in able.items():
                if n < len(selected):
                    others = f" → {device} moves the other {n}." if n else ""
                    text += f" {state.why_not(device)}{others}"
        self.controls.show_selection(text, able)


def _mark_text(fault: Finding, op: str, device: str) -> str:
    others = [other for other in fault.ops if other != op]
    beside = f" together with {names_at_hand(others)}" if others else ""
    return f"wrong numbers on {device}{beside}"


_WITHOUT_COSTS = "With costs= of hetero_lab.calibrate() latency and times of ops are known, too."
EXPORTS = ("affinity, JSON", "affinity, CSV", "frozen directory", "history, CSV")
ABOVE, PANEL, FILES = "above", "panel", "files"  # where a message is shown
# The height is fixed, so that nothing below moves while somebody clicks.
_TWO_LINES = {"height": "40px", "width": "auto", "flex": "1 1 0"}
# A longer text is scrolled, with the keyboard too.
_SCROLLED = 'tabindex="0" style="height: 100%; overflow: auto; line-height: 1.4'
_ROW = {"flex_flow": "row wrap", "align_items": "center"}


def _button(text: str, tooltip: str, icon: str = "") -> ipywidgets.Button:
    layout = {"width": "auto"}
    return ipywidgets.Button(description=text, tooltip=tooltip, icon=icon, layout=layout)


def _field(kind: Any, tooltip: str, width: int, **options: Any) -> Any:
    return kind(tooltip=tooltip, layout={"width": f"{width}px"}, **options)


class Controls:
    """All controls, without their actions.

    ``labels`` maps each device to the name to show, with emulated devices marked. Ops can be
    selected by one of ``op_types``; the cut goes up to ``n_ops``. *Suggest* needs ``has_costs``.
    """

    def __init__(
        self, labels: Mapping[str, str], op_types: Sequence[str], n_ops: int, has_costs: bool
    ):
        devices, self.has_costs = list(labels), has_costs
        types = [("by op type …", ""), *((squeeze(t, 40), t) for t in op_types)]
        text, choice = ipywidgets.Text, ipywidgets.Dropdown
        # Selecting
        self.pattern = _field(
            text,
            "Select by name",
            250,
            placeholder="part of a name, or a regular expression",
            continuous_update=False,
        )
        self.by_pattern = _button("Select", "Select the ops whose name has this", "search")
        self.by_type = _field(choice, "Select by op type", 150, options=types)
        self.by_subgraph = _field(
            choice, "Select by subgraph", 190, options=[("by subgraph …", -1)]
        )
        self.after = _button("Everything after", "Select all that needs the selected op's result")
        self.clear = _button("Clear", "Select nothing")
        # Changing
        self.selection = ipywidgets.HTML(layout=_TWO_LINES)
        self.devices = {d: _button(f"→ {labels[d]}", f"Move to {labels[d]}") for d in devices}
        self.undo = _button("Undo", "Go back one change", "undo")
        self.redo = _button("Redo", "Go forward again", "repeat")
        self.cut = ipywidgets.IntSlider(
            value=0,
            min=0,
            max=n_ops,
            description="Cut before op",
            continuous_update=True,
            style={"description_width": "initial"},
            layout={"width": "36%"},
        )
        self.before = _field(choice, "Device before the cut", 90, options=devices)
        self.behind = _field(choice, "Device after the cut", 90, options=devices, value=devices[-1])
        self.cut_note = ipywidgets.HTML(layout={"width": "170px", "height": "28px"})
        # Measuring
        self.measure = _button(
            "Measure",
            "Compile and run it in worker processes, in turns with the automatic one",
            "tachometer",
        )
        self.cancel = _button("Cancel", "Stop measuring", "stop")
        self.progress = ipywidgets.FloatProgress(max=1.0, layout={"width": "120px"})
        self.progress_text = ipywidgets.HTML(layout={"margin": "0 12px"})
        self.until_decided = _field(
            ipywidgets.Checkbox,
            "End as soon as it is clear which one is faster, or that they are as fast within 5 %",
            120,
            value=True,
            description="until decided",
            indent=False,
        )
        self.suggest = _button("Suggest", "Ask the planner; needs hetero_lab.calibrate", "magic")
        self.simplify = _button("Simplify", "Fewest subgraphs for the least change", "compress")
        # Files
        self.path = _field(
            text, "Path for Export and Load", 250, value="tweaked", continuous_update=False
        )
        self.export_kind = _field(choice, "What to export", 150, options=list(EXPORTS))
        self.export = _button("Export", "Write it to this path, where the notebook is", "download")
        self.load = _button("Load", "Read an affinity (.json or .csv) from this path", "upload")
        # One beside each group of buttons; only the one of the last action is filled.
        self.messages = {
            ABOVE: ipywidgets.HTML(layout=_TWO_LINES),
            PANEL: ipywidgets.HTML(layout=_TWO_LINES | {"height": "22px"}),
            FILES: ipywidgets.HTML(layout=_TWO_LINES),
        }
        self.show_progress(0.0, "")
        self.show_busy(False, can_cancel=False)

    @property
    def above(self) -> list[ipywidgets.Widget]:
        text = ipywidgets.HTML
        select = [self.pattern, self.by_pattern, self.by_type, self.by_subgraph]
        cut = [self.cut, text("before it"), self.before, text("then")]
        change = [*self.devices.values(), self.undo, self.redo]
        measure = [self.measure, self.until_decided, self.cancel, self.suggest, self.simplify]
        return [
            _row(*select, self.after, self.clear),
            _row(self.selection),
            _row(*change, *measure),
            ipywidgets.HBox([self.progress, self.progress_text, self.messages[ABOVE]]),
            _row(*cut, self.behind, self.cut_note),
        ]

    @property
    def below(self) -> list[ipywidgets.Widget]:
        return [
            _row(self.path, self.export_kind, self.export, self.load),
            self.messages[FILES],
        ]

    def say(self, text: str, *, is_error: bool = False, at: str = ABOVE) -> None:
        """Show a message, as text, beside a group of buttons; screen readers read it out."""
        for place, message in self.messages.items():
            if place != at or not text:
                message.value = ""
        if not text:
            return
        # Not by colour alone: errors have a sign in front.
        mark, colour = ("⚠ ", "var(--jp-error-color1, #d32f2f)") if is_error else ("", "inherit")
        role = "alert" if is_error else "status"
        self.messages[at].value = (
            f'<div role="{role}" class="hl-message" {_SCROLLED}; color: {colour}">'
            f"{mark}{html.escape(squeeze(text, 1000))}</div>"
        )

    def show_selection(self, text: str, able: Mapping[str, int]) -> None:
        """Describe the selection, of which a device can run so many ops."""
        self.selection.value = f'<div class="hl-selection" {_SCROLLED}">{html.escape(text)}</div>'
        for device, button in self.devices.items():
            button.disabled = not able[device]
        self.after.disabled = self.clear.disabled = not any(able.values())

    @property
    def cut_devices(self) -> tuple[str, str]:
        return str(self.before.value), str(self.behind.value)

    def show_cut(self, cut: Cut, n_off: int) -> None:
        """Show the cut that is most like the placement; ``n_off`` ops differ."""
        self.cut.value, self.before.value, self.behind.value = cut
        self.cut_note.value = f"{count_of(n_off, 'op')} not as in this cut" if n_off else ""

    def show_subgraphs(self, partition: Partition) -> None:
        options = [("by subgraph …", -1)]
        options += [
            (f"{s.index} · {squeeze(s.device, 20)} · {count_of(len(s.ops), 'op')}", s.index)
            for s in partition.subgraphs
            if s.ops
        ]
        if tuple(options) != self.by_subgraph.options:
            self.by_subgraph.options = options

    def show_progress(self, share: float, text: str) -> None:
        """Move the progress bar, which is there while something runs."""
        self.progress.layout.display = self.progress_text.layout.display = None if text else "none"
        self.progress.value = share
        self.progress_text.value = html.escape(text)

    def show_busy(self, is_busy: bool, *, can_cancel: bool) -> None:
        """Enable the buttons that apply while something runs, or while nothing does."""
        self.measure.disabled = is_busy
        self.suggest.disabled = is_busy or not self.has_costs
        self.simplify.disabled = is_busy
        self.cancel.disabled = not (is_busy and can_cancel)


def _row(*children: ipywidgets.Widget) -> ipywidgets.Box:
    return ipywidgets.Box(list(children), layout=_ROW)
