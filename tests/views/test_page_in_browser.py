"""A page, and a notebook that nbconvert made one, opened by a real browser without a network."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from views.hand_made import NASTY, contrast, small_profile
from widgets.jupyter_in_browser import STEP_S

import hetero_lab as hl
from hetero_lab.samples.catalogue import datasets_dir
from hetero_lab.views.theme import squeeze

pytestmark = pytest.mark.browser


@pytest.fixture
def opened(browser, tmp_path):
    """Return a function that writes a page of results and opens it without a network."""
    errors: list[str] = []
    asked: list[str] = []
    shown = browser.new_page(viewport={"width": 1400, "height": 2400})
    shown.set_default_timeout(STEP_S * 1000)
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.on("request", lambda request: asked.append(request.url))

    def open_page(results: Any, **options: Any) -> Any:
        page = tmp_path / "page.html"
        hl.views.page(results, page, **options)
        shown.goto(page.as_uri())
        n_figures = page.read_text(encoding="utf-8").count("Plotly.newPlot(")
        shown.wait_for_function(
            "n => document.querySelectorAll('.js-plotly-plot .main-svg .gtitle').length === n",
            arg=n_figures,
        )
        return shown

    yield open_page
    shown.close()
    assert errors == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_figure_is_drawn_and_nothing_uploads(opened):
    page = opened([small_profile(), small_profile(label="CPU alone")], title="Two")
    assert page.locator(".js-plotly-plot").count() == 11
    said = [text.replace("\xa0", " ") for text in page.locator("svg text").all_text_contents()]
    assert set(said) >= {
        "small on HETERO:ACC,CPU: 103 µs, 3 subgraphs, 2 boundaries of 64 B",
        "ACC (emulated on CPU)", "boundary (the largest: 32 B)", "MatMul10 µs", "probabilities",
        "0 · ACC · 10 µs", "latency (µs)", "CPU alone   ■ ACC (emulated on CPU) ■ CPU",
    }  # fmt: skip
    assert 'data-title="Zoom"' in page.content()
    assert page.locator("[data-title*='Share']").count() == 0
    with Image.open(io.BytesIO(page.screenshot(full_page=True))) as picture:
        colours = picture.convert("RGB").getcolors(maxcolors=1 << 24) or []
    seen = {colour for count, colour in colours if count > 20}
    assert {(230, 159, 0), (0, 114, 178)} <= seen  # ACC and CPU


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
def test_names_are_shown_as_they_are(opened, name):
    profile = small_profile(relu=name, label=name)
    page = opened(profile, title=name)
    assert page.locator("img[src], iframe[src], a[*|href]").count() == 0
    # Hovering over the op: its name stands alone on the first line.
    traces = hl.views.placement_graph(profile).data
    acc = next(i for i, trace in enumerate(traces) if trace.name == "ACC (emulated on CPU)")
    page.evaluate(f"Plotly.Fx.hover('figure-1', [{{curveNumber: {acc}, pointNumber: 1}}])")
    first, second, *_ = page.locator("g.hovertext tspan.line").all_text_contents()
    assert first == squeeze(name, 80)
    assert second == "Relu on ACC (emulated on CPU), subgraph 0"
    # In the heading of the page too.
    assert page.locator("h1").text_content() == squeeze(name, 200)


# Letters of figures with their colour, and what they stand on: the page, or a bar.
LETTERS = """() => [...document.querySelectorAll('svg text')]
  .filter(t => t.textContent.trim() && t.getBoundingClientRect().width)
  .map(t => {
    const bar = t.classList.contains('bartext-inside') && t.parentElement.querySelector('path');
    const page = getComputedStyle(document.body).backgroundColor;
    const inner = [...t.querySelectorAll('tspan')].find(part => part.style.fill) ?? t;
    return [t.textContent, getComputedStyle(inner).fill, bar ? getComputedStyle(bar).fill : page];
  })"""
RECORDED = datasets_dir() / "recordings" / "digits_inception_emulated"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_accessible_and_can_be_read(browser, tmp_path, scheme):
    page = tmp_path / "page.html"
    costs = hl.CostModel.from_json(RECORDED / "costs.json")
    profile, sweep = hl.read_profile(RECORDED / "profile"), hl.read_sweep(RECORDED / "sweep")
    hl.views.page([profile, sweep, costs], page)
    shown = browser.new_page(color_scheme=scheme, viewport={"width": 1000, "height": 1400})
    shown.goto(page.as_uri())
    shown.wait_for_selector("#figure-10 .heatmap-label text", timeout=STEP_S * 1000)
    found = Axe().run(shown, options={"runOnly": ["wcag2a", "wcag2aa"]})
    letters = shown.evaluate(LETTERS)
    shown.close()
    assert found.violations_count == 0, found.generate_report()
    assert len(letters) > 200
    pale = [(text, ink, on) for text, ink, on in letters if contrast(ink, on) < 4.5]
    # Hatched bars of emulated devices show the colour through a pattern.
    assert [entry for entry in pale if "url(" not in entry[2]] == []


CELLS = (
    "%load_ext hetero_lab\nimport hetero_lab as hl",
    f"profile = hl.read_profile({str(RECORDED / 'profile')!r})\nhl.views.placement_graph(profile)",
    f"hl.views.latency_ranking(hl.read_sweep({str(RECORDED / 'sweep')!r}))",
)


def test_every_figure_is_in_the_page(tmp_path, browser):
    pytest.importorskip("kaleido", reason="figures are converted with the extra pictures")
    path = tmp_path / "figures.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    subprocess.run(
        [sys.executable, "-m", "nbconvert", path.name, "--to=html", "--execute"],
        check=True, cwd=tmp_path, timeout=240, capture_output=True,
        env={name: value for name, value in os.environ.items() if name != "PLOTLY_RENDERER"},
    )  # fmt: skip
    page = browser.new_context(offline=True).new_page()
    page.goto(path.with_suffix(".html").as_uri())
    sizes = page.locator(".jp-OutputArea-output img").evaluate_all(
        "images => images.map(image => [image.complete, image.naturalWidth])"
    )
    page.context.close()
    assert len(sizes) == 2
    assert all(is_drawn and width >= 1000 for is_drawn, width in sizes)
