"""Look of the explorer: JupyterLab's own colours, and figures as widgets."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import anywidget
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


CLASS = "hetero-lab-explorer"
_STYLE = f"""
.{CLASS} {{ color: var(--jp-ui-font-color1); }}
.{CLASS} .js-plotly-plot :is(.gtitle, .legendtext, .xtitle, .ytitle, .x2title, .y2title,
  .xtick text, .ytick text, .x2tick text, .y2tick text,
  .textpoint text, .annotation-text) {{ fill: var(--jp-ui-font-color1, currentColor) !important; }}
.{CLASS} .js-plotly-plot .gtitle-subtitle {{ fill: var(--jp-ui-font-color2) !important; }}
.{CLASS} .hlx-message {{ border-left: 4px solid var(--jp-warn-color1, #f57c00); margin: 2px 0;
  padding: 4px 10px; background: var(--jp-layout-color2); overflow-wrap: anywhere;
  line-height: 1.4; }}
.{CLASS} table.hetero-lab {{ border-collapse: collapse; font-size: 12px; line-height: 1.5; }}
.{CLASS} table.hetero-lab :is(th, td) {{ padding: 2px 12px 2px 0; text-align: left;
  border-bottom: 1px solid var(--jp-border-color2); vertical-align: top; max-width: 26rem;
  overflow-wrap: anywhere; color: var(--jp-ui-font-color1); }}
.{CLASS} table.hetero-lab th {{ color: var(--jp-ui-font-color2); white-space: nowrap; }}
.{CLASS} table.hetero-lab caption {{ text-align: left; font-weight: 600; padding: 4px 0; }}
.{CLASS} .hlx-table {{ max-height: 380px; overflow: auto; }}
.{CLASS} .hlx-graph {{ max-height: 760px; overflow: auto; }}
.{CLASS} :is(button, select, input):focus-visible {{
  outline: 2px solid var(--jp-brand-color1) !important; outline-offset: 1px; }}
"""
# JupyterLab takes the arrow keys for itself, by shortcuts and in the notebook: lists need them.
_SCRIPT = f"""
function mark(el, patience) {{
  const box = el.closest(".{CLASS}");
  if (box) {{
    box.setAttribute("data-lm-suppress-shortcuts", "true");
    box.addEventListener("keydown", (event) => event.stopPropagation());
  }} else if (patience > 0) setTimeout(() => mark(el, patience - 1), 50);
}}
export default {{ render({{ el }}) {{ el.style.display = "none"; mark(el, 100); }} }};
"""


class Look(anywidget.AnyWidget):
    """Brings the style along, and keeps the keys that are pressed in the explorer for it."""

    _esm = _SCRIPT
    _css = _STYLE


def message(text: str) -> str:
    """Return a message as HTML, with everything in it shown as text; nothing for no text."""
    if not text:
        return ""
    lines = "<br>".join(html.escape(line) for line in text.splitlines())
    return f'<div class="hlx-message" role="status">{lines}</div>'


def table(content: str) -> str:
    """Put a table that was made by ``tables.html_table`` into a box that scrolls."""
    return f'<div class="hlx-table" tabindex="0">{content}</div>'
