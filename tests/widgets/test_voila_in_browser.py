"""Voilà: a page of the HTML manager, as VS Code and Colab have one, with a kernel."""

from __future__ import annotations

import pytest
from widgets.explorer.test_explorer_in_browser import Explorer
from widgets.jupyter_in_browser import NotebookPage, environment_in, served_page, write_notebook
from widgets.test_without_kernel import CELLS
from widgets.tweaker.test_tweaker_in_browser import Tweaker

pytest.importorskip("voila", reason="Voilà comes with the extra front-ends")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


def test_both_widgets_answer_clicks(tmp_path, browser):
    write_notebook(tmp_path / "both.ipynb", CELLS)
    home = tmp_path / "home"
    home.mkdir()
    command, probe = ["voila", "both.ipynb", "--no-browser"], "voila/static/voila.js"
    options = {"cwd": tmp_path, "env": environment_in(home)}
    with served_page(browser, command, probe, home / "voila.log", **options) as page:
        shown = NotebookPage(page, [], [])
        tweaker, explorer = Tweaker(shown), Explorer(shown)
        before = tweaker.number("subgraphs")
        tweaker.move("stem/relu", "CPU")
        tweaker.until(lambda: tweaker.number("subgraphs"), lambda now: now != before)
        explorer.show("CPU")
        explorer.enter("filter", "subgraphs<2")
        explorer.figure("1 of 3 measured placements")
        assert page.locator(".hl-no-kernel:visible").count() == 0
