"""What the tweaker shows: board, panel and controls, brought up to date after every change."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hetero_lab.errors import names_at_hand
from hetero_lab.placement.affinity import Affinity
from hetero_lab.widgets.debounce import Later
from hetero_lab.widgets.tweaker.board import Board, Panel
from hetero_lab.widgets.tweaker.board_picture import BoardPicture
from hetero_lab.widgets.tweaker.controls import Controls
from hetero_lab.widgets.tweaker.measurement import Tried
from hetero_lab.widgets.tweaker.panel import finding_rows, number_rows, tried_rows
from hetero_lab.widgets.tweaker.state import Tweaking
from hetero_lab.widgets.tweaker.wrong_ops import mark_text

_SHOWN_NAMES = 3


class Showing:
    """The widgets of one tweaker. Only what differs is sent to the browser.

    Events of the kernel and of a measuring thread change the same widgets: both hold ``lock``.
    ``is_refreshing`` tells handlers that a change came from here and not from a person.
    """

    def __init__(self, tweaking: Tweaking, picture: BoardPicture):
        self._tweaking = tweaking
        self._picture = picture
        self._later = Later(self.look)
        self._shown: Affinity | None = None
        self.lock = threading.RLock()
        self.is_refreshing = False
        palette = picture.palette
        self.board = Board(picture=picture.to_json(tweaking.able, tweaking.costs), palette=palette)
        self.panel = Panel()
        self.controls = Controls(
            {look["device"]: look["label"] for look in palette},
            tweaking.op_types,
            len(tweaking.ops),
        )
        self.controls.show_busy(False, can_cancel=False)

    def selected_ops(self) -> list[str]:
        """Return the names of the ops that the board has selected."""
        names = self._picture.names
        return [names[place] for place in self.board.selected if 0 <= place < len(names)]

    def refresh(self, history: Sequence[Tried]) -> None:
        """Bring everything up to date but the findings, which follow a moment later."""
        with self.lock:
            self.is_refreshing = True
            try:
                self._refresh(history)
            finally:
                self.is_refreshing = False

    def look(self) -> None:
        """Work out the findings and show them, unless something has changed meanwhile."""
        affinity = self._tweaking.affinity
        findings = self._tweaking.findings_of(affinity)  # takes long: clicks do not wait for it
        with self.lock:
            if affinity != self._tweaking.affinity:
                return
            with self.panel.hold_sync():
                self.panel.findings = finding_rows(findings)
                self.panel.n_findings = len(findings)
                self.panel.is_looking = False

    def _refresh(self, history: Sequence[Tried]) -> None:
        tweaking, controls = self._tweaking, self.controls
        affinity = tweaking.affinity
        if affinity != self._shown:
            self._show_affinity(affinity)
        with self.panel.hold_sync():
            self.panel.tried = tried_rows(history, affinity)
        place_of = self._picture.place_of
        self.board.selected = sorted(place_of[name] for name in tweaking.selection)
        self._show_selection()
        controls.undo.disabled = not tweaking.can_undo
        controls.redo.disabled = not tweaking.can_redo
        cut = tweaking.step.cut
        if cut is not None and controls.cut.value != cut:
            controls.cut.value = cut

    def _show_affinity(self, affinity: Affinity) -> None:
        tweaking, panel = self._tweaking, self.panel
        what_if = tweaking.what_if
        self.board.placed = {
            "devices": self._picture.devices_of(affinity),
            "subgraphs": self._picture.subgraphs_of(what_if.partition),
            "wrong": [
                [self._picture.place_of[op], mark_text(found, op)]
                for found in tweaking.wrong_sets
                for op in found.ops
            ],
        }
        with panel.hold_sync():
            panel.numbers = number_rows(what_if, tweaking.what_if_automatic)
            panel.note = what_if.problem or (
                ""
                if tweaking.costs
                else "With costs= of hetero_lab.calibrate() the latency is predicted too."
            )
            panel.is_looking = True
        self.controls.show_subgraphs(what_if.partition)
        self._shown = affinity
        self._later.ask()

    def _show_selection(self) -> None:
        tweaking = self._tweaking
        selected, possible = tweaking.selection, tweaking.possible
        if not selected:
            text = f"Nothing selected of {len(tweaking.ops)} ops. Click one in the graph or table."
        else:
            text = f"{len(selected)} of {len(tweaking.ops)} ops selected: "
            text += names_at_hand(selected, _SHOWN_NAMES) + ". "
            refusing = [d for d in tweaking.devices if d not in possible]
            if not possible:
                text = tweaking.why_not()
            elif refusing:
                text += " ".join(tweaking.why_not(device) for device in refusing)
        self.controls.show_selection(text, possible, is_empty=not selected)
