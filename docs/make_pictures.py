"""The pictures of the README and the docs, from real runs: ``python -m docs.make_pictures``.

It draws how HETERO places the bundled model, reads a sweep that was recorded on a real GPU, opens
the affinity tweaker in a real JupyterLab, and photographs all three with the Chromium of this
machine. For the indexes of the site it photographs the first figure of each page of the course and
the gallery, as ``python -m docs.site`` built them. It needs the extras ``test`` and ``samples`` and
takes about two minutes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from PIL import Image

import hetero_lab as hl
from tests.widgets.jupyter_in_browser import opened, running_browser, running_lab, write_notebook

PICTURES = Path(__file__).parent / "pictures"
SITE = Path(__file__).parent / "_build" / "html"
THUMBNAILS = Path(__file__).parent / "_static" / "thumbnails"
NAMES = ("graph", "ranking", "tweaker", "thumbnails")
MODEL, DEVICE = "digits_inception", "HETERO:ACC,CPU"
SWEEP = "eight/alexnet.all"
UNSUPPORTED = ("Concat", "MaxPool", "Softmax")
ENDS = ("Interpolate", "ReduceMean", "Sigmoid", "Softmax")  # as in the first notebook
GRAPH_PX = 860  # GitHub shows no more, so that letters keep their size
THUMBNAIL_PX = (480, 320)
MOVED = "^mixed[12]/"
COLOURS = 160  # enough for lines and letters, a third of the bytes
MOST_BYTES = 200_000
CELLS = (
    "import hetero_lab as hl\n"
    f"hl.emulate('ACC', unsupported={set(UNSUPPORTED)})\n"
    f"model = hl.load('{MODEL}')\n"
    "costs = hl.calibrate(model, ['ACC', 'CPU'], budget_s=40, progress=False)\n"
    "tweaker = hl.AffinityTweaker(model, ['ACC', 'CPU'], costs, budget_s=30)\n"
    f"tweaker.select(pattern='{MOVED}')\n"
    "tweaker.assign('CPU')\n"
    "tweaker.measure()",
    "tweaker",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all pictures, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m docs.make_pictures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    wanted = parser.parse_args(arguments).names or NAMES
    unknown = sorted(set(wanted) - set(NAMES))
    if unknown:
        parser.error(f"no such picture: {', '.join(unknown)}")
    PICTURES.mkdir(exist_ok=True)
    with running_browser() as browser, tempfile.TemporaryDirectory() as scratch:
        if "graph" in wanted:
            photograph_figure(browser, placed(), PICTURES / "graph.png")
        if "ranking" in wanted:
            photograph_figure(browser, recorded(), PICTURES / "ranking.png")
        if "tweaker" in wanted:
            photograph_tweaker(browser, Path(scratch), PICTURES / "tweaker.png")
        if "thumbnails" in wanted:
            photograph_pages(browser, THUMBNAILS)
    for name in (name for name in wanted if name != "thumbnails"):
        said = f"{PICTURES / name}.png: {shrink(PICTURES / f'{name}.png'):,} bytes"
        print(said)  # noqa: T201
    return 0


def placed() -> go.Figure:
    """Draw the graph of the bundled model as HETERO places it; nothing is measured."""
    hl.emulate("ACC", unsupported=set(ENDS))
    return hl.views.placement_graph(DEVICE, hl.load(MODEL), width=GRAPH_PX)


def recorded() -> go.Figure:
    """Draw the ranking of a recorded sweep."""
    return hl.views.latency_ranking(hl.read_sweep(hl.interop.recordings() / SWEEP))


def photograph_figure(browser: Any, figure: go.Figure, path: Path) -> None:
    """Draw a figure in the browser, without its tool bar, as large as it wants to be."""
    page = browser.new_page(viewport={"width": 1200, "height": 900}, device_scale_factor=1.5)
    page.set_content(figure.to_html(include_plotlyjs=True, config={"displayModeBar": False}))
    page.wait_for_selector(".main-svg")
    page.locator(".plotly-graph-div").screenshot(path=path)
    page.close()


def photograph_pages(browser: Any, directory: Path) -> None:
    """Photograph the upper left of the first figure of each page of the course and the gallery."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    pages = [
        path for part in ("tutorial", "gallery") for path in sorted(SITE.glob(f"{part}/*.html"))
    ]
    for path in (path for path in pages if path.stem != "index"):
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        figures = page.locator(".figure:not([hidden]), .output img")
        if figures.count():
            box = figures.first.bounding_box()
            clip = {**box, "height": min(box["height"], box["width"] * 2 / 3)}
            picture = directory / f"{path.parent.name}_{path.stem}.png"
            page.screenshot(path=picture, clip=clip, full_page=True)
            with Image.open(picture) as large:
                large.thumbnail(THUMBNAIL_PX)
                large.save(picture)
            shrink(picture)
        page.close()


def photograph_tweaker(browser: Any, scratch: Path, path: Path) -> None:
    """Run a notebook with the tweaker in JupyterLab and photograph what it shows."""
    directory, home = scratch / "notebooks", scratch / "home"
    directory.mkdir()
    home.mkdir()
    write_notebook(directory / "tweaker.ipynb", CELLS)
    with (
        running_lab(directory, home) as lab,
        opened(browser, lab, "tweaker.ipynb", (1500, 1500)) as notebook,
    ):
        notebook.page.set_default_timeout(120_000)
        notebook.run_all()
        notebook.page.wait_for_selector(".hl-panel tr[data-hl='tried'] >> nth=1")
        notebook.page.locator(".jp-OutputArea-output:has(.hl-board)").screenshot(path=path)


def shrink(path: Path) -> int:
    """Keep as many colours as are needed to read a picture; return its size in bytes."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    n_bytes = path.stat().st_size
    if n_bytes > MOST_BYTES:
        raise SystemExit(f"{path} has {n_bytes:,} bytes, more than {MOST_BYTES:,}.")
    return n_bytes


if __name__ == "__main__":
    sys.exit(main())
