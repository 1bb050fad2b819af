"""In marimo, which shows no boxes of widgets: the tweaker's board alone, and results as HTML."""

from __future__ import annotations

from pathlib import Path

import pytest
from widgets.jupyter_in_browser import served_page

pytest.importorskip("marimo", reason="marimo comes with the extra front-ends")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

RECORDED = Path(__file__).parents[2] / "datasets" / "recordings" / "digits_inception_emulated"
APP = f"""
import marimo
app = marimo.App(width="full")

@app.cell
def _():
    import marimo as mo
    import hetero_lab as hl
    acc = hl.emulate("ACC", unsupported={{"Concat", "MaxPool", "Softmax"}})
    tweaker = hl.AffinityTweaker(hl.load("digits_inception"), ["ACC", "CPU"])
    board = mo.ui.anywidget(tweaker.board)
    move = mo.ui.button(label="To the CPU", on_click=lambda _: tweaker.assign("CPU"))
    clear = mo.ui.button(label="Select nothing", on_click=lambda _: tweaker.select(ops=[]))
    return board, clear, hl, mo, move, tweaker

@app.cell
def _(board, clear, mo, move):
    mo.vstack([board, move, clear])

@app.cell
def _(board, mo, move, tweaker):
    _ = board.value, move.value
    mo.md(f"Python has {{' and '.join(tweaker.selection)}}, {{tweaker.what_if.n_subgraphs}} subgraphs")

@app.cell
def _(hl, mo, tweaker):
    mo.vstack([tweaker, hl.read_profile({str(RECORDED / "profile")!r}), hl.read_sweep({str(RECORDED / "sweep")!r})])
"""  # noqa: E501


def test_the_board_selects_and_shows_what_python_moves(tmp_path, browser):
    (tmp_path / "app.py").write_text(APP, "utf-8")
    command = ["marimo", "run", "app.py", "--headless", "--no-token", "--no-check"]
    log = tmp_path / "marimo.log"
    with served_page(browser, command, "health", log, cwd=tmp_path) as page:
        row = page.locator(".hl-board tbody tr").filter(has=page.locator("td[title='stem/conv']"))
        row.click()
        page.get_by_text("Python has stem/conv, 19 subgraphs").wait_for()
        node = page.locator(f".hl-graph [data-op='{row.get_attribute('data-op')}']")
        assert node.get_attribute("aria-selected") == "true"
        page.locator(".hl-graph [data-op]").first.click(modifiers=["Shift"])
        page.get_by_text("Python has scale and stem/conv, 19 subgraphs").wait_for()
        page.get_by_role("button", name="To the CPU").click()
        page.get_by_text("Python has scale and stem/conv, 22 subgraphs").wait_for()
        page.locator(".hl-graph [data-op][data-device='CPU'][aria-selected='true']").nth(
            1
        ).wait_for()
        assert "CPU" in row.inner_text()
        page.get_by_role("button", name="Select nothing").click()
        page.locator(".hl-board tbody:not(:has([aria-selected='true']))").wait_for()
        # Everything else is there as a picture and as tables.
        assert page.locator("img[alt='graph']").is_visible()
        cells = page.locator("table.hetero-lab:has-text('subgraphs') td")
        assert cells.count() > 20
        assert cells.first.evaluate("cell => getComputedStyle(cell).padding") == "2px 8px"
