"""A figure of a view as a widget: of a fixed width, with a title that needs no measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

WIDTH = 1080


def figure_widget(
    figure: go.Figure, clicked: Callable[[Any], None] | None = None
) -> go.FigureWidget:
    """Return a figure as a widget; ``clicked`` is told the customdata of what is clicked.

    It may be made while it is not visible, in a closed tab: then plotly can measure neither the
    room that it has nor its title, and would be too narrow and write the subtitle over the title.
    """
    widget = go.FigureWidget(figure)
    layout: Any = widget.layout
    title, subtitle = layout.title.text, layout.title.subtitle.text
    with widget.batch_update():
        if layout.width is None:
            layout.width = WIDTH
        if subtitle:
            layout.title.text = f'{title}<br><span style="font-size: 11px">{subtitle}</span>'
            layout.title.subtitle.text = ""
    if clicked is not None:

        def told(trace: Any, points: Any, _: Any) -> None:
            for place in points.point_inds:
                clicked(trace.customdata[place])

        traces: Any = widget.data
        for trace in traces:
            if trace.customdata is not None:
                trace.on_click(told)
    return widget
