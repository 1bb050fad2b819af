"""The site, opened page by page in a real browser: light and dark, narrow and wide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from docs.links import Page

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "_build" / "html"
# Each page twice, so that both themes and both widths are seen.
SEEN = (("light", 1000), ("dark", 1600))
AXE = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"]}
# What is wrong with the letters of figures: below 10 px, beyond the edge, or on each other. The
# boxes may be turned, and are as high as what is inked; two are apart if a side parts them.
LETTERS = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap((plot) => {
  const seen = (text) => text.textContent.trim() && text.checkVisibility({ opacityProperty: true,
    visibilityProperty: true }) && !text.closest('.hoverlayer, .modebar, defs');
  const letters = [...plot.querySelectorAll('svg text')].filter(seen).map((text) => {
    const { x, y, width, height } = text.getBBox(), m = text.getScreenCTM();
    const cut = 0.16 * height / Math.max(1, text.querySelectorAll('tspan.line').length);
    const [right, top, bottom] = [x + width - 1, y + cut, y + height - cut];
    const corners = [[x + 1, top], [right, top], [right, bottom], [x + 1, bottom]]
      .map(([u, v]) => [m.a * u + m.c * v + m.e, m.b * u + m.d * v + m.f]);
    const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(m.a, m.b);
    const inside = text.closest('.plot');
    return { says: text.textContent.slice(0, 60), size, corners, width, inside };
  }).filter((letter) => letter.width);
  const parted = (a, b) => [a, b].some((box) => box.some(([x, y], i) => {
    const [u, v] = box[(i + 1) % 4];
    const [p, q] = [a, b].map((corners) => corners.map(([s, t]) => s * (v - y) + t * (x - u)));
    return Math.max(...p) <= Math.min(...q) || Math.max(...q) <= Math.min(...p);
  }));
  const edge = plot.querySelector('.main-svg')?.getBoundingClientRect();
  const beyond = ({ corners, inside }) => !inside && corners.some(([x, y]) =>
    x < edge.left - 1 || x > edge.right + 1 || y < edge.top - 1 || y > edge.bottom + 1);
  return [
    ...letters.filter(({ size }) => size < 9.95).map(({ says, size }) => `${size} px: ${says}`),
    ...letters.filter(beyond).map(({ says }) => `beyond the edge: ${says}`),
    ...letters.flatMap((a, i) => letters.slice(i + 1).filter((b) => !parted(a.corners, b.corners))
      .map((b) => `${a.says} lies on ${b.says}`)),
  ];
})"""
CHOOSE = "select[name={}]"
# Questions of a reader in a hurry, and where they are answered.
TEN = [
    ("which op runs where", "faq.html#which-op-runs-where"),
    ("why so many subgraphs", "faq.html#why-so-many-subgraphs"),
    ("is int8 worth it", "faq.html#is-int8-worth-it"),
    ("compare two versions", "faq.html#how-do-i-compare-two-versions"),
    ("export CSV", "howto/csv.html#export-csv"),
    ("GPU not listed", "howto/troubleshooting.html#gpu-not-listed"),
    ("dynamic shapes", "howto/troubleshooting.html#dynamic-shapes"),
    ("my model crashes", "howto/troubleshooting.html#my-model-crashes"),
    ("NPU", "howto/intel_devices.html#npu"),
    ("deploy", "deployment.html#deploy-and-keep-it-alive"),
]
SHOWN = ".explorer .figure:not([hidden]) .gtitle"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built anew: that takes half a minute."""
    pytest.importorskip("sphinx", reason="the site needs the extra docs")
    done = subprocess.run(
        [sys.executable, "-m", "docs.site"], cwd=ROOT, capture_output=True, text=True, timeout=900,
        env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return SITE


def opened(browser: Any, path: Path) -> Any:
    scheme, width = SEEN[0]
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 1400})
    page.failures = []
    page.on("pageerror", lambda error: page.failures.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    return page


@pytest.mark.parametrize("part", ["*.html", "howto/*", "tutorial/*", "reference/*", "gallery/*"])
def test_every_page_is_accessible_and_fits(site, browser, part):
    wrong = []
    pages = sorted(site.glob(part))
    assert len(pages) >= 6
    for path in pages:
        page = opened(browser, path)
        for scheme, width in SEEN:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 1400})
            found = Axe().run(page, options=AXE)
            where = f"{path.relative_to(site)}, {scheme}, {width} px"
            if found.violations_count:
                wrong.append(f"{where}: {found.generate_report()}")
            if page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
                wrong.append(f"{where}: wider than the window")
            wrong += [f"{where}: {letters}" for letters in page.evaluate(LETTERS)]
        wrong += [f"{path.relative_to(site)}: {failure}" for failure in page.failures]
        page.close()
    assert wrong == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("dynamic shape", "howto/troubleshooting.html#dynamic-shapes"),
        ("NPU", "howto/intel_devices.html#npu"),
        ("wrong output", "howto/troubleshooting.html#wrong-outputs"),
        ("slower than CPU", "howto/troubleshooting.html#slower-than-cpu-alone"),
        ("install", "install.html#install"),
        *TEN,
    ],
)
def test_a_search_finds_the_right_page_first(site, browser, query, found):
    page = browser.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q={query.replace(' ', '+')}")
    first = page.locator("#search-results li a").first.get_attribute("href")
    where, _, place = first.partition("#")
    assert where.split("?")[0].endswith(found.partition("#")[0])
    answer = opened(browser, site / found.partition("#")[0])
    heading = found.partition("#")[2]
    assert answer.locator(f"section[id='{heading}'] #{place}").count() == 1


@pytest.mark.parametrize("answer", [answer for _, answer in TEN])
def test_an_answer_is_two_clicks_from_home(site, answer):
    def clicks(page: Path) -> set[Path]:
        found = (page.parent / target.partition("#")[0] for target in Page(page).targets)
        return {path.resolve() for path in found if path.suffix == ".html" and path.exists()}

    page, _, heading = answer.partition("#")
    once = clicks(site / "index.html")
    assert (site / page).resolve() in once.union(*map(clicks, once))
    assert heading in Page(site / page).anchors


def test_letters_that_cannot_be_read_are_found(browser, tmp_path):
    text = '<text x="{}" y="{}" style="font: {}px sans-serif">{}</text>'
    texts = [(9, 30, 12, "first"), (9, 34, 12, "second"), (9, 60, 9, "small"), (195, 60, 12, "far"),
             (9, 90, 12, "alone"), (9, 103, 12, "below")]  # fmt: skip
    path = tmp_path / "page.html"
    path.write_text(
        '<div class="js-plotly-plot"><svg class="main-svg" width="200" height="120">'
        f"{''.join(text.format(*each) for each in texts)}</svg></div>"
    )
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.evaluate(LETTERS) == [
        "9 px: small", "beyond the edge: far", "first lies on second"
    ]  # fmt: skip


def test_an_explorer_needs_no_kernel(site, browser):
    page = opened(browser, site / "gallery" / "explorer.html")

    def titles() -> list[str]:
        page.wait_for_selector(SHOWN)
        return [text.replace("\xa0", " ") for text in page.locator(SHOWN).all_text_contents()]

    assert titles() == ["5 of 5 measured placements", titles()[1]]
    assert "19 subgraphs" in titles()[1]
    # A click on the leftmost point, the only placement with one subgraph, chooses it.
    points = page.locator(".explorer .figure:not([hidden])").first.locator(".scatterlayer .point")
    left = min(range(points.count()), key=lambda i: points.nth(i).bounding_box()["x"])
    box = points.nth(left).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".hovertext")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_function("document.querySelector('select[name=A]').value === '4'")
    assert "CPU" in titles()[1]
    assert "1 subgraph" in titles()[1]
    page.select_option(CHOOSE.format("show"), label="what sets B apart from A")
    assert len(titles()) == 2  # B is another placement at first
    page.select_option(CHOOSE.format("B"), label="CPU")
    page.wait_for_selector(".explorer p[data-when]:not([hidden])")
    assert page.failures == []
