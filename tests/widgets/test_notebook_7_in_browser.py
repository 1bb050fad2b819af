"""Both widgets in Notebook 7, as a person uses them; the tests beside this one use JupyterLab."""

from __future__ import annotations

import pytest
from widgets.explorer.test_explorer_in_browser import Explorer, by_hand
from widgets.jupyter_in_browser import ran
from widgets.tweaker.test_tweaker_in_browser import Tweaker

pytest.importorskip("notebook", reason="Notebook 7 comes with the extra front-ends")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

TWEAKER = (
    "import hetero_lab as hl\n"
    "acc = hl.emulate('ACC', unsupported={'Concat', 'MaxPool', 'Softmax'})\n"
    "model = hl.load('digits_inception')",
    "tweaker = hl.AffinityTweaker(model, ['ACC', 'CPU'], budget_s=3600)\ntweaker",
)


def test_the_tweaker_selects_moves_measures_and_undoes(lab, browser):
    with ran(browser, lab, TWEAKER, in_notebook_7=True) as notebook:
        tweaker, conv = Tweaker(notebook), "mixed1/branch1x1/conv"
        before = tweaker.number("subgraphs")
        tweaker.move(conv, "CPU")
        tweaker.until(lambda: tweaker.number("subgraphs"), lambda now: now != before)
        assert tweaker.python(f"print(tweaker.affinity[{conv!r}])") == "CPU"
        tweaker.press("Measure")
        rows = notebook.page.locator(".hl-panel tr[data-hl='tried'][data-status='ok']")
        tweaker.until(rows.count, lambda n: n == 2)
        tweaker.press("Undo")
        tweaker.until(lambda: tweaker.number("subgraphs"), lambda now: now == before)
        # Keys of the widget are not commands of the notebook: x would cut the cell.
        cells = notebook.page.locator(".jp-Cell").count()
        tweaker.row(conv).focus()
        for key in ("x", "Control+Shift+z"):
            notebook.page.keyboard.press(key)
        tweaker.until(lambda: tweaker.number("subgraphs"), lambda now: now != before)
        assert notebook.page.locator(".jp-Cell").count() == cells
        # Without its kernel it says so.
        said = notebook.page.locator(".hl-no-kernel")
        assert not said.is_visible()
        notebook.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )
        tweaker.until(said.is_visible, bool)


def test_the_explorer_chooses_compares_and_filters(lab, browser):
    with ran(browser, lab, by_hand("small_sweep()"), in_notebook_7=True) as notebook:
        explorer = Explorer(notebook)
        points = explorer.figure("3 of 3 measured placements")
        explorer.click_point(points, 1, 0)
        explorer.figure("on CPU ")
        explorer.show("HETERO:ACC,CPU")
        cells = notebook.page.locator(".jp-Cell").count()
        explorer.row("CPU").locator("input").first.focus()
        notebook.page.keyboard.press("x")  # would cut the cell
        notebook.page.keyboard.press("Space")
        explorer.figure("on CPU ")
        assert notebook.page.locator(".jp-Cell").count() == cells
        explorer.row("HETERO:ACC,CPU").click(modifiers=["Shift"])
        explorer.tab("Compare A and B")
        explorer.page.wait_for_selector("table.hetero-lab caption:has-text('Ops that move')")
        explorer.enter("filter", "subgraphs<2")
        explorer.figure("1 of 3 measured placements")
