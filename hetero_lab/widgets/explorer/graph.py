"""A placement graph to walk through: fold, unfold by a click, search, look around an op."""

from __future__ import annotations

from typing import Any

import ipywidgets as ipw

from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.profile.result import Profile
from hetero_lab.views.graph.data import GraphData, data_of_profile
from hetero_lab.views.graph.drawing import draw
from hetero_lab.views.graph.folding import FOLDS, Shown
from hetero_lab.widgets.explorer.look import WIDTH, figure_widget, message


class GraphPane:
    """The widgets around one placement graph; ``widget`` is what is displayed.

    A click on a group of folded ops opens it. ``shown`` is what is drawn, ``data`` its nodes.
    """

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.shown = Shown()
        self.data: GraphData | None = None
        self._whole: GraphData | None = None
        self._fold = ipw.Dropdown(
            options=[(f"fold: {name}", name) for name in FOLDS], layout={"width": "140px"}
        )
        self._find = _text("find ops", "part of a name, then Enter")
        self._around = _text("around op", "name of an op, then Enter")
        self._hops = ipw.BoundedIntText(
            2, min=0, max=20, description="hops", layout={"width": "130px"}
        )
        self._reset = ipw.Button(description="Fold again", tooltip="Close what was opened")
        self._message = ipw.HTML()
        self.place = ipw.VBox()
        self.place.add_class("hlx-graph")
        for control in (self._fold, self._find, self._around, self._hops):
            control.observe(self._changed, "value")
        self._reset.on_click(lambda _: self.show(Shown(fold=str(self._fold.value))))
        controls = [self._fold, self._find, self._around, self._hops, self._reset]
        self.widget = ipw.VBox(
            [ipw.HBox(controls, layout={"flex_flow": "row wrap"}), self._message, self.place]
        )

    def draw(self, profile: Profile) -> None:
        """Draw another placement, folded as at first."""
        if profile is not self.profile:
            self.profile, self._whole = profile, data_of_profile(profile)
            self.show(Shown(fold=str(self._fold.value)))

    def show(self, shown: Shown) -> None:
        """Draw another part of the same graph; say so and keep the picture if there is none."""
        if self._whole is None:
            return
        try:
            data = shown.of(self._whole)
            figure = figure_widget(draw(data, WIDTH - 60), self.open_group)
        except HeteroLabError as error:
            self._message.value = message(str(error))
            return
        self.shown, self.data = shown, data
        self._message.value = ""
        self._put_controls()
        self.place.children = (figure,)

    def open_group(self, index: int) -> None:
        """Open the group of folded ops that has this number in ``data``."""
        node = self.data.node_of.get(int(index)) if self.data else None
        if node is None or node.kind != "group":
            return
        # A scope opens by one level; the name of anything else may change with what is open.
        by_scope = all(name.startswith(node.name) for name in node.ops)
        name = node.name if by_scope else node.ops[0]
        self.show(Shown(**{**vars(self.shown), "unfold": (*self.shown.unfold, name)}))

    def _changed(self, change: dict[str, Any]) -> None:
        if self._setting:
            return
        self.show(
            Shown(
                fold=str(self._fold.value),
                unfold=() if change["owner"] in (self._fold, self._around) else self.shown.unfold,
                around=self._around.value.strip() or None,
                hops=self._hops.value,
                find=self._find.value.strip(),
            )
        )

    _setting = False

    def _put_controls(self) -> None:
        self._setting = True
        try:
            self._find.value, self._around.value = self.shown.find, self.shown.around or ""
            self._hops.value = self.shown.hops
        finally:
            self._setting = False


def _text(label: str, placeholder: str) -> ipw.Text:
    return ipw.Text(
        description=label, placeholder=placeholder, continuous_update=False,
        layout={"width": "260px"}, style={"description_width": "70px"},
    )  # fmt: skip
