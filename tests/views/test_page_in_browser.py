"""A page, opened by a real browser that has no network."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright
from views.hand_made import NASTY, small_profile

import hetero_lab as hl
from hetero_lab.samples.catalogue import datasets_dir
from hetero_lab.views.theme import squeeze

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(f"No browser here; one of {', '.join(BROWSERS)} is needed.")
    return found


def run(browser: str, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page without a network and without what a fresh browser likes to load."""
    return subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={page.parent / 'browser'}", "--window-size=1400,2400",
            "--virtual-time-budget=20000", "--enable-logging=stderr", *options, page.as_uri(),
        ],
        capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=180,
    )  # fmt: skip


def drawn(browser: str, page: Path) -> tuple[str, str]:
    """Return the page as it is after its scripts ran, without the scripts, and the log."""
    done = run(browser, page, "--dump-dom")
    assert done.returncode == 0, done.stderr
    return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL), done.stderr


def texts(document: str) -> list[str]:
    """Return what the text elements of figures say."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", document, flags=re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", text)) for text in found]


def test_every_figure_is_drawn(browser, tmp_path):
    page = tmp_path / "page.html"
    hl.views.page([small_profile(), small_profile(label="CPU alone")], page, title="Two")
    document, log = drawn(browser, page)
    assert "Uncaught" not in log
    assert "ERR_" not in log  # nothing was asked of a network
    assert len(re.findall(r'<svg class="main-svg"[^>]*style="background', document)) == 11
    said = texts(document)
    for expected in (
        "small on HETERO:ACC,CPU: 103 µs, 3 subgraphs, 2 boundaries of 64 B",
        "ACC (emulated on CPU)", "boundary (the largest: 32 B)", "MatMul10 µs", "probabilities",
        "0 · ACC · 10 µs", "latency (µs)", "CPU alone   ■ ACC (emulated on CPU) ■ CPU",
    ):  # fmt: skip
        assert any(expected == text.replace("\xa0", " ") for text in said), expected


def test_nothing_is_offered_that_uploads(browser, tmp_path):
    page = tmp_path / "page.html"
    hl.views.page(small_profile(), page)
    document, _ = drawn(browser, page)
    assert 'data-title="Zoom"' in document
    assert "Share chart" not in document


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
def test_names_are_shown_as_they_are(browser, tmp_path, name):
    profile, page = small_profile(relu=name, label=name), tmp_path / "page.html"
    hl.views.page(profile, page, title=name)
    traces = hl.views.placement_graph(profile).data
    acc = next(i for i, trace in enumerate(traces) if trace.name == "ACC (emulated on CPU)")
    hover = f"Plotly.Fx.hover('figure-1', [{{curveNumber: {acc}, pointNumber: 1}}])"
    with page.open("a", encoding="utf-8") as file:
        file.write(f"<script>addEventListener('load', () => {{ {hover} }})</script>")
    document, log = drawn(browser, page)
    assert "Uncaught" not in log
    assert re.findall(r"<(?:img|a|iframe)\b[^>]*(?:src|href)", document) == []
    shown = squeeze(name, 80)
    # Hovering over the op: its name stands alone on the first line.
    (hovered,) = re.findall(r'<g class="hovertext".*?</g>', document, flags=re.DOTALL)
    lines = [re.sub(r"<[^>]+>", "", line) for line in hovered.split('<tspan class="line"')]
    assert html.unescape(lines[1]).endswith(shown)
    assert "Relu on ACC (emulated on CPU), subgraph 0" in html.unescape(lines[2])
    # In the heading of the page too.
    (heading,) = re.findall(r"<h1>(.*?)</h1>", document, flags=re.DOTALL)
    assert html.unescape(heading) == squeeze(name, 200)


# Letters of figures with their colour, and what they stand on: the page, or a bar.
LETTERS = """() => [...document.querySelectorAll('svg text')]
  .filter(t => t.textContent.trim() && t.getBoundingClientRect().width)
  .map(t => {
    const bar = t.classList.contains('bartext-inside') && t.parentElement.querySelector('path');
    const page = getComputedStyle(document.body).backgroundColor;
    return [t.textContent, getComputedStyle(t).fill, bar ? getComputedStyle(bar).fill : page];
  })"""
RECORDED = datasets_dir() / "recordings" / "digits_inception_emulated"


def contrast(first: str, second: str) -> float:
    levels = []
    for colour in (first, second):
        parts = [int(n) / 255 for n in re.findall(r"[0-9.]+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        levels.append(sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    low, high = sorted(levels)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_accessible_and_can_be_read(browser, tmp_path, scheme):
    page = tmp_path / "page.html"
    costs = hl.CostModel.from_json(RECORDED / "costs.json")
    profile, sweep = hl.read_profile(RECORDED / "profile"), hl.read_sweep(RECORDED / "sweep")
    hl.views.page([profile, sweep, costs], page)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        shown: Any = running.new_page(color_scheme=scheme, viewport={"width": 1000, "height": 1400})
        shown.goto(page.as_uri())
        shown.wait_for_selector("#figure-10 .heatmap-label text")
        found = Axe().run(shown, options={"runOnly": ["wcag2a", "wcag2aa"]})
        letters = shown.evaluate(LETTERS)
        running.close()
    assert found.violations_count == 0, found.generate_report()
    assert len(letters) > 200
    pale = [(text, ink, on) for text, ink, on in letters if contrast(ink, on) < 4.5]
    # Hatched bars of emulated devices show the colour through a pattern.
    assert [entry for entry in pale if "url(" not in entry[2]] == []


def test_it_looks_like_something(browser, tmp_path):
    image = pytest.importorskip("PIL.Image")
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    hl.views.page(small_profile(), page)
    assert run(browser, page, f"--screenshot={picture}").returncode == 0
    colours = image.open(picture).convert("RGB").getcolors(maxcolors=1 << 24)
    seen = {colour for count, colour in colours if count > 20}
    assert {(230, 159, 0), (0, 114, 178)} <= seen  # ACC and CPU
