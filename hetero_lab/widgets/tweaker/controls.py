"""The buttons, fields and sliders of the affinity tweaker, in the order of Tab."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import ipywidgets

from hetero_lab.placement.partition import Partition
from hetero_lab.terminal import count_of
from hetero_lab.views.theme import squeeze

EXPORTS = ("affinity, JSON", "affinity, CSV", "frozen directory", "history, CSV")
ABOVE, PANEL, FILES = "above", "panel", "files"  # where a message is shown
_NARROW = {"width": "auto"}
# The height is fixed, so that nothing below moves while somebody clicks.
_TWO_LINES = {"height": "40px", "overflow": "auto", "width": "100%"}
_ROW = ipywidgets.Layout(flex_flow="row wrap", align_items="center")


def _button(text: str, tooltip: str, icon: str = "") -> ipywidgets.Button:
    layout = ipywidgets.Layout(**_NARROW)
    return ipywidgets.Button(description=text, tooltip=tooltip, icon=icon, layout=layout)


def _words(text: str) -> ipywidgets.HTML:
    return ipywidgets.HTML(html.escape(text))


class Controls:
    """All controls, without their actions.

    Parameters
    ----------
    labels
        Device → its name to show, with emulated devices marked.
    op_types
        The op types to select by.
    n_ops
        Number of ops, the last position of the cut.
    """

    def __init__(self, labels: Mapping[str, str], op_types: Sequence[str], n_ops: int):
        devices = list(labels)
        # Selecting
        self.pattern = ipywidgets.Text(
            placeholder="part of a name, or a regular expression",
            continuous_update=False,
            layout=ipywidgets.Layout(width="250px"),
        )
        self.by_pattern = _button("Select", "Select the ops whose name has this", "search")
        self.by_type = ipywidgets.Dropdown(
            options=[("by op type …", ""), *((squeeze(t, 40), t) for t in op_types)],
            layout=ipywidgets.Layout(width="150px"),
        )
        self.by_subgraph = ipywidgets.Dropdown(
            options=[("by subgraph …", -1)], layout=ipywidgets.Layout(width="190px")
        )
        self.after = _button("Everything after", "Select all that needs the selected op's result")
        self.clear = _button("Clear", "Select nothing")
        # Changing
        self.selection = ipywidgets.HTML(layout=ipywidgets.Layout(**_TWO_LINES))
        self.devices = {d: _button(f"→ {labels[d]}", f"Move to {labels[d]}") for d in devices}
        self.undo = _button("Undo", "Go back one change", "undo")
        self.redo = _button("Redo", "Go forward again", "repeat")
        self.cut = ipywidgets.IntSlider(
            value=0, min=0, max=n_ops, description="Cut before op", continuous_update=True,
            style={"description_width": "initial"}, layout=ipywidgets.Layout(width="55%"),
        )  # fmt: skip
        self.before = ipywidgets.Dropdown(options=devices, value=devices[0], layout=_narrow(90))
        self.behind = ipywidgets.Dropdown(options=devices, value=devices[-1], layout=_narrow(90))
        # Measuring
        self.measure = _button(
            "Measure", "Compile and run it in worker processes, in turns with the automatic one",
            "tachometer",
        )  # fmt: skip
        self.cancel = _button("Cancel", "Stop measuring", "stop")
        self.progress = ipywidgets.FloatProgress(
            value=0.0, min=0.0, max=1.0, layout=ipywidgets.Layout(width="120px")
        )
        self.progress_text = ipywidgets.HTML(layout=ipywidgets.Layout(width="240px"))
        self.suggest = _button("Suggest", "Ask the planner for the best placement", "magic")
        # Files
        self.path = ipywidgets.Text(value="tweaked", layout=ipywidgets.Layout(width="250px"))
        self.export_kind = ipywidgets.Dropdown(options=list(EXPORTS), layout=_narrow(150))
        self.export = _button("Export", "Write it to this path, where the notebook is", "download")
        self.load = _button("Load", "Read an affinity (.json or .csv) from this path", "upload")
        # One beside each group of buttons; only the one of the last action is filled.
        self.messages = {
            ABOVE: ipywidgets.HTML(layout=ipywidgets.Layout(**_TWO_LINES)),
            PANEL: ipywidgets.HTML(layout=ipywidgets.Layout(**_TWO_LINES | {"height": "22px"})),
            FILES: ipywidgets.HTML(layout=ipywidgets.Layout(**_TWO_LINES)),
        }
        for control, name in (
            (self.pattern, "Select by name"), (self.by_type, "Select by op type"),
            (self.by_subgraph, "Select by subgraph"), (self.before, "Device before the cut"),
            (self.behind, "Device after the cut"), (self.path, "Path for Export and Load"),
            (self.export_kind, "What to export"),
        ):  # fmt: skip
            control.tooltip = name

    @property
    def above(self) -> list[ipywidgets.Widget]:
        """The rows above the board."""
        change = [*self.devices.values(), self.undo, self.redo]
        measure = [self.measure, self.cancel, self.suggest, self.progress, self.progress_text]
        return [
            _row(
                self.pattern, self.by_pattern, self.by_type, self.by_subgraph, self.after,
                self.clear,
            ),
            _row(self.selection),
            _row(*change, *measure),
            self.messages[ABOVE],
            _row(self.cut, _words("before it"), self.before, _words("then"), self.behind),
        ]  # fmt: skip

    @property
    def below(self) -> list[ipywidgets.Widget]:
        """The rows below the panel."""
        return [
            _row(self.path, self.export_kind, self.export, self.load),
            self.messages[FILES],
        ]

    @property
    def said(self) -> str:
        """The HTML of the message that is shown."""
        return "".join(message.value for message in self.messages.values())

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
            f'<div role="{role}" class="hl-message" style="color: {colour}; line-height: 1.4">'
            f"{mark}{html.escape(squeeze(text, 1000))}</div>"
        )

    def show_selection(self, text: str, possible: Sequence[str], *, is_empty: bool) -> None:
        """Show the selection, and enable the devices that can run it."""
        self.selection.value = f'<span class="hl-selection">{html.escape(text)}</span>'
        for device, button in self.devices.items():
            button.disabled = is_empty or device not in possible
        self.after.disabled = self.clear.disabled = is_empty

    def show_subgraphs(self, partition: Partition) -> None:
        """Offer the subgraphs of a partition."""
        options = [("by subgraph …", -1)]
        options += [
            (f"{s.index} · {squeeze(s.device, 20)} · {count_of(len(s.ops), 'op')}", s.index)
            for s in partition.subgraphs
            if s.ops
        ]  # fmt: skip
        if tuple(options) != self.by_subgraph.options:
            self.by_subgraph.options = options

    def show_progress(self, share: float, text: str) -> None:
        """Move the progress bar."""
        self.progress.value = share
        self.progress_text.value = html.escape(text)

    def show_busy(self, is_busy: bool, *, can_cancel: bool) -> None:
        """Enable the buttons that apply while something runs, or while nothing does."""
        self.measure.disabled = self.suggest.disabled = is_busy
        self.cancel.disabled = not (is_busy and can_cancel)


def _row(*children: ipywidgets.Widget) -> ipywidgets.Box:
    return ipywidgets.Box(list(children), layout=_ROW)


def _narrow(width: int) -> ipywidgets.Layout:
    return ipywidgets.Layout(width=f"{width}px")
