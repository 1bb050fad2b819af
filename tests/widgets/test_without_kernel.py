"""A notebook as a page of HTML: no kernel, perhaps not even widgets, but the last picture."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tarfile
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter
from small_models import chain
from widgets.explorer.test_explorer_in_browser import Explorer
from widgets.hand_sweeps import ALONE, SPLIT, small_sweep
from widgets.jupyter_in_browser import ARTIFACTS, write_notebook

import hetero_lab as hl

TESTS = Path(__file__).parents[1]
CELLS = (
    f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n"
    "import hetero_lab as hl\nfrom widgets.hand_sweeps import *\n"
    "acc = hl.emulate('ACC', unsupported={'Concat', 'MaxPool', 'Softmax'})\n"
    "tweaker = hl.AffinityTweaker(hl.load('digits_inception'), ['ACC', 'CPU'])\n"
    "tweaker.select(['stem/conv'])\ntweaker.assign('CPU')",
    "tweaker",
    "hl.SweepExplorer(small_sweep())",
)
# What pages ask of a CDN, and the package of the npm registry that has it.
PACKAGES = {
    r"/require\.js/.*/require\.min\.js": ("requirejs@2", "require.js"),
    r"/html-manager@[^/]*/(dist/.*)": ("@jupyter-widgets/html-manager@1", r"\1"),
    r"/anywidget@[^/]*/(dist/index\.js)": (f"anywidget@{metadata.version('anywidget')}", r"\1"),
}


@pytest.mark.network
@pytest.mark.timeout(900)
def test_a_page_shows_both_widgets_and_says_what_needs_a_kernel(tmp_path, browser):
    if shutil.which("npm") is None:
        pytest.skip("The scripts of the page come from the npm registry, and npm is not here.")
    from nbclient import NotebookClient

    path = write_notebook(tmp_path / "both.ipynb", CELLS)
    executed = NotebookClient(nbformat.read(path, as_version=4), timeout=120).execute()
    (tmp_path / "both.html").write_text(html_of(executed), "utf-8")
    page = browser.new_page(viewport={"width": 1300, "height": 2200})
    page.route(re.compile("^https?://"), lambda route: answer(route, tmp_path))
    page.goto((tmp_path / "both.html").as_uri())
    page.wait_for_selector(".hl-board [data-op]")
    assert page.locator(".hl-graph [data-op]").count() == 92
    row = page.locator(".hl-board tbody tr[aria-selected='true']")
    assert row.all_inner_texts() == ["stem/conv\tConvolution\t CPU\t1"]
    Explorer(type("Page", (), {"page": page})).figure("3 of 3 measured placements")
    assert page.locator(f".hlx-rows tr[data-label='{ALONE}']").is_visible()
    notes = page.locator(".hl-no-kernel:visible")
    assert ["No kernel is connected" in text for text in notes.all_inner_texts()] == [True, True]
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "without_kernel.png", full_page=True)
    page.close()


def html_of(notebook):
    """Return the page that nbconvert makes of a notebook."""
    from nbconvert import HTMLExporter  # takes two seconds

    return HTMLExporter().from_notebook_node(notebook)[0]


def answer(route, folder):
    """Answer for the CDN with a file of the npm registry."""
    for pattern, (package, file) in PACKAGES.items():
        if found := re.search(pattern, route.request.url):
            home = folder / re.sub(r"\W", "-", package)
            if not home.exists():
                home.mkdir()
                subprocess.run(["npm", "pack", "--silent", package], cwd=home, check=True)
                with tarfile.open(next(home.glob("*.tgz"))) as archive:
                    archive.extractall(home, filter="data")
            return route.fulfill(path=home / "package" / found.expand(file))
    return route.abort()


def test_where_no_widgets_are_shown_there_is_a_picture_and_a_sentence():
    acc = hl.emulate("ACC", unsupported={"Concat", "MaxPool", "Softmax"})
    tweaker = hl.AffinityTweaker(hl.load("digits_inception"), [acc.name, "CPU"])
    tweaker.select(["stem/conv"])
    tweaker.assign("CPU")
    formatter, cells, plain = DisplayFormatter(), [], []
    for widget in (tweaker, hl.SweepExplorer(small_sweep())):
        data, _ = formatter.format(widget)
        assert any("widget-view" in kind for kind in data)
        plain.append(data["text/plain"])
        shown = nbformat.v4.new_output("display_data", data=data)
        cells.append(nbformat.v4.new_code_cell("", outputs=[shown]))
    assert plain[0].startswith("digits_inception on ACC, CPU: 21 subgraphs, ")
    assert plain[1].startswith(f"Fastest: {SPLIT!r}")
    assert all(text.endswith(" JupyterLab or another front end with widgets.") for text in plain)
    page = html_of(nbformat.v4.new_notebook(cells=cells))
    assert page.count("The live widget needs a kernel") == 2
    assert page.count('<img alt="graph"') == 1
    assert re.search(rf"<td[^>]*>{SPLIT}</td>", page)


def test_names_in_the_picture_are_text():
    model = chain("relu")
    model.inputs[0].tensor.set_names({"<b>\x07&"})
    shown = hl.AffinityTweaker(model, ["CPU"])._repr_html_()
    svg = base64.b64decode(re.search('base64,([^"]+)', shown)[1])
    texts = [text.text for text in ElementTree.fromstring(svg) if text.tag.endswith("text")]
    assert texts[:2] == ["<b> &", "Relu"]
