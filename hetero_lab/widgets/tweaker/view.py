"""View of the tweaker: board, panel and controls, updated after every change."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from hetero_lab.errors import names_at_hand
from hetero_lab.experiments.faults.wrong import WrongSet
from hetero_lab.lint.context import Finding
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import displacements
from hetero_lab.tables import bytes_text
from hetero_lab.views.theme import squeeze
from hetero_lab.widgets.tweaker.background import Later
from hetero_lab.widgets.tweaker.board_picture import BoardPicture
from hetero_lab.widgets.tweaker.controls import Controls
from hetero_lab.widgets.tweaker.measurement import AUTOMATIC, Attempt
from hetero_lab.widgets.tweaker.state import TweakerState, WhatIf

if TYPE_CHECKING:
    from hetero_lab.planning.cost_model import CostModel

_HERE = Path(__file__).parent


def _file_text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


class Board(anywidget.AnyWidget):
    """Graph and table side by side, linked both ways.

    ``picture`` and ``palette`` are set once. ``placed`` has the numbers of the device and the
    subgraph of each node, and for some nodes the reason why their numbers are wrong or why they
    are not on the device of their choice. ``selected`` has places in the list of nodes; clicks
    change it.
    """

    _esm = _file_text("board.js")
    _css = _file_text("board.css")
    picture = traitlets.Dict().tag(sync=True)
    palette = traitlets.List().tag(sync=True)
    placed = traitlets.Dict().tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)


class Panel(anywidget.AnyWidget):
    """Numbers, findings and history. Its buttons send ``{"do": …, "index": …}``."""

    _esm = _file_text("panel.js")
    _css = _file_text("panel.css")
    numbers = traitlets.List().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)
    findings = traitlets.List().tag(sync=True)
    n_findings = traitlets.Int().tag(sync=True)
    is_looking = traitlets.Bool().tag(sync=True)
    tried = traitlets.List().tag(sync=True)


SHOWN_FINDINGS = 12
_LONGEST = 400


def number_rows(now: WhatIf, automatic: WhatIf) -> list[dict[str, str]]:
    """Return one row per number: ``key, name, now, automatic``."""
    rows = (
        ("subgraphs", "subgraphs", lambda x: str(x.n_subgraphs)),
        ("boundaries", "boundaries", lambda x: str(x.n_boundaries)),
        ("bytes", "bytes", lambda x: bytes_text(x.boundary_bytes)),
        ("predicted", "predicted latency, µs", lambda x: us_text(x.predicted_us)),
    )
    return [
        {"key": key, "name": name, "now": text(now), "automatic": text(automatic)}
        for key, name, text in rows
    ]


def finding_rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return one row for each of the worst findings."""
    return [
        {
            "rule": finding.rule,
            "severity": finding.severity,
            "finding": squeeze(finding.finding, _LONGEST),
            "advice": squeeze(finding.advice, _LONGEST),
            "fix": bool(finding.remedy),
        }
        for finding in findings[:SHOWN_FINDINGS]
    ]


def tried_rows(history: Sequence[Attempt], now: Affinity) -> list[dict[str, Any]]:
    """Return one row per measurement; ``is_here`` where it is of the present affinity."""
    return [
        {
            "label": squeeze(tried.label, 100),
            "status": tried.status,
            "detail": squeeze(tried.detail, _LONGEST),
            "is_here": tried.affinity == now,
            **_numbers(tried),
        }
        for tried in history
    ]


def _numbers(tried: Attempt) -> dict[str, Any]:
    low, high = tried.ci95_low_us, tried.ci95_high_us
    if tried.median_us is None or low is None or high is None:
        return {}
    return {
        "subgraphs": "" if tried.n_subgraphs is None else str(tried.n_subgraphs),
        "median": tried.median_us,
        "low": low,
        "high": high,
        "latency": us_text(tried.median_us),
        "interval": f"{us_text(low)} to {us_text(high)} µs",
        "ratio": _ratio_text(tried),
        "predicted": us_text(tried.predicted_us),
    }


def us_text(us: float | None) -> str:
    """Write microseconds with three digits or all whole ones; a dash if they are not known."""
    if us is None:
        return "–"
    return f"{us:,.0f}" if us >= 99.5 else f"{us:.3g}"


def _ratio_text(tried: Attempt) -> str:
    if tried.ratio is None:
        return ""
    if tried.label == AUTOMATIC:
        return "1"
    if tried.ratio_ci95_low is None or tried.ratio_ci95_high is None:
        return f"{tried.ratio:.3f}"
    return f"{tried.ratio:.3f} ({tried.ratio_ci95_low:.3f} to {tried.ratio_ci95_high:.3f})"


_SHOWN_NAMES = 3


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
        self.panel = Panel()
        self.controls = Controls(
            {look["device"]: look["label"] for look in palette},
            state.op_types,
            len(state.ops),
        )
        self.controls.show_busy(False, can_cancel=False)

    def selected_ops(self) -> list[str]:
        """Return the names of the ops that the board has selected."""
        names = self.picture.names
        return [names[place] for place in self.board.selected if 0 <= place < len(names)]

    def refresh(self, history: Sequence[Attempt]) -> None:
        """Update everything but the findings, which follow a moment later."""
        with self.lock:
            self.is_refreshing = True
            try:
                self._refresh(history)
            finally:
                self.is_refreshing = False

    def look(self) -> None:
        """Find the problems and show them, unless something has changed meanwhile."""
        affinity = self._state.affinity
        findings = self._state.findings_of(affinity)  # takes long, so clicks do not wait for it
        with self.lock:
            if affinity != self._state.affinity:
                return
            with self.panel.hold_sync():
                self.panel.findings = finding_rows(findings)
                self.panel.n_findings = len(findings)
                self.panel.is_looking = False

    def _refresh(self, history: Sequence[Attempt]) -> None:
        state, controls = self._state, self.controls
        affinity = state.affinity
        if affinity != self._shown:
            self._show_affinity(affinity)
        with self.panel.hold_sync():
            self.panel.tried = tried_rows(history, affinity)
        place_of = self.picture.place_of
        self.board.selected = sorted(place_of[name] for name in state.selection)
        self._show_selection()
        controls.undo.disabled = not state.can_undo
        controls.redo.disabled = not state.can_redo
        cut = state.step.cut
        if cut is not None and controls.cut.value != cut:
            controls.cut.value = cut

    def _show_affinity(self, affinity: Affinity) -> None:
        state, panel = self._state, self.panel
        what_if = state.what_if
        self.board.placed = {
            "devices": self.picture.devices_of(affinity),
            "subgraphs": self.picture.subgraphs_of(what_if.partition),
            "wrong": [
                [self.picture.place_of[op], _mark_text(found, op)]
                for found in state.wrong_sets
                for op in found.ops
            ],
            "displaced": [
                [self.picture.place_of[op], "cause" if why.is_cause else "consequence", str(why)]
                for op, why in displacements(what_if.partition, state.able).items()
            ],
        }
        with panel.hold_sync():
            panel.numbers = number_rows(what_if, state.what_if_automatic)
            panel.note = what_if.problem or _about_costs(state.costs)
            panel.is_looking = True
        self.controls.show_subgraphs(what_if.partition)
        self._shown = affinity
        self._later.ask()

    def _show_selection(self) -> None:
        state = self._state
        selected, possible = state.selection, state.possible
        if not selected:
            text = f"Nothing selected of {len(state.ops)} ops. Click one in the graph or table."
        else:
            text = f"{len(selected)} of {len(state.ops)} ops selected: "
            text += names_at_hand(selected, _SHOWN_NAMES) + ". "
            refusing = [d for d in state.devices if d not in possible]
            if not possible:
                text = state.why_not()
            elif refusing:
                text += " ".join(state.why_not(device) for device in refusing)
        self.controls.show_selection(text, possible, is_empty=not selected)


def _about_costs(costs: CostModel | None) -> str:
    if costs is None:
        return "With costs= of hetero_lab.calibrate() the latency is predicted too."
    return f"The latency is a guess. {costs.origin}" if costs.guessed_from else ""


def _mark_text(found: WrongSet, op: str) -> str:
    """Describe the fault of one op."""
    others = [other for other in found.ops if other != op]
    beside = f" together with {names_at_hand(others)}" if others else ""
    return f"wrong numbers on {found.device}{beside}"
