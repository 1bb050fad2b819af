"""The course as web pages, with results: ``python -m docs.render_notebooks`` in the root.

It runs the notebooks and writes one HTML file each into ``docs/notebooks``, which git ignores.
Figures can be zoomed and hovered over and need no network; the widgets of notebook 06 are drawn by
scripts that a browser fetches. All ten take some minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PAGES = Path(__file__).parent / "notebooks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Render all notebooks, or those whose name begins as one that is given: ``01 10``."""
    parser = argparse.ArgumentParser(prog="python -m docs.render_notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="01, 02, …; all without")
    wanted = parser.parse_args(arguments).names
    every = sorted(NOTEBOOKS.glob("*.ipynb"))
    unknown = [name for name in wanted if not any(path.name.startswith(name) for path in every)]
    if unknown:
        parser.error(f"no such notebook: {', '.join(unknown)}")
    for path in every:
        if not wanted or path.name.startswith(tuple(wanted)):
            print(render(path))  # noqa: T201
    return 0


def render(notebook: Path) -> Path:
    """Run a notebook and write it as HTML; the notebook itself stays without outputs."""
    subprocess.run(
        [
            sys.executable, "-m", "nbconvert", str(notebook), "--to=html", "--execute",
            "--ExecutePreprocessor.timeout=600", f"--output-dir={PAGES}", "--log-level=WARN",
        ],
        check=True,
        # JupyterLab draws figures itself; a page has to bring what draws them.
        env=os.environ | {"PLOTLY_RENDERER": "notebook"},
    )  # fmt: skip
    page = PAGES / f"{notebook.stem}.html"
    text = re.sub(r'(href="\d\d_\w+)\.ipynb"', r'\1.html"', page.read_text("utf-8"))
    # There are no formulas: nothing has to be fetched to draw them.
    text = re.sub(r'<script[^>]*src="[^"]*/mathjax/[^"]*"[^>]*></script>', "", text)
    page.write_text(text, "utf-8")
    return page


if __name__ == "__main__":
    sys.exit(main())
