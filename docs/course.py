"""The course on the site: the notebooks with the outputs that were recorded of their cells."""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
OUTPUTS = Path(__file__).parent / "outputs"
_PLOTLY = "application/vnd.plotly.v1+json"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_SHOWN = (_PLOTLY, "image/png", "text/html", "text/markdown", "text/plain")  # the best first
_A_WIDGET = "*A widget, which needs a running notebook.*"
# What a page shows in its place, by the call that made it.
WIDGETS = {
    "AffinityTweaker": "![The affinity tweaker](../pictures/tweaker.png)\n\n"
    "*The affinity tweaker of another model. It lives in a running notebook.*",
    "SweepExplorer": "*The explorer lives in a running notebook; the gallery has "
    "[one that needs none](../gallery/explorer.html).*",
}


def store_outputs(executed: NotebookNode, name: str) -> Path:
    """Keep what the cells of an executed notebook show, by the text of each cell.

    Progress and warnings are left out, and so is where the environment lies.
    """
    kept = {
        _key(cell.source): [_slim(o) for o in cell.outputs if o.get("name") != "stderr"]
        for cell in executed.cells
        if cell.cell_type == "code" and cell.outputs
    }
    text = json.dumps(kept, sort_keys=True).replace(sys.prefix, ".venv")
    OUTPUTS.mkdir(exist_ok=True)
    path = OUTPUTS / f"{name}.json.xz"
    path.write_bytes(lzma.compress(text.encode(), preset=9))
    return path


def outputs_of(notebook: Path) -> Path:
    """Return where the outputs of a notebook of the course are kept."""
    return OUTPUTS / f"{notebook.stem}.json.xz"


def with_outputs(notebook: Path) -> NotebookNode:
    """Return a notebook with the recorded outputs of those cells that are as they were."""
    shown = nbformat.read(notebook, as_version=4)
    path = outputs_of(notebook)
    kept = json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}
    so_far = ""
    for cell in shown.cells:
        if cell.cell_type == "code":
            so_far += cell.source
            outputs = kept.get(_key(cell.source), [])
            cell.outputs = [nbformat.from_dict(_drawn(each, so_far)) for each in outputs]
    return shown


def figure_html(figure: str, attributes: str = "") -> str:
    """Return HTML in which ``_static/site.js`` draws a figure, given as plotly's JSON."""
    harmless = figure.replace("</", "<\\/")
    tag = f'div class="figure" {attributes}'.rstrip()
    return f'<{tag}><script type="application/json">{harmless}</script></div>'


def _key(source: str) -> str:
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]


def _slim(output: NotebookNode) -> dict[str, Any]:
    """Keep of an output what a page shows: one form of each, no progress bars."""
    if output.output_type not in ("display_data", "execute_result"):
        return dict(output)
    if _WIDGET in output.data:
        # A bar of progress leaves no picture.
        data = {"text/markdown": _A_WIDGET} if "text/html" in output.data else {}
    else:
        best = next((mime for mime in _SHOWN if mime in output.data), None)
        data = {} if best is None else {best: output.data[best]}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def _drawn(output: dict[str, Any], code: str) -> dict[str, Any]:
    data = output.get("data", {})
    if data.get("text/markdown") == _A_WIDGET:
        widget = max(WIDGETS, key=lambda name: code.rfind(f"{name}("))
        return {**output, "data": {"text/markdown": WIDGETS[widget]}}
    if _PLOTLY not in data:
        return output
    figure = {key: data[_PLOTLY][key] for key in ("data", "layout")}
    return {**output, "data": {"text/html": figure_html(json.dumps(figure))}}
