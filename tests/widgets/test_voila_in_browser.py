"""Voilà: a page of the HTML manager, as VS Code and Colab have one, with a kernel."""

from __future__ import annotations

import pytest
from widgets.explorer.test_explorer_in_browser import Explorer
from widgets.jupyter_in_browser import (
    ARTIFACTS,
    NotebookPage,
    environment_in,
    free_port,
    serving,
    write_notebook,
)
from widgets.test_without_kernel import CELLS
from widgets.tweaker.test_tweaker_in_browser import Tweaker

pytest.importorskip("voila", reason="Voilà comes with the extra front-ends")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]


def test_both_widgets_answer_clicks(tmp_path, browser):
    write_notebook(tmp_path / "both.ipynb", CELLS)
    home, port, errors = tmp_path / "home", free_port(), []
    home.mkdir()
    command, url = (
        ["voila", "both.ipynb", "--no-browser", f"--port={port}"],
        f"http://127.0.0.1:{port}",
    )
    options = {"cwd": tmp_path, "env": environment_in(home)}
    with serving(command, f"{url}/voila/static/voila.js", home / "voila.log", **options):
        page = browser.new_page(viewport={"width": 1300, "height": 2200})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_default_timeout(60_000)  # all cells run before anything is there
        page.goto(url)
        shown = NotebookPage(page, [], errors)
        tweaker, explorer = Tweaker(shown), Explorer(shown)
        tweaker.node("stem/relu").click()
        tweaker.until(tweaker.selected, lambda names: names == ["stem/relu"])
        before = tweaker.number("subgraphs")
        tweaker.press("→ CPU")
        tweaker.until(lambda: tweaker.number("subgraphs"), lambda now: now != before)
        assert tweaker.node("stem/relu").get_attribute("data-device") == "CPU"
        explorer.row("CPU").click()
        explorer.figure("on CPU ")
        explorer.enter("filter", "subgraphs<2")
        explorer.figure("1 of 3 measured placements")
        assert page.locator(".hl-no-kernel:visible").count() == 0
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / "voila.png", full_page=True)
        page.close()
    assert errors == []
