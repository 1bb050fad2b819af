"""The two panes of the tweaker that are drawn in the browser; JupyterLab's own colours, no CDN.

The scripts are plain ES modules beside this file; nothing is built.
"""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets

_HERE = Path(__file__).parent


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


class Board(anywidget.AnyWidget):
    """Graph and table side by side, linked both ways.

    ``picture`` and ``palette`` are set once. ``placed`` has the number of the device and of the
    subgraph of each node, and says of some what is wrong with their numbers; ``selected`` are
    places in the list of nodes, and clicks change it.
    """

    _esm = _text("board.js")
    _css = _text("board.css")
    picture = traitlets.Dict().tag(sync=True)
    palette = traitlets.List().tag(sync=True)
    placed = traitlets.Dict().tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)


class Panel(anywidget.AnyWidget):
    """Numbers, findings and history. Its buttons send ``{"do": …, "index": …}``."""

    _esm = _text("panel.js")
    _css = _text("panel.css")
    numbers = traitlets.List().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)
    findings = traitlets.List().tag(sync=True)
    n_findings = traitlets.Int().tag(sync=True)
    is_looking = traitlets.Bool().tag(sync=True)
    tried = traitlets.List().tag(sync=True)
